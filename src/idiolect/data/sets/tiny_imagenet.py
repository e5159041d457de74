"""Tiny ImageNet from its folders.

    wnids.txt                            a class per line
    train/CLASS/images/*.JPEG            the training part
    val/images/*.JPEG                    the test part, with the classes in
    val/val_annotations.txt              a line FILE <tab> CLASS <tab> ... per picture

The pictures in `test` have no published classes and are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core.knobs import SettingError, knob
from ..download import file_in, folder_of, path_knob, reading
from ..entries import register
from ..read.folders import SUFFIXES, decode
from .images import Images, Part

TEXT_LIMIT = 1 << 24  # bytes of a list of classes or pictures; the originals have 400 kB


@register("tiny-imagenet")
@dataclass(frozen=True)
class TinyImageNet(Images):
    """Tiny ImageNet: 100,000 + 10,000 photographs of 200 kinds of things, 64x64 pixels.

    Le and Yang (2015), Tiny ImageNet visual recognition challenge, Stanford CS231N.
    """

    clients: int = knob(100, "number of clients", low=1)
    classes_per_client: int = knob(20, "classes of each client (partition classes)", low=1)
    size: int = knob(64, "resize to size x size pixels", low=1)
    memory: float = knob(8.0, "most GiB that the pictures may take as numbers", above=0)
    path: str = path_knob("tiny-imagenet")

    name: ClassVar[str] = "tiny-imagenet"

    @property
    def classes(self) -> int:
        return len(read_classes(folder_of(self.name, self.path)))

    def read(self, folder: Path) -> tuple[Part, Part]:
        names = read_classes(folder)
        training = [
            (file, label)
            for label, name in enumerate(names)
            for file in sorted((folder / "train" / name / "images").glob("*"))
            if file.suffix.lower() in SUFFIXES
        ]
        return self._part(folder, training), self._part(folder, _test_pictures(folder, names))

    def _part(self, folder: Path, pictures: list[tuple[Path, int]]) -> Part:
        if not pictures:
            raise SettingError(f"path: {folder} lacks the pictures of its training or test part")
        files = [file.relative_to(folder) for file, _ in pictures]
        images = decode(files, folder, self.size, "rgb", self.memory).numpy()
        return images, np.array([label for _, label in pictures])


def read_classes(folder: Path) -> list[str]:
    """The names of the classes, in the order of their numbers."""
    names = _lines(folder / "wnids.txt", "a list of classes")
    odd = next((name for name in names if not name.isalnum()), None)
    if odd is not None or len(set(names)) < len(names) or not names:
        raise SettingError(f"path: {folder / 'wnids.txt'} is not a list of classes, each once")
    return names


def _test_pictures(folder: Path, names: list[str]) -> list[tuple[Path, int]]:
    """The pictures of the validation part of the competition, and their classes."""
    path = folder / "val" / "val_annotations.txt"
    numbers = {name: number for number, name in enumerate(names)}
    pictures = []
    for line in _lines(path, "a list of pictures with their classes"):
        file, _, rest = line.partition("\t")
        label = numbers.get(rest.partition("\t")[0])
        if label is None or Path(file).name != file:
            raise SettingError(f"path: {path} has the line {line[:80]!r}, not FILE, CLASS, ...")
        pictures.append((folder / "val" / "images" / file, label))
    return pictures


def _lines(path: Path, what: str) -> list[str]:
    """The lines of a text file that are not empty."""
    file = file_in(path.parent, path.name, TEXT_LIMIT)
    with reading(file, what):
        return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
