"""A search in a space by Optuna: TPE proposes settings, a median pruner stops hopeless trials.

The results of runs are stored, not Optuna's state: its sampler keeps random numbers that no storage
of Optuna holds. A study that was interrupted starts again with the same seed, proposes the same
settings and finds their results stored, so that it ends as if it had not been interrupted.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError, build
from ..core.text import warnings_once
from ..host.metrics import direction
from ..report.captions import diverged
from ..report.format import number
from ..run.callbacks import Moment
from ..run.plan import Plan
from ..run.prepare import prepare
from ..run.settings import Settings
from .jobs import finish
from .many import Stock, Sweep, Trial, Watch, result_file, shared_by
from .search import KEEP, Criterion, Search, cost_of, searched, without_test_data
from .space import Range, Space, vary, written_space

NEVER_PRUNED = 5  # first trials
EVALUATIONS = 10  # per run, for the pruner
UNLIMITED = 2**31  # patience that never ends a run, but has validation data evaluated
AHEAD = 4  # trials proposed at a time per worker process, which takes seconds to start
FOR_IMPORTANCE = 10  # completed trials needed to estimate importance

Curve = dict[int, float]  # rounds done -> the figure on validation data


def need_optuna() -> Any:
    """Optuna, an optional dependency."""
    try:
        import optuna
    except ImportError:
        raise SettingError(
            "trials: Optuna, which does this search, is not installed; "
            "pip install 'idiolect[tune]', or give a grid"
        ) from None
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna logs nothing in here."""
    logging = need_optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


