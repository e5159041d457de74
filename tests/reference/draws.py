"""What a run drew at random, as arguments for the references: batches, cohorts, the projection.

Each client is asked alone, so a reference equals the run only if a client's draws do not depend on
the cohort.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from idiolect import projections
from idiolect.core import streams
from idiolect.data.federation import Federation
from idiolect.server.selection import select
from idiolect.task.context import Here


@dataclass(frozen=True)
class Draws:
    federation: Federation
    seed: int
    batch: int
    batching: str

    @property
    def data(self):
        """data[i] = (X, y), float64."""
        parts = [self.federation.part(i, "train") for i in range(self.federation.clients)]
        return [(X.double().numpy(), y.numpy()) for X, y in parts]

    @property
    def sizes(self):
        return [len(y) for _, y in self.data]

    @property
    def keys(self):
        return streams.name_keys(self.federation.names)

    def cohorts(self, rounds, sample):
        everyone = torch.arange(self.federation.clients)
        return [select(self.seed, t, self.keys, everyone, sample).tolist() for t in range(rounds)]

    def batches(self, t, i, purpose="batch"):
        """The mini-batches of client i in round t, as positions in its data.

        They are the run's own, drawn from data that hold nothing but positions.
        """
        samples = torch.arange(len(self.federation.inputs)).unsqueeze(1)
        here = Here(
            replace(self.federation, inputs=samples),
            torch.tensor([i]),
            clients=self.keys[[i]],
            seed=self.seed,
            round=t,
            batch=self.batch,
            batching=self.batching,
            purpose=purpose,
        )
        start = int(self.federation.offsets["train"][i])
        while True:
            b = here.draw()
            yield (b.inputs[0, :, 0] - start)[b.weights[0] > 0].numpy()

    def passes(self, epochs):
        """How many steps each client takes for that many passes over its data."""
        return [
            epochs if self.batching == "full" else epochs * int(np.ceil(n / self.batch))
            for n in self.sizes
        ]

    def projection(self, dim, d):
        return projections.make_projection(
            projections.Spec("gaussian", dim), (0, d), self.seed, torch.float64, torch.device("cpu")
        ).rows.numpy()
