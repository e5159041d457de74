"""SCAFFOLD: Karimireddy et al. 2020, Algorithm 1, with both options for the control variates."""

import numpy as np

from .fedavg import weighed


def scaffold(model, data, start, cohorts, batches, lr, steps, server_rate, option, p=None):
    """`p`: the weights of all clients, of sum 1; c is then Σ p_i c_i."""
    N = len(data)
    spent = np.zeros(N, dtype=int)
    x = start
    c = np.zeros_like(start)
    c_i = [np.zeros_like(start) for _ in data]
    for t, S in enumerate(cohorts):
        dy, dc = {}, {}
        for i in S:  # line 5
            X, y = data[i]
            batch = batches(t, i)
            y_i = x.copy()  # line 6
            for _ in range(steps):
                I = next(batch)
                y_i = y_i - lr * (model.gradient(y_i, X[I], y[I]) - c_i[i] + c)  # line 9
                spent[i] += 1
            if option == "I":  # line 11
                I = next(batch)
                plus = model.gradient(x, X[I], y[I])
                spent[i] += 1
            else:
                plus = c_i[i] - c + (x - y_i) / (steps * lr)
            dy[i] = y_i - x  # line 12
            dc[i] = plus - c_i[i]
            c_i[i] = plus  # line 13
        x = x + server_rate * weighed(dy, p)  # lines 15 and 16
        c = c + sum((1 / N if p is None else p[i]) * dc[i] for i in S)
    return {
        "server w": x,
        "server c": c,
        "private c": c_i,
        "personal": [x for _ in data],
        "gradients": spent,
    }
