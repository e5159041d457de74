"""FedProx in its two meanings.

One global model (Li et al. 2020), and Algorithms 2 and 3 of the paper of Chen, Zheng, Long and Su
(2021).
"""

import numpy as np

from .fedavg import mean


def fedprox(model, data, start, cohorts, batches, rates, steps, weighting, mu):
    """Each sampled client takes SGD steps on f_i(x) + mu/2 ||x - w||^2; the server averages."""
    w = start
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            x = w.copy()
            for _ in range(steps[i]):
                I = next(batch)
                x = x - rates[t] * (model.gradient(x, X[I], y[I]) + mu * (x - w))
                spent[i] += 1
            received[i] = x
        w = mean(w, received, data, weighting)
    return {"server w": w, "personal": [w for _ in data], "gradients": spent}


def fedprox_soft(
    model,
    data,
    start,
    cohorts,
    batches,
    last_batches,
    rates,
    last_rate,
    steps,
    last_steps,
    weighting,
    lam,
    eta,
):
    """Algorithm 3 of Chen et al.

    `eta` is its aggregation step size (lambda times the global one, there); `last_*` belong to
    Stage II.
    """
    w = start
    x = [start.copy() for _ in data]
    spent = np.zeros(len(data), dtype=int)

    def soft_local_sgd(x, w, X, y, K, batch, lr):
        for _ in range(K):
            I = next(batch)
            x = x - lr / len(I) * sum(model.gradient(x, X[[j]], y[[j]]) + lam * (x - w) for j in I)
        return x

    for t, cohort in enumerate(cohorts):  # Stage I
        # the paper's "if i in C_t" stands at the wrong branch: the sampled clients train
        for i in cohort:
            x[i] = soft_local_sgd(x[i], w, *data[i], steps, batches(t, i), rates[t])
            spent[i] += steps
        target = mean(w, {i: x[i] for i in cohort}, data, weighting)
        w = w - eta * (w - target)
    personal = [
        soft_local_sgd(x[i], w, *data[i], last_steps, last_batches(i), last_rate)
        for i in range(len(data))
    ]  # Stage II
    return {"server w": w, "private x": x, "personal": personal, "gradients": spent}
