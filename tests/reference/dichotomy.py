"""The dichotomous strategy after Corollary 3.1 of the paper of Chen, Zheng, Long and Su (2021).

Run FedAvg and PureLocalTraining, and use the better one.
"""

import numpy as np

from .fedavg import mean


def dichotomy(
    model,
    data,
    valid,
    start,
    cohorts,
    batches,
    lr,
    personal_lr,
    steps,
    personal_steps,
    weighting,
    level,
    later=None,
):
    """`valid[i]`: the validation data of client i.

    `level` "federation": the error over those heard in the last round, weighted by samples, of the
    model they received and of their local ones. "client": each client compares for itself, at the
    end. `steps` and `personal_steps` are numbers, or one for each client. `later(t, i)`: what is
    drawn after passes over the data for the local model, None for numbers of steps. `weighting`: a
    name, or the weights p_i of all clients, in place of samples.
    """
    steps, personal_steps = (np.broadcast_to(k, len(data)) for k in (steps, personal_steps))
    n = [len(y) for _, y in data] if isinstance(weighting, str) else weighting
    w = start
    x = [start.copy() for _ in data]
    votes = np.zeros(2)
    spent = np.zeros(len(data), dtype=int)

    def error(model_, i):
        X, y = valid[i]
        return 1 - model.hits(model_, X, y) / len(y) if len(y) else 0.0

    for t, cohort in enumerate(cohorts):
        local_w = []
        for i, (X, y) in enumerate(data):
            batch = batches(t, i)
            w_i = w.copy()
            for _ in range(personal_steps[i]):
                I = next(batch)
                x[i] = x[i] - personal_lr * model.gradient(x[i], X[I], y[I])
            batch = later(t, i) if later else batch
            for _ in range(steps[i]):
                I = next(batch)
                w_i = w_i - lr * model.gradient(w_i, X[I], y[I])
            spent[i] += personal_steps[i] + steps[i]
            local_w.append(w_i)
        errors = np.array([[error(w, i), error(x[i], i)] for i in cohort])
        weighed = sum(n[i] * e for i, e in zip(cohort, errors, strict=True))
        votes = weighed / sum(n[i] for i in cohort)
        w = mean(w, {i: local_w[i] for i in cohort}, data, weighting)
    together = [
        votes[0] < votes[1] if level == "federation" else error(w, i) < error(x[i], i)
        for i in range(len(data))
    ]
    personal = [w if shared else x[i] for i, shared in enumerate(together)]
    return {
        "server w": w,
        "server votes": votes,
        "private x": x,
        "personal": personal,
        "gradients": spent,
    }
