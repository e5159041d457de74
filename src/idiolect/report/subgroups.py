"""For whom do the models work? Figures of subgroups of samples, and how they differ from the rest.

A figure of a subgroup is that of its own test samples, over all clients or within one. Intervals at
95 % count samples or, where there are any, groups of them such as patients:

- accuracy: that of Wilson (1927), with as many samples as the groups are worth (their design
  effect; all right or all wrong, as many as there are groups) and Student's t in place of the
  normal quantile.
- loss: Student's t with the cluster-robust variance of a ratio, moderated as in verdicts.py.
- other metrics: the jackknife without each of BLOCKS random blocks of samples in turn (Kott 2001),
  Student's t; over all clients alone. None where leaving out blocks changes nothing.

The difference between a subgroup and all other samples has the interval of the two intervals
together (Newcombe 1998, method 10; Zou and Donner 2008), less what they have in common where groups
have samples on both sides; of other metrics, that of the jackknife. A subgroup is called better or
worse by the false discovery rate at 5 % over the subgroups of a column, as in verdicts.py; within
clients, over those of all clients. From seed to seed the variance of training is added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..core.types import Id
from ..data.subgroups import Subgroups
from ..host.metrics import Metric
from ..host.metrics.custom import Own
from ..host.scores import Z, wilson
from ..host.subgroups import FIGURES, SUMS, ColumnCounts, SubgroupScores
from .verdicts import CANNOT_TELL, CLIENT_SAMPLES, LEVEL, discoveries, moderated

BETTER = "better"
WORSE = "worse"
TOO_FEW = "too few"
PERSONAL = "personal"  # the model that each client uses
SHARED = "shared"  # the one model of all


@dataclass(frozen=True)
class SubgroupFigure:
    """One figure of one subgroup under one seed; NaN where it has none."""

    model: str  # PERSONAL or SHARED
    column: str
    subgroup: str
    client: Id | None  # None: all clients together
    samples: int
    groups: int | None  # None where samples are by themselves
    figure: str  # accuracy, loss or a metric
    value: float  # NaN with too few samples, or groups
    low: float
    high: float
    difference: float  # from all other samples of the column
    difference_low: float
    difference_high: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data, without what is None: `client` over all clients, `groups` without groups."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class _Estimates:
    """Estimates with intervals, an entry per subgroup and scope."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


def subgroup_figures(
    scores: SubgroupScores,
    subgroups: Sequence[Subgroups],
    metrics: Sequence[Metric],
    ids: Sequence[Id],
    grouped: bool,
    model: str = PERSONAL,
    weighted: bool = False,
) -> list[SubgroupFigure]:
    """Every figure of every subgroup: over all clients and, of personal models, within each.

    `ids` are those of all clients by wire id; `grouped`: units are groups of samples;
    `weighted`: samples have weights.
    """
    lines = []
    clients = [ids[k] for k in scores.wire_ids.tolist()]
    for column in subgroups:
        counted = scores.columns[column.name]
        within = [] if model == SHARED else list(range(len(clients)))
        for scope, owner in ((_everyone(counted), [None]), (counted, [clients[k] for k in within])):
            if not owner:
                continue
            figures = _sample_figures(scope, unlike=grouped or weighted)
            figures |= _metric_figures(counted, metrics, together=owner == [None])
            lines += _lines(column, scope, figures, owner, grouped, model)
    return lines


def _everyone(counted: ColumnCounts) -> ColumnCounts:
    """All clients as one, for what is a sum over them."""
    return replace(counted, **{n: getattr(counted, n).sum(0, keepdim=True) for n in SUMS})


def _lines(
    column: Subgroups,
    scope: ColumnCounts,
    figures: Mapping[str, tuple[_Estimates, _Estimates]],
    owner: Sequence[Id | None],
    grouped: bool,
    model: str,
) -> list[SubgroupFigure]:
    """A line per client, subgroup and figure; those without a sample are left out."""
    samples, units = scope.samples.tolist(), scope.units.tolist()
    lines = []
    for k, client in enumerate(owner):
        for s, label in enumerate(column.labels):
            if not samples[k][s]:
                continue
            enough = units[k][s] >= CLIENT_SAMPLES
            rest = units[k][-1] - int(scope.alone[k, s])
            for name, (own, other) in figures.items():
                numbers = [float(a[k, s]) for a in (own.value, own.low, own.high)]
                gaps = [float(a[k, s]) for a in (other.value, other.low, other.high)]
                lines.append(
                    SubgroupFigure(
                        model,
                        column.name,
                        label,
                        client,
                        samples[k][s],
                        units[k][s] if grouped else None,
                        name,
                        *(numbers if enough else [math.nan] * 3),
                        *(gaps if enough and rest >= CLIENT_SAMPLES else [math.nan] * 3),
                    )
                )
    return lines


