"""How to search: a paper's grid, a grid of one's own, or trials in a space."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from ..core.documents import expect_fields, plain
from ..core.files import private_folder, read_json, write_json
from ..core.knobs import SettingError, build
from ..data.federation import Federation
from ..method import Method
from ..methods import label_of
from ..run.plan import AnyMethod, AnyModel, Plan, read_task
from ..run.settings import Settings
from ..run.typed_settings import RunSettings
from ..task.task import Task
from .compare import Reporter, compare
from .comparison import Comparison, refuse_taken
from .grids import ANY, Contender, papers, read_contenders
from .manifest import COMPARE
from .results import SWEEP
from .search import Search, check_validation_data, search_settings
from .space import (
    Axis,
    Space,
    check_axes,
    derived_space,
    read_axes,
    read_file,
    read_space,
)
from .sweep import Stock, Watch
from .tpe import need_optuna, study_search
from .tuning import Tuned

TRIALS = 50  # in a space, by default


@dataclass(frozen=True)
class How:
    """What is searched, by what it is chosen, and under how many seeds."""

    paper: str = ""  # "paper", "lp-proj", ...; or
    axes: tuple[Axis, ...] = ()  # a grid of one's own; or
    space: Mapping[str, Any] | None = None  # a space of one's own, or derived ones, and
    trials: int = 0
    criterion: str = "pooled"
    search_seeds: int = 1

    def check(self, contenders: list[Contender]) -> dict[str, Space]:
        """Refuse what no method has; the spaces of the methods, where spaces are searched."""
        for contender in contenders:
            if contender.row != contender.method and not self.paper and contender.base is None:
                raise SettingError(
                    f"methods: {contender.row} is FedAvg through a channel, and known by that name "
                    "to a paper's grid alone; write fedavg:channel=... for another search"
                )
        if self.axes:
            check_axes(self.axes, [c.kind for c in contenders])
        if not self.trials:
            return {}
        need_optuna()
        if self.space is None:
            return {c.name: derived_space(c.kind, c.given) for c in contenders}
        whole = read_space(self.space, [c.kind for c in contenders])
        spaces = {}
        for c in contenders:
            mine = {name: e for name, e in whole.items() if Axis(name, ()).place(c.kind)}
            if not mine:
                raise SettingError(f"space: nothing in it is a field of {c.name}")
            spaces[c.name] = mine
        return spaces

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for the directory of a tuning; the inverse is `How.read`."""
        return plain(
            {
                "grid": self.paper or {axis.name: list(axis.values) for axis in self.axes},
                "space": None if self.space is None else dict(self.space),
                "trials": self.trials,
                "criterion": self.criterion,
                "search_seeds": self.search_seeds,
            }
        )

    @classmethod
    def read(cls, saved: dict[str, Any], where: str) -> How:
        """The inverse of `as_dict`, of unknown origin."""
        hints = {
            "grid": str | dict[str, list[Any]],
            "space": dict[str, Any] | None,
            "trials": int,
            "criterion": str,
            "search_seeds": int,
        }
        fields = {name: saved.get(name) for name in hints}
        try:
            expect_fields(fields, hints)
        except ValueError as error:
            raise SettingError(f"{where}: {error}") from None
        fields |= {"grid": None} if fields["trials"] else {"trials": None}
        return read_how(**fields)  # type: ignore[arg-type]


def read_how(
    grid: str | Mapping[str, Any] | Iterable[str] | None = None,
    space: Mapping[str, Any] | str | Path | None = None,
    trials: int | None = None,
    criterion: str = "pooled",
    search_seeds: int = 1,
) -> How:
    """What the user asked for; a paper's grid where nothing was asked for.

    >>> read_how().paper, read_how("lp-proj").paper, read_how(trials=20).trials
    ('paper', 'lp-proj', 20)
    """
    for name, number in (
        ("search_seeds", search_seeds),
        ("trials", 1 if trials is None else trials),
    ):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise SettingError(f"{name}: {number!r} is not accepted; a whole number >= 1")
    if grid is not None and (space is not None or trials):
        raise SettingError(
            "grid: not accepted together with a space or trials; a grid is tried as a whole"
        )
    texts = [grid] if isinstance(grid, str) else grid
    if space is not None or trials:
        entries = None if space is None else _plain_space(space)
        return How(
            space=entries,
            trials=trials or TRIALS,
            criterion=criterion,
            search_seeds=search_seeds,
        )
    if texts is None:
        return How(ANY, criterion=criterion, search_seeds=search_seeds)
    if not isinstance(texts, Mapping):
        texts = list(texts)
        named = [text for text in texts if "=" not in str(text)]
        if named and len(texts) == 1:
            return How(str(named[0]), criterion=criterion, search_seeds=search_seeds)
        if named:
            raise SettingError(
                f"grid: {named[0]!r} is not accepted together with another one; either the grid "
                f"of a paper ({', '.join((ANY, *papers()))}) or your own, NAME=VALUE,VALUE,..."
            )
    axes = tuple(read_axes(texts))
    if not axes:
        raise SettingError("grid: it is empty; NAME=VALUE,VALUE,... or the name of a paper")
    for axis in axes:
        if axis.part in ("data", "model"):
            raise SettingError(
                f"grid: {axis.name} is not accepted; settings are chosen for one federation and "
                "one model"
            )
    return How("", axes, criterion=criterion, search_seeds=search_seeds)


def _plain_space(space: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """The space by value: a file may change before a tuning is resumed."""
    return dict(space) if isinstance(space, Mapping) else read_file(Path(space))


TUNING = "tune.json"
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
    test data. The final run has the `seeds` that come after, and includes Local at equal
    gradients.

    The grid is spread over `jobs` processes (0: as many as cores); trials come one after the
    other unless jobs are given. With a directory, an interrupted tuning is resumed.

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
    specs = [methods] if isinstance(methods, str | Method | Plan | type) else list(methods)
    how = read_how(grid, space, trials, criterion, search_seeds)
    contenders = read_contenders(specs, dict(settings))
    names = [c.name if c.base is None else label_of(c.base) for c in contenders]
    where = None if directory is None else Path(directory)
    run_settings = repr(build(Settings, dict(settings), "run"))
    manifest = {"methods": names, "settings": run_settings, "data": federation.fingerprint()}
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
            search_result = self._grid(seeds["search"])
            searches = dict.fromkeys((c.name for c in self.contenders), search_result)
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
        return search_settings(
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
        """Describe the tuning in its directory; only the same tuning is resumed there."""
        if self.directory is None:
            return
        path = self.directory / TUNING
        now = {"format": FORMAT, **plain(dict(manifest))}
        if path.exists():
            if read_json(path) != _through_json(now):
                raise SettingError(
                    f"directory: {self.directory} holds another tuning; choose another directory, "
                    "or give the settings that it was started with"
                )
            return
        refuse_taken(self.directory)
        if (self.directory / SWEEP).exists():
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
