"""CIFAR-100 from its original binary files.

A record has 3,074 bytes: the coarse label (20), the fine label (100), then the pixels as those of
CIFAR-10. (The better-known Python files are pickles and are not read.)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...core.knobs import knob
from ..download import path_knob
from ..entries import register
from .cifar10 import read_records
from .images import Images, Part, find_file

LABELS = {"coarse": 20, "fine": 100}  # classes, in the order of the bytes of a record


@register("cifar100")
@dataclass(frozen=True)
class Cifar100(Images):
    """CIFAR-100: 50,000 + 10,000 colour photographs of a hundred kinds of things, 32x32 pixels.

    Krizhevsky (2009), Learning multiple layers of features from tiny images.
    """

    clients: int = knob(100, "number of clients", low=1)
    classes_per_client: int = knob(10, "classes of each client (partition classes)", low=1)
    labels: str = knob(
        "fine", "fine: 100 classes; coarse: 20 groups of five of them", choices=tuple(LABELS)
    )
    path: str = path_knob("cifar100")

    name: ClassVar[str] = "cifar100"

    @property
    def classes(self) -> int:
        return LABELS[self.labels]

    def read(self, folder: Path) -> tuple[Part, Part]:
        return self._part(folder, "train.bin"), self._part(folder, "test.bin")

    def _part(self, folder: Path, file: str) -> Part:
        images, labels = read_records(find_file(folder, file), tuple(LABELS.values()))
        return images, labels[:, list(LABELS).index(self.labels)]
