"""The weighted mean: what FedAvg does, and what one malicious client can move anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.knobs import knob
from .rule import Rule


@dataclass(frozen=True)
class Mean(Rule):
    """The mean of all rows; best when all clients are honest, and withstands no malicious one.

    sum_k weights_k rows_k / sum_k weights_k. Cost n m.

    >>> Mean()(torch.tensor([[0.0], [3.0]]), torch.tensor([2.0, 1.0])).tolist()
    [1.0]

    McMahan et al., Communication-efficient learning of deep networks from decentralized data,
    AISTATS 2017.
    """

    title = "mean"
    by_coordinate = True
    streams = True
    weighted: bool = knob(True, "by the clients' weights; false = every client counts the same")

    def sum_weights(self, weights: Tensor) -> Tensor:
        return weights if self.weighted else torch.ones_like(weights)

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        weights = self.sum_weights(weights)
        share = (weights / weights.sum()).to(rows.dtype)
        return share @ rows
