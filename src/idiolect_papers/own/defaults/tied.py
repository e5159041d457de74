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
# RSA is p = 1 with all of R^d tied. Its default has this λ, and its server, which adds what 10
# clients send, moves by η λ 10 = 0.03 per round: with lp-proj's mean that is η = 3.
AS_RSA = "lp-proj-1 (lam 0.01, lr 3)"
ROWS: dict[str, Fields] = {"lp-proj-1": {}, AS_RSA: {"lam": 0.01, "lr": 3.0}, "lp-proj-2": {}}


def tied_part(
    runs: Runs, fields: Mapping[str, Fields], dims: Sequence[int], seeds: int, rounds: int
) -> list[dict[str, Any]]:
    """Test accuracy of lp-proj-1 and lp-proj-2 for each d_sub, with the chosen settings.

    The tie of p = 1 pulls with λ in each of d_sub directions, however small the gap: for many
    directions it needs a smaller λ, and it is also run with that of RSA.
    """
    if "lp-proj" not in fields:
        return []
    d = task_of(TITLE, parts=False).d
    jobs = {
        (row, dim, seed): _run(row, dim, d, seed, fields["lp-proj"], rounds)
        for row in ROWS
        for dim in dims
        for seed in range(seeds)
    }
    done = runs(list(jobs.values()), "tied part")

    def mean(row: str, dim: int) -> float:
        found = [done[jobs[row, dim, seed]]["accuracy"] for seed in range(seeds)]
        return round(float(np.mean(found)), 4)

    return [
        {"dim": dim, "share": round(dim / d, 4), **{row: mean(row, dim) for row in ROWS}}
        for dim in dims
    ]


def _run(row: str, dim: int, d: int, seed: int, fields: Fields, rounds: int) -> Run:
    """Projection `contiguous`, whose cost does not grow with d_sub; the identity for d itself."""
    kind = {"projection": "identity", "dim": 0} if dim >= d else {"dim": dim}
    given = {"projection": "contiguous", **fields, **kind}
    given |= ROWS[row]
    return Run(TITLE, row.split(" ")[0], tuple(sorted(given.items())), seed, "test", rounds)
