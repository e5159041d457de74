"""Linear models, and the fully connected networks of the papers.

lp-proj has hidden layers "100" for MNIST and "100,100" for EMNIST, FedDeper has "512,256".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from torch import nn

from ..core.knobs import SettingError, knob
from .base import Layers, Model, dense


@dataclass(frozen=True)
class Linear(Model):
    """One linear layer: multinomial logistic regression, or linear regression with one output."""

    bias: bool = knob(True, "whether the layer has an intercept")

    def layers(self, inputs: tuple[int, ...], outputs: int) -> Layers:
        return [
            ("flatten", nn.Flatten()),
            ("head", nn.Linear(math.prod(inputs), outputs, bias=self.bias)),
        ]


# Six digits at most: a typing error should be refused here and not exhaust the memory later.
WIDTHS = re.compile(r"[1-9][0-9]{0,5}(,[1-9][0-9]{0,5})*")


@dataclass(frozen=True)
class MLP(Model):
    """Fully connected layers with ReLU between them."""

    hidden: str = knob("100", "widths of the hidden layers, such as '100' or '512,256'")

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = self.hidden.replace(" ", "")
        if not WIDTHS.fullmatch(widths):
            raise SettingError(
                "hidden must be whole numbers from 1 to 999999 separated by commas, "
                f"got {self.hidden!r} (widths of the hidden layers, such as '100' or '512,256')"
            )
        object.__setattr__(self, "hidden", widths)  # "512, 256" and "512,256" are the same setting

    def layers(self, inputs: tuple[int, ...], outputs: int) -> Layers:
        widths = [int(width) for width in self.hidden.split(",")]
        return [("flatten", nn.Flatten()), *dense([math.prod(inputs), *widths, outputs])]
