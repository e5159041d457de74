"""FedNova: Wang et al. 2020, for plain local SGD; p_i = n_i / n over the clients heard."""

import numpy as np


def fednova(model, data, start, cohorts, batches, lr, steps):
    """`steps`: τ_i of each client."""
    w = start
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        n = {i: len(data[i][1]) for i in cohort}
        p = {i: n[i] / sum(n.values()) for i in cohort}
        d = {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            x = w.copy()
            for _ in range(steps[i]):
                I = next(batch)
                x = x - lr * model.gradient(x, X[I], y[I])
            d[i] = (w - x) / (lr * steps[i])  # the mean of its gradients: G_i a_i / ||a_i||_1
            spent[i] += steps[i]
        effective = sum(p[i] * steps[i] for i in cohort)
        w = w - effective * lr * sum(p[i] * d[i] for i in cohort)
    return {"server w": w, "personal": [w for _ in data], "gradients": spent}
