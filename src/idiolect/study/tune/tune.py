"""Choose settings on validation data, then train with them on fresh seeds and test."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Unpack

from ...core.documents import plain
from ...core.files import private_folder, read_json, write_json
from ...core.knobs import SettingError, build
from ...data.federation import Federation
from ...method import Method
from ...methods import label_of
from ...run.plan import AnyMethod, AnyModel, Plan, read_task
from ...run.settings import Settings
from ...run.typed_settings import RunSettings
from ...task.task import Task
from ..compare import Reporter, compare
from ..comparison import Comparison, refuse_taken
from ..manifest import COMPARE
from ..sweep import Stock
from ..sweep.sweep import MANIFEST as OF_A_SWEEP
from ..sweep.sweep import Watch
from .contender import Contender, read_contenders
from .how import How, read_how
from .search import Search, search
from .study import study_search
from .tuned import Tuned
from .withheld import check_validation_data

MANIFEST = "tune.json"
FINAL = "final"
SEARCH = "search"
FORMAT = 1
Follow = Callable[[int], AbstractContextManager[Reporter]]  # rounds of all final runs -> progress


def tune(
    methods: AnyMethod | Plan | Sequence[AnyMethod | Plan],
    task: AnyModel,
    federation: Federation,
    *,
    grid: str | Mapping[str, Any] | Iterable[str] | None = None,
    space: Mapping[str, Any] | str | Path | None = None,
    trials: int | None = None,
    criterion: str = "pooled",
    search_seeds: int = 1,
    jobs: int = 0,
    directory: str | Path | None = None,
    watch: Watch | None = None,
    follow: Follow | None = None,
    **settings: Unpack[RunSettings],
) -> Tuned:
    """The best settings of each method by validation data, and a final run with them.

    What is tried: `grid`, the grid of a paper ("paper": whichever has the method; "lp-proj",
    "ffgg", "feddeper") or names with lists of values; or `trials` settings of a `space`, names
    with {"low", "high", "log"} or lists, proposed by Optuna; without a space, one is derived from
    the fields of the method. Fields that a method is given with are not varied.

    Settings are chosen by the validation data of `search_seeds` seeds from `seed` on, by
    `criterion`: the chosen metric (accuracy, or the loss of a regression) "pooled" over all
    samples, as a mean over "clients", or over the worst tenth of them, "worst10". The search has no
    test data. The final run has the `seeds` that come after, with Local at equal gradients beside.

    The grid is spread over `jobs` processes (0: as many as cores); trials come one after the
    other unless jobs are given. With a directory, a tuning that was stopped goes on where it was.

    >>> import torch
    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> tuned = il.tune("fedavg", torch.nn.Linear(60, 10), federation,
    ...                 grid={"lr": [0.001, 0.3]}, jobs=1, rounds=5)
    >>> method, run = tuned.best
    >>> method.lr, run["seed"], [row["lr"] for row in tuned.rows()]
    (0.3, 1, [0.3, 0.001])
    """
    whole, _ = read_task(task, federation)
    given = [methods] if isinstance(methods, str | Method | Plan | type) else list(methods)
    how = read_how(grid, space, trials, criterion, search_seeds)
    contenders = read_contenders(given, dict(settings))
    told = [c.name if c.base is None else label_of(c.base) for c in contenders]
    where = None if directory is None else Path(directory)
    chosen = repr(build(Settings, dict(settings), "run"))
    manifest = {"methods": told, "settings": chosen, "data": federation.fingerprint()}
    work = Work(contenders, whole, federation, how, dict(settings), jobs, where, watch, follow)
    return work.run(manifest)


def tune_plans(
    plans: Sequence[Plan],
    how: How,
    federation: Federation,
    *,
    jobs: int = 0,
    directory: Path | None = None,
    watch: Watch | None = None,
    follow: Follow | None = None,
) -> Tuned:
    """The same for plans, whose data and model have names; all have the same."""
    settings = plans[0].settings
    contenders = read_contenders(plans, settings)
    first = next(c.plan for c in contenders if c.plan)
    task = first.make_task(federation)
    manifest = {"plans": [plan.as_dict() for plan in plans]}
    work = Work(contenders, task, federation, how, settings, jobs, directory, watch, follow)
    return work.run(manifest)


@dataclasses.dataclass(frozen=True)
class Work:
    """One tuning: a search for every method, then one comparison."""

    contenders: list[Contender]
    task: Task
    federation: Federation
    how: How
    settings: dict[str, Any]  # that all methods share
    jobs: int
    directory: Path | None
    watch: Watch | None
    follow: Follow | None

    def run(self, manifest: Mapping[str, Any]) -> Tuned:
        check_validation_data(self.federation)
        spaces = self.how.check(self.contenders)
        first = build(Settings, self.settings, "run")
        many = self.how.search_seeds
        seeds = {
            "search": list(range(first.seed, first.seed + many)),
            "final": list(range(first.seed + many, first.seed + many + first.seeds)),
        }
        jobs = (self.jobs or 1) if spaces else self.jobs
        self._begin({**manifest, **self.how.as_dict(), **({"jobs": jobs} if spaces else {})})
        if spaces:
            searches = {
                c.name: self._study(c, spaces[c.name], seeds["search"], jobs, i)
                for i, c in enumerate(self.contenders)
            }
        else:
            found = self._grid(seeds["search"])
            searches = dict.fromkeys((c.name for c in self.contenders), found)
        fresh = {"seed": seeds["final"][0], "seeds": first.seeds}
        settings = {"threads": 1, **self.settings, **fresh}  # computed as in the search
        tuned = Tuned(self.contenders, searches, seeds, settings, Comparison([], []))
        if self.directory is not None:
            tuned.write_choice(self.directory)
        tuned = dataclasses.replace(tuned, comparison=self._final(searches, settings))
        if self.directory is not None:
            tuned.write(self.directory)
        return tuned

    @property
    def stock(self) -> Stock:
        return Stock({"": self.federation}, {"": self.task})

    def _grid(self, seeds: list[int]) -> Search:
        points = []
        for contender in self.contenders:
            if self.how.paper:
                points += contender.of_paper(self.how.paper, self.task.d)
            else:
                points += contender.of_axes(self.how.axes)
        folder = None if self.directory is None else self.directory / SEARCH
        return search(
            points,
            self.stock,
            seeds,
            self.how.criterion,
            jobs=self.jobs,
            directory=folder,
            watch=self.watch,
        )

    def _study(
        self, contender: Contender, space: Any, seeds: list[int], jobs: int, number: int
    ) -> Search:
        folder = None if self.directory is None else self.directory / f"{SEARCH}-{number}"
        return study_search(
            contender,
            space,
            self.how.trials,
            self.stock,
            seeds,
            self.how.criterion,
            jobs=jobs,
            directory=folder,
            watch=self.watch,
        )

    def _final(self, searches: Mapping[str, Search], settings: dict[str, Any]) -> Comparison:
        rows = [c.final_row(searches[c.name].best(c.name), settings) for c in self.contenders]
        folder = None if self.directory is None else self.directory / FINAL
        begun = folder is not None and (folder / COMPARE).exists()
        every = [build(Settings, {**settings, **row.own}, "run") for row in rows]
        rounds = [s.seeds * s.rounds for s in every]
        total = sum(rounds) + rounds[0]  # with Local at equal compute
        with self.follow(total) if self.follow else nullcontext() as report:
            return compare(
                rows,  # type: ignore[arg-type]  # it takes rows too
                self.task,
                self.federation,
                directory=folder,
                resume=begun,
                report=report,
                progress=False,
                **settings,
            )

    def _begin(self, manifest: Mapping[str, Any]) -> None:
        """The directory says what is tuned; it goes on with the same tuning only."""
        if self.directory is None:
            return
        path = self.directory / MANIFEST
        now = {"format": FORMAT, **plain(dict(manifest))}
        if path.exists():
            if read_json(path) != _through_json(now):
                raise SettingError(
                    f"directory: {self.directory} holds another tuning; choose another directory, "
                    "or give the settings that it was started with"
                )
            return
        refuse_taken(self.directory)
        if (self.directory / OF_A_SWEEP).exists():
            raise SettingError(f"directory: {self.directory} holds a sweep; choose another")
        try:
            private_folder(self.directory)
            write_json(path, _through_json(now))
        except OSError as error:
            raise SettingError(
                f"directory: cannot write to {self.directory}: {error.strerror or error}"
            ) from None


def _through_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
