"""`idiolect advise`: one JSON object, a folder, settings from flags and files."""

import json
from pathlib import Path
from shlex import split

import numpy as np
import pandas as pd
import pytest

from idiolect.cli.main import main

SMALL = split(
    "--clients 5 --samples 40 --features 6 --classes 3 --quick --gradients 20 --quiet --threads 1"
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table_of_visits() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(60, 12, 120), "site": rng.choice(list("abc"), 120)})
    ill = rng.random(120) < 1 / (1 + np.exp(60 - frame.age))
    frame.assign(outcome=np.where(ill, "ill", "well")).to_csv("visits.csv", index=False)


def test_it_prints_one_json_object_and_writes_a_folder_and_a_picture(capsys):
    flags = split("--json --directory out --picture page.png")
    assert main(["advise", "ditto", *SMALL, *flags]) == 0
    got = capsys.readouterr()
    assert got.out.count("\n") == 1
    found = json.loads(got.out, parse_constant=lambda name: pytest.fail(name))
    assert found["choice"] in ("local", "fedavg", "ditto", "undecided")
    assert [r["label"] for r in found["candidates"]] == [
        "local",
        "fedavg",
        "ditto",
        "majority class",
    ]
    assert len(found["clients"]) == 5 and found["settings"]["gradients"] == 20
    assert json.loads(Path("out/advice.json").read_text()) == found
    for name in ("page.png", "out/advice.png"):
        assert Path(name).read_bytes().startswith(b"\x89PNG")


def test_it_says_in_words_what_to_deploy_in_the_width_of_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["advise", "finetune", *SMALL, "--directory", "out"]) == 0
    out = capsys.readouterr().out
    assert "Train each site alone" in out or "Deploy" in out or "Undecided" in out
    assert "per round" in out and "test samples were not looked at" in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_privacy_budget_is_in_the_verdict_and_in_the_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["advise", "ditto", *SMALL, *split("--epsilon 3 --directory out")]) == 0
    out = capsys.readouterr().out
    words = " ".join(out.split())
    assert "a privacy budget of ε = 3 at δ = 1e-05 for each client" in words
    assert "not covered by that ε: this advice" in words and "ε spent" in words
    table = json.loads(Path("out/advice.json").read_text())["candidates"]
    spent = {row["label"]: row["privacy"] and row["privacy"]["epsilon"] for row in table}
    assert spent["local"] is None and 2.9 < spent["ditto"] <= 3


def test_progress_is_told_on_stderr_where_there_is_no_terminal(capsys):
    flags = [flag for flag in SMALL if flag != "--quiet"]
    assert main(["advise", "ditto", *flags, "--directory", "out"]) == 0
    assert "4 of about" in capsys.readouterr().err


def test_it_reads_a_table_and_a_settings_file(capsys):
    table_of_visits()
    assert main(split("init visits.csv --client site --target outcome")) == 0
    capsys.readouterr()
    flags = split("--quick --gradients 20 --quiet --json --threads 1")
    assert main(["advise", "--config", "idiolect.toml", *flags]) == 0
    from_file = capsys.readouterr()
    assert "ignored from the settings file: " in from_file.err
    found = json.loads(from_file.out)
    assert {c["client"] for c in found["clients"]} == {"a", "b", "c"}
    # the file that init wrote names methods for compare: they do not narrow the advice
    labels = [row["label"] for row in found["candidates"]]
    personal = ["finetune", "ditto", "fedalt part=biases"]
    assert labels == ["local", "fedavg", *personal, "majority class"]
    assert "do not narrow advise" in from_file.err
    flags += split("--data table --path visits.csv --client site --target outcome ditto")
    assert main(["advise", *flags]) == 0
    assert {c["client"] for c in json.loads(capsys.readouterr().out)["clients"]} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--rounds 5", "rounds must not be given to advise"),
        ("--metric acu", "'acu' is unknown"),
        ("--validation none", "validation must be one of 'auto', 'given', 'folds', got 'none'"),
        ("dito", "did you mean 'ditto'"),
        ("--tie 2", "tie must be a number >= 0 and < 1, got 2.0"),
    ],
)
def test_what_has_no_meaning_is_refused_before_any_training(capsys, flags, text):
    assert main(["advise", *SMALL, *split(flags)]) == 2
    got = capsys.readouterr()
    assert got.out == "" and got.err.startswith("error: ") and text in got.err
    assert not Path("runs").exists()
