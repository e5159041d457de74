"""The settings shared by data sets that must be dealt to clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.knobs import Knobs, knob
from . import partition


@dataclass(frozen=True)
class Partitioned(Knobs):
    """How one pool of labelled samples becomes many clients.

    >>> Partitioned(clients=2, partition="iid").assign(np.zeros(4, dtype=int)).tolist()
    [1, 1, 0, 0]
    """

    clients: int = knob(100, "number of clients", low=1)
    partition: str = knob(
        "classes",
        "who gets what: a fixed number of classes, Dirichlet shares of each class, "
        "unequal sizes, or an even random deal",
        choices=("classes", "dirichlet", "quantity", "iid"),
    )
    classes_per_client: int = knob(2, "classes of each client (partition classes)", low=1)
    level: bool = knob(True, "equal shards, cut to the smallest class (partition classes)")
    alpha: float = knob(
        0.5, "concentration; small: few classes per client (partition dirichlet)", above=0
    )
    sigma: float = knob(1.0, "log-normal spread of client sizes (partition quantity)", low=0)
    minimum: int = knob(10, "least samples of a client (partitions dirichlet and quantity)", low=1)
    valid: float = knob(0.2, "share of the training samples kept for validation", low=0, below=1)
    seed: int = knob(0, "seed of the partition and of the split", low=0)

    def assign(self, labels: np.ndarray) -> np.ndarray:  # -> int64[n], -1: left out
        """A client number for every sample."""
        if self.partition == "classes":
            return partition.by_classes(
                labels, self.clients, self.classes_per_client, self.seed, self.level
            )
        if self.partition == "dirichlet":
            return partition.dirichlet(labels, self.clients, self.alpha, self.seed, self.minimum)
        if self.partition == "quantity":
            return partition.quantity(labels, self.clients, self.sigma, self.seed, self.minimum)
        return partition.iid(labels, self.clients, self.seed)
