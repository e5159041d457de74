"""Which token follows this one? A row of scores for every token: softmax regression on the last."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Bigrams(nn.Module):
    """Scores for the next token from the last one alone, and how frequent each is.

    Convex, and quick enough to be tuned for every client of a text; a transformer knows more.
    """

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(outputs, outputs))
        self.frequency = nn.Parameter(torch.zeros(outputs))

    def forward(self, tokens: Tensor) -> Tensor:  # [B, T] -> [B, T, outputs]
        return self.table[tokens] + self.frequency

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)
        nn.init.zeros_(self.frequency)
