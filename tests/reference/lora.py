"""A linear model with LoRA by hand: y = (W + B A) x + b, all four of them trained.

A model is a flat vector: W, b, A (one row per rank), B (one row per output).
"""

from dataclasses import dataclass

import numpy as np

from .softmax import Model, softmax


@dataclass(frozen=True)
class LowRank(Model):
    features: int
    classes: int
    rank: int

    def outputs(self, x, a):
        W, b, A, B = self.split(x)
        return W @ a + b + B @ (A @ a)

    def gradient_of_one(self, x, a, c):
        _, _, A, B = self.split(x)
        p = softmax(self.outputs(x, a))
        p[c] -= 1
        parts = [np.outer(p, a), p, np.outer(B.T @ p, a), np.outer(p, A @ a)]
        return np.concatenate([part.ravel() for part in parts])

    def split(self, x):
        shapes = [
            (self.classes, self.features),
            (self.classes,),
            (self.rank, self.features),
            (self.classes, self.rank),
        ]
        ends = np.cumsum([np.prod(shape) for shape in shapes])[:-1]
        parts = np.split(x, ends)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def coordinates(self, part, ranks=slice(None)):
        """Where the factor "A" or "B" lies in x; of some of its ranks."""
        size = (self.classes + self.rank) * self.features + self.classes * (1 + self.rank)
        _, _, A, B = self.split(np.arange(size))
        return np.sort((A[ranks] if part == "A" else B[:, ranks]).ravel())


@dataclass(frozen=True)
class Held(Model):
    """A model of which some coordinates have no gradient."""

    model: Model
    coordinates: tuple

    def outputs(self, x, a):
        return self.model.outputs(x, a)

    def gradient(self, x, X, y):
        g = self.model.gradient(x, X, y)
        g[list(self.coordinates)] = 0
        return g
