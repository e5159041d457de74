"""What the server accepts, and the reason when it does not. A rejected message is an absent client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import wire
from .method import State

REASONS = ("size", "magic", "schema", "run", "round", "stranger", "repeated", "weight", "not finite")


@dataclass(frozen=True)
class Admitted:
    up: State  # rows, sorted by client
    clients: Tensor  # int64[S], sorted
    weights: Tensor  # float64[S], capped
    bytes: np.ndarray  # int64[S]: length of each admitted message
    rejected: dict[str, int]  # reason -> messages


def admit(
    messages: Sequence[bytes | memoryview] | np.ndarray,
    *,
    schema: wire.Schema,
    run: int,
    round: int,
    expected: Tensor,
    cap: float,
) -> Admitted:
    """Check every message; each rejected one is counted under the first reason that applies.

    `expected`: the clients asked in this round; anyone else is a stranger. `cap`: the largest weight a client may claim; a larger
    claim counts as the cap. Of several messages of one client the first is taken.
    """
    rejected: Counter[str] = Counter()
    if not isinstance(messages, np.ndarray) or messages.shape[1] != schema.length:
        fitting = [m for m in messages if len(m) == schema.length]
        rejected["size"] = len(messages) - len(fitting)
        messages = wire.stack(fitting, schema.length)
    head = wire.header(messages)
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
    messages, client, weight = messages[good], client[good], weight[good]
    rows = wire.unpack(schema, messages)
    fine = wire.finite(rows).numpy() if len(client) else np.zeros(0, dtype=bool)
    rejected["not finite"] += int((~fine).sum())
    first = np.zeros(len(client), dtype=bool)  # of the sound ones, so that a bad copy cannot push out the good one
    sound = np.flatnonzero(fine)
    first[sound[np.unique(client[sound], return_index=True)[1]]] = True
    rejected["repeated"] += int((fine & ~first).sum())
    chosen = np.flatnonzero(first)
    chosen = chosen[client[chosen].argsort(kind="stable")]
    index = torch.from_numpy(chosen)
    return Admitted(
        {name: t[index] for name, t in rows.items()},
        torch.from_numpy(client[chosen]),
        torch.from_numpy(np.minimum(weight[chosen], cap)),
        np.full(len(chosen), schema.length, dtype=np.int64),
        {reason: n for reason, n in rejected.items() if n},
    )
