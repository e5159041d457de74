"""Commands that tell what there is: methods, channels, attacks, rules."""

from __future__ import annotations

import json
import sys
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import torch

from ... import models
from ...attacks import ATTACKS
from ...channels import CHANNELS, Channel, Form, Stage
from ...core import streams
from ...core.columns import Column, fitted_table, words
from ...core.knobs import SettingError, describe
from ...core.text import shown
from ...methods import METHODS, make_method
from ...projections.report import all_kinds
from ...report.console import OUT, literal
from ...report.format import number, size
from ...run.kernel_timing import measure
from ...server.rules import RULES, Wrapper
from ...server.rules.rule import Resilient
from ...task.task import Task
from ...wire.messages import HEADER
from ..options import Flags, Parser, plan_of, training_flags


def methods(argv: list[str]) -> None:
    """What there is, when to use it, what it costs."""
    parser = Parser("methods", "What there is, when to use it, what it costs.")
    parser.add_json()
    parsed = Flags(parser).parse(argv)
    rows = [_method_row(name) for name in METHODS]
    if parsed.json:
        print(json.dumps(rows))
        return
    columns = [
        words("method", "name"),
        words("what it is and when to choose it", "summary"),
        words("trains", "trains", 2),
        words("sends", "sends"),
        Column("keeps", 1, lambda r: "a state" if r["keeps_state"] else "nothing", words=True),
        Column("preset", 3, lambda r: ", ".join(r["presets"]) or "–", words=True),
    ]
    OUT.print(fitted_table(columns, rows, OUT.width))
    OUT.print(
        "sends: numbers per message, up and down; keeps: at the clients between rounds; preset: "
        "METHOD:preset=paper, the fields of its paper where they are not the defaults. "
        "Fields: idiolect run METHOD --help"
    )


def _method_row(name: str) -> dict[str, Any]:
    cls, fixed = METHODS.find(name)
    method = make_method(name)
    probe = Task(lambda: models.make("mlp", (30,), 2, hidden="4"))
    try:
        kept = method.private(probe, streams.name_keys(["a"]))
        keeps = any(t.numel() for t in kept.values())
    except Exception:  # a user's method that only fits other models
        keeps = True
    fields = describe(cls)
    for f in fields:
        f["default"] = fixed.get(f["name"], f["default"])
    return {
        "name": name,
        "summary": (cls.__doc__ or "").strip().splitlines()[0] if cls.__doc__ else "",
        "trains": method.traits.trains,
        "heard": "all" if cls.traits.hears_all else "sampled",
        "sends": method.traits.sends,
        "keeps_state": keeps,
        "linear": method.traits.linear,
        "fields": fields,
        "presets": cls.traits.presets,
    }


def channels(argv: list[str]) -> None:
    """How to send less."""
    parser = Parser("channels", "How to send less: what each channel does and what it costs.")
    parser.add_argument(
        "--d",
        type=int,
        default=79510,
        help="numbers of a message, a model's parameters for most methods (default 79510)",
    )
    parser.add_json()
    parsed = Flags(parser).parse(argv)
    if parsed.d < 1:
        raise SettingError(f"d: {parsed.d} is not accepted; a whole number >= 1")
    plain = {"name": "none", "summary": "Numbers as they are.", "options": []}
    rows: list[dict[str, Any]] = [plain | {"bytes": message_bytes((), parsed.d)}]
    for name in CHANNELS:
        cls = CHANNELS.find(name)
        rows.append(
            {
                "name": name,
                "summary": _stage_summary(cls),
                "bytes": message_bytes((cls(),), parsed.d),
                "options": describe(cls),
            }
        )
    if parsed.json:
        print(json.dumps(rows))
        return
    _list("channel", rows, Column(f"bytes, d = {parsed.d:,}", 0, _bytes))
    OUT.print(
        "bytes: one message up with its header, at the defaults (dgc: after its warm-up); where "
        "two stand there, the first and the same again. Stages are joined by +: "
        "--channel 'feedback + topk(share=0.01) + half'. Messages down are sent as they are."
    )


