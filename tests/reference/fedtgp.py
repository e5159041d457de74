"""FedTGP: Zhang et al. 2024, with the server of its public code."""

import numpy as np

from .fedproto import prototype, regulariser, width


def fedtgp(model, data, start, cohorts, batches, lr, steps, lam, network, orders, **how):
    """`network`: the server's parameters at first; orders(t, e, n): that of n prototypes."""
    w = [start.copy() for _ in data]
    network = {name: part.copy() for name, part in network.items()}
    shared, known = np.zeros((model.classes, width(model))), set()
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        pairs = []
        for i in cohort:
            X, y = data[i]
            batch = batches(t, i)
            for _ in range(steps):
                I = next(batch)
                near = {j: shared[j] for j in known}
                g = model.gradient(w[i], X[I], y[I])
                g = g + lam * regulariser(model, w[i], X[I], y[I], near, "classes")
                w[i] = w[i] - lr * g
                spent[i] += 1
            for j in sorted(set(y.tolist())):
                pairs.append((prototype(model, w[i], X[y == j]), j, (y == j).sum() / len(y), i))
        train(network, pairs, lambda e, n, t=t: orders(t, e, n), data, **how)
        shared = forward(network)[0]
        known |= {j for _, j, _, _ in pairs}
    return {
        "server prototypes": shared.ravel(),
        "server known": np.array([float(j in known) for j in range(model.classes)]),
        "server turn": np.array([float(len(cohorts))]),
        **{f"server {name}": part for name, part in network.items()},
        "private w": w,
        "personal": w,
        "gradients": spent,
    }


def forward(network):
    before = network["embedding"] @ network["hidden"].T + network["hidden_bias"]
    hidden = np.maximum(before, 0)
    return hidden @ network["output"].T + network["output_bias"], hidden, before


def margin_of(pairs, largest, kind):
    """δ(t): of the mean prototypes of the classes."""
    means = {}
    for j in {j for _, j, _, _ in pairs}:
        of_class = [p for p, label, _, _ in pairs if label == j]
        means[j] = sum(of_class) / len(of_class)
    if len(means) < 2:
        return largest
    gaps = {
        j: [np.linalg.norm(means[j] - other) for k, other in means.items() if k != j] for j in means
    }
    pick = min if kind == "nearest" else max
    return min(max(pick(of_class) for of_class in gaps.values()), largest)


def train(network, pairs, order, data, epochs, batch, rate, largest, margin, weighting="equal"):
    delta = margin_of(pairs, largest, margin)
    size = batch or len(pairs)
    for e in range(epochs):
        places = order(e, len(pairs))
        for low in range(0, len(pairs), size):
            some = [pairs[k] for k in places[low : low + size]]
            weights = [
                1.0 if weighting == "equal" else share * len(data[i][1]) for _, _, share, i in some
            ]
            step(network, some, np.array(weights) / sum(weights), delta, rate)


def step(network, some, weights, delta, rate):
    """One step on the mean of -log softmax(-φ)[c], where the own class is δ further away."""
    made, hidden, before = forward(network)
    slope = np.zeros_like(made)
    for (own, j, _, _), weight in zip(some, weights, strict=True):
        distances = np.array([np.linalg.norm(own - p) for p in made])
        scores = -distances
        scores[j] -= delta
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        for c, p in enumerate(made):
            # d loss / d distance is 1{c = j} - share; d distance / d p is (p - own) / distance
            slope[c] += weight * ((c == j) - shares[c]) * (p - own) / distances[c]
    back = slope @ network["output"] * (before > 0)
    changes = {
        "embedding": back @ network["hidden"],
        "hidden": back.T @ network["embedding"],
        "hidden_bias": back.sum(0),
        "output": slope.T @ hidden,
        "output_bias": slope.sum(0),
    }
    for name, change in changes.items():
        network[name] = network[name] - rate * change
