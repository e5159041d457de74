"""Whatever a command writes is for the user alone, also with umask 0."""

import os
from pathlib import Path

import numpy as np
import pytest

from idiolect.cli.main import main

pytestmark = pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")

SMALL = ["--clients", "3", "--rounds", "2", "--quiet"]
TABLE = ["--data", "table", "--path", "rows.csv", "--target", "y", "--client", "who"]


def test_no_file_is_readable_by_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    rng = np.random.default_rng(0)
    rows = [f"{x:.3f},{int(x > 0)},{i % 3}" for i, x in enumerate(rng.standard_normal(90))]
    own = tmp_path / "rows.csv"
    own.write_text("\n".join(["x,y,who", *rows]) + "\n")
    commands = [
        ["run", "fedavg", *SMALL[2:], *TABLE, "--directory", "run", "--against", "rounds"],
        ["run", "scaffold", *SMALL, "--memory", "1e-9", "--directory", "rows-in-files"],
        ["run", "fedavg@1", "local@1", *SMALL[:2], "--quiet", "--directory", "pipeline"],
        ["compare", "fedavg", "local", *SMALL, "--directory", "compare"],
        ["sweep", "fedavg", *SMALL, "--grid", "lr=0.1,0.2", "--jobs", "1", "--directory", "sweep"],
        ["tune", "fedavg", *SMALL, "--grid", "lr=0.1,0.2", "--jobs", "1", "--directory", "tune"],
        ["export", "run", "-o", "models"],
        ["export", "run", "--client", "1", "--format", "torchscript", "-o", "program"],
        ["predict", "run", "--data", "rows.csv", "-o", "answers.csv"],
        ["data", "show", "table", *TABLE[2:], "--picture", "clients.png"],
        ["init", "rows.csv", "--target", "y", "--client", "who"],
    ]
    before = os.umask(0)
    try:
        for command in commands:
            assert main(command) == 0, command
    finally:
        os.umask(before)
    files = [p for p in tmp_path.rglob("*") if p not in (own, scratch)]
    names = {path.name for path in files}
    assert {"runs.jsonl", "answers.csv", "clients.png", "idiolect.toml", "best.toml"} <= names
    modes = {str(p.relative_to(tmp_path)): p.stat().st_mode & 0o777 for p in files}
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}
    assert not list(scratch.iterdir())


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    """As `-o /dev/null` would be, for root."""
    from idiolect.core.files import write_atomic

    pipe = Path(tmp_path / "pipe")
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="Not a regular file"):
        write_atomic(pipe, b"")
    assert pipe.is_fifo()
