"""The gradient of DP-SGD: each sample contributes a vector of bounded length, and noise is added.

    g = (Σ_s ∇ℓ_s min(1, C / ||∇ℓ_s||) + noise) / B

(Abadi et al., CCS 2016), with B the number of samples that a mini-batch has in expectation: a
public number, where the one drawn is not. Whoever changes one sample moves the sum by C at most
(by 2 C where a sample is replaced). That holds for gradients alone: with a task under a
`SampleClipping`, whatever else reads data is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from ..core.knobs import SettingError

if TYPE_CHECKING:
    from .batches import Batch
    from .task import Task


class SampleNoise(Protocol):
    """The clipped sums of K models, [K, d], with noise: before they are divided by B."""

    def __call__(self, sums: Tensor, batch: Batch) -> Tensor: ...


@dataclass(frozen=True)
class SampleClipping:
    """How much a sample may contribute to a gradient, and what hides the contribution.

    `uses`: how many gradients a method may take of one mini-batch. They are released together, so
    an accountant must know: m of them are one with the norm sqrt(m) C, of one draw.

    >>> SampleClipping(norm=-1.0)
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: sample clipping: norm must be a number > 0, got -1.0
    """

    norm: float  # C
    noise: SampleNoise | None = None
    uses: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.norm) and self.norm > 0) and self.norm != math.inf:
            raise SettingError(f"sample clipping: norm must be a number > 0, got {self.norm}")
        if self.noise is not None and self.norm == math.inf:
            raise SettingError("sample clipping: norm must be finite with noise, got inf")
        if self.uses < 1:
            raise SettingError(f"sample clipping: uses must be at least 1, got {self.uses}")

    def use(self, batch: Batch) -> None:
        """Count a gradient of a mini-batch; SettingError beyond `uses`."""
        if batch.uneven:
            raise SettingError(
                "sample clipping: samples must count alike, got weights of samples: they are "
                "divided by the mean weight of the client, which depends on every sample"
            )
        if batch.uses is None:
            return
        if int(batch.uses) >= self.uses:
            raise SettingError(
                f"sample clipping: a mini-batch is for {self.uses} gradient(s) here, and the "
                "method asks for one more; it must draw another (fresh=true of lp-proj, "
                "same_batch=false of others)"
            )
        batch.uses.add_(1)


def check_task(task: Task) -> None:
    """Refuse models and losses whose gradient is not a sum over samples."""
    for name, layer in task.module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise SettingError(
                f"sample clipping: layer {name!r} ({type(layer).__name__}) takes the samples of a "
                "mini-batch together, so that no sample has a gradient of its own; use GroupNorm"
            )
        if isinstance(layer, nn.Embedding) and (layer.scale_grad_by_freq or layer.max_norm):
            raise SettingError(
                f"sample clipping: layer {name!r} must be an Embedding without scale_grad_by_freq "
                "and max_norm, which take the samples of a mini-batch together"
            )
    if task.statistics is not None:
        raise SettingError(
            "sample clipping: the model must have no running statistics, which follow the data "
            f"without a gradient, got {task.statistics.layout.names[0]!r}"
        )
    if task.behaviour.mixes:
        raise SettingError(
            "sample clipping: the model's output for a sample depends on the samples beside it, "
            "so that no sample has a gradient of its own"
        )
    if task.behaviour.compares:
        raise SettingError(
            "sample clipping: the loss of a sample depends on the samples beside it, so that no "
            "sample has a gradient of its own"
        )
    if not task.behaviour.repeats:
        raise SettingError(
            "sample clipping: the model must keep nothing from one pass to the next; two passes "
            "over the same samples differ"
        )


def refuse(task: Task, what: str) -> None:
    """Where samples are clipped, refuse what reads data in another way than by a gradient."""
    if task.numerics.sample_clipping is not None:
        raise SettingError(
            f"sample clipping: {what} cannot be used while it is on: a sample would act by another "
            "way than the clipped and accounted gradient"
        )
