"""FedPAC: Xu, Tong and Huang 2023, each client's programme solved by trying all supports."""

from itertools import chain, combinations

import numpy as np

from .fedavg import mean
from .fedproto import prototype, width


def fedpac(
    model,
    data,
    start,
    cohorts,
    batches,
    lr,
    head_lr,
    steps,
    head_steps,
    lam,
    combine=True,
    weighting="samples",
    later=None,
):
    """`later(t, i)`: what is drawn for the body after passes over the data for the head."""
    head = np.arange(len(start))[model.head()]
    body = np.setdiff1d(np.arange(len(start)), head)
    theta = start[body]
    heads = [start[head] for _ in data]
    shared = {}  # class -> its mean features over all clients
    spent = np.zeros(len(data), dtype=int)

    def join(theta, phi):
        x = np.empty(len(start))
        x[body] = theta
        x[head] = phi
        return x

    for t, cohort in enumerate(cohorts):
        after, local, said = {}, {}, {}
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            x = join(theta, heads[i])
            said[i] = statistics(model, x, X, y)
            for _ in range(head_steps[i]):
                I = next(batch)
                x[head] -= head_lr * model.gradient(x, X[I], y[I])[head]
            batch = batch if later is None else later(t, i)
            for _ in range(steps[i]):
                I = next(batch)
                g = model.gradient(x, X[I], y[I]) + lam * alignment(model, x, X[I], y[I], shared)
                x[body] -= lr * g[body]
            spent[i] += head_steps[i] + steps[i]
            after[i] = x
            local[i] = {k: prototype(model, x, X[y == k]) for k in set(y.tolist())}
        theta = mean(theta, {i: x[body] for i, x in after.items()}, data, weighting)
        for k in range(model.classes):
            having = [i for i in cohort if k in local[i]]
            if having:
                n = [(data[i][1] == k).sum() for i in having]
                shared[k] = sum(m * local[i][k] for m, i in zip(n, having, strict=True)) / sum(n)
        for i in cohort:
            weights = {i: 1.0}
            if combine:
                weights = dict(zip(cohort, programme(i, cohort, said), strict=True))
            heads[i] = sum(a * after[j][head] for j, a in weights.items())
    flat = [shared.get(k, np.zeros(width(model))) for k in range(model.classes)]
    return {
        "server theta": theta,
        "server prototypes": np.concatenate(flat),
        "server known": np.array([float(k in shared) for k in range(model.classes)]),
        "rows head": heads,
        "personal": [join(theta, phi) for phi in heads],
        "gradients": spent,
    }


def statistics(model, x, X, y):
    """V_i, and h_i by class: (Σ_k p_k E||f||² - p_k² ||E f||²) / n_i, and p_k E f."""
    V = 0.0
    h = np.zeros((model.classes, width(model)))
    for k in set(y.tolist()):
        f = np.array([model.representation(x, a) for a in X[y == k]])
        p = len(f) / len(y)
        h[k] = p * f.mean(0)
        V += p * np.trace(f.T @ f) / len(f) - p**2 * (f.mean(0) ** 2).sum()
    return V / len(y), h


def programme(i, cohort, said):
    """min Σ_j α_j² V_j + Σ_jl α_j α_l Σ_k <h_ik - h_jk, h_ik - h_lk>, α >= 0, Σ α = 1."""
    h_i = said[i][1]
    P = np.array(
        [[((h_i - said[j][1]) * (h_i - said[l][1])).sum() for l in cohort] for j in cohort]
    )
    P += np.diag([said[j][0] for j in cohort])
    best = None
    places = range(len(cohort))
    for support in chain.from_iterable(combinations(places, m + 1) for m in places):
        part = np.linalg.solve(P[np.ix_(support, support)], np.ones(len(support)))
        alpha = np.zeros(len(cohort))
        alpha[list(support)] = part / part.sum()
        value = alpha @ P @ alpha
        if (alpha >= 0).all() and (best is None or value < best[0]):
            best = value, alpha
    return best[1]


def alignment(model, x, X, y, shared):
    """The gradient of the mean over samples of ||f(x) - c_y||² / F, of classes that are known."""
    total = np.zeros(len(x))
    for a, k in zip(X, y.tolist(), strict=True):
        if k in shared:
            f = model.representation(x, a)
            slope = 2 * (f - shared[k]) / len(f) / len(y)
            total += model.gradient_through(x, a, slope)
    return total
