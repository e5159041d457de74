"""Quick, Draw!: drawings of things by hand, a stand-in for EMNIST and FEMNIST.

EMNIST's 62 classes of handwriting are in no package; drawings have the same form (one grey channel,
28x28) and any number of classes up to 345. They are not characters, a class has 100 drawings only,
and who drew them is not known: clients are made by a partition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.files import given_path
from ...core.knobs import SettingError, knob
from .. import fetch
from ..federation import Federation
from ..partition import Partitioned
from . import images as idx

IMAGES = "quickdraw-images-idx4-ubyte"
CLASSES = "quickdraw-classes.txt"


@dataclass(frozen=True)
class QuickDraw(Partitioned):
    """Drawings by hand, 28x28 pixels, 62 of 345 classes: stands in for EMNIST and FEMNIST.

    Ha and Eck (2017), A neural representation of sketch drawings.
    """

    classes: int = knob(
        62, "classes to take, evenly spaced in the order of their names", low=2, high=345
    )
    clients: int = knob(50, "number of clients", low=1)
    partition: str = knob(
        "dirichlet",
        "who gets what: a fixed number of classes, Dirichlet shares of each class, "
        "unequal sizes, or an even random deal",
        choices=("classes", "dirichlet", "quantity", "iid"),
    )
    test: float = knob(0.2, "share of each client's samples kept for testing", low=0, below=1)
    path: str = knob("", "folder that holds the files; empty: obtained once and kept in the cache")

    def load(self) -> Federation:
        folder = given_path(self.path, "path") if self.path else fetch.get("quickdraw")
        for name in (IMAGES, CLASSES):
            if not (folder / name).is_file():
                raise SettingError(f"path: {folder} holds no file {name}")
        drawings = idx.read(folder / IMAGES)  # uint8[classes, drawings, 28, 28]
        names = (folder / CLASSES).read_bytes().decode("utf-8", "replace").splitlines()
        if drawings.ndim != 4 or len(names) != len(drawings):
            raise SettingError(
                f"path: {folder / IMAGES} of shape {drawings.shape} does not go with the "
                f"{len(names)} names in {CLASSES}"
            )
        if self.classes > len(names):
            raise SettingError(
                f"classes: {self.classes} is not accepted; {folder} has {len(names)}"
            )
        chosen = np.linspace(0, len(names) - 1, self.classes).round().astype(np.int64)
        taken = drawings[chosen]
        labels = np.repeat(np.arange(self.classes), taken.shape[1])
        client = self.assign(labels)
        used = client >= 0
        pixels = taken.reshape(-1, 1, *taken.shape[2:])[used]
        return Federation.from_arrays(
            (pixels / np.float32(255)).astype(np.float32),
            labels[used],
            client[used],
            classes=self.classes,
            class_names=[names[k] for k in chosen],
            channels="first",
            valid=self.valid,
            test=self.test,
            seed=self.seed,
            name="quickdraw",
        )
