"""The attacks once more, client by client in plain NumPy, from the papers' text. Draws: a stream a client, as the library keys them."""

import numpy as np
from scipy import stats

from idiolect.core import streams


def c(key, std):
    """The scalar of a client's round."""
    return std * streams.normal(np.array([key]), 1)[0, 0]


def same_value(x, bad, ref, keys, std=100.0):
    return np.array(
        [c(k, std) * np.ones_like(r) if b else r for r, b, k in zip(x, bad, keys, strict=True)]
    )


def sign_flip(x, bad, ref, keys, std=10.0):
    return np.array([-abs(c(k, std)) * r if b else r for r, b, k in zip(x, bad, keys, strict=True)])


def data_poison(x, bad, ref, keys, std=20.0):
    return np.array([c(k, std) * r if b else r for r, b, k in zip(x, bad, keys, strict=True)])


def gaussian(x, bad, ref, keys, std=100.0):
    draws = [std * streams.normal(np.array([k]), x.shape[1])[0] for k in keys]
    return np.array([d if b else r for r, b, d in zip(x, bad, draws, strict=True)])


def scaling(x, bad, ref, keys, factor=10.0):
    ref = 0 if ref is None else ref
    return np.array([ref + factor * (r - ref) if b else r for r, b in zip(x, bad, strict=True)])


def zero(x, bad, ref, keys):
    return np.array(
        [
            (np.zeros_like(r) if ref is None else ref) if b else r
            for r, b in zip(x, bad, strict=True)
        ]
    )


def label_flip(x, bad, ref, keys):
    return x


def _seen(x, bad):
    return x if bad.all() else x[~bad]


def _told(x, bad, message):
    out = x.copy()
    out[bad] = message
    return out


def alie(x, bad, ref, keys, z=0.0):
    seen, n, f = _seen(x, bad), len(x), int(bad.sum())
    honest = f if n == f else n - f
    s = max(int(np.floor(n / 2 + 1)) - f, 1)
    z = z or max(0.0, stats.norm.ppf((honest - s) / honest))
    spread = np.sqrt(((seen - seen.mean(0)) ** 2).mean(0))
    return _told(x, bad, seen.mean(0) - z * spread)


def ipm(x, bad, ref, keys, eps=0.5):
    ref = np.zeros(x.shape[1]) if ref is None else ref
    return _told(x, bad, ref - eps * np.mean([r - ref for r in _seen(x, bad)], axis=0))


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


def min_max(x, bad, ref, keys, direction="std"):
    seen = _seen(x, bad)
    widest = max(np.linalg.norm(a - b) for a in seen for b in seen)
    return _told(
        x,
        bad,
        _push(seen, ref, direction, lambda y: max(np.linalg.norm(y - a) for a in seen) <= widest),
    )


def min_sum(x, bad, ref, keys, direction="std"):
    seen = _seen(x, bad)
    most = max(sum(((a - b) ** 2).sum() for b in seen) for a in seen)
    return _told(
        x,
        bad,
        _push(seen, ref, direction, lambda y: sum(((y - a) ** 2).sum() for a in seen) <= most),
    )


def mimic(x, bad, ref, keys, which="variance"):
    seen, ks = _seen(x, bad), keys if bad.all() else keys[~bad]
    if which == "keyed":
        return _told(x, bad, seen[np.argmin([streams.bits(np.array([k]), 0, 1)[0, 0] for k in ks])])
    changes = seen if ref is None else seen - ref
    z = np.linalg.svd(changes - changes.mean(0), full_matrices=False)[2][0]
    return _told(x, bad, seen[np.argmax(np.abs(changes @ z))])
