"""A channel fitted to the messages of a method.

Which parts are coded, against which reference, and what both sides keep for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from torch import Tensor

from ..core import streams
from ..core.streams import Keys
from ..core.types import State, prefixed, under
from ..method import Method
from ..task.task import Task
from ..wire.messages import Schema, check_part, raw_bytes, unpack
from ..wire.ragged import Ragged, Reader, join
from .channel import Channel
from .stage import Form, Stage


@dataclass(frozen=True)
class Link:
    """The parts of a message, each through the channel (those in `exact` as they are), in order.

    What is kept for a part has the prefix "part." in a State.
    """

    # whether messages that started from different models can be coded together
    mixes_versions: ClassVar[bool] = False

    channel: Channel
    parts: dict[str, Form]
    exact: tuple[str, ...] = ()
    exchanges: int = 1  # of a round: versions of the server per round

    @classmethod
    def fit(cls, channel: Channel, method: Method, task: Task, unlike: bool = False) -> Link:
        """The link for the messages up of a method.

        Where clients have `unlike` models no part has the tensors of one, whatever its length.
        """
        message = sorted(method.message(task).items())
        parts = {
            n: Form(
                m, task.layout.starts if m == task.d and not unlike else (0, m), dtype=task.dtype
            )
            for n, m in message
        }
        exchanges = len(method.traits.exchanges) or 1
        return cls.of(channel, parts, method.traits.uncompressed, exchanges)

    @staticmethod
    def of(
        channel: Channel, parts: dict[str, Form], exact: tuple[str, ...] = (), exchanges: int = 1
    ) -> Link:
        """The link for these parts: the identity where the channel has no stages."""
        return (Link if channel.stages else IdentityLink)(channel, parts, exact, exchanges)

    @property
    def coding(self) -> str:
        """How numbers are coded, as a schema names it."""
        return repr(self.channel.stages)

    def check(self) -> list[str]:
        """Refuse what does not fit; warnings otherwise."""
        return [w for _, channel, form in self._parts() for w in channel.check(form)]

    def _parts(self, version: int = 0) -> list[tuple[str, Channel, Form]]:
        """(part, the channel it goes through, its form); a part without numbers needs none."""
        return [
            (
                n,
                self.channel if f.n and n not in self.exact else Channel(),
                replace(f, round=version // self.exchanges),
            )
            for n, f in self.parts.items()
        ]

    def lengths(self, version: int = 0) -> tuple[int, int]:
        """The least and the most bytes of the body of a message."""
        return 0, sum(channel.limit(form) for _, channel, form in self._parts(version))

    def down_values(self, numbers: int, version: int = 0) -> float:
        """32-bit words of a message down with this many numbers, as the lp-proj paper counts."""
        return sum(channel.down_values(form) for _, channel, form in self._parts(version))

    def kept(self, what: str) -> dict[str, int]:
        """What is kept, name -> numbers.

        `what`: "client" rows, "memory" rows of the server for each client, or "server" vectors.
        """
        return {
            f"{n}.{key}": size
            for n, channel, form in self._parts()
            for key, size in channel.kept(what, form).items()
        }

    def blank(self, what: str, rows: int | None, like: Tensor) -> State:
        """Zeros for everything kept; `rows` None for the server's vectors."""
        return {
            n: like.new_zeros(size if rows is None else (rows, size))
            for n, size in self.kept(what).items()
        }

    # -- the client's side -------------------------------------------------------------------------
    def encode(
        self,
        heads: np.ndarray,
        up: State,
        reference: State,
        state: State,
        keys: Callable[[], Keys],
        version: int,
    ) -> tuple[Ragged, State, np.ndarray]:
        """The messages, the clients' rows afterwards, and 32-bit words per message.

        A message is its head, uint8[K, any], and the body that is made here. `keys`: a random
        stream per client and round.
        """
        bodies = [Ragged.even(heads)]
        values = np.zeros(len(heads))
        client_keys = keys()
        for i, (name, channel, form) in enumerate(self._parts(version)):
            rows = up[name]
            check_part(name, rows, (form.n,), form.dtype)
            if name in reference and channel.stages:
                rows = rows - reference[name]
            with np.errstate(over="ignore"):
                own = streams.mix(client_keys + np.uint64(1000 * i))
            body, part_state, words = channel.encode(rows, under(state, f"{name}."), own, form)
            state = state | prefixed(part_state, f"{name}.")
            bodies.append(body)
            values += words
        return join(bodies).clean(), state, values

    # -- the server's side -------------------------------------------------------------------------
    def decode(
        self, bodies: Ragged, reference: State, memory: State, version: int
    ) -> tuple[State, np.ndarray, State]:
        """What arrived, which messages made sense, and the memory of these clients.

        Coded changes are models again, by the `reference` that they are changes of; where the
        server decodes their aggregate, see `restore`. Rows may share the memory of the bodies.
        """
        reader = Reader(bodies)
        up = {}
        for name, channel, form in self._parts(version):
            up[name], part_memory = channel.decode(reader, under(memory, f"{name}."), form)
            memory = memory | prefixed(part_memory, f"{name}.")
        if self.aggregate_stage is None:
            up = self.restore(up, reference)
        return up, reader.finished(), memory

    def restore(self, up: State, reference: State) -> State:
        """Changes to models again."""
        coded = {n for n, channel, _ in self._parts() if channel.stages}
        return {
            n: rows + reference[n] if n in reference and n in coded else rows
            for n, rows in up.items()
        }

    # -- stages that the server decodes from the aggregate -----------------------------------------
    @property
    def aggregate_stage(self) -> Stage | None:
        """The stage that the server decodes from the aggregate, if the channel has one."""
        at = self.channel.aggregate_at
        return None if at is None else self.channel.stages[at]

    @property
    def second_exchange(self) -> bool:
        """Whether the server asks clients for the exact values of some coordinates."""
        return self.aggregate_stage is not None and self.aggregate_stage.second_exchange

    def aggregate_parts(self, version: int) -> list[tuple[str, str, Form]]:
        """(part, prefix of what `aggregate_stage` keeps for it, the form this stage is given)."""
        at = self.channel.aggregate_at
        return [
            (n, f"{n}.{at}.", channel.forms(form)[at])
            for n, channel, form in self._parts(version)
            if at is not None and channel.stages
        ]

    def rule_sizes(self) -> dict[str, int]:
        """Numbers per row that the server's aggregation rule first sees, for every part.

        The size of the table where a part goes through a stage that is decoded from the aggregate,
        otherwise the size of the part.

        >>> from .sketch import Sketch
        >>> link = Link(Channel((Sketch(columns=6),)), {"w": Form(100), "n": Form(1)}, exact=("n",))
        >>> link.rule_sizes()
        {'w': 30, 'n': 1}
        """
        sizes = {n: form.n for n, form in self.parts.items()}
        stage = self.aggregate_stage
        if stage is not None:
            sizes |= {n: stage.numbers(form) for n, _, form in self.aggregate_parts(0)}
        return sizes


