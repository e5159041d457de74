"""CIFAR-10 from its original binary batches, and the PNG sheets some packages carry turned into those batches.

A batch is 10,000 records of 3,073 bytes: the label, then 1,024 red, 1,024 green and 1,024 blue pixels. (The better-known Python
batches are pickles, which can run code when read; they are not supported.)
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ..core.knobs import SettingError
from . import png

RECORD = 1 + 3 * 32 * 32
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = ("test_batch",)


def read(path: str | Path) -> tuple[np.ndarray, np.ndarray]:  # -> uint8[n, 3, 32, 32], int64[n]
    """Images and labels of one binary batch."""
    path = Path(path)
    size = path.stat().st_size
    if size == 0 or size % RECORD or size > 1 << 28:
        raise SettingError(
            f"{path}: {size} bytes are not a whole number of {RECORD}-byte CIFAR-10 records"
        )
    records = np.fromfile(path, dtype=np.uint8).reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), _labels(records[:, 0], path)


def write(path: str | Path, images: np.ndarray, labels: np.ndarray) -> None:
    """The inverse of `read`."""
    records = np.concatenate(
        [np.asarray(labels, dtype=np.uint8)[:, None], images.reshape(len(images), -1)], axis=1
    )
    Path(path).write_bytes(records.tobytes())


def read_sheet(path: str | Path) -> np.ndarray:  # -> uint8[n, 3, 32, 32]
    """Images from an RGB PNG sheet: one image of 1,024 pixels per line."""
    pixels = png.read(path)
    if pixels.shape[1:] != (1024, 3):
        raise SettingError(
            f"{path}: lines of {pixels.shape[1]} pixels with {pixels.shape[2]} channels; CIFAR-10 sheets have 1024 with 3"
        )
    return pixels.transpose(0, 2, 1).reshape(-1, 3, 32, 32)


def read_labels(path: str | Path) -> np.ndarray:
    """A JSON list of class numbers."""
    try:
        values = json.loads(Path(path).read_text())
        return _labels(np.array(values), Path(path))
    except (ValueError, TypeError) as e:
        raise (
            e
            if isinstance(e, SettingError)
            else SettingError(f"{path}: not a JSON list of class numbers ({e})")
        ) from None


def sheets_to_batches(folder: Path) -> None:
    """Turn `data_batch_1.png` ... and their label lists (spelt "lables" in that package) into the original `.bin` batches."""
    for names, file in ((TRAIN, "train_lables.json"), (TEST, "test_lables.json")):
        labels = read_labels(folder / file)
        for i, name in enumerate(names):
            images = read_sheet(folder / f"{name}.png")
            mine = labels[i * len(images) : (i + 1) * len(images)]
            if len(mine) != len(images):
                raise SettingError(
                    f"{folder / file}: {len(labels)} labels are too few for the images of {name}"
                )
            write(folder / f"{name}.bin", images, mine)


def _labels(values: np.ndarray, path: Path) -> np.ndarray:
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values):
        raise SettingError(f"{path}: not a list of class numbers")
    if values.min() < 0 or values.max() > 9:
        raise SettingError(
            f"{path}: label {values[(values < 0) | (values > 9)][0]} lies outside the 10 classes; accepted: 0 to 9"
        )
    return values.astype(np.int64)
