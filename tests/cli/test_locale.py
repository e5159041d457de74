"""Terminals that know ASCII only: every command prints, and nothing is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from shlex import split

import pytest

from idiolect.report.console import PLAIN

ASCII = {
    **os.environ,
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii",
}
OWN = """
import numpy as np
import idiolect as il

def towns() -> il.Federation:
    names = ["Zürich", "東京", "Göteborg", "naïve ★"]
    y = np.arange(80) % 2
    x = np.eye(4)[np.arange(80) % 4] + y[:, None]
    return il.Federation.from_arrays(x, y, np.repeat(np.array(names, object), 20), name="Städte")
"""
RUN = "--data own_towns:towns --rounds 1 --sample 2 --batch 4 --threads 1 --quiet"
COMMANDS = [  # in one process: starting one takes seconds
    f"run fedavg {RUN} --directory füür",
    f"run lp-proj {RUN} --dim 3 --seeds 2 --directory prøjection",
    f"compare fedavg local {RUN} --target-value 0.99 --bytes 10 --directory vergleich-ü",
    "show füür prøjection",
    "show vergleich-ü",
    "export füür",
    "resume füür --quiet",
    "data show own_towns:towns --picture bild-ü.png",
    "data list",
    "list methods",
    "list channels --d 50",
    "list attacks",
    "list rules",
    "list selections",
    "list augmentations",
    "--help",
    "run --help",
    "nonsense-ü",
]
MANY = """
import json, os, sys
from idiolect.cli.main import main
for command in json.load(open("commands.json")):
    try:
        code = main([os.fsdecode(argument.encode()) for argument in command])
    except SystemExit as end:
        code = end.code
    print("CODE", code, flush=True)
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the commands print on an ASCII stdout, command by command, and the folder they ran in.

    As bytes; each ends in its exit code.
    """
    folder = tmp_path_factory.mktemp("ascii")
    (folder / "own_towns.py").write_text(OWN, encoding="utf-8")
    (folder / "commands.json").write_text(json.dumps([split(c) for c in COMMANDS]))
    done = subprocess.run(
        [sys.executable, "-c", MANY], cwd=folder, env=ASCII, capture_output=True, timeout=120
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    parts = done.stdout.split(b"CODE ")
    outs = [parts[0], *(part.partition(b"\n")[2] for part in parts[1:-1])]
    codes = [int(part.partition(b"\n")[0]) for part in parts[1:]]
    return dict(zip(COMMANDS, zip(outs, codes, strict=True), strict=True)), done.stderr, folder


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_ascii_and_works(printed, command):
    out, code = printed[0][command]
    assert code == (2 if command.startswith("nonsense") else 0)
    assert out.isascii() and (out or code)


def test_names_and_signs_are_replaced_not_lost(printed):
    outs, err, _ = printed
    assert err.isascii() and b"run directory: f" in err
    table = outs["data show own_towns:towns --picture bild-ü.png"][0].decode()
    assert "Z\\xfcrich" in table and "\\u6771\\u4eac" in table and "St\\xe4dte" in table
    assert "+-" in table  # the box is drawn in ASCII
    compared = outs["show vergleich-ü"][0].decode()
    assert "~ 95 %" in compared and "*" in compared


def test_the_files_of_an_ascii_terminal_are_those_of_any_other(printed):
    folder = printed[2]
    found = [Path(os.fsdecode(p)) for p in folder.rglob("clients.csv")]
    assert len(found) >= 4
    for path in found:
        text = path.read_bytes().decode("utf-8")
        assert "Zürich" in text and "東京" in text and "naïve ★" in text


def test_our_own_signs_keep_their_width():
    assert all(chr(sign).isascii() for sign in PLAIN.values())
    assert len(PLAIN) == len(set(PLAIN))
