"""Distances, medians and clipping of rows, in float64 so that rows of 1e38 stay numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BLOCK = 65536  # columns converted to float64 at once
# A squared distance below this share of the squared norms has lost four of its sixteen digits to
# cancellation, and is computed again.
CANCELLATION = 1e-4


def wide(t: Tensor) -> Tensor:
    """In float64, where the device has it."""
    return t if t.device.type == "mps" else t.double()


def sorted_columns(rows: Tensor) -> Tensor:  # [n, m] -> [n, m]
    """Every column in order; on a CPU by NumPy, three to ten times as fast on short columns."""
    if rows.device.type == "cpu":
        return torch.from_numpy(np.sort(rows.detach().numpy(), axis=0))
    return rows.sort(0).values


def middle(columns: Tensor) -> Tensor:  # [n, m], sorted columns -> float64[m]
    """The median of columns that are sorted already."""
    n = len(columns)
    return 0.5 * wide(columns[(n - 1) // 2]) + 0.5 * wide(columns[n // 2])


def median(rows: Tensor) -> Tensor:  # [n, m] -> float64[m]
    """The coordinate median; for even n the mean of the two middle values."""
    return middle(sorted_columns(rows))


def mean_around_median(rows: Tensor, keep: int) -> Tensor:  # [n, m] -> float64[m]
    """Per coordinate, the mean of the `keep` values nearest to the median; of ties, the smaller.

    In sorted order these are neighbours: the window moves up while the value it would leave is
    farther from the median than the one it would take in.

    >>> mean_around_median(torch.tensor([[9.0], [1.0], [2.0], [0.0]]), 3).tolist()
    [1.0]
    """
    columns = sorted_columns(rows)
    mid = middle(columns)
    start = (mid - columns[:-keep] > columns[keep:] - mid).sum(0)
    window = start + torch.arange(keep, device=rows.device)[:, None]
    return wide(columns.gather(0, window)).mean(0)


def central_row(rows: Tensor) -> Tensor:  # [n, m] -> [m]
    """A row among the majority: that of least median distance to the others.

    Distances are taken on a few thousand of the coordinates.
    """
    some = wide(rows[:, :: max(1, rows.shape[1] // 4096)])
    distances = torch.cdist(some, some, compute_mode="donot_use_mm_for_euclid_dist")
    return rows[distances.median(1).values.argmin()]


def squared_distances(rows: Tensor) -> Tensor:  # [n, m] -> float64[n, n]
    """|x_i - x_j|², by one matrix product around a central row: |a|² + |b|² - 2 a·b.

    Where that cancels, by the difference itself.

    >>> rows = torch.tensor([[1e6, 1e-3], [1e6, 0.0], [0.0, 0.0]], dtype=torch.float64)
    >>> squared_distances(rows).sqrt()[0, 1].item()
    0.001
    """
    n = len(rows)
    centre = central_row(rows)
    gram = wide(rows.new_zeros(n, n))
    for x, c in zip(rows.split(BLOCK, 1), centre.split(BLOCK), strict=True):
        y = wide(x) - wide(c)
        gram += y @ y.T
    sums = gram.diag()[:, None] + gram.diag()
    out = (sums - 2 * gram).triu(1)
    again = (~(out >= CANCELLATION * sums)).triu(1)  # where it is NaN too: inf - inf
    for i in again.any(1).nonzero()[:, 0].tolist():
        others = again[i].nonzero()[:, 0]
        out[i, others] = (wide(rows[others]) - wide(rows[i])).square().sum(1)
    return out + out.T


def clipped(x: Tensor, bound: Tensor | float) -> Tensor:  # float64[n, m] -> [n, m]
    """Every row scaled down to the length `bound` where it is longer."""
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x * (bound / length.clamp(min=torch.finfo(x.dtype).tiny)).clamp(max=1)
