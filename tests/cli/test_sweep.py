"""`idiolect sweep`: what it shows, what it refuses, and going on."""

import csv
import json
import os
import subprocess
import sys
from itertools import product

import pytest

from idiolect.cli.main import main
from idiolect.core.documents import sealed
from idiolect.core.files import write_document
from idiolect.study.many import Trial

SMALL = ["--data", "synthetic", "--clients", "4", "--samples", "40", "--rounds", "2", "--jobs", "1"]


def swept(folder, *words):
    return main(["sweep", *words, *SMALL, "--directory", str(folder)])


def test_a_table_of_all_settings(tmp_path, capsys):
    words = ["fedavg", "ditto", "--grid", "lr=0.1,0.2", "--grid", "data.alpha=0,1", "--seeds", "2"]
    assert swept(tmp_path / "a", *words) == 0
    said = capsys.readouterr()
    assert "ditto lr=0.2 data.alpha=1" in " ".join(said.out.split())
    assert "16 of 16 runs" in said.err and f"directory: {tmp_path / 'a'}" in said.err
    with open(tmp_path / "a/table.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    found = [(r["method"], r["lr"], r["data.alpha"], r["seed"]) for r in rows]
    assert found == list(product(("fedavg", "ditto"), ("0.1", "0.2"), "01", "01"))


def test_rows_as_json(tmp_path, capsys):
    assert swept(tmp_path / "a", "fedavg", "--grid", "lr=0.1", "--json", "--quiet") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["method"] == "fedavg" and row["lr"] == "0.1" and row["seed"] == 0


def test_show_gives_its_table_again(tmp_path, capsys):
    assert swept(tmp_path / "a", "fedavg", "--grid", "lr=0.1,0.2", "--seeds", "2") == 0
    before = capsys.readouterr().out.splitlines()[1:]  # below the title
    assert main(["show", str(tmp_path / "a")]) == 0
    again = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in again] == [line.strip() for line in before]
    assert main(["show", str(tmp_path / "a"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["label"], row["seeds"]) for row in rows] == [
        ("fedavg lr=0.1", [0, 1]),
        ("fedavg lr=0.2", [0, 1]),
    ]


def words_of(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_test_figures_are_shown_with_a_flag_alone(tmp_path, capsys):
    folder = str(tmp_path / "a")
    assert swept(folder, "fedavg", "--grid", "lr=0.1,0.2") == 0
    shown = words_of(capsys)
    assert "validation data of each client" in shown and "--show-test" in shown
    assert "test data of each client" not in shown
    assert swept(folder, "fedavg", "--grid", "lr=0.1,0.2", "--show-test") == 0
    assert "a setting chosen by these figures is biased" in words_of(capsys)
    assert main(["show", folder]) == 0
    assert "validation data of each client" in words_of(capsys)
    assert main(["show", folder, "--show-test"]) == 0
    shown = words_of(capsys)
    assert "test data of each client" in shown and "biased" in shown


def test_a_table_does_not_mix_validation_and_test_figures(tmp_path, capsys):
    folder, run = str(tmp_path / "a"), str(tmp_path / "run")
    assert swept(folder, "fedavg", "--grid", "lr=0.1") == 0
    assert main(["run", "fedavg", *SMALL[:-2], "--directory", run]) == 0
    capsys.readouterr()
    assert main(["show", folder, run]) == 2
    assert "show them apart" in capsys.readouterr().err
    assert main(["show", folder, "--also", "best-after-20"]) == 2
    assert "is about test data" in capsys.readouterr().err
    assert main(["show", run, "--show-test"]) == 2
    assert "it is about sweeps" in capsys.readouterr().err
    assert main(["show", folder, run, "--show-test", "--also", "best-after-20"]) == 0
    assert "biased" in words_of(capsys)


def test_show_says_what_a_sweep_does_not_have(tmp_path, capsys):
    assert swept(tmp_path / "a", "fedavg", "--grid", "lr=0.1") == 0
    assert main(["show", str(tmp_path / "a"), "--picture", str(tmp_path / "a.png")]) == 2
    assert "is a sweep, which stores neither curves" in capsys.readouterr().err
    runs = tmp_path / "a/runs.jsonl"
    foreign = {"key": "a-0", "job": "fedavg seed=0", "result": {"seeds": [0]}}
    runs.write_text(json.dumps(sealed(foreign)) + "\n")
    assert main(["show", str(tmp_path / "a")]) == 2
    assert "a run in it has no 'accuracy'" in capsys.readouterr().err
    runs.write_text('["key", "job", "result"]\n{"key": 3, "job": 3, "result": 3}\n')
    assert main(["show", str(tmp_path / "a")]) == 2
    assert "has finished yet; resume it: idiolect resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--grid", "lr=0.1"], "sweep: name methods"),
        (["fedavg", "--grid", "lamda=1"], "'lamda'"),
        (["fedavg", "--grid", "lr="], "lr must have at least one value"),
        (["fedavg", "--grid", "lr"], "NAME=VALUE"),
        (["fedavg", "--grid", "lr=0.1,-1"], "lr must be a number > 0, got -1.0"),
        (["fedavg", "--grid", "data.clints=3"], "did you mean 'clients'"),
    ],
)
def test_what_makes_no_sense_is_said(tmp_path, capsys, words, message):
    assert swept(tmp_path / "a", *words) == 2
    assert message in capsys.readouterr().err


