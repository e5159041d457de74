"""FedSplit: Pathak and Wainwright 2020, Algorithm 1, with gradient steps for the proximal map."""

import numpy as np


def fedsplit(model, data, start, rounds, batches, lr, steps, s):
    """`steps`: of each client, from the argument of the proximal map."""
    x = start
    z = [start.copy() for _ in data]
    for t in range(rounds):
        for j, (X, y) in enumerate(data):
            batch = batches(t, j)
            argument = 2 * x - z[j]
            half = argument.copy()
            for _ in range(steps[j]):
                I = next(batch)
                half = half - lr * (model.gradient(half, X[I], y[I]) + (half - argument) / s)
            z[j] = z[j] + 2 * (half - x)
        x = sum(z) / len(z)
    return {
        "server w": x,
        "private z": z,
        "personal": [x for _ in data],
        "gradients": rounds * np.array(steps),
    }
