"""A run of a study that is stopped when it is hopeless, by its validation data."""

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
from ..host.metrics import direction
from ..run.callbacks import Moment
from ..run.settings import Settings
from ..run.validate import check
from .grids import Contender
from .many import finish
from .results import Sweep
from .search import AT_THE_END, KEEP, Criterion, Search, cost_of, prepared, searched
from .space import Range, Space, written_space
from .sweep import Setting, Stock, Trial, Watch, folder_for, shared_by

STARTUP = 5  # trials that are never stopped
LOOKS = 10  # evaluated rounds per run
NEVER = 2**31  # evaluations without a better one: it makes a run look at validation data

Curve = dict[int, float]  # rounds done -> the figure on validation data


@dataclass(frozen=True, eq=False)
class PrunedTrial(Trial):
    """A trial that Optuna's median pruner watches.

    It is stopped at an evaluated round where the best it has reached is worse than the median of
    what earlier trials had at that round. `earlier` are the finished ones, so that a worker process
    decides as this one would.
    """

    study: str = ""  # a digest of the space: the same setting is another trial in another study
    earlier: tuple[Curve, ...] = ()

    def key(self) -> str:
        return f"{super().key()}-{self.study}"

    def train(self) -> dict[str, Any]:
        settings = build(Settings, self.setting.settings(self.seed), "run")
        study = begun_study(settings, self.earlier)
        trial = study.ask()
        curve: Curve = {}

        def look(moment: Moment) -> None:
            value = moment.figures[f"valid_{settings.watched}"]
            if math.isnan(value):
                return
            curve[moment.round] = value
            trial.report(value, moment.round)
            if trial.should_prune():
                moment.stop()

        with quiet():
            found = self.trained(look)
        pruned = found["stopped"] == ["callback"]
        return {
            **found,
            "curve": [[step, value] for step, value in curve.items()],
            "pruned": pruned,
        }


