"""What server and hosts agree on before the first message."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property

from ..channels import Channel
from ..channels.link import Link
from ..method import Method
from ..methods.wrapped import innermost
from ..task.task import Task
from ..wire.messages import HEADER, Schema


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

    @cached_property
    def link(self) -> Link:
        """The channel fitted to the method's messages."""
        return Link.fit(self.channel, self.method, self.task)

    @cached_property
    def up(self) -> Schema:
        """What a message up holds."""
        message = sorted(self.method.message(self.task).items())
        parts = tuple((name, (size,), self.task.dtype) for name, size in message)
        return Schema(parts, self.link.coding, self.checksum)

    @cached_property
    def down(self) -> Schema:
        """What a message down holds."""
        state = self.method.broadcast(self.task, self.method.server(self.task))
        return Schema.of(state, self.checksum)

    def up_lengths(self, version: int = 0) -> tuple[int, int]:
        """The least and the most bytes of a message up; 0 where nothing is sent."""
        if not self.up.parts:
            return 0, 0
        least, most = self.link.lengths(version)
        return HEADER.itemsize + least, HEADER.itemsize + most

    def down_values(self, version: int = 0) -> float:
        """32-bit words of a message down, as the lp-proj paper counts."""
        return self.link.down_values(self.down.values, version)

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
        layout = [(n, tuple(s)) for n, s in zip(task.layout.names, task.layout.shapes, strict=True)]
        numerics = (task.dtype, task.seed, task.numerics.clip, task.numerics.weight_decay)
        parts = (
            type(innermost(self.method)).__qualname__,
            sorted(self.method.as_dict().items()),
            layout,
            task.criterion.name,
            numerics,
            self.channel.stages,
            self.run,
            self.settings,
        )
        return zlib.crc32(repr(parts).encode())
