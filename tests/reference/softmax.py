"""Losses and gradients by hand.

Multinomial logistic regression, and one hidden layer of ReLUs before it. A model is a flat vector:
W (one row per output), then b; for the network the hidden layer's first.
"""

from dataclasses import dataclass

import numpy as np


def softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


class Model:
    """The mean over samples of what subclasses give for one sample."""

    def loss(self, x, X, y):
        return sum(
            -np.log(softmax(self.outputs(x, a))[c]) for a, c in zip(X, y, strict=True)
        ) / len(y)

    def gradient(self, x, X, y):
        return sum(self.gradient_of_one(x, a, c) for a, c in zip(X, y, strict=True)) / len(y)

    def hits(self, x, X, y):
        return sum(int(self.outputs(x, a).argmax() == c) for a, c in zip(X, y, strict=True))


@dataclass(frozen=True)
class Logistic(Model):
    features: int
    classes: int

    def outputs(self, x, a):
        W, b = self.split(x)
        return W @ a + b

    def gradient_of_one(self, x, a, c):
        p = softmax(self.outputs(x, a))
        p[c] -= 1  # the derivative by the outputs
        return self.gradient_by_outputs(x, a, p)

    def gradient_by_outputs(self, x, a, p):
        """The gradient of what has this slope by the outputs."""
        return np.concatenate([np.outer(p, a).ravel(), p])

    def representation(self, x, a):
        """What the last layer is given."""
        return a

    def gradient_through(self, x, a, slope):
        """The gradient of what has this slope by the representation."""
        return np.zeros(len(x))

    def head(self):
        """Where the last layer stands in a model, its weights first."""
        return slice(0, self.classes * (self.features + 1))

    def split(self, x):
        n = self.classes * self.features
        return x[:n].reshape(self.classes, self.features), x[n:]


@dataclass(frozen=True)
class Network(Model):
    features: int
    hidden: int
    classes: int

    def outputs(self, x, a):
        V, c, W, b = self.split(x)
        return W @ np.maximum(V @ a + c, 0) + b

    def gradient_of_one(self, x, a, label):
        p = softmax(self.outputs(x, a))
        p[label] -= 1
        return self.gradient_by_outputs(x, a, p)

    def gradient_by_outputs(self, x, a, p):
        """The gradient of what has this slope by the outputs."""
        V, c, W, _ = self.split(x)
        h = np.maximum(V @ a + c, 0)
        q = (W.T @ p) * (h > 0)  # the derivative by V a + c
        return np.concatenate([np.outer(q, a).ravel(), q, np.outer(p, h).ravel(), p])

    def representation(self, x, a):
        """What the last layer is given."""
        V, c, _, _ = self.split(x)
        return np.maximum(V @ a + c, 0)

    def gradient_through(self, x, a, slope):
        """The gradient of what has this slope by the representation."""
        q = slope * (self.representation(x, a) > 0)
        gradient = np.zeros(len(x))
        gradient[: len(q) * (self.features + 1)] = np.concatenate([np.outer(q, a).ravel(), q])
        return gradient

    def head(self):
        """Where the last layer stands in a model, its weights first."""
        return slice(self.hidden * (self.features + 1), None)

    def split(self, x):
        sizes = [self.hidden * self.features, self.hidden, self.classes * self.hidden, self.classes]
        V, c, W, b = np.split(x, np.cumsum(sizes)[:-1])
        return V.reshape(self.hidden, self.features), c, W.reshape(self.classes, self.hidden), b


@dataclass(frozen=True)
class Restrained(Model):
    """A model whose gradients carry weight decay, or are clipped to a largest norm."""

    model: Model
    decay: float = 0.0
    clip: float = np.inf

    def outputs(self, x, a):
        return self.model.outputs(x, a)

    def gradient(self, x, X, y):
        g = self.model.gradient(x, X, y) + self.decay * x
        size = np.sqrt(g @ g)
        return g if size <= self.clip else g * self.clip / size
