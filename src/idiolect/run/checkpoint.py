"""Checkpoints: tensors in safetensors, the rest in JSON, each file hashed.

    checkpoints/seed-0/000100/
        server.safetensors, history.safetensors    states of the server's side
        host-0/private.safetensors, ...            written by each host itself
        checkpoint.json                            round, facts, SHA-256 of each file

A checkpoint is written beside the others and renamed; the previous one is kept. Nothing
executable is ever read. A folder whose hashes do not match is named and passed over for the one
before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..core.types import State

KEEP = 2
Writer = Callable[[Path], None]  # fills a folder


class CheckpointError(RuntimeError):
    """No checkpoint can be used; the message says which were tried and why."""


@dataclass(frozen=True)
class Checkpoint:
    """A sound checkpoint, read back."""

    round: int
    states: dict[str, State]
    facts: dict[str, Any]
    path: Path  # where folders written by others lie


def save(
    folder: Path,
    round: int,
    states: Mapping[str, State],
    facts: dict[str, Any],
    parts: Mapping[str, Writer] | None = None,
) -> Path:
    """Write a checkpoint atomically and drop all but the last two.

    `parts`: subfolders that others write themselves. On failure (a full disk) the earlier
    checkpoints are untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{round:06d}"
    temporary = folder / f".writing-{round:06d}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        for name, state in states.items():
            tensors = {n: t.contiguous() for n, t in state.items()}
            save_file(tensors, temporary / f"{name}.safetensors")
        for name, write in (parts or {}).items():
            write(temporary / name)
        body = {"round": round, "facts": facts, "sha256": _hashes(temporary)}
        record = temporary / "checkpoint.json"
        record.write_text(json.dumps({**body, "seal": _seal(body)}))
        for path in temporary.rglob("*"):
            _sync(path)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        _sync(folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        code = re.search(r"os error (\d+)", str(error))
        if isinstance(error, SafetensorError) and code:
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from None
        raise
    for old in found(folder)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def found(folder: Path) -> list[Path]:
    """Checkpoints in a folder, newest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.name.isdigit()), reverse=True)


def clear(folder: Path) -> None:
    """Remove what a killed run left half written."""
    for half in folder.glob(".writing-*"):
        shutil.rmtree(half, ignore_errors=True)


def load(folder: Path, warn: Callable[[str], None] | None = None) -> Checkpoint:
    """The newest sound checkpoint; a damaged one is named through `warn` and passed over."""
    problems = []
    for path in found(folder):
        try:
            return _read(path)
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            SafetensorError,
        ) as error:
            problems.append(f"{path}: {error}")
            if warn:
                warn(f"checkpoint {path} is damaged ({error}); trying the one before")
    listed = "".join(f"\n  {p}" for p in problems) or ": it has none"
    raise CheckpointError(f"no usable checkpoint in {folder}{listed}")


def _read(path: Path) -> Checkpoint:
    record = json.loads((path / "checkpoint.json").read_text())
    if record.pop("seal") != _seal(record):
        raise ValueError("checkpoint.json does not match its SHA-256")
    states: dict[str, State] = {}
    for name, expected in record["sha256"].items():
        file = path / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise ValueError(f"{name!r} does not lie in the checkpoint")
        if _sha256(file) != expected:
            raise ValueError(f"{name} does not match its SHA-256")
        if file.parent == path:
            states[file.stem] = load_file(file)
    return Checkpoint(int(record["round"]), states, record["facts"], path)


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): _sha256(p) for p in files}


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Make sure that a file or folder is on the disk, where the system offers that."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
