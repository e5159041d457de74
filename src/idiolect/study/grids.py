"""The grids of papers: TOML files of packages that register them, as idiolect_papers does.

A package registers its files grids/PAPER.toml by an entry point of the group `idiolect.grids`,
`package:NAMES`: the names of the papers, of which the first one that has a method comes first.

>>> [name for name in papers()]
['lp-proj', 'ffgg', 'feddeper']
>>> fields, run = paper_grid("lp-proj", "qsgd", d=610)[0]
>>> fields["lr"], run
(0.05, {'channel': 'qsgd(levels=5, bucket=500, norm=inf)'})
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module, resources
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from ..core.knobs import SettingError, build, nearest
from ..method import Method
from ..methods import METHODS, label_of, make_method, name_of
from ..run.plan import AnyMethod, Plan, read_method, row_spec
from ..run.settings import Settings
from ..task.task import Task
from .compare import Row
from .space import Axis, combinations
from .sweep import Setting

ANY = "paper"  # whichever of them has the method
_PART = re.compile(r"\s*([0-9.e-]+) ([dT])\s*")  # "0.02 d": a part of the model's size, or of T


@dataclass(frozen=True)
class GridPoint:
    """One candidate."""

    fields: dict[str, Any]  # of the method
    run: dict[str, Any]
    varied: dict[str, Any]  # what tells it from the others


@dataclass(frozen=True)
class PaperGrid:
    """The candidates of one method in one paper."""

    source: str  # the paper and the place in it
    name: str  # of the paper's method: a compressor is FedAvg through a channel
    method: str
    fields: dict[str, Any] = field(default_factory=dict)  # the same for all candidates
    run: dict[str, Any] = field(default_factory=dict)
    letters: dict[str, str] = field(default_factory=dict)  # our field -> the paper's name for it
    grid: dict[str, list[Any]] = field(default_factory=dict)
    settings: list[dict[str, Any]] = field(default_factory=list)  # or a list, where it is no grid

    def points(
        self, d: int, rounds: int = 200, fixed_fields: Mapping[str, Any] | None = None
    ) -> list[GridPoint]:
        """All candidates for a model of d numbers; `fixed_fields` are not varied."""
        candidates = []
        fixed = dict(fixed_fields or {})
        axes = {name: values for name, values in self.grid.items() if name not in fixed}
        columns = self.settings or [{}]
        for column, values in itertools.product(columns, itertools.product(*axes.values())):
            choice = dict(zip(axes, values, strict=True))
            choice = {name: _size(value, d, rounds) for name, value in choice.items()}
            every = {k: v for k, v in column.items() if k != "of"} | choice
            runs = {n: v for n, v in {**self.run, **every}.items() if n in _RUN}
            own = {n: v for n, v in every.items() if n not in _RUN and n not in _used(self.run)}
            filled = {n: _filled(v, every, d, rounds) for n, v in runs.items()}
            varied = ({"settings of": column["of"]} if column else {}) | choice
            candidates.append(GridPoint({**self.fields, **own, **fixed}, filled, varied))
        return candidates


_RUN = {f.name for f in fields(Settings)}


@cache
def _packages() -> dict[str, str]:
    """Paper -> the package that has its grid; the papers of a package in the package's order."""
    packages = {
        paper: entry.module
        for entry in sorted(entry_points(group="idiolect.grids"), key=lambda e: e.name)
        for paper in entry.load()
    }
    if not packages and find_spec("idiolect_papers"):  # in a source tree that is not installed
        papers_package = import_module("idiolect_papers")
        packages = dict.fromkeys(papers_package.GRIDS, papers_package.__name__)
    return packages


def papers() -> dict[str, dict[str, PaperGrid]]:
    """All grids: paper -> the paper's method -> its candidates."""
    return {paper: _read(paper) for paper in _packages()}


@cache
def _read(paper: str) -> dict[str, PaperGrid]:
    text = resources.files(_packages()[paper]).joinpath("grids", f"{paper}.toml").read_text("utf-8")
    content = tomllib.loads(text)
    source = content.pop("paper")
    return {name: PaperGrid(source, name, **entry) for name, entry in content.items()}


