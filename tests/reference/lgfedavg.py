"""LG-FedAvg: Liang et al. 2020, Algorithm 1.

All layers are trained; the global ones are sent and averaged.
"""

import numpy as np

from .fedavg import mean


def lgfedavg(model, data, start, shared, cohorts, batches, lr, steps, weighting):
    """`shared`: the coordinates of the global layers; the rest stays at the client."""
    local = np.setdiff1d(np.arange(len(start)), shared)
    theta = start[shared]
    own = [start[local] for _ in data]
    spent = np.zeros(len(data), dtype=int)

    def whole(i):
        x = np.empty(len(start))
        x[shared] = theta
        x[local] = own[i]
        return x

    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            x = whole(i)
            for _ in range(steps[i]):
                I = next(batch)
                x = x - lr * model.gradient(x, X[I], y[I])
                spent[i] += 1
            received[i] = x[shared]
            own[i] = x[local]
        theta = mean(theta, received, data, weighting)
    return {
        "server theta": theta,
        "private w": own,
        "personal": [whole(i) for i in range(len(data))],
        "gradients": spent,
    }
