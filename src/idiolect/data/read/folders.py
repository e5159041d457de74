"""Pictures in folders: one level of folders for clients, one for classes, one for splits if wanted.

The headers of all pictures are read first, so that a wrong size or a damaged file is named before
any pixel is decoded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...core.files import given_path
from ...core.knobs import SettingError, knob
from ...core.text import note, shown
from ..entries import register
from ..federation import Federation
from ..partition import Partitioned, partition_knob
from ..redraw import DATA
from ..splits import ALIASES, SPLITS, Shares, complete_split
from .convert import check_memory
from .pictures import GREY, open_picture, picture

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
LEVELS = ("client", "split", "class")
TURNED = (5, 6, 7, 8)  # values of the EXIF field of orientation that swap width and height
ORIENTATION = 274


@register("folder")
@dataclass(frozen=True)
class Folder(Partitioned, Shares):
    """Pictures in folders: client/class/file, or class/file dealt to clients."""

    path: str = knob("", "the folder")
    layout: str = knob(
        "auto",
        "levels of folders, such as client/class/file, class/file or client/split/class/file; "
        "auto goes by their number",
    )
    size: int = knob(0, "resize to size x size pixels; 0: all pictures have one size", low=0)
    colour: str = knob("auto", "grey if all pictures are", choices=("auto", "grey", "rgb"))
    clients: int = knob(10, "number of clients (layouts without clients)", low=1)
    partition: str = partition_knob("dirichlet", " in layouts without clients")
    minimum: int = knob(1, "least samples of a client (partitions dirichlet and quantity)", low=1)
    scale_images: bool = knob(True, "pixels in [0, 1]; otherwise bytes")
    memory: float = knob(4.0, "most GiB that the pictures may take as numbers", above=0)

    seed_draws: ClassVar[str] = DATA  # the partition or, where clients are folders, the split

    def load(self) -> Federation:
        root = given_path(self.path, "path")
        if not root.is_dir():
            raise SettingError(f"path: there is no folder {str(root)!r}")
        files = pictures_below(root)
        levels = _levels(self.layout, files, root)
        names = tuple(sorted({_part(f, levels, "class") for f in files}))
        if len(names) == 1:
            raise SettingError(
                f"path: {str(root)!r} has one class only, {names[0]!r}; "
                f"the layout {'/'.join([*levels, 'file'])} needs a folder for every class"
            )
        labels = np.array([names.index(_part(f, levels, "class")) for f in files])
        who: Any = [_part(f, levels, "client") for f in files]
        if "client" not in levels:
            who, labels, places = self.deal(labels, np.arange(len(files)))
            files = [files[i] for i in places]
        options = self.shares()
        if "split" in levels:
            splits = [_part(f, levels, "split") for f in files]
            options["split"] = complete_split(splits, who, **options)
        pixels = decode(files, root, self.size, self.colour, self.memory)
        name = root.resolve().name or "folder"
        return Federation.from_arrays(
            pixels,
            labels,
            who,
            class_names=names,
            scale_images=self.scale_images,
            channels="first",
            name=name,
            **options,
        )


# -- which files -----------------------------------------------------------------------------------
def pictures_below(root: Path) -> list[Path]:
    """The pictures below a folder, relative to it, in order of their names."""
    pictures: list[Path] = []
    others: list[Path] = []

    def refuse(error: OSError) -> None:
        raise SettingError(f"path: {error.filename!r} cannot be read: {error.strerror}")

    for folder, inner, files in os.walk(root, onerror=refuse):
        inner[:] = sorted(d for d in inner if not d.startswith("."))
        for file in sorted(files):
            path = Path(folder, file).relative_to(root)
            if file.startswith("."):
                continue
            (pictures if path.suffix.lower() in SUFFIXES else others).append(path)
    if others:
        listed = ", ".join(shown(p, 60) for p in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        note(f"path: {listed}{more} left out; pictures end in {', '.join(SUFFIXES)}")
    if not pictures:
        raise SettingError(
            f"path: there are no pictures in {str(root)!r}; they end in {', '.join(SUFFIXES)}"
        )
    return sorted(pictures)


def _levels(layout: str, files: list[Path], root: Path) -> list[str]:
    """The meaning of each level of folders."""
    depth = len(files[0].parts)
    odd = next((f for f in files if len(f.parts) != depth), None)
    if odd is not None:
        raise SettingError(
            f"path: {shown(odd)!r} and {shown(files[0])!r} lie at different depths; "
            "all pictures must lie at one"
        )
    if layout == "auto":
        levels = _guess(files)
        note(f"layout: folders are read as {'/'.join([*levels, 'file'])}; layout= names another")
        return levels
    *levels, last = layout.strip("/").split("/")
    if last != "file" or "class" not in levels or len(set(levels)) < len(levels):
        levels = []
    if not levels or any(level not in LEVELS for level in levels):
        raise SettingError(
            "layout must be levels of client, split and class that end in file, such as "
            f"client/class/file or class/file, got {layout!r}"
        )
    if len(levels) != depth - 1:
        raise SettingError(
            f"layout: {layout!r} has {len(levels)} levels of folders, {shown(files[0])!r} in "
            f"{str(root)!r} lies in {depth - 1}"
        )
    return levels


def _guess(files: list[Path]) -> list[str]:
    depth = len(files[0].parts) - 1
    names = [{ALIASES.get(f.parts[i], f.parts[i]) for f in files} for i in range(depth - 1)]
    splits = [i for i in range(depth - 1) if names[i] <= set(SPLITS)]
    rest = ["client", "class"][-(depth - bool(splits)) :] if depth > bool(splits) else []
    if not 1 <= len(rest) == depth - bool(splits):
        raise SettingError(
            f"layout: {shown(files[0])!r} lies in {depth} levels of folders; layout= says what "
            "they are, such as client/class/file or class/file"
        )
    return [*rest[: splits[0]], "split", *rest[splits[0] :]] if splits else rest


def _part(file: Path, levels: list[str], level: str) -> str:
    return file.parts[levels.index(level)] if level in levels else ""


# -- their pixels ----------------------------------------------------------------------------------
def decode(files: list[Path], root: Path, size: int, colour: str, memory: float) -> Tensor:
    """uint8[n, channels, height, width]."""
    modes = []
    sizes = []
    for file in files:
        with open_picture(root / file, f"path: {shown(file)!r}", FORMATS) as image:
            turned = image.getexif().get(ORIENTATION) in TURNED
            sizes.append(image.size[::-1] if turned else image.size)
            modes.append(image.mode in GREY)
    odd = next((i for i, s in enumerate(sizes) if s != sizes[0]), None)
    if odd is not None and not size:
        raise SettingError(
            f"path: {shown(files[odd])!r} has {_times(sizes[odd])} pixels, {shown(files[0])!r} has "
            f"{_times(sizes[0])}; all must agree, or size=32 resizes them to 32 x 32"
        )
    channels = _channels(modes, colour)
    width, height = (size, size) if size else sizes[0]
    need = len(files) * channels * width * height * 4
    check_memory(need, memory, "path", f"{len(files)} pictures of {width} x {height} as numbers")
    out = torch.empty(len(files), channels, height, width, dtype=torch.uint8)
    for i, file in enumerate(files):
        with open_picture(root / file, f"path: {shown(file)!r}", FORMATS) as image:
            out[i] = _pixels(image, channels, (width, height))
    return out


def _pixels(image: Any, channels: int, size: tuple[int, int]) -> Tensor:
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(image)
    upright = (
        upright
        if upright.mode.startswith("I;16")
        else upright.convert("L" if channels == 1 else "RGB")
    )
    if upright.size != size:
        upright = upright.resize(size, Image.Resampling.BILINEAR)
    pixels = picture(upright, "path")
    return pixels.expand(channels, *pixels.shape[1:])


def _channels(grey: list[bool], colour: str) -> int:
    if colour != "auto":
        return 1 if colour == "grey" else 3
    if all(grey):
        note("colour: all pictures are grey and have one channel; colour=rgb gives three")
        return 1
    mixed = f" ({sum(grey)} of {len(grey)} are grey)" if any(grey) else ""
    note(f"colour: pictures are read in colour{mixed}; colour=grey makes them grey")
    return 3


def _times(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