def _stage_summary(cls: type) -> str:
    """A built-in stage has a file of its own, which says in its first line what it does."""
    if cls.__module__.startswith("idiolect."):
        return (sys.modules[cls.__module__].__doc__ or "").strip().splitlines()[0]
    return _summary(cls)


def message_bytes(stages: tuple[Stage, ...], d: int) -> dict[str, int]:
    """The bytes of a message of d random numbers, header included, and of the same once more.

    >>> message_bytes((), 79510)
    {'first': 318064, 'again': 318064}
    """
    channel = Channel(stages)
    form = Form(d, (0, d), round=10**6)
    row = torch.from_numpy(streams.normal(streams.keys(0, "channels"), d)).float()
    state = {n: torch.zeros(1, size) for n, size in channel.kept("client", form).items()}
    keys = np.zeros(1, dtype=np.uint64)
    first, state, _ = channel.encode(row, state, keys, form)
    again, _, _ = channel.encode(row, state, keys, form)
    return {
        "first": HEADER.itemsize + int(first.lengths[0]),
        "again": HEADER.itemsize + int(again.lengths[0]),
    }


def attacks(argv: list[str]) -> None:
    """What malicious clients can do."""
    parser = Parser("attacks", "What malicious clients can do.")
    parser.add_json()
    parsed = Flags(parser).parse(argv)
    changed = {"random": "drawn at random", "flip": "reversed"}
    rows: list[dict[str, Any]] = []
    for name in ATTACKS:
        cls = ATTACKS.find(name)
        rows.append(
            {
                "name": name,
                "summary": _summary(cls),
                "knows": "the round's honest messages" if cls.colludes else "its own message",
                "labels": changed.get(cls.poisons, "left alone"),
                "options": describe(cls),
            }
        )
    if parsed.json:
        print(json.dumps(rows))
        return
    labels = words("training labels", "labels", 1)
    _list("attack", rows, words("a malicious client knows", "knows", 2), labels)
    OUT.print(
        "Use: --attack 'sign-flip(std=10)' --malicious 0.2, a share of the clients or, "
        "from 1 on, their number; joined by +."
    )


def rules(argv: list[str]) -> None:
    """How the server combines messages."""
    parser = Parser(
        "rules", "How the server combines messages, and how many malicious clients it withstands."
    )
    parser.add_json()
    parsed = Flags(parser).parse(argv)
    rows: list[dict[str, Any]] = []
    for name in RULES:
        cls = RULES.find(name)
        rows.append(
            {
                "name": name,
                "kind": "wrapper" if issubclass(cls, Wrapper) else "rule",
                "summary": _summary(cls),
                "needs": _needs(cls),
                "options": describe(cls),
            }
        )
    if parsed.json:
        print(json.dumps(rows))
        return
    named = [r | {"name": f"{r['name']} +"} if r["kind"] == "wrapper" else r for r in rows]
    _list("rule", named, words("clients n for f malicious", "needs"))
    OUT.print(
        "n: clients heard in a round. Those with a + stand before a rule: "
        "--rule 'nnm(f=2) + trimmed-mean(f=2)'. "
        "docs/rules.md has measured how far malicious clients can move each."
    )


def _needs(cls: type) -> str:
    """The clients a rule needs for f malicious ones."""
    if issubclass(cls, Resilient):
        return f"n >= {cls.slope} f + {cls.offset}"
    if issubclass(cls, Wrapper):
        return "as the rule after it" + (", of n / size rows" if cls().after(100) != 100 else "")
    return "any n"


def _summary(cls: type) -> str:
    """The first paragraph of the docstring in one line."""
    return " ".join((cls.__doc__ or "").partition("\n\n")[0].split())


def _list(what: str, rows: list[dict[str, Any]], *more: Column) -> None:
    """A table of things by name: what they do, what they cost, their options."""
    options = Column("options, their defaults and what they accept", 3, _options, words=True)
    columns = [words(what, "name"), words("what it does", "summary"), *more, options]
    OUT.print(fitted_table(columns, rows, OUT.width, sections=True))


