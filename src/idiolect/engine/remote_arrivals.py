"""Asynchronous training with hosts in other processes: messages are used as they come.

As the engine `asynchronous` with the clock "real", with a `Carrier` in place of pipes. Each host
works off its orders one after the other. Evaluations take place at the hosts.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.types import State
from ..host import calls
from ..host.calls import FAILED, Call
from ..host.scores import Scores
from ..server.arrivals import Arrivals
from ..server.exchange import Order, Verdict
from .asynchronous import Asynchronous, Pace
from .flights import Flight, Landed
from .lines import failure
from .real_time import RealTime
from .remote import Remote


class Crews(RealTime):
    """The real clock of hosts elsewhere: see `Workers`."""

    def __init__(self, remote: Remote):
        self.remote = remote
        self.under_way: dict[int, Flight] = {}
        self._tickets: dict[int, int] = {}  # of orders -> client
        self._quiet: set[int] = set()  # tickets of verdicts, whose replies say nothing
        self._arrived: deque[Landed] = deque()
        self._at = {int(k): n for n, host in enumerate(remote.hosts) for k in host.wire_ids}

    def start(self, order: Order) -> None:
        """These clients start now."""
        if self._began is None:
            self._began = time.monotonic()
        assert order.turns is not None
        for wire_id, turn in zip(order.train.tolist(), order.turns.tolist(), strict=True):
            one = torch.tensor([wire_id])
            alone = Order(order.version, order.down, one, one, order.factors, torch.tensor([turn]))
            frame = calls.order_call(alone, "begin").pack()
            self._tickets[self.remote.carrier.send(self._at[wire_id], frame)] = wire_id
            self.under_way[wire_id] = Flight(order.version, self.now, self.now)

    def next(self) -> Landed:
        """The next message, as soon as there is one."""
        while not self._arrived:
            self._read()
        return self._arrived.popleft()

    def conclude(self, wire_id: int, verdict: Verdict) -> None:
        """The client learns whether its message counted."""
        frame = calls.verdict_call(verdict, "arrived").pack()
        self._quiet.add(self.remote.carrier.send(self._at[wire_id], frame))

    def bring_home(self) -> None:
        """Rows stay where they are. What is under way arrives first: hosts answer in order."""

    def settle(self) -> None:
        """Wait until every host has done what it was told; messages that arrive are kept."""
        while self._tickets or self._quiet:
            self._read()

    def close(self) -> None:
        """Work under way is given up."""

    def _read(self) -> None:
        for ticket, frame in self.remote.carrier.receive(1.0):
            if frame is None:
                raise RuntimeError("a host was lost; the run can be resumed from its checkpoint")
            reply = Call.open(frame)
            if reply.kind == FAILED:
                raise failure(0, reply)
            self._quiet.discard(ticket)
            if ticket in self._tickets:
                self._land(self._tickets.pop(ticket), reply)

    def _land(self, wire_id: int, reply: Call) -> None:
        counted = self.remote.server.contract.method.counted
        sent = calls.read_sent(reply, torch.tensor([wire_id]), counted)
        flight = self.under_way.pop(wire_id)
        messages = [sent.messages.row(k) for k in range(len(sent.messages))]
        self._arrived.append(
            Landed(
                wire_id,
                messages,
                np.asarray(sent.values),
                int(sent.gradients.sum()),
                flight.version,
                flight.start,
                self.now,
                {n: int(t.sum()) for n, t in sent.counted.items()},
            )
        )


class RemoteArrivals(Asynchronous):
    """Asynchronous training whose hosts are elsewhere."""

    def __init__(self, remote: Remote, arrivals: Arrivals, pace: Pace):
        self.crews = Crews(remote)
        super().__init__(remote.server, remote.hosts, self.crews, arrivals, pace)  # type: ignore[arg-type]
        self.remote = remote

    def evaluate(self, wire_ids: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        self.crews.settle()
        return self.remote.evaluate(wire_ids, splits)

    def evaluate_shared(
        self, splits: tuple[str, ...], wire_ids: Tensor | None = None
    ) -> dict[str, Scores]:
        self.crews.settle()
        return self.remote.evaluate_shared(splits, wire_ids)

    def check_complete(self) -> None:
        self.remote.check_complete()

    def personalise(self, wire_ids: Tensor, rounds: int) -> None:
        self.crews.settle()
        self.remote.personalise(wire_ids, rounds)

    def save(self) -> tuple[State, dict[str, Any]]:
        self.crews.settle()
        return super().save()

    def close(self) -> None:
        self.remote.close()
