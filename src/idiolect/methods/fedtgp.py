"""FedTGP: FedProto whose server trains the shared prototypes to lie far from each other.

Zhang, Liu, Hua and Cao 2024 (AAAI). Choose it where clients have unlike models and FedProto's means
blur the classes: the mean of prototypes from many feature spaces lies nearer to those of other
classes than the prototypes themselves do. The server trains a vector for each class and a small
network behind it, so that each client's prototypes are nearest to those of their class, by a margin
that follows how far the classes are apart. Costs per round: as FedProto, C (F + 1) numbers up and
down, and at the server `server_epochs` passes over all prototypes. Keeps as FedProto.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import streams
from ..core.knobs import knob
from ..core.types import State
from ..method import Combine
from ..task.task import Task
from .classifier import HeadSize, head_size
from .fedproto import FedProto


@dataclass(frozen=True)
class FedTgp(FedProto):
    """FedProto with prototypes trained at the server to lie apart. Where models differ."""

    traits = replace(
        FedProto.traits,
        linear=False,
        uncombined="its server trains on the prototypes of each client by themselves",
        reductions=dict(FedProto.traits.reductions),
    )

    weighting: str = knob(
        "equal",
        "how much a client's prototype counts at the server: all alike (the paper), or by samples",
        choices=("equal", "samples"),
    )
    server_epochs: int = knob(
        100, "S, passes over all prototypes by which the server trains its own", low=1
    )
    server_batch: int = knob(10, "prototypes in a mini-batch of these; 0 = all", low=0)
    prototype_lr: float = knob(0.01, "step size of this training", above=0)
    largest_margin: float = knob(100.0, "τ, the largest margin δ(t)", low=0)
    margin: str = knob(
        "nearest",
        "δ(t), of mean prototypes: the largest distance of a class to its nearest other one (its "
        "code), or of any two classes",
        choices=("nearest", "farthest"),
    )

    def server(self, task: Task) -> State:
        size = head_size(task)
        return {**super().server(task), **_network(task, size), "turn": task.x0.new_zeros(1)}

    def broadcast(self, task: Task, server: State) -> State:
        return {name: server[name] for name in ("prototypes", "known")}

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        size = head_size(task)
        rows, shares = up["sums"].view(-1, *size), up["shares"]
        client, label = (shares > 0).nonzero(as_tuple=True)
        # P_i^c, the prototypes of the clients heard: a row each
        own = rows[client, label] / shares[client, label].unsqueeze(1)
        weights = torch.ones_like(shares)
        if self.weighting == "samples":  # |D_ic|, but for a factor
            weights = shares * rule.samples.to(shares).unsqueeze(1)
        weights = weights[client, label]
        turn = int(server["turn"])
        network = {name: server[name] for name in NETWORK}
        network = self._trained(task, network, own, label, weights, turn)
        present = torch.zeros_like(server["known"]).index_fill_(0, label, 1)
        return {
            **network,
            "prototypes": _prototypes(network).flatten(),
            "known": server["known"].maximum(present),
            "turn": server["turn"] + 1,
        }

    def _trained(
        self, task: Task, network: State, own: Tensor, label: Tensor, weights: Tensor, turn: int
    ) -> State:
        """The network after S epochs on the prototypes own[n, F] of classes label[n]."""
        if not len(own):
            return network
        margin = self._margin(own, label, network["embedding"].shape[0])
        batch = self.server_batch or len(own)
        key = streams.keys(task.seed, "prototypes", turn)
        for epoch in range(self.server_epochs):
            words = streams.bits(key, epoch * len(own), len(own))[0]
            order = torch.from_numpy(words.argsort(kind="stable")).to(own.device)
            for some in order.split(batch):
                share = weights[some] / weights[some].sum()
                slopes = _gradient(network, own[some], label[some], share, margin)
                network = {
                    name: torch.add(t, slopes[name], alpha=-self.prototype_lr)
                    for name, t in network.items()
                }
        return network

    def _margin(self, own: Tensor, label: Tensor, classes: int) -> float:
        """δ(t): how far the classes' mean prototypes Q^c are apart, at most τ."""
        count = torch.bincount(label, minlength=classes).to(own)
        total = own.new_zeros(classes, own.shape[1]).index_add_(0, label, own)
        means = total[count > 0] / count[count > 0].unsqueeze(1)
        if len(means) < 2:
            return self.largest_margin
        gaps = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
        if self.margin == "nearest":
            gaps = gaps.fill_diagonal_(torch.inf).amin(1)
        return min(float(gaps.max()), self.largest_margin)


NETWORK = ("embedding", "hidden", "hidden_bias", "output", "output_bias")


def _network(task: Task, size: HeadSize) -> State:
    """A vector for each class, and two layers of as many units, initialised as torch does."""
    keys = streams.keys(task.seed, "prototypes", 0, streams.name_keys(NETWORK))
    shapes = [tuple(size), (size.features,) * 2, (size.features,), (size.features,) * 2]
    shapes.append((size.features,))
    parts = {}
    for k, (name, shape) in enumerate(zip(NETWORK, shapes, strict=True)):
        count = int(np.prod(shape))
        if name == "embedding":
            numbers = streams.normal(keys[[k]], count)
        else:
            numbers = (2 * streams.uniform(keys[[k]], count) - 1) / np.sqrt(size.features)
        parts[name] = torch.from_numpy(numbers[0].reshape(shape)).to(task.x0)
    return parts


def _prototypes(network: State) -> Tensor:  # -> [C, F]
    """P̂^c of each class: its vector, processed by the network."""
    hidden = F.linear(network["embedding"], network["hidden"], network["hidden_bias"]).relu()
    return F.linear(hidden, network["output"], network["output_bias"])


def _gradient(
    network: State, own: Tensor, label: Tensor, weights: Tensor, margin: float
) -> dict[str, Tensor]:
    """Of the weighed mean over the prototypes own[n, F] of classes label[n] of

    -log exp(-(φ(P_i^c, P̂^c) + δ)) / (exp(-(φ(P_i^c, P̂^c) + δ)) + Σ_c' exp(-φ(P_i^c, P̂^c'))).

    By hand, φ the distance: steps are many and small.
    """
    embedding, output = network["embedding"], network["output"]
    before = F.linear(embedding, network["hidden"], network["hidden_bias"])
    hidden = before.relu()
    prototypes = F.linear(hidden, output, network["output_bias"])
    distances = torch.cdist(own, prototypes, compute_mode="donot_use_mm_for_euclid_dist")
    mine = F.one_hot(label, len(prototypes)).to(distances)
    shares = (-distances - margin * mine).softmax(-1)
    # by P̂^c: (1{c is the class} - share) (P̂^c - P_i) / φ, 0 where they are one point
    pull = weights.unsqueeze(1) * (mine - shares) / distances.where(distances > 0, torch.inf)
    slope = pull.sum(0).unsqueeze(1) * prototypes - pull.T @ own
    back = (slope @ output) * (before > 0)
    return {
        "embedding": back @ network["hidden"],
        "hidden": back.T @ embedding,
        "hidden_bias": back.sum(0),
        "output": slope.T @ hidden,
        "output_bias": slope.sum(0),
    }
