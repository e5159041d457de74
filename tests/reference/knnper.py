"""kNN-Per: Marfoq et al. 2022, Algorithm 1, on a shared model that another reference trained."""

import numpy as np

from .softmax import softmax


def knn_per(model, w, memory, samples, lam, k, sigma, squared=False):
    """Probabilities of each class for samples; `memory` is the client's training data (X, y)."""
    X, y = memory
    keys = [model.representation(w, a) for a in X]
    return np.array([mixture(model, w, keys, y, a, lam, k, sigma, squared) for a in samples])


def mixture(model, w, keys, y, a, lam, k, sigma, squared):
    z = model.representation(w, a)
    d = np.array([np.sqrt(((z - key) ** 2).sum()) for key in keys])
    if squared:  # the public code
        d = d**2 / len(z)
    nearest = np.argsort(d, kind="stable")[:k]
    votes = np.zeros(model.classes)
    for i in nearest:
        votes[y[i]] += np.exp(-d[i] / sigma)
    return lam * votes / votes.sum() + (1 - lam) * softmax(model.outputs(w, a))


def best_lambda(model, w, memory, validation, choices, **fields):
    """Of these choices the first with the fewest errors on validation data."""
    X, y = validation
    errors = [(knn_per(model, w, memory, X, v, **fields).argmax(1) != y).sum() for v in choices]
    return choices[int(np.argmin(errors))]
