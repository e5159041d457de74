"""Checkpoints: tensors in safetensors, the rest in JSON, each file hashed, each bound to its run.

    checkpoints/seed-0/000000000100-0/
        server.safetensors                         state of the server's side
        host-0/private.safetensors, ...            written by each host itself
        checkpoint.json                            round, whose it is, facts, SHA-256 of each file

The name is the round and a generation: a round that is saved again gets the next one. A checkpoint
is written beside the others under another name, reaches the disk, and is renamed; only then are
older ones removed, but for the newest of an earlier round. So there is always a complete one. A
folder whose hashes do not match is named and passed over for the one before; one that belongs to
another run, seed or settings is refused. Nothing executable is ever read, and no link is followed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core.documents import checksum, decode
from ..core.files import (
    check_regular,
    parse_json,
    private_folder,
    read_bytes,
    sha256_of,
    sync,
    write_atomic,
)
from ..core.tensors import HEADER, Shapes, read_tensors, write_tensors
from ..core.types import State

RECORD = "checkpoint.json"
Writer = Callable[[Path], None]  # fills a folder

_NAME = re.compile(r"([0-9]{12,18})-([0-9]{1,9})")
_WRITING = ".writing-"
_FILE = re.compile(r"[a-z]+\.safetensors|[a-z]+-[0-9]{1,9}/[a-z]+\.safetensors")
_FILES = 100_000  # in a checkpoint, at most
_MOST_JSON = 1 << 30  # bytes of checkpoint.json: it holds a line per evaluated round


class CheckpointError(RuntimeError):
    """No checkpoint can be used; the message says which were tried and why."""

    several_lines = True  # of its message, each shown as text


@dataclass(frozen=True)
class Bound:
    """Whose a checkpoint is. One of anybody else is refused."""

    run: str  # the run's id
    seed: int
    settings: str  # SHA-256 of settings.json
    contract: int  # the contract's checksum


@dataclass(frozen=True)
class Checkpoint:
    """A sound checkpoint: its hashes match. What is in it is read, and checked, when asked for."""

    round: int
    facts: dict[str, Any]
    path: Path  # where folders written by others lie

    def read(self, name: str, check: Callable[[Shapes], None]) -> State:
        """The tensors of one state; `check` sees their names, shapes and dtypes first."""
        return read_tensors(self.path / f"{name}.safetensors", check)

    @contextmanager
    def refused_on_error(self) -> Iterator[None]:
        """What does not fit the run is a CheckpointError that names this checkpoint."""
        try:
            yield
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"checkpoint {self.path} is refused: {error}; remove it to continue without it"
            ) from None


def save(
    folder: Path,
    bound: Bound,
    round_number: int,
    states: Mapping[str, State],
    facts: dict[str, Any],
    parts: Mapping[str, Writer] | None = None,
) -> Path:
    """Write a checkpoint atomically, then drop older ones but for that of the round before.

    `parts`: subfolders that others write themselves. On failure (a full disk) the earlier
    checkpoints are untouched.
    """
    private_folder(folder)
    final = folder / _next_name(folder, round_number)
    temporary = folder / f"{_WRITING}{final.name}-{secrets.token_hex(4)}"
    try:
        private_folder(temporary)
        for name, state in states.items():
            write_tensors(temporary / f"{name}.safetensors", state)
        for name, write in (parts or {}).items():
            write(temporary / name)
        hashes = {name: sha256_of(temporary / name) for name in _files(temporary)}
        record = _Record(bound, round_number, facts, hashes, "")
        text = json.dumps({**record.body(), "seal": record.computed_seal()})
        for path in sorted(temporary.rglob("*"), reverse=True):  # what is in a folder before it
            sync(path)
        write_atomic(temporary / RECORD, text.encode())
        os.replace(temporary, final)
        sync(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    older = [path for path in newest_first(folder) if _number(path) < _number(final)]
    previous = [path for path in older if _number(path)[0] < round_number][:1]
    for path in older:
        if path not in previous:
            shutil.rmtree(path, ignore_errors=True)
    return final


def newest_first(folder: Path) -> list[Path]:
    """Checkpoints in a folder, newest first."""
    if not folder.is_dir():
        return []
    named = [p for p in folder.iterdir() if _NAME.fullmatch(p.name)]
    return sorted(named, key=_number, reverse=True)


def rounds_done(folder: Path) -> int:
    """The round of the newest checkpoint in a folder, by its name; 0 where there is none."""
    return max((_number(path)[0] for path in newest_first(folder)), default=0)


def recover(folder: Path) -> None:
    """Tidy up after a killed run: a checkpoint that is whole gets its name, a half one goes."""
    for path in sorted(folder.glob(f"{_WRITING}*")):
        name = path.name.removeprefix(_WRITING).rpartition("-")[0]
        try:
            if not _NAME.fullmatch(name) or (folder / name).exists():
                raise ValueError("it has no name to be given")
            _check_hashes(path, _record(path))
            os.replace(path, folder / name)
            sync(folder)
        except (OSError, ValueError):
            shutil.rmtree(path, ignore_errors=True)


def load(
    folder: Path,
    bound: Bound,
    rounds: int,
    most_bytes: int,
    warn: Callable[[str], None] | None = None,
) -> Checkpoint:
    """The newest sound checkpoint; a damaged one is named through `warn` and passed over.

    One that is not bound to this run, or is beyond its `rounds`, or takes more than `most_bytes`
    beside its headers, is refused by a CheckpointError that names it.
    """
    problems = []
    for path in newest_first(folder):
        try:
            record = _record(path)
        except (OSError, ValueError) as error:
            problems.append(_damaged(path, error, warn))
            continue
        _check_bound(path, record, bound, rounds, most_bytes)
        try:
            _check_hashes(path, record)
        except (OSError, ValueError) as error:
            problems.append(_damaged(path, error, warn))
            continue
        return Checkpoint(record.round, record.facts, path)
    listed = "".join(f"\n  {p}" for p in problems) or ": it has none"
    raise CheckpointError(f"no usable checkpoint in {folder}{listed}")


def _damaged(path: Path, error: Exception, warn: Callable[[str], None] | None) -> str:
    if warn:
        warn(f"checkpoint {path} is damaged ({error}); trying the one before")
    return f"{path}: {error}"


@dataclass(frozen=True)
class _Record:
    """What checkpoint.json says."""

    bound: Bound
    round: int
    facts: dict[str, Any]
    sha256: dict[str, str]  # of each file
    seal: str  # SHA-256 of all the above

    def body(self) -> dict[str, Any]:
        """What is sealed."""
        own = {"bound": asdict(self.bound), "round": self.round, "facts": self.facts}
        return own | {"sha256": self.sha256}

    def computed_seal(self) -> str:
        return checksum(self.body())


def _record(path: Path) -> _Record:
    """What checkpoint.json says, if it is whole and of the right form."""
    if path.is_symlink() or not path.is_dir():
        raise ValueError("it is not a folder itself (links are refused)")
    record: _Record = decode(parse_json(read_bytes(path / RECORD, _MOST_JSON)), _Record)
    if record.seal != record.computed_seal():
        raise ValueError(f"{RECORD} does not match its SHA-256")
    if len(record.sha256) > _FILES:
        raise ValueError(f"{RECORD} names {len(record.sha256)} files; at most {_FILES}")
    for name in record.sha256:
        if not _FILE.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is not a file of a checkpoint")
    return record


def _check_bound(path: Path, record: _Record, bound: Bound, rounds: int, most_bytes: int) -> None:
    """Refuse a checkpoint that is not this run's."""
    theirs = record.bound
    wrong = ""
    if theirs.run != bound.run:
        wrong = "it belongs to another run"
    elif theirs.seed != bound.seed:
        wrong = f"it belongs to seed {theirs.seed}, not to seed {bound.seed}"
    elif theirs.settings != bound.settings:
        wrong = "settings.json is not the one it was made under (has it been edited?)"
    elif theirs.contract != bound.contract:
        wrong = "it was made under another contract of method, model and channel"
    elif not 0 <= record.round <= rounds or record.round != _number(path)[0]:
        wrong = f"it is of round {record.round}, and the run has {rounds}"
    if not wrong:
        room = most_bytes + HEADER * (1 + len(record.sha256))
        size = sum(_size(path / name) for name in record.sha256)
        if size > room:
            wrong = f"it has {size} bytes, more than this run writes"
    if wrong:
        raise CheckpointError(
            f"checkpoint {path} is refused: {wrong}; remove it to continue without it"
        )


def _check_hashes(path: Path, record: _Record) -> None:
    """Every file is as it was written, and there is no other."""
    if set(_files(path)) != record.sha256.keys() | {RECORD}:
        raise ValueError("a file is missing, or there is another one")
    for name, expected in record.sha256.items():
        if sha256_of(path / name) != expected:
            raise ValueError(f"{name} does not match its SHA-256")


def _files(folder: Path) -> list[str]:
    """The files of a checkpoint; ValueError for whatever is neither a file nor a folder itself."""
    names = []
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISDIR(mode):
            check_regular(path)
            names.append(path.relative_to(folder).as_posix())
    return names


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0  # missing: the hashes show it


def _number(path: Path) -> tuple[int, int]:
    """Round and generation in a checkpoint's name."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2])) if match else (-1, -1)


def _next_name(folder: Path, round_number: int) -> str:
    numbers = [number for at, number in map(_number, newest_first(folder)) if at == round_number]
    return f"{round_number:012d}-{max(numbers, default=-1) + 1}"
