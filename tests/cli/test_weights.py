"""`--weight` on the command line, from a CSV file to predictions."""

import json

import numpy as np
import pandas as pd
import pytest

import idiolect as il
from idiolect.cli.main import main

rng = np.random.default_rng(0)
N = 120
FRAME = pd.DataFrame(
    {
        "site": np.array(list("abcd"))[np.arange(N) % 4],
        "age": rng.normal(50, 10, N).round(2),
        "persons": rng.integers(1, 5, N),
    }
)
FRAME["y"] = np.where(FRAME.age + rng.normal(0, 8, N) > 50, "yes", "no")
TABLE = ("--data", "table", "--client", "site", "--target", "y", "--weight", "persons")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FRAME.to_csv("t.csv", index=False)
    return tmp_path


def test_a_run_by_weights_predicts_rows_without_them(folder, capsys):
    main(["run", "fedavg", *TABLE, "--path", "t.csv", "--rounds", "2", "--directory", "a"])
    assert "weighted by 'persons': training, what a client counts" in capsys.readouterr().out
    record = il.load("a").record
    assert record.data["weight"] == "persons"
    assert [c["name"] for c in record.data["preparation"]["columns"]] == ["age"]
    FRAME[["site", "age"]].head(8).to_csv("new.csv", index=False)
    main(["predict", "a", "--data", "new.csv"])
    assert capsys.readouterr().out.count("\n") == 9


def test_a_comparison_and_its_clients_say_what_they_are_weighted_by(folder, capsys):
    methods = ["compare", "fedavg", "local", "--clients-table", "--trees", "false"]
    main([*methods, *TABLE, "--path", "t.csv", "--rounds", "2", "--directory", "c"])
    assert capsys.readouterr().out.count("weighted by 'persons'") == 2


def test_a_settings_file_may_name_the_weight(folder, capsys):
    text = '[data]\nname = "table"\npath = "t.csv"\nclient = "site"\ntarget = "y"\n'
    (folder / "s.toml").write_text(text + 'weight = "persons"\n[run]\nrounds = 1\n')
    main(["run", "fedavg", "--config", "s.toml", "--directory", "b", "--json"])
    json.loads(capsys.readouterr().out)
    assert il.load("b").record.data["weight"] == "persons"


def test_the_data_are_shown_with_their_weights(folder, capsys):
    main(["data", "show", "table", *TABLE[2:], "--path", "t.csv", "--json"])
    assert json.loads(capsys.readouterr().out)["weight"] == "persons"


def test_a_wrong_weight_is_refused_by_its_flag(folder, capsys):
    FRAME.assign(persons=FRAME.persons - 1).to_csv("t.csv", index=False)
    assert main(["run", "fedavg", *TABLE, "--path", "t.csv"]) == 2
    zeros = int((FRAME.persons == 1).sum())
    error = " ".join(capsys.readouterr().err.split())
    assert "--weight must be finite numbers > 0, got 0.0 for sample" in error
    assert f"({zeros} such samples in all)" in error


def test_a_deployment_takes_no_weights(folder, capsys):
    columns = ("--like", "t.csv", "--target", "y", "--weight", "persons")
    assert main(["deploy", "init", "d", *columns]) == 2
    assert "--weight must be left out in a deployment" in " ".join(capsys.readouterr().err.split())
