"""A stored table or figure, and how to make it again: `idiolect reproduce NAME`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idiolect.core.knobs import SettingError, nearest

SCALES = ("quick", "full")
REPRODUCED = "reproduced"  # the folder of published tables, and of figures of trained models
THEORY = "theory"  # the folder of what the papers prove or show on constructed problems


@dataclass(frozen=True)
class Experiment:
    """A stored experiment: its function writes a page and figures into a folder."""

    function: str  # module:function of this folder; it takes the folder, gives the files it wrote
    text: str  # what it shows
    folder: str = ""  # below the output folder
    scales: bool = False  # it has a quick and a full scale, and takes which

    def __call__(self, output: Path, scale: str = "", only: Sequence[str] = ()) -> list[Path]:
        if scale and not self.scales:
            raise SettingError(f"scale: {scale!r} is not accepted; this experiment has one only")
        if scale and scale not in SCALES:
            raise nearest(scale, SCALES, "scale")
        module, _, name = self.function.partition(":")
        write = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        folder = output / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        given: dict[str, Any] = {"scale": scale or SCALES[0]} if self.scales else {}
        if only:
            if "only" not in inspect.signature(write).parameters:
                raise SettingError("only: it is not accepted; this experiment is run as a whole")
            given["only"] = only
        return write(folder, **given)
