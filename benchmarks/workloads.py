"""The work that every system of the comparison does.

The same data, model, clients per round, local steps and evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from idiolect import Federation, models
from idiolect.method import Method
from idiolect.methods.ditto import Ditto
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.lpproj import LpProj
from idiolect.methods.pfedme import PFedMe

CLASSES = 10


class Data(NamedTuple):
    """Clients in the first axis, each with as many samples as the others."""

    train_inputs: Tensor  # [clients, train, ...]
    train_targets: Tensor  # int64[clients, train]
    test_inputs: Tensor  # [clients, test, ...]
    test_targets: Tensor  # int64[clients, test]


@dataclass(frozen=True)
class Workload:
    label: str
    method: Method
    model: str
    shape: tuple[int, ...]  # of a sample
    train: int  # samples per client
    test: int
    clients: int = 100
    heard: int = 10  # clients per round
    batch: int = 64
    hidden: str = ""  # widths of an MLP; empty: its default

    def module(self) -> nn.Module:
        """The model all systems start from."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return models.make(
                self.model, self.shape, CLASSES, **({"hidden": self.hidden} if self.hidden else {})
            )

    def data(self) -> Data:
        return _data(self.clients, self.train, self.test, self.shape)

    def federation(self) -> Federation:
        d = self.data()
        inputs = torch.cat([d.train_inputs, d.test_inputs], 1).flatten(0, 1)
        targets = torch.cat([d.train_targets, d.test_targets], 1).flatten(0, 1)
        parts = np.tile(["train"] * self.train + ["test"] * self.test, self.clients)
        return Federation.from_arrays(
            inputs, targets, np.repeat(np.arange(self.clients), self.train + self.test), split=parts
        )


@lru_cache(maxsize=1)
def _data(clients: int, train: int, test: int, shape: tuple[int, ...]) -> Data:
    """Gaussian clouds around one centre per class.

    Arithmetic costs what it does on real data, and there is something to learn.
    """
    rng = torch.Generator().manual_seed(0)
    targets = torch.randint(CLASSES, (clients, train + test), generator=rng)
    centres = 0.3 * torch.randn(CLASSES, *shape, generator=rng)
    inputs = torch.randn(clients, train + test, *shape, generator=rng)
    for x, y in zip(inputs, targets, strict=True):
        x += centres[y]
    return Data(inputs[:, :train], targets[:, :train], inputs[:, train:], targets[:, train:])


_MNIST = {"model": "mlp", "shape": (784,), "train": 434, "test": 109}

WORKLOADS = {
    "mlp": Workload("FedAvg, MLP 784-100-10", FedAvg(lr=0.1, epochs=1), **_MNIST),
    "pfedme": Workload("pFedMe, MLP 784-100-10", PFedMe(lr=0.1), **_MNIST),
    "ditto": Workload("Ditto, MLP 784-100-10", Ditto(lr=0.1, epochs=1, who="sampled"), **_MNIST),
    "lenet": Workload(
        "FedAvg, LeNet 3x32x32", FedAvg(lr=0.1, epochs=1), "lenet", (3, 32, 32), 200, 50
    ),
    "lpproj": Workload(
        "lp-proj, logistic 60-10", LpProj(lam=0.1, lr=0.1, steps=20), "linear", (60,), 202, 63
    ),
}
PEERS = ("mlp", "lenet")  # FedAvg: the workloads that other packages have the method for
