"""The attacks once more, client by client in plain NumPy, from the text of the papers.

Draws come from one stream per client, keyed as in the library.
"""

import numpy as np
from scipy import stats

from idiolect.core import streams


def c(key, std):
    """The scalar that a client draws in a round."""
    return std * streams.normal(np.array([key]), 1)[0, 0]


def same_value(x, malicious, ref, keys, std=100.0):
    return np.array(
        [
            c(k, std) * np.ones_like(r) if b else r
            for r, b, k in zip(x, malicious, keys, strict=True)
        ]
    )


def sign_flip(x, malicious, ref, keys, std=10.0):
    return np.array(
        [-abs(c(k, std)) * r if b else r for r, b, k in zip(x, malicious, keys, strict=True)]
    )


def data_poison(x, malicious, ref, keys, std=20.0):
    return np.array([c(k, std) * r if b else r for r, b, k in zip(x, malicious, keys, strict=True)])


def gaussian(x, malicious, ref, keys, std=100.0):
    draws = [std * streams.normal(np.array([k]), x.shape[1])[0] for k in keys]
    return np.array([d if b else r for r, b, d in zip(x, malicious, draws, strict=True)])


def scaling(x, malicious, ref, keys, factor=10.0):
    ref = 0 if ref is None else ref
    return np.array(
        [ref + factor * (r - ref) if b else r for r, b in zip(x, malicious, strict=True)]
    )


def zero(x, malicious, ref, keys):
    return np.array(
        [
            (np.zeros_like(r) if ref is None else ref) if b else r
            for r, b in zip(x, malicious, strict=True)
        ]
    )


def label_flip(x, malicious, ref, keys):
    return x


def _seen(x, malicious):
    return x if malicious.all() else x[~malicious]


def _with(x, malicious, message):
    out = x.copy()
    out[malicious] = message
    return out


def alie(x, malicious, ref, keys, z=0.0):
    seen = _seen(x, malicious)
    n = len(x)
    f = int(malicious.sum())
    honest = f if n == f else n - f
    s = max(int(np.floor(n / 2 + 1)) - f, 1)
    z = z or max(0.0, stats.norm.ppf((honest - s) / honest))
    spread = np.sqrt(((seen - seen.mean(0)) ** 2).mean(0))
    return _with(x, malicious, seen.mean(0) - z * spread)


def ipm(x, malicious, ref, keys, eps=0.5):
    ref = np.zeros(x.shape[1]) if ref is None else ref
    return _with(x, malicious, ref - eps * np.mean([r - ref for r in _seen(x, malicious)], axis=0))


def _push(seen, ref, direction, fits):
    """The largest gamma by bisection."""
    mean = seen.mean(0)
    ahead = mean if ref is None else mean - ref
    p = -{
        "unit": ahead / (np.linalg.norm(ahead) or 1.0),
        "std": seen.std(0),
        "sign": np.sign(ahead),
    }[direction]
    if not p.any():
        return mean
    low, high = 0.0, 1.0
    while fits(mean + high * p):
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(mean + middle * p) else (low, middle)
    return mean + low * p


def min_max(x, malicious, ref, keys, direction="std"):
    seen = _seen(x, malicious)
    widest = max(np.linalg.norm(a - b) for a in seen for b in seen)
    return _with(
        x,
        malicious,
        _push(seen, ref, direction, lambda y: max(np.linalg.norm(y - a) for a in seen) <= widest),
    )


def min_sum(x, malicious, ref, keys, direction="std"):
    seen = _seen(x, malicious)
    most = max(sum(((a - b) ** 2).sum() for b in seen) for a in seen)
    return _with(
        x,
        malicious,
        _push(seen, ref, direction, lambda y: sum(((y - a) ** 2).sum() for a in seen) <= most),
    )


def mimic(x, malicious, ref, keys, which="variance"):
    seen = _seen(x, malicious)
    keys = keys if malicious.all() else keys[~malicious]
    if which == "keyed":
        words = [streams.bits(np.array([k]), 0, 1)[0, 0] for k in keys]
        return _with(x, malicious, seen[np.argmin(words)])
    changes = seen if ref is None else seen - ref
    z = np.linalg.svd(changes - changes.mean(0), full_matrices=False)[2][0]
    return _with(x, malicious, seen[np.argmax(np.abs(changes @ z))])
