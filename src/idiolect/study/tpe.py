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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError, build
from ..host.metrics import direction
from ..run.callbacks import Moment
from ..run.settings import Settings
from ..run.validate import check
from .grids import Contender
from .many import finish
from .results import Sweep
from .search import KEEP, Criterion, Search, cost_of, prepared, searched
from .space import Range, Space, written_space
from .sweep import Setting, Stock, Trial, Watch, folder_for, shared_by

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
        settings = build(Settings, self.setting.settings(self.seed), "run")
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


def evaluated(point: Setting, measure: str) -> Setting:
    """The same training, with validation data evaluated in every tenth of its rounds."""
    setting = searched(point)
    settings = build(Settings, point.settings(0), "run")
    if settings.patience:
        return setting
    every = max(1, settings.rounds // EVALUATIONS)
    looks = {"eval_every": every, "patience": UNLIMITED, "patience_metric": measure}
    return replace(setting, run={**setting.run, **looks})


@dataclass
class TrialOutcome:
    """A trial of the study, with the runs of its seeds."""

    trial: Any  # Optuna's
    point: Setting
    setting: Setting  # with the evaluations that the pruner needs
    runs: list[tuple[Trial, dict[str, Any]]] = field(default_factory=list)
    error: str = ""

    @property
    def pruned(self) -> bool:
        return bool(self.runs) and self.runs[0][1]["pruned"]

    @property
    def completed(self) -> bool:
        return bool(self.runs) and not self.error

    @property
    def curve(self) -> Curve:
        return {int(step): value for step, value in self.runs[0][1]["curve"]} if self.runs else {}

    def tell(self, study: Any, criterion: Criterion) -> str:
        """Tell Optuna the outcome; returns it in a few words."""
        state = need_optuna().trial.TrialState
        for step, value in self.curve.items():
            self.trial.report(value, step)
        figures = [criterion.figure(summary) for _, summary in self.runs]
        if self.error or None in figures:
            study.tell(self.trial, state=state.FAIL)
            return f"failed: {self.error or 'no finite figure'}"
        if self.pruned:
            study.tell(self.trial, state=state.PRUNED)
            return "stopped early"
        mean = sum(figures) / len(figures)  # type: ignore[arg-type]
        study.tell(self.trial, mean)
        return f"{mean:.4f}"

    def row(self, criterion: Criterion) -> dict[str, Any]:
        """A row of the table, for a trial that was pruned or failed."""
        row: dict[str, Any] = {"method": self.point.name, **self.point.varied}
        if self.error:
            return {**row, "tied": False, "stopped": self.error}
        summary = self.runs[0][1]
        return {
            **row,
            "valid": criterion.figure(summary),
            "tied": False,
            "gradients_per_client": summary["gradients_per_client"],
            "rounds": summary["rounds"],
            "stopped": "early",
        }


@dataclass
class Slot:
    """The place of a trial in the progress, before its setting is known."""

    rounds: int
    text: str = ""

    def cost(self) -> float:
        return float(self.rounds)

    def describe(self) -> str:
        return self.text

    def __hash__(self) -> int:
        return id(self)


def study_search(
    contender: Contender,
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

    With the same seed and jobs it proposes the same settings. Those of one batch do not know of
    each other, so that another number of jobs is another search.
    """
    began = time.monotonic()
    optuna = need_optuna()
    probe = contender.setting(contender.point(_first(space)))
    target, hidden = prepared([probe], stock, criterion)
    _check_ends(contender, space, hidden)
    study_key = [written_space(space), list(seeds), jobs]
    digest = hashlib.sha256(json.dumps(study_key, sort_keys=True, default=str).encode())
    proposals = _Proposals(contender, space, hidden, seeds, target, digest.hexdigest()[:16])
    rounds = build(Settings, probe.settings(0), "run").rounds * len(seeds)
    slots = [Slot(rounds) for _ in range(trials)]
    outcomes: list[TrialOutcome] = []
    manifest = {"space": written_space(space), "trials": trials, "jobs": jobs}
    sampler = optuna.samplers.TPESampler(seed=seeds[0], constant_liar=jobs > 1)
    with (
        quiet(),
        folder_for(directory, manifest) as path,
        shared_by(hidden, jobs, [Trial(probe, seeds[0], "")] * 2) as share,
        watch(slots) if watch else nullcontext() as bar,  # type: ignore[arg-type]
    ):
        study = optuna.create_study(
            direction="maximize" if target.higher else "minimize", sampler=sampler
        )
        if bar:
            bar.report({}, None)
        while len(outcomes) < trials:
            count = min(AHEAD * jobs if jobs > 1 else 1, trials - len(outcomes))
            earlier = tuple(o.curve for o in outcomes if o.runs and not o.pruned)
            for outcome in proposals.batch(study, count, earlier, path, jobs, share):
                outcomes.append(outcome)
                text = outcome.tell(study, target)
                if bar:
                    slot = slots[len(outcomes) - 1]
                    slot.text = f"{outcome.point.label}: {text}"
                    bar.report(dict.fromkeys(slots[: len(outcomes)]), slot)
        importance = _importance(study)
    return _search_of(outcomes, target, hidden, importance, time.monotonic() - began)


@dataclass(frozen=True)
class _Proposals:
    """Runs what a study proposes."""

    contender: Contender
    space: Space
    stock: Stock
    seeds: Sequence[int]
    criterion: Criterion
    study: str  # a digest

    def batch(
        self,
        study: Any,
        count: int,
        earlier: tuple[Curve, ...],
        path: Path,
        jobs: int,
        share: Stock,
    ) -> list[TrialOutcome]:
        """The first seed of each trial may be pruned; the other seeds run where it was not."""
        outcomes = [self._ask(study) for _ in range(count)]
        first: dict[Trial, TrialOutcome] = {
            PrunedTrial(
                o.setting, self.seeds[0], self._digest(o.setting), KEEP, self.study, earlier
            ): o
            for o in outcomes
        }
        self._run(first, path, jobs, share)
        others = {
            Trial(searched(o.setting), seed, self._digest(o.setting), KEEP): o
            for o in outcomes
            if o.runs and not o.pruned
            for seed in self.seeds[1:]
        }
        self._run(others, path, jobs, share)
        return outcomes

    def _ask(self, study: Any) -> TrialOutcome:
        trial = study.ask()
        point = self.contender.setting(self.contender.point(_suggestion(trial, self.space)))
        return TrialOutcome(trial, point, evaluated(point, self.criterion.measure))

    def _digest(self, setting: Setting) -> str:
        return setting.digest(self.stock.tasks[setting.task], self.stock.federation(setting.data))

    def _run(self, owners: dict[Trial, TrialOutcome], path: Path, jobs: int, share: Stock) -> None:
        def failed(trial: Trial, error: Exception) -> None:
            owners[trial].error = f"{type(error).__name__}: {error}"

        for trial, summary in finish(list(owners), path, jobs, None, share, failed).items():
            owners[trial].runs.append((trial, summary))


def _first(space: Space) -> dict[str, Any]:
    return {name: e.ends()[0] if isinstance(e, Range) else e[0] for name, e in space.items()}


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


def _check_ends(contender: Contender, space: Space, stock: Stock) -> None:
    """Refuse, before anything runs, a range or choice that the method or the run does not take."""
    for name, entry in space.items():
        for value in entry.ends() if isinstance(entry, Range) else entry:
            point = contender.setting(contender.point({**_first(space), name: value}))
            settings = build(Settings, point.settings(0), "run")
            check(point.method, stock.tasks[""], stock.federation(""), settings)


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
    outcomes: Sequence[TrialOutcome],
    criterion: Criterion,
    stock: Stock,
    importance: dict[str, float],
    seconds: float,
) -> Search:
    """The search that the trials are; pruned and failed ones are only rows of its table."""
    completed = [o for o in outcomes if o.completed]
    summaries = {
        Trial(o.setting, trial.seed, trial.digest): summary  # all seeds of a trial: one setting
        for o in completed
        if not o.pruned
        for trial, summary in o.runs
    }
    if not summaries:
        reason = next((o.error for o in outcomes if o.error), "all were stopped early")
        raise SettingError(f"tune: no trial was finished: {reason}")
    all_runs = Sweep({trial: summary for o in completed for trial, summary in o.runs})
    clients = {name: stock.federation(name).clients for name in stock.data}
    return Search(
        Sweep(summaries),
        criterion,
        {o.setting: o.point for o in completed},
        {name: stock.federation(name).sizes("valid").numpy() for name in stock.data},
        cost_of(all_runs, clients, seconds),
        tuple(o.row(criterion) for o in outcomes if o.pruned or o.error),
        importance,
    )
