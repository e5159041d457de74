"""The starts of a run: the environment of each, and what differs from one to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.files import check_object, read_json
from ..core.knobs import SettingError

_FIELDS = {
    "when": str,
    "python": str,
    "platform": str,
    "processor": str,
    "threads": int,
    "packages": dict,
    "code": dict,
    "from": dict,  # seed -> the round that it went on from
    "rounds": int,  # that the run was to have
}
_MOST_THREADS = 4096


def read_starts(path: Path) -> list[dict[str, Any]]:
    """The environments in a run directory, oldest first; a SettingError where they cannot be."""
    file = path / "environment.json"
    starts = read_json(file)
    try:
        if not isinstance(starts, list) or not starts:
            raise ValueError("a list with the environment of every start is expected")
        for start in starts:
            check_object(start, _FIELDS, {"rounds"})
            if not 1 <= start["threads"] <= _MOST_THREADS:
                raise ValueError(f"threads: a whole number from 1 to {_MOST_THREADS} is expected")
            for name, kind in (("packages", str), ("code", str), ("from", int)):
                check_object(start[name], dict.fromkeys(start[name], kind))
    except ValueError as error:
        raise SettingError(f"directory: cannot use {file}: {error}") from None
    return starts


def differences(starts: list[dict[str, Any]], now: dict[str, Any]) -> list[str]:
    """What is other than at the last start and may show in the last bits of figures, in words.

    >>> then = {"threads": 2, "processor": "x86_64", "packages": {"torch": "2.4.0"}}
    >>> differences([then], {**then, "threads": 1})[0][:66]
    'threads: this run was at work on 2 threads and goes on on 1: other'
    """
    if not starts:
        return []
    last = starts[-1]
    words = []
    if last["threads"] != now["threads"]:
        words.append(
            f"threads: this run was at work on {last['threads']} threads and goes on on "
            f"{now['threads']}: other sums are formed in parallel, so that figures may differ from "
            "those of an uninterrupted run in their last bits"
        )
    for name in ("torch", "numpy"):
        old, new = last["packages"].get(name), now["packages"].get(name)
        if old != new:
            words.append(
                f"{name}: this run was at work with version {str(old)[:80]} and goes on with {new};"
                " figures may differ from those of an uninterrupted run in their last bits"
            )
    if last["processor"] != now["processor"]:
        words.append(
            f"processor: this run was at work on {last['processor'][:80]} and goes on on "
            f"{now['processor']}; figures may differ in their last bits"
        )
    return words
