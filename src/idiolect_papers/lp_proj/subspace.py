"""The subspace itself: Table 16 (is P to be orthogonal?) and Table 17 (which d_sub?).

`idiolect reproduce lp-proj-table16` and `lp-proj-table17`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from idiolect import Local, Method, make_method

from ..case import Case, Scale
from ..marks import Figure, beside
from ..page import page_from_text
from ..published import read_table
from ..runs import column, cpu_seconds, scaled_runs
from .cases import case_of
from .personal import ADDED, EQUAL, FIGURES, INNER, UNTIED

METHODS = ("lp-proj-1", "lp-proj-2")
RATE = 0.1  # lr = personal_lr = λ, R = 1: the middle of Appendix C.2
SCALES = {
    16: {"quick": Scale(60, 3, {"clients": 20, "share": 0.2}), "full": Scale(200, 10)},
    17: {"quick": Scale(8, 2), "full": Scale(200, 10)},
}
DIGITS = {16: {"train loss": 6, "accuracy": 4}, 17: {"train loss": 4, "accuracy": 4}}


def tied(method: str, dim: int, **more: Any) -> Method:
    fields = {"lr": RATE, "personal_lr": RATE, "lam": RATE, "alternations": 1, "steps": INNER}
    return make_method(method, **{**fields, "dim": dim, **more})


def rows(number: int) -> dict[str, Method]:
    """The methods, Local with as many gradients, and lp-proj-1 without its tie."""
    if number == 16:  # with and without Gram-Schmidt on the rows of P
        kinds = {"": "gaussian", ", orthogonal": "orthogonal"}
        methods = {
            f"{method}{end}": tied(method, 50, projection=kind)
            for method in METHODS
            for end, kind in kinds.items()
        }
    else:
        dims = (40, 80, 120, 160, 200)
        methods = {f"{method}, {dim}": tied(method, dim) for method in METHODS for dim in dims}
    least_dim = 50 if number == 16 else 40
    untied = tied("lp-proj-1", least_dim, lam=0.0)
    return methods | {EQUAL: Local(lr=RATE, steps=INNER), UNTIED: untied}


def write_table(
    folder: Path,
    number: int,
    scale: str,
    size: Scale | None = None,
    case: Case | None = None,
    jobs: int = 0,
) -> list[Path]:
    """Table 16 on MNIST; Table 17 on the user's EMNIST files or a stand-in."""
    size = size or SCALES[number][scale]
    case = case or (case_of("MNIST") if number == 16 else case_of("EMNIST"))
    federation, task = case.load(**size.options)
    by_row = scaled_runs(folder, f"lp-proj-table{number}", scale, jobs).of_methods(
        rows(number),
        federation,
        task,
        size.seeds,
        rounds=size.rounds,
        sample=case.sample(federation.clients),
        eval_every=0,
    )
    ours = {
        row: {
            name: Figure.of(column(summaries, *FIGURES[name]), digits)
            for name, digits in DIGITS[number].items()
        }
        for row, summaries in by_row.items()
    }
    title, stand_in = "MNIST, 2 classes per client", False
    if number == 17:
        size = replace(size, options={**case.options, **size.options})
        stand_in = case.data != "emnist"
        title = "QuickDraw-62 in place of EMNIST" if stand_in else "EMNIST"
    accuracies = [ours[row]["accuracy"].mean for row in ours if row not in ADDED]
    means = [mean for mean in accuracies if mean is not None]
    return page_from_text(
        f"lp-proj-table{number}",
        facts={
            "spread": max(means) - min(means) if means else 0.0,
            "equal": ours[EQUAL]["accuracy"],
            "untied": ours[UNTIED]["accuracy"],
            "stand_in": STAND_IN if stand_in else "",
        },
        scale=size.text(scale),
        cells=beside(
            title, read_table(f"lp-proj-table{number}")[""], ours, tuple(DIGITS[number]), stand_in
        ),
        seconds=cpu_seconds(by_row),
    ).write(folder)


STAND_IN = """\
QuickDraw-62 in place of EMNIST, 50 clients with 10 classes each (it never counts as agreeing); """
