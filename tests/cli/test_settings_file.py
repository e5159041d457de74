"""Settings files: whatever is wrong with one is said in one line that names file and key."""

import os
from pathlib import Path

import pytest

from idiolect.cli.main import main
from idiolect.cli.options import MOST

FEDAVG = b"[method]\nname = 'fedavg'\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def error_of(capsys, *argv: str) -> str:
    """The command ends with 2 and prints one line, on stderr alone."""
    assert main(list(argv)) == 2
    got = capsys.readouterr()
    assert got.out == "" and got.err.count("\n") == 1 and got.err.startswith("error: ")
    return got.err


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[run]\nrounds = 3\n# caf\xe9\n", "s.toml is not UTF-8: byte 0xe9 in line 3"),
        (b"#" * (MOST + 1), f"s.toml must have at most {MOST} bytes"),
        (b"x = " + b"[" * 10**5, "s.toml is nested too deeply"),
        (b"[run]\nrounds = \n", "s.toml is not TOML: Invalid value (at line 2, column 10)"),
        (b"[run]\nrounds = 1\nrounds = 2\n", "s.toml is not TOML: Cannot overwrite a value"),
        (b"[run]\nrounds = " + b"9" * 5000, "s.toml is not TOML"),
        (b"run = [1]\n", "run in s.toml must be a section: write [run]"),
        (b"[[run]]\nrounds = 1\n", "run in s.toml must be a section"),
        (b"[runs]\nx = 1\n", "config section in s.toml: 'runs' is unknown; did you mean 'run'?"),
        (b"methods = 'fedavg'\n", "methods in s.toml must be a list of texts"),
        (b"methods = [1]\n", "methods in s.toml must be a list of texts"),
        (b"[method]\nname = 3\n", "name in [method] of s.toml must be text, got 3"),
        (FEDAVG + b"[data]\nname = []\n", "name in [data] of s.toml must be text, got []"),
        (FEDAVG + b"[run]\nround = 3\n", "s.toml: run setting: 'round' is unknown; did you mean"),
        (FEDAVG + b"lrr = 3\n", "s.toml: method setting: 'lrr' is unknown; did you mean 'lr'?"),
        (FEDAVG + b"[data]\nclient = 3\n", "s.toml: data setting: 'client' is unknown"),
        (FEDAVG + b"[model]\nname = 'mlp'\nhiden = 3\n", "s.toml: model setting: 'hiden'"),
        (
            FEDAVG + b"[run]\nrounds = [1]\n",
            "s.toml: [run] rounds must be a whole number >= 0, got [1]",
        ),
        (
            FEDAVG + b"[run]\nrounds = 2020-01-01\n",
            "s.toml: [run] rounds must be a whole number >= 0, got datetime.date",
        ),
        (
            FEDAVG + b"[run.rounds]\nx = 1\n",
            "s.toml: [run] rounds must be a whole number >= 0, got {'x': 1}",
        ),
        (FEDAVG + b"[run]\nrule = {a = 1}\n", "s.toml: [run] rule must be text or a Rule"),
        (FEDAVG + b"[run]\nloss = 3\n", "s.toml: [run] loss must be text, got 3"),
        (
            FEDAVG + b"[data]\nname = 'digits'\nclients = 'x'\n",
            "s.toml: [data] clients must be a whole number >= 1, got 'x'",
        ),
        (FEDAVG + b"[data]\nname = '.x:y'\n", "'.x:y' cannot be imported"),
        (b"[method]\nname = '..:x'\n", "'..:x' cannot be imported: '..' is no module's name"),
    ],
)
def test_a_mistake_in_a_file_is_named_by_file_and_key(body, says, capsys):
    Path("s.toml").write_bytes(body)
    assert says in error_of(capsys, "run", "--config", "s.toml", "--quiet")


def test_names_and_lists_of_a_comparison_are_checked_too(capsys):
    Path("s.toml").write_bytes(b"methods = ['fedavg']\n[run]\nround = 1\n")
    for command in (["compare"], ["list", "kernels"], ["list", "projections", "--measure"]):
        error = error_of(capsys, *command, "--config", "s.toml", "--quiet")
        assert "s.toml: run setting: 'round' is unknown" in error


def test_a_mark_of_byte_order_is_accepted_and_so_are_options_of_a_function(capsys):
    """What Notepad writes, and a function with **options."""
    Path("own_open_data.py").write_text(
        "import idiolect as il, numpy as np\n"
        "def make(clients=2, **more):\n"
        "    return il.Federation.from_arrays(np.eye(8), [0, 1] * 4, np.arange(8) % clients)\n"
    )
    data = b"[data]\nname = 'own_open_data:make'\nclients = 2\nother = [1]\n"
    Path("s.toml").write_bytes(b"\xef\xbb\xbf" + FEDAVG + data + b"[run]\nrounds = 1\nsample = 1\n")
    assert main(["run", "--config", "s.toml", "--quiet"]) == 0


# -- paths -----------------------------------------------------------------------------------------
@pytest.fixture
def places():
    os.mkdir("folder")
    os.symlink("loop", "loop")
    Path("file").write_text("")
    Path("notes.csv").write_bytes(b"client,target,f\n\xff\xfe,0,1\n")
    os.mkdir("folder.csv")


SMALL = ["--clients", "4", "--samples", "20", "--rounds", "1", "--quiet"]


@pytest.mark.parametrize("path", ["missing", "folder", "loop", "file/x", "x" * 300])
def test_a_path_that_cannot_be_read_is_one_clear_message(path, places, capsys):
    for argv in (
        ["run", "fedavg", "--config", path],
        ["show", path],
        ["resume", path],
        ["export", path],
        ["data", "show", "table", "--path", f"{path}.csv"],
        *(["data", "show", name, "--path", path] for name in ("mnist", "cifar10", "sotu")),
    ):
        assert path[:100] in error_of(capsys, *argv)


def test_a_table_that_is_not_utf8_is_refused(places, capsys):
    assert "is not written in utf-8" in error_of(
        capsys, "data", "show", "table", "--path", "notes.csv"
    )


@pytest.mark.parametrize("path", ["file", "loop", "file/x", "x" * 300, "a\0b"])
def test_a_folder_that_cannot_be_made_is_one_clear_message(path, places, capsys):
    for argv in (
        ["run", "fedavg", *SMALL, "--directory", path],
        ["compare", "fedavg", *SMALL, "--directory", path],
        ["pipeline", "fedavg@1", *SMALL, "--directory", path],
    ):
        assert "directory must be a" in error_of(capsys, *argv)
    assert "output must be a folder" in error_of(capsys, "reproduce", "budget", "--output", path)


def test_a_file_of_ones_own_that_the_system_refuses_ends_without_a_traceback(monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device", "here")

    monkeypatch.setattr("idiolect.cli.commands.data.load", full)
    assert main(["data", "show", "digits"]) == 1
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device: 'here'\n"


def test_a_cache_folder_that_cannot_be_is_named(monkeypatch, capsys):
    monkeypatch.setenv("IDIOLECT_DATA", "~nobody-of-this-name/x")
    assert "IDIOLECT_DATA must be a path" in error_of(capsys, "data", "get", "mnist")
