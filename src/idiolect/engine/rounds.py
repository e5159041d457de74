"""Synchronous rounds: a request to all hosts, their messages, the server's step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import Factors
from ..server.server import Server
from .delays import Delays
from .engine import Engine, HostGroup
from .retry import NoReply


class Rounds(Engine):
    """Synchronous rounds; with `delays` they take simulated time."""

    def __init__(self, server: Server, group: HostGroup, delays: Delays | None = None):
        super().__init__(server, group)
        self.delays = delays
        self.timed = delays is not None

    def advance(self, factors: Factors | None = None) -> None:
        server = self.server
        group = self.group
        current = server.open(factors=factors)
        heard_ids = current.order.heard
        for n, update in group.update(current.order):
            if isinstance(update, NoReply):
                lost = heard_ids[torch.isin(heard_ids, self.hosts[n].wire_ids)]
                server.missing(current, lost, update.reason)
                continue
            server.account(update.trained, update.gradients, update.counted)
            server.receive(current, update.messages, update.values, group.sender(n))
        while queries := server.ask(current):
            for query in queries:
                for n, answers in group.answer(query):
                    if not isinstance(answers, NoReply):
                        server.receive_answer(current, query.part, answers, group.sender(n))
        conclusion = server.close(current)
        group.conclude(conclusion)
        if self.delays is not None:
            self._add_time(self.delays, heard_ids, conclusion.counted)

    def _add_time(self, delays: Delays, heard_ids: Tensor, counted: Tensor) -> None:
        """A synchronous round takes as long as its slowest client."""
        roster = self.server.roster
        version = self.server.version
        turns = np.full(len(heard_ids), version - 1)
        durations = delays.draw(
            self.server.contract.task.seed, roster.keys[heard_ids.numpy()], turns
        )
        start = self.time
        self.time += float(durations.max(initial=0.0))
        admitted = torch.isin(heard_ids, counted).tolist()
        self.delays_of_round = [
            {
                "round": version,
                "client": roster.ids[wire_id],
                "started": version - 1,
                "staleness": 0,
                "start": start,
                "time": start + delay,
                "delay": delay,
                "counted": int(fate),
            }
            for wire_id, delay, fate in zip(
                heard_ids.tolist(), durations.tolist(), admitted, strict=True
            )
        ]
