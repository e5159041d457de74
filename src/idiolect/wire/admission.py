"""What the server accepts, and the reason when it does not. A rejected message is an absent client."""

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

REASONS = (
    "size",
    "magic",
    "schema",
    "run",
    "round",
    "stranger",
    "repeated",
    "weight",
    "channel",
    "not finite",
)
Decode = Callable[
    [Ragged, np.ndarray], tuple[State, np.ndarray, State]
]  # bodies, clients -> rows, which made sense, memory


@dataclass(frozen=True)
class Admitted:
    up: State  # rows, sorted by client
    clients: Tensor  # int64[S], sorted
    weights: Tensor  # float64[S], capped
    bytes: np.ndarray  # int64[S]: length of each admitted message
    rejected: dict[str, int]  # reason -> messages
    memory: State = field(default_factory=dict)  # what a channel remembers of these clients


def admit(
    messages: Sequence[bytes | memoryview] | np.ndarray | Ragged,
    *,
    schema: wire.Schema,
    run: int,
    round: int,
    expected: Tensor,
    cap: float,
    decode: Decode | None = None,
    limit: int = 0,
) -> Admitted:
    """Check every message; each rejected one is counted under the first reason that applies.

    `expected`: the clients asked in this round; anyone else is a stranger. `cap`: the largest weight a client may claim; a larger
    claim counts as the cap. Of several messages of one client the first is taken. Without `decode` a message has the schema's length;
    with it (a channel) its body has at most `limit` bytes, and what cannot be decoded is rejected.
    """
    rejected: Counter[str] = Counter()
    low, high = (HEAD, HEAD + limit) if decode else (schema.length, schema.length)
    arrived = _fitting(messages, low, high, rejected)
    head = wire.header(arrived.matrix) if len(arrived) else np.zeros(0, dtype=wire.HEADER)
    client = head["client"].astype(np.int64)
    with np.errstate(invalid="ignore"):
        weight = head["weight"].astype(np.float64)
        checks = {
            "magic": head["magic"] == wire.MAGIC,
            "schema": head["schema"] == schema.checksum,
            "run": head["run"] == run,
            "round": head["round"] == round,
            "stranger": np.isin(client, expected.numpy()),
            "weight": np.isfinite(weight) & (weight > 0),
        }
    good = np.ones(len(client), dtype=bool)
    for reason, passes in checks.items():
        rejected[reason] += int((good & ~passes).sum())
        good &= passes
    arrived, client, weight = arrived if good.all() else arrived[good], client[good], weight[good]
    rows, fine, memory = _open(arrived, client, schema, decode)
    rejected["channel"] += int((~fine).sum())
    finite = fine & wire.finite(rows).cpu().numpy() if len(client) else np.zeros(0, dtype=bool)
    rejected["not finite"] += int((fine & ~finite).sum())
    first = np.zeros(
        len(client), dtype=bool
    )  # of the sound ones, so that a bad copy cannot push out the good one
    sound = np.flatnonzero(finite)
    first[sound[np.unique(client[sound], return_index=True)[1]]] = True
    rejected["repeated"] += int((finite & ~first).sum())
    chosen = np.flatnonzero(first)
    chosen = chosen[client[chosen].argsort(kind="stable")]
    index = torch.from_numpy(chosen)
    return Admitted(
        {name: t[index] for name, t in rows.items()},
        torch.from_numpy(client[chosen]),
        torch.from_numpy(np.minimum(weight[chosen], cap)),
        arrived.lengths[chosen],
        {reason: n for reason, n in rejected.items() if n},
        {name: t[index] for name, t in memory.items()},
    )


def _fitting(
    messages: Sequence[bytes | memoryview] | np.ndarray | Ragged,
    low: int,
    high: int,
    rejected: Counter[str],
) -> Ragged:
    """The messages of an acceptable length; the others are not even looked at."""
    if isinstance(messages, np.ndarray):
        messages = Ragged.even(messages)
    if isinstance(messages, Ragged):
        fits = (messages.lengths >= low) & (messages.lengths <= high)
        rejected["size"] = int((~fits).sum())
        return messages if fits.all() else messages[fits]
    fitting = [bytes(m) for m in messages if low <= len(m) <= high]
    rejected["size"] = len(messages) - len(fitting)
    return Ragged.of(fitting)


def _open(
    arrived: Ragged, client: np.ndarray, schema: wire.Schema, decode: Decode | None
) -> tuple[State, np.ndarray, State]:
    if decode is None:
        matrix = arrived.matrix if len(arrived) else np.empty((0, schema.length), dtype=np.uint8)
        return wire.unpack(schema, matrix), np.ones(len(client), dtype=bool), {}
    return decode(Ragged(arrived.matrix[:, HEAD:], arrived.lengths - HEAD), client)
