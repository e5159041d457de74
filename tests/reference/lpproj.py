"""lp-proj: Han, Li, Lin and Zhang, JMLR 2024, Algorithm 1, eqs. (3) and (4).

And the two departures of the public code from it.
"""

import numpy as np

from .fedavg import mean


def lpproj(
    model,
    data,
    start,
    P,
    cohorts,
    batches,
    rates,
    personal_rates,
    p,
    lam,
    R,
    steps,
    nu,
    beta,
    fresh=False,
    w_step="paper",
    weighting="equal",
    server=lambda w, target: target,
    w_start="zero",
    relative=0.0,
    solved=None,
):
    """At most `steps` gradients for each (3). `nu` is a number, or one for each round.

    `fresh`: a new mini-batch every step and no stop at nu, as in the public code.
    `relative`: nu is at least this part of the first squared gradient norm. `solved`: a list that
    gets, for each problem, whether it was found to be solved.
    """
    w = np.zeros(len(P)) if w_start == "zero" else P @ start  # line 1
    x = [start.copy() for _ in data]
    spent = np.zeros(len(data), dtype=int)
    nus = [nu] * len(cohorts) if np.isscalar(nu) else nu
    for t, cohort in enumerate(cohorts):  # line 2
        local_w = []
        for k, (X, y) in enumerate(data):  # line 4
            batch = batches(t, k)
            w_k = w.copy()  # line 5
            for _ in range(R):  # line 6
                I = None
                enough = None
                done = False
                for _ in range(steps):  # line 7
                    I = next(batch) if I is None or fresh else I
                    pull = P.T @ derivative(w_k - P @ x[k], p)
                    g = model.gradient(x[k], X[I], y[I]) - lam * pull  # of (3)
                    spent[k] += 1
                    enough = max(nus[t], relative * (g @ g)) if enough is None else enough
                    if not fresh and g @ g <= enough:
                        done = True
                        break
                    x[k] = x[k] - personal_rates[t] * g
                if solved is not None:
                    solved.append(done)
                gap = w_k - P @ x[k]
                direction = derivative(gap, p) if w_step == "paper" else derivative_of_norm(gap, p)
                w_k = w_k - rates[t] * lam * direction  # line 8, eq. (4)
            local_w.append(w_k)
        target = mean(w, {k: local_w[k] for k in cohort}, data, weighting)
        w = server(w, (1 - beta) * w + beta * target)  # line 12
    return {"server w": w, "private x": x, "personal": x, "gradients": spent}


def derivative(gap, p):
    """Of (1/p) ||gap||_p^p: |c|^(p-1) sign(c), coordinate by coordinate; 0 at 0."""
    return np.array([0.0 if c == 0 else np.sign(c) * abs(c) ** (p - 1) for c in gap])


def derivative_of_norm(gap, p):
    """Of ||gap||_p: sign(c) (|c| / ||gap||_p)^(p-1); 0 at 0."""
    size = sum(abs(c) ** p for c in gap) ** (1 / p)
    return np.array([0.0 if c == 0 else np.sign(c) * (abs(c) / size) ** (p - 1) for c in gap])


def pfedme(model, data, start, w, cohorts, batches, lr, personal_lr, lam, R, steps, beta):
    """pFedMe (Dinh et al. 2020, Algorithm 1).

    Local steps along the gradient lam (w - theta(w)) of the Moreau envelope.
    """
    theta = [start.copy() for _ in data]
    for t, cohort in enumerate(cohorts):
        local_w = []
        for i, (X, y) in enumerate(data):
            batch = batches(t, i)
            w_i = w.copy()
            for _ in range(R):
                I = next(batch)
                for _ in range(steps):
                    # theta(w) = argmin f(theta; D) + lam/2 ||theta - w||^2, approximately
                    g = model.gradient(theta[i], X[I], y[I]) + lam * (theta[i] - w_i)
                    theta[i] = theta[i] - personal_lr * g
                w_i = w_i - lr * lam * (w_i - theta[i])
            local_w.append(w_i)
        w = (1 - beta) * w + beta * sum(local_w[i] for i in cohort) / len(cohort)
    return {"server w": w, "private x": theta}