@dataclass(frozen=True, eq=False)
class PrunedTrial(Trial):
    """A run that Optuna's median pruner may stop.

    It stops at an evaluated round where its best figure so far is worse than the median of earlier
    trials at that round. `earlier` has the curves of those that completed, so that a worker process
    decides as this one would.
    """

    study: str = ""  # a digest of the space: the same setting is another trial in another study
    earlier: tuple[Curve, ...] = ()

    def key(self) -> str:
        return f"{super().key()}-{self.study}"

    def train(self) -> dict[str, Any]:
        optuna = need_optuna()
        settings = self.settings
        higher = direction(settings.watched, settings.metrics)
        curve: Curve = {}
        with quiet():
            study = optuna.create_study(
                direction="maximize" if higher else "minimize",
                sampler=optuna.samplers.RandomSampler(seed=0),
                pruner=optuna.pruners.MedianPruner(NEVER_PRUNED, settings.rounds // 5),
            )
            for values in filter(None, self.earlier):
                last = values[max(values)]
                study.add_trial(optuna.trial.create_trial(value=last, intermediate_values=values))
            trial = study.ask()

            def look(moment: Moment) -> None:
                value = moment.figures[f"valid_{settings.watched}"]
                if not math.isnan(value):
                    curve[moment.round] = value
                    trial.report(value, moment.round)
                    if trial.should_prune():
                        moment.stop()

            summary = self.trained(look)
        pruned = summary["stopped"] == ["callback"]
        return {**summary, "curve": [list(point) for point in curve.items()], "pruned": pruned}


def evaluated(plan: Plan, measure: str) -> Plan:
    """The same training, with validation data evaluated in every tenth of its rounds."""
    settings = build(Settings, plan.of_seed(0), "run")
    plan = searched(plan)
    if settings.patience:
        return plan
    every = max(1, settings.rounds // EVALUATIONS)
    looks = {"eval_every": every, "patience": UNLIMITED, "patience_metric": measure}
    return replace(plan, settings={**plan.settings, **looks})


@dataclass(eq=False)
class PlannedTrial:
    """A trial of the study: a plan that Optuna proposed, with the runs of its seeds."""

    trial: Any  # Optuna's
    original: Plan
    plan: Plan  # with the evaluations that the pruner needs
    runs: dict[Trial, dict[str, Any]] = field(default_factory=dict)
    error: str = ""

    @property
    def first(self) -> Mapping[str, Any]:
        """The run of the first seed; empty where it failed."""
        return next(iter(self.runs.values()), {})

    @property
    def pruned(self) -> bool:
        return bool(self.first.get("pruned"))

    @property
    def curve(self) -> Curve:
        curve = () if diverged(self.first) else self.first.get("curve", ())
        return {int(step): value for step, value in curve}

    def tell(self, study: Any, criterion: Criterion) -> str:
        """Tell Optuna the outcome; returns it in a few words."""
        state = need_optuna().trial.TrialState
        for step, value in self.curve.items():
            self.trial.report(value, step)
        figures = [criterion.figure(summary) for summary in self.runs.values()]
        if self.error or None in figures:
            study.tell(self.trial, state=state.FAIL)
            return f"failed: {self.error or 'no finite figure'}"
        if self.pruned:
            study.tell(self.trial, state=state.PRUNED)
            return "stopped early"
        mean = sum(figures) / len(figures)  # type: ignore[arg-type]
        study.tell(self.trial, mean)
        return number(mean)

    def row(self, criterion: Criterion) -> dict[str, Any]:
        """A row of the table, for a trial that was pruned or failed."""
        row = {"method": self.original.name, **self.original.varied}
        if self.error:
            return {**row, "tied": False, "stopped": self.error}
        return {
            **row,
            "valid": criterion.figure(self.first),
            "tied": False,
            "gradients_per_client": self.first["gradients_per_client"],
            "rounds": self.first["rounds"],
            "stopped": "early",
        }


@dataclass(eq=False)
class Slot:
    """The place of a trial in the progress, before its plan is known."""

    rounds: int
    text: str = ""

    def cost(self) -> float:
        return float(self.rounds)

    def describe(self) -> str:
        return self.text


def study_search(
    contender: Plan,
    space: Space,
    trials: int,
    stock: Stock,
    seeds: Sequence[int],
    criterion: str = "pooled",
    *,
    jobs: int = 1,
    directory: Path | None = None,
    watch: Watch | None = None,
) -> Search:
    """Trials one after the other, or in batches of four for each of several `jobs`.

    The first seed of a trial may be pruned; the other seeds run where it was not. With the same
    seed and jobs the study proposes the same settings. Those of one batch do not know of each
    other, so that another number of jobs is another search.
    """
    began = time.monotonic()
    optuna = need_optuna()
    probe = vary(contender, _first(space))
    target, hidden = without_test_data([probe], stock, criterion)
    task, federation = hidden.tasks[probe.model], hidden.federation(probe.data)
    for plan in _ends(contender, space):
        prepare(plan.make_method(), task, federation, build(Settings, plan.of_seed(0), "run"))
    for seed in seeds:
        hidden.draw(probe.data, probe.data_seed(seed))
    study_key = json.dumps([written_space(space), list(seeds), jobs], sort_keys=True, default=str)
    digest = hashlib.sha256(study_key.encode()).hexdigest()[:16]
    rounds = build(Settings, probe.of_seed(0), "run").rounds * len(seeds)
    slots = [Slot(rounds) for _ in range(trials)]
    proposals: list[PlannedTrial] = []
    manifest = {"space": written_space(space), "trials": trials, "jobs": jobs}
    sampler = optuna.samplers.TPESampler(seed=seeds[0], constant_liar=jobs > 1)
    with (
        quiet(),
        warnings_once(),
        result_file(directory, manifest) as path,
        shared_by(hidden, jobs, [Trial(probe, seeds[0], "")] * 2) as share,
        watch(slots) if watch else nullcontext() as bar,  # type: ignore[arg-type]
    ):
        study = optuna.create_study(
            direction="maximize" if target.higher else "minimize", sampler=sampler
        )

        def ask() -> PlannedTrial:
            trial = study.ask()
            plan = vary(contender, _suggestion(trial, space))
            return PlannedTrial(trial, plan, evaluated(plan, target.measure))

        def train(owners: dict[Trial, PlannedTrial]) -> None:
            def failed(trial: Trial, error: Exception) -> None:
                owners[trial].error = f"{type(error).__name__}: {error}"

            for trial, summary in finish(list(owners), path, jobs, None, share, failed).items():
                owners[trial].runs[trial] = summary

        if bar:
            bar.report({}, None)
        while len(proposals) < trials:
            count = min(AHEAD * jobs if jobs > 1 else 1, trials - len(proposals))
            earlier = tuple(p.curve for p in proposals if p.runs and not p.pruned)
            batch = {p: p.plan.key(task, federation) for p in (ask() for _ in range(count))}
            train(
                {
                    PrunedTrial(p.plan, seeds[0], key, KEEP, digest, earlier): p
                    for p, key in batch.items()
                }
            )
            train(
                {
                    Trial(searched(p.plan), seed, key, KEEP): p
                    for p, key in batch.items()
                    if p.runs and not p.pruned
                    for seed in seeds[1:]
                }
            )
            for proposal in batch:
                proposals.append(proposal)
                text = proposal.tell(study, target)
                if bar:
                    slot = slots[len(proposals) - 1]
                    slot.text = f"{proposal.original.label}: {text}"
                    bar.report(dict.fromkeys(slots[: len(proposals)]), slot)
        importance = _importance(study)
    return _search_of(proposals, target, hidden, importance, time.monotonic() - began)


def _first(space: Space) -> dict[str, Any]:
    return {name: e.ends()[0] if isinstance(e, Range) else e[0] for name, e in space.items()}


def _ends(contender: Plan, space: Space) -> Iterator[Plan]:
    """Plans with the ends of every range, and with every choice: all must be possible."""
    for name, entry in space.items():
        for value in entry.ends() if isinstance(entry, Range) else entry:
            yield vary(contender, {**_first(space), name: value})


def _suggestion(trial: Any, space: Space) -> dict[str, Any]:
    """The values that Optuna suggests, by name."""
    values: dict[str, Any] = {}
    for name, entry in space.items():
        if not isinstance(entry, Range):  # by position: Optuna wants plain choices
            values[name] = entry[trial.suggest_categorical(name, list(range(len(entry))))]
        elif entry.whole:
            values[name] = trial.suggest_int(name, *entry.ends(), log=entry.log)
        else:
            value = trial.suggest_float(name, *entry.ends(), log=entry.log)
            values[name] = min(max(float(f"{value:.4g}"), entry.low), entry.high)
    return values


def _importance(study: Any) -> dict[str, float]:
    """fANOVA's importance; empty with too few completed trials."""
    optuna = need_optuna()
    complete = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    if len(complete) < FOR_IMPORTANCE or len({trial.value for trial in complete}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in shares.items()}


def _search_of(
    proposals: Sequence[PlannedTrial],
    criterion: Criterion,
    stock: Stock,
    importance: dict[str, float],
    seconds: float,
) -> Search:
    """The search that the trials are; pruned and failed ones are only rows of its table."""
    completed = [p for p in proposals if p.runs and not p.error]
    summaries = {
        Trial(p.plan, trial.seed, trial.digest): summary  # all seeds of a trial: one plan
        for p in completed
        if not p.pruned
        for trial, summary in p.runs.items()
    }
    if not summaries:
        reason = next((p.error for p in proposals if p.error), "all were stopped early")
        raise SettingError(f"tune: no trial was finished: {reason}")
    all_runs = Sweep({trial: summary for p in completed for trial, summary in p.runs.items()})
    return Search(
        Sweep(summaries),
        criterion,
        {p.plan: p.original for p in completed},
        stock,
        cost_of(all_runs, stock, seconds),
        tuple(p.row(criterion) for p in proposals if p.pruned or p.error),
        importance,
    )
