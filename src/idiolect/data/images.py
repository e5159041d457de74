"""MNIST, Fashion-MNIST and CIFAR-10 as federations.

The original training part is dealt to the clients and `valid` of each client's share is kept for
validation; the original test part goes to the clients that hold the class, in proportion
(`partition.mirror`). With the default settings each client trains on 434 (MNIST),
480 (Fashion-MNIST) or 200 (CIFAR-10) images of two classes, as in Table 3 of the lp-proj paper.
For example, MNIST's smallest class has 5,421 images, 20 shards of 271; two shards are 542 images,
of which 108 are for validation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.files import given_path
from ..core.knobs import SettingError, knob
from . import cifar, fetch, idx, partition
from .federation import Federation
from .partitioned import Partitioned
from .splits import SPLITS, draw_split

Part = tuple[np.ndarray, np.ndarray]  # uint8[n, channels, height, width], int64[n]


@dataclass(frozen=True)
class Images(Partitioned):
    """An image set with its own training and test part."""

    standardise: bool = knob(
        False,
        "subtract the mean and divide by the deviation of each channel; otherwise pixels in [0, 1]",
    )
    share: float = knob(1.0, "share of the images to use, for quick trials", above=0, high=1)
    path: str = knob("", "folder that holds the files; empty: obtained once and kept in the cache")

    name: ClassVar[str] = ""

    @property
    def classes(self) -> int:
        """How many there are."""
        return 10

    def folder(self) -> Path:
        """Where the files are."""
        return given_path(self.path, "path") if self.path else fetch.get(self.name)

    def load(self) -> Federation:
        folder = self.folder()
        (train, train_labels), (test, test_labels) = (
            self._some(part) for part in self.read(folder)
        )
        train_client = self.assign(train_labels)
        test_client = partition.mirror(train_labels, train_client, test_labels, self.seed)
        train_used = train_client >= 0
        test_used = test_client >= 0
        train_client = train_client[train_used]
        test_client = test_client[test_used]
        images = np.concatenate([train[train_used], test[test_used]])
        train_split = draw_split(train_client, self.valid, 0.0, self.seed)
        split = np.concatenate([train_split, np.full(len(test_client), SPLITS.index("test"))])
        federation = Federation.from_arrays(
            torch.from_numpy(images),  # bytes until the very end: a quarter of the memory
            np.concatenate([train_labels[train_used], test_labels[test_used]]),
            np.concatenate([train_client, test_client]),
            split=np.array(SPLITS)[split],
            classes=self.classes,
            scale_images=False,
            channels="first",
            name=self.name,
        )
        return replace(federation, inputs=self._scale(federation))

    def read(self, folder: Path) -> tuple[Part, Part]:
        """The original training and test part."""
        raise NotImplementedError

    def _some(self, part: Part) -> Part:
        if self.share == 1:
            return part
        images, labels = part
        count = max(1, round(self.share * len(labels)))
        chosen = np.random.default_rng(self.seed).permutation(len(labels))[:count]
        chosen.sort()
        return images[chosen], labels[chosen]

    def _scale(self, federation: Federation) -> Tensor:
        x = federation.inputs.to(torch.float32).div_(255)
        if self.standardise:
            seen = x[: int(federation.offsets["train"][-1])]  # training samples only
            dims = (0, 2, 3)
            mean = seen.mean(dims, keepdim=True)
            std = seen.std(dims, keepdim=True)
            x.sub_(mean).div_(std.clamp(min=1e-6))
        return x


@dataclass(frozen=True)
class Mnist(Images):
    """MNIST: 60,000 + 10,000 handwritten digits of 28x28 pixels."""

    name: ClassVar[str] = "mnist"

    def read(self, folder: Path) -> tuple[Part, Part]:
        return idx_part(folder, "train"), idx_part(folder, "t10k")


@dataclass(frozen=True)
class FashionMnist(Mnist):
    """Fashion-MNIST: 60,000 + 10,000 pictures of ten kinds of clothing, 28x28 pixels."""

    name: ClassVar[str] = "fashion-mnist"


@dataclass(frozen=True)
class Cifar10(Images):
    """CIFAR-10: 50,000 + 10,000 colour photographs of ten kinds of things, 32x32 pixels."""

    clients: int = knob(200, "number of clients", low=1)

    name: ClassVar[str] = "cifar10"

    def read(self, folder: Path) -> tuple[Part, Part]:
        return _cifar_part(folder, cifar.TRAIN), _cifar_part(folder, cifar.TEST)


def idx_part(folder: Path, prefix: str, classes: int = 10) -> Part:
    """Images and labels of two IDX files, PREFIX-images-idx3-ubyte and PREFIX-labels-idx1-ubyte."""
    images = idx.read(_find(folder, f"{prefix}-images-idx3-ubyte"))
    labels = idx.read(_find(folder, f"{prefix}-labels-idx1-ubyte"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise SettingError(
            f"{folder}: {prefix} images of shape {images.shape} "
            f"do not go with labels of shape {labels.shape}"
        )
    if len(labels) and labels.max() >= classes:
        raise SettingError(
            f"{folder}: label {labels.max()} lies outside the {classes} classes; "
            f"accepted: 0 to {classes - 1}"
        )
    return images[:, None], labels.astype(np.int64)


def _cifar_part(folder: Path, names: tuple[str, ...]) -> Part:
    images, labels = zip(*(cifar.read(_find(folder, f"{name}.bin")) for name in names), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise SettingError(f"path: {folder} holds no file {name} (or {name}.gz)")
