"""The weighted mean: what FedAvg does, and what one liar can move anywhere."""

from __future__ import annotations

from torch import Tensor


def mean(rows: Tensor, weights: Tensor) -> Tensor:
    """sum_k weights_k rows_k / sum_k weights_k.

    >>> import torch
    >>> mean(torch.tensor([[0.0], [3.0]]), torch.tensor([2.0, 1.0])).tolist()
    [1.0]
    """
    share = (weights / weights.sum()).to(rows.dtype)
    return share @ rows