def grid_of(paper: str, name: str) -> PaperGrid:
    """The grid of a method in a paper; with "paper" that of the first paper that has it.

    >>> grid_of("paper", "ditto").grid["lam"]
    [0.1, 1.0, 10.0]
    """
    if paper not in (*_packages(), ANY):
        raise nearest(paper, (*_packages(), ANY), "grid of a paper")
    for one in _packages() if paper == ANY else (paper,):
        if name in _read(one):
            return _read(one)[name]
    which = "no paper has" if paper == ANY else f"the grid of {paper} has not"
    listing = "; ".join(f"{one}: {', '.join(_read(one))}" for one in _packages())
    raise SettingError(
        f"grid: {paper!r} is not accepted for {name}, which {which}; the grids of papers are "
        f"{listing}. Give a grid of your own (--grid lr=0.01,0.1), a --space, or --trials"
    )


def is_compressor(name: str) -> bool:
    """Whether a paper's grid has it under another name: FedAvg through a channel."""
    return any(name in grids and grids[name].method != name for grids in papers().values())


def paper_grid(
    paper: str, method: str, d: int, rounds: int = 200
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The candidates as (fields of the method, settings of the run).

    The method is that of `grid_of(paper, method).method`: "fedavg" for a compressor.

    >>> len(paper_grid("lp-proj", "lp-proj-1", d=610)), len(paper_grid("lp-proj", "sketch", d=610))
    (54, 24)
    """
    return [(point.fields, point.run) for point in grid_of(paper, method).points(d, rounds)]


def paper_settings(
    paper: str,
    name: str,
    task: Task,
    run: Mapping[str, Any],
    fields: Mapping[str, Any] | None = None,
    *,
    data: str = "",
    task_name: str = "",
) -> list[Setting]:
    """The candidates as settings that `search` takes, in a group called by the paper's method.

    `run` are the settings that all share, `fields` those of the method that are not to be varied;
    `data` and `task_name` are names of the stock.
    """
    grid = grid_of(paper, name)
    rounds = int(run.get("rounds", Settings().rounds))
    return [
        Setting(
            make_method(grid.method, **point.fields),
            {**run, **point.run},
            data,
            task_name,
            name,
            point.varied,
        )
        for point in grid.points(task.d, rounds, fields)
    ]


def _size(value: Any, d: int, rounds: int) -> Any:
    """ "0.02 d" as a whole number, at least 1; anything else as it is."""
    part = _PART.fullmatch(value) if isinstance(value, str) else None
    if part is None:
        return value
    return max(1, round(float(part[1]) * (d if part[2] == "d" else rounds)))


def _used(run: Mapping[str, Any]) -> set[str]:
    """The names that stand in braces in texts."""
    return {name for v in run.values() if isinstance(v, str) for name in re.findall(r"{(\w+)}", v)}


def _filled(value: Any, values: Mapping[str, Any], d: int, rounds: int) -> Any:
    """A text with what stands in its braces: a chosen value, or a part of d or T."""
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        inside = match[1]
        return str(values[inside] if inside in values else _size(inside, d, rounds))

    return re.sub(r"{([^}]+)}", fill, value)


@dataclass(frozen=True, eq=False)
class Contender:
    """One method of a tuning."""

    name: str  # in tables
    row: str  # what papers' grids have it under
    method: str  # its name in the table of methods
    given: dict[str, Any]  # fields that the user gave: they are not varied
    shared: dict[str, Any]  # settings of the runs of all methods
    own: dict[str, Any] = field(default_factory=dict)  # those of this one alone; they win
    plan: Plan | None = None  # where data and model have names too
    base: Method | None = None  # an object of the user's
    points: dict[Setting, GridPoint] = field(default_factory=dict)  # all candidates so far

    @property
    def kind(self) -> type[Method]:
        return type(self.base) if self.base is not None else METHODS.find(self.method)[0]

    def make(self, fields: Mapping[str, Any]) -> Method:
        """The method with these fields."""
        if self.base is not None:
            return build(type(self.base), {**self.base.as_dict(), **fields}, self.name)
        return make_method(self.method, **fields)

    def setting(self, point: GridPoint) -> Setting:
        """A candidate as a setting that can be run."""
        setting = Setting(
            self.make(point.fields),
            {**self.shared, **self.own, **point.run},
            "",
            "",
            self.name,
            point.varied,
        )
        self.points[setting] = point
        return setting

    def of_paper(self, paper: str, d: int) -> list[Setting]:
        """The candidates of a paper's grid."""
        rounds = build(Settings, {**self.shared, **self.own}, "run").rounds
        points = grid_of(paper, self.row).points(d, rounds, self.given)
        return [self.setting(point) for point in points]

    def of_axes(self, axes: Sequence[Axis]) -> list[Setting]:
        """Every combination of the axes that this method has."""
        settings = []
        for choice in combinations(axes, self.kind):
            named = {axis.name: value for axis, value in choice.items()}
            settings.append(self.setting(self.point(named)))
        return settings

    def point(self, values: Mapping[str, Any]) -> GridPoint:
        """A candidate from values by name: of fields of the method, or of settings of the run."""
        places = {name: Axis(name, ()) for name in values}
        fields = {a.key: values[n] for n, a in places.items() if a.place(self.kind) == "method"}
        run = {a.key: values[n] for n, a in places.items() if a.place(self.kind) == "run"}
        return GridPoint({**self.given, **fields}, run, dict(values))

    def final_row(self, setting: Setting, settings: Mapping[str, Any]) -> Row:
        """What the final run runs; `settings` are those that all methods share."""
        own = {**self.own, **self.points[setting].run}
        note = "".join(f" {name}={value}" for name, value in own.items())
        return Row(setting.method, own, note, self.origin(setting, settings), self.row)

    def origin(self, setting: Setting, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The final run by names, where data and model have some."""
        if self.plan is None:
            return None
        point = self.points[setting]
        return dataclasses.replace(
            self.plan,
            method_fields=dict(point.fields),
            settings=dict(settings),
            own={**self.own, **point.run},
        ).as_dict()


def read_contender(spec: AnyMethod | Plan, settings: Mapping[str, Any]) -> Contender:
    """From a method, its class, a text such as "lp-proj:p=1", or a plan."""
    if isinstance(spec, str):
        name, fields, own = _spec(spec)
        return _named(name, fields, settings, own)
    if isinstance(spec, Plan):
        contender = _named(spec.method, spec.method_fields, settings, spec.own)
        method = grid_of("paper", spec.method).method if is_compressor(spec.method) else None
        plan = dataclasses.replace(spec, method=method) if method else spec
        return dataclasses.replace(contender, plan=plan)
    method_object = read_method(spec)
    changed = {
        f.name: method_object.as_dict()[f.name]
        for f in dataclasses.fields(method_object)
        if f.metadata and getattr(method_object, f.name) != f.default
    }
    return Contender(
        label_of(method_object),
        name_of(method_object),
        name_of(method_object),
        changed,
        dict(settings),
        base=method_object,
    )


def _spec(text: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    name, colon, rest = text.partition(":")
    if not is_compressor(name):
        return row_spec(text)
    _, fields, own = row_spec(f"{grid_of('paper', name).method}{colon}{rest}")
    return name, fields, own


def _named(
    name: str, fields: Mapping[str, Any], shared: Mapping[str, Any], own: Mapping[str, Any]
) -> Contender:
    method = grid_of("paper", name).method if is_compressor(name) else name
    METHODS.find(method)
    label = " ".join([name, *(f"{key}={value}" for key, value in {**fields, **own}.items())])
    return Contender(label, name, method, dict(fields), dict(shared), dict(own))


def read_contenders(
    specs: Sequence[AnyMethod | Plan], settings: Mapping[str, Any]
) -> list[Contender]:
    """All of them, each once."""
    contenders = [read_contender(one, settings) for one in specs]
    if not contenders:
        raise SettingError("methods: none were given; at least one is needed")
    names = [contender.name for contender in contenders]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"methods: {name} is given twice")
    return contenders
