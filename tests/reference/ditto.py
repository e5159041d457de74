"""Ditto: Li, Hu, Beirami and Smith 2021, Algorithm 1 with FedAvg as the global solver."""

import numpy as np

from .fedavg import mean


def ditto(
    model,
    data,
    start,
    cohorts,
    batches,
    lr,
    personal_lr,
    steps,
    personal_steps,
    lam,
    who,
    weighting="equal",
):
    """`who` trains: the sampled clients (the paper), or everyone (the lp-proj code).

    A client draws for its shared model first.
    """
    w = start
    v = [start.copy() for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        local_w = {}
        for k in cohort if who == "sampled" else range(len(data)):
            X, y = data[k]
            batch = batches(t, k)
            x = w.copy()
            for _ in range(steps):  # UPDATE_GLOBAL(w, grad F_k(w))
                I = next(batch)
                x = x - lr * model.gradient(x, X[I], y[I])
            for _ in range(personal_steps):
                # v_k <- v_k - eta (grad F_k(v_k) + lam (v_k - w)), w as received
                I = next(batch)
                v[k] = v[k] - personal_lr * (model.gradient(v[k], X[I], y[I]) + lam * (v[k] - w))
            spent[k] += steps + personal_steps
            local_w[k] = x
        w = mean(w, {k: local_w[k] for k in cohort}, data, weighting)  # AGGREGATE
    return {"server w": w, "private v": v, "personal": v, "gradients": spent}
