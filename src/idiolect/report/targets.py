"""Curves, and two figures read off them: accuracy at a budget and the cost of a target."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from ..core.knobs import SettingError
from ..host.scores import COLLAPSE_LOSS, interval

# One evaluated round of one seed: method, seed, round, accuracy, loss, bytes, values, gradients.
Point = dict[str, Any]
Curve = list[Point]  # of one method: all rounds of the first seed, then of the next
COUNTS = ("bytes", "values")


def curve(label: str, rows: Iterable[dict[str, Any]]) -> Curve:
    """The evaluated rounds of a result, from its record's `timed_rounds()`."""
    return [point(label, row) for row in rows]


def point(label: str, row: dict[str, Any]) -> Point:
    """A row of metrics.csv as a point.

    Bytes and values are totals so far, of all clients and both directions.

    >>> row = {"seed": 0, "round": 1, "accuracy": 0.5, "loss": 1.0, "gradients_per_client": 5.0}
    >>> sent = {"bytes_up": 8, "bytes_down": 8, "values_up": 2, "values_down": 2}
    >>> point("fedavg", row | sent)["bytes"]
    16
    """
    return {
        "method": label,
        **{k: row[k] for k in ("seed", "round", "accuracy", "loss")},
        **{unit: row[f"{unit}_up"] + row[f"{unit}_down"] for unit in COUNTS},
        "gradients": row["gradients_per_client"],
        "seconds": row.get("seconds", math.nan),
        **({"time": row["time"]} if "time" in row else {}),
    }


@dataclass(frozen=True)
class Goals:
    """What a comparison asks of every method: accuracy within a budget, and the cost of a target.

    0 = not asked. Another figure than accuracy may be asked for; its target is None where there is
    none, as 0 may be one.
    """

    budget: int = 0  # in `count`: bytes really sent, or 32-bit words as the lp-proj paper counts
    target: float | None = 0.0
    count: str = "bytes"
    metric: str = "accuracy"
    higher: bool = True  # whether a higher one is better

    def __post_init__(self) -> None:
        if self.count not in COUNTS:
            names = ", ".join(map(repr, COUNTS))
            raise SettingError(f"count must be one of {names}, got {self.count!r}")

    @property
    def targeted(self) -> bool:
        """Whether a target is asked for."""
        return bool(self.target) or (self.target is not None and self.metric != "accuracy")

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain data; which figure is meant, where it is not accuracy."""
        fields = asdict(self)
        if self.metric == "accuracy":
            del fields["metric"], fields["higher"]
        return fields

    def reached(self, curve: Curve) -> dict[str, Any]:
        """What a method made of the goals.

        `at_budget` and `to_target` count bytes; `at_budget_values` and `to_target_values` count
        32-bit words.

        >>> row = {"seed": 0, "loss": 1.0}
        >>> rounds = [
        ...     row | {"round": r, "accuracy": 0.2 * r, "bytes": 10 * r, "values": r}
        ...     for r in (1, 2, 3)
        ... ]
        >>> got = Goals(budget=25, target=0.5).reached(rounds)
        >>> got["at_budget"]["mean"], got["to_target"]["mean"]
        (0.4, 30.0)
        """
        seeds = [list(rows) for _, rows in groupby(curve, key=lambda p: p["seed"])]
        out: dict[str, Any] = {}
        for unit in COUNTS:
            suffix = _suffix(unit)
            if self.budget:
                ends = [self._last_within(rows, unit) for rows in seeds]
                unspent = any(_unspent(rows, self.budget, unit) for rows in seeds)
                out[f"at_budget{suffix}"] = {**_over_seeds(ends, self.metric), "unspent": unspent}
            if self.targeted:
                firsts = [self._first_reaching(rows) for rows in seeds]
                out[f"to_target{suffix}"] = _over_seeds(firsts, unit)
        return out

    def key(self, goal: str) -> str:
        """The field of a goal in the unit of the columns.

        >>> Goals(count="values").key("at_budget")
        'at_budget_values'
        """
        return goal + _suffix(self.count)

    def _last_within(self, rows: Curve, unit: str) -> Point | None:
        """The last evaluated round within the budget.

        None where the first one is beyond it, or where the models have collapsed by then.
        """
        within = [p for p in rows if p[unit] <= self.budget]
        return within[-1] if within and sound(within[-1], self.metric) else None

    def _first_reaching(self, rows: Curve) -> Point | None:
        return next((p for p in rows if sound(p, self.metric) and self._good(p)), None)

    def _good(self, p: Point) -> bool:
        assert self.target is not None
        figure = p[self.metric]
        return figure >= self.target if self.higher else figure <= self.target


def _suffix(unit: str) -> str:
    return "" if unit == "bytes" else f"_{unit}"


def sound(p: Point, metric: str = "accuracy") -> bool:
    """The models have not collapsed, and there is an accuracy, or another figure."""
    # the loss of a regression, which has no accuracy, is in units of its targets
    limit = COLLAPSE_LOSS if not math.isnan(p.get("accuracy", 0.0)) else sys.float_info.max
    return p["loss"] <= limit and not math.isnan(p[metric])


def _unspent(rows: Curve, budget: int, unit: str) -> bool:
    """The rounds ended while the budget had room for another one."""
    end = rows[-1]
    return end[unit] > 0 and end[unit] * (end["round"] + 1) / end["round"] <= budget


def _over_seeds(points: list[Point | None], key: str) -> dict[str, Any]:
    """Mean and half the 95 % interval where every seed has a figure; None where one has not."""
    values: list[Any] = [p and p[key] for p in points]
    every = [v for v in values if v is not None]
    whole = bool(every) and len(every) == len(values)
    return {
        "mean": sum(every) / len(every) if whole else None,
        "ci95": interval(every) if whole else None,
        "by_seed": values,
        "rounds": [p and p["round"] for p in points],
    }
