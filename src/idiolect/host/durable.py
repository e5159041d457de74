"""A host's rows on disk, round by round: a killed process resumes from them.

    base-000000000012-00000003/private.safetensors, ...   all rows after that many rounds
    round-000000000013.safetensors                        the rows that the 13th has changed
    down-000000000013.safetensors                         the message that it began with
    host.json                                             whose rows they are

What a round has changed is written when the round is concluded, as a file of its own that is whole
or not there. When such files have grown larger than the rows themselves, all rows are rewritten.
What that replaces is kept until the next rewriting, so that the last round can always be
taken back. Every file has a checksum of its content, and every round names the one before it.
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

from ..core.documents import decode, expect_fields
from ..core.files import parse_json, private_folder, read_bytes, sync, write_json
from ..core.tensors import Shapes, read_tensors, write_tensors
from ..core.types import State, prefixed, under
from ..wire.messages import DownMessage
from .calls import as_bytes, as_tensor
from .host import Host

_BASE = re.compile(r"base-([0-9]{12,18})-([0-9a-f]{8,16})")
_ROUND = re.compile(r"round-([0-9]{12,18})\.safetensors")
_DOWN = re.compile(r"down-([0-9]{12,18})\.safetensors")
_HALF_WRITTEN = re.compile(r"\.((base|round|down|gone)-|host\.json\.).+")
FACTS = "host.json"
SUMS = "checksums.json"  # of the files of a base
MOST_FILES = 256  # of rounds, before all rows are rewritten
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

        `begun`: rows are known to exist. Missing rows are an error, so that no client starts afresh
        unnoticed.
        """
        private_folder(self.folder)
        if begun or (self.folder / FACTS).exists():
            self._check_facts()
        elif self._found(_BASE) or self._found(_ROUND):
            raise ValueError(f"{self.folder}: there are rows here, and {FACTS} is missing")
        else:
            write_json(self.folder / FACTS, self._facts())
        self._remove_half_written()
        self._restore(None)
        bases = self._found(_BASE)
        if len(bases) > 2:
            self._clear(bases[-2][0])
        return self.version

    def peek(self) -> int:
        """As `load(begun=True)`, of rows that another process may be at work with.

        Nothing on disk is changed. What that process replaces meanwhile is a FileNotFoundError.
        """
        self._check_facts()
        self._restore(None)
        return self.version

    def concluded(self, version: int) -> None:
        """Write all rows that were changed since the last round on disk; this one is the last."""
        if version <= self.version:
            raise ValueError(f"round {version} is not later than {self.version}, which is on disk")
        self._append(
            version, {n: store.newer(self.version) for n, store in self.host.stores().items()}
        )

    def arrived(self, rows: Tensor) -> None:
        """Write the rows of these clients, where each arrives by itself: the next in a sequence."""
        self._append(self.version + 1, dict.fromkeys(self.host.stores(), rows))

    def _append(self, version: int, changed: dict[str, Tensor]) -> None:
        tensors: State = {"before": torch.tensor([self.version])}
        for name, store in self.host.stores().items():
            ids = changed[name]
            rows = store.read(ids) if len(ids) else {}
            if rows:
                part = {"ids": ids.clone(), "rounds": store.version[ids], **prefixed(rows, "rows.")}
                tensors |= prefixed(part, f"{name}:")
        file = self._write(f"round-{version + 1:012d}.safetensors", tensors)
        self.version = version
        self._since += file.stat().st_size
        self._files += 1
        if self._files > MOST_FILES or self._since > max(LEAST_BYTES, 2 * self.host.most_bytes()):
            self.rewrite(version)

    def back(self, version: int) -> None:
        """Rows as they were before this round, which is the last one on disk; it is forgotten."""
        if version != self.version:
            raise ValueError(
                f"round {version} cannot be taken back; {self.version} is the last on disk"
            )
        last = [path for at, path in self._found(_ROUND) if at == version]
        if not last:
            raise ValueError(f"round {version} cannot be taken back; rows before it are not kept")
        earlier_version = int(self._read(last[0], ("before", *self.host.stores()))["before"])
        self._restore(version)
        if self.version != earlier_version:
            self._restore(None)
            raise ValueError(f"round {version} cannot be taken back; rows before it are not kept")
        # all rows as of this round go before what it changed: whenever this ends, and however,
        # what is left is the one or the other
        for pattern in (_BASE, _ROUND):
            for at, path in reversed(self._found(pattern)):
                if at >= version:
                    self._remove(path)

    def rewrite(self, version: int) -> None:
        """Rewrite all rows; files of rounds before the previous rewriting are deleted."""
        earlier = self._found(_BASE)
        number = 1 + max((_number(path) for _, path in earlier), default=0)
        final = self.folder / f"base-{version + 1:012d}-{number:08x}"
        temporary = self.folder / f".{final.name}.{secrets.token_hex(4)}"
        self.host.save(temporary)
        files = sorted(temporary.iterdir())
        write_json(temporary / SUMS, {path.name: _crc_of(path) for path in files})
        for path in files:
            sync(path)
        sync(temporary)
        os.replace(temporary, final)
        sync(self.folder)
        self.version = version
        self._since = self._files = 0
        if earlier:
            self._clear(earlier[-1][0])

    def reset(self, version: int) -> None:
        """The host was put back to its rows after this round: all others are void."""
        for pattern in (_BASE, _ROUND):
            for at, path in reversed(self._found(pattern)):
                if at > version:
                    self._remove(path)
        self.rewrite(version)
        newest = self._found(_BASE)[-1][1]
        for pattern in (_BASE, _ROUND, _DOWN):
            for _, path in reversed(self._found(pattern)):
                if path != newest:
                    self._remove(path)

    # -- the last message down -------------------------------------------------------------------
    def keep_down(self, version: int, message: DownMessage) -> None:
        """The message that a round, or an evaluation, begins with: personal models need it."""
        name = f"down-{version + 1:012d}.safetensors"
        own = {"own": torch.from_numpy(message.own), "wire_ids": message.wire_ids}
        tensors = {"down": as_tensor(message.common), **(own if message.own.size else {})}
        self._write(name, tensors)
        for at, path in self._found(_DOWN):
            if at != version and at != version - 1:
                self._remove(path)

    def last_down(self) -> tuple[int, DownMessage] | None:
        """The newest one that goes with the rows, and its version; None before the first."""
        fits = [(at, path) for at, path in self._found(_DOWN) if at <= self.version + 1]
        if not fits:
            return None
        version, path = fits[-1]
        tensors = self._read(path, ("down", "own", "wire_ids"))
        common = as_bytes(tensors["down"])
        if "own" not in tensors:
            return version, DownMessage(common)
        return version, DownMessage(common, tensors["wire_ids"], tensors["own"].numpy())

    # -- inside ----------------------------------------------------------------------------------
    def _restore(self, before: int | None) -> None:
        """Rows as they are on disk, or as they were before a round."""
        bases = [b for b in self._found(_BASE) if before is None or b[0] < before]
        self.version = -1
        self._since = self._files = 0
        if bases:
            version, base = bases[-1]
            self._check_base(base)
            self.host.load(base)
            self.version = version
        else:
            for store in self.host.stores().values():
                store.forget()
        for version, file in self._found(_ROUND):
            if version > self.version and (before is None or version < before):
                self._apply(version, file)
                self._since += file.stat().st_size
                self._files += 1

    def _apply(self, version: int, file: Path) -> None:
        stores = self.host.stores()
        tensors = self._read(file, ("before", *stores))
        came_after = int(tensors["before"]) if tensors["before"].numel() == 1 else -2
        if came_after != self.version:
            raise ValueError(
                f"{file.name}: it continues from round {came_after}, and the rows here are of "
                f"{self.version}: a file is missing"
            )
        for name, store in stores.items():
            part = under(tensors, f"{name}:")
            if part:
                ids = part.pop("ids", torch.zeros(0))
                if ids.dtype != torch.int64 or ids.dim() != 1 or bool((ids.diff() <= 0).any()):
                    raise ValueError(f"{file.name}: ids must be increasing whole numbers")
                try:
                    store.put(ids, part.pop("rounds", ids[:0]), under(part, "rows."))
                except ValueError as error:
                    raise ValueError(f"{file.name}: {error}") from None
        self.version = version

    def _write(self, name: str, tensors: State) -> Path:
        """A file with a checksum of its content, whole or not there."""
        file = self.folder / name
        temporary = self.folder / f".{name}.{secrets.token_hex(4)}"
        write_tensors(temporary, {**tensors, "checksum": torch.tensor([_crc(tensors)])})
        if self.flush:
            sync(temporary)
        os.replace(temporary, file)
        if self.flush:
            sync(self.folder)
        return file

    def _read(self, file: Path, part_names: tuple[str, ...]) -> State:
        """The inverse: only parts of these names."""

        def check(shapes: Shapes) -> None:
            for name in shapes:
                if name.partition(":")[0] not in (*part_names, "checksum"):
                    raise ValueError(f"{name[:80]!r} is no part of this host's rows")
            for name in {"checksum", part_names[0]} - shapes.keys():
                raise ValueError(f"{name!r} is missing")

        tensors = read_tensors(file, check)
        checksum = tensors.pop("checksum")
        if checksum.numel() != 1 or int(checksum) != _crc(tensors):
            raise ValueError(f"{file.name}: it is damaged: its content is not what was written")
        return tensors

    def _check_base(self, base: Path) -> None:
        checksums = decode(parse_json(read_bytes(base / SUMS, 1 << 20)), dict[str, Any])
        for name in self.host.stores():
            if checksums.get(name) != _crc_of(base / name):
                raise ValueError(f"{base.name}/{name}: it is damaged, or not what was written")

    def _check_facts(self) -> None:
        facts = self._facts()
        path = self.folder / FACTS
        if not path.exists():
            raise ValueError(f"{self.folder}: the rows of this host are not here, and they existed")
        try:
            saved_facts = expect_fields(
                parse_json(read_bytes(path, 1 << 20)), dict.fromkeys(facts, int)
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if saved_facts != facts:
            raise ValueError(f"{self.folder}: these are the rows of another run or clients")

    def _facts(self) -> dict[str, Any]:
        contract = self.host.contract
        ids = zlib.crc32(self.host.wire_ids.numpy().tobytes())
        names = zlib.crc32(self.host.keys.tobytes())
        run_facts = {"run": contract.run, "contract": contract.checksum}
        return {**run_facts, "clients": len(self.host.wire_ids), "wire_ids": ids, "names": names}

    def _found(self, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
        """Files or folders of this form, by the version of their round; the newest is the last."""
        named = [(pattern.fullmatch(p.name), p) for p in self.folder.iterdir()]
        entries = [(int(match[1]) - 1, path) for match, path in named if match]
        return sorted(entries, key=lambda f: (f[0], _number(f[1])))

    def _clear(self, base: int) -> None:
        """Remove what is older than the rows of this base; it stays itself."""
        for at, path in self._found(_BASE):
            if at < base:
                self._remove(path)
        for at, path in self._found(_ROUND):
            if at <= base:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """A folder is gone at once, too: it has no name any more while its files go."""
        if path.is_dir():
            trash = self.folder / f".gone-{path.name}.{secrets.token_hex(4)}"
            os.replace(path, trash)
            shutil.rmtree(trash)
        else:
            path.unlink()

    def _remove_half_written(self) -> None:
        for path in self.folder.iterdir():
            if _HALF_WRITTEN.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def rounds_on_disk(folder: Path) -> int:
    """How many rounds the rows in a folder are of, by the names of its files."""
    return max(versions_on_disk(folder), default=-1) + 1


def versions_on_disk(folder: Path) -> list[int]:
    """The rounds that the files in a folder are of, increasing, by their names."""
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    matches = [m for name in names for m in (_BASE.fullmatch(name), _ROUND.fullmatch(name)) if m]
    return sorted({int(match[1]) - 1 for match in matches})


def _number(path: Path) -> int:
    """Which of several bases of one version is the newest."""
    match = _BASE.fullmatch(path.name)
    return int(match[2], 16) if match else 0


def _crc(tensors: State) -> int:
    """A checksum of names and values."""
    crc = 0
    for name, t in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {t.dtype} {tuple(t.shape)}".encode(), crc)
        crc = zlib.crc32(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, crc)
    return crc


def _crc_of(path: Path) -> int:
    """The same of a file."""
    crc = 0
    with open(path, "rb") as file:
        while piece := file.read(1 << 22):
            crc = zlib.crc32(piece, crc)
    return crc
