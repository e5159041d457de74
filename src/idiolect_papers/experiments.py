"""All experiments by paper, as texts/experiments.toml lists them."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idiolect import SettingError

from .texts import read_text

SCALES = ("quick", "full")
REPRODUCED = "reproduced"  # the folder of published tables, and of figures of trained models
THEORY = "theory"  # the folder of what the papers prove or show on constructed problems
KINDS = {  # the folder of its page, and whether it has a quick and a full scale
    "page": ("", False),
    "scaled": ("", True),
    "trained": (REPRODUCED, True),
    "proved": (THEORY, False),
}


@dataclass(frozen=True)
class Experiment:
    """A stored experiment: its function writes a page and figures into a folder."""

    kind: str
    function: str  # module:function of this package; it takes the folder, gives the files it wrote
    text: str  # what it shows
    options: Mapping[str, Any] = field(default_factory=dict)  # what else its function takes

    def __call__(self, output: Path, scale: str = "", only: Sequence[str] = ()) -> list[Path]:
        folder_name, scales = KINDS[self.kind]
        if scale and not scales:
            raise SettingError(f"scale must be left out for this experiment, got {scale!r}")
        if scale and scale not in SCALES:
            raise unknown(scale, SCALES, "scale")
        module, _, name = self.function.partition(":")
        write = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        options = dict(self.options)
        if scales:
            options["scale"] = scale or SCALES[0]
        if only:
            if "only" not in inspect.signature(write).parameters:
                raise SettingError("only must be left out: this experiment is run as a whole")
            options["only"] = only
        folder = output / folder_name
        folder.mkdir(parents=True, exist_ok=True)
        return write(folder, **options)


def unknown(name: str, names: Iterable[str], what: str) -> SettingError:
    """The error for an unknown name, with the nearest one where one is near.

    >>> print(unknown("goldn", ["golden", "rules"], "experiment"))
    experiment: 'goldn' is unknown; did you mean 'golden'? known: golden, rules
    """
    close = difflib.get_close_matches(name, names := sorted(names), n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return SettingError(f"{what}: {name!r} is unknown; {hint}known: {', '.join(names)}")


GROUPS = {
    title: {name: Experiment(**fields) for name, fields in group.items()}
    for title, group in read_text("experiments").items()
}
EXPERIMENTS = {name: e for group in GROUPS.values() for name, e in group.items()}
