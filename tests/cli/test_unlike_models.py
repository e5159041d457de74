"""Several models and public inputs on the command line and in settings files."""

import json
from pathlib import Path
from shlex import split

import pytest

import idiolect as il
from idiolect.cli.main import main

SMALL = split("--clients 4 --samples 40 --features 6 --classes 3 --rounds 2 --batch 8 --quiet")
MODELS = ["--model", "mlp(hidden='5,4') | mlp(hidden=4)"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def output_of(capsys, *argv):
    assert main(list(argv)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def error_of(capsys, *argv):
    assert main(list(argv)) == 2
    return capsys.readouterr().err


def sizes(result):
    models = map(result.personal, range(4))
    return [sum(p.numel() for p in module.parameters()) for module in models]


def test_several_models_are_dealt_in_turn_and_made_again_by_name(capsys):
    words = ["fedmd", *SMALL, *MODELS, "--public", "9", "--directory", "run", "--json"]
    summary = json.loads(output_of(capsys, "run", *words))
    assert summary["settings"]["parameters"] == [74, 43]
    assert summary["public"]["inputs"] == 9
    assert sizes(il.load("run")) == [74, 43, 74, 43]
    assert "d = 74, 43" in output_of(capsys, "show", "run")


def test_an_interrupted_run_goes_on_by_its_folder(capsys):
    words = ["fedproto", *SMALL, *MODELS, "--json"]
    whole = json.loads(output_of(capsys, "run", *words, "--rounds", "4", "--directory", "whole"))
    output_of(capsys, "run", *words, "--directory", "run")
    longer = json.loads(output_of(capsys, "resume", "run", "--rounds", "4", "--json", "--quiet"))
    assert longer["accuracy"] == whole["accuracy"] and longer["loss"] == whole["loss"]


def test_a_settings_file_has_several_models_and_public_inputs(capsys):
    Path("own.toml").write_text(
        '[method]\nname = "fedmd"\n[model]\nname = "linear | mlp(hidden=4)"\n'
        '[data]\nname = "synthetic"\npublic = 8\nclients = 4\nsamples = 40\n[run]\nrounds = 1\n'
    )
    summary = json.loads(output_of(capsys, "run", "--config", "own.toml", "--json", "--quiet"))
    assert len(summary["settings"]["parameters"]) == 2 and summary["public"]["inputs"] == 8


def test_comparisons_and_sweeps_take_several_models(capsys):
    words = [*SMALL, *MODELS, "--directory"]
    table = output_of(capsys, "compare", "fedproto", "local", *words, "both")
    assert "d = 74, 43" in table and "clients have unlike models" in " ".join(table.split())
    grid = ["--grid", "lr=0.1,0.2", "--jobs", "1", "--json"]
    rows = json.loads(output_of(capsys, "sweep", "fedproto", *words, "swept", *grid))
    assert len(rows) == 2


def test_what_does_not_go_together_is_refused(capsys):
    for words, message in (
        (["run", "fedavg", *SMALL, *MODELS], "'fedavg', which sends whole models (w: 74 and 43"),
        (["run", "fedmd", *SMALL], "public must be inputs that the server and all clients have"),
        (["run", "local", *SMALL, "--model", "linear | mpl"], "did you mean 'mlp'?"),
        (["run", "local", *SMALL, "--model", "mlp(hiden=4) | linear"], "did you mean 'hidden'?"),
        (["run", "local", *SMALL, *MODELS, "--hidden", "4"], "--hidden is not a flag"),
        (["splits", *SMALL, *MODELS], "must be one model here"),
        (["advise", *SMALL[:8], *MODELS], "must be one model here"),
    ):
        assert message in error_of(capsys, *words), words
