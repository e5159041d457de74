"""The grids of papers, which come with the package as data (idiolect/grids/*.toml).

>>> [name for name in papers()]
['lp-proj', 'ffgg', 'feddeper']
>>> fields, run = paper_grid("lp-proj", "qsgd", d=610)[0]
>>> fields["lr"], run
(0.05, {'channel': 'qsgd(levels=5, bucket=500, norm=inf)'})
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from typing import Any

from ...core.knobs import SettingError, nearest
from ...methods import make_method
from ...run.settings import Settings
from ...task.task import Task
from ..sweep import Setting

PAPERS = ("lp-proj", "ffgg", "feddeper")  # where a method is in several, the first has it
ANY = "paper"  # whichever of them has the method
_PART = re.compile(r"\s*([0-9.e-]+) ([dT])\s*")  # "0.02 d": a part of the model's size, or of T


@dataclass(frozen=True)
class Point:
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
        self, d: int, rounds: int = 200, given: Mapping[str, Any] | None = None
    ) -> list[Point]:
        """All candidates for a model of d numbers; fields that are `given` are not varied."""
        found = []
        fixed = dict(given or {})
        axes = {name: values for name, values in self.grid.items() if name not in fixed}
        columns = self.settings or [{}]
        for column, values in itertools.product(columns, itertools.product(*axes.values())):
            chosen = dict(zip(axes, values, strict=True))
            chosen = {name: _size(value, d, rounds) for name, value in chosen.items()}
            every = {k: v for k, v in column.items() if k != "of"} | chosen
            runs = {n: v for n, v in {**self.run, **every}.items() if n in _RUN}
            own = {n: v for n, v in every.items() if n not in _RUN and n not in _used(self.run)}
            filled = {n: _filled(v, every, d, rounds) for n, v in runs.items()}
            varied = ({"settings of": column["of"]} if column else {}) | chosen
            found.append(Point({**self.fields, **own, **fixed}, filled, varied))
        return found


_RUN = {f.name for f in fields(Settings)}


def papers() -> dict[str, dict[str, PaperGrid]]:
    """All grids: paper -> the paper's method -> its candidates."""
    return {paper: _read(paper) for paper in PAPERS}


@cache
def _read(paper: str) -> dict[str, PaperGrid]:
    text = resources.files("idiolect").joinpath("grids", f"{paper}.toml").read_text("utf-8")
    content = tomllib.loads(text)
    source = content.pop("paper")
    return {name: PaperGrid(source, name, **entry) for name, entry in content.items()}


def grid_of(paper: str, name: str) -> PaperGrid:
    """The grid of a method in a paper; with "paper" that of the first paper that has it.

    >>> grid_of("paper", "ditto").grid["lam"]
    [0.1, 1.0, 10.0]
    """
    if paper not in (*PAPERS, ANY):
        raise nearest(paper, (*PAPERS, ANY), "grid of a paper")
    for one in PAPERS if paper == ANY else (paper,):
        if name in _read(one):
            return _read(one)[name]
    which = "no paper has" if paper == ANY else f"the grid of {paper} has not"
    known = "; ".join(f"{one}: {', '.join(_read(one))}" for one in PAPERS)
    raise SettingError(
        f"grid: {paper!r} is not accepted for {name}, which {which}; the grids of papers are "
        f"{known}. Give a grid of your own (--grid lr=0.01,0.1), a --space, or --trials"
    )


def is_compressor(name: str) -> bool:
    """Whether a paper's grid has it under a name of its own: FedAvg through a channel."""
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


def _filled(value: Any, chosen: Mapping[str, Any], d: int, rounds: int) -> Any:
    """A text with what stands in its braces: a chosen value, or a part of d or T."""
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        inside = found[1]
        return str(chosen[inside] if inside in chosen else _size(inside, d, rounds))

    return re.sub(r"{([^}]+)}", fill, value)
