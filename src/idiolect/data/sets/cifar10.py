"""CIFAR-10 from its original binary batches, or from the PNG sheets that some packages carry.

A batch is 10,000 records of 3,073 bytes: the label, then 1,024 red, 1,024 green and 1,024 blue
pixels. (The better-known Python batches are pickles, which can run code when read; they are not
supported.) A sheet is one PNG picture with an image of 1,024 pixels per line; `sheets_to_batches`
turns sheets into the original batches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core.files import regular_file
from ...core.knobs import SettingError, knob
from ..entries import register
from ..read.pictures import open_picture
from .images import Images, Part, find_file

PIXELS = 3 * 32 * 32  # bytes of an image
BATCH_LIMIT = 1 << 28  # bytes of one file of records; the largest original one has 154 MB
SHEET_LIMIT = 1 << 28  # bytes of one sheet's pixels; the known ones have 31 MB
LIST_LIMIT = 1 << 24  # bytes of a list of labels; the known ones have 100 kB
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = ("test_batch",)


@register("cifar10")
@dataclass(frozen=True)
class Cifar10(Images):
    """CIFAR-10: 50,000 + 10,000 colour photographs of ten kinds of things, 32x32 pixels."""

    clients: int = knob(200, "number of clients", low=1)

    name: ClassVar[str] = "cifar10"

    def read(self, folder: Path) -> tuple[Part, Part]:
        return self._part(folder, TRAIN), self._part(folder, TEST)

    def _part(self, folder: Path, names: tuple[str, ...]) -> Part:
        paths = (find_file(folder, f"{name}.bin") for name in names)
        images, labels = zip(*map(read_batch, paths), strict=True)
        return np.concatenate(images), np.concatenate(labels)


def read_batch(
    path: str | Path,
) -> tuple[np.ndarray, np.ndarray]:  # -> uint8[n, 3, 32, 32], int64[n]
    """Images and labels of one binary batch."""
    images, labels = read_records(Path(path), (10,))
    return images, labels[:, 0]


def read_records(
    path: Path, classes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:  # -> uint8[n, 3, 32, 32], int64[n, len(classes)]
    """Images and labels of a binary file: a byte for each label of an image, then its pixels.

    `classes`: how many each label tells apart.
    """
    record = len(classes) + PIXELS
    try:
        size = path.stat().st_size
        if size == 0 or size % record or size > BATCH_LIMIT:
            raise SettingError(
                f"{path}: {size} bytes are not a whole number of {record}-byte CIFAR-{classes[-1]} "
                f"records in at most {BATCH_LIMIT} bytes"
            )
        records = np.fromfile(path, dtype=np.uint8, count=size).reshape(-1, record)
    except OSError as e:
        raise SettingError(f"{path}: cannot be read: {e.strerror}") from None
    labels = [_labels(records[:, at], path, count) for at, count in enumerate(classes)]
    return records[:, len(classes) :].reshape(-1, 3, 32, 32), np.stack(labels, 1)


def write_batch(path: str | Path, images: np.ndarray, labels: np.ndarray) -> None:
    """The inverse of `read_batch`."""
    records = np.concatenate(
        [np.asarray(labels, dtype=np.uint8)[:, None], images.reshape(len(images), -1)], axis=1
    )
    Path(path).write_bytes(records.tobytes())


def read_png(path: str | Path) -> np.ndarray:  # -> uint8[height, width, 1 or 3]
    """The pixels of an 8-bit grey or RGB picture; its size is checked before memory is taken."""
    with open_picture(path, str(path), ("PNG",)) as picture:  # reads the header only
        channels = {"L": 1, "RGB": 3}.get(picture.mode, 0)
        # Pillow reads other depths into these modes too; the decoder's raw mode tells
        if not channels or not picture.tile or picture.tile[0][3] != picture.mode:
            raise SettingError(f"{path} must be an 8-bit grey or RGB picture")
        width, height = picture.size
        if width * height * channels > SHEET_LIMIT:
            raise SettingError(
                f"{path} must have at most {SHEET_LIMIT} bytes of pixels, "
                f"got {width} x {height} pixels"
            )
        picture.verify()  # the checksums; it uses up the file
    with open_picture(path, str(path), ("PNG",)) as picture:
        return np.array(picture).reshape(height, width, channels)


def read_sheet(path: str | Path) -> np.ndarray:  # -> uint8[n, 3, 32, 32]
    """Images from an RGB PNG sheet: one image of 1,024 pixels per line."""
    pixels = read_png(path)
    if pixels.shape[1:] != (1024, 3):
        raise SettingError(
            f"{path}: lines of {pixels.shape[1]} pixels with {pixels.shape[2]} channels; "
            "CIFAR-10 sheets have 1024 with 3"
        )
    return pixels.transpose(0, 2, 1).reshape(-1, 3, 32, 32)


def read_labels(path: str | Path) -> np.ndarray:
    """A JSON list of class numbers."""
    try:
        with open(regular_file(path, "path"), "rb") as f:
            text = f.read(LIST_LIMIT + 1)
        if len(text) > LIST_LIMIT:
            raise ValueError(f"more than {LIST_LIMIT} bytes")
        values = np.array(json.loads(text))
    except (ValueError, TypeError, RecursionError, OSError) as e:
        raise SettingError(f"{path}: not a JSON list of class numbers ({e})") from None
    return _labels(values, Path(path))


def sheets_to_batches(folder: Path) -> None:
    """`data_batch_1.png` ... and their lists of labels as the original `.bin` batches.

    (The package that carries them spells the lists "lables".)
    """
    for names, file in ((TRAIN, "train_lables.json"), (TEST, "test_lables.json")):
        labels = read_labels(folder / file)
        for i, name in enumerate(names):
            images = read_sheet(folder / f"{name}.png")
            mine = labels[i * len(images) : (i + 1) * len(images)]
            if len(mine) != len(images):
                raise SettingError(
                    f"{folder / file}: {len(labels)} labels are too few for the images of {name}"
                )
            write_batch(folder / f"{name}.bin", images, mine)


def _labels(values: np.ndarray, path: Path, classes: int = 10) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values):
        raise SettingError(f"{path}: not a list of class numbers")
    wrong = values[(values < 0) | (values >= classes)]
    if len(wrong):
        raise SettingError(
            f"{path}: label {wrong[0]} lies outside the {classes} classes; "
            f"accepted: 0 to {classes - 1}"
        )
    return values.astype(np.int64)
