"""Random augmentation of mini-batches, drawn anew for each of them: "crop(padding=4) + flip".

Every sample of every mini-batch is changed by numbers from a stream of its client, the same
whatever the cohort, the number of hosts or a resume; a change is computed for the whole cohort at
once. Evaluation sees the samples as they are.

Cost, in CPU time of a run with "crop(padding=4) + flip" over one without (one thread, batch 64,
`benchmarks/augmentation.py`): 1.5 for a small MLP on 28x28 pixels, 1.02 for LeNet on 3x32x32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..core import streams
from ..core.knobs import Knobs, SettingError, knob
from ..core.registry import PartTable
from ..core.streams import Keys
from ..core.types import Tree

PICTURES = 4  # dimensions of [samples, channels, height, width]


@dataclass(frozen=True)
class Change(Knobs):
    """The interface: a random change of pictures, by `numbers` uniform numbers for each."""

    numbers = 1

    def apply(self, x: Tensor, u: Tensor) -> Tensor:  # x[n, C, H, W], u[n, numbers] in [0, 1)
        """The changed pictures, in new memory."""
        raise NotImplementedError(f"{type(self).__name__} does not define apply")


@dataclass(frozen=True)
class Crop(Change):
    """Pad every side by `padding` pixels of `fill` and cut out the old size anywhere."""

    padding: int = knob(4, "pixels added on every side", low=1)
    fill: float = knob(0.0, "what is added")

    numbers = 2

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        height, width = x.shape[2:]
        padded = nn.functional.pad(x, (self.padding,) * 4, value=self.fill)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # [n, C, places, places, H, W]
        top, across = _whole(u, 2 * self.padding + 1).unbind(1)
        return windows[torch.arange(len(x), device=x.device), :, top, across]


@dataclass(frozen=True)
class Flip(Change):
    """Mirror a share of the pictures, left to right or upside down."""

    share: float = knob(0.5, "how many are mirrored", above=0, high=1)
    axis: str = knob("horizontal", "what is exchanged", choices=("horizontal", "vertical"))

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        mirrored = x.flip(-1 if self.axis == "horizontal" else -2)
        return torch.where(u[..., None, None] < self.share, mirrored, x)


@dataclass(frozen=True)
class Cutout(Change):
    """Blank a square at a random place (DeVries and Taylor 2017); it may lie over the edge."""

    size: int = knob(8, "side of the square in pixels", low=1)
    fill: float = knob(0.0, "what it is filled with")

    numbers = 2

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        inside = []
        for numbers, side in zip(u.unbind(1), x.shape[2:], strict=True):
            first = _whole(numbers, side) - self.size // 2
            place = torch.arange(side, device=x.device) - first[:, None]  # [n, side]
            inside.append((place >= 0) & (place < self.size))
        rows, columns = inside
        square = rows[:, None, :, None] & columns[:, None, None, :]
        return x.masked_fill(square, self.fill)


@dataclass(frozen=True)
class Jitter(Change):
    """Multiply brightness, and contrast about the picture's mean, by factors around 1.

    Values are not clipped: inputs may be standardised.
    """

    brightness: float = knob(0.2, "the factor is from 1 - this to 1 + this", low=0, high=1)
    contrast: float = knob(0.2, "the factor is from 1 - this to 1 + this", low=0, high=1)

    numbers = 2

    def apply(self, x: Tensor, u: Tensor) -> Tensor:
        spread = torch.tensor([self.brightness, self.contrast], dtype=u.dtype, device=u.device)
        factors = (1 + spread * (2 * u - 1)).to(x.dtype)[..., None, None, None]  # [n, 2, 1, 1, 1]
        brightness, contrast = factors.unbind(1)
        mean = x.mean((1, 2, 3), keepdim=True)
        return ((x - mean) * contrast + mean) * brightness


@dataclass(frozen=True)
class Augmentation:
    """Changes one after the other; none leave mini-batches as they are."""

    changes: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes)

    def check(self, inputs: Tree) -> None:
        """Refuse inputs that are not pictures of floating numbers."""
        got = "several inputs each"
        if isinstance(inputs, Tensor):
            if not self or (inputs.dim() == PICTURES and inputs.is_floating_point()):
                return
            got = f"{inputs.dtype} of shape {list(inputs.shape[1:])}"
        if self:
            raise SettingError(
                f"augment must be 'none' for these data, got {AUGMENTATIONS.text(self)!r}: it "
                "changes pictures [channels, height, width] of floating numbers, and their "
                f"samples have {got}"
            )

    def apply(self, inputs: Tensor, keys: Keys, step: int) -> Tensor:
        """Mini-batches [K, B, C, H, W], changed by numbers of one stream for each row.

        Sample i of a row takes the same words of its stream however large B is: in a cohort of
        other clients a row may be filled up further.
        """
        rows, batch = inputs.shape[:2]
        numbers = [change.numbers for change in self.changes]
        with np.errstate(over="ignore"):
            key = streams.mix(keys + np.uint64(step))
        uniform = streams.uniform(key, batch * sum(numbers)).reshape(rows * batch, -1)
        u = torch.from_numpy(uniform.astype(np.float32)).to(inputs.device)
        x = inputs.flatten(0, 1)
        for change, own in zip(self.changes, u.split(numbers, dim=1), strict=True):
            x = change.apply(x, own)
        return x.view(inputs.shape)


def _whole(u: Tensor, n: int) -> Tensor:
    """Uniform numbers in [0, 1) to whole numbers from 0 to n - 1."""
    return (u * n).long().clamp_(max=n - 1)


AUGMENTATIONS: PartTable[Change, Augmentation] = PartTable(
    "augment",
    "idiolect.augmentations",
    {"crop": Crop, "flip": Flip, "cutout": Cutout, "jitter": Jitter},
    Change,
    whole=Augmentation,
    join=lambda changes: Augmentation(tuple(changes)),
    split=lambda augmentation: augmentation.changes,
    empty=Augmentation,
)
