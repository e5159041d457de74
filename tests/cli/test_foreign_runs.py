"""Run directories of others: a clear message whatever lies in them; what we write is private."""

import json
import os
import shutil
from pathlib import Path
from shlex import split

import pytest

from idiolect.cli.main import main

SMALL = split("--clients 4 --samples 30 --rounds 1 --sample 2 --batch 4 --quiet")
STAGES = split("fedavg@1 local@1 --clients 4 --samples 30 --sample 2 --batch 4 --quiet")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run, a comparison and a pipeline, made under the loosest mask; and two models' folders."""
    folder = tmp_path_factory.mktemp("runs")
    old = os.umask(0)
    try:
        for argv in (
            ["run", "fedavg", *SMALL, "--directory", str(folder / "made" / "run")],
            ["compare", "fedavg", *SMALL, "--directory", str(folder / "compare")],
            ["pipeline", *STAGES, "--directory", str(folder / "pipeline")],
            ["export", str(folder / "made" / "run")],
            ["export", str(folder / "made" / "run"), "-o", str(folder / "out"), "--one-file"],
        ):
            assert main(argv) == 0
    finally:
        os.umask(old)
    return folder


def test_models_and_figures_of_clients_are_the_users_alone(runs):
    for path in runs.rglob("*"):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o700 if path.is_dir() else 0o600), path


BODIES = {
    "empty": b"",
    "list": b"[]",
    "null": b"null",
    "text": b'"x"',
    "object": b"{}",
    "not UTF-8": b"\xff\xfe",
    "deep": b"[" * 10**5,
    "cut": b'{"format": 2,',
}
FILES = {
    "settings.json": ("made/run", ("show", "resume", "export")),
    "record.json": ("made/run", ("show", "export")),
    "compare.json": ("compare", ("show", "resume", "export")),
    "pipeline.json": ("pipeline", ("resume",)),
}


def refused(capsys, *argv: str) -> None:
    """The command ends with 2 and one message."""
    assert main(list(argv)) == 2
    got = capsys.readouterr()
    assert got.out == "" and got.err.startswith("error: ") and "Traceback" not in got.err


@pytest.mark.parametrize("file", FILES)
def test_a_run_with_a_broken_file_is_refused_by_name(runs, tmp_path, capsys, file):
    source, commands = FILES[file]
    shutil.copytree(runs / source, tmp_path / "run")
    sound = json.loads((tmp_path / "run" / file).read_bytes())
    bodies = {
        **BODIES,
        "other format": json.dumps({**sound, "format": 99}).encode(),
        "unknown key": json.dumps({**sound, "\x1b[31m": 1}).encode(),
    }
    for body in bodies.values():
        (tmp_path / "run" / file).write_bytes(body)
        for command in commands:
            refused(capsys, command, str(tmp_path / "run"))
    for kind in (os.mkdir, lambda path: os.symlink(Path(path).name, path), os.mkfifo):
        path = tmp_path / "run" / file
        path.rmdir() if path.is_dir() else path.unlink()
        kind(path)
        for command in commands:
            refused(capsys, command, str(tmp_path / "run"))


def test_a_folder_that_is_no_run_or_not_finished_is_refused(runs, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    os.symlink("loop", tmp_path / "loop")
    for name in ("empty", "loop", "nowhere"):
        for command in ("show", "resume", "export"):
            refused(capsys, command, str(tmp_path / name))
    shutil.copytree(runs / "made" / "run", tmp_path / "run")
    (tmp_path / "run" / "record.json").unlink()
    assert main(["show", str(tmp_path / "run")]) == 2
    assert "is not finished; continue it with: idiolect resume" in capsys.readouterr().err
