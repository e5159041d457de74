"""Callbacks: the user's functions that a run calls, and what they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError
from ..core.types import State
from .settings import Settings


@dataclass(frozen=True)
class Moment:
    """Where a run stands: what a callback is given. Plain data, but for `state` and `stop`.

    What it holds is the run's own: read it, do not change it.
    """

    event: str  # "round", "evaluate", "checkpoint" or "end"
    method: str  # the method's label
    seed: int
    round: int  # rounds done
    rounds: int  # rounds that the run has
    seconds: float  # of work on this seed
    figures: dict[str, float]  # of the last evaluated round; {} before the first
    history: Sequence[dict[str, float]]  # all evaluated rounds so far
    ledger: dict[str, Any]  # this round: selected, admitted, rejected, ...; and totals sent
    settings: Settings
    final: dict[str, dict[str, float]]  # split -> figures at the end; {} before it
    clients: list[dict[str, Any]]  # a row per client at the end; [] before it
    # a line per message of this round: client, staleness, start, time, delay; [] without a clock
    delays: list[dict[str, Any]] = field(default_factory=list, repr=False)
    checkpoint: Path | None = None  # the folder of the checkpoint that was just written
    _stop: list[str] = field(default_factory=list, repr=False)
    _state: Callable[[], State] = field(default=dict, repr=False)

    def state(self) -> State:
        """The server's vectors by name ("w", "theta", ...), for your own figures per round."""
        return {name: vector.clone() for name, vector in self._state().items()}

    def stop(self) -> None:
        """End this seed after this round; its figures are those of the round it stands at."""
        self._stop.append(self.event)

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return bool(self._stop)

    def __repr__(self) -> str:
        return (
            f"Moment({self.event!r}, {self.method!r}, seed {self.seed}, "
            f"round {self.round} of {self.rounds}, {len(self.history)} evaluated)"
        )


Callback = Callable[[Moment], Any]


@dataclass(frozen=True)
class Callbacks:
    """The functions that a user gave, by event."""

    on_round: Callback | None = None  # after every round
    on_evaluate: Callback | None = None  # after every evaluated round
    on_checkpoint: Callback | None = None  # after a checkpoint was written
    on_end: Callback | None = None  # at the end of a seed, with its final figures

    def __post_init__(self) -> None:
        for name, callback in vars(self).items():
            if callback is not None and not callable(callback):
                raise SettingError(
                    f"{name} must be a function of one argument, a Moment, got {callback!r}"
                )

    def find(self, event: str) -> Callback | None:
        return getattr(self, f"on_{event}")
