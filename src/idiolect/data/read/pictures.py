"""Pictures among the inputs: bytes become numbers in [0, 1], channels come before the pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.knobs import SettingError
from ...core.text import note

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
        raise SettingError(
            f"channels: {channels!r} is not accepted; one of 'auto', 'first', 'last'"
        )
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
