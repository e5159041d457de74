"""Imports point downwards: the contracts of pyproject.toml hold, and would catch a breach."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def lint(tree: Path) -> subprocess.CompletedProcess:
    code = "from importlinter.cli import lint_imports_command as main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache", "--no-logo", "--config", "pyproject.toml"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copied(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_every_contract_is_kept():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("wire/messages.py", "from ..task import task", "wire"),
        ("methods/fedavg.py", "from ..channels import channel", "Methods know no channel"),
        ("method.py", "from .server import server", "Methods know no channel"),
        ("server/server.py", "from ..data import federation", "The server knows no host"),
        ("run/run.py", "from ..cli import main", "Nothing imports the command line"),
        ("report/tables.py", "from ..run import record", "A room imports only rooms below it"),
    ],
)
def test_a_planted_import_upwards_is_caught(copied, file, line, contract):
    path = copied / "src" / "idiolect" / file
    path.write_text(path.read_text() + f"\n\ndef _planted():\n    {line}\n")
    done = lint(copied)
    assert done.returncode != 0
    broken = [text for text in done.stdout.splitlines() if text.endswith("BROKEN")]
    assert any(contract in text for text in broken), done.stdout


def test_a_room_without_a_layer_is_caught(copied):
    room = copied / "src" / "idiolect" / "attic"
    room.mkdir()
    (room / "__init__.py").touch()
    done = lint(copied)
    assert done.returncode != 0
    assert "attic" in done.stdout + done.stderr
