"""The asynchronous engine: a message is used when it arrives, and the next client starts at once.

Algorithm 3 of FFGG. `concurrency` clients are at work at any time; when a message has arrived, the
server steps before the next client starts from the newest model. Messages of the same instant all
arrive before a client starts. A round is `sample` arrivals, so
that rounds, bytes and evaluations compare with those of synchronous rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import Factors
from ..core.tensors import Shapes
from ..core.types import State, prefixed, under
from ..server.asynchronous import AsyncServer
from ..server.selection import select
from ..server.server import Server
from ..server.state import check_arrivals, load_arrivals, most_arrivals_bytes, save_arrivals
from .carriers.local import LocalHosts
from .clocks import PendingUpdate, RealClock, SimulatedClock
from .delays import ConstantDelay, Delays
from .remote_hosts import RemoteHosts
from .rounds import Engine, check_time

NEXT = ("sampled", "same")  # who starts when a message has arrived


@dataclass(frozen=True)
class Pace:
    """How many clients are at work, and who starts next."""

    concurrency: int = 0  # clients at work at any time; 0 = as many as arrive in a round
    next_client: str = "sampled"  # among those not at work, or the same client again


class Arrivals(Engine):
    """Carries messages one by one, in simulated or in real time."""

    timed = True

    def __init__(
        self,
        server: Server,
        group: LocalHosts | RemoteHosts,
        arrivals: AsyncServer | None = None,
        pace: Pace | None = None,
        delays: Delays | None = None,
    ):
        super().__init__(server, group)
        self.clock: SimulatedClock | RealClock
        if isinstance(group, RemoteHosts):
            self.clock = RealClock(server, group)
        else:
            self.clock = SimulatedClock(server, group.hosts, delays or ConstantDelay())
        self.arrivals = arrivals or AsyncServer(server)
        self.pace = pace or Pace()
        # clients that have finished and are not replaced yet; None before the first start
        self.free: list[int] | None = None

    @property
    def rounds(self) -> int:
        return self.server.version // self.server.sample

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
            self._receive(self.clock.next(), factors)
        self._start(factors)
        self.clock.pause()
        self.time = self.clock.now
        self.arrivals.close(self.rounds - 1)

    def _start(self, factors: Factors) -> None:
        """Replace the clients that have finished, once all messages of this instant are there."""
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
        idle = roster.eligible.clone()
        idle[list(self.arrivals.busy)] = False
        candidates = idle.nonzero().flatten()
        if len(candidates) <= len(self.free):
            return candidates
        version = server.version
        return select(seed, version, roster.keys, candidates, len(self.free), "next client")

    def _receive(self, update: PendingUpdate, factors: Factors) -> None:
        """A message is used at once."""
        server = self.server
        wire_id = update.wire_id
        counted = {n: torch.tensor([count]) for n, count in update.counted.items()}
        server.account(torch.tensor([wire_id]), torch.tensor([update.gradients]), counted)
        messages = update.messages or ()
        values = np.full(len(messages), update.values)
        outcome = self.arrivals.receive(wire_id, messages, values, factors)
        self.clock.conclude(wire_id, outcome.conclusion)
        assert self.free is not None
        self.free.append(wire_id)
        self.delays_of_round.append(
            {
                "round": (server.version - 1) // server.sample + 1,
                "client": server.roster.ids[wire_id],
                "started": update.version,
                "staleness": outcome.staleness,
                "start": update.start,
                "time": update.arrival,
                "delay": update.arrival - update.start,
                "counted": int(outcome.fate == "admitted"),
            }
        )

    def round_bytes(self) -> int:
        contract = self.server.contract
        down, up = contract.down.length, contract.up_lengths(self.server.version)[1]
        first = self.concurrency * down if self.free is None else 0
        waiting = len(self.free or ()) * down
        return first + waiting + self.server.sample * (down + up)

    def settle(self) -> None:
        self.clock.settle()

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self) -> tuple[State, dict[str, Any]]:
        self.settle()
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
            raise ValueError("engine: time must be a number >= 0, and started true or false")
        parts = {n: s for n, s in shapes.items() if n.startswith(("arrivals.", "flights."))}
        check_arrivals(self.arrivals, under(parts, "arrivals."), facts, most)
        self.clock.check(under(parts, "flights."), most)
        free = {n: s for n, s in shapes.items() if n not in parts}
        count = next((s[0][0] for s in free.values() if s[0]), 0)
        if free != {"free": ((count,), torch.int64)} or count > most:
            raise ValueError("engine: 'free' must be the ids of clients that have just finished")

    def load(self, tensors: State, facts: dict[str, Any], rounds: int) -> None:
        load_arrivals(self.arrivals, under(tensors, "arrivals."), {"steps": facts["steps"]})
        self.clock.load(under(tensors, "flights."), facts["time"])
        clients = len(self.server.roster)
        free = tensors["free"]
        if bool(((free < 0) | (free >= clients)).any()):
            raise ValueError("engine: unknown client id in checkpoint")
        self.time = facts["time"]
        self.free = free.tolist() if facts["started"] else None
        if self.clock.under_way.keys() != self.arrivals.busy.keys():
            raise ValueError("engine: clients at work and messages under way differ")

    def most_bytes(self) -> int:
        most = self.concurrency
        return most_arrivals_bytes(self.arrivals, most) + self.clock.most_bytes(most) + 8 * most

    def versions(self, rounds: int) -> int:
        return rounds * self.server.sample
