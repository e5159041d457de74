"""A channel fitted to the messages of a method.

Which parts are coded, against which reference, and what both sides keep for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..core import streams
from ..core.types import State, prefixed, under
from ..method import Method
from ..task.task import Task
from ..wire.ragged import Ragged, Reader, join
from .channel import Channel
from .stage import Form, Stage


@dataclass(frozen=True)
class Link:
    """The parts of a message, each through the channel (those in `exact` as they are), in order.

    What is kept for a part has the prefix "part." in a State.
    """

    channel: Channel
    parts: dict[str, Form]
    exact: tuple[str, ...] = ()

    @classmethod
    def fit(cls, channel: Channel, method: Method, task: Task) -> Link:
        """The link for the messages up of a method."""
        message = sorted(method.message(task).items())
        parts = {
            n: Form(m, task.layout.starts if m == task.d else (0, m), dtype=task.dtype)
            for n, m in message
        }
        return cls(channel, parts, method.traits.uncompressed)

    @property
    def codes(self) -> bool:
        """Whether anything is coded; otherwise messages hold the numbers as they are."""
        return bool(self.channel.stages)

    def check(self) -> list[str]:
        """Refuse what does not fit; warnings otherwise."""
        return [w for _, channel, form in self._parts() for w in channel.check(form)]

    def _parts(self, round: int = 0) -> list[tuple[str, Channel, Form]]:
        """(part, the channel it goes through, its form)."""
        return [
            (n, Channel() if n in self.exact else self.channel, replace(f, round=round))
            for n, f in self.parts.items()
        ]

    def limit(self, round: int = 0) -> int:
        """The most bytes of the body of a message."""
        return sum(channel.limit(form) for _, channel, form in self._parts(round))

    def down_values(self, round: int = 0) -> float:
        """32-bit words of a message down, as the lp-proj paper counts."""
        return sum(channel.down_values(form) for _, channel, form in self._parts(round))

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
        self, up: State, reference: State, state: State, keys: np.ndarray, round: int
    ) -> tuple[Ragged, State, np.ndarray]:
        """Bodies of the messages, the clients' rows afterwards, and 32-bit words per message."""
        bodies = []
        values = np.zeros(len(keys))
        for i, (name, channel, form) in enumerate(self._parts(round)):
            rows = up[name]
            if name in reference and channel.stages:
                rows = rows - reference[name]
            with np.errstate(over="ignore"):
                own = streams.mix(keys + np.uint64(1000 * i))
            body, part_state, words = channel.encode(rows, under(state, f"{name}."), own, form)
            state = state | prefixed(part_state, f"{name}.")
            bodies.append(body)
            values += words
        return join(bodies), state, values

    # -- the server's side -------------------------------------------------------------------------
    def decode(self, bodies: Ragged, memory: State, round: int) -> tuple[State, np.ndarray, State]:
        """What arrived, which messages made sense, and the memory of these clients.

        Where there is a reference, what arrived is the change from it: see `restore`.
        """
        reader = Reader(bodies)
        up = {}
        for name, channel, form in self._parts(round):
            up[name], part_memory = channel.decode(reader, under(memory, f"{name}."), form)
            memory = memory | prefixed(part_memory, f"{name}.")
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

    def aggregate_parts(self, round: int) -> list[tuple[str, str, Form]]:
        """(part, prefix of what `aggregate_stage` keeps for it, the form this stage is given)."""
        at = self.channel.aggregate_at
        return [
            (n, f"{n}.{at}.", channel.forms(form)[at])
            for n, channel, form in self._parts(round)
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
