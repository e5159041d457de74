"""Paths as users give them: whatever cannot be one is refused by name."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from .knobs import SettingError


def given_path(text: str, field: str) -> Path:
    """A path with its "~" expanded; it need not exist.

    >>> given_path("a\\0b", "path")
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: path: 'a\\x00b' is not accepted: embedded null byte
    """
    try:
        if "\0" in text:
            raise ValueError("embedded null byte")
        path = Path(text).expanduser()
        os.fsencode(path)  # not every locale has every character
        path.exists()  # a name that is too long is an error here
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"{field}: {text!r} is not accepted: {reason}") from None
    return path


def given_folder(text: str, field: str) -> Path:
    """A folder that is there, or could be made: nothing else has its name or that of a parent."""
    path = given_path(text, field)
    for place in (path, *path.parents):
        if os.path.lexists(place):
            if not place.is_dir():
                raise SettingError(
                    f"{field}: {text!r} is not accepted: {str(place)!r} is not a folder"
                )
            break
    return path


def resume_command(directory: Path) -> str:
    """The command that continues a run, ready to be pasted.

    >>> resume_command(Path("my run"))
    "idiolect resume 'my run'"
    """
    return f"idiolect resume {shlex.quote(str(directory))}"
