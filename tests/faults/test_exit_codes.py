"""A command that could not write something ends with 1 and says so last; the table is shown."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from idiolect.cli.main import main
from idiolect.core import files

SMALL = ["--data", "synthetic", "--clients", "3", "--rounds", "4", "--quiet"]
COMMANDS = {
    "run": ["run", "fedavg", "--checkpoint-every", "1"],
    "compare": ["compare", "fedavg", "local"],
    "sweep": ["sweep", "fedavg", "--grid", "lr=0.1,0.2", "--jobs", "1"],
    "pipeline": ["run", "fedavg@2", "local@2"],
}


def fill(monkeypatch, name: str, times: int) -> None:
    """A disk with no room for files of this name, so many times."""
    real = os.replace
    left = [times]

    def replace(source, target) -> None:
        if name in str(target) and left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)


@pytest.mark.parametrize(
    "command, file",
    [
        ("run", "checkpoints"),
        ("run", "record.json"),
        ("run", "clients.csv"),
        ("compare", "compare.json"),
        ("compare", "curves"),
        ("compare", "1-local/settings.json"),
        ("sweep", "table.csv"),
        ("pipeline", "record.json"),
    ],
)
def test_what_is_not_written_is_the_last_word(command, file, tmp_path, monkeypatch, capsys):
    arguments = [*COMMANDS[command], *SMALL, "--directory", str(tmp_path / "d")]
    if file == "compare.json":
        arguments += ["--no-baselines"]
    real = files.write_document

    def begin_only(path: Path, document) -> None:  # compare.json is written twice
        real(path, document)
        if path.name == "compare.json":
            fill(monkeypatch, file, 99)

    if file == "compare.json":
        monkeypatch.setattr("idiolect.study.folders.write_document", begin_only)
    else:
        fill(monkeypatch, file, 99)
    assert main(arguments) == 1
    output = capsys.readouterr()
    assert "fedavg" in output.out
    last = output.err.splitlines()[-1]
    assert last.startswith("error: could not be written: ") and "No space left" in last
    monkeypatch.undo()
    assert main(["resume", str(tmp_path / "d")]) == 0


def test_what_is_written_later_is_written(tmp_path, monkeypatch, capsys):
    """A checkpoint that finds no room, and one after it that does."""
    fill(monkeypatch, "checkpoints", 1)
    assert main([*COMMANDS["run"], *SMALL, "--directory", str(tmp_path / "d")]) == 0
    assert "the checkpoint of round 1 could not be written" in capsys.readouterr().err


def test_a_download_without_room(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path))

    def full(*_) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("idiolect.data.download._fetch", full)
    assert main(["data", "get", "mnist"]) == 1
    assert "mnist: there is no room in" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["list", "rules"], ["run", "--help"], ["--version"]])
def test_a_standard_output_that_is_full(arguments):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "idiolect_command", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="mounts a small file system",
)
@pytest.mark.slow
@pytest.mark.parametrize("size", ["8k", "24k", "80k", "160k"])
@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_a_disk_that_is_really_full(command, size, tmp_path, capsys):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("no mount here")
    try:
        code = main([*COMMANDS[command], *SMALL, "--directory", str(disk / "d")])
        said = capsys.readouterr().err
        assert code == int("could not be written" in said or "cannot write" in said)
        assert not code or said.splitlines()[-1].startswith("error: ")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
