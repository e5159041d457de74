"""The default engine: server and hosts in this process.

Messages are really packed and unpacked; their length is what counts. An engine only carries bytes
and decides when: everything else is the server's or a host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..core.factors import Factors
from ..host.host import Host
from ..host.scores import Scores
from ..server.exchange import Order
from ..server.server import Server


@dataclass
class InProcess:
    """Carries messages between one server and hosts that are asked one after the other."""

    server: Server
    hosts: Sequence[Host]

    def advance(self, factors: Factors | None = None) -> None:
        """One synchronous round, with the factors of a schedule."""
        server = self.server
        round = server.open(factors=factors)
        for host in self.hosts:
            for sent in host.updates(round.order):
                server.account(sent.trained, sent.gradients, sent.counted)
                server.receive(round, sent.messages, sent.values)
        while queries := server.ask(round):
            for query in queries:
                for host in self.hosts:
                    server.receive_answer(round, query.part, host.answer(query))
        verdict = server.close(round)
        for host in self.hosts:
            host.conclude(verdict)

    def evaluate(self, wire_ids: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        """Scores of these clients' personal models."""
        version = self.server.version
        down = self.server.message(version)
        found = [host.evaluate(version, down, wire_ids, splits) for host in self.hosts]
        return {split: Scores.merge([f[split] for f in found]) for split in splits}

    def evaluate_shared(
        self, splits: tuple[str, ...], wire_ids: Tensor | None = None
    ) -> dict[str, Scores]:
        """Scores of the one global model on these clients, or all; {} where the method has none."""
        version = self.server.version
        down = self.server.message(version)
        found = [host.evaluate_shared(version, down, splits, wire_ids) for host in self.hosts]
        if not all(found):
            return {}
        return {split: Scores.merge([f[split] for f in found]) for split in splits}

    def personalise(self, wire_ids: Tensor, rounds: int) -> None:
        """Clients that took no part train towards the finished server; nothing is sent up."""
        first = self.server.version
        for version in range(first, first + rounds):
            order = Order(version, self.server.message(version), wire_ids, wire_ids[:0])
            for host in self.hosts:
                host.update(order)
