"""MOON: Li, He and Song 2021, Algorithm 1."""

import numpy as np

from .fedavg import mean


def moon(model, data, start, cohorts, batches, lr, steps, mu, tau, weighting="samples"):
    w = start
    last = [start for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:  # PartyLocalTraining(i, w^t)
            X, y = data[i]
            batch = batches(t, i)
            x = w.copy()
            for _ in range(steps[i]):
                I = next(batch)
                g = model.gradient(x, X[I], y[I])
                g = g + mu * sum(contrast(model, x, w, last[i], a, tau) for a in X[I]) / len(I)
                x = x - lr * g
                spent[i] += 1
            received[i] = last[i] = x
        w = mean(w, received, data, weighting)
    return {
        "server w": w,
        "private last": last,
        "personal": [w for _ in data],
        "gradients": spent,
    }


def contrast(model, x, w, last, a, tau):
    """The gradient by x of -log(e^(s_glob / τ) / (e^(s_glob / τ) + e^(s_prev / τ)))."""
    z = model.representation(x, a)
    s_glob, d_glob = cosine(z, model.representation(w, a))
    s_prev, d_prev = cosine(z, model.representation(last, a))
    share = 1 / (1 + np.exp((s_glob - s_prev) / tau))
    return model.gradient_through(x, a, share * (d_prev - d_glob) / tau)


def cosine(z, u):
    """sim(z, u), and its derivative by z; 0 where one of them is 0."""
    size, other = np.sqrt(z @ z), np.sqrt(u @ u)
    if not size or not other:
        return 0.0, np.zeros_like(z)
    s = z @ u / (size * other)
    return s, u / (size * other) - s * z / size**2
