"""Buckets: numbers of a row that share one scale."""

from __future__ import annotations

import numpy as np

from ..core import streams
from .bits import ceil32

Array = np.ndarray


def count(n: int, bucket: int) -> int:
    """How many buckets n numbers fill.

    >>> count(1000, 512)
    2
    """
    return -(-n // bucket)


def split(x: Array, bucket: int) -> Array:  # x[K, n] -> [K, buckets, numbers per bucket]
    """Rows cut into buckets; the last is filled up with zeros."""
    rows, n = x.shape
    bucket = min(bucket, n)
    if n % bucket:
        whole = np.zeros((rows, count(n, bucket) * bucket), dtype=x.dtype)
        whole[:, :n] = x
        x = whole
    return x.reshape(rows, count(n, bucket), bucket)


def norms(x: Array, kind: str) -> Array:  # x[K, buckets, b] -> float32[K, buckets]
    """The norm of every bucket, "l2" or "inf", rounded up to float32.

    So it is never below a number of the bucket that float32 can hold.
    """
    if kind == "inf":
        return ceil32(np.maximum(x.max(axis=2), -x.min(axis=2)).astype(np.float64))
    with np.errstate(over="ignore"):
        return ceil32(np.sqrt(np.einsum("kbj,kbj->kb", x, x, dtype=np.float64, casting="safe")))


def ratio(x: Array, norm: Array, steps: int) -> Array:  # x[K, buckets, b] -> in [-steps, steps]
    """steps x / norm; zero where the norm is zero or not finite.

    A norm that is not finite is sent, and makes its bucket not finite at the receiver.
    """
    usable = np.isfinite(norm) & (norm > 0)
    r = x / np.where(usable, norm, 1)[..., None].astype(x.dtype)
    if not usable.all():
        r[~usable] = 0
    r *= steps
    return r


def dither(r: Array, keys: Array) -> Array:  # r[K, ...] -> whole numbers
    """Stochastic rounding: up with the probability of the fraction, so that the mean is r."""
    u = streams.uniform(keys, int(np.prod(r.shape[1:]))).reshape(r.shape)
    u += r
    return np.floor(u, out=u)


def join(unit: Array, norm: Array, bucket: int) -> Array:  # unit[K, n], norm[K, buckets] -> [K, n]
    """Numbers in [-1, 1] times the norm of their bucket."""
    n = unit.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        return unit * np.repeat(norm.astype(unit.dtype), min(bucket, n), axis=1)[:, :n]
