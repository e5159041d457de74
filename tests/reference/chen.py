"""Algorithms 1 and 3 of the paper of Chen, Zheng, Long and Su (2021), for general weights p_i."""

import numpy as np


def project(x, ball):
    """The nearest point of W = {||x|| <= ball}; `ball` 0 is all of R^d."""
    size = np.linalg.norm(x)
    return x * (ball / size) if ball and size > ball else x


def local_sgd(model, x, X, y, batch, K, eta, ball, lam=0.0, w=0.0):
    """SoftLocalSGD: `eta(k)` is the step size of step k."""
    for k in range(K):
        I = next(batch)
        g = sum(model.gradient(x, X[[j]], y[[j]]) + lam * (x - w) for j in I)
        x = project(x - eta(k) / len(I) * g, ball)
    return x


def algorithm1(model, data, start, cohorts, batches, p, K, eta_local, eta, ball=0.0):
    """FedAvg; `K[t]`, `eta_local(t, k)` and `eta[t]` over rounds."""
    m = len(data)
    w = start
    spent = np.zeros(m, dtype=int)
    for t, cohort in enumerate(cohorts):
        change = np.zeros_like(w)
        for i in cohort:
            rate = lambda k, t=t: eta_local(t, k)  # noqa: E731
            x = local_sgd(model, w, *data[i], batches(t, i), K[t], rate, ball)
            change += p[i] * (w - x)
            spent[i] += K[t]
        w = w - m * eta[t] / len(cohort) * change
    return {"server w": w, "personal": [w for _ in data], "gradients": spent}


def algorithm3(
    model,
    data,
    start,
    cohorts,
    batches,
    last_batches,
    p,
    K,
    last_K,
    eta_local,
    eta,
    lam,
    ball=0.0,
):
    """FedProx; here `eta[t]` is the paper's η_t, which λ multiplies."""
    m = len(data)
    w = start
    x = [start.copy() for _ in data]
    spent = np.zeros(m, dtype=int)
    for t, cohort in enumerate(cohorts):  # Stage I
        for i in cohort:
            rate = lambda k, t=t: eta_local(t, k)  # noqa: E731
            x[i] = local_sgd(model, x[i], *data[i], batches(t, i), K[t], rate, ball, lam, w)
            spent[i] += K[t]
        w = w - lam * m * eta[t] / len(cohort) * sum(p[i] * (w - x[i]) for i in cohort)
    T = len(cohorts)
    personal = [
        local_sgd(
            model, x[i], *data[i], last_batches(i), last_K, lambda k: eta_local(T, k), ball, lam, w
        )
        for i in range(m)
    ]  # Stage II
    return {"server w": w, "private x": x, "personal": personal, "gradients": spent}
