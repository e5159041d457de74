"""FedROD: Chen and Chao 2022, section 4, with linear heads and the balanced softmax."""

import numpy as np

from .fedavg import mean


def fedrod(model, data, start, cohorts, batches, lr, personal_lr, steps, weighting="samples"):
    w = start
    head = model.head()
    personal = [np.zeros(len(start[head])) for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:
            X, y = data[i]
            n = np.array([(y == c).sum() for c in range(model.classes)])
            batch = batches(t, i)
            x = w.copy()
            for _ in range(steps[i]):
                I = next(batch)
                g = balanced_gradient(model, x, X[I], y[I], n)
                both = x.copy()
                both[head] += personal[i]
                own = model.gradient(both, X[I], y[I])[head]  # features and ψ are constants
                x = x - lr * g
                personal[i] = personal[i] - personal_lr * own
                spent[i] += 2
            received[i] = x
        w = mean(w, received, data, weighting)
    models = [w.copy() for _ in data]
    for x, own in zip(models, personal, strict=True):
        x[head] += own
    return {"server w": w, "private head": personal, "personal": models, "gradients": spent}


def balanced_gradient(model, x, X, y, n):
    """The gradient of -log(n_y e^(g_y) / Σ_c n_c e^(g_c)): log n_c is a constant bias."""
    shifted = x.copy()
    with np.errstate(divide="ignore"):
        shifted[-model.classes :] += np.log(n)
    return model.gradient(shifted, X, y)
