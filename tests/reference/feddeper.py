"""FedDeper: depersonalised federated learning, Algorithm 1."""

import numpy as np

from .fedavg import weighed


def feddeper(model, data, start, cohorts, batches, lr, rho, lam, steps, same_batch, p=None):
    """`same_batch`: lines 7 and 8 of a step take the same mini-batch (the paper does not say)."""
    x = start
    v = [start.copy() for _ in data]
    spent = np.zeros(len(data), dtype=int)
    for t, U in enumerate(cohorts):
        sent = {}
        for i in U:
            X, labels = data[i]
            batch = batches(t, i)
            y = x.copy()  # line 5
            for _ in range(steps):
                I = next(batch)
                # the gradient of rho / (2 eta) ||v + y - 2x||^2, eq. (5)
                penalty = rho / lr * (v[i] + y - 2 * x)
                new = y - lr * (model.gradient(y, X[I], labels[I]) + penalty)  # line 7
                I = I if same_batch else next(batch)
                v[i] = v[i] - lr * model.gradient(v[i], X[I], labels[I])  # line 8
                y = new
                spent[i] += 2
            v[i] = (1 - lam) * v[i] + lam * y  # line 10
            sent[i] = y - x  # line 11
        x = x + weighed(sent, p)  # line 14
    return {"server w": x, "private v": v, "personal": v, "gradients": spent}
