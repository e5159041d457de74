"""Membership inference: was a picture among those that a client trained on?

The server listens to a client for some rounds, alone or in a sum, and holds a candidate picture
against what it reads. Three attacks of the literature: a threshold on the loss under the model that
it can read from the message (Yeom et al. 2018); the same less what models of shadow clients say,
which have other people's pictures (LiRA, offline, with one variance: Carlini et al. 2022); and the
angle between what is special about the message and the gradient of the candidate (Nasr et al.
2019). Shadow clients follow the same run, so that the server knows what such a client's private
part is like.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from idiolect import FedAvg, Federation, Ffgg, LpProj, Method, State, Task
from idiolect.task import Batch

from ..runs import Work, one_thread
from .leakage import (
    DIMS,
    PROTECTIONS,
    Pictures,
    Protection,
    at_clients,
    changes,
    in_sums,
    lp_proj,
    matrix,
    median_norm,
    network,
    noisy,
    pictures,
    private_rows,
    seeded,
)

ATTACKS = ("loss", "LiRA", "gradient")
PERSONAL = "the personal model itself"  # which is never sent
LISTENED: dict[str, Method] = {
    "FedAvg": FedAvg(lr=0.1, steps=20),
    "FFGG, head private": Ffgg(part="output"),
    **{f"lp-proj, dim {dim}": lp_proj(dim) for dim in DIMS},
}


@dataclass(frozen=True)
class MembershipSize:
    """How many clients there are, and how long the server listens."""

    data: str = "mnist"
    pooling: int = 2  # squares of so many pixels become one
    hidden: int = 16
    clients: int = 100
    samples: int = 10  # of each client in training, and as many that are not
    shadows: int = 8  # of each kind
    rounds: int = 5
    seeds: int = 5


# -- clients of ten kinds --------------------------------------------------------------------------
@dataclass(frozen=True)
class Cohort:
    """Clients and shadow clients; client k is of kind k mod C, with classes k and k + 1 mod C."""

    federation: Federation  # of clients, then of shadow clients by kind
    clients: int
    kinds: int
    members: Pictures  # [clients * samples], by client
    others: Pictures  # as many of the same classes that no client has

    @property
    def shadow_kinds(self) -> Tensor:  # -> int64[shadows of all kinds]
        count = self.federation.clients - self.clients
        return torch.arange(count) // (count // self.kinds)

    @property
    def client_kinds(self) -> Tensor:  # -> int64[clients]
        return torch.arange(self.clients) % self.kinds


def cohort(everything: Pictures, size: MembershipSize) -> Cohort:
    """Clients with pictures of two classes each, no picture twice."""
    kinds = everything.classes
    waiting = [torch.nonzero(everything.targets == c)[:, 0].tolist() for c in range(kinds)]

    def take(kind: int) -> list[int]:
        half = size.samples // 2
        pair = (waiting[kind], waiting[(kind + 1) % kinds])
        return [stack.pop() for stack in pair for _ in range(half)]

    kind_of = [k % kinds for k in range(size.clients)]
    members = [i for kind in kind_of for i in take(kind)]
    others = [i for kind in kind_of for i in take(kind)]
    shadows = [i for kind in range(kinds) for _ in range(size.shadows) for i in take(kind)]
    count = size.clients + kinds * size.shadows
    return Cohort(
        everything[torch.tensor(members + shadows)].dealt(count, len(members) // size.clients),
        size.clients,
        kinds,
        everything[torch.tensor(members)],
        everything[torch.tensor(others)],
    )


# -- the run ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Heard:
    """A round as the server and its shadow clients know it."""

    down: State
    said: Tensor  # [clients, m]: what messages say, as they leave the clients
    shadows_said: Tensor  # [shadows, m], clipped as they are, without noise
    personal: Tensor  # x[clients, d]: the models that clients predict with
    shadows_personal: Tensor  # x[shadows, d]


class Mean:
    """The server's rule: all messages weigh the same."""

    def __call__(self, up: State, weights: Tensor | None = None) -> State:
        return {name: rows.mean(0) for name, rows in up.items()}


