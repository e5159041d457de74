"""Samples that are dicts, and tables with columns: which key is the target, which are inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.knobs import SettingError, nearest
from ..core.text import note

TARGETS = ("label", "labels", "target", "targets", "y")
NUMBERS = ("id", "idx", "index", "__index_level_0__")  # of samples, not features


@dataclass(frozen=True)
class Keys:
    """What was chosen."""

    inputs: tuple[str, ...]
    target: str
    alone: bool  # one input, given as it is, not in a dict
    stacked: bool  # numbers, which together are a row of features


def choose_keys(
    sorts: dict[str, str],
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
) -> Keys:
    """By name, or guessed and said; `sorts` says "number", "array", "text" or "other" of each key.

    >>> choose_keys({"pixels": "array", "label": "number"}, "pixels", "label").inputs
    ('pixels',)
    """
    named = [] if inputs is None else [inputs] if isinstance(inputs, str) else list(inputs)
    for key, what in [*((key, "inputs") for key in named), (target, "target")]:
        if key is not None and key not in sorts:
            raise nearest(str(key), map(str, sorts), what)
    chosen = target if target is not None else _guess_target(sorts, named)
    if inputs is None:
        named = _guess_inputs(sorts, chosen)
    elif not named:
        raise SettingError("inputs: an empty list was given; name at least one key")
    if target is None or inputs is None:
        note(
            f"samples: inputs are {', '.join(map(repr, named))}, the target is {chosen!r}; "
            "inputs= and target= name others"
        )
    stacked = all(sorts[key] == "number" for key in named)
    alone = len(named) == 1 and (inputs is None or isinstance(inputs, str))
    return Keys(tuple(named), chosen, alone, stacked)


def _guess_target(sorts: dict[str, str], named: list[str]) -> str:
    found = [key for key in TARGETS if key in sorts and key not in named]
    if not found:
        raise SettingError(
            f"target: none of the keys is called {', '.join(TARGETS)}; "
            f"target= names one of: {', '.join(map(str, sorts))}"
        )
    return found[0]


def _guess_inputs(sorts: dict[str, str], target: str) -> list[str]:
    others = [key for key in sorts if key != target]
    used = [key for key in others if sorts[key] in ("number", "array") and key not in NUMBERS]
    left = [key for key in others if key not in used]
    if not used:
        raise SettingError(
            f"inputs: no key beside {target!r} holds numbers or pictures"
            + (f"; {', '.join(map(repr, left))} would have to become numbers first" if left else "")
        )
    if left:
        note(f"samples: left out are {', '.join(map(repr, left))} (text, or numbers of samples)")
    return used
