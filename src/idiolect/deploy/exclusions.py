"""Sites that were put out of a run: a file each in its directory, put-out/NODE.json.

The server writes one when it happens, and reads them when it starts, so that they stay out after a
restart. `idiolect deploy readmit` removes one; the server takes note before its next round.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from ..core.documents import encode
from ..core.files import on_disk, private_folder, read_document, sync, write_document
from ..core.knobs import SettingError

FOLDER = "put-out"
MOST = 1 << 16  # bytes of a file


@dataclass(frozen=True)
class Exclusion:
    """A site that was put out."""

    site: str
    node: str  # as a text: not all JSON has 64 bits
    reason: str
    time: float = field(default_factory=time.time)  # seconds since 1970


class Exclusions:
    """Those of a run, on disk."""

    def __init__(self, directory: Path):
        self.folder = directory / FOLDER
        self._nodes: set[int] = set()  # whose files this process has read or written

    def read(self) -> list[Exclusion]:
        """All of them; SettingError names a file that is not one."""
        exclusions = [
            read_document(path, Exclusion, limit=MOST)
            for path in sorted(self.folder.glob("*.json"))
        ]
        for exclusion in exclusions:
            path = self.folder / f"{exclusion.node}.json"
            if not exclusion.node.isdecimal() or not path.exists():
                raise SettingError(
                    f"directory: cannot use {self.folder}: node must be that of its file, got "
                    f"{exclusion.node[:40]!r}"
                )
        self._nodes = {int(exclusion.node) for exclusion in exclusions}
        return exclusions

    def add(self, site: str, node: int, reason: str) -> None:
        """On disk when this returns; a full disk ends no run, and the site is out without it."""
        with on_disk(f"that {site} is put out", None, any_error=True):
            private_folder(self.folder)
            write_document(self._path(node), encode(Exclusion(site, str(node), reason)))
            self._nodes.add(node)

    def remove(self, node: int) -> None:
        """Not put out any more."""
        self._nodes.discard(node)
        if self._path(node).exists():
            self._path(node).unlink()
            sync(self.folder)

    def readmitted(self) -> set[int]:
        """Nodes whose files somebody else has removed since the last call."""
        nodes = {node for node in self._nodes if not self._path(node).exists()}
        self._nodes -= nodes
        return nodes

    def _path(self, node: int) -> Path:
        return self.folder / f"{node}.json"


def readmit(directory: Path, name: str) -> None:
    """Take a site back into a run; SettingError names who is put out."""
    exclusions = Exclusions(directory)
    out = exclusions.read()
    nodes = [int(exclusion.node) for exclusion in out if exclusion.site == name]
    if not nodes:
        names = ", ".join(sorted({exclusion.site for exclusion in out})) or "nobody"
        raise SettingError(f"name must be that of a site that is put out ({names}), got {name!r}")
    for node in nodes:
        exclusions.remove(node)
