"""Hosts in this process: called one after the other, without frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ...host.host import Host
from ...host.scores import Scores
from ...host.subgroups import SubgroupScores
from ...server.protocol import HostUpdate, Query, RoundConclusion, RoundRequest
from ...wire.messages import DownMessage
from . import EngineTraits

ENGINE = EngineTraits("in this process", remote=False)


@dataclass
class LocalHosts:
    """Calls hosts directly. Messages are really packed: their length is what counts."""

    hosts: Sequence[Host]

    def update(
        self, request: RoundRequest, required: bool = False
    ) -> Iterator[tuple[int, HostUpdate]]:
        """Messages of a round, a chunk of clients at a time."""
        for n, host in enumerate(self.hosts):
            for part in host.updates(request):
                yield n, part

    def answer(self, query: Query) -> Iterator[tuple[int, np.ndarray]]:
        """Answers in a channel's second exchange."""
        for n, host in enumerate(self.hosts):
            yield n, host.answer(query)

    def repeat_if(self, allowed: Callable[[int, Tensor], bool]) -> None:
        """No-op: no host of this process is asked twice."""

    def conclude(self, conclusion: RoundConclusion) -> None:
        """The end of a round."""
        for host in self.hosts:
            host.conclude(conclusion)

    def evaluate(
        self,
        version: int,
        down: DownMessage,
        wire_ids: Tensor,
        splits: tuple[str, ...],
        shared: bool = False,
    ) -> list[dict[str, Scores]]:
        """Scores of personal models, or of the shared one, by host."""
        if shared:
            return [host.evaluate_shared(version, down, splits, wire_ids) for host in self.hosts]
        return [host.evaluate(version, down, wire_ids, splits) for host in self.hosts]

    def losses(self, version: int, down: DownMessage, wire_ids: Tensor) -> list[Scores]:
        """Losses of the shared model on training data, by host."""
        return [host.losses(version, down, wire_ids)["train"] for host in self.hosts]

    def evaluate_subgroups(
        self, version: int, down: DownMessage, wire_ids: Tensor, shared: bool = False
    ) -> list[SubgroupScores]:
        """Figures by subgroup, by host."""
        return [host.evaluate_subgroups(version, down, wire_ids, shared) for host in self.hosts]

    def sender(self, n: int) -> Tensor | None:
        """The wire ids that host n may speak for; None: it is trusted."""
        return None

    def check_complete(self) -> None:
        """All hosts are here."""

    def close(self) -> None:
        """Nothing was started for them."""
