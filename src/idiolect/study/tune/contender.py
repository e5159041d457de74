"""A method to be tuned: what is given for it, and the candidates among which to choose."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.knobs import SettingError, build
from ...method import Method
from ...methods import METHODS, label_of, make_method, name_of
from ...run.plan import AnyMethod, Plan, read_method, row_spec
from ...run.settings import Settings
from ..compare import Row
from ..sweep import Setting
from ..sweep.axes import Axis, combinations
from .grids import Point, grid_of, is_compressor


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
    points: dict[Setting, Point] = field(default_factory=dict)  # all candidates so far

    @property
    def kind(self) -> type[Method]:
        return type(self.base) if self.base is not None else METHODS.find(self.method)[0]

    def make(self, fields: Mapping[str, Any]) -> Method:
        """The method with these fields."""
        if self.base is not None:
            return build(type(self.base), {**self.base.as_dict(), **fields}, self.name)
        return make_method(self.method, **fields)

    def setting(self, point: Point) -> Setting:
        """A candidate as a setting that can be run."""
        made = Setting(
            self.make(point.fields),
            {**self.shared, **self.own, **point.run},
            "",
            "",
            self.name,
            point.varied,
        )
        self.points[made] = point
        return made

    def of_paper(self, paper: str, d: int) -> list[Setting]:
        """The candidates of a paper's grid."""
        rounds = build(Settings, {**self.shared, **self.own}, "run").rounds
        points = grid_of(paper, self.row).points(d, rounds, self.given)
        return [self.setting(point) for point in points]

    def of_axes(self, axes: Sequence[Axis]) -> list[Setting]:
        """Every combination of the axes that this method has."""
        found = []
        for chosen in combinations(axes, self.kind):
            named = {axis.name: value for axis, value in chosen.items()}
            found.append(self.setting(self.point(named)))
        return found

    def point(self, chosen: Mapping[str, Any]) -> Point:
        """A candidate from values by name: of fields of the method, or of settings of the run."""
        places = {name: Axis(name, ()) for name in chosen}
        fields = {a.key: chosen[n] for n, a in places.items() if a.place(self.kind) == "method"}
        run = {a.key: chosen[n] for n, a in places.items() if a.place(self.kind) == "run"}
        return Point({**self.given, **fields}, run, dict(chosen))

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


def read_contender(given: AnyMethod | Plan, settings: Mapping[str, Any]) -> Contender:
    """From a method, its class, a text such as "lp-proj:p=1", or a plan."""
    if isinstance(given, str):
        name, fields, own = _spec(given)
        return _named(name, fields, settings, own)
    if isinstance(given, Plan):
        found = _named(given.method, given.method_fields, settings, given.own)
        method = grid_of("paper", given.method).method if is_compressor(given.method) else None
        plan = dataclasses.replace(given, method=method) if method else given
        return dataclasses.replace(found, plan=plan)
    made = read_method(given)
    changed = {
        f.name: made.as_dict()[f.name]
        for f in dataclasses.fields(made)
        if f.metadata and getattr(made, f.name) != f.default
    }
    return Contender(
        label_of(made), name_of(made), name_of(made), changed, dict(settings), base=made
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
    given: Sequence[AnyMethod | Plan], settings: Mapping[str, Any]
) -> list[Contender]:
    """All of them, each once."""
    found = [read_contender(one, settings) for one in given]
    if not found:
        raise SettingError("methods: none were given; at least one is needed")
    names = [contender.name for contender in found]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"methods: {name} is given twice")
    return found
