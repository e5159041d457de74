"""Clocks of asynchronous training: who started when, and whose message arrives next.

In simulated time a message arrives after a delay; in real time, when its host has sent it.

In simulated time an update depends only on what its client was sent, so it is computed when the
first missing message is due, and then for all clients that have started since, as one batch.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from ..core.tensors import Shapes, check_shapes
from ..core.types import State
from ..host import calls
from ..host.calls import FAILED, Call
from ..host.host import Host
from ..server.protocol import RoundConclusion, RoundRequest
from ..server.server import Server
from ..wire.ragged import Ragged
from .delays import Delays
from .remote_hosts import RemoteHosts
from .retry import failure


@dataclass
class PendingUpdate:
    """One piece of work: from the start of a client to the arrival of its message."""

    wire_id: int
    version: int  # of the server's model that it started from
    start: float
    arrival: float = 0.0
    messages: Sequence[bytes] | None = None  # None until computed: one, or none if it sends none
    values: float = 0.0  # 32-bit words of a message as the lp-proj paper counts
    gradients: int = 0
    counted: dict[str, int] = field(default_factory=dict)  # see Traits.counters


@dataclass
class SimulatedClock:
    """The simulated clock."""

    server: Server
    hosts: Sequence[Host]
    delays: Delays

    keeps = True  # work that is under way is in a checkpoint

    def __post_init__(self) -> None:
        self.now = 0.0
        self.under_way: dict[int, PendingUpdate] = {}  # by wire id
        self._queue: list[tuple[float, int]] = []  # (arrival, wire id)
        self._orders: list[RoundRequest] = []  # not yet computed
        self._host = {int(k): host for host in self.hosts for k in host.wire_ids}

    def start(self, order: RoundRequest) -> None:
        """These clients start now."""
        assert order.turns is not None
        keys = self.server.roster.keys[order.train.numpy()]
        took = self.delays.draw(self.server.contract.task.seed, keys, order.turns.numpy())
        for wire_id, delay in zip(order.train.tolist(), took.tolist(), strict=True):
            flight = PendingUpdate(wire_id, order.version, self.now, self.now + delay)
            self.under_way[wire_id] = flight
            heapq.heappush(self._queue, (flight.arrival, wire_id))
        self._orders.append(order)

    def next(self) -> PendingUpdate:
        """The next message that arrives; clients of the same instant come by wire id."""
        self.now, wire_id = heapq.heappop(self._queue)
        if self.under_way[wire_id].messages is None:
            self.compute()
        return self.under_way.pop(wire_id)

    def another_now(self) -> bool:
        """Whether the next message arrives at this very instant."""
        return bool(self._queue) and self._queue[0][0] == self.now

    def compute(self) -> None:
        """The messages of all clients that have started and not been computed."""
        orders, self._orders = self._orders, []
        for host in self.hosts:
            mine = [o for o in orders if len(host.rows(o.train))]
            if not mine:
                continue
            assert host.async_work is not None
            update = host.async_work.begin(mine)
            for k, wire_id in enumerate(update.trained.tolist()):
                self.under_way[wire_id].gradients = int(update.gradients[k])
                self.under_way[wire_id].counted = {n: int(t[k]) for n, t in update.counted.items()}
                self.under_way[wire_id].messages = ()
            senders = update.trained.tolist()[: len(update.messages)]
            for k, wire_id in enumerate(senders):
                self.under_way[wire_id].messages = (update.messages.row(k),)
                self.under_way[wire_id].values = float(update.values[k])

    def conclude(self, wire_id: int, conclusion: RoundConclusion) -> None:
        """The client learns whether its message counted."""
        work = self._host[wire_id].async_work
        assert work is not None
        work.arrived(conclusion)

    def pause(self) -> None:
        """The end of a round, where state may be saved: nothing is left to compute."""
        if self._orders:
            self.compute()

    def settle(self) -> None:
        """Hosts of this process have no work under way."""

    # -- checkpoints -----------------------------------------------------------------------------
    @property
    def _columns(self) -> dict[str, torch.dtype]:
        """What is saved of each message beside its bytes."""
        whole = ("wire_ids", "version", "gradients", "lengths", *self._counted)
        real = ("start", "arrival", "values")
        return dict.fromkeys(whole, torch.int64) | dict.fromkeys(real, torch.float64)

    def save(self) -> State:
        """Messages that are on their way."""
        flights = [flight for _, flight in sorted(self.under_way.items())]
        messages = Ragged.of([b"".join(f.messages or ()) for f in flights])
        columns = {
            "wire_ids": [f.wire_id for f in flights],
            "lengths": messages.lengths.tolist(),
            **{f"counted.{n}": [f.counted[n] for f in flights] for n in self._counters},
        }
        for name in ("version", "gradients", "start", "arrival", "values"):
            columns[name] = [getattr(f, name) for f in flights]
        tensors = {n: torch.tensor(columns[n], dtype=dtype) for n, dtype in self._columns.items()}
        return {**tensors, "messages": torch.from_numpy(messages.matrix)}

    def check(self, shapes: Shapes, most: int) -> None:
        """Refuse, by ValueError, what is not `most` messages at most, each of a possible length."""
        count, width = 0, 0
        if "messages" in shapes and len(shapes["messages"][0]) == 2:
            count, width = shapes["messages"][0]
        if count > most or width > self.widest:
            raise ValueError("flights: more or longer messages than this run has under way")
        expected: Shapes = {n: ((count,), dtype) for n, dtype in self._columns.items()}
        check_shapes(shapes, {**expected, "messages": ((count, width), torch.uint8)})

    def load(self, tensors: State, now: float) -> None:
        """As it was saved."""
        ids = tensors["wire_ids"]
        lengths = tensors["lengths"]
        times = torch.stack([tensors["start"], now - tensors["start"], tensors["arrival"] - now])
        client_ids = torch.tensor(sorted(self._host), dtype=torch.int64)
        if not (
            bool(torch.isin(ids, client_ids).all())
            and bool((ids.diff() > 0).all())
            and bool((times >= 0).all())
            and bool(torch.isfinite(times).all())
            and bool(((lengths >= 0) & (lengths <= tensors["messages"].shape[1])).all())
            and all(bool((tensors[n] >= 0).all()) for n in ("gradients", *self._counted))
            and bool((tensors["version"] <= self.server.version).all())
        ):
            raise ValueError("flights: a message that cannot be under way")
        self.now = now
        messages = Ragged(tensors["messages"].numpy(), lengths.numpy())
        for k, wire_id in enumerate(ids.tolist()):
            flight = PendingUpdate(
                wire_id,
                int(tensors["version"][k]),
                float(tensors["start"][k]),
                float(tensors["arrival"][k]),
                (messages.row(k),) if lengths[k] else (),
                float(tensors["values"][k]),
                int(tensors["gradients"][k]),
                {n: int(tensors[f"counted.{n}"][k]) for n in self._counters},
            )
            self.under_way[wire_id] = flight
            self._queue.append((flight.arrival, wire_id))
        heapq.heapify(self._queue)

    @property
    def _counters(self) -> tuple[str, ...]:
        """What the method counts beside gradients."""
        return self.server.contract.method.traits.counters

    @property
    def _counted(self) -> tuple[str, ...]:
        return tuple(f"counted.{name}" for name in self._counters)

    @property
    def widest(self) -> int:
        """The most bytes of a message."""
        contract = self.server.contract
        versions = {0, self.server.version, *(f.version for f in self.under_way.values())}
        return max(contract.up_lengths(v)[1] for v in versions)

    def most_bytes(self, most: int) -> int:
        """The most that the tensors of `save` take."""
        return most * (self.widest + (7 + len(self._counters)) * 8)


class RealClock:
    """Seconds of training, evaluations included; hosts are in other processes."""

    keeps = False  # work under way is not in a checkpoint: it starts again when a run is resumed

    def __init__(self, server: Server, group: RemoteHosts):
        self.server = server
        self.group = group
        self.under_way: dict[int, PendingUpdate] = {}  # by wire id
        self._updates: dict[int, int] = {}  # tickets of updates -> client
        self._notices: set[int] = set()  # tickets of conclusions, whose replies are empty
        self._arrived: deque[PendingUpdate] = deque()
        self._host_of = {int(k): n for n, host in enumerate(group.hosts) for k in host.wire_ids}
        self._before = 0.0  # seconds before this start of the run
        self._start: float | None = None

    @property
    def now(self) -> float:
        since = 0.0 if self._start is None else time.monotonic() - self._start
        return self._before + since

    def start(self, order: RoundRequest) -> None:
        """These clients start now."""
        if self._start is None:
            self._start = time.monotonic()
        assert order.turns is not None
        for client, turn in zip(order.train.split(1), order.turns.split(1), strict=True):
            wire_id = int(client)
            single = replace(order, train=client, heard=client, turns=turn)
            frame = calls.order_call(single, "begin").pack()
            ticket = self.group.calls.carrier.send(self._host_of[wire_id], frame)
            self._updates[ticket] = wire_id
            self.under_way[wire_id] = PendingUpdate(wire_id, order.version, self.now)

    def next(self) -> PendingUpdate:
        """The next message, as soon as there is one."""
        while not self._arrived:
            self._receive()
        return self._arrived.popleft()

    def another_now(self) -> bool:
        """No two messages arrive at the same instant."""
        return False

    def conclude(self, wire_id: int, conclusion: RoundConclusion) -> None:
        """The client learns whether its message counted."""
        frame = calls.verdict_call(conclusion, "arrived").pack()
        self._notices.add(self.group.calls.carrier.send(self._host_of[wire_id], frame))

    def pause(self) -> None:
        """The end of a round: work continues."""

    def settle(self) -> None:
        """Wait until hosts have no work under way; messages that arrive meanwhile are kept."""
        while self._updates or self._notices:
            self._receive()

    def _receive(self) -> None:
        for ticket, frame in self.group.calls.carrier.receive(1.0):
            if frame is None:
                raise RuntimeError("a host was lost; the run can be resumed from its checkpoint")
            reply = Call.open(frame)
            if reply.kind == FAILED:
                raise failure(0, reply)
            self._notices.discard(ticket)
            if ticket not in self._updates:
                continue
            wire_id = self._updates.pop(ticket)
            counted = self.server.contract.method.traits.counters
            update = calls.read_sent(reply, torch.tensor([wire_id]), counted)
            flight = self.under_way.pop(wire_id)
            flight.arrival = self.now
            flight.gradients = int(update.gradients.sum())
            flight.counted = {n: int(t.sum()) for n, t in update.counted.items()}
            flight.messages = [update.messages.row(k) for k in range(len(update.messages))]
            flight.values = float(update.values.mean()) if len(update.values) else 0.0
            self._arrived.append(flight)

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self) -> State:
        """Nothing: clients at work start again when the run is resumed."""
        return {}

    def check(self, shapes: Shapes, most: int) -> None:
        """Nothing is expected."""
        check_shapes(shapes, {})

    def load(self, tensors: State, now: float) -> None:
        """Time continues from where it was."""
        self._before = now

    def most_bytes(self, most: int) -> int:
        return 0
