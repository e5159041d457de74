"""L2GD: Hanzely and Richtárik 2020, Algorithm 1, iteration by iteration."""

import numpy as np

from .fedavg import mean


def l2gd(model, data, start, coins, heard, batches, lr, lam, p, weighting="equal", literal=False):
    """`coins[k]` is xi_k; `lr` is alpha / n.

    The master computes the mean over `heard[j]` when the j-th run of gradient steps is over: a run
    of mean steps needs one message only, as it leaves the mean of all models where it is.
    `literal`: the mean over everyone, anew in every mean step. `batches(i)`: the mini-batches of
    client i over the whole run.
    """
    x = [start.copy() for _ in data]
    draws = [batches(i) for i in range(len(data))]
    run = before = 0
    centre = start
    spent = np.zeros(len(data), dtype=int)

    def of_those_heard():
        return mean(centre, {i: x[i] for i in heard[run]}, data, weighting)

    for xi in coins:
        if xi == 0:
            for i, (X, y) in enumerate(data):
                I = next(draws[i])
                x[i] = x[i] - lr / (1 - p) * model.gradient(x[i], X[I], y[I])
                spent[i] += 1
        else:
            if literal:
                centre = mean(centre, dict(enumerate(x)), data, weighting)
            elif before == 0:
                centre = of_those_heard()
                run += 1
            x = [(1 - lr * lam / p) * x_i + lr * lam / p * centre for x_i in x]
        before = xi
    return {"server w": of_those_heard(), "private x": x, "personal": x, "gradients": spent}
