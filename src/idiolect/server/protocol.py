"""What server and hosts agree on, and what they exchange in a round beside the messages."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..channels import Channel
from ..channels.link import Link
from ..core.knobs import Factors, SettingError
from ..core.types import State, leaves
from ..method import NOBODY, Method
from ..methods.exchanges import OneExchange, exchanges_of
from ..methods.wrapped import innermost
from ..privacy.sums.cost import protocol_bytes
from ..privacy.sums.distributed import GridNoise
from ..privacy.sums.setting import SecureSums
from ..task.task import Task
from ..wire.messages import HEADER, DownMessage, Schema
from ..wire.ragged import Ragged, stacked
from .sum_link import SumLink


@dataclass(frozen=True)
class Contract:
    """Method, task, channel and run: both sides are built from it, and neither holds the other.

    The checksum is mixed into the schema's of every header, so that a message made under another
    method, model, precision, channel, seed or run setting is rejected by its first bytes.
    """

    method: Method
    task: Task  # as the run computes it
    channel: Channel
    run: int  # identifies the run, 32 bits
    settings: str = ""  # a digest of the run's settings, where both sides know them
    # names and shapes of the parameters of each group's model, where groups of clients have unlike
    # ones: a host knows the task of its group, and the server that of the first
    layouts: tuple[Any, ...] = ()
    sums: SecureSums | None = None  # the server learns sums of messages only
    noise: GridNoise | None = None  # that clients add to messages of secure sums

    @cached_property
    def link(self) -> Link:
        """The channel fitted to the method's messages."""
        if self.sums is not None:
            return SumLink.of_sums(self.sums, self.method, self.task, self.noise)
        return Link.fit(self.channel, self.method, self.task, bool(self.layouts))

    @cached_property
    def up(self) -> Schema:
        """What a message up holds."""
        message = sorted(self.method.message(self.task).items())
        parts = tuple((name, (size,), self.task.dtype) for name, size in message)
        return Schema(parts, self.link.coding, self.checksum)

    @cached_property
    def down(self) -> Schema:
        """What a message down to all clients holds."""
        state = self.method.broadcast(self.task, self._blank_server())
        return Schema.of(state, self.checksum)

    @cached_property
    def addressed(self) -> Schema:
        """What a message down to a single client holds, beside the one to all."""
        state = self.method.address(self.task, self._blank_server(), torch.zeros(1).long())
        for name, t in state.items():
            if t.shape[:1] != (1,):
                raise SettingError(
                    f"address must return a row for each client, [K, ...], got {name!r} of shape "
                    f"{tuple(t.shape)} for one client"
                )
        parts = tuple((n, tuple(t.shape[1:]), t.dtype) for n, t in sorted(state.items()))
        if names := {n for n, _, _ in parts} & {n for n, _, _ in self.down.parts}:
            raise SettingError(
                f"address must send other parts than broadcast, got {min(names)!r} from both"
            )
        return Schema(parts, "addressed", self.checksum)

    @property
    def addresses(self) -> bool:
        """Whether the server sends messages to single clients."""
        return bool(self.addressed.length)

    @cached_property
    def keeps_rows(self) -> bool:
        """Whether the method keeps something for each client at the server."""
        return bool(self.method.server_rows(self.task, NOBODY))

    def _blank_server(self) -> State:
        """The state of a server that knows one client, before the first round."""
        rows = self.method.server_rows(self.task, np.zeros(1, dtype=np.uint64))
        state = self.method.server(self.task)
        if names := rows.keys() & state.keys():
            raise SettingError(
                f"server_rows must keep other parts than server, got {min(names)!r} from both; a "
                "server that keeps rows alone returns {} from server"
            )
        return state | rows

    def checked(self, result: Any, private: State, clients: int) -> tuple[State, State]:
        """What the method's `update` has returned for so many clients, if it is as declared."""
        if not (isinstance(result, tuple) and len(result) == 2):
            raise SettingError(
                "update must return a pair, (message up, new private rows), "
                f"got {type(result).__name__}"
            )
        up, after = result
        shapes = {name: tuple(t.shape) for name, t in up.items()}
        declared = {name: (clients, *shape) for name, shape, _ in self.up.parts}
        if shapes != declared:
            raise SettingError(
                f"update must send the parts that message declares, {declared}, got {shapes}"
            )
        if after.keys() != private.keys():
            raise SettingError(
                "update must return private rows of the same names as private, "
                f"{', '.join(private) or 'none'}, got {', '.join(after) or 'none'}"
            )
        return up, after

    def reference(self, method: Method, down: State) -> State:
        """What the receiver of a message knows of it: of all clients, or as rows of each.

        `method`: as a schedule has it in that round.
        """
        if not self.addresses:
            return method.reference(self.task, down)
        own = {n for n, _, _ in self.addressed.parts}
        of_all = method.reference(self.task, {n: t for n, t in down.items() if n not in own})
        sizes = method.message(self.task)
        models = own & sizes.keys() - set(method.traits.changes)
        rows = {n: down[n] for n in models if down[n].shape[1:] == (sizes[n],)}
        return of_all | rows

    # -- the exchanges of a round ------------------------------------------------------------------
    @cached_property
    def exchanges(self) -> tuple[Contract, ...]:
        """What is agreed on for each exchange of a round, in order: all of it where there is one.

        Exchange k of round r has the version r E + k of E exchanges.
        """
        methods = exchanges_of(self.method)
        if len(methods) == 1:
            return (self,)
        return tuple(replace(self, method=method) for method in methods)

    def of(self, version: int) -> Contract:
        """What is agreed on for the exchange of this version."""
        return self.exchanges[version % len(self.exchanges)]

    def round_of(self, version: int) -> int:
        """The round of a version."""
        return version // (len(self.method.traits.exchanges) or 1)

    @property
    def ends_round(self) -> bool:
        """Whether this is the contract of a round's last exchange."""
        return not isinstance(self.method, OneExchange) or self.method.last

    @property
    def exchange(self) -> str:
        """The name of this exchange; "" where a round has one."""
        return self.method.exchange.name if isinstance(self.method, OneExchange) else ""

    def up_lengths(self, version: int = 0) -> tuple[int, int]:
        """The least and the most bytes of a message up; 0 where nothing is sent."""
        if not self.up.length:
            return 0, 0
        least, most = self.link.lengths(version)
        return HEADER.itemsize + least, HEADER.itemsize + most

    def sum_bytes(self, clients: int) -> tuple[int, int]:
        """(up, down) bytes of each of so many clients for a secure sum, beside its message."""
        if self.sums is None or not self.up.length:
            return 0, 0
        return protocol_bytes(self.sums.plan(clients))

    def down_values(self, version: int = 0) -> float:
        """32-bit words of a message down, as the lp-proj paper counts."""
        return self.link.down_values(self.down.values, version) + self.addressed.values

    def answer(self, part: str, query: bytes, numbers: int) -> Schema:
        """What an answer of a channel's second exchange holds.

        An answer is one to this very query: clients may be asked again in the same round.
        """
        question = f"answer {part} {zlib.crc32(query)}"
        return Schema((("values", (numbers,), self.task.dtype),), question, self.checksum)

    @cached_property
    def checksum(self) -> int:
        """32 bits over everything that both sides must have alike."""
        task = self.task
        layout = self.layouts or layout_of(task)
        how = task.numerics
        numerics: tuple[Any, ...] = (task.dtype, task.seed, how.clip, how.weight_decay)
        if how.target_scale is not None:
            numerics = (*numerics, how.target_scale)
        parts: tuple[Any, ...] = (
            type(innermost(self.method)).__qualname__,
            sorted(self.method.as_dict().items()),
            layout,
            task.criterion.name,
            numerics,
            self.channel.stages,
            self.run,
            self.settings,
        )
        if self.sums is not None:
            parts = (*parts, self.sums)
        if task.public is not None:
            parts = (*parts, *(_bytes_of(t) for t in leaves(task.public)))
        return zlib.crc32(repr(parts).encode())