def begun_study(settings: Settings, earlier: tuple[Curve, ...]) -> Any:
    """A study that knows what earlier trials had at each round."""
    optuna = need_optuna()
    higher = direction(settings.watched, settings.metrics)
    pruner = optuna.pruners.MedianPruner(STARTUP, settings.rounds // 5)
    with quiet():
        study = optuna.create_study(
            direction="maximize" if higher else "minimize",
            sampler=optuna.samplers.RandomSampler(seed=0),
            pruner=pruner,
        )
        for curve in earlier:
            if curve:
                last = curve[max(curve)]
                study.add_trial(optuna.trial.create_trial(value=last, intermediate_values=curve))
    return study


def watched(point: Setting, measure: str) -> Setting:
    """The same training, with a look at validation data every tenth of its rounds."""
    run = {name: value for name, value in point.run.items() if name not in AT_THE_END}
    settings = build(Settings, point.settings(0), "run")
    if not settings.patience:
        every = max(1, settings.rounds // LOOKS)
        run |= {"eval_every": every, "patience": NEVER, "patience_metric": measure}
    return replace(point, run=run)


def need_optuna() -> Any:
    """Optuna, which is an optional part."""
    try:
        import optuna
    except ImportError:
        raise SettingError(
            "trials: Optuna is not installed, and it does this search; "
            "pip install 'idiolect[tune]', or give a grid"
        ) from None
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna says nothing of its own in here."""
    logging = need_optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


# -- Trials of a study: what came of them, for Optuna and for people --

ENOUGH = 10  # finished trials from which on importance is estimated


@dataclass
class Told:
    """One trial of the study and what came of it."""

    trial: Any  # Optuna's
    point: Setting
    setting: Setting  # as it is searched
    runs: list[tuple[Trial, dict[str, Any]]] = field(default_factory=list)
    why: str = ""  # it failed

    @property
    def pruned(self) -> bool:
        return bool(self.runs) and self.runs[0][1]["pruned"]

    @property
    def curve(self) -> Curve:
        return {int(step): value for step, value in self.runs[0][1]["curve"]}


def tell(study: Any, one: Told, figure_of: Any) -> str:
    """The outcome, for Optuna; in words, for people."""
    optuna = need_optuna()
    if one.runs:
        for step, value in one.curve.items():
            one.trial.report(value, step)
    figures = [figure_of(outcome) for _, outcome in one.runs]
    if one.why or None in figures:
        study.tell(one.trial, state=optuna.trial.TrialState.FAIL)
        return f"failed: {one.why or 'no finite figure'}"
    if one.pruned:
        study.tell(one.trial, state=optuna.trial.TrialState.PRUNED)
        return "stopped early"
    mean = sum(figures) / len(figures)
    study.tell(one.trial, mean)
    return f"{mean:.4f}"


def importance_of(study: Any) -> dict[str, float]:
    """fANOVA's; empty where too few trials were finished to tell."""
    optuna = need_optuna()
    done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    if len(done) < ENOUGH or len({trial.value for trial in done}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}


def found(
    told: Sequence[Told],
    criterion: Criterion,
    stock: Stock,
    shares: dict[str, float],
    seconds: float,
) -> Search:
    """The search that the trials are; those that were stopped or failed are lines of its table."""
    whole = [one for one in told if one.runs and not one.why]
    done: dict[Trial, dict[str, Any]] = {}
    for one in whole:
        if not one.pruned:
            for trial, outcome in one.runs:  # all seeds of a trial are one setting
                done[Trial(one.setting, trial.seed, trial.digest)] = outcome
    if not done:
        why = next((one.why for one in told if one.why), "all were stopped early")
        raise SettingError(f"tune: no trial was finished: {why}")
    spent = Sweep({trial: outcome for one in whole for trial, outcome in one.runs})
    clients = {name: stock.federation(name).clients for name in stock.data}
    samples = {name: stock.federation(name).sizes("valid").numpy() for name in stock.data}
    points = {one.setting: one.point for one in whole}
    lines = tuple(_line(one, criterion) for one in told if one.pruned or one.why)
    return Search(
        Sweep(done), criterion, points, samples, cost_of(spent, clients, seconds), lines, shares
    )


def _line(one: Told, criterion: Criterion) -> dict[str, Any]:
    line: dict[str, Any] = {"method": one.point.name, **one.point.varied}
    if one.why:
        return {**line, "tied": False, "stopped": one.why}
    summary: Mapping[str, Any] = one.runs[0][1]
    return {
        **line,
        "valid": criterion.figure(summary),
        "tied": False,
        "gradients_per_client": summary["gradients_per_client"],
        "rounds": summary["rounds"],
        "stopped": "early",
    }


# -- A search in a space, by Optuna: TPE proposes settings, a median pruner stops hopeless ones --

AHEAD = 4  # trials per worker process that are proposed at a time; starting a process takes seconds


@dataclass
class Slot:
    """A place for a trial in the progress: which one it will be is not known before."""

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
    probe = contender.setting(contender.point(_first(space)))
    chosen, hidden = prepared([probe], stock, criterion)
    _check_ends(contender, space, hidden)
    optuna = need_optuna()
    sampler = optuna.samplers.TPESampler(seed=seeds[0], constant_liar=jobs > 1)
    with quiet():
        study = optuna.create_study(
            direction="maximize" if chosen.higher else "minimize", sampler=sampler
        )
    work = _Work(contender, space, hidden, seeds, chosen.measure, _digest(space, seeds, jobs))
    rounds = build(Settings, probe.settings(0), "run").rounds * len(seeds)
    slots = [Slot(rounds) for _ in range(trials)]
    told: list[Told] = []
    manifest = {"space": written_space(space), "trials": trials, "jobs": jobs}
    sample = [Trial(probe, seeds[0], "")] * 2
    with (
        quiet(),
        folder_for(directory, manifest) as path,
        shared_by(hidden, jobs, sample) as share,
        watch(slots) if watch else nullcontext() as bar,  # type: ignore[arg-type]
    ):
        if bar:
            bar.report({}, None)
        while len(told) < trials:
            many = min(AHEAD * jobs if jobs > 1 else 1, trials - len(told))
            earlier = tuple(t.curve for t in told if t.runs and not t.pruned)
            for one in work.batch(study, many, earlier, path, jobs, share):
                told.append(one)
                figure = tell(study, one, chosen.figure)
                if bar:
                    slot = slots[len(told) - 1]
                    slot.text = f"{one.point.label}: {figure}"
                    bar.report(dict.fromkeys(slots[: len(told)]), slot)
        shares = importance_of(study)
    return found(told, chosen, hidden, shares, time.monotonic() - began)


@dataclass(frozen=True)
class _Work:
    """Runs what a study proposes."""

    contender: Contender
    space: Space
    stock: Stock
    seeds: Sequence[int]
    measure: str
    study: str  # a digest

    def batch(
        self, study: Any, many: int, earlier: tuple[Curve, ...], path: Path, jobs: int, share: Stock
    ) -> list[Told]:
        """Some trials: the first seed may be stopped; the others are run where it was not."""
        asked = [self._ask(study) for _ in range(many)]
        first = {self._first(one, earlier): one for one in asked}
        self._run(first, path, jobs, share)
        others = {
            Trial(searched(one.setting), seed, self._digest(one.setting), KEEP): one
            for one in asked
            if one.runs and not one.pruned
            for seed in self.seeds[1:]
        }
        self._run(others, path, jobs, share)
        return asked

    def _ask(self, study: Any) -> Told:
        trial = study.ask()
        point = self.contender.setting(self.contender.point(_suggested(trial, self.space)))
        return Told(trial, point, watched(point, self.measure))

    def _first(self, one: Told, earlier: tuple[Curve, ...]) -> Trial:
        digest = self._digest(one.setting)
        return PrunedTrial(one.setting, self.seeds[0], digest, KEEP, self.study, earlier)

    def _digest(self, setting: Setting) -> str:
        return setting.digest(self.stock.tasks[setting.task], self.stock.federation(setting.data))

    def _run(self, owners: dict[Trial, Told], path: Path, jobs: int, share: Stock) -> None:
        def failed(trial: Trial, error: Exception) -> None:
            owners[trial].why = f"{type(error).__name__}: {error}"

        done = finish(list(owners), path, jobs, None, share, failed)
        for trial, outcome in done.items():
            owners[trial].runs.append((trial, outcome))


def _first(space: Space) -> dict[str, Any]:
    return {name: e.ends()[0] if isinstance(e, Range) else e[0] for name, e in space.items()}


def _suggested(trial: Any, space: Space) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, entry in space.items():
        if not isinstance(entry, Range):
            # Optuna wants choices that are the same when they are read again
            found[name] = entry[trial.suggest_categorical(name, list(range(len(entry))))]
        elif entry.whole:
            found[name] = trial.suggest_int(name, *entry.ends(), log=entry.log)
        else:
            value = trial.suggest_float(name, *entry.ends(), log=entry.log)
            found[name] = min(max(float(f"{value:.4g}"), entry.low), entry.high)
    return found


def _check_ends(contender: Contender, space: Space, stock: Stock) -> None:
    """Refuse, before anything runs, a range or choice that the method or the run does not take."""
    for name, entry in space.items():
        for value in entry.ends() if isinstance(entry, Range) else entry:
            point = contender.setting(contender.point({**_first(space), name: value}))
            settings = build(Settings, point.settings(0), "run")
            check(point.method, stock.tasks[""], stock.federation(""), settings)


def _digest(space: Space, seeds: Sequence[int], jobs: int) -> str:
    text = json.dumps([written_space(space), list(seeds), jobs], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
