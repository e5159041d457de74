"""The default engine: server and hosts in this process, in synchronous rounds.

Messages are really packed and unpacked; their length is what counts. An engine only carries bytes
and decides when: everything else is the server's or a host's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.knobs import Factors
from .delays import Delays
from .engine import Engine


@dataclass
class InProcess(Engine):
    """Carries messages between one server and hosts that are asked one after the other."""

    delays: Delays | None = None  # how long clients would take, for simulated time

    @property
    def timed(self) -> bool:
        return self.delays is not None

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
        if self.delays is not None:
            self._wait(self.delays, round.order.heard, verdict.counted)

    def _wait(self, delays: Delays, heard: Tensor, counted: Tensor) -> None:
        """A synchronous round takes as long as the slowest of those that it hears."""
        roster = self.server.roster
        round = self.server.version
        turns = torch.full((len(heard),), round - 1).numpy()
        took = delays.draw(self.server.contract.task.seed, roster.keys[heard.numpy()], turns)
        began = self.time
        self.time += float(took.max(initial=0.0))
        done = torch.isin(heard, counted).tolist()
        self.delays_of_round = [
            {
                "round": round,
                "client": roster.ids[wire_id],
                "started": round - 1,
                "staleness": 0,
                "start": began,
                "time": began + delay,
                "delay": delay,
                "counted": int(fate),
            }
            for wire_id, delay, fate in zip(heard.tolist(), took.tolist(), done, strict=True)
        ]
