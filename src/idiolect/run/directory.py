"""The directory of a run: settings, environment, metrics, checkpoints, result; one owner at a time."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ..core.knobs import SettingError


class RunDirectory:
    """Opened for one run: locked against a second one, written file by file atomically."""

    def __init__(self, path: Path | str, *, fresh: bool):
        self.path = Path(path)
        if fresh and (self.path / "settings.json").exists():
            raise SettingError(
                f"directory: {self.path} already holds a run; choose another, or continue it with: idiolect resume {self.path}"
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
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise SettingError(
                f"directory: {self.path} is in use by another run; wait for it, or choose another directory"
            ) from None

    def close(self) -> None:
        self._lock.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def clear(self) -> None:
        """Remove what a killed run left behind: files half written, private rows it had moved to the disk."""
        for left in (
            *self.path.glob("idiolect-rows-*"),
            *self.path.glob(".*.json.*"),
            *self.path.glob(".*.csv.*"),
        ):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(
                missing_ok=True
            )

    def checkpoints(self, seed: int) -> Path:
        return self.path / "checkpoints" / f"seed-{seed}"

    def write_json(self, name: str, value: Any) -> None:
        self._write(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise SettingError(f"directory: cannot read {self.path / name}: {error}") from None

    def write_csv(self, name: str, rows: list[dict[str, Any]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
        self._write(name, text.getvalue())

    def _write(self, name: str, text: str) -> None:
        temporary = self.path / f".{name}.{os.getpid()}"
        try:
            temporary.write_text(text)
            os.replace(temporary, self.path / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


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
