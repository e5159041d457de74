"""What is varied: the axes of a grid, the grids of papers, and spaces to search.

The grids of papers are TOML files of packages that register them, as idiolect_papers does. A
package has files grids/PAPER.toml and an entry point `package:NAMES` of the group `idiolect.grids`:
the names of its papers. The first paper that has a method comes first.

>>> [name for name in papers()]
['lp-proj', 'ffgg', 'feddeper']
>>> plan = grid_of("lp-proj", "qsgd").plans(d=610)[0]
>>> plan.method_fields["lr"], plan.own
(0.05, {'channel': 'qsgd(levels=5, bucket=500, norm=inf)'})
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module, resources
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..core.files import regular_file
from ..core.knobs import SettingError, kinds_of, nearest
from ..core.registry import split_outside
from ..method import Method
from ..methods import PRESET, has_preset
from ..run.plan import Plan
from ..run.settings import Settings

ONE_FEDERATION = "of a tuning; settings are chosen for one federation and one model"
PARTS = ("method", "run", "data", "model")
NOT_VARIED = {
    "seed": "the first seed of all runs: give it for the whole sweep",
    "seeds": "how many runs each setting has: give it for the whole sweep",
    "data_seeds": "which partitions the runs of each setting have: give it for the whole sweep",
}


Grid = dict[str, tuple[Any, ...]]  # name of a field, setting or option -> its values


def place_of(name: str, kind: type[Method]) -> tuple[str, str]:
    """Which of `PARTS` a name varies for a method, and its key there; "" for none of this method.

    >>> from idiolect.methods import Ditto
    >>> place_of("lam", Ditto), place_of("data.classes-per-client", Ditto), place_of("mu", Ditto)
    (('method', 'lam'), ('data', 'classes_per_client'), ('', 'mu'))
    """
    part, key = _part_and_key(name)
    if part:
        return ("" if part == "method" and key not in _fields(kind) else part), key
    if key in _fields(kind):
        return "method", key
    return ("run" if key in _settings() else ""), key


def _part_and_key(name: str) -> tuple[str, str]:
    head, dot, _ = name.partition(".")
    return head if dot else "", name.rpartition(".")[2].replace("-", "_")


def read_grid(grid: Mapping[str, Any] | Iterable[str]) -> Grid:
    """A grid from names with lists of values, or from texts.

    >>> read_grid(["lr=0.1,0.01", "channel=none,qsgd(levels=4, norm=inf)"])["channel"]
    ('none', 'qsgd(levels=4, norm=inf)')
    >>> read_grid({"lam": [0.1, 1.0]})
    {'lam': (0.1, 1.0)}
    """
    pairs: list[tuple[str, Any]] = []
    if isinstance(grid, Mapping):
        pairs = [(str(name), values) for name, values in grid.items()]
    else:
        for text in grid:
            name, equals, values = str(text).partition("=")
            if not equals:
                raise SettingError(f"grid must be NAME=VALUE,VALUE,..., got {text!r}")
            pairs.append((name.strip(), [v.strip() for v in split_outside(values, ",")]))
    axes: Grid = {}
    for name, values in pairs:
        if name in axes:
            raise SettingError(f"grid must have different names, got {name} twice")
        _check_axis(name, values)
        axes[name] = tuple(values)
    return axes


def _check_axis(name: str, values: Any) -> None:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise SettingError(f"grid: {name} must be a list of values, got {values!r}")
    if not [v for v in values if v != ""]:
        raise SettingError(f"grid: {name} must have at least one value, got none")
    if len(set(map(repr, values))) < len(values):
        raise SettingError(f"grid: {name} must have different values, got one twice")
    part, key = _part_and_key(name)
    if part and part not in PARTS:
        raise nearest(part, PARTS, f"part of a run in grid {name!r}")
    if part in ("", "run") and key in NOT_VARIED:
        raise SettingError(f"grid must not vary {key}, which is {NOT_VARIED[key]}")
    if part == "run" and key not in _settings():
        raise nearest(key, _settings(), "run setting in the grid")


def check_names(what: str, names: Iterable[str], kinds: Sequence[type[Method]]) -> None:
    """Refuse a name that no method has."""
    for name in names:
        if not any(place_of(name, kind)[0] for kind in kinds):
            accepted_names = {field for kind in kinds for field in _fields(kind)} | _settings()
            key = _part_and_key(name)[1]
            raise nearest(key, accepted_names, f"{what}: field of these methods, or run setting")


def refuse_data_and_model(what: str, names: Iterable[str], reason: str) -> None:
    """Refuse to vary the data or the model."""
    for name in names:
        if _part_and_key(name)[0] in ("data", "model"):
            raise SettingError(f"{what} must not vary {name} {reason}")


def vary(plan: Plan, values: Mapping[str, Any]) -> Plan:
    """The plan with other values, by name: of fields of the method, run settings, ..."""
    parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for name, value in values.items():
        part, key = place_of(name, plan.method_class)
        parts[part][key] = value
    return replace(
        plan,
        method_fields={**plan.method_fields, **parts["method"]},
        data_options={**plan.data_options, **parts["data"]},
        model_options={**plan.model_options, **parts["model"]},
        own={**plan.own, **parts["run"]},
        varied=dict(values),
    )


def combinations(plan: Plan, grid: Grid) -> Iterator[Plan]:
    """The plan with every choice of values for the names that its method has."""
    mine = {n: values for n, values in grid.items() if place_of(n, plan.method_class)[0]}
    for choice in itertools.product(*mine.values()):
        yield vary(plan, dict(zip(mine, choice, strict=True)))


def _fields(kind: type[Method]) -> set[str]:
    own = {f.name for f in fields(kind) if f.metadata}
    return own | {PRESET} if has_preset(kind) else own


def _settings() -> set[str]:
    return {f.name for f in fields(Settings)} - set(NOT_VARIED)


# -- the grids of papers ---------------------------------------------------------------------------
ANY = "paper"  # whichever of them has the method
_PART = re.compile(r"\s*([0-9.e-]+) ([dT])\s*")  # "0.02 d": a part of the model's size, or of T
_RUN = {f.name for f in fields(Settings)}


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

    def plans(
        self, d: int, rounds: int = 200, fixed_fields: Mapping[str, Any] | None = None
    ) -> list[Plan]:
        """All candidates for a model of d numbers; `fixed_fields` are not varied."""
        plans = []
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
            method_fields = {**self.fields, **own, **fixed}
            plan = Plan(self.method, method_fields, "", own=filled, name=self.name, varied=varied)
            plans.append(plan)
        return plans


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
    which = "no paper has it" if paper == ANY else f"the grid of {paper} has it not"
    listing = "; ".join(f"{one}: {', '.join(_read(one))}" for one in _packages())
    raise SettingError(
        f"grid must be one that has {name}, got {paper!r}: {which}. The grids of papers are "
        f"{listing}. Give a grid of your own (names with values), a space, or trials"
    )


def is_compressor(name: str) -> bool:
    """Whether a paper's grid has it under another name: FedAvg through a channel."""
    return any(name in grids and grids[name].method != name for grids in papers().values())


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


