"""Collaboration fairness: do those who could do well alone end with the better models?

Lyu, Xu, Wang and Yu 2020, as in Appendix C.7.3 of the lp-proj paper: Pearson's correlation, over
clients, between what a client reaches alone (its contribution) and what it ends with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..host.scores import interval
from ..run.record import Record, SeedRecord

LOCAL = "local"


def collaboration_fairness(
    records: Sequence[Record], labels: Sequence[str]
) -> list[dict[str, Any] | None]:
    """A correlation for each record; None where no Local run is among them.

    Of several Local runs the one with the most gradients counts.
    """
    alone = [i for i, record in enumerate(records) if record.method == LOCAL]
    if not alone:
        return [None] * len(records)
    base = max(alone, key=lambda i: records[i].seeds[0].gradients_per_client)
    return [_one(record, records[base], labels[base]) for record in records]


def _one(record: Record, local: Record, label: str) -> dict[str, Any] | None:
    own = {s.seed: s for s in local.seeds}
    pairs = [(s, own[s.seed]) for s in record.seeds if s.seed in own]
    if not pairs or record.figure != local.figure:
        return None
    by_seed = [_correlation(s, other, record.figure) for s, other in pairs]
    return {
        "mean": sum(by_seed) / len(by_seed),
        "ci95": interval(by_seed),
        "by_seed": by_seed,
        "figure": record.figure,
        "alone": label,
    }


def _correlation(ended: SeedRecord, alone: SeedRecord, figure: str) -> float:
    """Pearson's correlation over the clients that are honest and tested in both runs."""
    first = _tested(alone, figure)
    last = _tested(ended, figure)
    shared = [client for client in first if client in last]
    return pearson([first[c] for c in shared], [last[c] for c in shared])


def _tested(seed: SeedRecord, figure: str) -> dict[str, float]:
    values = {
        str(row["client"]): row.get(f"test_{figure}", math.nan)
        for row in seed.clients
        if not row["malicious"] and not row["held_out"]
    }
    return {client: v for client, v in values.items() if v is not None and not math.isnan(v)}


def pearson(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's correlation; NaN where it is not defined: two values are needed that differ.

    >>> round(pearson([1.0, 2.0, 3.0], [1.0, 2.0, 2.0]), 4)
    0.866
    """
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])
