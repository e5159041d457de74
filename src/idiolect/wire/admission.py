"""Messages as they came, in any form: headers can be read without touching a body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..core.types import State
from . import messages as wire
from .ragged import Ragged

HEAD = wire.HEADER.itemsize
Messages = Sequence[bytes | memoryview] | np.ndarray | Ragged


class MessageBatch:
    """Messages as they came; nothing is copied until it is asked for, and then only that.

    >>> arrived = MessageBatch([bytes(30), b"short"])
    >>> arrived.lengths.tolist(), len(arrived.headers()), arrived.take(np.array([1])).row(0)
    ([30, 5], 2, b'short')
    """

    def __init__(self, messages: Messages):
        self._messages = Ragged.even(messages) if isinstance(messages, np.ndarray) else messages
        if isinstance(self._messages, Ragged):
            self.lengths = self._messages.lengths
        else:
            self.lengths = np.array([len(m) for m in self._messages], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def headers(self) -> np.ndarray:  # -> HEADER[K]
        """The headers; a message shorter than one is filled up with zeros."""
        if isinstance(self._messages, Ragged):
            first = self._messages.matrix[:, :HEAD]
            if first.shape[1] < HEAD:
                first = np.pad(first, ((0, 0), (0, HEAD - first.shape[1])))
        else:
            joined = b"".join(bytes(m[:HEAD]).ljust(HEAD, b"\0") for m in self._messages)
            first = np.frombuffer(joined, dtype=np.uint8).reshape(len(self), HEAD)
        return wire.header(first)

    def take(self, indices: np.ndarray) -> Ragged:  # int64: places in order of arrival
        """Some of the messages, no wider than the longest of them; a stretch is not copied."""
        if not isinstance(self._messages, Ragged):
            return Ragged.of([self._messages[i] for i in indices])
        lengths = self.lengths[indices]
        width = int(lengths.max(initial=0))
        stretch = len(indices) > 0 and bool((np.diff(indices) == 1).all())
        rows = slice(int(indices[0]), int(indices[-1]) + 1) if stretch else indices
        return Ragged(self._messages.matrix[:, :width][rows], lengths)


MOVED = 16 << 20  # bytes that are moved at a time


class RowBuffer:
    """Rows at the places of their clients; `rows` gives them in increasing order of place.

    >>> held = RowBuffer(3)
    >>> held.put(np.array([2]), {"w": torch.ones(1, 2)})
    >>> held.put(np.array([0]), {"w": torch.zeros(1, 2)})
    >>> held.rows()["w"].tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(self, places: int):
        self.taken = np.zeros(places, dtype=bool)  # the places that have a row
        self._state: State = {}
        # the rows stand at the front, without gaps, and somebody may be reading them
        self._packed = False

    def put(self, places: np.ndarray, state: State) -> None:
        """Rows of new places, which increase; they are copied to where they stay."""
        if not len(places):
            return
        if self._packed or not self._state:
            self._make_room(state)
        for n, t in state.items():
            self._state[n][index(places)] = t
        self.taken[places] = True

    def _make_room(self, like: State) -> None:
        """A row for every place, with the rows that are there already at theirs."""
        old = self._state
        self._state = {n: t.new_empty(len(self.taken), *t.shape[1:]) for n, t in like.items()}
        at = torch.from_numpy(np.flatnonzero(self.taken))
        for n, t in old.items():
            self._state[n][at] = t[: len(at)]
        self._packed = False

    def rows(self) -> State:
        """The rows, sorted by place. They are not copied, and later ones do not change them."""
        count = int(self.taken.sum())
        if count < len(self.taken) and not self._packed:
            for t in self._state.values():
                _close_gaps(t, np.flatnonzero(self.taken))
            self._packed = True
        return {n: t[:count] for n, t in self._state.items()}


