"""Feed-forward networks: linear models, fully connected layers, and two convolutions before them.

Of the papers: lp-proj has hidden layers "100" for MNIST and "100,100" for EMNIST, FedDeper has
"512,256"; LeNet is the CIFAR network of lp-proj, and FedDeper has CNNs of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..core.knobs import SettingError, knob
from .base import Layers, Model, dense, image


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


def smallest_side(kernel: int, convolutions: int = 2) -> int:
    """The least side of an image that all unpadded convolutions and 2x2 poolings leave a pixel of.

    >>> smallest_side(5), smallest_side(3)
    (16, 10)
    """
    side = 1
    for _ in range(convolutions):
        side = 2 * side + kernel - 1
    return side


def convnet(
    name: str,
    inputs: tuple[int, ...],
    outputs: int,
    channels: Sequence[int],
    kernel: int,
    widths: Sequence[int],
) -> Layers:
    """(convolution, ReLU, 2x2 max pooling) for each of `channels`, then dense layers of `widths`.

    >>> layers = convnet("lenet", (1, 28, 28), 10, channels=(6, 16), kernel=5, widths=(120, 84))
    >>> [layer for layer, _ in layers][:7]
    ['conv1', 'relu_conv1', 'pool1', 'conv2', 'relu_conv2', 'pool2', 'flatten']
    """
    before, height, width = image(name, inputs, smallest_side(kernel, len(channels)))
    layers: Layers = []
    for i, after in enumerate(channels, start=1):
        layers += [
            (f"conv{i}", nn.Conv2d(before, after, kernel)),
            (f"relu_conv{i}", nn.ReLU()),
            (f"pool{i}", nn.MaxPool2d(2)),
        ]
        before = after
        height = (height - kernel + 1) // 2
        width = (width - kernel + 1) // 2
    features = before * height * width
    return [*layers, ("flatten", nn.Flatten()), *dense([features, *widths, outputs])]


@dataclass(frozen=True)
class LeNet(Model):
    """LeNet-5 with ReLU and max pooling, the CIFAR network of the lp-proj paper; unpadded."""

    def layers(self, inputs: tuple[int, ...], outputs: int) -> Layers:
        return convnet("lenet", inputs, outputs, channels=(6, 16), kernel=5, widths=(120, 84))


@dataclass(frozen=True)
class FedDeperCNN(Model):
    """The CNNs of the FedDeper paper, unpadded, with 2x2 max pooling after each convolution."""

    # The paper does not state padding and pooling: those are our choice.

    variant: str = knob(
        "auto",
        "the paper's network for MNIST or for CIFAR-10; auto: mnist for one channel, else cifar",
        choices=("auto", "mnist", "cifar"),
    )

    def layers(self, inputs: tuple[int, ...], outputs: int) -> Layers:
        if self.variant == "mnist" or (self.variant == "auto" and inputs[0] == 1):
            return convnet(
                "feddeper-cnn", inputs, outputs, channels=(32, 64), kernel=3, widths=(1024, 512)
            )
        return convnet(
            "feddeper-cnn", inputs, outputs, channels=(64, 128), kernel=5, widths=(1024, 512, 256)
        )
