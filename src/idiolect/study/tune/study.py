"""A search in a space, by Optuna: TPE proposes settings, a median pruner stops hopeless ones.

What is stored are the results of runs, not Optuna's own state. A study that was stopped begins
anew with the same seed, proposes the same settings, and finds their results stored: it comes to
where it was, and on to what it would have been.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.knobs import build
from ...run.settings import Settings
from ...run.validate import check
from ..many import finish
from ..sweep import Setting, Stock
from ..sweep.sweep import Watch, folder_for, shared_by
from ..sweep.trial import Trial
from .contender import Contender
from .pruned import Curve, PrunedTrial, need_optuna, quiet, watched
from .search import KEEP, Search, prepared, searched
from .space import Range, Space, written_space
from .told import Told, found, importance_of, tell

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
