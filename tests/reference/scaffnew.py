"""Scaffnew: Mishchenko, Malinovsky, Stich and Richtárik 2022, Algorithm 2, step by step."""

import numpy as np

from .fedavg import weighed


def scaffnew(model, data, start, coins, batches, rates, p, weights=None):
    """`coins[t]` is theta_t, shared by all; `rates[t]` is gamma.

    `batches(i)`: the mini-batches of client i over the whole run. The run's last coin is 1. Its
    private rows are one step behind: h as it was before the last communication, and x-hat.
    """
    n = len(data)
    spent = np.zeros(n, dtype=int)
    x = [start.copy() for _ in data]
    h = [np.zeros_like(start) for _ in data]
    draws = [batches(i) for i in range(n)]
    for theta, gamma in zip(coins, rates, strict=True):
        hat = []
        behind = h
        for i, (X, y) in enumerate(data):
            I = next(draws[i])
            hat.append(x[i] - gamma * (model.gradient(x[i], X[I], y[I]) - h[i]))  # line 6
            spent[i] += 1
        x = [weighed(dict(enumerate(hat)), weights)] * n if theta == 1 else hat  # lines 7 to 11
        h = [h[i] + p / gamma * (x[i] - hat[i]) for i in range(n)]  # line 12
    return {
        "server w": x[0],
        "private h": behind,
        "private x": hat,
        "personal": x,
        "gradients": spent,
    }
