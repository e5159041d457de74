"""Plans under the seeds of a search: what validation data say of them, and how sure that is."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..core.knobs import SettingError, build, nearest, with_role
from ..core.text import plural
from ..data.federation import Federation
from ..host.metrics import direction
from ..report.captions import diverged
from ..run.plan import Plan
from ..run.settings import FINAL_RUN, Settings
from .many import Stock, Sweep, Watch, run_many

CRITERIA = {  # -> what a summary calls it
    "pooled": "mean",  # over all validation samples
    "clients": "mean_of_clients",
    "worst10": "worst10",  # the mean over the worst tenth of the clients
}
Figures = np.ndarray  # of clients, float64[N]; NaN for a client that has none


@dataclass(frozen=True)
class Criterion:
    """A way to sum up a figure of all clients."""

    kind: str  # of `CRITERIA`
    measure: str  # accuracy, loss or a metric
    higher: bool  # whether more is better

    def __str__(self) -> str:
        how = {"pooled": "pooled", "clients": "mean over clients of", "worst10": "worst tenth of"}
        return f"{how[self.kind]} validation {self.measure}"

    def figure(self, summary: Mapping[str, Any]) -> float | None:
        """The figure of a run; None where it is not finite, or that of an untrained model."""
        return None if diverged(summary) else summary["valid"][self.measure][CRITERIA[self.kind]]

    def better(self, figure: float | None) -> float:
        """A number that is larger for a better figure; least for none at all."""
        if figure is None or not math.isfinite(figure):
            return -math.inf
        return figure if self.higher else -figure

    def influence(self, each: Figures, samples: np.ndarray) -> Figures:
        """What each client adds to the deviation of the figure from its expectation.

        Pooled: n_i (a_i - a) / n; over clients: (a_i - a) / N; worst tenth, with q its boundary:
        (a_i - q) / k for those in it. The figure's variance over draws of clients is about
        N / (N - 1) times the sum of squares of these.
        """
        present = ~np.isnan(each) & (samples > 0)
        a = np.where(present, each, 0.0)
        if self.kind == "worst10":
            sign = 1.0 if self.higher else -1.0
            order = np.argsort(np.where(present, sign * each, np.inf), kind="stable")
            k = math.ceil(0.1 * present.sum())
            worst = np.zeros(len(each), dtype=bool)
            worst[order[:k]] = True
            boundary = a[order[k - 1]] if k else 0.0
            return np.where(worst, (a - boundary) / max(k, 1), 0.0)
        weights = np.where(present, samples if self.kind == "pooled" else 1.0, 0.0)
        weights = weights / max(weights.sum(), 1.0)
        return weights * (a - (weights * a).sum())


def error_over_clients(one: Figures, other: Figures) -> float:
    """The standard error of the difference of two figures of the same clients, paired.

    >>> round(error_over_clients(np.array([0.1, -0.1, 0.0]), np.zeros(3)), 4)
    0.1732
    """
    z = one - other
    if len(z) < 2:
        return math.nan
    return math.sqrt(len(z) / (len(z) - 1) * float(((z - z.mean()) ** 2).sum()))


def error_over_seeds(one: Sequence[float], other: Sequence[float]) -> float:
    """The standard error of the mean difference of two figures under the same seeds, paired.

    >>> round(error_over_seeds([0.8, 0.9], [0.7, 0.7]), 4)
    0.05
    """
    z = np.array(one) - np.array(other)
    return float(z.std(ddof=1) / math.sqrt(len(z))) if len(z) > 1 else math.nan


def read_criterion(name: str, settings: Settings, federation: Federation) -> Criterion:
    """A criterion by name. Test data are none.

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> str(read_criterion("worst10", il.Settings(), federation))
    'worst tenth of validation accuracy'
    """
    if "test" in str(name).lower().replace("-", "_").split("_"):
        raise SettingError(
            f"criterion must be one of {', '.join(CRITERIA)}, all on validation data, got "
            f"{name!r}. Test data are for the final run: chosen by them, its figures would flatter"
        )
    if name not in CRITERIA:
        raise nearest(str(name), CRITERIA, "criterion")
    measure = settings.figure(federation.classes)
    return Criterion(name, measure, direction(measure, settings.metrics))


def check_validation_data(federation: Federation) -> None:
    """Refuse to choose where there is nothing to choose by."""
    if not bool(federation.sizes("valid").any()):
        raise SettingError(
            f"tune: no client of {federation.name} has validation data, and settings are chosen by "
            "nothing else; make the federation with a share for validation, such as valid=0.2"
        )


# -- What a search cost --


@dataclass(frozen=True)
class Cost:
    """Of all runs of a search; those that were stored before are counted with what they took."""

    runs: int
    gradients: int  # gradient evaluations, of all clients
    cpu_seconds: float
    seconds: float  # from start to end, of the last start

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{plural(self.runs, 'run')}, {plural(self.gradients, 'gradient evaluation')}, "
            f"{self.cpu_seconds:.0f} CPU seconds, {self.seconds:.0f} s from start to end"
        )

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.runs + other.runs,
            self.gradients + other.gradients,
            self.cpu_seconds + other.cpu_seconds,
            self.seconds + other.seconds,
        )


def cost_of(sweep: Sweep, stock: Stock, seconds: float) -> Cost:
    """The cost of the runs of a sweep."""
    gradients = sum(
        summary["gradients_per_client"] * stock.federation(trial.plan.data).clients
        for trial, summary in sweep.summaries.items()
    )
    cpu_seconds = sum(summary["cpu_seconds"] for summary in sweep.summaries.values())
    return Cost(len(sweep.summaries), round(gradients), cpu_seconds, seconds)


# -- How much each field of a grid matters --


def main_effects(settings: Sequence[Mapping[str, Any]], figures: Sequence[Any]) -> dict[str, float]:
    """The share of the variance of the figures that each field explains by itself.

    With y the figures, m their mean, and n_v and m_v the number and the mean of those with value v:
    sum_v n_v (m_v - m)^2 / sum (y - m)^2. In a full grid the shares add up to 1 at most; what is
    missing is due to fields together. Fields with one value are left out.

    >>> grid = [{"lr": lr, "lam": lam} for lr in (0.1, 1.0) for lam in (0, 1)]
    >>> main_effects(grid, [0.5, 0.5, 0.9, 0.9])
    {'lr': 1.0, 'lam': 0.0}
    """
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    mean = sum(figures) / len(figures) if figures else 0.0
    total = sum((y - mean) ** 2 for y in figures)
    shares = {}
    for name in names:
        groups: dict[str, list[float]] = {}
        for setting, y in zip(settings, figures, strict=True):
            groups.setdefault(repr(setting.get(name)), []).append(y)
        if len(groups) < 2:
            continue
        between = sum(len(g) * (sum(g) / len(g) - mean) ** 2 for g in groups.values())
        shares[name] = between / total if total else 0.0
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


# -- the ranking -----------------------------------------------------------------------------------
KEEP = ("valid_by_client",)
Summaries = Sequence[Mapping[str, Any]]  # of one plan, one per seed


@dataclass(frozen=True, eq=False)
class Standing:
    """A plan compared with the best one."""

    plan: Plan
    figure: float | None  # the mean over the seeds of the search
    by_seed: tuple[float | None, ...]
    gap: float  # how far it is behind the best
    error: float  # the standard error of that gap; NaN where nothing tells
    summaries: Summaries

    @property
    def tied(self) -> bool:
        """Whether it is within one standard error of the best."""
        return self.gap == 0 or self.gap <= self.error * (1 + 1e-9)  # a sample of one client: equal

    def as_dict(self) -> dict[str, Any]:
        """Plain data: a line of the table of all plans."""
        gap = self.gap if math.isfinite(self.gap) else None
        error = self.error if math.isfinite(self.error) else None
        first = self.summaries[0]
        return {
            "method": self.plan.name,
            **self.plan.varied,
            "valid": self.figure,
            "behind": gap,
            "standard_error": error,
            "tied": self.tied,
            "gradients_per_client": first["gradients_per_client"],
            "rounds": first["rounds"],
        }


@dataclass(frozen=True, eq=False)
class Search:
    """A finished search. Plans are grouped by name, and each group has its own best."""

    sweep: Sweep  # every run
    criterion: Criterion
    originals: Mapping[Plan, Plan]  # as searched -> as given
    stock: Stock  # without test data
    cost: Cost
    stopped: tuple[dict[str, Any], ...] = ()  # lines of those that were stopped as hopeless
    shares: dict[str, float] | None = None  # importance, where it is not that of a grid

    @property
    def names(self) -> list[str]:
        """The groups, in the order in which they were given."""
        return list(dict.fromkeys(plan.name for plan in self.originals.values()))

    def best(self, name: str = "") -> Plan:
        """The plan that validation data prefer, of equal ones the first; as it was given."""
        return self.standings(name)[0].plan

    def ties(self, name: str = "") -> list[Standing]:
        """The others within one standard error of the best."""
        return [s for s in self.standings(name)[1:] if s.tied]

    def importance(self, name: str = "") -> dict[str, float]:
        """The share of the variance over plans that each field explains by itself."""
        if self.shares is not None:
            return self.shares
        finite = [s for s in self.standings(name) if s.figure is not None]
        return main_effects([s.plan.varied for s in finite], [s.figure for s in finite])

    def tried(self, name: str) -> int:
        """How many plans of a group were tried, to the end or not."""
        return len([row for row in self.rows() if row["method"] == name])

    def standings(self, name: str = "") -> list[Standing]:
        """All plans of a group, the best first."""
        group = name or self.names[0]
        if group not in self._standings:
            groups = ", ".join(self._standings)
            raise SettingError(f"name must be one of {groups}, got {group!r}")
        return self._standings[group]

    @cached_property
    def _standings(self) -> dict[str, list[Standing]]:
        groups: dict[str, dict[Plan, Summaries]] = {}
        for plan, summaries in self.sweep.by_plan().items():
            groups.setdefault(plan.name, {})[plan] = summaries
        return {name: self._ranked(group) for name, group in groups.items()}

    def _ranked(self, group: Mapping[Plan, Summaries]) -> list[Standing]:
        by_seed = {p: [self.criterion.figure(r) for r in runs] for p, runs in group.items()}
        figures = {
            p: None if None in some else sum(some) / len(some)  # type: ignore[arg-type]
            for p, some in by_seed.items()
        }
        order = sorted(group, key=lambda p: -self.criterion.better(figures[p]))  # stable
        best = order[0]
        if figures[best] is None:
            raise SettingError(
                f"{best.name}: no setting has a finite validation {self.criterion.measure}; "
                "settings that do not diverge are needed to choose among, such as smaller lr"
            )
        standings = []
        for plan in order:
            gap = self.criterion.better(figures[best]) - self.criterion.better(figures[plan])
            error = self._error(best, plan, group, by_seed) if math.isfinite(gap) else 0.0
            standings.append(
                Standing(
                    self.originals[plan],
                    figures[plan],
                    tuple(by_seed[plan]),
                    gap,
                    error,
                    group[plan],
                )
            )
        return standings

    def _error(
        self,
        best: Plan,
        other: Plan,
        group: Mapping[Plan, Summaries],
        by_seed: Mapping[Plan, Sequence[float | None]],
    ) -> float:
        """Of the clients, who are the same for both, and of the seeds where there are several.

        The larger of the two: training is random, and so is which samples are for validation.
        """
        if len(group[best]) != len(group[other]) or best.data != other.data:
            return math.nan
        one, two = (self._influence(group[plan], best.data) for plan in (best, other))
        error = error_over_clients(one, two)
        if len(group[best]) > 1:
            over_seeds = error_over_seeds(by_seed[best], by_seed[other])  # type: ignore[arg-type]
            error = max(over_seeds, error) if not math.isnan(error) else over_seeds
        return error

    def _influence(self, runs: Summaries, data: str) -> np.ndarray:
        """The mean over seeds of what each client adds.

        Where each seed has a partition of its own, the clients of all of them: no two are the same.
        """
        terms = []
        for run in runs:
            (data_seed,) = run.get("data_seeds", {"seeds": [None]})["seeds"]
            samples = self.stock.drawn(data, data_seed).weight_totals("valid").numpy()
            each = np.array(run["valid_by_client"], dtype=np.float64)  # null is NaN
            terms.append(self.criterion.influence(each, samples))
        if "data_seeds" in runs[0]:
            return np.concatenate(terms) / len(terms)
        return np.mean(terms, axis=0)

    def rows(self) -> list[dict[str, Any]]:
        """A line per plan, group by group, the best first."""
        ranked = [s.as_dict() for name in self.names for s in self.standings(name)]
        return [*ranked, *self.stopped]


def search_plans(
    plans: Sequence[Plan],
    stock: Stock,
    seeds: Sequence[int],
    criterion: str = "pooled",
    *,
    jobs: int = 0,
    directory: Path | None = None,
    watch: Watch | None = None,
    manifest: Mapping[str, Any] | None = None,
) -> Search:
    """Run every plan with every seed on training and validation data alone, and rank them.

    Test data are taken away before the first run. Plans that have the same `name` are candidates
    for the same place: `Search.best(name)`. With a directory, an interrupted search is
    resumed, and no run is repeated.
    """
    began = time.monotonic()
    if not plans:
        raise SettingError("grid must have at least one setting, got none")
    target, hidden = without_test_data(plans, stock, criterion)
    originals = {searched(plan): plan for plan in plans}
    sweep = run_many(
        list(originals),
        hidden,
        seeds,
        jobs=jobs,
        directory=directory,
        watch=watch,
        manifest=manifest,
        keep=KEEP,
    )
    if sweep.failed:
        trial, reason = next(iter(sweep.failed.items()))
        raise SettingError(
            f"tune: {plural(len(sweep.failed), 'run')} failed, the first of them "
            f"{trial.describe()}: {reason}; finished runs are stored, and the same command tries "
            "the others again"
        )
    cost = cost_of(sweep, hidden, time.monotonic() - began)
    return Search(sweep, target, originals, hidden, cost)


def without_test_data(
    plans: Sequence[Plan], stock: Stock, criterion: str
) -> tuple[Criterion, Stock]:
    """What to choose by, and data without their test part: a search cannot look at them."""
    criteria = {
        read_criterion(criterion, build(Settings, p.of_seed(0), "run"), stock.federation(p.data))
        for p in plans
    }
    if len(criteria) > 1:
        raise SettingError("metric must be the same for all settings of a search")
    names = dict.fromkeys(plan.data for plan in plans)
    for name in names:
        check_validation_data(stock.federation(name))
    data = {name: stock.federation(name).without("test") for name in names}
    return criteria.pop(), Stock(dict(data), stock.tasks)


def searched(plan: Plan) -> Plan:
    """The same training without what looks at test data: evaluated once, at the end.

    Patience decides by validation data, and needs its evaluated rounds.
    """
    at_the_end = with_role(Settings, FINAL_RUN)
    run = {name: value for name, value in plan.run_settings.items() if name not in at_the_end}
    if not build(Settings, plan.of_seed(0), "run").patience:
        run["eval_every"] = 0
    return replace(plan, settings=run, own={})