def listen(
    method: Method, task: Task, cohort: Cohort, rounds: int, noise: float, seed: int
) -> Iterator[Heard]:
    """Rounds in which all clients are heard; the server goes on with what it is sent."""
    federation, clients = cohort.federation, cohort.clients
    private = private_rows(method, task, federation)
    server = method.server(task)
    (name,) = method.message(task)
    for round in range(rounds):
        down = method.broadcast(task, server)
        up, private = method.update(task, down, private, at_clients(federation, seed, round))
        said = changes(method, task, down, up)
        if noise:
            clip = median_norm(said[:clients])
            noises = noisy(said, clip, noise, seeded(f"noise {round}", seed))
            said = torch.cat([noises[:clients], noisy(said[clients:], clip, 0.0, 0)])
        personal = method.personal(task, down, private, at_clients(federation, seed, round))
        assert isinstance(personal, Tensor)
        personal = personal.expand(federation.clients, -1)
        yield Heard(down, said[:clients], said[clients:], personal[:clients], personal[clients:])
        known = method.reference(task, down).get(name, 0.0)
        rule = cast(Any, Mean())
        server = method.aggregate(task, server, {name: known + said[:clients]}, rule)


# -- what is read ----------------------------------------------------------------------------------
class Reader:
    """What the server makes of a message, with shadow clients of the same kind at hand."""

    def __init__(self, method: Method, task: Task, cohort: Cohort):
        self.method = method
        self.task = task
        self.cohort = cohort
        if isinstance(method, LpProj):
            self.P = matrix(method, task)
            self.inverse = torch.linalg.pinv(self.P)  # [d, dim]

    def typical(self, heard: Heard) -> Tensor:  # -> x[kinds, d]
        """The model of a client of each kind, as shadow clients have it."""
        return heard.shadows_personal.unflatten(0, (self.cohort.kinds, -1)).mean(1)

    def models(self, heard: Heard, said: Tensor, special: Tensor, kinds: Tensor) -> Tensor:
        """The models [K, d] read from messages; `special`: how they differ from the expected."""
        typical = self.typical(heard)[kinds]
        if isinstance(self.method, LpProj):
            return typical + special @ self.inverse.T
        if isinstance(self.method, Ffgg):
            split = self.method.split(self.task)
            w = split.parts(typical)[1]
            return split.join(heard.down["theta"] - self.method.lr * said, w)
        return heard.down["w"] + said

    def directions(self, x: Tensor, several: Pictures) -> Tensor:  # x[n, d] -> [n, m]
        """Where a message would go for each picture alone: minus its gradient, as it is sent."""
        n = len(several)
        batch = Batch(
            several.inputs.unsqueeze(1),
            several.targets.unsqueeze(1),
            torch.ones(n, 1),
            torch.zeros(n, dtype=torch.int64),
        )
        g = self.task.grad(x, batch)
        if isinstance(self.method, LpProj):
            return -g @ self.P.T
        if isinstance(self.method, Ffgg):
            return self.method.split(self.task).parts(g)[0]
        return -g


