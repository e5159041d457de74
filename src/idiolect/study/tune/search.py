"""Many settings under the seeds of a search, and what validation data say of them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...core.knobs import SettingError, build
from ...run.settings import Settings
from ..sweep import Setting, Stock, Sweep, sweep_settings
from ..sweep.sweep import Watch
from .cost import Cost, cost_of
from .criterion import Criterion, error_over_clients, error_over_seeds, read_criterion
from .importance import main_effects
from .withheld import check_validation_data, without_test

KEEP = ("valid_by_client",)
AT_THE_END = ("target_accuracy", "target_value", "keep_best")  # they look at test data, or at none


@dataclass(frozen=True, eq=False)
class Standing:
    """A setting beside the best one."""

    setting: Setting
    figure: float | None  # the mean over the seeds of the search
    by_seed: tuple[float | None, ...]
    gap: float  # how far it is behind the best
    error: float  # the standard error of that gap; NaN where nothing tells
    summaries: tuple[Mapping[str, Any], ...]

    @property
    def tied(self) -> bool:
        """Whether it is within one standard error of the best."""
        return self.gap == 0 or self.gap <= self.error * (1 + 1e-9)  # a sample of one client: equal

    def as_dict(self) -> dict[str, Any]:
        """Plain data: a line of the table of all settings."""
        gap = self.gap if math.isfinite(self.gap) else None
        error = self.error if math.isfinite(self.error) else None
        first = self.summaries[0]
        return {
            "method": self.setting.name,
            **self.setting.varied,
            "valid": self.figure,
            "behind": gap,
            "standard_error": error,
            "tied": self.tied,
            "gradients_per_client": first["gradients_per_client"],
            "rounds": first["rounds"],
        }


@dataclass(frozen=True, eq=False)
class Search:
    """A finished search. Settings are in groups by their name, each with a best of its own."""

    sweep: Sweep  # every run
    criterion: Criterion
    points: Mapping[Setting, Setting]  # as searched -> as given
    samples: Mapping[str, np.ndarray]  # data by name -> validation samples of each client
    cost: Cost
    stopped: tuple[dict[str, Any], ...] = ()  # lines of those that were stopped as hopeless
    shares: dict[str, float] | None = None  # importance, where it is not that of a grid

    @property
    def names(self) -> list[str]:
        """The groups, in the order in which they were given."""
        return list(dict.fromkeys(point.name for point in self.points.values()))

    def best(self, name: str = "") -> Setting:
        """The setting that validation data prefer, of equal ones the first; as it was given."""
        return self.standings(name)[0].setting

    def ties(self, name: str = "") -> list[Standing]:
        """The others within one standard error of the best."""
        return [s for s in self.standings(name)[1:] if s.tied]

    def importance(self, name: str = "") -> dict[str, float]:
        """The share of the variance over settings that each field explains by itself."""
        if self.shares is not None:
            return self.shares
        found = [s for s in self.standings(name) if s.figure is not None]
        return main_effects([s.setting.varied for s in found], [s.figure for s in found])

    def standings(self, name: str = "") -> list[Standing]:
        """All settings of a group, the best first."""
        group = name or self.names[0]
        if group not in self._standings:
            raise SettingError(
                f"search: {group!r} is not accepted; one of {', '.join(self._standings)}"
            )
        return self._standings[group]

    @cached_property
    def _standings(self) -> dict[str, list[Standing]]:
        groups: dict[str, dict[Setting, list[Mapping[str, Any]]]] = {}
        for trial, summary in self.sweep.summaries.items():
            group = groups.setdefault(trial.setting.name, {})
            group.setdefault(trial.setting, []).append(summary)
        return {name: self._ranked(group) for name, group in groups.items()}

    def _ranked(self, group: Mapping[Setting, Sequence[Mapping[str, Any]]]) -> list[Standing]:
        figures = {s: _mean([self.criterion.figure(r) for r in runs]) for s, runs in group.items()}
        order = sorted(group, key=lambda s: -self.criterion.better(figures[s]))  # stable
        best = order[0]
        if figures[best] is None:
            raise SettingError(
                f"{best.name}: no setting has a finite validation {self.criterion.measure}; "
                "settings that do not diverge are needed to choose among, such as smaller lr"
            )
        found = []
        for setting in order:
            runs = group[setting]
            gap = self.criterion.better(figures[best]) - self.criterion.better(figures[setting])
            error = self._error(best, group[best], setting, runs) if math.isfinite(gap) else 0.0
            by_seed = tuple(self.criterion.figure(r) for r in runs)
            point = self.points[setting]
            found.append(Standing(point, figures[setting], by_seed, gap, error, tuple(runs)))
        return found

    def _error(
        self,
        best: Setting,
        of_best: Sequence[Mapping[str, Any]],
        other: Setting,
        of_other: Sequence[Mapping[str, Any]],
    ) -> float:
        """Of the clients, who are the same for both, and of the seeds where there are several.

        The larger of the two: training is random, and so is which samples are for validation.
        """
        if len(of_best) != len(of_other) or best.data != other.data:
            return math.nan
        one, two = (self._influence(runs, best.data) for runs in (of_best, of_other))
        error = error_over_clients(one, two)
        if len(of_best) > 1:
            pair = ([self.criterion.figure(r) for r in runs] for runs in (of_best, of_other))
            over_seeds = error_over_seeds(*pair)  # type: ignore[arg-type]  # the gap is finite
            error = max(over_seeds, error) if not math.isnan(error) else over_seeds
        return error

    def _influence(self, runs: Sequence[Mapping[str, Any]], data: str) -> np.ndarray:
        """The mean over seeds of what each client adds."""
        each = [np.array(run["valid_by_client"], dtype=np.float64) for run in runs]  # null is NaN
        return np.mean([self.criterion.influence(a, self.samples[data]) for a in each], axis=0)

    def rows(self) -> list[dict[str, Any]]:
        """A line per setting, group by group, the best first."""
        ranked = [s.as_dict() for name in self.names for s in self.standings(name)]
        return [*ranked, *self.stopped]


def search(
    points: Sequence[Setting],
    stock: Stock,
    seeds: Sequence[int],
    criterion: str = "pooled",
    *,
    jobs: int = 0,
    directory: Path | None = None,
    watch: Watch | None = None,
    told: Mapping[str, Any] | None = None,
) -> Search:
    """Run every setting with every seed on training and validation data alone, and rank them.

    Test data are taken away before the first run. Points that have the same `name` are candidates
    for the same place: `Search.best(name)`. With a directory, what was stopped goes on as a sweep
    does, and what is done is not done again.
    """
    began = time.monotonic()
    if not points:
        raise SettingError("grid: it is empty; at least one setting is needed")
    chosen, hidden = prepared(points, stock, criterion)
    twins = {searched(point): point for point in points}
    done = sweep_settings(
        list(twins),
        hidden,
        seeds,
        jobs=jobs,
        directory=directory,
        watch=watch,
        told=told,
        keep=KEEP,
    )
    if done.failed:
        trial, why = next(iter(done.failed.items()))
        raise SettingError(
            f"tune: {len(done.failed)} runs failed, the first of them {trial.describe()}: {why}; "
            "those that are done are stored, and the same command tries the others again"
        )
    samples = {name: hidden.federation(name).sizes("valid").numpy() for name in hidden.data}
    clients = {name: hidden.federation(name).clients for name in hidden.data}
    cost = cost_of(done, clients, time.monotonic() - began)
    return Search(done, chosen, twins, samples, cost)


def prepared(points: Sequence[Setting], stock: Stock, criterion: str) -> tuple[Criterion, Stock]:
    """What to choose by, and data without their test part."""
    chosen = []
    names = dict.fromkeys(point.data for point in points)
    for point in points:
        settings = build(Settings, point.settings(0), "run")
        chosen.append(read_criterion(criterion, settings, stock.federation(point.data)))
    if len(set(chosen)) > 1:
        raise SettingError("metric: a search has one for all its settings")
    for name in names:
        check_validation_data(stock.federation(name))
    return chosen[0], Stock(
        {name: without_test(stock.federation(name)) for name in names}, stock.tasks
    )


def searched(point: Setting) -> Setting:
    """The same training without what looks at test data: evaluated once, at the end.

    Patience decides by validation data, and needs its evaluated rounds.
    """
    run = {name: value for name, value in point.run.items() if name not in AT_THE_END}
    if not build(Settings, point.settings(0), "run").patience:
        run["eval_every"] = 0
    return replace(point, run=run)


def _mean(figures: Sequence[float | None]) -> float | None:
    known = [f for f in figures if f is not None]
    return sum(known) / len(known) if known and len(known) == len(figures) else None