def _options(row: dict[str, Any]) -> str:
    return "\n".join(
        shown(f"{o['name']}={o['default']}: {o['help']} ({o['accepts']})") for o in row["options"]
    )


def _bytes(row: dict[str, Any]) -> str:
    first, again = row["bytes"]["first"], row["bytes"]["again"]
    return f"{first:,}" if first == again else f"{first:,}, then {again:,}"


def reproduce(argv: list[str]) -> None:
    """Run a stored experiment again and write its page: a command of idiolect_papers."""
    for entry in entry_points(group="idiolect.commands", name="reproduce"):
        return entry.load()(argv)
    try:
        from idiolect_papers.reproduce import main
    except ModuleNotFoundError:
        raise SettingError(
            "reproduce: the package idiolect_papers is not installed; it comes with idiolect's "
            "source: pip install . in a checkout"
        ) from None
    return main(argv)


def kernels(argv: list[str]) -> None:
    """Measure every kernel on this data and model; `run` never does."""
    parser = Parser("kernels", "Measure every kernel on this data and model; `run` never does.")
    flags, file = training_flags(parser, argv, None)
    parsed = flags.parse(argv)
    plan = plan_of(flags, parsed, file, "fedavg", {})
    settings = plan.make_settings()
    federation = plan.make_data()
    rows = measure(plan.make_task(federation), federation, settings)
    if parsed.json:
        print(json.dumps(rows))
        return
    title = (
        f"{rows[0]['clients']:,} of {federation.clients:,} clients (those heard per round), "
        f"batch {settings.batch:,}, d = {rows[0]['d']:,}"
    )
    columns = [
        words("kernel", "kernel"),
        Column("ms per gradient of the cohort", 0, _milliseconds),
        Column("", 1, lambda r: "chosen by the rule" if r["chosen"] else r["error"], words=True),
    ]
    OUT.print(fitted_table(columns, rows, OUT.width, title))


def _milliseconds(row: dict[str, Any]) -> str:
    return f"{row['milliseconds']:,.2f}" if row["milliseconds"] else "–"


def projections(argv: list[str]) -> None:
    """What each kind of P costs for this data and model."""
    parser = Parser("projections", "What each kind of P costs for this data and model.")
    parser.add_argument(
        "--dim", type=int, default=21, help="dimension of the shared subspace (default 21)"
    )
    flags, file = training_flags(parser, argv, None)
    parsed = flags.parse(argv)
    plan = plan_of(flags, parsed, file, "lp-proj", {})
    federation = plan.make_data()
    task = plan.make_task(federation)
    heard = plan.make_settings().sampled(federation.clients)
    rows = all_kinds(parsed.dim, task.layout.starts, federation.clients, heard)
    if parsed.json:
        print(json.dumps(rows))
        return
    title = (
        f"d = {task.d:,}, dim = {parsed.dim:,}, "
        f"{heard:,} of {federation.clients:,} clients heard per round"
    )
    columns = [
        words("projection", "projection"),
        Column("s_min", 2, lambda r: number(r.get("s_min"))),
        Column("s_max", 2, lambda r: number(r.get("s_max"))),
        Column("memory", 0, lambda r: size(r["memory"]) if "memory" in r else "–"),
        Column("ms to make", 3, lambda r: f"{r['build_ms']:,.1f}" if "memory" in r else "–"),
        Column(
            "ms for P x and Pᵀ u", 1, lambda r: f"{r['pass_ms']:,.3f}" if "memory" in r else "–"
        ),
        Column(
            "bytes per round", 0, lambda r: size(r["bytes_per_round"]) if "memory" in r else "–"
        ),
    ]
    refused = [shown(f"{r['projection']}: {r['refused']}") for r in rows if "refused" in r]
    OUT.print(fitted_table(columns, rows, OUT.width, title, "\n".join(refused)))
    for text in {r["warning"] for r in rows if r.get("warning")}:
        OUT.print(literal(f"warning: {text}"))