def layout_of(task: Task) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the parameters of a task's model."""
    return [(n, tuple(s)) for n, s in zip(task.layout.names, task.layout.shapes, strict=True)]


def _bytes_of(t: Tensor) -> int:
    """32 bits over a tensor."""
    return zlib.crc32(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())


@dataclass(frozen=True)
class RoundRequest:
    """From the server to every host: who trains in this round, who is heard, the message down."""

    version: int  # of the server's model; in synchronous rounds the number of the round
    down: DownMessage
    train: Tensor  # int64: wire ids of the clients that update
    heard: Tensor  # int64: wire ids of those whose messages are expected, among `train`
    factors: Factors = field(default_factory=dict)  # of settings in this round: a schedule
    # int64: how often each of `train` has started before, by which its random numbers are keyed;
    # None in synchronous rounds: by the round
    turns: Tensor | None = None


@dataclass(frozen=True)
class HostUpdate:
    """What a host sends in a round."""

    messages: Ragged
    values: np.ndarray  # float64[S]: 32-bit words of each as the lp-proj paper counts
    trained: Tensor  # int64: wire ids of the clients that trained
    gradients: Tensor  # int64: gradient evaluations of each of them
    counted: dict[str, Tensor] = field(default_factory=dict)  # int64 each: see Traits.counters

    @classmethod
    def merge(cls, updates: Sequence[HostUpdate]) -> HostUpdate:
        """All of it as one."""
        if len(updates) == 1:
            return updates[0]
        none = torch.zeros(0, dtype=torch.int64)
        return cls(
            stacked([s.messages for s in updates]),
            np.concatenate([np.zeros(0), *(s.values for s in updates)]),
            torch.cat([none, *(s.trained for s in updates)]),
            torch.cat([none, *(s.gradients for s in updates)]),
            {
                n: torch.cat([s.counted[n] for s in updates])
                for n in (updates[0].counted if updates else ())
            },
        )


@dataclass(frozen=True)
class ExchangeId:
    """Which messages of a round: those up, or answers about a part in a second exchange."""

    version: int
    part: str = ""  # the part of the message that is asked about; "" = the message itself


@dataclass(frozen=True)
class Query:
    """A channel's second exchange: the exact values of some coordinates are asked for."""

    version: int
    part: str  # of the message
    message: bytes  # the coordinates
    asked: Tensor  # int64: wire ids


@dataclass(frozen=True)
class RoundConclusion:
    """The end of a round: whose messages counted, and which coordinates the server has taken."""

    version: int
    counted: Tensor  # int64: wire ids
    unheard: Tensor  # int64: wire ids of those expected that did not count
    taken: dict[str, bytes]  # part of the message -> coordinates taken (second exchange)
