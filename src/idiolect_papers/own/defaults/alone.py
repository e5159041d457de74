"""Every method with what was chosen, against Local at equal gradients, where collaboration helps.

Collaboration clearly helps on a federation where FedAvg is better than Local, with the chosen
settings of both, beyond the interval of their difference. Test data; the differences are between
runs with the same seed, on the same data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from idiolect.host.scores import interval
from idiolect.methods import METHODS

from .grids import Fields
from .jobs import Run
from .progress import Runs

# names that stand for a variant of a method of the grids
NAMES = {"lp-proj": ("lp-proj-1", "lp-proj-2"), "feddeper": ("feddeper", "feddeper*")}


def against_local(
    runs: Runs, fields: Mapping[str, Fields], federations: Sequence[str], seeds: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """Federation -> method -> test accuracy, that of Local, and their difference.

    Federations on which collaboration does not clearly help have FedAvg's row alone.
    """
    if not {"local", "fedavg"} <= set(fields):
        return {}
    names = [name for method in fields for name in NAMES.get(method, (method,))]
    names.remove("local")

    def job(name: str, title: str, seed: int, given: Fields, rounds: int = rounds) -> Run:
        return Run(title, name, tuple(sorted(given.items())), seed, "test", rounds)

    def rows(pairs: Sequence[tuple[str, str]], alone: bool) -> dict[tuple[str, str], dict]:
        chosen = {
            (name, title): [job(name, title, seed, _fields(name, fields)) for seed in range(seeds)]
            for name, title in pairs
        }
        done = runs([run for some in chosen.values() for run in some], "test data")
        equal = {}
        for (name, title), some in chosen.items():
            spent = max(done[run]["gradients"] for run in some)
            steps, length = _spread(spent, rounds) if alone else (fields["local"]["steps"], rounds)
            local = {**fields["local"], "steps": steps}
            equal[name, title] = [job("local", title, s, local, length) for s in range(seeds)]
        done |= runs([run for some in equal.values() for run in some], "Local at equal gradients")
        return {
            pair: _row([done[run] for run in chosen[pair]], [done[run] for run in equal[pair]])
            for pair in pairs
        }

    shared = rows([("fedavg", title) for title in federations], alone=False)
    helps = [title for title in federations if shared["fedavg", title]["verdict"] == "better"]
    every = rows([(name, title) for title in helps for name in names], alone=True)
    found: dict[str, dict[str, Any]] = {}
    for title in federations:
        found[title] = {"helps": title in helps, "fedavg": shared["fedavg", title], "methods": {}}
        if title in helps:
            found[title]["methods"] = {name: every[name, title] for name in names}
    return found


def _fields(name: str, fields: Mapping[str, Fields]) -> Fields:
    method = next(m for m in fields if name in NAMES.get(m, (m,)))
    fixed = METHODS.find(name)[1]
    return {k: v for k, v in fields[method].items() if k not in fixed}


def _spread(gradients: float, rounds: int) -> tuple[int, int]:
    """At least so many gradients as (steps per round, rounds).

    >>> _spread(1000.0, 50), _spread(26.4, 50), _spread(1001.0, 50)
    ((20, 50), (1, 27), (21, 50))
    """
    if gradients <= rounds:
        return 1, max(1, math.ceil(gradients))
    return math.ceil(gradients / rounds), rounds


def _row(mine: Sequence[dict], alone: Sequence[dict]) -> dict[str, Any]:
    gaps = [a["accuracy"] - b["accuracy"] for a, b in zip(mine, alone, strict=True)]
    half = interval(gaps) or 0.0
    gap = float(np.mean(gaps))
    verdict = "better" if gap > half else "worse" if gap < -half else "within the interval"
    return {
        "accuracy": round(float(np.mean([m["accuracy"] for m in mine])), 4),
        "gradients": round(float(np.mean([m["gradients"] for m in mine])), 1),
        "local": round(float(np.mean([a["accuracy"] for a in alone])), 4),
        "difference": round(gap, 4),
        "half": round(half, 4),
        "verdict": verdict,
    }
