"""FedProto: Tan et al. 2022, Algorithm 1."""

import numpy as np


def fedproto(
    model, data, start, cohorts, batches, lr, steps, lam, pull="classes", weighting="samples"
):
    """`pull` "samples" and `weighting` "equal" are those of the public code.

    `model` and `start` may be lists: those of each client, with as many features.
    """
    models = model if isinstance(model, list) else [model] * len(data)
    starts = start if isinstance(start, list) else [start] * len(data)
    classes = models[0].classes
    w = [one.copy() for one in starts]
    shared = {}  # class -> its global prototype
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        local = {}
        for i in cohort:  # LocalUpdate
            X, y = data[i]
            model = models[i]
            batch = batches(t, i)
            for _ in range(steps[i]):
                I = next(batch)
                g = model.gradient(w[i], X[I], y[I])
                g = g + lam * regulariser(model, w[i], X[I], y[I], shared, pull)
                w[i] = w[i] - lr * g
                spent[i] += 1
            local[i] = {j: prototype(model, w[i], X[y == j]) for j in set(y.tolist())}  # Eq. 3
        for j in range(classes):  # Eq. 6
            having = [i for i in cohort if j in local[i]]
            if having:
                n = [(data[i][1] == j).sum() if weighting == "samples" else 1 for i in having]
                shared[j] = sum(k * local[i][j] for k, i in zip(n, having, strict=True)) / sum(n)
    flat = [shared.get(j, np.zeros(width(models[0]))) for j in range(classes)]
    return {
        "server prototypes": np.concatenate(flat),
        "server known": np.array([float(j in shared) for j in range(classes)]),
        "private w": w,
        "personal": w,
        "gradients": spent,
    }


def width(model):
    """How many features the last layer is given."""
    return getattr(model, "hidden", model.features)


def prototype(model, x, samples):
    return sum(model.representation(x, a) for a in samples) / len(samples)


def regulariser(model, x, X, y, shared, pull):
    """The gradient of L_R of Eq. 7, with d the mean of squared differences."""
    total = np.zeros(len(x))
    for j in set(y.tolist()) & shared.keys():
        samples = X[y == j]
        mean = prototype(model, x, samples)
        for a in samples:
            if pull == "classes":  # d(C_j, C̄_j), C_j the mean of the mini-batch
                slope = 2 * (mean - shared[j]) / len(mean) / len(samples)
            else:  # the mean over the samples of the mini-batch
                slope = 2 * (model.representation(x, a) - shared[j]) / len(mean) / len(y)
            total += model.gradient_through(x, a, slope)
    return total
