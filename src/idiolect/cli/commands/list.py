"""`idiolect list KIND`: what there is, when to use it, what it costs; --measure on your model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ... import models
from ...attacks import ATTACKS
from ...channels import CHANNELS, Channel, Form, Stage
from ...core import streams
from ...core.columns import Column, FittedTable, words
from ...core.knobs import Knobs, describe, knob
from ...core.text import plural, shown
from ...methods import METHODS, NAMES, make_method
from ...privacy.protection import PROTECTIONS
from ...projections.report import all_kinds
from ...report.console import literal
from ...report.format import count, number, size
from ...server.rules import RULES, Wrapper
from ...server.rules.rule import Resilient
from ...server.selection import SELECTIONS
from ...task.augment import AUGMENTATIONS
from ...task.task import Task
from ...wire.messages import HEADER
from ..kernel_timing import measure
from ..options import Parser, TrainingParser, run_action
from ..output import emit

Row = dict[str, Any]
KERNELS = {
    "stacked": "batched matrix products with a hand-written backward pass; chains of linear layers",
    "vmap": "torch.func.vmap over the gradient of the module; any module",
    "rows": "one model after the other; fastest for convolutions on a CPU",
    "compiled": "vmap through torch.compile; long runs only, never chosen automatically",
}
PROJECTIONS = {
    "gaussian": "dense rows of i.i.d. N(0, 1) entries, scaled to unit length; small models",
    "orthogonal": "dense orthonormal rows; small models",
    "block": "block-diagonal: groups of coordinates to groups of rows",
    "layers": "block-diagonal: a block per layer",
    "sparse": "a few signed entries per coordinate; large models",
    "contiguous": "sums of neighbouring coordinates under random signs; large models",
    "identity": "the whole model is shared",
}


def list_kind(argv: list[str]) -> None:
    """List the things of one kind."""
    run_action("list", KINDS, argv, "kind")


def _show(as_json: bool, rows: list[Row], columns: Sequence[Column], note: str) -> None:
    sections = any("options" in row for row in rows)
    emit(as_json, rows, FittedTable(columns, rows, sections=sections), literal(note))


def _with_options(heading: str, *more: Column) -> list[Column]:
    """Columns of things by name: what they do, what they cost, their options."""
    options = Column("options, their defaults and what they accept", 3, _options, words=True)
    return [words(heading, "name"), words("what it does", "summary"), *more, options]


def _options(row: Row) -> str:
    return "\n".join(
        shown(f"{o['name']}={o['default']}: {o['help']} ({o['accepts']})") for o in row["options"]
    )


def _summary(cls: type) -> str:
    """The first paragraph of the docstring in one line."""
    return " ".join((cls.__doc__ or "").partition("\n\n")[0].split())


def _methods(argv: list[str]) -> None:
    """When to use each method, and what it costs."""
    parsed = Parser("list methods", _methods.__doc__, output=("json",)).parse(argv)
    columns = [
        words("method", "name"),
        words("what it is and when to choose it", "summary"),
        words("trains", "trains", 2),
        words("sends", "sends"),
        Column("keeps", 1, lambda r: "a state" if r["keeps_state"] else "nothing", words=True),
        Column("preset", 3, lambda r: ", ".join(r["presets"]) or "–", words=True),
    ]
    note = (
        "sends: numbers per message, up and down; keeps: at the clients between rounds; preset: "
        "METHOD:preset=paper, the fields of its paper where they are not the defaults. "
        "Fields: idiolect run METHOD --help. Names of a method with settings "
        f"(docs/methods.md): {', '.join(NAMES)}"
    )
    _show(parsed.output.json, [_method_row(name) for name in METHODS], columns, note)


def _method_row(name: str) -> Row:
    cls, fixed = METHODS.find(name)
    method = make_method(name)
    probe = Task(lambda: models.make("mlp", (30,), 2, hidden="4"))
    try:
        state = method.private(probe, streams.name_keys(["a"]))
        keeps = any(t.numel() for t in state.values())
    except Exception:  # a user's method that only fits other models
        keeps = True
    fields = describe(cls)
    for f in fields:
        f["default"] = fixed.get(f["name"], f["default"])
    return {
        "name": name,
        "summary": (cls.__doc__ or "").strip().partition("\n")[0],
        "trains": method.traits.trains,
        "heard": "all" if cls.traits.hears_all else "sampled",
        "sends": method.traits.sends,
        "keeps_state": keeps,
        "linear": method.traits.linear,
        "fields": fields,
        "presets": cls.traits.presets,
    }


@dataclass(frozen=True)
class ChannelOptions(Knobs):
    """What the bytes of channels are counted for."""

    d: int = knob(79510, "numbers of a message, a model's parameters for most methods", low=1)


def _channels(argv: list[str]) -> None:
    """How to send less: what each channel does and what it costs."""
    parser = Parser("list channels", _channels.__doc__, "", ChannelOptions, ("json",))
    parsed = parser.parse(argv)
    d = parsed.options.d
    plain = {"name": "none", "summary": "Numbers as they are.", "options": []}
    rows: list[Row] = [plain | {"bytes": message_bytes((), d)}]
    for name in CHANNELS:
        cls = CHANNELS.find(name)
        row = {"name": name, "summary": _stage_summary(cls), "bytes": message_bytes((cls(),), d)}
        rows.append(row | {"options": describe(cls)})
    note = (
        "bytes: one message up with its header, at the defaults (dgc: after its warm-up); where "
        "two stand there, the first and the same again. Stages are joined by +: "
        "--channel 'feedback + topk(share=0.01) + half'. Messages down are sent as they are."
    )
    columns = _with_options("channel", Column(f"bytes, d = {d:,}", 0, _bytes))
    _show(parsed.output.json, rows, columns, note)


def _stage_summary(cls: type) -> str:
    """A built-in stage has a file of its own, which says in its first line what it does."""
    if cls.__module__.startswith("idiolect."):
        return (sys.modules[cls.__module__].__doc__ or "").strip().partition("\n")[0]
    return _summary(cls)


def _bytes(row: Row) -> str:
    first, again = row["bytes"]["first"], row["bytes"]["again"]
    return count(first) if first == again else f"{count(first)}, then {count(again)}"


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


def _attacks(argv: list[str]) -> None:
    """What malicious clients can do."""
    parsed = Parser("list attacks", _attacks.__doc__, output=("json",)).parse(argv)
    poisons = {"random": "drawn at random", "flip": "reversed"}
    rows = [
        {
            "name": name,
            "summary": _summary(cls),
            "knows": "the round's honest messages" if cls.colludes else "its own message",
            "labels": poisons.get(cls.poisons, "left alone"),
            "options": describe(cls),
        }
        for name, cls in ((name, ATTACKS.find(name)) for name in ATTACKS)
    ]
    note = (
        "Use: --attack 'sign-flip(std=10)' --malicious 0.2, a share of the clients or, "
        "from 1 on, their number; joined by +."
    )
    knows = words("a malicious client knows", "knows", 2)
    labels = words("training labels", "labels", 1)
    _show(parsed.output.json, rows, _with_options("attack", knows, labels), note)


def _augmentations(argv: list[str]) -> None:
    """How mini-batches of pictures can be changed at random, anew each time."""
    parsed = Parser("list augmentations", _augmentations.__doc__, output=("json",)).parse(argv)
    classes = {name: AUGMENTATIONS.find(name) for name in AUGMENTATIONS}
    rows = [
        {"name": name, "summary": _summary(cls), "options": describe(cls)}
        for name, cls in classes.items()
    ]
    note = "Use: --augment 'crop(padding=4) + flip'; joined by +, one after the other."
    _show(parsed.output.json, rows, _with_options("augmentation"), note)


def _selections(argv: list[str]) -> None:
    """Who is heard in a round, of those that may take part."""
    parsed = Parser("list selections", _selections.__doc__, output=("json",)).parse(argv)
    classes = {name: SELECTIONS.find(name) for name in SELECTIONS}
    rows = [
        {
            "name": name,
            "summary": _summary(cls),
            "asks": "the loss of the shared model" if cls.asks else "nothing",
            "options": describe(cls),
        }
        for name, cls in classes.items()
    ]
    note = (
        "Use: --selection 'power-of-choice(candidates=20)' --sample 10. What candidates are sent "
        "and answer is counted in the bytes."
    )
    asks = words("asks candidates for", "asks", 1)
    _show(parsed.output.json, rows, _with_options("selection", asks), note)


def _protections(argv: list[str]) -> None:
    """Who is protected from whom: each kind of differential privacy."""
    parsed = Parser("list protections", _protections.__doc__, output=("json",)).parse(argv)
    classes = {name: PROTECTIONS.find(name) for name in PROTECTIONS}
    rows = [
        {
            "name": name,
            "summary": _summary(cls),
            "unit": cls.unit,
            "against": cls.against,
            "trusted": cls.trusted,
            "neighbours": cls.neighbours,
            "options": describe(cls),
        }
        for name, cls in classes.items()
    ]
    note = (
        "Use: --privacy 'central(clip=0.5)' --epsilon 3, which chooses the noise; --privacy "
        "'local(noise=2)', which counts what is spent. protects: a client with all of its data, or "
        "a single sample. docs/privacy.md says what is guaranteed for which method and setting."
    )
    columns = _with_options(
        "privacy",
        words("protects a", "unit"),
        words("from", "against"),
        words("trusted", "trusted"),
    )
    _show(parsed.output.json, rows, columns, note)


def _rules(argv: list[str]) -> None:
    """How the server combines messages, and how many malicious clients it withstands."""
    parsed = Parser("list rules", _rules.__doc__, output=("json",)).parse(argv)
    rows = [
        {
            "name": name,
            "kind": "wrapper" if issubclass(cls, Wrapper) else "rule",
            "summary": _summary(cls),
            "needs": _needs(cls),
            "options": describe(cls),
        }
        for name, cls in ((name, RULES.find(name)) for name in RULES)
    ]
    note = (
        "n: clients heard in a round. Those with a + stand before a rule: "
        "--rule 'nnm(f=2) + trimmed-mean(f=2)'. "
        "docs/rules.md has measured how far malicious clients can move each."
    )
    columns = _with_options("rule", words("clients n for f malicious", "needs"))
    plus = {"wrapper": " +", "rule": ""}
    columns[0] = Column("rule", 0, lambda r: shown(r["name"]) + plus[r["kind"]], words=True)
    _show(parsed.output.json, rows, columns, note)


def _needs(cls: type) -> str:
    """The clients a rule needs for f malicious ones."""
    if issubclass(cls, Resilient):
        return f"n >= {cls.slope} f + {cls.offset}"
    if issubclass(cls, Wrapper):
        return "as the rule after it" + (", of n / size rows" if cls().after(100) != 100 else "")
    return "any n"


# -- kernels and projections: by name, or measured on the user's data and model --------------------
@dataclass(frozen=True)
class KernelOptions(Knobs):
    """Whether kernels are timed."""

    measure: bool = knob(False, "measure each on your data and model")


@dataclass(frozen=True)
class ProjectionOptions(KernelOptions):
    """What projections are made for."""

    dim: int = knob(21, "dimension of the shared subspace")


def _show_names(as_json: bool, kind: str, names: dict[str, str], note: str) -> None:
    rows: list[Row] = [{kind: name, "summary": text} for name, text in names.items()]
    _show(as_json, rows, [words(kind, kind), words("what it is", "summary")], note)


def _kernels(argv: list[str]) -> None:
    """Ways to compute the gradient of a cohort; `run` has a fixed rule."""
    request = TrainingParser("list kernels", "", KernelOptions, (), _kernels.__doc__).request(argv)
    as_json = request.flags.output.json
    if not request.flags.options.measure:
        note = "How fast each is on your data and model: idiolect list kernels --measure"
        _show_names(as_json, "kernel", KERNELS, note)
        return
    plan = request.plan("fedavg", {})
    settings = plan.make_settings()
    federation = plan.make_data()
    rows = measure(plan.make_task(federation), federation, settings)
    title = (
        f"{rows[0]['clients']:,} of {plural(federation.clients, 'client')} (those heard per "
        "round), "
        f"batch {settings.batch:,}, d = {rows[0]['d']:,}"
    )
    columns = [
        words("kernel", "kernel"),
        Column("ms per gradient of the cohort", 0, _milliseconds),
        Column("", 1, lambda r: "chosen by the rule" if r["chosen"] else r["error"], words=True),
    ]
    emit(as_json, rows, FittedTable(columns, rows, title))


def _milliseconds(row: Row) -> str:
    return f"{row['milliseconds']:,.2f}" if row["milliseconds"] else "–"


def _projections(argv: list[str]) -> None:
    """Kinds of P, the projection onto the shared subspace."""
    parser = TrainingParser(
        "list projections", "", ProjectionOptions, description=_projections.__doc__
    )
    request = parser.request(argv)
    as_json, dim = request.flags.output.json, request.flags.options.dim
    if not request.flags.options.measure:
        note = "What each costs for your model: idiolect list projections --measure"
        _show_names(as_json, "projection", PROJECTIONS, note)
        return
    plan = request.plan("lp-proj", {})
    federation = plan.make_data()
    task = plan.make_task(federation)
    clients_heard = plan.make_settings().sampled(federation.clients)
    rows = all_kinds(dim, task.layout.starts, federation.clients, clients_heard)
    title = (
        f"d = {task.d:,}, dim = {dim:,}, "
        f"{clients_heard:,} of {plural(federation.clients, 'client')} heard per round"
    )

    def cost(key: str, text: Callable[[float], str]) -> Callable[[Row], str]:
        return lambda row: text(row[key]) if "memory" in row else "–"

    columns = [
        words("projection", "projection"),
        Column("s_min", 2, lambda r: number(r.get("s_min"))),
        Column("s_max", 2, lambda r: number(r.get("s_max"))),
        Column("memory", 0, cost("memory", size)),
        Column("ms to make", 3, cost("build_ms", lambda ms: f"{ms:,.1f}")),
        Column("ms for P x and Pᵀ u", 1, cost("pass_ms", lambda ms: f"{ms:,.3f}")),
        Column("bytes per round", 0, cost("bytes_per_round", size)),
    ]
    refused = [shown(f"{r['projection']}: {r['refused']}") for r in rows if "refused" in r]
    warnings = {r["warning"] for r in rows if r.get("warning")}
    emit(
        as_json,
        rows,
        FittedTable(columns, rows, title, "\n".join(refused)),
        *(literal(f"warning: {text}") for text in warnings),
    )


KINDS: dict[str, Callable[[list[str]], None]] = {
    "methods": _methods,
    "channels": _channels,
    "attacks": _attacks,
    "rules": _rules,
    "selections": _selections,
    "protections": _protections,
    "augmentations": _augmentations,
    "kernels": _kernels,
    "projections": _projections,
}
