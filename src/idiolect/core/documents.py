"""JSON of unknown origin against type hints: what is not as declared is named, with its place."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from typing import Any, Union, get_args, get_origin

NoneType = type(None)
WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    NoneType: "null",
}


def expect(value: Any, hint: Any, place: str = "it") -> None:
    """ValueError where plain data are not of this type; a whole number is a number too.

    >>> expect({"fedavg": [1, 2.5]}, dict[str, list[float]])
    >>> expect({"folders": ["0-fedavg", 7]}, dict[str, list[str]])
    Traceback (most recent call last):
        ...
    ValueError: folders[1] is a whole number; a text is expected
    """
    if hint is Any:
        return
    if get_origin(hint) in (Union, types.UnionType):
        kinds = get_args(hint)
    else:
        kinds = (hint,)
    for kind in kinds:
        outer = get_origin(kind) or kind
        if type(value) is outer or (outer is float and type(value) is int):
            _expect_inside(value, kind, place)
            return
    wanted = " or ".join(WORDS[get_origin(kind) or kind] for kind in kinds)
    kind_name = WORDS.get(type(value), type(value).__name__)
    raise ValueError(f"{place} is {kind_name}; {wanted} is expected")


def expect_fields(
    value: Any, hints: Mapping[str, Any], optional: Collection[str] = (), place: str = ""
) -> None:
    """ValueError where plain data are not an object with these fields, each of its type.

    >>> expect_fields({"budget": 3, "colour": "red"}, {"budget": int})
    Traceback (most recent call last):
        ...
    ValueError: the key 'colour' is not expected; known: budget
    """
    expect(value, dict[str, Any], place or "it")
    inside = f" in {place}" if place else ""
    for key in value:
        if key not in hints:
            names = ", ".join(hints)
            raise ValueError(f"the key {key[:80]!r}{inside} is not expected; known: {names}")
    for key, hint in hints.items():
        if key in value:
            expect(value[key], hint, f"{place}.{key}" if place else key)
        elif key not in optional:
            raise ValueError(f"the key {key!r}{inside} is missing")


def _expect_inside(value: Any, kind: Any, place: str) -> None:
    inner = get_args(kind)
    if isinstance(value, dict) and inner:
        for key, item in value.items():
            expect(item, inner[1], key[:80] if place == "it" else f"{place}.{key[:80]}")
    if isinstance(value, list) and inner:
        for number, item in enumerate(value):
            expect(item, inner[0], f"{place}[{number}]")


def plain(value: Any) -> Any:
    """The value with NaN and infinity as null, so that every JSON reader can read what is written.

    >>> plain({"accuracy": float("nan"), "by_seed": (0.5, float("inf"))})
    {'accuracy': None, 'by_seed': [0.5, None]}
    """
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
