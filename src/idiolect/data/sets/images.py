"""Image sets with a training and a test part of their own: MNIST and its family, in IDX files.

The original training part is dealt to the clients and `valid` of each client's share is kept for
validation; the original test part goes to the clients that hold the class, in proportion
(`partition.mirror`). With the default settings each client trains on 434 (MNIST),
480 (Fashion-MNIST) or 200 (CIFAR-10) images of two classes, as in Table 3 of the lp-proj paper.
For example, MNIST's smallest class has 5,421 images, 20 shards of 271; two shards are 542 images,
of which 108 are for validation.

An IDX file is 0, 0, the type, the number of dimensions, the dimensions as big-endian 32-bit
numbers, and the values.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from ...core.files import regular_file
from ...core.knobs import SettingError, knob
from ..download import folder_of, path_knob
from ..entries import register
from ..federation import Federation
from ..partition import Partitioned, mirror
from ..splits import SPLITS, draw_split

IDX_LIMIT = 1 << 30  # bytes; the largest known set in this format (EMNIST) has 640 MB
DIMENSIONS = 8  # at most; images in colour have 4
EXPANSION = 1032  # gzip unpacks a byte to at most this many
CHUNK = 1 << 20


def read_idx(path: str | Path) -> np.ndarray:
    """The bytes of an IDX file, raw or gzipped, in its shape.

    The size is checked before memory is taken.

    >>> import tempfile; name = tempfile.mkdtemp() + "/x-idx1-ubyte"
    >>> write_idx(name, np.array([3, 1, 4], dtype=np.uint8)); read_idx(name).tolist()
    [3, 1, 4]
    """
    path = regular_file(path, "path")
    try:
        with open(path, "rb") as f:
            packed = f.read(2) == b"\x1f\x8b"
            f.seek(0)
            most = os.fstat(f.fileno()).st_size * (EXPANSION if packed else 1)
            with gzip.open(f) if packed else f as stream:
                return _read_idx(cast(BinaryIO, stream), path, most)
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise SettingError(f"{path}: damaged gzip file ({e})") from None
    except OSError as e:
        raise SettingError(f"{path}: cannot be read: {e.strerror or e}") from None


def _read_idx(stream: BinaryIO, path: Path, most: int) -> np.ndarray:
    """`most`: the bytes that the file can hold."""
    head = stream.read(4)
    if len(head) < 4:
        raise SettingError(f"{path}: {len(head)} bytes, too short for an IDX file")
    if head[:2] != b"\0\0" or head[2] != 8:
        raise SettingError(f"{path}: starts with {head.hex()}, not an IDX file of bytes (000008..)")
    if head[3] > DIMENSIONS:
        raise SettingError(
            f"{path}: the header claims {head[3]} dimensions; at most {DIMENSIONS} are accepted"
        )
    sizes = stream.read(4 * head[3])
    if head[3] == 0 or len(sizes) < 4 * head[3]:
        raise SettingError(f"{path}: the header ends before its {head[3]} dimensions")
    shape = struct.unpack(f">{head[3]}I", sizes)
    total = math.prod(shape)
    if total > IDX_LIMIT:
        raise SettingError(
            f"{path}: the header claims {total} bytes of data; at most {IDX_LIMIT} are accepted"
        )
    body = bytearray()
    if total <= most:
        # one more shows whether anything follows
        while len(body) <= total and (chunk := stream.read(min(CHUNK, total + 1 - len(body)))):
            body += chunk
    if len(body) != total:
        amount = "more" if len(body) > total else "less"
        raise SettingError(
            f"{path}: the header {shape} promises {total} bytes of data, the file has {amount}"
        )
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def write_idx(path: str | Path, values: np.ndarray) -> None:
    """The inverse of `read_idx`, raw."""
    array = np.ascontiguousarray(values, dtype=np.uint8)
    Path(path).write_bytes(
        struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
    )


Part = tuple[np.ndarray, np.ndarray]  # uint8[n, channels, height, width], int64[n]


@dataclass(frozen=True)
class Images(Partitioned):
    """An image set with its own training and test part."""

    standardise: bool = knob(
        False,
        "subtract the mean and divide by the deviation of each channel; otherwise pixels in [0, 1]",
    )
    share: float = knob(1.0, "share of the images to use, for quick trials", above=0, high=1)
    pooled: bool = knob(
        False,
        "deal the original training and test part as one; `test` of each client's images test",
    )
    test: float = knob(
        0.25, "share of each client's images kept for testing (with pooled)", low=0, below=1
    )
    path: str = path_knob("")

    name: ClassVar[str] = ""

    @property
    def classes(self) -> int:
        """How many there are."""
        return 10

    def load(self) -> Federation:
        folder = folder_of(self.name, self.path)
        (train, train_labels), (test, test_labels) = (
            self._some(part) for part in self.read(folder)
        )
        images, labels = np.concatenate([train, test]), np.concatenate([train_labels, test_labels])
        client, split = self._dealt(train_labels, test_labels)
        used = client >= 0
        federation = Federation.from_arrays(
            torch.from_numpy(images[used]),  # bytes until the very end: a quarter of the memory
            labels[used],
            client[used],
            split=np.array(SPLITS)[split[used]],
            classes=self.classes,
            scale_images=False,
            channels="first",
            name=self.name,
        )
        return replace(federation, inputs=self._scale(federation))

    def _dealt(self, train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Client (-1: none) and split of every sample, from the labels of both parts."""
        if self.pooled:
            client = self.assign(np.concatenate([train, test]))
            share, drawn = self.test, client >= 0
        else:
            owners = self.assign(train)
            client = np.concatenate([owners, mirror(train, owners, test, self.seed)])
            share, drawn = 0.0, client >= 0
            drawn[len(train) :] = False
        split = np.full(len(client), SPLITS.index("test"))
        split[drawn] = draw_split(client[drawn], self.valid, share, self.seed)
        return client, split

    def read(self, folder: Path) -> tuple[Part, Part]:
        """The original training and test part."""
        raise NotImplementedError

    def _some(self, part: Part) -> Part:
        if self.share == 1:
            return part
        images, labels = part
        count = max(1, round(self.share * len(labels)))
        rows = np.random.default_rng(self.seed).permutation(len(labels))[:count]
        rows.sort()
        return images[rows], labels[rows]

    def _scale(self, federation: Federation) -> Tensor:
        x = federation.inputs.to(torch.float32).div_(255)
        if self.standardise:
            training = x[: int(federation.offsets["train"][-1])]  # training samples only
            dims = (0, 2, 3)
            mean = training.mean(dims, keepdim=True)
            std = training.std(dims, keepdim=True)
            x.sub_(mean).div_(std.clamp(min=1e-6))
        return x


def idx_part(folder: Path, prefix: str, classes: int = 10) -> Part:
    """Images and labels of two IDX files, PREFIX-images-idx3-ubyte and PREFIX-labels-idx1-ubyte."""
    images = read_idx(find_file(folder, f"{prefix}-images-idx3-ubyte"))
    labels = read_idx(find_file(folder, f"{prefix}-labels-idx1-ubyte"))
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


def find_file(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    raise SettingError(f"path: {folder} holds no file {name} (or {name}.gz)")


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
