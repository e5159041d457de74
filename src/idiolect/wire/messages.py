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

import math
import zlib
from dataclasses import dataclass, field
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
        """The length of a message in bytes; 0 where it has no numbers: then nothing is sent."""
        if not self.values:
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
        check_part(name, rows[name], shape, dtype)
        width = int(np.prod(shape)) * dtype.itemsize
        out[:, at : at + width] = raw_bytes(rows[name])
        at += width
    return out


def check_part(name: str, rows: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """ValueError unless a part of a message is what was declared."""
    if rows.dtype != dtype or tuple(rows.shape[1:]) != shape:
        raise ValueError(
            f"message {name!r} is {rows.dtype}{tuple(rows.shape[1:])}, declared {dtype}{shape}"
        )


def raw_bytes(rows: Tensor) -> np.ndarray:  # [K, ...] -> uint8[K, bytes of a row]
    """Numbers as they travel, little-endian; not copied where they are that already."""
    plain = rows.detach().cpu()
    array = plain.reshape(len(rows), math.prod(rows.shape[1:])).numpy()
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return little.view(np.uint8)


def numbers(raw: np.ndarray, kind: np.dtype) -> Tensor:  # uint8[K, bytes of a row] -> [K, n]
    """The numbers in these bytes; not copied where the machine can read them in their place."""
    array = raw.view(kind.newbyteorder("<")).astype(kind, copy=False)
    in_place = array.flags.aligned and array.flags.writeable
    in_place &= all(stride % array.itemsize == 0 for stride in array.strides)
    return torch.from_numpy(array if in_place else array.copy())


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


def unpack(schema: Schema, bodies: np.ndarray) -> State:  # uint8[K, length - 24] -> rows
    """The tensors of K messages whose headers have been checked; they may share its memory."""
    state = {}
    at = 0
    for name, shape, dtype in schema.parts:
        end = at + int(np.prod(shape)) * dtype.itemsize
        rows = numbers(bodies[:, at:end], np.dtype(_CODES[dtype]).newbyteorder("="))
        state[name] = rows.reshape(len(bodies), *shape)
        at = end
    return state


def pack_down(state: State, run: int, version: int, contract: int = 0) -> bytes:
    """A message down: the same for all clients; no bytes where it has no numbers."""
    schema = Schema.of(state, contract)
    if not schema.length:
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
        return {n: torch.empty(*shape, dtype=t, device=device) for n, shape, t in schema.parts}
    matrix = np.frombuffer(message, dtype=np.uint8)[None]
    head = header(matrix)
    _check_head(head, schema, run, version, [FROM_SERVER])
    state = unpack(schema, matrix[:, HEADER.itemsize :])
    return {n: t[0].to(device, copy=True) for n, t in state.items()}


def _check_head(
    head: np.ndarray, schema: Schema, run: int, version: int, clients: list[int]
) -> None:
    """ValueError unless headers are of this run, version and schema, and for these clients."""
    count = len(clients)
    correct = {
        "magic": [MAGIC] * count,
        "run": [run] * count,
        "schema": [schema.checksum] * count,
        "version": [version] * count,
        "client": clients,
    }
    for name, column in correct.items():
        values = head[name].tolist()
        if values != column:
            pairs = zip(values, column, strict=True)
            value, want = next((value, want) for value, want in pairs if value != want)
            raise ValueError(f"message down: {name} is {value}, expected {want}")


_NOBODY = torch.zeros(0, dtype=torch.int64)
_NO_MESSAGES = np.zeros((0, 0), dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class DownMessage:
    """The message down: one for all clients, and one more for each client that is addressed.

    >>> message = DownMessage(b"abc", torch.tensor([2, 5]), np.zeros((2, 4), dtype=np.uint8))
    >>> len(message), message.only(torch.tensor([5, 7])).wire_ids.tolist()
    (7, [5])
    """

    common: bytes
    wire_ids: Tensor = field(default_factory=lambda: _NOBODY)  # increasing
    # uint8[K, length]: a message for each of `wire_ids`
    own: np.ndarray = field(default_factory=lambda: _NO_MESSAGES)

    def __len__(self) -> int:
        """The bytes that a client is sent."""
        return len(self.common) + self.own.shape[1]

    def only(self, wire_ids: Tensor) -> DownMessage:
        """What concerns these clients."""
        if not self.own.size:
            return self
        mine = torch.isin(self.wire_ids, wire_ids)
        return DownMessage(self.common, self.wire_ids[mine], self.own[mine.numpy()])


@dataclass(frozen=True, eq=False)
class ReceivedDown:
    """A message down as numbers: vectors that all clients got, and rows of single clients."""

    common: State
    wire_ids: Tensor  # int64, increasing: whose rows these are
    own: State  # rows

    def of(self, wire_ids: Tensor) -> State:
        """The message as these clients got it: vectors [m], and rows [K, m] of their own."""
        if not self.own:
            return self.common
        at = torch.searchsorted(self.wire_ids, wire_ids).clamp(max=max(len(self.wire_ids) - 1, 0))
        if not len(self.wire_ids) or not torch.equal(self.wire_ids[at], wire_ids):
            raise ValueError("message down: a client has been sent none of its own")
        return self.common | {n: t[at.to(t.device)] for n, t in self.own.items()}

    def parts(self) -> State:
        """All numbers."""
        return self.common | self.own


def open_own(
    schema: Schema, message: DownMessage, run: int, version: int, device: torch.device
) -> State:
    """The messages to single clients, checked as `open_down` checks the one to all."""
    clients = len(message.wire_ids)
    if message.own.shape != (clients, schema.length):
        raise ValueError(
            f"message down: {message.own.shape[1]} bytes for each of {len(message.own)} clients, "
            f"expected {schema.length} for each of {clients}"
        )
    _check_head(header(message.own), schema, run, version, message.wire_ids.tolist())
    state = unpack(schema, message.own[:, HEADER.itemsize :])
    return {n: t.to(device, copy=True) for n, t in state.items()}


def finite(rows: State) -> np.ndarray:  # -> bool[K]
    """Which messages hold only finite numbers; NumPy looks ten times as fast as torch."""
    parts = [t.flatten(1).cpu().numpy() for t in rows.values()]
    return np.logical_and.reduce([np.isfinite(part).all(1) for part in parts])


def magnitudes(up: State) -> Tensor:  # rows[S, m] each -> float64[S]
    """The largest number of every message, without its sign.

    >>> magnitudes({"w": torch.tensor([[1.0, -2.0], [3.0, 0.0]]), "c": torch.ones(2, 1)}).tolist()
    [2.0, 3.0]
    """
    parts = [t.flatten(1).abs().amax(1).double().cpu() for t in up.values() if t.shape[1]]
    return torch.stack(parts).amax(0)
