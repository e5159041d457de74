"""How much of the model must be tied: lp-proj with growing d_sub on clients that are alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .federations import task_of
from .grids import Fields
from .jobs import Run
from .progress import Runs

TITLE = "digits, iid"
TIED = (21, 150, 600, 1200, 2410)  # d_sub; the last is d, tied by the identity


def tied_part(
    runs: Runs, fields: Mapping[str, Fields], dims: Sequence[int], seeds: int, rounds: int
) -> list[dict[str, Any]]:
    """Test accuracy of lp-proj-1 and lp-proj-2 for each d_sub, with the chosen settings."""
    if "lp-proj" not in fields:
        return []
    d = task_of(TITLE, parts=False).d
    jobs = {
        (name, dim, seed): _run(name, dim, d, seed, fields["lp-proj"], rounds)
        for name in ("lp-proj-1", "lp-proj-2")
        for dim in dims
        for seed in range(seeds)
    }
    done = runs(list(jobs.values()), "tied part")

    def mean(name: str, dim: int) -> float:
        found = [done[jobs[name, dim, seed]]["accuracy"] for seed in range(seeds)]
        return round(float(np.mean(found)), 4)

    return [
        {
            "dim": dim,
            "share": round(dim / d, 4),
            **{name: mean(name, dim) for name in ("lp-proj-1", "lp-proj-2")},
        }
        for dim in dims
    ]


def _run(name: str, dim: int, d: int, seed: int, fields: Fields, rounds: int) -> Run:
    """Projection `contiguous`, whose cost does not grow with d_sub; the identity for d itself."""
    kind = {"projection": "identity", "dim": 0} if dim >= d else {"dim": dim}
    given = {"projection": "contiguous", **fields, **kind}
    return Run(TITLE, name, tuple(sorted(given.items())), seed, "test", rounds)
