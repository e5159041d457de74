"""Commands that tell: methods, kernels, projections; and `reproduce`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from . import experiments, models, streams
from .console import OUT
from .fields import describe, nearest
from .flags import Flags, Parser, common, plan_of
from .measure import measure
from .methods import METHODS, make
from .projections.report import all_kinds
from .tables import number, size
from .task import Task


def methods(argv: list[str]) -> None:
    parser = Parser(prog="idiolect methods", allow_abbrev=False, description="What there is, when to use it, what it costs.")
    parser.add_argument("--json", action="store_true", help="print one JSON value on stdout")
    parsed = Flags(parser).parse(argv)
    rows: list[dict[str, Any]] = []
    probe = Task(lambda: models.make("mlp", (30,), 2, hidden="4"))
    for name, (cls, fixed) in METHODS.items():
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        fields = [f | ({"default": fixed[f["name"]]} if f["name"] in fixed else {}) for f in describe(cls)]
        method = make(name)
        keeps = any(t.numel() for t in method.private(probe, streams.name_keys(["a"])).values())
        heard = "all" if cls.hears_all else "sampled"
        costs = {"trains": method.trains, "heard": heard, "sends": method.sends, "keeps_state": keeps}
        rows.append({"name": name, "summary": summary, **costs, "fields": fields})
    if parsed.json:
        print(json.dumps(rows))
        return
    table = Table("method", "what it is and when to choose it", "trains", "sends", "keeps", box=SIMPLE_HEAD)
    for r in rows:
        table.add_row(r["name"], r["summary"], r["trains"], r["sends"], "a state" if r["keeps_state"] else "nothing")
    OUT.print(table)
    OUT.print("sends: numbers a message, up and down; keeps: at the clients between rounds. Fields: idiolect run METHOD --help")


def reproduce(argv: list[str]) -> None:
    parser = Parser(prog="idiolect reproduce", allow_abbrev=False, description="Run a stored experiment again and write its page.")
    parser.add_argument("name", nargs="?", help=f"one of: {', '.join(experiments.EXPERIMENTS)}")
    parser.add_argument("--output", default="docs", help="the folder for its page and figures (default docs)")
    parsed = Flags(parser).parse(argv)
    if parsed.name not in experiments.EXPERIMENTS:
        raise nearest(parsed.name or "", experiments.EXPERIMENTS, "experiment")
    for path in experiments.EXPERIMENTS[parsed.name](Path(parsed.output)):
        print(path)


def kernels(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect kernels", allow_abbrev=False, description="Measure every kernel on this data and model; `run` never does."
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
        "kernel", "ms a gradient of the cohort", "", title=f"{rows[0]['clients']} clients, batch {settings.batch}, d = {rows[0]['d']}"
    )
    for r in rows:
        table.add_row(
            r["kernel"], f"{r['milliseconds']:.2f}" if r["milliseconds"] else r["error"], "chosen by the rule" if r["chosen"] else ""
        )
    OUT.print(table)


def projections(argv: list[str]) -> None:
    parser = Parser(prog="idiolect projections", allow_abbrev=False, description="What each kind of P costs for this data and model.")
    parser.add_argument("--dim", type=int, default=21, help="dimension of the shared subspace (default 21)")
    flags, file = common(parser, argv, None)
    parsed = flags.parse(argv)
    plan = plan_of(flags, parsed, file, "lp-proj", {})
    federation, settings = plan.make_data(), plan.make_settings()
    task = plan.make_task(federation)
    rows = all_kinds(parsed.dim, task.layout.starts, federation.clients, settings.sampled(federation.clients))
    if parsed.json:
        print(json.dumps(rows))
        return
    title = f"d = {task.d}, dim = {parsed.dim}, {federation.clients} clients"
    table = Table(
        "projection", "s_min", "s_max", "memory", "ms to make", "ms for P x and Pᵀ u", "bytes a round", title=title, box=SIMPLE_HEAD
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