def confidence(task: Task, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """log p / (1 - p) of the true class: x[K, d], inputs[K, B, ...], targets[K, B] -> [K, B].

    The statistic of LiRA; it falls as the loss rises.
    """
    logs = task.outputs(x, inputs)
    assert isinstance(logs, Tensor)
    logs = logs.log_softmax(-1)
    own = logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    rest = torch.log(-torch.expm1(own.clamp(max=-1e-7)))
    return own - rest


class Suspicion:
    """Scores of candidates, a mean over rounds, for one protection: higher is more likely in."""

    def __init__(self, reader: Reader, protection: Protection, shadows: int, seed: int):
        self.reader = reader
        self.clients = protection.clients
        self.totals: dict[str, Tensor] = {}
        c = reader.cohort
        generator = torch.Generator().manual_seed(seeded("shadow sums", seed))
        # of each sum of shadow clients, the places of as many of every kind as clients' sums have
        per_kind = max(1, protection.clients // c.kinds)
        self.draws = torch.randint(shadows, (shadows, c.kinds, per_kind), generator=generator)
        if per_kind == 1:  # every shadow client once
            places = [torch.randperm(shadows, generator=generator) for _ in range(c.kinds)]
            self.draws = torch.stack(places, dim=1).unsqueeze(-1)

    def listen(self, heard: Heard) -> None:
        """Add a round."""
        reader, c = self.reader, self.reader.cohort
        by_kind = heard.shadows_said.unflatten(0, (c.kinds, -1))  # [kinds, shadows, m]
        if self.clients == 1:
            said, kinds = heard.said, c.client_kinds
            special = said - by_kind.mean(1)[kinds]
            shadows_said, shadow_kinds = heard.shadows_said, c.shadow_kinds
            shadows_special = shadows_said - by_kind.mean(1)[shadow_kinds]
        else:
            expected = by_kind.mean((0, 1))
            said = in_sums(heard.said, self.clients).repeat_interleave(self.clients, 0)
            special = said - expected
            index = self.draws.transpose(0, 1)  # [kinds, sums, per kind]
            kind = torch.arange(c.kinds).view(-1, 1, 1)
            sums = by_kind[kind, index].mean((0, 2))  # [sums, m]
            shadows_said = sums.repeat(c.kinds, 1)
            shadows_special = shadows_said - expected
            kinds, shadow_kinds = c.client_kinds, c.shadow_kinds
        models = reader.models(heard, said, special, kinds)
        shadow_models = reader.models(heard, shadows_said, shadows_special, shadow_kinds)
        self._add(confidences(reader.task, c, models, shadow_models))
        typical = reader.typical(heard)[kinds]
        angles = []
        for several in (c.members, c.others):
            per_client = len(several) // c.clients
            directions = reader.directions(typical.repeat_interleave(per_client, 0), several)
            own = special.repeat_interleave(per_client, 0)
            angles.append(torch.cosine_similarity(directions, own, dim=-1))
        self._add({"gradient": torch.stack(angles)})

    def _add(self, scores: dict[str, Tensor]) -> None:
        for name, rows in scores.items():
            self.totals[name] = self.totals.get(name, torch.zeros_like(rows)) + rows

    def figures(self) -> dict[str, dict[str, float]]:
        return {name: advantage(*rows) for name, rows in self.totals.items()}


def confidences(task: Task, c: Cohort, models: Tensor, shadow_models: Tensor) -> dict[str, Tensor]:
    """Two attacks' scores of members and others, [2, clients * samples].

    models x[clients, d] as read from each client, shadow_models of shadow clients by kind.
    """
    plain, relative = [], []
    by_kind = shadow_models.unflatten(0, (c.kinds, -1))
    for several in (c.members, c.others):
        inputs = several.inputs.unflatten(0, (c.clients, -1))
        targets = several.targets.unflatten(0, (c.clients, -1))
        own = confidence(task, models, inputs, targets)
        out = torch.empty_like(own)
        for kind, shadows in enumerate(by_kind):
            rows = c.client_kinds == kind
            x, y = inputs[rows].flatten(0, 1), targets[rows].flatten()
            x, y = (t.expand(len(shadows), *t.shape) for t in (x, y))
            out[rows] = confidence(task, shadows, x, y).mean(0).view(int(rows.sum()), -1)
        plain.append(own.flatten())
        relative.append((own - out).flatten())
    return {"loss": torch.stack(plain), "LiRA": torch.stack(relative)}


def advantage(members: Tensor, others: Tensor) -> dict[str, float]:
    """How well scores tell members from others.

    The area under the ROC curve, and the share of members that are recognised where 1 % of the
    others are taken for members.

    >>> advantage(torch.arange(100.0) + 50, torch.arange(100.0))
    {'auc': 0.875, 'tpr': 0.51}
    >>> advantage(torch.zeros(10), torch.zeros(10))
    {'auc': 0.5, 'tpr': 0.0}
    """
    from sklearn.metrics import roc_auc_score

    labels = np.repeat([1, 0], [len(members), len(others)])
    scores = torch.cat([members, others]).numpy()
    allowed = int(0.01 * len(others))  # others above the threshold
    threshold = others.sort(descending=True).values[allowed]
    return {
        "auc": float(roc_auc_score(labels, scores)),
        "tpr": float((members > threshold).double().mean()),
    }


# -- jobs ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MembershipJob(Work):
    """One method and one strength of noise, with all protections that have it, under one seed."""

    method: str
    noise: float
    seed: int
    size: MembershipSize

    def describe(self) -> str:
        return f"membership, {self.method}, noise {self.noise:g}, seed {self.seed}"

    def train(self) -> dict[str, Any]:
        with one_thread():
            return self._figures()

    def _figures(self) -> dict[str, Any]:
        size, method = self.size, LISTENED[self.method]
        everything = pictures(size.data, self.seed, size.pooling)
        c = cohort(everything, size)
        shape, classes = everything.inputs.shape[1:], everything.classes
        task = network(shape, classes, size.hidden, self.seed)
        reader = Reader(method, task, c)
        suspicions = {
            name: Suspicion(reader, protection, size.shadows, self.seed)
            for name, protection in PROTECTIONS.items()
            if protection.noise == self.noise
        }
        whole: dict[str, Tensor] = {}
        for heard in listen(method, task, c, size.rounds, self.noise, self.seed):
            for suspicion in suspicions.values():
                suspicion.listen(heard)
            if not self.noise:
                whole = confidences(task, c, heard.personal, heard.shadows_personal)
        figures = {name: suspicion.figures() for name, suspicion in suspicions.items()}
        if whole:
            figures[PERSONAL] = {name: advantage(*rows) for name, rows in whole.items()}
        return figures
