"""The asynchronous engine: a message is used when it arrives, and the next client starts at once.

Algorithm 3 of FFGG. `concurrency` clients are at work at any time; when the message of one has
arrived, the server has made its step before the next one starts from the newest model. Messages
that arrive at the same instant all arrive before anybody starts. A round is `sample` arrivals, so
that rounds, bytes and evaluations compare with those of synchronous rounds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import Factors
from ..core.tensors import Shapes
from ..core.types import State, prefixed, under
from ..host import calls
from ..host.calls import FAILED, Call
from ..host.host import Host
from ..host.scores import Scores
from ..server.asynchronous import AsyncServer
from ..server.protocol import RoundConclusion, RoundRequest
from ..server.selection import select
from ..server.server import Server
from ..server.state import check_arrivals, load_arrivals, most_arrivals_bytes, save_arrivals
from ..wire.messages import HEADER
from .clocks import Delivery, PendingUpdate, RealClock, SimulatedClock
from .delays import ConstantDelay, Delays
from .engine import Engine, check_time
from .retry import failure
from .rounds import Remote
from .workers import Workers

NEXT = ("sampled", "same")  # who starts when a message has arrived


@dataclass(frozen=True)
class Pace:
    """How many clients are at work, and who starts next."""

    concurrency: int = 0  # clients at work at any time; 0 = as many as arrive in a round
    next_client: str = "sampled"  # among those not at work, or the same client again


class Asynchronous(Engine):
    """Carries messages one by one, in simulated or in real time."""

    def __init__(
        self,
        server: Server,
        hosts: Sequence[Host],
        clock: SimulatedClock | Workers | None = None,
        arrivals: AsyncServer | None = None,
        pace: Pace | None = None,
        delays: Delays | None = None,
    ):
        super().__init__(server, hosts)
        self.clock: SimulatedClock | Workers = clock or SimulatedClock(
            server, hosts, delays or ConstantDelay()
        )
        self.arrivals = arrivals or AsyncServer(server)
        self.pace = pace or Pace()
        # landed, and nobody has started in their place yet; None before the first start
        self.free: list[int] | None = None

    @property
    def rounds(self) -> int:
        return self.server.version // self.server.sample

    @property
    def timed(self) -> bool:
        return True

    @property
    def concurrency(self) -> int:
        """Clients at work at any time."""
        return self.pace.concurrency or self.server.sample

    def advance(self, factors: Factors | None = None) -> None:
        """`sample` arrivals, with the factors of a schedule."""
        factors = factors or {}
        self.delays_of_round = []
        for _ in range(self.server.sample):
            self._start(factors)
            self._arrive(self.clock.next(), factors)
        self._start(factors)
        self.clock.pause()
        self.time = self.clock.now
        self.arrivals.close(self.rounds - 1)

    def _start(self, factors: Factors) -> None:
        """Clients in place of those that have landed, once all of this instant have."""
        if self.free == [] or (self.free and self.clock.another_now()):
            return
        starting = self._next()
        if len(starting):
            self.clock.start(self.arrivals.start(starting, factors))
        self.free = []

    def _next(self) -> Tensor:  # -> int64, increasing
        """Line 5 of Algorithm 3: sample new clients, or take the same ones again."""
        server = self.server
        roster = server.roster
        seed = server.contract.task.seed
        if self.free is None:
            eligible = roster.eligible_ids()
            return select(seed, server.version, roster.keys, eligible, self.concurrency)
        if self.pace.next_client == "same":
            same = torch.tensor(self.free).sort().values
            return same[roster.eligible[same]]
        waiting = roster.eligible.clone()
        waiting[list(self.arrivals.busy)] = False
        idle = waiting.nonzero().flatten()
        if len(idle) <= len(self.free):
            return idle
        version = server.version
        return select(seed, version, roster.keys, idle, len(self.free), "next client")

    def _arrive(self, landed: Delivery, factors: Factors) -> None:
        """A message is used at once."""
        server = self.server
        counted = {n: torch.tensor([count]) for n, count in landed.counted.items()}
        client = torch.tensor([landed.wire_id])
        server.account(client, torch.tensor([landed.gradients]), counted)
        found = self.arrivals.receive(
            landed.wire_id, landed.messages, landed.values, factors, landed.reason
        )
        self.clock.conclude(landed.wire_id, found.verdict)
        assert self.free is not None
        self.free.append(landed.wire_id)
        self.delays_of_round.append(
            {
                "round": (server.version - 1) // server.sample + 1,
                "client": server.roster.ids[landed.wire_id],
                "started": landed.version,
                "staleness": found.staleness,
                "start": landed.start,
                "time": landed.time,
                "delay": landed.time - landed.start,
                "counted": int(found.fate == "admitted"),
            }
        )

    def round_bytes(self) -> int:
        contract = self.server.contract
        down, up = contract.down.length, contract.up.length
        if contract.link.codes:
            up = HEADER.itemsize + contract.link.limit(self.server.version)
        first = self.concurrency * down if self.free is None else 0
        waiting = len(self.free or ()) * down
        return first + waiting + self.server.sample * (down + up)

    def evaluate(self, wire_ids: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        self.clock.bring_home()
        return super().evaluate(wire_ids, splits)

    def close(self) -> None:
        self.clock.close()

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self) -> tuple[State, dict[str, Any]]:
        self.clock.bring_home()
        keeps = self.clock.keeps
        tensors, facts = save_arrivals(self.arrivals, busy=keeps)
        free = torch.tensor((self.free if keeps else []) or [], dtype=torch.int64)
        tensors = {
            **prefixed(tensors, "arrivals."),
            **prefixed(self.clock.save(), "flights."),
            "free": free,
        }
        return tensors, {**facts, "time": self.time, "started": keeps and self.free is not None}

    def check(self, shapes: Shapes, facts: dict[str, Any]) -> None:
        most = self.concurrency
        facts = dict(facts)
        check_time(facts)
        if facts.pop("time", None) is None or type(facts.pop("started", None)) is not bool:
            raise ValueError("engine: 'time' and 'started' are expected")
        known = {n: s for n, s in shapes.items() if n.startswith(("arrivals.", "flights."))}
        check_arrivals(self.arrivals, under(known, "arrivals."), facts, most)
        self.clock.check(under(known, "flights."), most)
        free = {n: s for n, s in shapes.items() if n not in known}
        count = next((s[0][0] for s in free.values() if s[0]), 0)
        if free != {"free": ((count,), torch.int64)} or count > most:
            raise ValueError("engine: 'free' holds the clients that have just landed")

    def load(self, tensors: State, facts: dict[str, Any], rounds: int) -> None:
        load_arrivals(self.arrivals, under(tensors, "arrivals."), {"steps": facts["steps"]})
        self.clock.load(under(tensors, "flights."), facts["time"])
        clients = len(self.server.roster)
        free = tensors["free"]
        if bool(((free < 0) | (free >= clients)).any()):
            raise ValueError("engine: a client that is none has landed")
        self.time = facts["time"]
        self.free = free.tolist() if facts["started"] else None
        if self.clock.under_way.keys() != self.arrivals.busy.keys():
            raise ValueError("engine: others are at work than messages are under way")

    def most_bytes(self) -> int:
        most = self.concurrency
        return most_arrivals_bytes(self.arrivals, most) + self.clock.most_bytes(most) + 8 * most

    def versions(self, rounds: int) -> int:
        return rounds * self.server.sample


class Crews(RealClock):
    """The real clock of hosts elsewhere: see `Workers`."""

    def __init__(self, remote: Remote):
        self.remote = remote
        self.under_way: dict[int, PendingUpdate] = {}
        self._tickets: dict[int, int] = {}  # of orders -> client
        self._quiet: set[int] = set()  # tickets of verdicts, whose replies say nothing
        self._arrived: deque[Delivery] = deque()
        self._at = {int(k): n for n, host in enumerate(remote.hosts) for k in host.wire_ids}

    def start(self, order: RoundRequest) -> None:
        """These clients start now."""
        if self._began is None:
            self._began = time.monotonic()
        assert order.turns is not None
        for wire_id, turn in zip(order.train.tolist(), order.turns.tolist(), strict=True):
            one = torch.tensor([wire_id])
            alone = RoundRequest(
                order.version, order.down, one, one, order.factors, torch.tensor([turn])
            )
            frame = calls.order_call(alone, "begin").pack()
            self._tickets[self.remote.carrier.send(self._at[wire_id], frame)] = wire_id
            self.under_way[wire_id] = PendingUpdate(order.version, self.now, self.now)

    def next(self) -> Delivery:
        """The next message, as soon as there is one."""
        while not self._arrived:
            self._read()
        return self._arrived.popleft()

    def conclude(self, wire_id: int, verdict: RoundConclusion) -> None:
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
        counted = self.remote.server.contract.method.traits.counters
        sent = calls.read_sent(reply, torch.tensor([wire_id]), counted)
        flight = self.under_way.pop(wire_id)
        messages = [sent.messages.row(k) for k in range(len(sent.messages))]
        self._arrived.append(
            Delivery(
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

    def __init__(self, remote: Remote, arrivals: AsyncServer, pace: Pace):
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
