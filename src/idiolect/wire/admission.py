"""What the server accepts, and why it rejects the rest. A rejected message is an absent client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..core.types import State
from . import messages as wire
from .ragged import Ragged

HEAD = wire.HEADER.itemsize

# In the order of the checks: a message is counted under the first reason that applies.
REASONS = (
    "size",
    "magic",
    "schema",
    "run",
    "round",
    "stranger",
    "weight",
    "channel",
    "not finite",
    "repeated",
)
Messages = Sequence[bytes | memoryview] | np.ndarray | Ragged
# (bodies, wire ids) -> (rows, which bodies made sense, what the channel remembers of the senders)
Decode = Callable[[Ragged, np.ndarray], tuple[State, np.ndarray, State]]


@dataclass(frozen=True)
class Admitted:
    """The messages that count, sorted by wire id, and how many were rejected."""

    up: State  # rows
    wire_ids: Tensor  # int64[S]
    weights: Tensor  # float64[S], capped
    bytes: np.ndarray  # int64[S]: length of each message
    values: np.ndarray  # float64[S]: 32-bit words of each message as the lp-proj paper counts
    rejected: dict[str, int]  # reason -> messages
    memory: State = field(default_factory=dict)  # what a channel remembers of these clients


@dataclass
class Inbox:
    """Where the messages of one version arrive, in any number of batches and in any order.

    Every batch goes through the same checks, so it does not matter how the messages are split into
    batches. Of several messages of one client the first sound one counts: a bad copy cannot push
    out the good one, in whichever batch it comes.

    >>> schema = wire.Schema.of({"w": torch.zeros(2)})
    >>> inbox = Inbox(schema, run=7, version=0, expected=torch.arange(3), cap=9.0)
    >>> for k in (2, 0, 2):
    ...     row = {"w": torch.full((1, 2), float(k))}
    ...     inbox.receive(wire.pack(schema, 7, 0, np.array([k]), np.ones(1), row))
    >>> got = inbox.admitted()
    >>> got.wire_ids.tolist(), got.up["w"].tolist(), got.rejected
    ([0, 2], [[0.0, 0.0], [2.0, 2.0]], {'repeated': 1})
    """

    schema: wire.Schema
    run: int
    version: int
    expected: Tensor  # wire ids of the clients that were asked; anyone else is a stranger
    cap: float  # the largest weight that counts; a larger claim counts as the cap
    decode: Decode | None = None  # a channel's; None = a message has the schema's length
    limit: int = 0  # with `decode`: the most bytes of a body

    def __post_init__(self) -> None:
        self._expected = np.unique(self.expected.numpy().astype(np.int64))
        self._taken = np.zeros(len(self._expected), dtype=bool)  # has an admitted message
        self._batches: list[_Batch] = []
        self._rejected: Counter[str] = Counter()

    def receive(self, messages: Messages, values: np.ndarray | None = None) -> None:
        """Check messages and hold those that count; each other one is counted under its reason.

        `values`: float64 per message, 32-bit words as the lp-proj paper counts; None = the number
        of values of the schema.
        """
        arrived, values = self._fitting(messages, values)
        head = wire.header(arrived.matrix) if len(arrived) else np.zeros(0, dtype=wire.HEADER)
        wire_ids = head["client"].astype(np.int64)
        place, known = self._places(wire_ids)
        with np.errstate(invalid="ignore"):
            weights = head["weight"].astype(np.float64)
            checks = {
                "magic": head["magic"] == wire.MAGIC,
                "schema": head["schema"] == self.schema.checksum,
                "run": head["run"] == self.run,
                "round": head["version"] == self.version,
                "stranger": known,
                "weight": np.isfinite(weights) & (weights > 0),
            }
        good = np.ones(len(wire_ids), dtype=bool)
        for reason, passes in checks.items():
            self._rejected[reason] += int((good & ~passes).sum())
            good &= passes
        if not good.all():
            arrived = arrived[good]
        wire_ids = wire_ids[good]
        place = place[good]

        rows, decoded, memory = self._open(arrived, wire_ids)
        sound = decoded.copy()
        if len(wire_ids):
            sound &= wire.finite(rows).cpu().numpy()
        self._rejected["channel"] += int((~decoded).sum())
        self._rejected["not finite"] += int((decoded & ~sound).sum())

        candidates = np.flatnonzero(sound & ~self._taken[place])
        first = np.unique(place[candidates], return_index=True)[1]  # sorted by wire id
        chosen = candidates[first]
        self._rejected["repeated"] += int(sound.sum()) - len(chosen)
        if not len(chosen):
            return
        self._taken[place[chosen]] = True
        index = torch.from_numpy(chosen)
        self._batches.append(
            _Batch(
                place[chosen],
                {name: t[index] for name, t in rows.items()},
                np.minimum(weights[good][chosen], self.cap),
                arrived.lengths[chosen],
                values[good][chosen],
                {name: t[index] for name, t in memory.items()},
            )
        )

    def admitted(self) -> Admitted:
        """The messages of all batches so far that count."""
        whole = _merged(self._batches or [self._nothing()])
        return Admitted(
            whole.rows,
            torch.from_numpy(self._expected[whole.place]),
            torch.from_numpy(whole.weights),
            whole.lengths,
            whole.values,
            {reason: self._rejected[reason] for reason in REASONS if self._rejected[reason]},
            whole.memory,
        )

    def _fitting(self, messages: Messages, values: np.ndarray | None) -> tuple[Ragged, np.ndarray]:
        """The messages of an acceptable length; the others are not even looked at."""
        if values is None:
            values = np.full(len(messages), float(self.schema.values))
        values = np.asarray(values, dtype=np.float64)
        if len(values) != len(messages):
            raise ValueError(f"{len(values)} values for {len(messages)} messages")
        low = HEAD if self.decode else max(HEAD, self.schema.length)
        high = HEAD + self.limit if self.decode else self.schema.length
        if isinstance(messages, np.ndarray):
            messages = Ragged.even(messages)
        if isinstance(messages, Ragged):
            fits = (messages.lengths >= low) & (messages.lengths <= high)
            arrived = messages if fits.all() else messages[fits]
        else:
            fits = np.array([low <= len(m) <= high for m in messages], dtype=bool)
            arrived = Ragged.of([bytes(m) for m, fit in zip(messages, fits, strict=True) if fit])
        self._rejected["size"] += int((~fits).sum())
        return arrived, values[fits]

    def _places(self, wire_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of each sender among the expected clients, and whether it has one."""
        place = np.searchsorted(self._expected, wire_ids)
        known = place < len(self._expected)
        known[known] = self._expected[place[known]] == wire_ids[known]
        return place, known

    def _open(self, arrived: Ragged, wire_ids: np.ndarray) -> tuple[State, np.ndarray, State]:
        """Rows of the messages, which of them made sense, and what a channel remembers."""
        if self.decode is not None:
            bodies = Ragged(arrived.matrix[:, HEAD:], arrived.lengths - HEAD)
            return self.decode(bodies, wire_ids)
        empty = np.empty((0, self.schema.length), dtype=np.uint8)
        rows = wire.unpack(self.schema, arrived.matrix if len(arrived) else empty)
        return rows, np.ones(len(wire_ids), dtype=bool), {}

    def _nothing(self) -> _Batch:
        none = np.zeros(0, dtype=np.int64)
        rows, _, memory = self._open(Ragged.empty(0), none)
        return _Batch(none, rows, np.zeros(0), none, np.zeros(0), memory)


