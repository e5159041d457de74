"""Per-FedAvg: Fallah, Mokhtari and Ozdaglar 2020, Algorithm 1.

With its two ways round the Hessian (their section 5).
"""

import numpy as np

from .fedavg import mean
from .softmax import softmax


def perfedavg(
    model,
    data,
    start,
    cohorts,
    batches,
    last_batches,
    beta,
    alpha,
    steps,
    adapt_steps,
    weighting,
    hessian,
    delta=1e-3,
):
    """Each of the `steps` local iterations takes mini-batches D, D' and, where it needs it, D''.

    `hessian`: "first-order" (FO), "finite" (HF) or "exact". Before use a client takes `adapt_steps`
    steps of size alpha.
    """
    w = start
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        received = {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            x = w.copy()
            for _ in range(steps):
                D = next(batch)
                D1 = next(batch)
                adapted = x - alpha * model.gradient(x, X[D], y[D])
                g = model.gradient(adapted, X[D1], y[D1])
                spent[i] += 2
                if hessian == "first-order":
                    product = np.zeros_like(g)
                else:
                    D2 = next(batch)
                    spent[i] += 2
                    if hessian == "exact":
                        product = hessian_product(model, x, g, X[D2], y[D2])
                    else:
                        ahead, behind = (
                            model.gradient(x + s * delta * g, X[D2], y[D2]) for s in (1, -1)
                        )
                        product = (ahead - behind) / (2 * delta)
                # (I - alpha H(x; D'')) grad f(x - alpha grad f(x; D); D')
                x = x - beta * (g - alpha * product)
            received[i] = x
        w = mean(w, received, data, weighting)
    personal = []
    for i, (X, y) in enumerate(data):
        batch = last_batches(i)
        x = w.copy()
        for _ in range(adapt_steps):
            I = next(batch)
            x = x - alpha * model.gradient(x, X[I], y[I])
        personal.append(x)
    return {"server w": w, "personal": personal, "gradients": spent}


def hessian_product(model, x, v, X, y):
    """The Hessian of multinomial logistic regression times v, by hand.

    In outputs z = W a + b it is diag(p) - p p'.
    """
    total = np.zeros_like(v)
    V, c = model.split(v)
    for a in X:
        p = softmax(model.outputs(x, a))
        dz = V @ a + c
        s = p * dz - p * (p @ dz)
        total += np.concatenate([np.outer(s, a).ravel(), s])
    return total / len(y)
