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
    later=None,
):
    """`who` trains: the sampled clients (the paper), or everyone (the lp-proj code).

    A client draws for its shared model first. `steps` and `personal_steps` are numbers, or one for
    each client. `later(t, k)`: what is drawn after passes over the data for the shared model, None
    for numbers of steps.
    """
    steps, personal_steps = (np.broadcast_to(n, len(data)) for n in (steps, personal_steps))
    w = start
    v = [start.copy() for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        local_w = {}
        for k in cohort if who == "sampled" else range(len(data)):
            X, y = data[k]
            batch = batches(t, k)
            x = w.copy()
            for _ in range(steps[k]):  # UPDATE_GLOBAL(w, grad F_k(w))
                I = next(batch)
                x = x - lr * model.gradient(x, X[I], y[I])
            batch = later(t, k) if later else batch
            for _ in range(personal_steps[k]):
                # v_k <- v_k - eta (grad F_k(v_k) + lam (v_k - w)), w as received
                I = next(batch)
                v[k] = v[k] - personal_lr * (model.gradient(v[k], X[I], y[I]) + lam * (v[k] - w))
            spent[k] += steps[k] + personal_steps[k]
            local_w[k] = x
        w = mean(w, {k: local_w[k] for k in cohort}, data, weighting)  # AGGREGATE
    return {"server w": w, "private v": v, "personal": v, "gradients": spent}