def admit(
    messages: Messages,
    *,
    schema: wire.Schema,
    run: int,
    version: int,
    expected: Tensor,
    cap: float,
    decode: Decode | None = None,
    limit: int = 0,
) -> Admitted:
    """The messages of one batch that count; see `Inbox` for the arguments."""
    inbox = Inbox(schema, run, version, expected, cap, decode, limit)
    inbox.receive(messages)
    return inbox.admitted()


@dataclass(frozen=True)
class _Batch:
    """Admitted messages, sorted by wire id."""

    place: np.ndarray  # int64[S]: of the sender among the expected clients
    rows: State
    weights: np.ndarray
    lengths: np.ndarray
    values: np.ndarray
    memory: State


def _merged(batches: list[_Batch]) -> _Batch:
    """All batches as one; a single one is returned as it is, its rows are not copied again."""
    if len(batches) == 1:
        return batches[0]
    places = np.concatenate([b.place for b in batches])
    order = places.argsort()
    target = np.empty(len(places), dtype=np.int64)  # the row of each message among all
    target[order] = np.arange(len(places))
    targets = torch.from_numpy(target).split([len(b.place) for b in batches])

    def merge(states: list[State]) -> State:
        merged = {}
        for name, like in states[0].items():
            merged[name] = like.new_empty(len(places), *like.shape[1:])
            for rows, state in zip(targets, states, strict=True):
                merged[name][rows] = state[name]
        return merged

    return _Batch(
        places[order],
        merge([b.rows for b in batches]),
        np.concatenate([b.weights for b in batches])[order],
        np.concatenate([b.lengths for b in batches])[order],
        np.concatenate([b.values for b in batches])[order],
        merge([b.memory for b in batches]),
    )
