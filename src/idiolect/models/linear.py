"""Multinomial logistic regression, or linear regression with one output: the convex model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from ..core.knobs import knob
from .base import Layers, Model


@dataclass(frozen=True)
class Linear(Model):
    """One linear layer: multinomial logistic regression, or linear regression with one output."""

    bias: bool = knob(True, "whether the layer has an intercept")

    def layers(self, inputs: tuple[int, ...], outputs: int) -> Layers:
        return [
            ("flatten", nn.Flatten()),
            ("head", nn.Linear(math.prod(inputs), outputs, bias=self.bias)),
        ]
