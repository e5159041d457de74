"""The directory of a run: one owner at a time, written file by file, each atomically.

Format 2 (`settings.json` has the number):

    settings.json      what must be the same on resume: method, run, data, model, origin
    environment.json   versions, platform, threads
    metrics.csv        a row per seed and evaluated round
    clients.csv        a row per seed and client
    result.json        the summary that `--json` prints
    record.json        everything that `idiolect.load` gives back (see run/record.py)
    record.safetensors test accuracy of every client in every evaluated round
    checkpoints/       seed-0/000100/... (see run/checkpoint.py)
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import torch

from ..core.knobs import SettingError
from ..core.text import csv_cell

FORMAT = 2


class RunDirectory:
    """Opened for one run: locked against a second one."""

    def __init__(self, path: Path | str, *, fresh: bool):
        self.path = Path(path)
        if fresh and (self.path / "settings.json").exists():
            raise SettingError(
                f"directory: {self.path} already holds a run; choose another, "
                f"or continue it with: idiolect resume {self.path}"
            )
        if not fresh and not (self.path / "settings.json").exists():
            raise SettingError(f"directory: {self.path} holds no run (settings.json is missing)")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / "lock").open("a")
        except OSError as error:
            raise SettingError(
                f"directory: cannot write to {self.path}: {error.strerror}"
            ) from None
        if not _locked(self._lock):
            self._lock.close()
            raise SettingError(
                f"directory: {self.path} is in use by another run; "
                "wait for it, or choose another directory"
            )

    def close(self) -> None:
        self._lock.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def clear(self) -> None:
        """Remove what a killed run left behind: half-written files, private rows on the disk."""
        for pattern in ("idiolect-rows-*", ".*.json.*", ".*.csv.*", ".*.safetensors.*"):
            for left in self.path.glob(pattern):
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)

    def checkpoints(self, seed: int) -> Path:
        """Where a seed's checkpoints lie."""
        return self.path / "checkpoints" / f"seed-{seed}"

    def write_json(self, name: str, value: Any) -> None:
        self.write(name, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())

    def read_json(self, name: str) -> Any:
        return read_json(self.path / name)

    def write_csv(self, name: str, rows: list[dict[str, Any]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows({k: csv_cell(v) for k, v in row.items()} for row in rows)
        self.write(name, text.getvalue().encode())

    def write(self, name: str, content: bytes) -> None:
        """A whole file, or none of it."""
        temporary = self.path / f".{name}.{os.getpid()}"
        try:
            temporary.write_bytes(content)
            os.replace(temporary, self.path / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def read_json(path: Path) -> Any:
    """The content of a JSON file, or a SettingError that names it."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingError(f"directory: cannot read {path}: {error}") from None


def _locked(file: IO[str]) -> bool:
    """Lock a file for this process, where the system can; False if another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def environment() -> dict[str, Any]:
    """What a figure may depend on beside the settings."""
    packages = {}
    for name in ("idiolect", "torch", "numpy", "scikit-learn", "safetensors"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            packages[name] = "not installed as a package"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "packages": packages,
    }
