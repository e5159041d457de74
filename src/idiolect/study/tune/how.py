"""How to search: a paper's grid, a grid of one's own, or trials in a space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.documents import expect_fields, plain
from ...core.knobs import SettingError
from ..sweep.axes import Axis, check_axes, read_axes
from .contender import Contender
from .grids import ANY, PAPERS
from .pruned import need_optuna
from .space import Space, derived_space, read_file, read_space

TRIALS = 50  # in a space, unless told


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
        found = {}
        for c in contenders:
            mine = {name: e for name, e in whole.items() if Axis(name, ()).place(c.kind)}
            if not mine:
                raise SettingError(f"space: nothing in it is a field of {c.name}")
            found[c.name] = mine
        return found

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
        given = {name: saved.get(name) for name in hints}
        try:
            expect_fields(given, hints)
        except ValueError as error:
            raise SettingError(f"{where}: {error}") from None
        given |= {"grid": None} if given["trials"] else {"trials": None}
        return read_how(**given)  # type: ignore[arg-type]


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
            "grid: it is not accepted beside a space or trials; a grid is tried out as a whole"
        )
    texts = [grid] if isinstance(grid, str) else grid
    if space is not None or trials:
        given = None if space is None else _plain_space(space)
        return How(
            space=given,
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
                f"grid: {named[0]!r} is not accepted beside another one; either the grid of a "
                f"paper ({', '.join((ANY, *PAPERS))}) or your own, NAME=VALUE,VALUE,..."
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
    """The space by value: a file may change before a tuning goes on."""
    return dict(space) if isinstance(space, Mapping) else read_file(Path(space))