# -- accuracy and loss, from sums ------------------------------------------------------------------
def _sample_figures(
    counted: ColumnCounts, unlike: bool
) -> dict[str, tuple[_Estimates, _Estimates]]:
    """Figures [scopes, S] and differences from the rest, of what every sample has.

    `unlike`: units have different numbers of samples, or weights.
    """
    moments = counted.moments.numpy()  # [scopes, figures, S + 1, MOMENTS]
    units, alone = counted.units.numpy(), counted.alone.numpy()
    samples = counted.samples.numpy()
    names = FIGURES if moments.shape[1] == len(FIGURES) else FIGURES[1:]
    figures = {}
    for at, name in enumerate(names):
        own = moments[:, at, :-1]  # [scopes, S, MOMENTS]
        rest = _rest(own, moments[:, at, -1:])
        parts = (
            _Part.of(own, units[:, :-1], samples[:, :-1]),
            _Part.of(rest, units[:, -1:] - alone[:, :-1], samples[:, -1:] - samples[:, :-1]),
        )
        if name == "accuracy":
            mine, others = (_proportions(part, unlike) for part in parts)
        else:
            mine, others = map(_means, parts)
        figures[name] = (mine, _difference(mine, others, _correlation(own, *parts)))
    return figures


@dataclass(frozen=True)
class _Part:
    """A ratio R = ΣT / ΣU of sums over units, and its variance per unit."""

    ratio: np.ndarray
    weight: np.ndarray  # ΣU
    units: np.ndarray
    samples: np.ndarray
    squares: np.ndarray  # Σ(T - R U)²
    squared_weights: np.ndarray  # ΣU²

    @classmethod
    def of(cls, m: np.ndarray, units: np.ndarray, samples: np.ndarray) -> _Part:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = m[..., 0] / m[..., 1]
        squares = m[..., 2] - 2 * ratio * m[..., 3] + ratio**2 * m[..., 4]
        return cls(ratio, m[..., 1], units, samples, np.maximum(squares, 0), m[..., 4])

    @property
    def variance(self) -> np.ndarray:
        """Of a unit, as if all had the same weight: that of the ratio is this over `units`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            own = self.squares * self.units**2 / self.weight**2 / np.maximum(self.units - 1, 1)
        return np.nan_to_num(own)


def _rest(own: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """The moments of all other samples: (T - t)², (T - t)(U - u) and so on, summed over units."""
    t, u, tt, tu, uu, t_whole, tu_whole, ut_whole, u_whole = np.moveaxis(own, -1, 0)
    total = np.moveaxis(whole, -1, 0)
    return np.stack(
        [
            total[0] - t,
            total[1] - u,
            total[2] - 2 * t_whole + tt,
            total[3] - tu_whole - ut_whole + tu,
            total[4] - 2 * u_whole + uu,
        ],
        -1,
    )


def _correlation(own: np.ndarray, part: _Part, rest: _Part) -> np.ndarray:
    """Of the errors of a subgroup and of the rest: 0 unless units have samples in both."""
    _, _, tt, tu, uu, t_whole, tu_whole, ut_whole, u_whole = np.moveaxis(own, -1, 0)
    a, b = part.ratio, rest.ratio
    common = (t_whole - tt) - b * (tu_whole - tu) - a * (ut_whole - tu) + a * b * (u_whole - uu)
    scale = np.sqrt(part.squares * rest.squares)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(scale > 0, np.clip(common / scale, -1, 1), 0.0)


def _proportions(part: _Part, unlike: bool) -> _Estimates:
    """Wilson's interval, with the number of samples that units are worth.

    Where all are right, or all are wrong, that is Kish's (ΣU)² / ΣU².
    """
    from scipy.special import stdtrit

    p, samples = part.ratio, part.samples
    effective = samples.astype(float)
    quantile = np.full(p.shape, Z)
    if unlike:
        variance = part.variance / np.maximum(part.units, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            kish = part.weight**2 / part.squared_weights
            worth = np.where(variance > 0, p * (1 - p) / variance, np.nan_to_num(kish))
        # neither more than the samples, nor fewer than one
        effective = np.clip(worth, 1, np.maximum(samples, 1)) * (samples > 0)
        quantile = stdtrit(np.maximum(part.units - 1, 1), 1 - LEVEL / 2)
    low, high = np.full(p.shape, math.nan), np.full(p.shape, math.nan)
    for at in zip(*np.nonzero(samples > 0), strict=True):
        n = float(effective[at])
        low[at], high[at] = wilson(float(p[at]) * n, n, float(quantile[at]))
    return _Estimates(p, low, high)


def _means(part: _Part) -> _Estimates:
    """Student's t with a variance shrunk towards that of all entries."""
    from scipy.special import stdtrit

    variance, freedom = moderated(part.units, part.variance)
    half = stdtrit(freedom, 1 - LEVEL / 2) * np.sqrt(variance / np.maximum(part.units, 1))
    return _Estimates(part.ratio, part.ratio - half, part.ratio + half)


