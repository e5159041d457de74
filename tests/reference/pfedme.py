"""pFedMe: Dinh, Tran and Nguyen 2020, Algorithm 1.

With what its public code and that of lp-proj do differently.
"""

import numpy as np

from .fedavg import mean


def pfedme(
    model,
    data,
    start,
    cohorts,
    batches,
    lr,
    personal_lr,
    lam,
    R,
    steps,
    nu,
    beta,
    fresh=False,
    reset=False,
    weighting="equal",
    relative=0.0,
    solved=None,
):
    """At most `steps` gradients for each envelope.

    `fresh`: a new mini-batch every step and no stop at nu (the lp-proj code). `reset`: theta starts
    at the received model in every round (the original code). `relative`: nu is at least this part
    of the first squared gradient norm. `solved`: a list that gets, for each problem, whether it was
    found to be solved.
    """
    w = start
    theta = [start.copy() for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        local_w = []
        for i, (X, y) in enumerate(data):  # "for all i = 1 to N"
            batch = batches(t, i)
            w_i = w.copy()
            if reset:
                theta[i] = w.copy()
            for _ in range(R):
                I = None  # "sample a fresh mini-batch D_i"
                enough = None
                done = False
                # minimise f(theta; D) + lam/2 ||theta - w_i||^2 until ||gradient||^2 <= nu
                for _ in range(steps):
                    I = next(batch) if I is None or fresh else I
                    g = model.gradient(theta[i], X[I], y[I]) + lam * (theta[i] - w_i)
                    spent[i] += 1
                    enough = max(nu, relative * (g @ g)) if enough is None else enough
                    if not fresh and g @ g <= enough:
                        done = True
                        break
                    theta[i] = theta[i] - personal_lr * g
                if solved is not None:
                    solved.append(done)
                w_i = w_i - lr * lam * (w_i - theta[i])
            local_w.append(w_i)
        w = (1 - beta) * w + beta * mean(w, {i: local_w[i] for i in cohort}, data, weighting)
    return {"server w": w, "private x": theta, "personal": theta, "gradients": spent}
