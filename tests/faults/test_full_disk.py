"""A full disk under private rows that are in files: a clear message, and a run that goes on."""

import errno
import gc
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import idiolect as il
from helpers import classification
from idiolect import SettingError
from run.test_resume import same

pytestmark = pytest.mark.skipif(os.name == "nt", reason="limits of POSIX")

FEDERATION = classification((20,) * 12, features=8)
ROW = 4 * (8 * 3 + 3)  # bytes
ROOMY = 14 * ROW / 2**30  # GiB: rows of 12 clients fit in memory, messages of 8 do not
SETTINGS = {"rounds": 4, "sample": 8, "batch": 8, "chunk": 2, "checkpoint_every": 1}


def run(directory: Path | None = None, memory: float = 1e-9, **more) -> il.Result:
    model = il.Task(lambda: nn.Linear(8, 3))
    given = {**SETTINGS, "memory": memory, "directory": directory} | more
    return il.run(il.Scaffold(steps=2), model, FEDERATION, **given)


def disk_of(rows: int, monkeypatch) -> None:
    """Room for this many rows, those given back not counted."""
    real = os.posix_fallocate
    taken = [0]

    def reserve(handle: int, offset: int, length: int) -> None:
        taken[0] += length
        if taken[0] > rows * ROW:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", reserve)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no posix_fallocate here")
@pytest.mark.parametrize("rows", [2, 21, 29])
def test_the_run_ends_with_a_message_and_goes_on_when_there_is_room(rows, tmp_path, monkeypatch):
    """Or when the rows may stay in memory. Before, the system ended the process (SIGBUS)."""
    disk_of(rows, monkeypatch)
    place = re.escape(str(tmp_path / "run"))
    says = f"memory: .*no room for them in {place} .No space left on device.: .*GiB; make room"
    with pytest.raises(SettingError, match=says):
        run(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints").exists() == (rows > 2)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    monkeypatch.undo()
    same(run(tmp_path / "run", resume=True), run())
    same(run(tmp_path / "other", resume=True, memory=ROOMY), run(memory=ROOMY))
    gc.collect()
    assert not list((tmp_path / "run").glob("idiolect-scratch-*"))


@pytest.mark.slow
def test_a_limit_of_the_system_on_files_is_told_in_the_same_way(tmp_path):
    script = """
import resource, signal, sys
from pathlib import Path
import torch
from idiolect.core.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
store = Store(100, lambda ids: {"x": torch.ones(len(ids), 1000)}, 1, Path(sys.argv[1]))
try:
    store.read(torch.arange(3))
except ValueError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("SettingError memory: ") and "File too large" in done.stdout
    assert str(tmp_path) in done.stdout
    assert not list(Path(tmp_path).rglob("*.bin"))
