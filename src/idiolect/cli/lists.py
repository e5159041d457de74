"""Commands that tell: methods, channels, attacks, rules, kernels, projections; and `reproduce`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from .. import experiments, models
from ..adversary import ATTACKS
from ..channels import CHANNELS, Channel, Form, Stage
from ..core import streams
from ..core.knobs import SettingError, describe, nearest
from ..methods import METHODS, make_method
from ..projections.report import all_kinds
from ..report.console import OUT
from ..report.figures import number, size
from ..run.measure import measure
from ..server.rules import RULES, Wrapper
from ..server.rules.rule import Resilient
from ..task.task import Task
from ..wire.messages import HEADER
from .flags import Flags, Parser, common, plan_of


def methods(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect methods",
        allow_abbrev=False,
        description="What there is, when to use it, what it costs.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value on stdout")
    parsed = Flags(parser).parse(argv)
    rows: list[dict[str, Any]] = []
    probe = Task(lambda: models.make("mlp", (30,), 2, hidden="4"))
    for name, (cls, fixed) in METHODS.items():
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        fields = [
            f | ({"default": fixed[f["name"]]} if f["name"] in fixed else {}) for f in describe(cls)
        ]
        method = make_method(name)
        keeps = any(t.numel() for t in method.private(probe, streams.name_keys(["a"])).values())
        heard = "all" if cls.hears_all else "sampled"
        costs = {
            "trains": method.trains,
            "heard": heard,
            "sends": method.sends,
            "keeps_state": keeps,
        }
        rows.append({"name": name, "summary": summary, **costs, "fields": fields})
    if parsed.json:
        print(json.dumps(rows))
        return
    table = Table(
        "method", "what it is and when to choose it", "trains", "sends", "keeps", box=SIMPLE_HEAD
    )
    for r in rows:
        table.add_row(
            r["name"],
            r["summary"],
            r["trains"],
            r["sends"],
            "a state" if r["keeps_state"] else "nothing",
        )
    OUT.print(table)
    OUT.print(
        "sends: numbers a message, up and down; keeps: at the clients between rounds. Fields: idiolect run METHOD --help"
    )


def channels(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect channels",
        allow_abbrev=False,
        description="How to send less: what each channel does and what it costs.",
    )
    parser.add_argument(
        "--d",
        type=int,
        default=79510,
        help="numbers of a message, a model's parameters for most methods (default 79510)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value on stdout")
    parsed = Flags(parser).parse(argv)
    if parsed.d < 1:
        raise SettingError(f"d: {parsed.d} is not accepted; a whole number >= 1")
    rows: list[dict[str, Any]] = [
        {
            "name": "none",
            "summary": "Numbers as they are.",
            "bytes": message_bytes((), parsed.d),
            "options": [],
        },
    ]
    for (
        name,
        cls,
    ) in (
        CHANNELS.items()
    ):  # a stage has a file of its own, which says in its first line what it does
        summary = (sys.modules[cls.__module__].__doc__ or "").strip().splitlines()[0]
        rows.append(
            {
                "name": name,
                "summary": summary,
                "bytes": message_bytes((cls(),), parsed.d),
                "options": describe(cls),
            }
        )
    if parsed.json:
        print(json.dumps(rows))
        return
    table = _list("channel", f"bytes, d = {parsed.d:,}")
    for r in rows:
        first, again = r["bytes"]["first"], r["bytes"]["again"]
        _add(table, r, f"{first:,}" if first == again else f"{first:,}, then {again:,}")
    OUT.print(table)
    OUT.print(
        "bytes: one message up with its header, at the defaults (dgc: after its warm-up); where two stand there, the first and the same "
        "again. Stages are joined by +: --channel 'feedback + topk(share=0.01) + half'. Messages down are sent as they are."
    )


def message_bytes(stages: tuple[Stage, ...], d: int) -> dict[str, int]:
    """The bytes of a message of d random numbers, header included, and of the same numbers sent once more.

    >>> message_bytes((), 79510)
    {'first': 318064, 'again': 318064}
    """
    chain, form = Channel(stages), Form(d, (0, d), round=10**6)
    row = torch.from_numpy(streams.normal(streams.keys(0, "channels"), d)).float()
    state = {n: torch.zeros(1, size) for n, size in chain.kept("client", form).items()}
    first, state, _ = chain.encode(row, state, np.zeros(1, dtype=np.uint64), form)
    again, _, _ = chain.encode(row, state, np.zeros(1, dtype=np.uint64), form)
    return {
        "first": HEADER.itemsize + int(first.lengths[0]),
        "again": HEADER.itemsize + int(again.lengths[0]),
    }


def attacks(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect attacks", allow_abbrev=False, description="What malicious clients can do."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value on stdout")
    parsed = Flags(parser).parse(argv)
    rows: list[dict[str, Any]] = []
    for name, cls in ATTACKS.items():
        knows = "the round's honest messages" if cls.colludes else "its own message"
        labels = {"random": "drawn at random", "flip": "turned round"}.get(
            cls.poisons, "left alone"
        )
        rows.append(
            {
                "name": name,
                "summary": _summary(cls),
                "knows": knows,
                "labels": labels,
                "options": describe(cls),
            }
        )
    if parsed.json:
        print(json.dumps(rows))
        return
    table = _list("attack", "a liar knows", "training labels", numbers=False)
    for r in rows:
        _add(table, r, r["knows"], r["labels"])
    OUT.print(table)
    OUT.print(
        "Use: --attack 'sign-flip(std=10)' --malicious 0.2, a share of the clients or, from 1 on, their number; joined by +."
    )


def rules(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect rules",
        allow_abbrev=False,
        description="How the server combines messages, and how many liars it bears.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value on stdout")
    parsed = Flags(parser).parse(argv)
    rows: list[dict[str, Any]] = []
    for name, cls in RULES.items():
        kind = "wrapper" if issubclass(cls, Wrapper) else "rule"
        rows.append(
            {
                "name": name,
                "kind": kind,
                "summary": _summary(cls),
                "needs": _needs(cls),
                "options": describe(cls),
            }
        )
    if parsed.json:
        print(json.dumps(rows))
        return
    table = _list("rule", "clients n for f liars", numbers=False)
    for r in rows:
        _add(
            table,
            {**r, "name": f"{r['name']} +" if r["kind"] == "wrapper" else r["name"]},
            r["needs"],
        )
    OUT.print(table)
    OUT.print(
        "n: clients heard in a round. Those with a + stand before a rule: --rule 'nnm(f=2) + trimmed-mean(f=2)'. "
        "docs/rules.md has measured how far liars can move each."
    )


def _needs(cls: type) -> str:
    """The clients a rule needs for f liars."""
    if issubclass(cls, Resilient):
        return f"n >= {cls.slope} f + {cls.offset}"
    if issubclass(cls, Wrapper):
        return "as the rule after it" + (", of n / size rows" if cls().after(100) != 100 else "")
    return "any n"


def _summary(cls: type) -> str:
    """The first paragraph of the docstring in one line."""
    return " ".join((cls.__doc__ or "").partition("\n\n")[0].split())


def _list(what: str, *more: str, numbers: bool = True) -> Table:
    table = Table(what, "what it does", box=SIMPLE_HEAD)
    for heading in more:
        table.add_column(heading, justify="right" if numbers else "left")
    table.add_column("options, their defaults and what they accept", ratio=1)
    return table


def _add(table: Table, row: dict[str, Any], *cells: str) -> None:
    options = "\n".join(
        f"{o['name']}={o['default']}: {o['help']} ({o['accepts']})" for o in row["options"]
    )
    table.add_row(row["name"], escape(row["summary"]), *cells, escape(options), end_section=True)


def reproduce(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect reproduce",
        allow_abbrev=False,
        description="Run a stored experiment again and write its page.",
    )
    parser.add_argument("name", nargs="?", help=f"one of: {', '.join(experiments.EXPERIMENTS)}")
    parser.add_argument(
        "--output", default="docs", help="the folder for its page and figures (default docs)"
    )
    parsed = Flags(parser).parse(argv)
    if parsed.name not in experiments.EXPERIMENTS:
        raise nearest(parsed.name or "", experiments.EXPERIMENTS, "experiment")
    for path in experiments.EXPERIMENTS[parsed.name](Path(parsed.output)):
        print(path)


def kernels(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect kernels",
        allow_abbrev=False,
        description="Measure every kernel on this data and model; `run` never does.",
    )
    flags, file = common(parser, argv, None)
    parsed = flags.parse(argv)
    plan = plan_of(flags, parsed, file, "fedavg", {})
    settings, federation = plan.make_settings(), plan.make_data()
    rows = measure(plan.make_task(federation), federation, settings)
    if parsed.json:
        print(json.dumps(rows))
        return
    table = Table(
        "kernel",
        "ms a gradient of the cohort",
        "",
        title=f"{rows[0]['clients']} clients, batch {settings.batch}, d = {rows[0]['d']}",
    )
    for r in rows:
        table.add_row(
            r["kernel"],
            f"{r['milliseconds']:.2f}" if r["milliseconds"] else r["error"],
            "chosen by the rule" if r["chosen"] else "",
        )
    OUT.print(table)


def projections(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect projections",
        allow_abbrev=False,
        description="What each kind of P costs for this data and model.",
    )
    parser.add_argument(
        "--dim", type=int, default=21, help="dimension of the shared subspace (default 21)"
    )
    flags, file = common(parser, argv, None)
    parsed = flags.parse(argv)
    plan = plan_of(flags, parsed, file, "lp-proj", {})
    federation, settings = plan.make_data(), plan.make_settings()
    task = plan.make_task(federation)
    rows = all_kinds(
        parsed.dim, task.layout.starts, federation.clients, settings.sampled(federation.clients)
    )
    if parsed.json:
        print(json.dumps(rows))
        return
    title = f"d = {task.d}, dim = {parsed.dim}, {federation.clients} clients"
    table = Table(
        "projection",
        "s_min",
        "s_max",
        "memory",
        "ms to make",
        "ms for P x and Pᵀ u",
        "bytes a round",
        title=title,
        box=SIMPLE_HEAD,
    )
    for r in rows:
        if "refused" in r:
            table.add_row(r["projection"], r["refused"])
            continue
        cells = [
            number(r["s_min"]),
            number(r["s_max"]),
            size(r["memory"]),
            f"{r['build_ms']:.1f}",
            f"{r['pass_ms']:.3f}",
            size(r["bytes_per_round"]),
        ]
        table.add_row(r["projection"], *cells)
    OUT.print(table)
    for text in {r["warning"] for r in rows if r.get("warning")}:
        OUT.print(f"warning: {text}")
