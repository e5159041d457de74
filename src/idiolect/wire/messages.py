"""Messages as bytes: a header of 24 bytes, then the declared tensors in order, little-endian.

    magic "idl1" | version u32 | run u32 | schema u32 | client u32 | weight f32 | numbers ...

- version: the version of the server's model that the message started from; in synchronous rounds
  the number of the round.
- run: the id of the run.
- schema: a checksum of what the message holds, how it is coded and the contract of the run.
- client: the sender's wire id, or FROM_SERVER in a message down.
- weight: the weight that the sender claims, its number of training samples.

No names, no class names, no lengths: sender and receiver know the schema. So the size of an
acceptable message is known before a byte of it is read, nothing is allocated because a sender says
so, and there is nothing to execute. The messages of a cohort are the rows of one byte matrix:
packing and unpacking run no Python per client.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..core.types import State

MAGIC = int.from_bytes(b"idl1", "little")
HEADER = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "<u4"),
        ("run", "<u4"),
        ("schema", "<u4"),
        ("client", "<u4"),
        ("weight", "<f4"),
    ]
)
FROM_SERVER = 2**32 - 1  # the "client" of a message down
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
    """What a message holds: (name, shape, dtype) of its parts, in order."""

    parts: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    channel: str = ""  # how the numbers are coded; "" = as they are
    contract: int = 0  # checksum of what else both sides must agree on; 0 = nothing

    @classmethod
    def of(cls, state: State, contract: int = 0) -> Schema:
        """The schema of a message that holds these tensors, in the order of their names."""
        parts = tuple((n, tuple(t.shape), t.dtype) for n, t in sorted(state.items()))
        return cls(parts, contract=contract)

    @cached_property
    def values(self) -> int:
        """How many numbers a message holds."""
        return sum(int(np.prod(shape)) for _, shape, _ in self.parts)

    @cached_property
    def length(self) -> int:
        """The length of a message in bytes; 0 where no part is declared: then nothing is sent."""
        if not self.parts:
            return 0
        return HEADER.itemsize + sum(
            int(np.prod(shape)) * dtype.itemsize for _, shape, dtype in self.parts
        )

    @cached_property
    def checksum(self) -> int:
        """Equal on both sides only if parts, channel and contract are."""
        parts = repr([(name, shape, _CODES[dtype]) for name, shape, dtype in self.parts])
        crc = zlib.crc32((parts + self.channel).encode())
        return zlib.crc32(str(self.contract).encode(), crc) if self.contract else crc


def pack(
    schema: Schema,
    run: int,
    version: int | np.ndarray,
    wire_ids: np.ndarray,
    weights: np.ndarray,
    rows: State,
) -> np.ndarray:  # -> uint8[K, length]
    """Messages of K clients as a byte matrix; row k is what client k sends.

    >>> import torch
    >>> schema = Schema.of({"w": torch.zeros(21)})
    >>> rows = {"w": torch.zeros(10, 21)}
    >>> pack(schema, 7, 0, np.arange(10), np.ones(10), rows).shape  # 24 + 4 * 21 bytes each
    (10, 108)
    """
    out = np.empty((len(wire_ids), schema.length), dtype=np.uint8)
    out[:, : HEADER.itemsize] = heads(schema, run, version, wire_ids, weights)
    at = HEADER.itemsize
    for name, shape, dtype in schema.parts:
        t = rows[name].detach().to("cpu")
        if t.dtype != dtype or tuple(t.shape[1:]) != shape:
            raise ValueError(
                f"message {name!r} is {t.dtype}{tuple(t.shape[1:])}, declared {dtype}{shape}"
            )
        width = int(np.prod(shape)) * dtype.itemsize
        body = np.ascontiguousarray(
            t.reshape(len(wire_ids), -1).numpy().astype(_CODES[dtype], copy=False)
        )
        out[:, at : at + width] = body.view(np.uint8).reshape(len(wire_ids), width)
        at += width
    return out


def heads(
    schema: Schema,
    run: int,
    version: int | np.ndarray,
    wire_ids: np.ndarray,
    weights: np.ndarray,
) -> np.ndarray:  # -> uint8[K, 24]
    """The headers of K messages; `version` may be another for each."""
    head = np.zeros(len(wire_ids), dtype=HEADER)
    head["magic"] = MAGIC
    head["version"] = version
    head["run"] = run
    head["schema"] = schema.checksum
    head["client"] = wire_ids
    head["weight"] = weights
    return head.view(np.uint8).reshape(len(wire_ids), -1)


def header(messages: np.ndarray) -> np.ndarray:  # uint8[K, length >= 24] -> HEADER[K]
    """The headers of messages, field by field."""
    return np.ascontiguousarray(messages[:, : HEADER.itemsize]).view(HEADER)[:, 0]


def blank(schema: Schema, rows: int) -> State:
    """Room for the tensors of so many messages, not yet written."""
    return {n: torch.empty(rows, *shape, dtype=dtype) for n, shape, dtype in schema.parts}


def unpack(schema: Schema, messages: np.ndarray) -> State:  # uint8[K, length] -> rows
    """The tensors of K messages whose headers have been checked."""
    state = blank(schema, len(messages))
    unpack_into(state, slice(None), schema, messages)
    return state


def unpack_into(
    state: State, rows: slice | np.ndarray, schema: Schema, messages: np.ndarray
) -> None:
    """As `unpack`, but written to some rows of tensors that exist, on the CPU."""
    at = HEADER.itemsize
    for name, shape, dtype in schema.parts:
        count = int(np.prod(shape))
        end = at + count * dtype.itemsize
        flat = state[name].numpy().reshape(len(state[name]), count)
        flat[rows] = messages[:, at:end].view(_CODES[dtype])
        at = end


def pack_down(state: State, run: int, version: int, contract: int = 0) -> bytes:
    """A message down: the same for all clients. Nothing declared is nothing sent."""
    schema = Schema.of(state, contract)
    if not schema.parts:
        return b""
    rows = {n: t.unsqueeze(0) for n, t in state.items()}
    return pack(schema, run, version, np.array([FROM_SERVER]), np.zeros(1), rows).tobytes()


def open_down(
    schema: Schema, message: bytes, run: int, version: int, device: torch.device
) -> State:
    """A message down, checked: a host takes nothing that is not for this run and version."""
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
        ("version", version),
        ("client", FROM_SERVER),
    ):
        if head[field] != want:
            raise ValueError(f"message down: {field} is {head[field]}, expected {want}")
    return {n: t[0].to(device) for n, t in unpack(schema, matrix).items()}


def finite(rows: State) -> Tensor:  # -> bool[K]
    """Which messages hold only finite numbers."""
    checks = [torch.isfinite(t.flatten(1)).all(1) for t in rows.values() if t.is_floating_point()]
    if not checks:
        return torch.ones(len(next(iter(rows.values()))), dtype=torch.bool)
    return torch.stack(checks).all(0)


def magnitudes(up: State) -> Tensor:  # rows[S, m] each -> float64[S]
    """The largest number of every message, without its sign.

    >>> magnitudes({"w": torch.tensor([[1.0, -2.0], [3.0, 0.0]]), "c": torch.ones(2, 1)}).tolist()
    [2.0, 3.0]
    """
    parts = [t.flatten(1).abs().amax(1).double().cpu() for t in up.values() if t.shape[1]]
    return torch.stack(parts).amax(0)
