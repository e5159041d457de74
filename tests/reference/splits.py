"""The measures of a split, one client after the other.

F_m(θ) = ∇_θ f_m(θ, w_m), after steps of gradient descent on w_m alone (section 4.3 of FFGG).
"""

import numpy as np


def measure(model, x0, private, clients, lr, steps):
    """`clients`: pairs of (X, y) to train on and (X, y) to validate with; `private`: coordinates.

    Returns train losses, validation losses, the norms of F_m, and the norm of their mean.
    """
    shared = np.setdiff1d(np.arange(len(x0)), private)
    train, valid, left = [], [], []
    for (X, y), held_out in clients:
        x = x0.copy()
        for _ in range(steps):
            x[private] -= lr * model.gradient(x, X, y)[private]
        train.append(model.loss(x, X, y))
        valid.append(model.loss(x, *held_out))
        left.append(model.gradient(x, X, y)[shared])
    norms = [np.sqrt(F @ F) for F in left]
    mean = sum(left) / len(left)
    return train, valid, norms, np.sqrt(mean @ mean)


def weighted_gap(losses, best, sizes):
    """The mean over samples of a difference in loss, and its standard error over clients."""
    gaps = [a - b for a, b in zip(losses, best, strict=True)]
    total = sum(sizes)
    mean = sum(n * g for n, g in zip(sizes, gaps, strict=True)) / total
    squares = sum((n * (g - mean)) ** 2 for n, g in zip(sizes, gaps, strict=True))
    count = len(sizes)
    return mean, np.sqrt(squares) / total * np.sqrt(count / (count - 1))
