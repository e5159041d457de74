"""A host's rows on disk, round by round: a process that was killed goes on from them.

    base-000000000012-5f0c93a1/private.safetensors, ...   all rows after so many rounds
    round-000000000013.safetensors                        the rows that the 13th has changed
    host.json                                             whose rows they are

What a round has changed is written when the round is concluded, as a file of its own that is whole
or not there. When such files have grown larger than the rows themselves, all rows are written anew
and the files go.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.files import (
    check_object,
    parse_json,
    private_folder,
    read_bytes,
    sync,
    write_json,
)
from ..core.tensors import Shapes, check_shapes, read_tensors, write_tensors
from ..core.types import State, prefixed, under
from .host import Host

_BASE = re.compile(r"base-([0-9]{12,18})-([0-9a-f]{8})")
_ROUND = re.compile(r"round-([0-9]{12,18})\.safetensors")
FACTS = "host.json"
MOST_FILES = 256  # of rounds, before all rows are written anew
LEAST_BYTES = 8 << 20  # of rounds, before they are


class Durable:
    """The rows of one host in a folder of its own.

    With `flush` every round has reached the disk before it counts as concluded, so that it survives
    a power cut; without, it survives the end of the process.
    """

    def __init__(self, host: Host, folder: Path, flush: bool = True):
        self.host = host
        self.folder = folder
        self.flush = flush
        self.version = -1  # the last round on disk
        self._since = 0  # bytes of rounds since all rows were written
        self._files = 0

    def load(self, begun: bool = False) -> int:
        """Take over what is on disk; the last round of it, -1 for a host that has none.

        `begun`: rows are known to exist. Not to find them is an error, so that nobody starts anew
        unnoticed.
        """
        private_folder(self.folder)
        facts = self._facts()
        path = self.folder / FACTS
        if path.exists():
            fields = dict.fromkeys(facts, int)
            if check_object(parse_json(read_bytes(path, 1 << 20)), fields) != facts:
                raise ValueError(f"{self.folder}: these are the rows of another run or clients")
        elif begun:
            raise ValueError(f"{self.folder}: the rows of this host are not here, and they existed")
        else:
            write_json(path, facts)
        bases = self._found(_BASE)
        for version, base in bases[-1:]:
            self.host.load(base)
            self.version = version
        for version, file in self._found(_ROUND):
            if version > self.version:
                self._apply(version, file)
                self._since += file.stat().st_size
                self._files += 1
        self._clear(bases[-1][0] if bases else -1, bases[-1:] and bases[-1][1])
        return self.version

    def concluded(self, version: int) -> None:
        """Write what this round has left of the rows."""
        tensors: State = {}
        for name, store in self.host.stores().items():
            ids, rows = store.written(version)
            if len(ids) and rows:
                tensors |= prefixed({"ids": ids, **prefixed(rows, "rows.")}, f"{name}:")
        if not tensors:
            return
        file = self.folder / f"round-{version + 1:012d}.safetensors"
        temporary = self.folder / f".{file.name}.{secrets.token_hex(4)}"
        write_tensors(temporary, tensors)
        if self.flush:
            sync(temporary)
        os.replace(temporary, file)
        if self.flush:
            sync(self.folder)
        self.version = version
        self._since += file.stat().st_size
        self._files += 1
        if self._files > MOST_FILES or self._since > max(LEAST_BYTES, 2 * self.host.most_bytes()):
            self.rewrite(version)

    def rewrite(self, version: int) -> None:
        """All rows anew; what was written of single rounds goes."""
        final = self.folder / f"base-{version + 1:012d}-{secrets.token_hex(4)}"
        temporary = self.folder / f".{final.name}"
        self.host.save(temporary)
        for path in sorted(temporary.iterdir()):
            sync(path)
        os.replace(temporary, final)
        sync(self.folder)
        self._clear(version, final)
        self.version = version
        self._since = self._files = 0

    def reset(self, version: int) -> None:
        """The host was put back to its rows after this round: later ones are void."""
        for at, path in [*self._found(_BASE), *self._found(_ROUND)]:
            if at > version:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.rewrite(version)

    # -- inside ----------------------------------------------------------------------------------
    def _apply(self, version: int, file: Path) -> None:
        stores = self.host.stores()

        def check(shapes: Shapes) -> None:
            for name in shapes:
                if name.partition(":")[0] not in stores:
                    raise ValueError(f"{file.name}: {name[:80]!r} is no part of this host's rows")

        tensors = read_tensors(file, check)
        for name, store in stores.items():
            part = under(tensors, f"{name}:")
            if part:
                ids = part.pop("ids", torch.zeros(0))
                check_shapes({"ids": (tuple(ids.shape), ids.dtype)}, {"ids": _ids(ids)})
                store.put(ids, version, under(part, "rows."))
        self.version = version

    def _facts(self) -> dict[str, Any]:
        contract = self.host.contract
        ids = zlib.crc32(self.host.wire_ids.numpy().tobytes())
        names = zlib.crc32(self.host.keys.tobytes())
        found = {"run": contract.run, "contract": contract.checksum}
        return {**found, "clients": len(self.host.wire_ids), "wire_ids": ids, "names": names}

    def _found(self, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
        """Files or folders of this form, by the version of their round."""
        named = [(pattern.fullmatch(p.name), p) for p in self.folder.iterdir()]
        return sorted((int(match[1]) - 1, path) for match, path in named if match)

    def _clear(self, version: int, base: Path | Any) -> None:
        """Remove what is older than these rows, and what was never finished."""
        for at, path in [*self._found(_BASE), *self._found(_ROUND)]:
            if path != base and at <= version:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in self.folder.glob(".*"):
            if path.name.startswith((".base-", ".round-")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _ids(ids: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return (ids.numel(),), torch.int64
