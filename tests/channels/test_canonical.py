"""A message can be coded in one way only.

Two messages that decode to the same leave room beside the declared numbers: in padding bits, in
spare codes, in the order of places. So a message with flipped bits is refused or says something
else. What is left is listed, with the reason.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from channels.common import CHANNELS, form, keys, start
from idiolect.channels import Channel, parse_channel
from idiolect.channels.dense import Half
from idiolect.wire.ragged import Ragged, Reader

N = 37  # numbers: fills no byte
MORE = (
    "lbgm(threshold=0.5)",
    "lbgm(threshold=0.5, layers=True)",
    "feedback + lbgm(threshold=0.9) + half",
    "sketch(columns=5, rows=3, k=2)",
    "sketch(columns=5, rows=3, k=2, exact=True)",
)
# Declared numbers that a decoder multiplies by something: by a level of zero, or with a rounding
# that takes two neighbours to one.
MULTIPLIED = {
    "qsgd(levels=2, bucket=7)": "the norm of a bucket whose levels are all zero",
    "qsgd(levels=2, bucket=7, coding=elias)": "the norm of a bucket whose levels are all zero",
    "randomk(share=0.2)": "the last bit of a number, times n/k",
}


def variants(message: bytes, count: int = 2000) -> list[bytes]:
    """The message with each bit flipped, and with two at random."""
    bits = np.unpackbits(np.frombuffer(message, dtype=np.uint8))
    singles = np.eye(len(bits), dtype=np.uint8)
    rng = np.random.default_rng(0)
    pairs = np.zeros((count, len(bits)), dtype=np.uint8)
    for _ in range(2):
        pairs[np.arange(count), rng.integers(len(bits), size=count)] ^= 1
    flips = np.concatenate([singles, pairs[pairs.any(axis=1)]])
    return [row.tobytes() for row in np.packbits(bits ^ flips, axis=1)]


def readings(channel: Channel, messages: list[bytes]) -> list[bytes | None]:
    """All that a server takes from each message; None where it refuses."""
    shape = form(N)
    generator = torch.Generator().manual_seed(1)
    memory = {
        name: torch.randn(1, size, generator=generator).expand(len(messages), -1).clone()
        for name, size in channel.kept("memory", shape).items()
    }
    reader = Reader(Ragged.of(messages))
    rows, after = channel.decode(reader, memory, shape)
    sound = reader.finished() & torch.isfinite(rows).all(1).numpy()
    found = [rows.numpy(), *(after[name].numpy() for name in sorted(after))]
    return [
        b"".join(t[k].tobytes() for t in found) if sound[k] else None for k in range(len(messages))
    ]


def ambiguous(channel: Channel) -> list[bytes]:
    """Messages that are read as another one is, with the other one."""
    shape = form(N)
    x = torch.randn(3, N, generator=torch.Generator().manual_seed(0))
    body, _, _ = channel.encode(x, start(channel, 3, shape), keys(3), shape)
    out = []
    for k in range(3):
        message = body.row(k)
        others = [m for m in variants(message) if m != message]
        (said, *read) = readings(channel, [message, *others])
        assert said is not None
        out += [m for m, also in zip(others, read, strict=True) if also == said]
    return out


@pytest.mark.parametrize("text", [*CHANNELS, *MORE])
def test_no_two_messages_say_the_same(text):
    found = ambiguous(parse_channel(text))
    assert bool(found) == (text in MULTIPLIED), f"{len(found)} messages are read as another"


def test_a_coding_with_room_for_more_is_found():
    @dataclass(frozen=True)
    class Padded(Half):
        """Writes a byte that it does not read."""

        def limit(self, form):
            return super().limit(form) + 1

        def encode(self, rows, state, keys, form):
            coded = super().encode(rows, state, keys, form)
            matrix = np.pad(coded.body.matrix, ((0, 0), (0, 1)))
            coded.body = Ragged.even(matrix)
            return coded

        def read(self, reader, who, form):
            out = super().read(reader, who, form)
            reader.take(1, who)
            return out

    assert len(ambiguous(Channel((Padded(),)))) >= 3 * 8
