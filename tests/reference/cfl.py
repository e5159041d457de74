"""CFL: Sattler, Müller and Samek 2020, Algorithms 1 and 2, with ε as parts of the largest norm."""

from itertools import combinations

import numpy as np


def cfl(model, data, start, cohorts, batches, lr, steps, weighting, eps1, eps2, gamma, most):
    """A group is [its clients, its model, its largest mean change]; a division appends one."""
    groups = [[set(range(len(data))), start, 0.0]]
    spent = np.zeros(len(data), dtype=int)
    for t, cohort in enumerate(cohorts):
        received = {}
        for members, w, _ in groups:
            for i in members & set(cohort):
                X, y = data[i]
                batch = batches(t, i)
                x = w.copy()
                for _ in range(steps):
                    I = next(batch)
                    x = x - lr * model.gradient(x, X[I], y[I])
                    spent[i] += 1
                received[i] = x
        for g in range(len(groups)):
            members, w, largest = groups[g]
            change = {i: received[i] - w for i in sorted(members)}
            mean = weighed(change, data, weighting)
            groups[g][1] = w + mean
            groups[g][2] = largest = max(largest, np.linalg.norm(mean))
            norms = [np.linalg.norm(c) for c in change.values()]
            stationary = np.linalg.norm(mean) < eps1 * largest and max(norms) > eps2 * largest
            if not stationary or len(members) < 2 or len(groups) == most:
                continue
            first, second, across = optimal_bipartition(change)
            if np.sqrt((1 - across) / 2) > gamma:
                parts = sorted((first, second), key=len, reverse=True)
                models = [w + weighed({i: change[i] for i in p}, data, weighting) for p in parts]
                groups[g] = [parts[0], models[0], largest]
                groups.append([parts[1], models[1], largest])
    group_of = {i: g for g, (members, _, _) in enumerate(groups) for i in members}
    numbers = range(most)
    return {
        "server models": [groups[g][1] if g < len(groups) else start for g in numbers],
        "server largest": [groups[g][2] if g < len(groups) else 0.0 for g in numbers],
        "rows group": [[group_of[i]] for i in range(len(data))],
        "personal": [groups[group_of[i]][1] for i in range(len(data))],
        "gradients": spent,
    }


def weighed(change, data, weighting):
    n = {i: len(data[i][1]) if weighting == "samples" else 1 for i in change}
    return sum(n[i] * c for i, c in change.items()) / sum(n.values())


def optimal_bipartition(change):
    """argmin over all divisions of the largest cosine across, by trying every one of them."""
    clients = list(change)
    unit = {i: c / np.linalg.norm(c) for i, c in change.items()}
    best = None
    for size in range(1, len(clients) // 2 + 1):
        for part in combinations(clients, size):
            others = set(clients) - set(part)
            across = max(unit[i] @ unit[j] for i in part for j in others)
            if best is None or across < best[2]:
                best = (others, set(part), across)
    return best
