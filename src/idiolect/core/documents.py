"""JSON of unknown origin as typed objects: what is not as declared is named, with its place.

A kind of document is a dataclass; `decode` builds it from plain data. A field without a default
must be there, and nothing else may be; a class variable `every_key = True` makes all fields
required. `field(metadata={"key": "from"})` gives a field another name
in JSON.

What idiolect stores to read it again is sealed: its last field is a checksum of the others. That
shows damage and edits; it is no signature, so everything else is checked as well.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

NoneType = type(None)
LARGEST = 2**1023  # whole numbers up to here are numbers of 64 bits too
WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "an object",
    NoneType: "null",
}


def decode(value: Any, hint: Any, place: str = "") -> Any:
    """Plain data as a type hint says: a dataclass from an object, everything else as it is.

    A whole number that 64 bits hold is a number too; true is no number. What does not fit is a
    ValueError.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Search:
    ...     budget: int
    ...     folders: list[str] = dataclasses.field(default_factory=list)
    >>> decode({"budget": 3}, Search)
    Search(budget=3, folders=[])
    >>> decode({"budget": 3, "folders": ["0-fedavg", 7]}, Search)
    Traceback (most recent call last):
        ...
    ValueError: folders[1] must be a text, got a whole number
    >>> decode({"budget": 3, "colour": "red"}, Search)
    Traceback (most recent call last):
        ...
    ValueError: the key 'colour' is not expected; known: budget, folders
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in kinds:
        outer = get_origin(kind) or kind
        if outer is Any:
            return value
        if dataclasses.is_dataclass(outer) and isinstance(value, dict):
            return _decode_object(value, outer, place)
        if outer is float and type(value) is int and abs(value) > LARGEST:
            raise ValueError(f"{place or 'it'} must be a number of 64 bits, got one beyond them")
        if type(value) is outer or (outer is float and type(value) is int):
            return _decode_inside(value, get_args(kind), place)
        if outer is tuple and type(value) is list:
            return tuple(_decode_inside(value, get_args(kind), place))
    wanted = " or ".join(WORDS.get(get_origin(kind) or kind, WORDS[dict]) for kind in kinds)
    got = WORDS.get(type(value), type(value).__name__)
    raise ValueError(f"{place or 'it'} must be {wanted}, got {got}")


def _decode_object(value: dict[str, Any], cls: Any, place: str) -> Any:
    hints, required = _schema(cls)
    _check_keys(value, hints, required, place)
    arguments = {}
    for key, item in value.items():
        name, hint = hints[key]
        arguments[name] = decode(item, hint, f"{place}.{key}" if place else key)
    return cls(**arguments)


@cache
def _schema(cls: Any) -> tuple[dict[str, tuple[str, Any]], list[str]]:
    """JSON key -> field and type; and the keys that must be there."""
    types_of = get_type_hints(cls)
    hints: dict[str, tuple[str, Any]] = {}
    required: list[str] = []
    for f in dataclasses.fields(cls):
        key = f.metadata.get("key", f.name)
        hints[key] = (f.name, types_of[f.name])
        no_default = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if no_default or getattr(cls, "every_key", False):
            required.append(key)
    return hints, required


def _decode_inside(value: Any, inner: tuple[Any, ...], place: str) -> Any:
    if isinstance(value, dict) and inner:
        return {
            key: decode(item, inner[1], f"{place}.{key[:80]}" if place else key[:80])
            for key, item in value.items()
        }
    if isinstance(value, list) and inner:
        return [decode(item, inner[0], f"{place}[{at}]") for at, item in enumerate(value)]
    return value


def encode(document: Any) -> dict[str, Any]:
    """The inverse of `decode`: a dataclass as plain data."""
    return {
        f.metadata.get("key", f.name): _encoded(getattr(document, f.name))
        for f in dataclasses.fields(document)
    }


def _encoded(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return encode(value)
    if isinstance(value, (list, tuple)):
        return [_encoded(item) for item in value]
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    return value


def expect(value: Any, hint: Any, place: str = "") -> None:
    """ValueError where plain data are not of this type."""
    decode(value, hint, place)


def expect_fields(
    value: Any, hints: Mapping[str, Any], optional: Collection[str] = (), place: str = ""
) -> dict[str, Any]:
    """The value, if it is an object with these fields, each of its type; else a ValueError.

    >>> expect_fields({"budget": 3, "colour": "red"}, {"budget": int})
    Traceback (most recent call last):
        ...
    ValueError: the key 'colour' is not expected; known: budget
    """
    expect(value, dict[str, Any], place)
    _check_keys(value, hints, [key for key in hints if key not in optional], place)
    for key, item in value.items():
        expect(item, hints[key], f"{place}.{key}" if place else key)
    return value


def _check_keys(
    value: Mapping[str, Any], known: Collection[str], required: Collection[str], place: str
) -> None:
    inside = f" in {place}" if place else ""
    for key in value:
        if key not in known:
            names = ", ".join(known)
            raise ValueError(f"the key {key[:80]!r}{inside} is not expected; known: {names}")
    for key in required:
        if key not in value:
            raise ValueError(f"the key {key!r}{inside} is missing")


# -- checksums -------------------------------------------------------------------------------------
CHECKSUM = "sha256"  # the field


def checksum(value: Any) -> str:
    """SHA-256 of plain data as JSON, in the order of their keys."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document with its checksum.

    >>> document = sealed({"accuracy": 0.5})
    >>> unsealed(document)
    {'accuracy': 0.5}
    >>> unsealed({**document, "accuracy": 0.9})
    Traceback (most recent call last):
        ...
    ValueError: it does not match its SHA-256 (damaged or edited)
    """
    return {**document, CHECKSUM: checksum(document)}


def unsealed(document: Any) -> dict[str, Any]:
    """The document without its checksum; ValueError where that is missing or another."""
    expect(document, dict[str, Any])
    if CHECKSUM not in document:
        raise ValueError(
            "it has no SHA-256 of itself (written by an earlier version of idiolect, or edited)"
        )
    content = {key: value for key, value in document.items() if key != CHECKSUM}
    if document[CHECKSUM] != checksum(content):
        raise ValueError("it does not match its SHA-256 (damaged or edited)")
    return content


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


# -- TOML, which Python itself only reads ----------------------------------------------------------
def toml_text(value: Any) -> str:
    """A value as it is written in TOML.

    >>> toml_text(["a", 3, 0.5, True]), toml_text('say "no"')
    ('["a", 3, 0.5, true]', '"say \\\\"no\\\\""')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_text, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_sections(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections with a line per setting; empty ones are left out.

    >>> print(toml_sections({"run": {"rounds": 5}, "data": {}}), end="")
    [run]
    rounds = 5
    """
    texts = [
        "\n".join([f"[{name}]", *(f"{key} = {toml_text(value)}" for key, value in lines.items())])
        for name, lines in sections.items()
        if lines
    ]
    return "\n\n".join(texts) + "\n"
