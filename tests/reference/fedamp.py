"""FedAMP and HeurFedAMP: Huang et al. 2021, Algorithm 1 with its proximal step by SGD."""

import numpy as np


def fedamp(model, data, start, cohorts, batches, lr, steps, lam, share, sigma, attention):
    """`share`: α A'(0) times the number of others (FedAMP), or 1 - ξ_ii (HeurFedAMP).

    The server mixes the last models of the clients that it has heard.
    """
    w = [start.copy() for _ in data]
    heard = {}
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        u = {i: mixture(w[i], i, heard, share, sigma, attention) for i in cohort}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            for _ in range(steps):  # w_i = argmin F_i(w) + lam / 2 ||w - u_i||^2
                I = next(batch)
                w[i] = w[i] - lr * (model.gradient(w[i], X[I], y[I]) + lam * (w[i] - u[i]))
                spent[i] += 1
        heard |= {i: w[i] for i in cohort}
    return {
        "rows models": w,
        "rows heard": np.array([[float(i in heard)] for i in range(len(data))]),
        "private w": w,
        "personal": w,
        "gradients": spent,
    }


def mixture(own, i, heard, share, sigma, attention):
    """u_i of the server's step."""
    others = [j for j in heard if j != i]
    if not others:
        return own
    if attention == "distance":
        a = share / len(others)
        xi = {j: a * np.exp(-np.sum((own - heard[j]) ** 2) / sigma) for j in others}
    else:
        e = {j: np.exp(sigma * cosine(own, heard[j])) for j in others}
        xi = {j: share * e[j] / sum(e.values()) for j in others}
    return (1 - sum(xi.values())) * own + sum(xi[j] * heard[j] for j in others)


def cosine(a, b):
    return a @ b / np.sqrt((a @ a) * (b @ b))
