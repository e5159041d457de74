"""The directory of a run: one owner at a time, written file by file, each atomically.

It is private to its user, and read as what it is: something that may come from anyone. A link in
it is refused. The JSON files but `result.json` end with a SHA-256 of themselves, and one that does
not match is refused: see core/documents.py. Format 5 (`settings.json` has the number):

    settings.json      the run's id, and what must be the same on resume: method, run, data, model,
                       origin, code
    environment.json   starts, a list: versions, platform, threads, from which round
    metrics.csv        a row per seed and evaluated round
    clients.csv        a row per seed and client
    reliability.csv    with the metric calibration_error: a row per seed, client and bin
    subgroups.csv      where data have subgroups: a row per seed, model, subgroup, client and figure
    privacy-seed-0.log under privacy: the mechanism, and every round begun (see run/privacy_log.py)
    result.json        the summary that `--json` prints
    record.json        everything that `idiolect.load` gives back (see run/record.py)
    record.safetensors test accuracy of every client in every evaluated round
    checkpoints/       seed-0/000000000100-0/... (see run/checkpoint.py); seed-0-best/...: the best
                       round by validation data, with keep_best
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ..core.documents import expect_fields
from ..core.files import (
    lock_file,
    private_folder,
    private_opener,
    read_document,
    resume_command,
)
from ..core.knobs import SettingError
from ..core.scratch import PREFIX

FORMAT = 6
_HALF_WRITTEN = re.compile(r"\..+\.[a-z0-9]+\.[0-9]+-[0-9a-f]{8}")  # see core/files.py
_OF_A_RUN = ("settings.json", "record.json", "result.json", "metrics.csv", "checkpoints")


class RunDirectory:
    """Opened for one run: locked against a second one."""

    def __init__(self, path: Path | str, *, fresh: bool):
        self.path = Path(path)
        there = [name for name in _OF_A_RUN if os.path.lexists(self.path / name)]
        if fresh and "settings.json" in there:
            raise SettingError(
                f"directory: {self.path} already holds a run; choose another, "
                f"or continue it with: {resume_command(self.path)}"
            )
        if fresh and there:
            raise SettingError(
                f"directory: {self.path} has {there[0]} of an earlier run; "
                "choose another, or remove what is in it"
            )
        if not fresh and "settings.json" not in there:
            raise SettingError(f"directory: {self.path} holds no run (settings.json is missing)")
        try:
            if not self.path.is_dir():
                private_folder(self.path)
            refuse_links(self.path)
            self._lock = open(self.path / "lock", "a", opener=private_opener)  # noqa: SIM115
        except OSError as error:
            raise SettingError(
                f"directory: cannot write to {self.path}: {error.strerror or error}"
            ) from None
        if not lock_file(self._lock):
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
        for entry in self.path.iterdir():
            if entry.name.startswith(PREFIX) and entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif _HALF_WRITTEN.fullmatch(entry.name):
                entry.unlink(missing_ok=True)

    def checkpoints(self, seed: int, best: bool = False) -> Path:
        """Where a seed's checkpoints lie: the newest ones, or that of its best round."""
        return checkpoint_folder(self.path, seed, best)


def checkpoint_folder(path: Path, seed: int, best: bool = False) -> Path:
    """Where the checkpoints of a seed lie in a run directory.

    >>> checkpoint_folder(Path("run"), 3, best=True).as_posix()
    'run/checkpoints/seed-3-best'
    """
    return path / "checkpoints" / (f"seed-{seed}-best" if best else f"seed-{seed}")


def refuse_links(path: Path) -> None:
    """Refuse a directory in which anything is neither a file nor a folder itself."""
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            entry = Path(folder) / name
            mode = entry.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise SettingError(
                    f"directory: {entry} is a link or a device; a run has files and folders only"
                )


@cache
def version_of(package: str) -> str:
    """The version of a package as it is installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed as a package"


def environment() -> dict[str, Any]:
    """Software and hardware versions of this start."""
    names = ("idiolect", "torch", "numpy", "scikit-learn", "safetensors")
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "packages": {name: version_of(name) for name in names},
    }


_FIELDS = {
    "when": str,
    "python": str,
    "platform": str,
    "processor": str,
    "threads": int,
    "packages": dict[str, str],
    "code": dict[str, str],
    "from": dict[str, int],  # seed -> the round that it was resumed from
    "rounds": int,  # planned
}
_MOST_THREADS = 4096


def read_starts(path: Path) -> list[dict[str, Any]]:
    """The environments in a run directory, oldest first; a SettingError where they cannot be."""
    file = path / "environment.json"
    starts = read_document(file, dict[str, list[dict[str, Any]]]).get("starts")
    try:
        if not starts:
            raise ValueError("a list with the environment of every start is expected")
        for number, start in enumerate(starts):
            expect_fields(start, _FIELDS, {"rounds"}, place=f"[{number}]")
            if not 1 <= start["threads"] <= _MOST_THREADS:
                raise ValueError(f"threads must be a whole number from 1 to {_MOST_THREADS}")
    except ValueError as error:
        raise SettingError(f"directory: cannot use {file}: {error}") from None
    return starts


def differences(starts: list[dict[str, Any]], now: dict[str, Any]) -> list[str]:
    """What has changed since the last start and may change the last bits of figures: warnings.

    >>> then = {"threads": 2, "processor": "x86_64", "packages": {"torch": "2.4.0"}}
    >>> differences([then], {**then, "threads": 1})[0]
    'threads: resumed with 1 (was 2): sums may differ in the last bits'
    """
    if not starts:
        return []
    last = starts[-1]
    words = []
    if last["threads"] != now["threads"]:
        words.append(
            f"threads: resumed with {now['threads']} (was {last['threads']}): sums may differ in "
            "the last bits"
        )
    for name in ("torch", "numpy"):
        old, new = last["packages"].get(name), now["packages"].get(name)
        if old != new:
            words.append(
                f"{name}: resumed with version {new} (was {str(old)[:80]}): figures may differ in "
                "the last bits"
            )
    if last["processor"] != now["processor"]:
        words.append(
            f"processor: resumed on {now['processor']} (was {last['processor'][:80]}): figures may "
            "differ in the last bits"
        )
    return words
