"""Pictures: PIL images as bytes, bytes as numbers in [0, 1], channels before the pixels."""

from __future__ import annotations

import os
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError
from ...core.text import note, shown

CHANNELS = (1, 3, 4)  # grey, colour, colour and opacity
Change = Callable[[Tensor], Tensor]


def plan_pixels(values: Any, name: str, scale_images: bool, channels: str) -> Change | None:
    """What is done to samples [m, ...] of an array, said in a note; None: nothing."""
    moved = _are_last(tuple(values.shape), channels)
    scaled = scale_images and str(values.dtype).endswith("uint8") and values.ndim >= 3
    if moved and channels == "auto":
        note(
            f"{name}: shape {tuple(values.shape)} is read as pictures with channels last, and "
            "channels are moved to the front; channels='first' leaves them"
        )
    if scaled:
        note(f"{name}: bytes are scaled to [0, 1]; scale_images=False keeps bytes")
    if not moved and not scaled:
        return None

    def change(t: Tensor) -> Tensor:
        t = t.movedim(-1, 1).contiguous() if moved else t
        return t.to(torch.float32).div_(255) if scaled else t

    return change


def check_channels(channels: str, dimensions: list[int]) -> None:
    if channels not in ("auto", "first", "last"):
        raise SettingError(f"channels must be one of 'auto', 'first', 'last', got {channels!r}")
    if channels == "last" and 4 not in dimensions:
        raise SettingError(
            "channels: 'last' needs pictures of shape [samples, height, width, channels]; "
            f"the inputs have {' and '.join(map(str, dimensions))} dimensions"
        )


def _are_last(shape: tuple[int, ...], channels: str) -> bool:
    if len(shape) != 4:
        return False
    if channels == "auto":
        return shape[-1] in CHANNELS and shape[1] not in CHANNELS
    return channels == "last"


# -- PIL images ------------------------------------------------------------------------------------
class Pictures(list):
    """Tensors uint8[channels, height, width] of PIL images."""


def is_picture(value: Any) -> bool:
    """Whether it is an image of PIL, which is loaded if the user has one."""
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(value, pil.Image)


@contextmanager
def open_picture(path: str | Path, name: str, formats: tuple[str, ...]) -> Iterator[Any]:
    """A picture in a file; an error names it, and none is decoded that could fill the memory."""
    from PIL import Image

    if os.path.exists(path) and not os.path.isfile(path):
        raise SettingError(f"{name} must be a regular file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=formats) as image:
                yield image
    except SettingError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as e:
        raise SettingError(f"{name} has too many pixels ({e})") from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error) as e:
        raise SettingError(f"{name} is not a picture, or damaged ({e})") from None


GREY = ("1", "L", "LA", "I;16", "I;16B", "I;16L", "I", "F")


def picture(image: Any, where: str) -> Tensor:  # -> uint8[1 or 3, height, width]
    """A PIL image as bytes: grey or coloured, opacity left out."""
    if not is_picture(image):
        raise SettingError(f"{where} must be a picture, got {form_of(image)}")
    if image.mode.startswith("I;16"):
        pixels = (np.asarray(image) >> 8).astype(np.uint8)
    else:
        pixels = np.array(image.convert("L" if image.mode in GREY else "RGB"))
    if pixels.ndim == 2:
        return torch.from_numpy(pixels).unsqueeze(0)
    return torch.from_numpy(pixels).movedim(-1, 0).contiguous()


def mask(value: Any, where: str) -> Any:
    """A picture among targets as class numbers, a palette's too; anything else as it is."""
    if not is_picture(value):
        return value
    if value.mode not in ("1", "L", "P", "I", "I;16"):
        raise SettingError(
            f"{where}: a target must be a mask with one class number per pixel, got a picture of "
            f"mode {value.mode}"
        )
    return torch.from_numpy(np.array(value).astype(np.int64))


def form_of(value: Any) -> str:
    """A value in the words of an error."""
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (Tensor, np.ndarray)):
        return f"one {type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, str):
        return f"the text {shown(value, 30)!r}"
    return f"a {type(value).__name__}"
