"""Gaussian noise from the operating system's cryptographic source, on a grid.

Floating point could tell what noise hides: which doubles can be a sum of a secret and of noise
depends on the secret (Mironov, CCS 2012). So what is released is rounded to multiples of a power of
two, about a millionth of the noise. Rounding what a Gaussian mechanism gives needs no further
proof. Two things are not exact: a normal number is made of 106 random bits, so that one beyond 8.6
standard deviations never comes; and logarithm and cosine are right to a last bit of a double.

For simulations that are to repeat to the bit, noise can be drawn from the seed of the run. Who
knows the seed can take it off again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.streams import Keys

SOURCES = ("secret", "seed")
FINENESS = 20  # the grid is about 2^-20 standard deviations wide
MOST_OF_A_KEY = 1 << 34  # bytes: a counter of 32 bits counts blocks of 64
Bytes = Callable[[int], bytes]


def secret_bytes(count: int) -> bytes:
    """Bytes that nobody can foretell: ChaCha20 under a key of the system's source, used once.

    The system's own source where the package `cryptography` is not installed: ten times slower.
    """
    cipher = _chacha()
    if cipher is None or count > MOST_OF_A_KEY:
        return os.urandom(count)
    ciphers, algorithm = cipher
    stream = ciphers(algorithm(os.urandom(32), bytes(8) + os.urandom(8)), mode=None).encryptor()
    return bytes(stream.update(bytes(count)))


@lru_cache(maxsize=1)
def _chacha() -> tuple[Any, Any] | None:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ImportError:
        return None
    return Cipher, algorithms.ChaCha20


@dataclass(frozen=True)
class Noise:
    """Where random numbers of mechanisms come from.

    >>> noise = Noise("secret")
    >>> x = noise.normal(1, 50_000)
    >>> bool(abs(x.mean()) < 0.03 and abs(x.std() - 1) < 0.03)
    True
    """

    source: str  # one of SOURCES
    seed: int = 0
    entropy: Bytes = field(default=secret_bytes, repr=False)  # of the source "secret"

    @property
    def secret(self) -> bool:
        """Whether nobody can know what was drawn."""
        return self.source == "secret"

    def normal(
        self, rows: int, count: int, purpose: str = "", turn: int = 0, clients: Keys | None = None
    ) -> Tensor:  # -> float64[rows, count]
        """Standard normal numbers; what they are for counts where they come from the seed."""
        if not self.secret:
            own = np.arange(rows, dtype=np.uint64) if clients is None else clients
            keys = streams.keys(self.seed, f"noise {purpose}", turn, own)
            return torch.from_numpy(streams.normal(keys, count))
        pairs = (rows * count + 1) // 2
        words = torch.frombuffer(bytearray(self.entropy(16 * pairs)), dtype=torch.int64)
        # Box and Muller on the upper 53 bits, from the middle of each interval: never log 0
        uniform = (words >> 11).bitwise_and_((1 << 53) - 1).double().add_(0.5).mul_(2.0**-53)
        radius = uniform[:pairs].log_().mul_(-2).sqrt_()
        angle = uniform[pairs:].mul_(2 * math.pi)
        both = torch.cat([radius * angle.cos(), angle.sin_().mul_(radius)])
        return both[: rows * count].view(rows, count)

    def word(self, purpose: str, turn: int) -> int:
        """63 random bits: the seed of a draw that nobody else may know."""
        if self.secret:
            return int.from_bytes(self.entropy(8), "little") >> 1
        return int(streams.keys(self.seed, purpose, turn)[0] >> np.uint64(1))


def grid_of(sigma: float) -> float:
    """The step of the grid for noise of this standard deviation: a power of two.

    >>> grid_of(1.0) == 2.0**-20, grid_of(0.75) == 2.0**-21
    (True, True)
    """
    return 2.0 ** (math.floor(math.log2(sigma)) - FINENESS)


def released(values: Tensor, noise: Tensor, sigma: float) -> Tensor:  # float64, in place
    """Values with noise of standard deviation sigma, on the grid.

    >>> x = released(torch.tensor([0.1], dtype=torch.float64), torch.ones(1).double(), 0.5)
    >>> float(x / grid_of(0.5)).is_integer(), bool(abs(x - 0.6) < 1e-6)
    (True, True)
    """
    step = grid_of(sigma)
    return values.add_(noise.reshape(values.shape), alpha=sigma).div_(step).round_().mul_(step)
