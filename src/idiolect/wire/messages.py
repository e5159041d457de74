"""Messages as bytes: a fixed header of 24 bytes, then the declared tensors one after the other, little-endian.

    magic "idl1" | round u32 | run u32 | schema u32 | client u32 | weight f32 | numbers ...

No names, no class names, no lengths: sender and receiver know the schema, and the header carries its checksum. So the size of
an acceptable message is known before a byte of it is read, nothing is allocated on a sender's word, and there is nothing to
execute. A cohort's messages are the rows of one byte matrix: packing and unpacking touch no Python per client.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.types import State

MAGIC = int.from_bytes(b"idl1", "little")
HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("round", "<u4"),
        ("run", "<u4"),
        ("schema", "<u4"),
        ("client", "<u4"),
        ("weight", "<f4"),
    ]
)
SERVER = 2**32 - 1  # the "client" of a message down
_CODES = {
    torch.float64: "<f8",
    torch.float32: "<f4",
    torch.float16: "<f2",
    torch.int64: "<i8",
    torch.int32: "<i4",
    torch.uint8: "|u1",
}


@dataclass(frozen=True)
class Schema:
    """What a message holds: (name, shape, dtype) in order."""

    parts: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    channel: str = ""  # how the numbers are coded; "" = as they are

    @classmethod
    def of(cls, state: State) -> Schema:
        return cls(tuple((n, tuple(t.shape), t.dtype) for n, t in sorted(state.items())))

    @property
    def values(self) -> int:
        """How many numbers a message holds."""
        return sum(int(np.prod(shape)) for _, shape, _ in self.parts)

    @property
    def length(self) -> int:
        """The length of a message in bytes; 0 where nothing is declared, for then nothing is sent."""
        if not self.parts:
            return 0
        return HEADER.itemsize + sum(
            int(np.prod(shape)) * dtype.itemsize for _, shape, dtype in self.parts
        )

    @property
    def checksum(self) -> int:
        return zlib.crc32(
            (repr([(n, s, _CODES[t]) for n, s, t in self.parts]) + self.channel).encode()
        )


def pack(
    schema: Schema, run: int, round: int, clients: np.ndarray, weights: np.ndarray, rows: State
) -> np.ndarray:
    """Messages of K clients as a byte matrix [K, length]; row k is what client k sends.

    >>> import torch
    >>> schema = Schema.of({"w": torch.zeros(21)})
    >>> pack(schema, 7, 0, np.arange(10), np.ones(10), {"w": torch.zeros(10, 21)}).shape  # 24 + 4 * 21 bytes each
    (10, 108)
    """
    out = np.empty((len(clients), schema.length), dtype=np.uint8)
    out[:, : HEADER.itemsize] = heads(schema, run, round, clients, weights)
    at = HEADER.itemsize
    for name, shape, dtype in schema.parts:
        t = rows[name].detach().to("cpu")
        if t.dtype != dtype or tuple(t.shape[1:]) != shape:
            raise ValueError(
                f"message {name!r} is {t.dtype}{tuple(t.shape[1:])}, declared {dtype}{shape}"
            )
        width = int(np.prod(shape)) * dtype.itemsize
        body = np.ascontiguousarray(
            t.reshape(len(clients), -1).numpy().astype(_CODES[dtype], copy=False)
        )
        out[:, at : at + width] = body.view(np.uint8).reshape(len(clients), width)
        at += width
    return out


def heads(
    schema: Schema, run: int, round: int, clients: np.ndarray, weights: np.ndarray
) -> np.ndarray:  # -> uint8[K, 24]
    """The headers of K messages."""
    head = np.zeros(len(clients), dtype=HEADER)
    head["magic"], head["round"], head["run"], head["schema"] = MAGIC, round, run, schema.checksum
    head["client"], head["weight"] = clients, weights
    return head.view(np.uint8).reshape(len(clients), -1)


def header(messages: np.ndarray) -> np.ndarray:  # uint8[K, length >= 24] -> HEADER[K]
    return np.ascontiguousarray(messages[:, : HEADER.itemsize]).view(HEADER)[:, 0]


def unpack(schema: Schema, messages: np.ndarray) -> State:  # uint8[K, length] -> rows
    """The tensors of K messages whose headers have been checked."""
    at, state = HEADER.itemsize, {}
    for name, shape, dtype in schema.parts:
        width = int(np.prod(shape)) * dtype.itemsize
        body = messages[:, at : at + width].copy().view(_CODES[dtype])
        state[name] = torch.from_numpy(body.astype(body.dtype.newbyteorder("="), copy=False)).view(
            len(messages), *shape
        )
        at += width
    return state


def stack(
    messages: Sequence[bytes | memoryview | np.ndarray], length: int
) -> np.ndarray:  # -> uint8[K, length]
    """Messages of the right length as one byte matrix."""
    if isinstance(messages, np.ndarray) and messages.ndim == 2:
        return messages
    rows = [np.frombuffer(m, dtype=np.uint8) for m in messages]
    return np.stack(rows) if rows else np.empty((0, length), dtype=np.uint8)


def one(state: State, run: int, round: int) -> bytes:
    """A message down."""
    schema = Schema.of(state)
    if not schema.parts:
        return b""
    rows = {n: t.unsqueeze(0) for n, t in state.items()}
    return pack(schema, run, round, np.array([SERVER]), np.zeros(1), rows).tobytes()


def open_one(schema: Schema, message: bytes, run: int, round: int, device: torch.device) -> State:
    """A message down, checked: a host takes nothing that is not for this run and round."""
    if len(message) != schema.length:
        raise ValueError(f"message down: {len(message)} bytes, expected {schema.length}")
    if not message:
        return {}
    matrix = np.frombuffer(message, dtype=np.uint8)[None]
    head = header(matrix)[0]
    for field, want in (
        ("magic", MAGIC),
        ("run", run),
        ("schema", schema.checksum),
        ("round", round),
        ("client", SERVER),
    ):
        if head[field] != want:
            raise ValueError(f"message down: {field} is {head[field]}, expected {want}")
    return {n: t[0].to(device) for n, t in unpack(schema, matrix).items()}


def finite(rows: State) -> Tensor:  # -> bool[K]
    """Which messages hold only finite numbers."""
    checks = [torch.isfinite(t.flatten(1)).all(1) for t in rows.values() if t.is_floating_point()]
    return (
        torch.stack(checks).all(0)
        if checks
        else torch.ones(len(next(iter(rows.values()))), dtype=torch.bool)
    )
