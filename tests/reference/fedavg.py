"""FedAvg: McMahan et al. 2017, Algorithm 1 (weighting "samples"), and its plain mean ("equal").

And Algorithm 1 of the paper of Chen, Zheng, Long and Su (2021) ("unbiased").
"""

import numpy as np


def fedavg(
    model, data, start, cohorts, batches, rates, steps, weighting, server=lambda w, target: target
):
    """`server` turns the model and the clients' mean into the next model; plainly, that mean."""
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
                x = x - rates[t] * model.gradient(x, X[I], y[I])
                spent[i] += 1
            received[i] = x
        w = server(w, mean(w, received, data, weighting))
    return {"server w": w, "personal": [w for _ in data], "gradients": spent}


def weighed(received, p):
    """Σ p_i x_i / Σ p_i over those heard; `p` None for the plain mean."""
    if p is None:
        return sum(received.values()) / len(received)
    return sum(p[i] * x for i, x in received.items()) / sum(p[i] for i in received)


def mean(w, received, data, weighting):
    """`weighting`: a name, or the weights p_i of all clients."""
    if not isinstance(weighting, str):
        return weighed(received, weighting)
    n = [len(y) for _, y in data]
    m = len(data)
    N = sum(n)
    C = list(received)
    if weighting == "samples":  # sum_i (n_i / n) w_i, n over those that were heard
        return sum(n[i] * received[i] for i in C) / sum(n[i] for i in C)
    if weighting == "equal":
        return sum(received[i] for i in C) / len(C)
    return w - m / (N * len(C)) * sum(n[i] * (w - received[i]) for i in C)  # with eta_t = 1
