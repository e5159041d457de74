"""RSA: Li, Xu, Chen, Giannakis and Ling 2019, eqs. (10) and (11).

In the equations the server's step sees the workers' models before their step, x_i^k; in the public
code of the paper those after it, x_i^{k+1}.
"""

import numpy as np

from .fedavg import weighed
from .lpproj import derivative_of_norm


def rsa(
    model,
    data,
    start,
    cohorts,
    batches,
    rates,
    personal_rates,
    p,
    lam,
    steps,
    decay,
    server_step,
    weights=None,
):
    """`server_step`: "sum" (the paper), "sum-new" (its code), or "mean" (the lp-proj code).

    With "mean" each client steps with a copy of w, and the server takes the mean of the copies.
    `weights`: p_i of sum 1; a client then counts m p_i times in the sum.
    """
    times = np.ones(len(data)) if weights is None else len(data) * np.asarray(weights)
    w = start
    x = [start.copy() for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        before = [x_i.copy() for x_i in x]  # x_i^k
        for i, (X, y) in enumerate(data):
            batch = batches(t, i)
            for _ in range(steps):
                I = next(batch)
                x[i] = x[i] - personal_rates[t] * (
                    model.gradient(x[i], X[I], y[I]) + lam * derivative_of_norm(x[i] - w, p)
                )
                spent[i] += 1
        if server_step != "mean":  # f_0(w) = decay/2 ||w||^2
            seen = before if server_step == "sum" else x
            w = w - rates[t] * (
                decay * w + lam * sum(times[i] * derivative_of_norm(w - seen[i], p) for i in cohort)
            )
        else:
            steps_of_w = {i: w - rates[t] * lam * derivative_of_norm(w - x[i], p) for i in cohort}
            w = weighed(steps_of_w, weights) - rates[t] * decay * w
    return {"server w": w, "private x": x, "personal": x, "gradients": spent}
