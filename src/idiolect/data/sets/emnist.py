"""EMNIST, handwritten characters, from its standard files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core.knobs import SettingError, knob
from ..download import path_knob
from ..entries import register
from .images import Images, Part, idx_part

SUBSETS = {  # name -> classes
    "byclass": 62,
    "bymerge": 47,
    "balanced": 47,
    "letters": 26,
    "digits": 10,
    "mnist": 10,
}


@register("emnist")
@dataclass(frozen=True)
class Emnist(Images):
    """EMNIST: handwritten digits and letters, 28x28 pixels, 62 classes; from your files.

    Cohen, Afshar, Tapson and van Schaik (2017), EMNIST: an extension of MNIST to handwritten
    letters.
    """

    subset: str = knob(
        "byclass",
        f"which files: {', '.join(f'{name} ({n} classes)' for name, n in SUBSETS.items())}",
        choices=tuple(SUBSETS),
    )
    path: str = path_knob("emnist")

    name: ClassVar[str] = "emnist"

    @property
    def classes(self) -> int:
        return SUBSETS[self.subset]

    def read(self, folder: Path) -> tuple[Part, Part]:
        return self._part(folder, "train"), self._part(folder, "test")

    def _part(self, folder: Path, split: str) -> Part:
        first = int(self.subset == "letters")  # its labels are 1 to 26
        prefix = f"emnist-{self.subset}-{split}"
        images, labels = idx_part(folder, prefix, self.classes + first)
        if len(labels) and labels.min() < first:
            raise SettingError(f"{folder}: a label of {prefix} is 0; accepted: 1 to {self.classes}")
        # the files hold the pixels column by column
        return np.ascontiguousarray(images.swapaxes(-1, -2)), labels - first
