"""The default engine: server and one host in this process. Messages are really packed and unpacked; their length is what counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .. import admission, streams, wire
from ..ledger import Ledger
from ..method import Rule, State
from ..metrics import Scores
from ..server_step import ServerStep
from .host import Host


def select(seed: int, round: int, keys: np.ndarray, eligible: Tensor, sample: int, purpose: str = "select") -> Tensor:
    """A uniform sample without replacement, sorted: the `sample` smallest of one random number a client.

    A client's number depends on nobody else, so a client that cannot take part changes nothing for the others.
    """
    draw = streams.bits(streams.keys(seed, purpose, round, keys[eligible.numpy()]), 0, 1)[:, 0]
    return eligible[torch.from_numpy(np.sort(np.argsort(draw, kind="stable")[:sample]))]


@dataclass
class InProcess:
    """A run's moving parts: the server's state here, everything private in the host."""

    host: Host
    rule: Rule
    step: ServerStep
    eligible: Tensor  # int64: clients that may take part, sorted
    sample: int
    server: State = field(init=False)
    ledger: Ledger = field(init=False)
    round: int = 0  # rounds done

    def __post_init__(self) -> None:
        self.server = self.host.method.server(self.host.task)
        self.ledger = Ledger(self.host.data.clients)
        self.mean_size = float(self.host.sizes[self.eligible].double().mean()) if len(self.eligible) else 1.0

    def message(self, round: int) -> bytes:
        """The message down for this round, from the server as it is now."""
        state = self.step.without(self.server)
        return wire.one(self.host.method.broadcast(self.host.task, state), self.host.run, round)

    @property
    def round_bytes(self) -> int:
        """What one round sends, both ways: known before it runs."""
        return self.host.down.length * len(self._trained(0)[0]) + self.host.up.length * self.sample

    def advance(self, rate: float = 1.0) -> None:
        """One round."""
        host = self.host
        train, heard = self._trained(self.round)
        down = self.message(self.round)
        messages = host.update(self.round, down, train, heard, rate)
        self.ledger.sent_down(train, len(down), host.down.values)
        if host.up.parts:
            self._receive(messages, heard, rate)
        self.ledger.counts["gradients"] = host.gradients.clone()
        self.round += 1

    def _receive(self, messages: np.ndarray, heard: Tensor, rate: float) -> None:
        """Admit or reject, aggregate, step. Nobody heard, or numbers that overflow: the server stays as it is."""
        host, task, method = self.host, self.host.task, self.host.method.scaled(rate)
        got = admission.admit(messages, schema=host.up, run=host.run, round=self.round, expected=heard, cap=float(host.sizes.max()))
        self.ledger.selected += len(heard)
        self.ledger.rejected.update(got.rejected)
        if not len(got.clients):
            return
        up = {n: t.to(task.device) for n, t in got.up.items()}
        weights = (got.weights / self.mean_size).to(task.device)
        server = self.step(self.server, method.aggregate(task, self.step.without(self.server), up, weights, self.rule))
        if not all(bool(torch.isfinite(t).all()) for t in server.values() if t.is_floating_point()):
            self.ledger.rejected["overflow"] += len(got.clients)
            return
        self.server = server
        self.ledger.admitted += len(got.clients)
        self.ledger.sent_up(got.clients, torch.from_numpy(got.bytes), host.up.values)

    def _trained(self, round: int) -> tuple[Tensor, Tensor]:
        """(who trains, who of them is heard)."""
        heard = select(self.host.task.seed, round, self.host.keys, self.eligible, self.sample)
        return (self.eligible if self.host.method.trains == "everyone" else heard), heard

    def evaluate(self, clients: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        return self.host.evaluate(self.round, self.message(self.round), clients, splits)

    def evaluate_shared(self, splits: tuple[str, ...]) -> dict[str, Scores]:
        return self.host.evaluate_shared(self.round, self.message(self.round), splits)

    def handover(self) -> Tensor | None:
        """The model a next stage starts from."""
        return self.host.method.handover(self.host.task, self.host.method.broadcast(self.host.task, self.step.without(self.server)))

    def personalise(self, clients: Tensor, rounds: int) -> None:
        """Clients that took no part train their private rows towards the finished server; nothing is sent up."""
        nobody = clients[:0]
        for round in range(self.round, self.round + rounds):
            self.host.update(round, self.message(round), clients, nobody)
