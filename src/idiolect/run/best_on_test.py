"""The best round on test data, as papers report it: optimistic, so it always says what it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..host.scores import interval

AFTER = 20  # the lp-proj paper: "the optimal achievable test accuracy after the 20th round"
NOTE = (
    f"the best evaluated round from round {AFTER} on, chosen on test data (lp-proj, Figures 2, 6 "
    "and 7): optimistic, never for comparison"
)
History = Sequence[dict[str, float]]


def best_after(history: History, after: int = AFTER) -> dict[str, float]:
    """The row with the highest accuracy from this round on, the first of equals; {} without one.

    Where targets are real numbers, the row with the least loss.

    >>> rows = [{"round": r, "accuracy": a, "loss": 1.0} for r, a in ((10, 0.9), (20, 0.7))]
    >>> best_after([*rows, {"round": 30, "accuracy": 0.8, "loss": 2.0}])["round"]
    30
    """
    late = [row for row in history if row["round"] >= after]
    known = [row for row in late if not math.isnan(row["accuracy"])]
    if known:
        return max(known, key=lambda row: row["accuracy"])
    return min((r for r in late if not math.isnan(r["loss"])), key=lambda r: r["loss"], default={})


def best_after_20(histories: Sequence[History]) -> dict[str, Any]:
    """Figures of the best late round of every seed, and of the variance over clients in it."""
    rows = [best_after(history) for history in histories]

    def mean(key: str) -> float:
        return sum(row.get(key, math.nan) for row in rows) / len(rows)

    by_seed = [row.get("accuracy", math.nan) for row in rows]
    return {
        "accuracy": mean("accuracy"),
        "ci95": interval(by_seed),
        "variance": mean("accuracy_variance"),
        "loss": mean("loss"),
        "loss_variance": mean("loss_variance"),
        "rounds": [int(row["round"]) if row else None for row in rows],
        "by_seed": by_seed,
        "note": NOTE,
    }
