"""FedDyn: Acar et al. 2021, Algorithm 1, the local problem solved by SGD."""

import numpy as np


def feddyn(model, data, start, cohorts, batches, lr, steps, alpha):
    """`steps`: of each client."""
    m = len(data)
    w = start
    h = np.zeros_like(start)
    g = [np.zeros_like(start) for _ in data]
    spent = np.zeros(m, dtype=int)
    for t, P in enumerate(cohorts):
        local = {}
        for k in P:
            X, y = data[k]
            batch = batches(t, k)
            x = w.copy()
            for _ in range(steps[k]):
                I = next(batch)
                # of L_k(θ) - <∇L_k(θ_k^{t-1}), θ> + α/2 ||θ - θ^{t-1}||²
                x = x - lr * (model.gradient(x, X[I], y[I]) - g[k] + alpha * (x - w))
                spent[k] += 1
            g[k] = g[k] - alpha * (x - w)
            local[k] = x
        h = h - alpha / m * sum(x - w for x in local.values())
        w = sum(local.values()) / len(P) - h / alpha
    return {
        "server w": w,
        "server h": h / alpha,
        "private g": g,
        "personal": [w for _ in data],
        "gradients": spent,
    }
