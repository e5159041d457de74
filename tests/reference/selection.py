"""Power-of-choice: Cho, Wang and Joshi (AISTATS 2022), their three steps for π_pow-d."""

from itertools import permutations

import numpy as np


def power_of_choice(model, data, w, clocks, D, m):
    """The clients that are heard: of D candidates the m with the largest loss F_k(w).

    `clocks[k]` is the time at which an exponential clock of rate 1 of client k rings; a clock of
    rate p_k rings at clocks[k] / p_k.
    """
    n = np.array([len(y) for _, y in data])
    p = n / n.sum()
    candidates = np.argsort(clocks / p)[:D]
    losses = {k: model.loss(w, *data[k]) for k in candidates}
    return sorted(sorted(losses, key=losses.get, reverse=True)[:m])


def chances(p, D):
    """The probability of every set of D clients, drawn one after the other without replacement.

    Each with probability proportional to p among those that are left.
    """
    out = {}
    for order in permutations(range(len(p)), D):
        chance, left = 1.0, 1.0
        for k in order:
            chance *= p[k] / left
            left -= p[k]
        key = tuple(sorted(order))
        out[key] = out.get(key, 0.0) + chance
    return out
