"""Checkpoints: tensors in safetensors, the rest in JSON, each file hashed; written beside and renamed, the previous one kept.

    checkpoints/000100/{server,private,history}.safetensors, checkpoint.json (round, facts, SHA-256 of each file)

Nothing executable is ever read. A folder whose hashes do not match is named and passed over for the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ..core.types import State

KEEP = 2


class CheckpointError(RuntimeError):
    """No checkpoint can be used; the message says which were tried and why."""


def save(folder: Path, round: int, states: dict[str, State], facts: dict[str, Any]) -> Path:
    """Write a checkpoint atomically and drop all but the last two. On failure (a full disk) the earlier ones are untouched."""
    folder.mkdir(parents=True, exist_ok=True)
    final, temporary = folder / f"{round:06d}", folder / f".writing-{round:06d}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        hashes = {}
        for name, state in states.items():
            path = temporary / f"{name}.safetensors"
            save_file({n: t.contiguous() for n, t in state.items()}, path)
            hashes[path.name] = _sha256(path)
            _sync(path)
        body = {"round": round, "facts": facts, "sha256": hashes}
        record = temporary / "checkpoint.json"
        record.write_text(json.dumps({**body, "seal": _seal(body)}))
        _sync(record)
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        _sync(folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, SafetensorError) and (
            code := re.search(r"os error (\d+)", str(error))
        ):
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from None
        raise
    for old in found(folder)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def found(folder: Path) -> list[Path]:
    """Checkpoints in a folder, newest first."""
    return (
        sorted((p for p in folder.iterdir() if p.name.isdigit()), reverse=True)
        if folder.is_dir()
        else []
    )


def clear(folder: Path) -> None:
    """Remove what a killed run left half written."""
    for half in folder.glob(".writing-*"):
        shutil.rmtree(half, ignore_errors=True)


def load(folder: Path, warn: Any = None) -> tuple[int, dict[str, State], dict[str, Any]]:
    """The newest sound checkpoint: (round, states, facts). A damaged one is named through `warn` and the previous one used."""
    problems = []
    for path in found(folder):
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            problems.append(f"{path}: {error}")
            if warn:
                warn(f"checkpoint {path} is damaged ({error}); trying the one before")
    raise CheckpointError(
        "no usable checkpoint in "
        + str(folder)
        + ("".join(f"\n  {p}" for p in problems) or ": it has none")
    )


def _read(path: Path) -> tuple[int, dict[str, State], dict[str, Any]]:
    record = json.loads((path / "checkpoint.json").read_text())
    if record.pop("seal") != _seal(record):
        raise ValueError("checkpoint.json does not match its SHA-256")
    states = {}
    for name, expected in record["sha256"].items():
        file = path / Path(name).name
        if _sha256(file) != expected:
            raise ValueError(f"{file.name} does not match its SHA-256")
        states[file.stem] = load_file(file)
    return int(record["round"]), states, record["facts"]


def _seal(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
