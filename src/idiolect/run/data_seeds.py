"""The seeds of the data among the repeats of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..core.knobs import SettingError, brief
from ..data.federation import Federation
from ..data.redraw import no_seed

LARGEST = 2**63  # below it


@dataclass(frozen=True)
class DataSeeds:
    """A repeat for each seed of the data: so many from the data's own on, or these.

    Repeat r trains with training seed `seed` + r on what data seed r draws. So n repeats stay n
    trainings whose figures are independent of each other, and their interval covers both the
    partition and the training. (Repeats that share a partition are not independent: an interval
    over them would be too narrow.)

    >>> DataSeeds.parse("3"), str(DataSeeds.parse([4, 8])), str(DataSeeds.parse("7,"))
    (DataSeeds(count=3, values=()), '4,8', '7,')
    >>> from ..data import load
    >>> DataSeeds.parse(3).of(load("synthetic", clients=2, seed=5)).values
    (5, 6, 7)
    """

    count: int = 0  # of repeats; 0 = all repeats on the data as they are
    values: tuple[int, ...] = ()  # the seeds; () = `count` from the data's own on

    @classmethod
    def parse(cls, value: Any) -> DataSeeds:
        """From a number, a list, or the text of one: "3", "4,8,15", "7,"."""
        if isinstance(value, DataSeeds):
            return value
        if value is None or value == "":
            return cls()
        is_list = "," in value if isinstance(value, str) else isinstance(value, Iterable)
        if not is_list:
            return cls(_whole(value, value))
        parts = value.split(",") if isinstance(value, str) else list(value)
        seeds = tuple(_whole(part, value) for part in parts if str(part).strip())
        if len(set(seeds)) < len(seeds) or not seeds:
            raise SettingError(f"data_seeds must be seeds that differ, got {brief(value)}")
        return cls(len(seeds), seeds)

    def __str__(self) -> str:
        if not self.values:
            return str(self.count or "")
        return ",".join(map(str, self.values)) + "," * (self.count == 1)

    def __bool__(self) -> bool:
        return self.count > 0

    def of(self, federation: Federation) -> DataSeeds:
        """The seeds as a list, for these data; refused where they have none."""
        if not self:
            return self
        if federation.draw is None:
            raise no_seed(federation.name)
        first = federation.draw.seed
        return replace(self, values=self.values or tuple(range(first, first + self.count)))


def _whole(part: Any, value: Any) -> int:
    """A seed, or a number of them."""
    try:
        number = int(part.strip() if isinstance(part, str) else part)
        if isinstance(part, bool) or number != float(part) or not 0 <= number < LARGEST:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise SettingError(
            "data_seeds must be a whole number >= 0 of seeds, or a list of seeds >= 0 such as "
            f"'4,8,15', got {brief(value)}"
        ) from None
    return number
