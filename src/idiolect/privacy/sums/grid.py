"""Messages as whole numbers whose sum cannot overflow: the arithmetic of secure sums.

A message, all its parts as one vector, is clipped to the norm C and written in whole multiples of
the step γ = C / 2^k, rounded toward zero: so its norm cannot grow, and what a client adds to the
sum is bounded by 2^k exactly, in whole numbers. It travels modulo 2^b. The sum of n messages,
with the noise that clients may add, stays within ±2^(b-1), so it is known from the sum modulo 2^b.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError

WIDTHS = (16, 24, 32, 40, 48)  # b, bits of a number that travels
FINEST = 30  # k, at most: squares of norms stay within 64 bits
COARSEST = 100  # steps of the norm C, over √m: rounding takes at most a hundredth of C
TAILS = 12.0  # standard deviations of the noise: beyond them once in 10^32 numbers


@dataclass(frozen=True)
class Grid:
    """The grid of messages of m numbers, for sums of up to n clients.

    >>> grid = Grid.fit(clip=1.0, clients=100, numbers=50)
    >>> grid.exponent, grid.bits, grid.row_bytes
    (24, 32, 200)
    >>> rows = torch.full((3, 50), 0.1)
    >>> total = grid.total(grid.residues(grid.quantise(rows)))
    >>> grid.mean(total, clients=3)[0].item()  # 0.1, to a step of 2^-24 toward zero
    0.09999996423721313
    """

    clip: float  # C, the norm of a message at most
    exponent: int  # k: the step is C / 2^k
    bits: int  # b: numbers travel modulo 2^b
    numbers: int  # m, of a message
    clients: int  # n, at most in a sum

    @classmethod
    def fit(
        cls,
        clip: float,
        clients: int,
        numbers: int,
        bits: int = 32,
        noise: float = 0.0,
        least: int = 1,
    ) -> Grid:
        """The finest grid on which the sum cannot overflow; SettingError where none is fine enough.

        `noise`: the standard deviation σ of the sum's noise, over C, where at least `least`
        clients count: each adds noise of σC / √least.
        """
        if not (math.isfinite(clip) and clip > 0):
            raise SettingError(f"clip must be a number > 0 under secure sums, got {clip}")
        if bits not in WIDTHS:
            raise SettingError(f"bits must be one of {_listed(WIDTHS)}, got {bits}")
        if not 1 <= least <= clients:
            raise SettingError(f"least must be from 1 to the {clients} clients, got {least}")
        if not (math.isfinite(noise) and noise >= 0):
            raise SettingError(f"noise must be a number >= 0, got {noise}")
        exponent = finest_exponent(clients, bits, noise, least)
        needed = math.ceil(math.log2(COARSEST * math.sqrt(max(numbers, 1))))
        if exponent < needed:
            enough = [b for b in WIDTHS if finest_exponent(clients, b, noise, least) >= needed]
            instead = f"{enough[0]} or more would do" if enough else "no width would do"
            raise SettingError(
                f"bits must leave {2**needed:,} steps to the norm of a message of {numbers:,} "
                f"numbers, so that rounding takes at most a hundredth of it; {bits} leave "
                f"{2 ** max(exponent, 0):,} in a sum of {clients:,} clients"
                f"{_with_noise(noise)}: {instead}"
            )
        return cls(clip, exponent, bits, numbers, clients)

    @property
    def step(self) -> float:
        """γ."""
        return self.clip / 2**self.exponent

    @property
    def norm(self) -> int:
        """The norm of a message in steps, at most: 2^k."""
        return 1 << self.exponent

    @property
    def modulus(self) -> int:
        """2^b."""
        return 1 << self.bits

    @property
    def row_bytes(self) -> int:
        """Bytes of a message."""
        return self.numbers * self.bits // 8

    # -- the client's side -------------------------------------------------------------------------
    def quantise(self, rows: Tensor) -> Tensor:  # rows[K, m] -> int64[K, m]
        """Rows clipped, in steps, rounded toward zero: their norm is at most 2^k, exactly.

        ValueError for rows that are not finite: nothing sensible can be sent for them.
        """
        if rows.shape[1:] != (self.numbers,):
            raise ValueError(
                f"rows must have {self.numbers} numbers each, got {tuple(rows.shape[1:])}"
            )
        exact = rows.detach().to("cpu", torch.float64)
        if not bool(exact.isfinite().all()):
            raise ValueError("rows must be finite")
        steps = exact / self.step
        steps = steps * _shrinking(steps, self.norm)
        whole = steps.trunc().long()
        while bool((over := (whole * whole).sum(-1) > self.norm**2).any()):
            # the last bits of a product; a factor just below 1 takes them off
            steps[over] *= 1 - 2.0**-40
            whole[over] = steps[over].trunc().long()
        return whole

    def residues(self, whole: Tensor, noise: Tensor | None = None) -> np.ndarray:
        """Whole numbers [K, m], with each client's noise in steps, modulo 2^b: uint64[K, m]."""
        total = whole if noise is None else whole + noise
        return np.asarray(total.numpy()).astype(np.uint64) & np.uint64(self.modulus - 1)

    # -- as bytes ----------------------------------------------------------------------------------
    def pack(self, residues: np.ndarray) -> np.ndarray:  # uint64[K, m] -> uint8[K, m b / 8]
        """Numbers below 2^b as they travel, little-endian."""
        raw = np.ascontiguousarray(residues.astype("<u8")).view(np.uint8)
        shape = (len(residues), self.numbers, 8)
        return raw.reshape(shape)[:, :, : self.bits // 8].reshape(len(residues), self.row_bytes)

    def unpack(self, rows: np.ndarray) -> np.ndarray:  # uint8[K, m b / 8] -> uint64[K, m]
        """The inverse; ValueError for rows of another length."""
        if rows.shape[1:] != (self.row_bytes,):
            raise ValueError(f"a row must have {self.row_bytes} bytes, got {rows.shape[1:]}")
        raw = np.zeros((len(rows), self.numbers, 8), dtype=np.uint8)
        raw[:, :, : self.bits // 8] = rows.reshape(len(rows), self.numbers, self.bits // 8)
        return raw.view("<u8")[:, :, 0].astype(np.uint64)

    # -- the server's side -------------------------------------------------------------------------
    def total(self, residues: np.ndarray) -> np.ndarray:  # uint64[K, m] -> uint64[m]
        """Their sum modulo 2^b; 64-bit numbers wrap, and 2^b divides 2^64."""
        return residues.sum(axis=0, dtype=np.uint64) & np.uint64(self.modulus - 1)

    def signed(self, total: np.ndarray) -> Tensor:  # uint64[m] -> int64[m]
        """The sum itself, from -2^(b-1) to 2^(b-1) - 1."""
        sums = total.astype(np.int64)
        return torch.from_numpy(np.where(sums >= self.modulus // 2, sums - self.modulus, sums))

    def mean(
        self, total: np.ndarray, clients: int, dtype: torch.dtype = torch.float32
    ) -> Tensor:  # uint64[m] -> [m]
        """The mean message of so many clients, in the numbers that they had before."""
        if not 1 <= clients <= self.clients:
            raise ValueError(f"clients must be from 1 to {self.clients}, got {clients}")
        return (self.signed(total).double() * (self.step / clients)).to(dtype)


def finest_exponent(clients: int, bits: int, noise: float = 0.0, least: int = 1) -> int:
    """The largest k with which the sum stays below 2^(b-1), and its noise within `TAILS`.

    n clients come to n 2^k, their noise to TAILS σ 2^k √(n / least), its rounding to n at most.

    >>> finest_exponent(100, 32), finest_exponent(2, 16), finest_exponent(100, 32, noise=1.0)
    (24, 13, 23)
    """
    room = (1 << (bits - 1)) - 1 - (clients if noise else 0)
    most = clients + TAILS * noise * math.sqrt(clients / least)
    return min(FINEST, math.floor(math.log2(room / most))) if room >= most else -1


def _shrinking(steps: Tensor, norm: int) -> Tensor:  # [K, m] -> [K, 1]
    """min(1, norm / ||row||), also where squares would overflow."""
    largest = steps.new_ones(len(steps), 1)
    if steps.shape[1]:
        largest = steps.abs().amax(-1, keepdim=True).clamp(min=1.0)
    length = largest * torch.linalg.vector_norm(steps / largest, dim=-1, keepdim=True)
    return (norm / length.clamp(min=norm)).clamp(max=1.0)


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _with_noise(noise: float) -> str:
    return f" with noise of {noise:g} times the clip" if noise else ""
