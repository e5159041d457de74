"""Distances, medians and clipping of rows, in float64 so that rows of 1e38 stay numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BLOCK = 65536  # columns widened at once
CANCELS = 1e-4  # a squared distance below this share of the squared norms lost four of its sixteen digits: measured again


def wide(t: Tensor) -> Tensor:
    """In float64, where the device has it."""
    return t if t.device.type == "mps" else t.double()


def ordered(rows: Tensor) -> Tensor:  # [n, m] -> [n, m], every column in order
    """On a CPU by NumPy, which is three to ten times as fast at sorting short columns."""
    if rows.device.type == "cpu":
        return torch.from_numpy(np.sort(rows.detach().numpy(), axis=0))
    return rows.sort(0).values


def middle(columns: Tensor) -> Tensor:  # [n, m] in order -> float64[m]
    n = len(columns)
    return 0.5 * wide(columns[(n - 1) // 2]) + 0.5 * wide(columns[n // 2])


def median(rows: Tensor) -> Tensor:  # [n, m] -> float64[m]
    """The coordinate median; for even n the mean of the two middle values."""
    return middle(ordered(rows))


def around(rows: Tensor, keep: int) -> Tensor:  # [n, m] -> float64[m]
    """Coordinate by coordinate, the mean of the `keep` values nearest to the median (of two as near, the smaller).

    They are neighbours in order: the window moves up while the value it would leave is farther than the one it would take in.

    >>> around(torch.tensor([[9.0], [1.0], [2.0], [0.0]]), 3).tolist()
    [1.0]
    """
    columns = ordered(rows)
    mid = middle(columns)
    start = (mid - columns[:-keep] > columns[keep:] - mid).sum(0)
    return wide(columns.gather(0, start + torch.arange(keep, device=rows.device)[:, None])).mean(0)


def central(rows: Tensor) -> Tensor:  # [n, m] -> [m]
    """A row among the majority: the one with the least median distance to the others, on some thousands of the coordinates."""
    some = wide(rows[:, :: max(1, rows.shape[1] // 4096)])
    return rows[
        torch.cdist(some, some, compute_mode="donot_use_mm_for_euclid_dist")
        .median(1)
        .values.argmin()
    ]


def squared_distances(rows: Tensor) -> Tensor:  # [n, m] -> float64[n, n]
    """|x_i - x_j|² by one matrix product around a central row: |a|² + |b|² - 2 a·b; where that cancels, by the difference itself.

    >>> squared_distances(torch.tensor([[1e6, 1e-3], [1e6, 0.0], [0.0, 0.0]], dtype=torch.float64)).sqrt()[0, 1].item()
    0.001
    """
    n, centre = len(rows), central(rows)
    gram = wide(rows.new_zeros(n, n))
    for x, c in zip(rows.split(BLOCK, 1), centre.split(BLOCK), strict=True):
        y = wide(x) - wide(c)
        gram += y @ y.T
    sums = gram.diag()[:, None] + gram.diag()
    out = (sums - 2 * gram).triu(1)
    again = (~(out >= CANCELS * sums)).triu(1)  # where it is NaN too: inf - inf
    for i in again.any(1).nonzero()[:, 0].tolist():
        others = again[i].nonzero()[:, 0]
        out[i, others] = (wide(rows[others]) - wide(rows[i])).square().sum(1)
    return out + out.T


def clipped(x: Tensor, bound: Tensor | float) -> Tensor:  # float64[n, m] -> [n, m]
    """Rows no longer than `bound`."""
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x * (bound / length.clamp(min=torch.finfo(x.dtype).tiny)).clamp(max=1)
