"""Errors in the words of the command line: a field at the start of an error becomes its flag."""

from __future__ import annotations

import re
from argparse import Action
from collections.abc import Iterable

_START = re.compile(r"([a-z][a-z0-9_]*)(?= must |: )")
_flags: dict[str, set[str]] = {}  # of the command that is running: field -> its flags


def forget() -> None:
    """A new command begins."""
    _flags.clear()


def remember(actions: Iterable[Action]) -> None:
    """The flags of the command; those made of a dataclass field are known by the field's name."""
    for action in actions:
        longest = max(action.option_strings, key=len, default="")
        if longest.startswith("--"):
            name = action.dest.rpartition(".")[2]
            _flags.setdefault(name, set()).add(longest)


def in_flags(text: str) -> str:
    """An error with the flag in place of the field that it begins with.

    It stays as it is where it begins with something else, or where two flags have that field.

    >>> forget()
    >>> remember([Action(["--classes-per-client"], "data.classes_per_client")])
    >>> in_flags("classes_per_client must be from 1 to 10, got 11")
    '--classes-per-client must be from 1 to 10, got 11'
    >>> in_flags("lr must be a number > 0, got -1")
    'lr must be a number > 0, got -1'
    """
    start = _START.match(text)
    flags = _flags.get(start.group(1), set()) if start else set()
    if start is None or len(flags) != 1:
        return text
    (flag,) = flags
    return flag + text[start.end() :]
