"""The methods of Table 4 with the candidates of Appendix C.2, and the two rows that it lacks."""

from __future__ import annotations

from collections.abc import Mapping

from idiolect.method import Method
from idiolect.methods import Local, make_method
from idiolect.study.grids import Point, grid_of

from .cases import Case, Size

METHODS = {  # as the table calls them -> here
    "Ditto": "ditto",
    "pFedMe": "pfedme",
    "Per-FedAvg": "per-fedavg",
    "FedAvg": "fedavg",
    "local": "local",
    "lp-proj-1": "lp-proj-1",
    "lp-proj-2": "lp-proj-2",
    "RSA": "rsa",
    "LG-FedAvg": "lg-fedavg",
}
DEAREST = ("lp-proj-1", "lp-proj-2", "pFedMe")
INNER = 20  # gradient steps of one inner problem: the authors' code has 20; ν = 1e-10 as printed
EQUAL = "Local, equal gradients"
UNTIED = "lp-proj-1, λ = 0"
RATES = (0.05, 0.1, 0.5)
FEW = {"lr": (0.1,), "personal_lr": (0.05, 0.1), "lam": (0.1, 1.0)}
FIRST = {"lr": 0.1, "personal_lr": 0.1, "lam": 0.1}  # of a row without a search


def candidates(size: Size, d: int) -> dict[str, list[Point]]:
    """Label of a row -> its candidates at this size, for a model of d numbers."""
    found = {
        row: [p for p in grid_of("lp-proj", name).points(d) if _wanted(p, size.grid)]
        for row, name in METHODS.items()
    }
    if size.search_rounds:
        return found
    return {row: [p for p in points if _first(p)][:1] for row, points in found.items()}


def alternations(point: Point) -> int:
    """R of C.2: of methods that alternate it says how long a round takes."""
    return point.fields.get("alternations", 1)


def _wanted(point: Point, grid: str) -> bool:
    """Whether a candidate is in a part of C.2."""
    long = alternations(point) > 1 or point.fields.get("steps", 1) > INNER  # R = 5
    if grid != "whole" and long:
        return False
    chosen = ((name, point.varied.get(name)) for name in FEW)
    return grid != "few" or all(v is None or v in FEW[name] for name, v in chosen)


def _first(point: Point) -> bool:
    return all(point.varied.get(name, value) == value for name, value in FIRST.items())


def method_of(row: str, point: Point, case: Case) -> Method:
    """The method of a row with these fields."""
    dim = {"dim": case.dim} if row.startswith("lp-proj") else {}
    return make_method(METHODS[row], **dim, **point.fields)


def lacking(chosen: Mapping[str, Point], case: Case) -> dict[str, list[Method]]:
    """The rows that the table lacks, from what was chosen: their candidates.

    Local with as many gradients as the dearest of lp-proj and pFedMe, its step size from the same
    three; and lp-proj-1 as it was chosen, but without its tie to the subspace.
    """
    most = max(alternations(chosen[row]) for row in DEAREST)
    untied = make_method("lp-proj-1", **{**chosen["lp-proj-1"].fields, "dim": case.dim, "lam": 0.0})
    return {EQUAL: [Local(lr=lr, steps=INNER * most) for lr in RATES], UNTIED: [untied]}
