"""MNIST and Fashion-MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..entries import register
from .images import Images, Part, idx_part


@register("mnist")
@dataclass(frozen=True)
class Mnist(Images):
    """MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels."""

    name: ClassVar[str] = "mnist"

    def read(self, folder: Path) -> tuple[Part, Part]:
        return idx_part(folder, "train"), idx_part(folder, "t10k")


@register("fashion-mnist")
@dataclass(frozen=True)
class FashionMnist(Mnist):
    """Fashion-MNIST: 60,000 + 10,000 pictures of ten kinds of clothing, 28x28 pixels."""

    name: ClassVar[str] = "fashion-mnist"