def test_jobs(tmp_path, capsys):
    assert main(["sweep", "fedavg", "--jobs", "-1"]) == 2
    assert "jobs must be a whole number >= 0, got -1" in capsys.readouterr().err


def test_a_run_that_fails_is_named_and_tried_again(tmp_path, capsys, monkeypatch):
    train = Trial.train

    def failing(trial):
        if trial.seed == 1:
            raise MemoryError("no room")
        return train(trial)

    monkeypatch.setattr(Trial, "train", failing)
    words = ["fedavg", "--grid", "lr=0.1", "--seeds", "3"]
    assert swept(tmp_path / "a", *words) == 2
    said = capsys.readouterr().err
    assert "failed: fedavg lr=0.1 seed=1: MemoryError: no room" in said
    assert "1 of 3 runs failed; the same command tries them again" in said
    monkeypatch.setattr(Trial, "train", train)
    for flag in (["--rounds", "9"], ["--force"], ["--clients-table"]):
        assert main(["resume", str(tmp_path / "a"), *flag]) == 2
        assert "is a sweep, whose runs stay as they are" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "a")]) == 0
    assert "2 of 3 runs are stored already" in capsys.readouterr().err


def test_a_sweep_of_python_is_gone_on_with_there(tmp_path, capsys):
    write_document(tmp_path / "sweep.json", {"format": 1, "grid": {}})
    assert main(["resume", str(tmp_path)]) == 2
    assert "started in Python" in capsys.readouterr().err
    write_document(tmp_path / "sweep.json", {"format": 1, "plans": 3})
    assert main(["resume", str(tmp_path)]) == 2
    assert "no plan is described" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sweep", pytest.param("tune", marks=pytest.mark.slow)])
def test_code_in_the_current_folder_reaches_worker_processes(name, tmp_path):
    """Own model, method and data: at the default number of jobs, of the installed command."""
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\n"
        "import torch\nfrom idiolect.methods.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\nclass Mine(FedAvg): pass\n"
        "class Net(torch.nn.Linear):\n"
        "    def __init__(self, inputs, outputs): super().__init__(inputs[0], outputs)\n"
    )
    words = ["own:Mine", "--model", "own:Net", "--grid", "lr=0.1,0.2", "--jobs", "2"]
    small = ["--clients", "4", "--samples", "40", "--rounds", "2", "--quiet"]
    command = [sys.executable, "-P", "-m", "idiolect.cli"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, name, *words, *small, "--directory", str(tmp_path / name)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "lr=0.2" in done.stdout and done.stderr.count("\n") == 1
