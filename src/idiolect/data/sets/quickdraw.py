"""Quick, Draw!: drawings of things by hand, a stand-in for EMNIST and FEMNIST.

EMNIST's 62 classes of handwriting are in no package; drawings have the same form (one grey channel,
28x28) and any number of classes up to 345. They are not characters, a class has 100 drawings only,
and who drew them is not known: clients are made by a partition.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core.knobs import SettingError, knob
from ..download import file_in, folder_of, path_knob
from ..entries import register
from ..federation import Federation
from ..partition import Partitioned, partition_knob
from ..splits import Shares
from .images import IDX_LIMIT, read_idx, write_idx

IMAGES = "quickdraw-images-idx4-ubyte"
CLASSES = "quickdraw-classes.txt"


@register("quickdraw")
@dataclass(frozen=True)
class QuickDraw(Partitioned, Shares):
    """Drawings by hand, 28x28 pixels, 62 of 345 classes: stands in for EMNIST and FEMNIST.

    Ha and Eck (2017), A neural representation of sketch drawings.
    """

    classes: int = knob(
        62, "classes to take, evenly spaced in the order of their names", low=2, high=345
    )
    clients: int = knob(50, "number of clients", low=1)
    partition: str = partition_knob("dirichlet")
    path: str = path_knob("quickdraw")

    def load(self) -> Federation:
        folder = folder_of("quickdraw", self.path)
        images_path, names_path = (file_in(folder, name, IDX_LIMIT) for name in (IMAGES, CLASSES))
        drawings = read_idx(images_path)  # uint8[classes, drawings, 28, 28]
        names = names_path.read_bytes().decode("utf-8", "replace").splitlines()
        if drawings.ndim != 4 or len(names) != len(drawings):
            raise SettingError(
                f"path: {folder / IMAGES} of shape {drawings.shape} does not go with the "
                f"{len(names)} names in {CLASSES}"
            )
        if self.classes > len(names):
            raise SettingError(
                f"classes must be at most {len(names)}, those of {folder}, got {self.classes}"
            )
        numbers = np.linspace(0, len(names) - 1, self.classes).round().astype(np.int64)
        images = drawings[numbers]
        labels = np.repeat(np.arange(self.classes), images.shape[1])
        client, labels, pixels = self.deal(labels, images.reshape(-1, 1, *images.shape[2:]))
        return Federation.from_arrays(
            (pixels / np.float32(255)).astype(np.float32),
            labels,
            client,
            classes=self.classes,
            class_names=[names[k] for k in numbers],
            channels="first",
            **self.shares(),
            name="quickdraw",
        )


def drawings_to_idx(folder: Path) -> None:
    """The drawings, NAME.ndjson, as `quickdraw-images-idx4-ubyte` and `quickdraw-classes.txt`.

    Images are bytes [classes, drawings, 28, 28]; classes are in order of their names.
    """
    paths = sorted(folder.glob("*.ndjson"))
    classes = []
    for path in paths:
        values = np.array([json.loads(line) for line in path.read_bytes().splitlines()], np.float64)
        if values.shape != (100, 784) or not ((values >= 0) & (values <= 1)).all():
            raise SettingError(f"{path.name}: 100 drawings of 784 values in [0, 1] are expected")
        classes.append(np.rint(values * 255).astype(np.uint8).reshape(100, 28, 28))
    write_idx(folder / "quickdraw-images-idx4-ubyte", np.stack(classes))
    names = "".join(f"{path.name.removesuffix('.ndjson')}\n" for path in paths)
    (folder / "quickdraw-classes.txt").write_bytes(names.encode())