# -- Spaces to search: ranges and choices for fields of methods and settings of runs --

MOST = 1 << 20  # bytes of a file
KEYS = ("low", "high", "log")


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included."""

    low: float
    high: float
    log: bool = False  # even over orders of magnitude
    whole: bool = False

    def ends(self) -> tuple[Any, ...]:
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)


Space = dict[str, Range | tuple[Any, ...]]  # name of a field or setting -> what it may be


def read_space(source: Mapping[str, Any] | str | Path, kinds: list[type[Method]]) -> Space:
    """A space from a mapping, or from a TOML file of the same form.

    >>> from idiolect.methods import Ditto
    >>> read_space({"lam": {"low": 0.01, "high": 1, "log": True}, "steps": [5, 20]}, [Ditto])
    {'lam': Range(low=0.01, high=1.0, log=True, whole=False), 'steps': (5, 20)}
    """
    content = dict(source) if isinstance(source, Mapping) else read_file(Path(source))
    if not content:
        raise SettingError(
            "space: it is empty; lines such as lr = {low = 0.001, high = 1, log = true} or "
            "steps = [1, 5, 20]"
        )
    refuse_data_and_model("space", content, ONE_FEDERATION)
    check_names("space", content, kinds)
    return {name: _entry(name, entry, _is_whole(name, kinds)) for name, entry in content.items()}


def read_file(path: Path) -> dict[str, Any]:
    try:
        body = regular_file(path, "space").read_bytes()
    except OSError as error:
        raise SettingError(f"space: cannot read {path}: {error.strerror}") from None
    if len(body) > MOST:
        raise SettingError(f"space must be a file of at most {MOST} bytes, got {path}")
    try:
        return tomllib.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # no UTF-8, or no TOML
        raise SettingError(f"space: {path} is not TOML: {error}") from None


def _is_whole(name: str, kinds: list[type[Method]]) -> bool:
    places = ((kind, *place_of(name, kind)) for kind in kinds)
    kind, part, key = next((kind, part, key) for kind, part, key in places if part)
    return kinds_of(kind if part == "method" else Settings).get(key) is int


def _entry(name: str, entry: Any, whole: bool) -> Range | tuple[Any, ...]:
    if isinstance(entry, list | tuple):
        if not entry:
            raise SettingError(f"space: {name} must have at least one choice, got none")
        return tuple(entry)
    if not isinstance(entry, Mapping):
        raise SettingError(
            f"space: {name} must be {{low, high, log}} or a list of choices, got {entry!r}"
        )
    for key in entry:
        if key not in KEYS:
            raise nearest(key, KEYS, f"space: key of {name}")
    ends = [entry.get(key) for key in ("low", "high")]
    if not all(isinstance(e, int | float) and not isinstance(e, bool) for e in ends):
        raise SettingError(f"space: {name} must have low and high, both numbers")
    low, high = map(float, ends)  # type: ignore[arg-type]
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SettingError(f"space: {name} must have low < high, got {ends[0]} and {ends[1]}")
    log = entry.get("log", False)
    if not isinstance(log, bool):
        raise SettingError(f"space: log of {name} must be true or false, got {log!r}")
    if log and low <= 0:
        raise SettingError(f"space: low of {name} must be above 0 with log, got {ends[0]}")
    if whole and not (low.is_integer() and high.is_integer()):
        raise SettingError(f"space: low and high of {name} must be whole numbers, as {name} is one")
    return Range(low, high, log, whole)


# -- by a rule -----------------------------------------------------------------------------------
RATES = ("lr", "personal_lr", "private_lr")  # from a tenth of the default to ten times it
WEIGHTS = ("lam", "mu", "rho")  # from a hundredth to a hundred times it
COUNTS = ("steps", "personal_steps", "private_steps", "local_steps", "alternations")  # 1 to twice


def derived_space(kind: type[Method], fixed: Mapping[str, Any]) -> Space:
    """A space from a method's own fields, but for those that are given.

    Step sizes and weights of penalties go by orders of magnitude around their default, within what
    the field takes; numbers of steps from 1 to twice the default. A field whose default is 0 (which
    means off, or chosen by the method) is not varied, and neither is any other field.

    >>> from idiolect.methods import FedAvg
    >>> derived_space(FedAvg, {"steps": 5})
    {'lr': Range(low=0.03, high=3.0, log=True, whole=False)}
    """
    space: Space = {}
    for f in dataclasses.fields(kind):
        if f.name in fixed or not f.metadata or not f.default:
            continue
        if f.name in RATES + WEIGHTS:
            default: Any = f.default
            factor = 10 if f.name in RATES else 100
            low = default / factor
            high = min(default * factor, f.metadata.get("high", math.inf))
            space[f.name] = Range(float(f"{low:.6g}"), float(f"{high:.6g}"), True)
        elif f.name in COUNTS and isinstance(f.default, int):
            space[f.name] = Range(1, 2 * f.default, True, True)
    if not space:
        raise SettingError(
            f"trials: {kind.__name__} has no step size, weight or number of steps left to vary; "
            "give a space of your own"
        )
    return space


def written_space(space: Space) -> dict[str, Any]:
    """The space as plain data: what a file would have."""
    return {
        name: {"low": e.ends()[0], "high": e.ends()[1], "log": e.log}
        if isinstance(e, Range)
        else list(e)
        for name, e in space.items()
    }
