"""The same work as a careful user writes it in plain PyTorch: one client after the other.

A module, `optim.SGD`, a state dict per client; mini-batches from a `DataLoader`, or by indexing
with a random permutation, which saves the DataLoader's Python per sample. Every method is the
mathematics of `idiolect.methods`, gradient for gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

from idiolect.methods.ditto import Ditto
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.lpproj import LpProj
from idiolect.methods.pfedme import PFedMe

from .workloads import Workload

State = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]
# the gradient of a regulariser, one tensor per parameter
Pull = Callable[[list[nn.Parameter]], list[Tensor]]


@dataclass
class Indexed:
    """Mini-batches by indexing."""

    inputs: Tensor
    targets: Tensor
    batch: int
    shuffle: bool = False

    def __iter__(self) -> Iterator[Batch]:
        if not self.shuffle:
            return zip(self.inputs.split(self.batch), self.targets.split(self.batch), strict=True)
        return (
            (self.inputs[at], self.targets[at])
            for at in torch.randperm(len(self.targets)).split(self.batch)
        )


class Loop:
    def __init__(self, work: Workload, indexed: bool = False):
        def loader(
            inputs: Tensor, targets: Tensor, batch: int, shuffle: bool
        ) -> Indexed | DataLoader:
            return (
                Indexed(inputs, targets, batch, shuffle)
                if indexed
                else DataLoader(TensorDataset(inputs, targets), batch, shuffle)
            )

        data = work.data()
        self.work = work
        self.model = work.module()
        self.train = [
            loader(x, y, work.batch, True)
            for x, y in zip(data.train_inputs, data.train_targets, strict=True)
        ]
        self.test = [
            loader(x, y, 1024, False)
            for x, y in zip(data.test_inputs, data.test_targets, strict=True)
        ]
        self.parameters = list(self.model.parameters())
        self.sizes = [p.numel() for p in self.parameters]
        self.shared = self.copy()
        self.personal = [self.shared] * work.clients
        self.gradients = 0
        if isinstance(work.method, LpProj):
            self.P = F.normalize(torch.randn(work.method.dim, sum(self.sizes)), dim=1)
            self.w = torch.zeros(work.method.dim)

    def round(self) -> tuple[float, float]:  # -> accuracy, loss over all test samples
        heard = torch.randperm(self.work.clients)[: self.work.heard].tolist()
        {FedAvg: self.fedavg, Ditto: self.ditto, PFedMe: self.pfedme, LpProj: self.lpproj}[
            type(self.work.method)
        ](heard)
        return self.evaluate()

    def fedavg(self, heard: list[int]) -> None:
        self.shared = mean(
            [self.one_pass(self.shared, self.train[k], self.work.method.lr) for k in heard]
        )

    def ditto(self, heard: list[int]) -> None:
        m = self.work.method
        received = list(self.shared.values())
        models = []
        for k in heard:
            models.append(self.one_pass(self.shared, self.train[k], m.lr))
            self.personal[k] = self.one_pass(
                self.personal[k], self.train[k], m.personal_lr, towards(received, m.lam)
            )
        self.shared = mean(models)

    def pfedme(self, heard: list[int]) -> None:
        m = self.work.method
        pull = towards(list(self.shared.values()), m.lam)
        for k, batches in enumerate(self.train):
            self.personal[k] = self.descend(self.personal[k], next(iter(batches)), pull)
        sent = [
            {n: w - m.lr * m.lam * (w - self.personal[k][n]) for n, w in self.shared.items()}
            for k in heard
        ]
        self.shared = mean(sent)

    def lpproj(self, heard: list[int]) -> None:  # p = 1
        m = self.work.method
        sent = []

        def pull(parameters: list[nn.Parameter]) -> list[Tensor]:
            gap = self.w - self.P @ parameters_to_vector(parameters)
            flat = gap.sign() @ self.P
            return [
                -m.lam * t.view_as(p)
                for t, p in zip(flat.split(self.sizes), parameters, strict=True)
            ]

        for k, batches in enumerate(self.train):
            self.personal[k] = self.descend(self.personal[k], next(iter(batches)), pull)
            if k in heard:
                gap = self.w - self.P @ parameters_to_vector(self.parameters).detach()
                sent.append(self.w - m.lr * m.lam * gap.sign())
        self.w = torch.stack(sent).mean(0)

    def one_pass(
        self, start: State, batches: Indexed | DataLoader, lr: float, pull: Pull | None = None
    ) -> State:
        """SGD once through a client's data."""
        self.model.load_state_dict(start)
        optimiser = torch.optim.SGD(self.parameters, lr)
        for batch in batches:
            self.backward(batch, pull)
            optimiser.step()
        return self.copy()

    def descend(self, start: State, batch: Batch, pull: Pull) -> State:
        """Gradient descent on one mini-batch until the gradient's squared norm is at most nu."""
        m = self.work.method
        self.model.load_state_dict(start)
        optimiser = torch.optim.SGD(self.parameters, m.personal_lr)
        for _ in range(m.steps):
            self.backward(batch, pull)
            if sum(p.grad.square().sum() for p in self.parameters) <= m.nu:
                break
            optimiser.step()
        return self.copy()

    def backward(self, batch: Batch, pull: Pull | None) -> None:
        self.gradients += 1
        self.model.zero_grad()
        F.cross_entropy(self.model(batch[0]), batch[1]).backward()
        if pull is not None:
            with torch.no_grad():
                for p, more in zip(self.parameters, pull(self.parameters), strict=True):
                    p.grad += more

    def copy(self) -> State:
        return {n: t.detach().clone() for n, t in self.model.state_dict().items()}

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Each client's model on its test data: the shared one where the method has no other."""
        hits = loss = samples = 0.0
        if shared := type(self.work.method) is FedAvg:
            self.model.load_state_dict(self.shared)
        for state, batches in zip(self.personal, self.test, strict=True):
            if not shared:
                self.model.load_state_dict(state)
            for x, y in batches:
                out = self.model(x)
                hits += (out.argmax(1) == y).sum().item()
                loss += F.cross_entropy(out, y, reduction="sum").item()
                samples += len(y)
        return hits / samples, loss / samples


def towards(centre: list[Tensor], lam: float) -> Pull:
    """The gradient of lam/2 ||x - centre||²."""
    return lambda parameters: [lam * (p - c) for p, c in zip(parameters, centre, strict=True)]


def mean(states: list[State]) -> State:
    return {n: torch.stack([s[n] for s in states]).mean(0) for n in states[0]}
