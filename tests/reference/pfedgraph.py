"""pFedGraph: Ye et al. 2023, the weights of its graph found by bisection."""

import numpy as np


def pfedgraph(model, data, start, cohorts, batches, lr, steps, alpha, lam):
    """The server averages the last models of the clients that it has heard."""
    heard = {}
    n = [len(y) for _, y in data]
    spent = np.zeros(len(data), dtype=int)

    def mean_of(i):
        """Where client i starts, and the direction of its neighbours."""
        if not heard:
            return start, np.zeros_like(start)
        total = sum(n[j] for j in heard)
        y = {j: n[j] / total + cosine(heard, i, j, start) / (2 * alpha) for j in heard}
        x = nearest_on_simplex(y)
        w = sum(x[j] * heard[j] for j in heard)
        return w, sum(x[j] * heard[j] / np.linalg.norm(heard[j]) for j in heard)

    for t, cohort in enumerate(cohorts):
        sent = {i: mean_of(i) for i in cohort}
        after = {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            w, c = sent[i]
            for _ in range(steps):
                I = next(batch)
                size = np.linalg.norm(w)
                slope = c / size - (c @ w) * w / size**3  # of Σ_j x_ij cos(w, θ_j)
                w = w - lr * (model.gradient(w, X[I], y[I]) - lam * slope)
                spent[i] += 1
            after[i] = w
        heard |= after
    average = sum(n) / len(n)
    return {
        "rows models": [heard.get(i, start) for i in range(len(data))],
        "rows samples": [[n[i] / average if i in heard else 0.0] for i in range(len(data))],
        "private w": [heard.get(i, start) for i in range(len(data))],
        "private trained": [[float(i in heard)] for i in range(len(data))],
        "personal": [heard[i] if i in heard else mean_of(i)[0] for i in range(len(data))],
        "gradients": spent,
    }


def cosine(heard, i, j, start):
    if i not in heard:
        return 0.0
    a, b = heard[i] - start, heard[j] - start
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def nearest_on_simplex(y):
    """max(y - t, 0) with the t at which it sums to 1, by bisection."""
    low, high = min(y.values()) - 1, max(y.values())
    for _ in range(200):
        t = (low + high) / 2
        if sum(max(v - t, 0) for v in y.values()) > 1:
            low = t
        else:
            high = t
    return {j: max(v - low, 0) for j, v in y.items()}
