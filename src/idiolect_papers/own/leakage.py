"""What the server is sent: a client's message as it is, with noise, or in a sum with others'.

The methods of leakage.md, its protections, and the pictures that both of its attacks are about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect import (
    FedAvg,
    Federation,
    Ffgg,
    Here,
    LpProj,
    Method,
    State,
    Task,
    models,
    projections,
    streams,
)
from idiolect import data as datasets

DIMS = (5, 21, 100, 600)  # of lp-proj
LP_PROJ: dict[str, Any] = {"p": 2.0, "w_start": "x0"}  # the message is P x, from a known start


@dataclass(frozen=True)
class Protection:
    """What is done to messages before the server sees them."""

    noise: float = 0.0  # σ: a message is clipped to norm C, and σ C noise added to each number
    clients: int = 1  # whose messages the server sees as one sum only


PROTECTIONS = {
    "none": Protection(),
    "noise 0.1": Protection(noise=0.1),
    "noise 1": Protection(noise=1.0),
    "sum of 10": Protection(clients=10),
    "sum of 100": Protection(clients=100),
    "sum of 100, noise 0.1": Protection(noise=0.1, clients=100),
}


# -- messages --------------------------------------------------------------------------------------
def changes(method: Method, task: Task, down: State, up: State) -> Tensor:  # -> [K, m]
    """What messages say beyond what their senders were sent: all parts, one behind the other."""
    known = method.reference(task, down)
    parts = [up[name] - known[name] if name in known else up[name] for name in method.message(task)]
    return torch.cat(parts, dim=-1)


def median_norm(rows: Tensor) -> float:  # rows[K, m]
    """C, the norm that messages are clipped to: half of them are longer."""
    return float(rows.norm(dim=-1).median())


def noisy(rows: Tensor, clip: float, noise: float, seed: int) -> Tensor:  # rows[K, m] -> [K, m]
    """Each row clipped to norm C, with Gaussian noise of standard deviation σ C on each number.

    >>> noisy(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), clip=1.0, noise=0.0, seed=0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    clipped = rows * (clip / rows.norm(dim=-1, keepdim=True).clamp(min=1e-30)).clamp(max=1)
    generator = torch.Generator().manual_seed(seed)
    return clipped + noise * clip * torch.randn(rows.shape, generator=generator, dtype=rows.dtype)


def in_sums(rows: Tensor, clients: int) -> Tensor:  # rows[K, m] -> [K / clients, m]
    """The sums of so many rows each, over their number."""
    return rows.unflatten(0, (-1, clients)).mean(1)


# -- pictures --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Pictures:
    """Pictures and their classes, in random order."""

    inputs: Tensor  # [n, channels, height, width] in [0, 1]
    targets: Tensor  # int64[n]
    classes: int

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Any) -> Pictures:
        return Pictures(self.inputs[index], self.targets[index], self.classes)

    def of_class(self, c: int) -> Pictures:
        return self[self.targets == c]

    def means(self) -> Tensor:  # -> [classes, channels, height, width]
        """The mean picture of each class: what somebody would guess who has seen no message."""
        return torch.stack([self.of_class(c).inputs.mean(0) for c in range(self.classes)])

    def dealt(self, clients: int, samples: int) -> Federation:
        """The first pictures as training data of clients with so many samples each."""
        count = clients * samples
        none = torch.full((clients + 1,), count)
        offsets = {"train": torch.arange(clients + 1) * samples, "valid": none, "test": none}
        ids = tuple(range(clients))
        return Federation(self.inputs[:count], self.targets[:count], offsets, ids, self.classes)


@cache
def pictures(name: str, seed: int, pooling: int = 1) -> Pictures:
    """All pictures of a data set, shuffled; `pooling`: squares of so many pixels become one."""
    whole = datasets.load(name, clients=10)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(whole.samples, generator=generator)
    assert isinstance(whole.inputs, Tensor) and isinstance(whole.targets, Tensor)
    inputs = whole.inputs[order].float()
    if pooling > 1:
        inputs = torch.nn.functional.avg_pool2d(inputs, pooling)
    return Pictures(inputs / inputs.max(), whole.targets[order], whole.classes)


def network(shape: Sequence[int], classes: int, hidden: int, seed: int) -> Task:
    """A network with one hidden layer, under a seed."""
    task = Task(partial(models.make, "mlp", tuple(shape), classes, hidden=str(hidden)))
    return task.under(seed=seed)


def at_clients(federation: Federation, seed: int, round: int = 0) -> Here:
    """All clients in a round, with all of their samples in every mini-batch."""
    rows = torch.arange(federation.clients)
    return Here(
        federation,
        rows,
        clients=streams.name_keys(federation.names),
        seed=seed,
        round=round,
        batch=int(federation.sizes("train").max()),
        batching="full",
    )


def private_rows(method: Method, task: Task, federation: Federation) -> State:
    return method.private(task, streams.name_keys(federation.names))


def first_messages(method: Method, task: Task, federation: Federation, seed: int) -> Tensor:
    """What all clients' messages of the first round say: [K, m]."""
    down = method.broadcast(task, method.server(task))
    private = private_rows(method, task, federation)
    up, _ = method.update(task, down, private, at_clients(federation, seed))
    return changes(method, task, down, up)


def lp_proj(dim: int, **fields: Any) -> LpProj:
    """lp-proj whose message is all of P x."""
    return LpProj(dim=dim, **(LP_PROJ | fields))


def matrix(method: LpProj, task: Task) -> Tensor:  # -> [dim, d]
    """P, which the server makes from the seed."""
    spec, starts = method.spec(task), task.layout.starts
    P = projections.make_projection(spec, starts, task.seed, task.dtype, task.device)
    return P.up(torch.eye(spec.dim, dtype=task.dtype))


INVERTED: dict[str, Method] = {
    "FedAvg, 1 step": FedAvg(lr=0.1, steps=1),
    "FedAvg, 20 steps": FedAvg(lr=0.1, steps=20),
    "FFGG, head private": Ffgg(part="output"),
    **{f"lp-proj, dim {dim}, 1 step": lp_proj(dim, steps=1) for dim in DIMS},
    "lp-proj, dim 600, 20 steps": lp_proj(600, steps=20),
    "lp-proj, dim 600, p = 1": lp_proj(600, p=1.0, steps=1),
}


def seeded(text: str, seed: int) -> int:
    """A seed for a purpose."""
    return int(streams.keys(seed, text)[0] >> np.uint64(2))
