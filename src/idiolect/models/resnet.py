"""The small residual network that the lp-proj paper trains on FashionMNIST (Han et al., JMLR, Appendix C).

The paper's 678,794 parameters on 1x28x28 with 10 classes are reached when every convolution has a bias, the 1x1 shortcut too,
and the shortcut has no normalisation of its own:

    stem      3,136 + 64 bias + 128 norm                       =   3,328
    block 1   4 x (36,864 + 64 + 128)                          = 148,224
    block 2   73,728 + 3 x 147,456 + 8,192 + 5 x 128 + 4 x 256 = 525,952
    head      1,280 + 10                                       =   1,290

GroupNorm stands where the paper has BatchNorm: it has the same parameters, but no running statistics, which would be state
outside the parameter vector and would mix the samples of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import relu

from idiolect.fields import knob
from idiolect.models.base import Layers, Model, image


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut; the shortcut is a 1x1 convolution where the shape changes.

    >>> import torch
    >>> Residual(64, 128, stride=2, groups=32)(torch.zeros(5, 64, 7, 7)).shape
    torch.Size([5, 128, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(y)) + self.shortcut(x))


@dataclass(frozen=True)
class ResNetSmall(Model):
    """The FashionMNIST network of the lp-proj paper: a stem and two residual blocks, GroupNorm in place of BatchNorm."""

    groups: int = knob(32, "groups of GroupNorm; 1 is layer norm, 64 is instance norm on 64 channels", choices=(1, 2, 4, 8, 16, 32, 64))

    def layers(self, inputs: tuple[int, ...], outputs: int) -> Layers:
        # Below 9x9 pixels the last maps have a single one, and a norm over a single value is zero.
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