def _difference(one: _Estimates, other: _Estimates, common: np.ndarray) -> _Estimates:
    """one - other, from the intervals of both and the correlation of their errors."""
    gap = one.value - other.value

    def arm(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.sqrt(np.maximum(a**2 + b**2 - 2 * common * a * b, 0))

    low = gap - arm(one.value - one.low, other.high - other.value)
    high = gap + arm(one.high - one.value, other.value - other.low)
    return _Estimates(gap, low, high)


# -- other metrics, by the jackknife ---------------------------------------------------------------
def _metric_figures(
    counted: ColumnCounts, metrics: Sequence[Metric], together: bool
) -> dict[str, tuple[_Estimates, _Estimates]]:
    """Metrics of subgroups over all clients, with intervals, or of each client, without."""
    figures = {}
    subgroups = counted.samples.shape[1] - 1
    for m in metrics:
        if together:
            figures[m.name] = _jackknifed(counted, m, subgroups)
        else:
            each = [m.each(rows[0]).numpy() for rows in counted.rows[m.name]]
            value = np.stack(each, 1)
            none = np.full(value.shape, math.nan)
            figures[m.name] = (_Estimates(value, none, none), _Estimates(none, none, none))
    return figures


def _jackknifed(counted: ColumnCounts, m: Metric, subgroups: int) -> tuple[_Estimates, _Estimates]:
    """A metric of every subgroup and its difference from the rest, over all clients: [1, S]."""
    blocks = _Blocks.of(counted, m)
    own, gaps = [], []
    for s in range(subgroups):
        mine = np.arange(subgroups) == s
        value, rest = blocks.value(mine), blocks.value(~mine)
        filled = blocks.filled(mine)
        without = {b: blocks.value(mine, b) for b in filled}
        low, high = _jackknife_interval(value, np.array(list(without.values())))
        if m.higher and not isinstance(m, Own):  # those that are built in are at most 1,
            high = min(high, 1.0)
        elif not isinstance(m, Own):  # or errors, which are at least 0
            low = max(low, 0.0)
        own.append((value, low, high))
        everywhere = blocks.filled(np.ones(subgroups, dtype=bool))
        differences = [without.get(b, value) - blocks.value(~mine, b) for b in everywhere]
        gap = value - rest
        gaps.append((gap, *_jackknife_interval(gap, np.array(differences))))
    return _Estimates(*np.array(own).T[:, None]), _Estimates(*np.array(gaps).T[:, None])


@dataclass(frozen=True)
class _Blocks:
    """What was counted of a metric in every subgroup, of all samples and of each block."""

    metric: Metric
    rows: torch.Tensor  # [S, 1 or 1 + BLOCKS, clients, width]
    counts: torch.Tensor  # [S, 1 or 1 + BLOCKS, ...]
    sizes: torch.Tensor  # [clients, S]

    @classmethod
    def of(cls, counted: ColumnCounts, m: Metric) -> _Blocks:
        return cls(m, counted.rows[m.name], counted.counts[m.name], counted.samples[:, :-1])

    def filled(self, subgroups: np.ndarray) -> list[int]:
        """The blocks that have samples of some subgroups, bool[S]."""
        is_filled = self._is_filled[torch.from_numpy(subgroups)].any(0)
        return [int(b) + 1 for b in is_filled.nonzero()[:, 0]]

    @cached_property
    def _is_filled(self) -> torch.Tensor:  # bool[S, blocks]
        rows, counts = (t[:, 1:].flatten(2).any(2) for t in (self.rows, self.counts))
        return rows | counts

    def value(self, subgroups: np.ndarray, without: int = 0) -> float:
        """Of all samples of some subgroups, bool[S], or of those outside a block; NaN of none."""
        if not subgroups.any():
            return math.nan
        selection = torch.from_numpy(subgroups)
        rows, whole = self.rows[selection], self.counts[selection, 0].sum(0)
        sizes = self.sizes[:, selection].T.flatten()
        if not without:
            return self.metric.pooled(rows[:, 0].flatten(0, 1), whole, sizes)
        others = [b for b in range(1, rows.shape[1]) if b != without]
        # sizes matter to functions of the user alone, which are not counted in blocks
        sizes = sizes.repeat(len(others))
        rest = rows[:, others].flatten(0, 2)
        return self.metric.pooled(rest, whole - self.counts[selection, without].sum(0), sizes)


def _jackknife_interval(value: float, without: np.ndarray) -> tuple[float, float]:
    """From the figures without each block in turn; NaN where they are undefined or all the same."""
    from scipy.special import stdtrit

    blocks = len(without)
    if blocks < 3 or not math.isfinite(value) or not np.isfinite(without).all():
        return math.nan, math.nan
    variance = (blocks - 1) / blocks * float(((without - without.mean()) ** 2).sum())
    half = float(stdtrit(blocks - 1, 1 - LEVEL / 2)) * math.sqrt(variance)
    return (value - half, value + half) if half else (math.nan, math.nan)


# -- over seeds, and verdicts ----------------------------------------------------------------------
KEYS = ("model", "column", "client", "figure", "subgroup")


def over_seeds(
    by_seed: Sequence[Iterable[Mapping[str, Any]]], higher: Mapping[str, bool]
) -> list[dict[str, Any]]:
    """The mean of every line over seeds, with a verdict: better, worse, cannot tell or too few.

    `higher`: whether higher is better, of every figure.

    >>> line = SubgroupFigure(
    ...     "personal", "sex", "f", None, 90, None, "accuracy", 0.7, 0.6, 0.78, -0.2, -0.3, -0.1
    ... )
    >>> over_seeds([[line.as_dict()]], {"accuracy": True})[0]["verdict"]
    'worse'
    """
    lines: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for rows in by_seed:
        for row in rows:
            key = tuple(row.get(name) for name in KEYS)
            lines.setdefault(key, []).append(row)
    merged = [_merged(rows) for rows in lines.values()]
    return _judged(merged, higher)


def directions(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """Whether higher is better, of accuracy, loss and the metrics of a record."""
    own = {name: bool(facts.get("higher_is_better", True)) for name, facts in metrics.items()}
    return {"accuracy": True, "loss": False, **own}


def _merged(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    own = _mean_of([(r["value"], r["low"], r["high"]) for r in rows])
    gap = _mean_of([(r["difference"], r["difference_low"], r["difference_high"]) for r in rows])
    names = ("value", "low", "high", "difference", "difference_low", "difference_high")
    return {**rows[0], **dict(zip(names, (*own, *gap), strict=True))}


def _mean_of(estimates: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """The mean over seeds: the interval of the samples, wider by the variance of training."""
    value, low, high = np.array(estimates, dtype=float).T
    mean = float(value.mean())
    trainings = float(value.var(ddof=1)) / len(value) if len(value) > 1 else 0.0
    spread = Z**2 * trainings
    arms = [math.sqrt(float(arm.mean()) ** 2 + spread) for arm in (value - low, high - value)]
    return mean, mean - arms[0], mean + arms[1]


def _judged(rows: list[dict[str, Any]], higher: Mapping[str, bool]) -> list[dict[str, Any]]:
    """The same with verdicts, in families of one model, column and figure."""
    from scipy.special import ndtr

    families: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        too_few = row.get("groups", row["samples"]) < CLIENT_SAMPLES
        row["verdict"] = TOO_FEW if too_few else CANNOT_TELL
        bounds = (row["difference_low"], row["difference_high"])
        if too_few or not all(map(math.isfinite, bounds)):
            continue
        scope = "client" in row
        families.setdefault((row["model"], row["column"], row["figure"], scope), []).append(row)
    for family in families.values():
        called = discoveries(np.array([_p_value(row, ndtr) for row in family]))
        for row, is_called in zip(family, called.tolist(), strict=True):
            if is_called:
                is_better = (row["difference"] > 0) == higher[row["figure"]]
                row["verdict"] = BETTER if is_better else WORSE
    return rows


def _p_value(row: Mapping[str, Any], ndtr: Any) -> float:
    """Two-sided: below 5 % exactly where the interval of the difference does not hold 0."""
    gap = row["difference"]
    arm = gap - row["difference_low"] if gap > 0 else row["difference_high"] - gap
    if not arm:
        return float(gap == 0)
    return float(2 * ndtr(-Z * abs(gap) / arm))
