"""The methods of Table 4 with the candidates of Appendix C.2, and the two rows that it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....method import Method
from ....methods import Local, make_method
from .cases import Case, Size

INNER = 20  # gradient steps of one inner problem: the authors' code has 20; ν = 1e-10 as printed
ADAPT = 5  # local steps of Per-FedAvg, which C.2 does not name
EQUAL = "Local, equal gradients"
UNTIED = "lp-proj-1, λ = 0"
RATES = (0.05, 0.1, 0.5)
PERSONAL = (0.01, 0.05, 0.1)
TIES = (0.1, 1.0, 10.0)
ROUNDS = (1, 5)  # R
Candidate = dict[str, Any]  # fields of C.2, in the paper's order


def candidates(size: Size) -> dict[str, list[Candidate]]:
    """Label of a row -> its candidates; the first is what a row without a search takes."""
    local = {"whole": ROUNDS, "R = 1": (1,), "few": (1,)}[size.grid]
    rates = (0.1,) if size.grid == "few" else RATES
    personal = (0.1, 0.05) if size.grid == "few" else PERSONAL
    ties = (0.1, 1.0) if size.grid == "few" else TIES
    steps = [{"lr": lr, "R": r} for r in ROUNDS for lr in rates]  # cheap: never cut to R = 1
    tied = [
        {"lr": lr, "personal_lr": own, "lam": lam, "R": r}
        for r in local
        for lr in rates
        for own in personal
        for lam in ties
    ]
    return {
        "Ditto": tied,
        "pFedMe": tied,
        "Per-FedAvg": [{"lr": lr, "personal_lr": own} for lr in rates for own in personal],
        "FedAvg": steps,
        "local": [{"lr": lr} for lr in rates],
        "lp-proj-1": tied,
        "lp-proj-2": tied,
        "RSA": tied,
        "LG-FedAvg": steps,
    }


def method_of(row: str, chosen: Candidate, case: Case) -> Method:
    """The method of a row with these fields."""
    fields = dict(chosen)
    r = fields.pop("R", 1)
    if row.startswith("lp-proj"):
        more = {"dim": case.dim, "steps": INNER, "alternations": r, "preset": "paper"}
        return make_method(row, **more, **fields)
    if row == "pFedMe":
        return make_method("pfedme", steps=INNER, alternations=r, **fields)
    if row == "Ditto":
        return make_method("ditto", steps=r, personal_steps=INNER, **fields)
    if row == "RSA":
        return make_method("rsa", steps=INNER * r, server_step="sum-new", **fields)
    if row == "Per-FedAvg":
        return make_method("per-fedavg", steps=ADAPT, **fields)
    if row in ("FedAvg", "LG-FedAvg"):
        return make_method(row.lower(), steps=r, **fields)
    return Local(steps=1, **fields)  # the authors' Local: one step per round


def lacking(chosen: Mapping[str, Candidate], case: Case) -> dict[str, list[Method]]:
    """The rows that the table lacks, from what was chosen: their candidates.

    Local with as many gradients as the dearest of lp-proj and pFedMe, its step size from the same
    three; and lp-proj-1 as it was chosen, but without its tie to the subspace.
    """
    most = max(chosen[row].get("R", 1) for row in ("lp-proj-1", "lp-proj-2", "pFedMe"))
    untied = {**chosen["lp-proj-1"], "lam": 0.0}
    return {
        EQUAL: [Local(lr=lr, steps=INNER * most) for lr in RATES],
        UNTIED: [method_of("lp-proj-1", untied, case)],
    }
