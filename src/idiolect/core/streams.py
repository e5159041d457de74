"""Random numbers keyed by (seed, purpose, round, client), never global.

A counter-based generator (SplitMix64): number j of the stream with key k is mix(k + j *
0x9E3779B97F4A7C15 mod 2^64). Nothing is carried from draw to draw, so what a client draws does not
depend on who else is in the cohort, on the order of the clients, on chunks, on the engine or on a
resume; and a checkpoint holds no generator state. NumPy's integer arithmetic gives the same bits on
every machine and in every version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

Keys = np.ndarray  # uint64[K], one key per stream

_STEP = np.uint64(0x9E3779B97F4A7C15)
_U = np.uint64


def mix(z: np.ndarray) -> np.ndarray:
    """The SplitMix64 finaliser (Steele, Lea and Flood 2014): a bijection of 64-bit words."""
    z = (z ^ (z >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> _U(27))) * _U(0x94D049BB133111EB)
    return z ^ (z >> _U(31))


def name_keys(names: Sequence[str]) -> Keys:
    """A 64-bit key for each name.

    Clients are known by name, so adding a client does not change the numbers of another.
    """
    digests = [hashlib.blake2b(n.encode(), digest_size=8).digest() for n in names]
    return np.array([int.from_bytes(d, "little") for d in digests], dtype=np.uint64)


@lru_cache(maxsize=1024)
def _purpose_key(seed: int, purpose: str) -> Keys:
    return mix(name_keys([purpose]) ^ _U(seed % 2**64))


def keys(seed: int, purpose: str, round: int | np.ndarray = 0, clients: Keys | None = None) -> Keys:
    """The keys of a purpose in a round, one for each client (or a single one).

    `round` may be another for each client.

    >>> keys(0, "batch", 3, name_keys(["a", "b"])).shape
    (2,)
    """
    clients = np.zeros(1, dtype=np.uint64) if clients is None else clients
    with np.errstate(over="ignore"):
        key = mix(_purpose_key(seed, purpose) + np.asarray(round + 1).astype(np.uint64) * _STEP)
        return mix(mix(clients) + key)


def bits(key: Keys, start: int, count: int) -> np.ndarray:  # -> uint64[K, count]
    """Words start ... start + count - 1 of every stream."""
    with np.errstate(over="ignore"):
        counter = np.arange(start + 1, start + count + 1, dtype=np.uint64) * _STEP
        return mix(key[:, None] + counter)


def uniform(key: Keys, count: int, start: int = 0) -> np.ndarray:  # -> float64[K, count]
    """Uniform numbers in [0, 1), from number `start` of every stream on."""
    return (bits(key, start, count) >> _U(11)) * 2.0**-53


def below(words: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Words to integers in [0, n) by multiply and shift; n < 2^32. The bias is under n / 2^32."""
    with np.errstate(over="ignore"):
        return (((words >> _U(32)) * n.astype(np.uint64)) >> _U(32)).astype(np.int64)


def choose(key: Keys, count: int) -> np.ndarray:  # uint64[K] -> int64[count], increasing
    """Which `count` of the K streams have the smallest first word.

    That is a uniform sample without replacement. A client's word depends on nobody else, so a
    larger choice holds every smaller one, and a client that is not there changes nothing for the
    others.

    >>> choose(keys(0, "example", 0, name_keys(["a", "b", "c"])), 2).tolist()
    [1, 2]
    """
    return np.sort(np.argsort(bits(key, 0, 1)[:, 0], kind="stable")[:count])


def normal(key: Keys, count: int, start: int = 0) -> np.ndarray:  # -> float64[K, count]
    """Standard normal numbers, by Box and Muller on pairs of words.

    `start` counts numbers and must be even.

    >>> x = normal(keys(0, "example"), 100_000)
    >>> bool(abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02)
    True
    """
    assert start % 2 == 0
    pairs = (count + 1) // 2
    u = uniform(key, 2 * pairs, start).reshape(len(key), pairs, 2)
    radius = np.sqrt(-2 * np.log1p(-u[..., 0]))
    angle = 2 * np.pi * u[..., 1]
    both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return both.reshape(len(key), 2 * pairs)[:, :count]