def index(places: np.ndarray) -> slice | np.ndarray:
    """Increasing places as an index of rows: a slice where they follow one another."""
    if len(places) and places[-1] - places[0] == len(places) - 1:
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def _close_gaps(rows: torch.Tensor, places: np.ndarray) -> None:
    """Move the rows at these places, which increase, to the front: a few at a time."""
    step = max(1, MOVED // max(1, rows[:1].numel() * rows.element_size()))
    first = int((places == np.arange(len(places))).sum())  # those before the first gap stay
    for a in range(first, len(places), step):
        moved = rows[torch.from_numpy(places[a : a + step])]
        rows[a : a + len(moved)] = moved


BODIES = 3  # bodies per client and version that are opened: one, and more only if it was bad
GROUP = 16 << 20  # bytes of bodies and of the rows they become that are opened at a time

# In the order of the checks: a message is counted under the first reason that applies.
REASONS = (
    "size",
    "magic",
    "schema",
    "run",
    "round",
    "stranger",
    "weight",
    "repeated",  # its client has an admitted message
    "too many",  # its client has sent `BODIES` bad ones
    "channel",
    "not finite",
    "overflow",  # a finite number beyond `Inbox.largest`
)
FATES = ("admitted", "missing", *REASONS)
_CODE = {fate: i for i, fate in enumerate(FATES)}
ADMITTED = _CODE["admitted"]
MISSING = _CODE["missing"]

# (bodies, wire ids, which increase) -> (rows, which may share the memory of the bodies, which
# bodies made sense, what the channel remembers of the senders)
Decode = Callable[[Ragged, np.ndarray], tuple[State, np.ndarray, State]]


@dataclass(frozen=True)
class AdmittedMessages:
    """The messages that count, sorted by wire id, and what became of the others.

    A rejected message decides its client's fate only if its header is right (magic, schema, run,
    round, an expected client); the first such message does, unless a message of this client is
    admitted. So every expected client is admitted, rejected under one reason, or missing; and the
    messages rejected are the clients rejected and the surplus.
    """

    up: State  # rows
    wire_ids: Tensor  # int64[S]
    weights: Tensor  # float64[S], capped
    bytes: np.ndarray  # int64[S]: length of each message
    values: np.ndarray  # float64[S]: 32-bit words of each message as the lp-proj paper counts
    rejected: dict[str, int]  # reason -> messages
    fates: np.ndarray  # int8[E]: of the expected clients by increasing wire id, places in FATES
    surplus: dict[str, int]  # reason -> rejected messages that decide no client's fate
    memory: State = field(default_factory=dict)  # what a channel remembers of these clients

    def only(self, selection: Tensor) -> AdmittedMessages:  # bool[S]
        """Some of them."""
        if bool(selection.all()):
            return self
        mask = selection.numpy()
        return replace(
            self,
            up={n: t[selection.to(t.device)] if len(t) else t for n, t in self.up.items()},
            wire_ids=self.wire_ids[selection],
            weights=self.weights[selection],
            bytes=self.bytes[mask],
            values=self.values[mask],
            memory={n: t[selection.to(t.device)] for n, t in self.memory.items()},
        )


@dataclass
class Inbox:
    """Where the messages of one version arrive, in any number of batches and in any order.

    Every batch goes through the same checks, so it does not matter how the messages are split into
    batches. Of several messages of one client the first sound one counts: a bad copy cannot push
    out the good one, in whichever batch it comes, unless `BODIES` bad ones came before it.

    >>> schema = wire.Schema.of({"w": torch.zeros(2)})
    >>> inbox = Inbox(schema, run=7, version=0, expected=torch.arange(3), cap=9.0)
    >>> for k in (2, 0, 2):
    ...     row = {"w": torch.full((1, 2), float(k))}
    ...     inbox.receive(wire.pack(schema, 7, 0, np.array([k]), np.ones(1), row))
    >>> got = inbox.admitted()
    >>> got.wire_ids.tolist(), got.up["w"].tolist(), got.rejected
    ([0, 2], [[0.0, 0.0], [2.0, 2.0]], {'repeated': 1})
    >>> [FATES[fate] for fate in got.fates], got.surplus
    (['admitted', 'missing', 'admitted'], {'repeated': 1})
    """

    schema: wire.Schema
    run: int
    version: int
    expected: Tensor  # wire ids of the clients that were asked; anyone else is a stranger
    cap: float  # the largest weight that counts; a larger claim counts as the cap
    decode: Decode | None = None  # the channel's; None = the schema's numbers as they are
    lengths: tuple[int, int] | None = None  # least and most bytes of a message; None = the schema's
    # where rows go instead of being held, with the weights of their clients; then each number may
    # have a magnitude of `largest` at most
    sink: Callable[[State, np.ndarray], None] | None = None
    largest: float = np.inf
    # float64 by wire id: the weights that count, whatever is claimed; None = the claims, capped
    enrolled: Tensor | None = None

    def __post_init__(self) -> None:
        self._expected = np.unique(self.expected.numpy().astype(np.int64))
        clients = len(self._expected)
        self._fates = np.full(clients, MISSING, dtype=np.int8)
        self._opened = np.zeros(clients, dtype=np.int8)  # bodies so far
        self._rejected: Counter[str] = Counter()
        # of the admitted messages, at the places of their clients
        self._rows = RowBuffer(clients)
        self._memory = RowBuffer(clients)
        self._weights = np.zeros(clients)
        self._lengths = np.zeros(clients, dtype=np.int64)
        self._values = np.zeros(clients)

    def receive(
        self,
        messages: Messages,
        values: np.ndarray | None = None,
        sender: Tensor | None = None,
    ) -> None:
        """Check messages and hold those that count; each other one is counted under its reason.

        `values`: float64 per message, 32-bit words as the lp-proj paper counts; None = the number
        of values of the schema. `sender`: the wire ids that they may come from, where the engine
        knows who has sent them; a message in the name of anybody else is a stranger's.
        """
        arrived = MessageBatch(messages)
        if values is None:
            values = np.full(len(arrived), float(self.schema.values))
        values = np.asarray(values, dtype=np.float64)
        if len(values) != len(arrived):
            raise ValueError(f"{len(values)} values for {len(arrived)} messages")
        head = arrived.headers()
        place, is_expected = self._places(head["client"].astype(np.int64))
        if sender is not None:
            is_expected &= np.isin(head["client"].astype(np.int64), sender.numpy())
        fates, deciding = self._judged(arrived.lengths, head, is_expected)

        waiting = np.flatnonzero(fates == ADMITTED)  # messages whose bodies could be opened
        while len(waiting):
            clients = place[waiting]
            admitted = self._fates[clients] == ADMITTED
            over_limit = ~admitted & (self._opened[clients] >= BODIES)
            fates[waiting[admitted]] = _CODE["repeated"]
            fates[waiting[over_limit]] = _CODE["too many"]
            waiting = waiting[~admitted & ~over_limit]
            first = _first_of_each(place[waiting])
            indices = waiting[first]
            fates[indices] = self._open(arrived, indices, place[indices], head["weight"][indices])
            sound = indices[fates[indices] == ADMITTED]
            self._hold(place[sound], head["weight"][sound], arrived.lengths[sound], values[sound])
            waiting = np.delete(waiting, first)
        self._book(fates, place, deciding)

    def admitted(self) -> AdmittedMessages:
        """The messages of all batches so far that count."""
        is_admitted = self._fates == ADMITTED
        anyone = bool(is_admitted.any()) and self.sink is None
        up, memory = (self._rows.rows(), self._memory.rows()) if anyone else self._nothing()
        surplus = Counter(self._rejected)
        surplus.subtract(FATES[fate] for fate in self._fates[self._fates > MISSING])
        return AdmittedMessages(
            up,
            torch.from_numpy(self._expected[is_admitted]),
            torch.from_numpy(self._weights[is_admitted]),
            self._lengths[is_admitted],
            self._values[is_admitted],
            _in_order(self._rejected),
            self._fates.copy(),
            _in_order(surplus),
            memory,
        )

    def _judged(
        self, lengths: np.ndarray, head: np.ndarray, is_expected: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:  # -> int8[M], bool[M]
        """What header and length of each message say, and which would decide a client's fate."""
        low, high = self.lengths or (self.schema.length, self.schema.length)
        addressed = {
            "magic": head["magic"] == wire.MAGIC,
            "schema": head["schema"] == self.schema.checksum,
            "run": head["run"] == self.run,
            "round": head["version"] == self.version,
            "stranger": is_expected,
        }
        with np.errstate(invalid="ignore"):
            weighed = np.isfinite(head["weight"]) & (head["weight"] > 0)
        fits = (lengths >= max(low, HEAD)) & (lengths <= high)
        checks = {"size": fits, **addressed, "weight": weighed}
        fates = np.full(len(lengths), ADMITTED, dtype=np.int8)
        for reason, passes in checks.items():
            fates[~passes & (fates == ADMITTED)] = _CODE[reason]
        return fates, np.logical_and.reduce([lengths >= HEAD, *addressed.values()])

    def _open(
        self, arrived: MessageBatch, indices: np.ndarray, place: np.ndarray, weights: np.ndarray
    ) -> np.ndarray:
        """Open the bodies of some messages and keep the rows of the sound ones; their fates.

        At most one message per client, in the order of the clients' places.
        """
        self._opened[place] += 1
        longest = int(arrived.lengths[indices].max(initial=0))
        step = max(1, GROUP // (longest + self.schema.length))
        fates = [np.zeros(0, dtype=np.int8)]
        for a in range(0, len(indices), step):
            some = slice(a, a + step)
            group = arrived.take(indices[some])
            bodies = Ragged(group.matrix[:, HEAD:], group.lengths - HEAD)
            rows, decoded, memory = self._decode(bodies, self._expected[place[some]])
            if self.sink is None:
                fates.append(self._hold_rows(rows, decoded, memory, place[some]))
            else:
                fates.append(self._sum_rows(rows, decoded, place[some], weights[some]))
        return np.concatenate(fates)

    def _decode(self, bodies: Ragged, wire_ids: np.ndarray) -> tuple[State, np.ndarray, State]:
        """Rows, which bodies made sense, and what the channel remembers."""
        if self.decode is not None:
            return self.decode(bodies, wire_ids)
        return wire.unpack(self.schema, bodies.matrix), np.ones(len(bodies), dtype=bool), {}

    def _sum_rows(
        self, rows: State, decoded: np.ndarray, place: np.ndarray, weights: np.ndarray
    ) -> np.ndarray:
        """Numbers that are passed on and not held."""
        assert self.sink is not None
        rows = {n: t.contiguous() for n, t in rows.items()}
        finite = wire.finite(rows)
        fits = wire.magnitudes(rows).numpy() <= self.largest  # false where a number is NaN
        sound = np.flatnonzero(decoded & fits)
        if len(sound):
            sound_rows = {n: t[sound] for n, t in rows.items()} if len(sound) < len(place) else rows
            self.sink(sound_rows, self._counted(place[sound], weights[sound]))
        fates = np.where(finite, _CODE["overflow"], _CODE["not finite"])
        fates[fits] = ADMITTED
        return np.where(decoded, fates, _CODE["channel"]).astype(np.int8)

    def _hold_rows(
        self, rows: State, decoded: np.ndarray, memory: State, place: np.ndarray
    ) -> np.ndarray:
        """Numbers that stay until the round is closed."""
        sound = decoded & wire.finite(rows)
        if not sound.all():
            sound_indices = np.flatnonzero(sound)
            rows = {n: t[sound_indices] for n, t in rows.items()}
            memory = {n: t[sound_indices] for n, t in memory.items()}
        self._rows.put(place[sound], rows)
        self._memory.put(place[sound], memory)
        fates = np.where(sound, ADMITTED, _CODE["not finite"])
        return np.where(decoded, fates, _CODE["channel"]).astype(np.int8)

    def _hold(
        self, place: np.ndarray, weights: np.ndarray, lengths: np.ndarray, values: np.ndarray
    ) -> None:
        """What else counts of admitted messages."""
        self._fates[place] = ADMITTED
        self._weights[place] = self._counted(place, weights)
        self._lengths[place] = lengths
        self._values[place] = values

    def _counted(self, place: np.ndarray, claimed: np.ndarray) -> np.ndarray:  # -> float64
        """How much clients count: as enrolled, or as they claim, at most the cap."""
        if self.enrolled is not None:
            return self.enrolled.numpy()[self._expected[place]]
        return np.minimum(claimed.astype(np.float64), self.cap)

    def _book(self, fates: np.ndarray, place: np.ndarray, deciding: np.ndarray) -> None:
        """Count the rejected messages; the first deciding one of a client without a fate is it."""
        bad = np.flatnonzero(fates != ADMITTED)
        if not len(bad):
            return
        for code, count in enumerate(np.bincount(fates[bad])):
            self._rejected[FATES[code]] += int(count)
        bad = bad[deciding[bad]]
        bad = bad[self._fates[place[bad]] == MISSING]
        clients, first = np.unique(place[bad], return_index=True)
        self._fates[clients] = fates[bad[first]]

    def _places(self, wire_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of each sender among the expected clients, and whether it has one."""
        place = np.searchsorted(self._expected, wire_ids)
        is_expected = place < len(self._expected)
        is_expected[is_expected] = self._expected[place[is_expected]] == wire_ids[is_expected]
        return place, is_expected

    def _nothing(self) -> tuple[State, State]:
        """Rows and memory of no clients."""
        length = 0 if self.decode else max(0, self.schema.length - HEAD)
        no_messages = Ragged.even(np.zeros((0, length), dtype=np.uint8))
        rows, _, memory = self._decode(no_messages, self._expected[:0])
        return rows, memory


def admit(
    messages: Messages,
    *,
    schema: wire.Schema,
    run: int,
    version: int,
    expected: Tensor,
    cap: float,
    decode: Decode | None = None,
    lengths: tuple[int, int] | None = None,
) -> AdmittedMessages:
    """The messages of one batch that count; see `Inbox` for the arguments."""
    inbox = Inbox(schema, run, version, expected, cap, decode, lengths)
    inbox.receive(messages)
    return inbox.admitted()


def _in_order(counts: Counter[str]) -> dict[str, int]:
    """The reasons that occurred, in the order of the checks."""
    return {reason: counts[reason] for reason in REASONS if counts[reason]}


def _first_of_each(place: np.ndarray) -> np.ndarray:
    """Where each client occurs first, in the order of the clients' places."""
    if (place[1:] > place[:-1]).all():  # the usual case: everyone once, in order
        return np.arange(len(place))
    return np.unique(place, return_index=True)[1]
