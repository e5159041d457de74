"""What all real clocks of asynchronous training have in common, however their hosts are reached."""

from __future__ import annotations

import time

from ..core.tensors import Shapes, check_shapes
from ..core.types import State


class RealTime:
    """Seconds since training began; messages come when they come."""

    keeps = False  # work that is under way is not in a checkpoint: it is begun anew

    _before = 0.0  # seconds before this start of the run
    _began: float | None = None

    @property
    def now(self) -> float:
        """Seconds of training, evaluations among them."""
        since = 0.0 if self._began is None else time.monotonic() - self._began
        return self._before + since

    def another_now(self) -> bool:
        """No two messages arrive at the same instant."""
        return False

    def pause(self) -> None:
        """The end of a round: work goes on."""

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self) -> State:
        """Nothing: whoever is at work starts anew when the run is resumed."""
        return {}

    def check(self, shapes: Shapes, most: int) -> None:
        """Nothing is expected."""
        check_shapes(shapes, {})

    def load(self, tensors: State, now: float) -> None:
        """The time goes on from where it was."""
        self._before = now

    def most_bytes(self, most: int) -> int:
        return 0
