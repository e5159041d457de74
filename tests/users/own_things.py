"""What a user might bring, in a module of their own: one of each kind."""

from dataclasses import dataclass

import numpy as np
from torch import nn

import idiolect as il


@dataclass(frozen=True)
class Halfway(il.FedAvg):
    """FedAvg whose server goes half the way: a user's own method."""

    share: float = il.knob(0.5, "how far the server goes to the mean", low=0, high=1)

    def aggregate(self, task, server, up, rule):
        mean = super().aggregate(task, server, up, rule)
        return {"w": (1 - self.share) * server["w"] + self.share * mean["w"]}


def small_net(inputs, outputs, width: int = 4):
    """A user's own architecture."""
    flat = int(np.prod(inputs))
    layers = (nn.Linear(flat, width), nn.ReLU(), nn.Linear(width, outputs))
    return nn.Sequential(nn.Flatten(), *layers)


def two_moons(clients: int = 6, seed: int = 0) -> il.Federation:
    """A user's own data set."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=20 * clients)
    x = rng.standard_normal((len(y), 5)) + 2 * y[:, None]
    return il.Federation.from_arrays(x, y, np.repeat(np.arange(clients), 20), name="two moons")


@dataclass(frozen=True)
class Doubled(il.Stage):
    """A user's own stage: numbers are sent as they are, twice as large, and halved again."""

    factor: float = il.knob(2.0, "what numbers are multiplied by", above=0)

    def encode(self, rows, state, keys, form):
        coded = super().encode(rows, state, keys, form)
        coded.rest = rows * self.factor
        return coded

    def decode(self, info, rest, memory, form):
        return rest / self.factor, memory


@dataclass(frozen=True)
class Shout(il.Attack):
    """A user's own attack: the message, a thousand times as large."""

    factor: float = il.knob(1000.0, "what messages are multiplied by")

    def forge(self, own, reference, keys):
        return self.factor * own


@dataclass(frozen=True)
class Quiet(il.Rule):
    """A user's own rule: the row with the smallest norm."""

    def combine(self, rows, weights):
        return rows[rows.norm(dim=1).argmin()].clone()
