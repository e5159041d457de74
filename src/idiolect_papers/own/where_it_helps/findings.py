"""What the figures say: who wins, by how much, whether that is clear, and what it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from idiolect import paired_difference

from .cases import PERSONALISED

Row = dict[str, Any]
BETTER, WORSE, UNCLEAR = "helps", "hurts", "no clear difference"


def compared(row: Row) -> Row:
    """A row of the table, from the figures of a case.

    The federated method is FedAvg or the best personalised one, as validation data say. Differences
    are between runs with the same seed: the same samples were drawn for both.
    """
    methods = row["methods"]
    personal = next(name for name in methods if name in PERSONALISED)
    federated = max(("fedavg", personal), key=lambda name: methods[name]["valid"])
    gain, half = paired_difference(methods[federated]["test"], methods["local"]["test"])
    order = sorted(methods, key=lambda name: -float(np.mean(methods[name]["test"])))
    lead, reach = paired_difference(methods[order[0]]["test"], methods[order[1]]["test"])
    own, own_half = paired_difference(methods[personal]["test"], methods["fedavg"]["test"])
    return {
        "set": row["set"],
        "samples": row["samples"],
        "median": row["median"],
        "spread": row["spread"],
        "majority": row["majority"],
        "personal": personal,
        "federated": federated,
        "gain": gain,
        "half": half,
        "verdict": verdict(gain, half),
        "best": order[0],
        "second": order[1],
        "lead": lead,
        "lead_half": reach,
        "clear": reach is not None and lead > reach,
        "personal_gain": own,
        "personal_half": own_half,
        "personal_verdict": verdict(own, own_half),
        "means": {name: float(np.mean(facts["test"])) for name, facts in methods.items()},
        "clients": methods[federated]["clients"],
    }


def verdict(gain: float, half: float | None) -> str:
    """Whether a difference is clear: beyond its interval.

    >>> verdict(0.1, 0.05), verdict(-0.1, 0.05), verdict(0.1, 0.2), verdict(0.1, None)
    ('helps', 'hurts', 'no clear difference', 'no clear difference')
    """
    if half is None or abs(gain) <= half:
        return UNCLEAR
    return BETTER if gain > 0 else WORSE


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's, with mean ranks for ties; None where one of them does not vary.

    >>> rank_correlation([1, 2, 3], [10, 20, 40]), rank_correlation([1, 1], [2, 3])
    (1.0, None)
    """
    from scipy.stats import rankdata

    a, b = rankdata(x), rankdata(y)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(round(np.corrcoef(a, b)[0, 1], 12))
