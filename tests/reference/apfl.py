"""APFL: Deng, Kamani and Mahdavi 2020, Algorithm 1, with α_i of equation (10)."""

import numpy as np

from .fedavg import mean


def apfl(model, data, start, cohorts, batches, lr, steps, alpha, alpha_lr, weighting="equal"):
    """`alpha_lr` 0: α_i stays at `alpha`."""
    w = start
    v = [start.copy() for _ in data]
    alphas = np.full(len(data), float(alpha))
    spent = np.zeros(len(data), dtype=int)
    for t, U in enumerate(cohorts):
        local_w = {}
        for i in U:
            X, y = data[i]
            batch = batches(t, i)
            w_i = w.copy()
            for j in range(steps):
                I = next(batch)
                a = alphas[i]
                at_mixture = model.gradient(a * v[i] + (1 - a) * w_i, X[I], y[I])
                if j == 0:
                    alphas[i] = np.clip(a - alpha_lr * (v[i] - w_i) @ at_mixture, 0, 1)
                w_i, v[i] = (
                    w_i - lr * model.gradient(w_i, X[I], y[I]),
                    v[i] - lr * a * at_mixture,
                )
                spent[i] += 2
            local_w[i] = w_i
        w = mean(w, local_w, data, weighting)
    return {
        "server w": w,
        "private v": v,
        "private alpha": alphas[:, None],
        "personal": [a * v_i + (1 - a) * w for a, v_i in zip(alphas, v, strict=True)],
        "gradients": spent,
    }
