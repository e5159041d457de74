"""Residual networks: the small one of the lp-proj paper, and resnet18 and resnet34.

The small one is what the lp-proj paper trains on FashionMNIST (Han et al., JMLR, Appendix C); the
others are the ImageNet networks of He et al. (CVPR 2016, Table 1).

The lp-proj paper's 678,794 parameters on 1x28x28 with 10 classes are reached when every convolution
has a bias, the 1x1 shortcut too, and the shortcut has no normalisation of its own:

    stem      3,136 + 64 bias + 128 norm                       =   3,328
    block 1   4 x (36,864 + 64 + 128)                          = 148,224
    block 2   73,728 + 3 x 147,456 + 8,192 + 5 x 128 + 4 x 256 = 525,952
    head      1,280 + 10                                       =   1,290

He et al. have no bias in their convolutions and a norm after the 1x1 shortcut: 11,689,512
parameters for resnet18 and 21,797,672 for resnet34, on 3x224x224 with 1000 classes.

GroupNorm replaces the papers' BatchNorm: it has the same parameters, but neither mixes the samples
of a batch nor keeps running statistics, which would be state outside the parameter vector.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import relu

from ..core.knobs import knob
from .base import Layers, Model, image


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut, a 1x1 convolution where the shape changes.

    `bias` gives every convolution one, as in the lp-proj paper; without it the 1x1 shortcut has a
    norm, as in He et al.

    >>> import torch
    >>> Residual(64, 128, stride=2, groups=32)(torch.zeros(5, 64, 7, 7)).shape
    torch.Size([5, 128, 4, 4])
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int, groups: int, bias: bool = True
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=bias)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=bias)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            conv = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=bias)
            if bias:
                self.shortcut = conv
            else:
                norm = nn.GroupNorm(groups, outputs)
                self.shortcut = nn.Sequential(OrderedDict(conv=conv, norm=norm))

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(y)) + self.shortcut(x))


@dataclass(frozen=True)
class ResNetSmall(Model):
    """The FashionMNIST network of the lp-proj paper, GroupNorm in place of BatchNorm."""

    groups: int = knob(
        32,
        "groups of GroupNorm; 1 is layer norm, 64 is instance norm on 64 channels",
        choices=(1, 2, 4, 8, 16, 32, 64),
    )

    def layers(self, inputs: tuple[int, ...], outputs: int) -> Layers:
        # Below 9x9 pixels the last feature maps are a single pixel: too few values for GroupNorm.
        channels, _, _ = image("resnet-small", inputs, 9)
        return [
            ("conv", nn.Conv2d(channels, 64, 7, stride=2, padding=3)),
            ("norm", nn.GroupNorm(self.groups, 64)),
            ("relu", nn.ReLU()),
            ("pool", nn.MaxPool2d(3, stride=2, padding=1)),
            ("block1a", Residual(64, 64, stride=1, groups=self.groups)),
            ("block1b", Residual(64, 64, stride=1, groups=self.groups)),
            ("block2a", Residual(64, 128, stride=2, groups=self.groups)),
            ("block2b", Residual(128, 128, stride=1, groups=self.groups)),
            ("average", nn.AdaptiveAvgPool2d(1)),
            ("flatten", nn.Flatten()),
            ("head", nn.Linear(128, outputs)),
        ]


@dataclass(frozen=True)
class ResNet18(Model):
    """The 18-layer network of He et al. (11.7 million parameters), GroupNorm for BatchNorm."""

    name: ClassVar[str] = "resnet18"
    blocks: ClassVar[tuple[int, ...]] = (2, 2, 2, 2)  # of 64, 128, 256 and 512 channels

    groups: int = knob(32, "groups of GroupNorm; 1 is layer norm", choices=(1, 2, 4, 8, 16, 32, 64))
    stem: str = knob(
        "auto",
        "imagenet: 7x7 convolution of stride 2 and pooling; small: 3x3 of stride 1; "
        "auto: small where a side has at most 64 pixels",
        choices=("auto", "imagenet", "small"),
    )

    def layers(self, inputs: tuple[int, ...], outputs: int) -> Layers:
        small = self.stem == "small" or (self.stem == "auto" and min(inputs[1:], default=0) <= 64)
        stem = "small" if small else "imagenet"
        # The least sides that leave the last feature maps more than a single pixel.
        channels, _, _ = image(f"{self.name} with stem {stem}", inputs, 9 if small else 33)
        if small:
            conv = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        else:
            conv = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        layers: Layers = [
            ("conv", conv),
            ("norm", nn.GroupNorm(self.groups, 64)),
            ("relu", nn.ReLU()),
        ]
        if not small:
            layers.append(("pool", nn.MaxPool2d(3, stride=2, padding=1)))
        width = 64
        for stage, count in enumerate(self.blocks, start=1):
            for letter in "abcdef"[:count]:
                out = 64 * 2 ** (stage - 1)
                stride = 1 if out == width else 2
                block = Residual(width, out, stride, self.groups, bias=False)
                layers.append((f"block{stage}{letter}", block))
                width = out
        return [
            *layers,
            ("average", nn.AdaptiveAvgPool2d(1)),
            ("flatten", nn.Flatten()),
            ("head", nn.Linear(width, outputs)),
        ]


@dataclass(frozen=True)
class ResNet34(ResNet18):
    """The 34-layer network of He et al. (21.8 million parameters), GroupNorm for BatchNorm."""

    name: ClassVar[str] = "resnet34"
    blocks: ClassVar[tuple[int, ...]] = (3, 4, 6, 3)
