"""Commands that measure: kernels, projections; and `reproduce`, which makes stored tables again."""

from __future__ import annotations

import json
from typing import Any

from ..core.columns import Column, fitted_table, words
from ..core.files import given_folder
from ..core.knobs import nearest
from ..core.text import shown
from ..projections.report import all_kinds
from ..report.console import OUT, literal
from ..report.figures import number, size
from ..run.kernel_timing import measure
from .flags import Flags, Parser, plan_of, training_flags


def reproduce(argv: list[str]) -> None:
    """Run a stored experiment again and write its page."""
    from idiolect_papers import EXPERIMENTS, GROUPS

    parser = Parser("reproduce", "Run a stored experiment again and write its page.")
    parser.add_argument("name", nargs="?", help="one of the experiments below")
    wide = max(map(len, EXPERIMENTS)) + 2
    lines = []
    for title, group in GROUPS.items():
        lines += [f"{title}:", *(f"  {name:<{wide}}{e.text}" for name, e in group.items())]
    parser.epilog = "\n".join(lines)
    parser.add_argument(
        "--output", default="docs", help="the folder for its page and figures (default docs)"
    )
    parser.add_argument(
        "--scale",
        default="",
        help="quick (minutes, the default) or full (the paper's repeats; it may be stopped and "
        "goes on where it was), of experiments that have both",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="DATA",
        help="run a data set of the table alone, e.g. 'Synthetic(0, 0)'; the page has what else is "
        "stored; may be given several times",
    )
    parsed = Flags(parser).parse(argv)
    if parsed.name not in EXPERIMENTS:
        raise nearest(parsed.name or "", EXPERIMENTS, "experiment")
    output = given_folder(parsed.output, "output")
    for path in EXPERIMENTS[parsed.name](output, parsed.scale, parsed.only):
        print(shown(path))


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
