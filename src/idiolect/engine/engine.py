"""What every engine does: models are evaluated and personalised the same way in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..core.knobs import Factors
from ..core.tensors import Shapes
from ..core.types import State
from ..host.host import Host
from ..host.scores import Scores
from ..server.protocol import RoundRequest
from ..server.server import Server

Line = dict[str, Any]


@dataclass
class Engine:
    """Carries messages between one server and its hosts, and decides when."""

    server: Server
    hosts: Sequence[Host]
    time: float = field(default=0.0, init=False)  # simulated, or seconds of training
    delays_of_round: list[Line] = field(default_factory=list, init=False)  # a line per message

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return self.server.version

    @property
    def timed(self) -> bool:
        """Whether there is a time to tell."""
        return False

    def advance(self, factors: Factors | None = None) -> None:
        """One round, with the factors of a schedule."""
        raise NotImplementedError

    def round_bytes(self) -> int:
        """What the next round sends both ways, at most: known before it runs."""
        return self.server.round_bytes()

    def figures(self) -> dict[str, float]:
        """What evaluated rounds tell beside scores and counts: time and mean staleness."""
        if not self.timed:
            return {}
        stale = [line["staleness"] for line in self.delays_of_round]
        return {"time": self.time, "staleness": sum(stale) / max(len(stale), 1)}

    def evaluate(self, wire_ids: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        """Scores of these clients' personal models."""
        version = self.rounds
        down = self.server.message(version)
        found = [host.evaluate(version, down, wire_ids, splits) for host in self.hosts]
        return {split: Scores.merge([f[split] for f in found]) for split in splits}

    def evaluate_shared(
        self, splits: tuple[str, ...], wire_ids: Tensor | None = None
    ) -> dict[str, Scores]:
        """Scores of the one global model on these clients, or all; {} where the method has none."""
        version = self.rounds
        down = self.server.message(version)
        found = [host.evaluate_shared(version, down, splits, wire_ids) for host in self.hosts]
        if not all(found):
            return {}
        return {split: Scores.merge([f[split] for f in found]) for split in splits}

    def check_complete(self) -> None:
        """Refuse, by RuntimeError, to go on where some clients cannot be reached."""

    def personalise(self, wire_ids: Tensor, rounds: int) -> None:
        """Clients that took no part train towards the finished server; nothing is sent up."""
        first = self.server.version
        for version in range(first, first + rounds):
            order = RoundRequest(version, self.server.message(version), wire_ids, wire_ids[:0])
            for host in self.hosts:
                host.update(order)

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self) -> tuple[State, dict[str, Any]]:
        """What is under way, for a checkpoint: tensors and plain facts; ({}, {}) where nothing."""
        return {}, {"time": self.time} if self.timed else {}

    def check(self, shapes: Shapes, facts: dict[str, Any]) -> None:
        """Refuse, by ValueError, what this engine cannot have saved, before anything is read."""
        if shapes or facts.keys() != ({"time"} if self.timed else set()):
            raise ValueError("engine: other things than this engine saves")
        check_time(facts)

    def load(self, tensors: State, facts: dict[str, Any], rounds: int) -> None:
        """As it was saved after so many rounds."""
        self.time = float(facts.get("time", 0.0))

    def most_bytes(self) -> int:
        """The most that the tensors of `save` take."""
        return 0

    def versions(self, rounds: int) -> int:
        """The version of the server after so many rounds."""
        return rounds

    def close(self) -> None:
        """Training is over: what is under way is given up."""


def check_time(facts: dict[str, Any]) -> None:
    """Refuse a time that no run has had."""
    time = facts.get("time", 0.0)
    if not isinstance(time, float) or not 0 <= time < 1e300:
        raise ValueError("engine: 'time' is a number >= 0")
