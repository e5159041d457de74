"""Personal models on the data of other clients: how far each is from serving anyone else.

A personal model is made for one client's distribution; on those of others it is out of
distribution. Client i's model meets the data of the clients s_1, ..., s_k places after it on a
circle of all clients in random order. So each model is evaluated on k clients and each client's
data by k models, in k passes over the data, not N.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import SettingError
from ..core.types import Personal
from ..data.splits import SPLITS
from ..host.host import joined_rows
from ..host.scores import Scores
from .session import Session


def cross_client_rows(session: Session, others: int, split: str) -> list[dict[str, Any]]:
    """A row per honest client that trained: its model's mean figures over the others it met.

    `others`: how many each model meets; 0 for all of them. Clients without samples of the split
    are met by nobody, and a model that met none has figures of None.
    """
    if not isinstance(others, int) or isinstance(others, bool) or others < 0:
        raise SettingError(f"others must be a whole number >= 0 (0: all others), got {others!r}")
    if split not in SPLITS:
        raise SettingError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    clients = session.people.evaluated
    shifts = circle_shifts(len(clients), others, session.seed)
    circle = torch.from_numpy(np.random.default_rng(session.seed).permutation(len(clients)))
    models = personal_models(session, clients)
    sums = torch.zeros(2, len(clients), dtype=torch.float64)  # of accuracy and loss
    met = torch.zeros(len(clients), dtype=torch.int64)
    for shift in shifts:
        visitor = torch.empty_like(circle)  # position of a client -> whose model meets its data
        visitor[circle] = circle.roll(int(shift))
        scores = _visited(session, clients, models, visitor, split)
        figures = torch.stack(scores.of_clients())
        present = scores.samples > 0
        sums.index_add_(1, visitor[present], figures[:, present])
        met.index_add_(0, visitor[present], torch.ones_like(met)[present])
    rows = []
    for place, client in enumerate(clients.tolist()):
        count = int(met[place])
        accuracy, loss = (float(total[place]) / count if count else None for total in sums)
        rows.append(
            {
                "seed": session.seed,
                "client": session.roster.ids[client],
                "others": count,
                f"{split}_accuracy": accuracy,
                f"{split}_loss": loss,
            }
        )
    return rows


def circle_shifts(clients: int, others: int, seed: int) -> np.ndarray:  # -> int64[k], increasing
    """By how many places models move along the circle of clients: `others` different numbers.

    >>> circle_shifts(5, 0, seed=0).tolist(), len(circle_shifts(100, 7, seed=0))
    ([1, 2, 3, 4], 7)
    """
    every = np.arange(1, clients)
    if others == 0 or others >= len(every):
        return every
    return np.sort(np.random.default_rng([seed, clients]).choice(every, others, replace=False))


def personal_models(session: Session, clients: Tensor) -> Personal:
    """What these clients predict with, in their order: x[K, d], or rows."""
    version = session.rounds
    parts, owners = [], []
    for host in session.hosts:
        own = clients[torch.isin(clients, host.wire_ids)]
        if len(own):
            down = session.server.message(version, own)
            parts.append(host.personal_rows(version, down, own))
            owners.append(own)
    return rows_at(joined_rows(parts), torch.cat(owners).argsort())


def _visited(
    session: Session, clients: Tensor, models: Personal, visitor: Tensor, split: str
) -> Scores:
    """Scores on the data of each client by the model that visits it, in the order of clients."""
    scores = []
    for host in session.hosts:
        mine = torch.isin(clients, host.wire_ids)
        if bool(mine.any()):
            guests = rows_at(models, visitor[mine])
            scores.append(host.evaluate_others(guests, clients[mine], split))
    return Scores.merge(scores)


def rows_at(models: Personal, index: Tensor) -> Personal:
    """Some rows of models, in the order of the index."""
    if isinstance(models, Tensor):
        return models[index.to(models.device)]
    return {name: t[index.to(t.device)] for name, t in models.items()}