@dataclass(frozen=True)
class IdentityLink(Link):
    """Numbers as they are: packed straight from their rows, and read in their place."""

    mixes_versions: ClassVar[bool] = True

    @property
    def coding(self) -> str:
        return ""

    @cached_property
    def _schema(self) -> Schema:
        return Schema(tuple((n, (form.n,), form.dtype) for n, form in self.parts.items()))

    def lengths(self, version: int = 0) -> tuple[int, int]:
        _, most = super().lengths(version)
        return most, most

    def down_values(self, numbers: int, version: int = 0) -> float:
        return numbers

    def encode(
        self,
        heads: np.ndarray,
        up: State,
        reference: State,
        state: State,
        keys: Callable[[], Keys],
        version: int,
    ) -> tuple[Ragged, State, np.ndarray]:
        for name, form in self.parts.items():
            check_part(name, up[name], (form.n,), form.dtype)
        bodies = [raw_bytes(up[name]) for name in self.parts]
        messages = Ragged.even(np.concatenate([heads, *bodies], axis=1))
        return messages, state, np.full(len(heads), float(self._schema.values))

    def decode(
        self, bodies: Ragged, reference: State, memory: State, version: int
    ) -> tuple[State, np.ndarray, State]:
        return unpack(self._schema, bodies.matrix), np.ones(len(bodies), dtype=bool), memory
