"""The asynchronous engine: a message is used when it arrives, and the next client starts at once.

Algorithm 3 of FFGG. `concurrency` clients are at work at any time; when the message of one has
arrived, the server has made its step before the next one starts from the newest model. Messages
that arrive at the same instant all arrive before anybody starts. A round is `sample` arrivals, so
that rounds, bytes and evaluations compare with those of synchronous rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.knobs import Factors
from ..core.tensors import Shapes
from ..core.types import State, prefixed, under
from ..host.host import Host
from ..host.scores import Scores
from ..server import saved_arrivals
from ..server.arrivals import Arrivals
from ..server.selection import select
from ..server.server import Server
from ..wire.messages import HEADER
from .delays import ConstantDelay, Delays
from .engine import Engine, check_time
from .flights import Flights, Landed
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
        clock: Flights | Workers | None = None,
        arrivals: Arrivals | None = None,
        pace: Pace | None = None,
        delays: Delays | None = None,
    ):
        super().__init__(server, hosts)
        self.clock: Flights | Workers = clock or Flights(server, hosts, delays or ConstantDelay())
        self.arrivals = arrivals or Arrivals(server)
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

    def _arrive(self, landed: Landed, factors: Factors) -> None:
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
        tensors, facts = saved_arrivals.save(self.arrivals, busy=keeps)
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
        saved_arrivals.check(self.arrivals, under(known, "arrivals."), facts, most)
        self.clock.check(under(known, "flights."), most)
        free = {n: s for n, s in shapes.items() if n not in known}
        count = next((s[0][0] for s in free.values() if s[0]), 0)
        if free != {"free": ((count,), torch.int64)} or count > most:
            raise ValueError("engine: 'free' holds the clients that have just landed")

    def load(self, tensors: State, facts: dict[str, Any], rounds: int) -> None:
        saved_arrivals.load(self.arrivals, under(tensors, "arrivals."), {"steps": facts["steps"]})
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
        return (
            saved_arrivals.most_bytes(self.arrivals, most) + self.clock.most_bytes(most) + 8 * most
        )

    def versions(self, rounds: int) -> int:
        return rounds * self.server.sample
