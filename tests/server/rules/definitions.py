"""The rules as their papers define them, in NumPy: slow, obvious, sharing no code with ours."""

from itertools import combinations

import numpy as np


def distance(a, b):
    return float(np.sqrt(((a - b) ** 2).sum()))


def mean(x, w):
    return sum(wi * xi for wi, xi in zip(w, x, strict=True)) / sum(w)


def median(x):
    out = []
    n = len(x)
    for column in x.T:
        c = sorted(column)
        out.append(c[n // 2] if n % 2 else (c[n // 2 - 1] + c[n // 2]) / 2)
    return np.array(out)


def trimmed_mean(x, f):
    return np.array([np.mean(sorted(column)[f : len(column) - f]) for column in x.T])


def mean_around_median(x, keep):
    out = []
    for column, middle in zip(x.T, median(x), strict=True):
        nearest = sorted(sorted(column), key=lambda v: abs(v - middle))
        out.append(np.mean(nearest[:keep]))
    return np.array(out)


def meamed(x, f):
    return mean_around_median(x, len(x) - f)


def krum_order(x, f, squared=True):
    """Clients, best first; the sum of all distances decides between equal scores."""
    keys = []
    for i in range(len(x)):
        gaps = [((x[i] - x[j]) ** 2).sum() for j in range(len(x)) if j != i]
        gaps = sorted(gaps if squared else np.sqrt(gaps))
        keys.append((sum(gaps[: max(len(x) - f - 2, 1)]), sum(gaps)))
    return sorted(range(len(x)), key=lambda i: keys[i])


def krum(x, f):
    return x[krum_order(x, f)[0]]


def krum_perfed(x, f):
    keys = [sorted(distance(a, b) for b in x) for a in x]
    keys = [(sum(k[: len(x) - f - 1]), sum(k)) for k in keys]  # the row itself is among them
    return x[min(range(len(x)), key=lambda i: keys[i])]


def multi_krum(x, f, m):
    return np.mean([x[i] for i in krum_order(x, f)[:m]], axis=0)


def bulyan_chosen(x, f):
    """The clients that Bulyan's first stage takes."""
    left = list(range(len(x)))
    chosen = []
    while len(chosen) < len(x) - 2 * f:
        chosen.append(left.pop(krum_order(x[left], f)[0]))
    return chosen


def bulyan(x, f):
    chosen = bulyan_chosen(x, f)
    return mean_around_median(x[chosen], len(chosen) - 2 * f)


def mda_chosen(x, f):
    """The clients of the subset of least diameter; of ties, that of the least sum of squares."""

    def size(subset):
        gaps = [((x[i] - x[j]) ** 2).sum() for i, j in combinations(subset, 2)]
        return max(gaps, default=0), sum(gaps)

    return list(min(combinations(range(len(x)), len(x) - f), key=size))


def mda(x, f):
    return np.mean(x[mda_chosen(x, f)], axis=0)


def geometric_median(x, w, steps, nu):
    z = median(x)
    for _ in range(steps):
        b = [wi / max(nu, distance(z, xi)) for wi, xi in zip(w, x, strict=True)]
        z = sum(bi * xi for bi, xi in zip(b, x, strict=True)) / sum(b)
    return z


def clip(v, bound):
    length = distance(v, 0 * v)
    return v if length <= bound else v * bound / length


def centred_clipping(x, tau, steps, start=None):
    """From `start`, the aggregate of the round before; in the first round from the median."""
    v = median(x) if start is None else start
    for _ in range(steps):
        v = v + np.mean([clip(xi - v, tau) for xi in x], axis=0)
    return v


def nnm(x, f):
    out = []
    for a in x:
        near = sorted(x, key=lambda b: distance(a, b))[: len(x) - f]
        out.append(np.mean(near, axis=0))
    return np.array(out)


def norm_bound(x, bound):
    c = median(x)
    return np.array([c + clip(xi - c, bound) for xi in x])
