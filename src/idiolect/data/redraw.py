"""What the seed of a data set draws, and the same data set under another seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.knobs import SettingError
from ..core.text import shown

if TYPE_CHECKING:
    from .federation import Federation

# what the option `seed` of a data set draws: its class attribute `seed_draws`
PARTITION = "partition"  # which client gets which sample
SPLIT = "split"  # which of a client's samples train, validate and test
DATA = "data"  # the samples themselves


def no_seed(name: str) -> SettingError:
    """The error for data that no seed draws."""
    return SettingError(
        f"data_seeds: {shown(name, 40)!r} has no seed that draws its clients or their split; data "
        "that idiolect.data.load makes, by a name or a function with an option seed, have one"
    )


@dataclass
class DataDraw:
    """The seed of a federation, what it draws, and the federations of other seeds.

    Those that were asked for are kept: every method of a comparison trains on each of them. In
    another process nothing can be drawn, as the data set may be a function of the user's program.
    """

    seed: int
    draws: str  # PARTITION, SPLIT or DATA
    load: Callable[[int], Federation] | None
    loaded: dict[int, Federation] = field(default_factory=dict)

    def under(self, seed: int) -> Federation:
        """The federation that another seed draws."""
        if self.load is None:
            raise SettingError("data_seeds: these data cannot be drawn again in this process")
        if seed not in self.loaded:
            self.loaded[seed] = self.load(seed)
        return self.loaded[seed]

    def then(self, change: Callable[[Federation], Federation]) -> DataDraw:
        """The draw of a federation that was made by a change of this one."""
        return DataDraw(self.seed, self.draws, lambda seed: change(self.under(seed)))

    def __getstate__(self) -> dict[str, Any]:
        return {"seed": self.seed, "draws": self.draws, "load": None, "loaded": {}}
