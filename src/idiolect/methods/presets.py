"""Settings of a method under a name: `preset=paper`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ..core.knobs import Knobs, SettingError, knob, nearest
from ..method import Method

PRESET = "preset"


@dataclass(frozen=True)
class Preset(Knobs):
    """The setting that stands beside the fields of a method."""

    preset: str = knob("", "fields under a name, paper: those of its paper; others given win")


def has_preset(cls: type[Method]) -> bool:
    """Whether `preset` is this setting; not where the method has a field of that name itself."""
    return PRESET not in {f.name for f in dataclasses.fields(cls)}


def unfold(cls: type[Method], fields: dict[str, Any], what: str) -> dict[str, Any]:
    """The fields with those of a preset among them; what is given beside it wins.

    >>> from .pfedme import PFedMe
    >>> unfold(PFedMe, {"preset": "paper", "lam": 1.0}, "method pfedme")["lam"]
    1.0
    """
    if PRESET not in fields or not has_preset(cls):
        return fields
    fields = dict(fields)
    name = fields.pop(PRESET)
    if not name:
        return fields
    if not cls.traits.presets:
        raise SettingError(f"preset: {name!r} is not accepted; {what} has none, only its defaults")
    if not isinstance(name, str) or name not in cls.traits.presets:
        raise nearest(str(name), cls.traits.presets, f"{what} preset")
    return {**cls.traits.presets[name], **fields}


def named(method: Method) -> str:
    """The preset that a method's fields are those of; "" where it is none, or the defaults."""
    for name, fields in type(method).traits.presets.items():
        defaults = {f.name: f.default for f in dataclasses.fields(method)}
        other = any(defaults[field] != value for field, value in fields.items())
        if other and all(getattr(method, field) == value for field, value in fields.items()):
            return name
    return ""
