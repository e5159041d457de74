"""`idiolect tune`: what it shows, the file it writes, what it refuses, and going on."""

import csv
import io
import json

import pytest
from rich.console import Console

from idiolect.cli import output
from idiolect.cli.commands import study
from idiolect.cli.main import main
from idiolect.core.files import write_document
from idiolect.study.many import Trial

DATA = ["--data", "synthetic", "--clients", "4", "--samples", "40"]
SMALL = [*DATA, "--rounds", "2", "--jobs", "1"]


def tuned(folder, *words):
    return main(["tune", *words, *SMALL, "--directory", str(folder)])


def test_the_file_of_the_best_settings_is_the_final_run(tmp_path, capsys):
    words = [
        "lp-proj:dim=5",
        "--grid",
        "lam=0.1,1",
        "--grid",
        "p=1,2",
        "--seeds",
        "2",
        "--sample=3",
    ]
    assert tuned(tmp_path / "a", *words, "--json") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert "4 of 4 runs" in said.err and f"directory: {tmp_path / 'a'}" in said.err
    config = str(tmp_path / "a/best.toml")
    assert main(["run", "--config", config, "--json", "--directory", str(tmp_path / "r")]) == 0
    alone = json.loads(capsys.readouterr().out)
    final = found["final"][1]
    assert alone["seeds"] == final["seeds"] == found["seeds"]["final"] == [1, 2]
    for name in ("label", "accuracy", "loss", "bytes", "gradients_per_client"):
        assert alone[name] == final[name]
    with open(tmp_path / "a/table.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 and rows[0]["behind"] == "0.0"
    assert {(row["lam"], row["p"]) for row in rows} == {(a, b) for a in ("0.1", "1") for b in "12"}
    assert found["methods"][0]["tried"] == 4 and found["cost"]["runs"] == 4


def test_show_gives_the_final_runs_again(tmp_path, capsys):
    assert tuned(tmp_path / "a", "fedavg", "--grid", "lr=0.1,0.5", "--quiet") == 0
    before = capsys.readouterr().out
    assert main(["show", str(tmp_path / "a")]) == 0
    said = capsys.readouterr()
    assert said.out.strip() in before and "chosen on validation data" in said.err
    (tmp_path / "a/final/compare.json").unlink()
    assert main(["show", str(tmp_path / "a")]) == 2
    assert "is not finished; continue it with: idiolect resume" in capsys.readouterr().err


def test_a_channel_of_a_paper_comes_out_in_the_file(tmp_path, capsys):
    words = ["lbgm:lr=0.1,steps=1", "--grid", "lp-proj"]
    assert tuned(tmp_path / "a", *words) == 0
    text = (tmp_path / "a/best.toml").read_text()
    assert 'name = "fedavg"' in text and 'channel = "lbgm' in text
    config = str(tmp_path / "a/best.toml")
    assert main(["run", "--config", config, "--quiet", "--directory", str(tmp_path / "r")]) == 0


def test_several_methods_stand_in_one_table_with_local(tmp_path, capsys):
    words = ["fedavg", "ditto:steps=3", "--grid", "lr=0.1,0.2", "--grid", "lam=1,2", "--quiet"]
    assert tuned(tmp_path / "a", *words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "fedavg: 2 settings tried" in said and "ditto steps=3: 4 settings tried" in said
    assert "chosen by pooled validation accuracy of seed 0" in said
    assert "as many gradients as" in said and "what matters:" in said
    assert "cost of the search: 6 runs" in said
    assert {p.name for p in (tmp_path / "a").glob("best*")} == {
        "best-fedavg.toml",
        "best-ditto.toml",
    }


def test_trials_and_a_space(tmp_path, capsys):
    (tmp_path / "space.toml").write_text("lr = {low = 0.01, high = 1, log = true}\nsample = [2, 4]")
    words = ["fedavg", "--space", str(tmp_path / "space.toml"), "--trials", "3", "--json"]
    assert tuned(tmp_path / "a", *words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["methods"][0]["tried"] == 3 and "3 of 3 runs" in said.err
    (tmp_path / "space.toml").unlink()  # the directory has it by value
    before = (tmp_path / "a/table.csv").read_bytes()
    assert main(["resume", str(tmp_path / "a"), "--quiet"]) == 0
    assert (tmp_path / "a/table.csv").read_bytes() == before
    assert tuned(tmp_path / "b", "local", "--trials", "2", "--quiet") == 0


def test_a_tuning_that_was_stopped_is_resumed(tmp_path, capsys, monkeypatch):
    train = Trial.train
    failed = []

    def failing(trial):
        if not failed and trial.plan.varied["lr"] == "0.2":
            failed.append(trial)
            raise MemoryError("no room")
        return train(trial)

    monkeypatch.setattr(Trial, "train", failing)
    words = ["fedavg", "--grid", "lr=0.1,0.2,0.3"]
    assert tuned(tmp_path / "a", *words) == 2
    assert "1 run failed, the first of them fedavg lr=0.2" in capsys.readouterr().err
    for flag in (["--rounds", "9"], ["--force"]):
        assert main(["resume", str(tmp_path / "a"), *flag]) == 2
        assert "is a tuning, whose runs stay as they are" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "a")]) == 0
    assert "2 of 3 runs are stored already" in capsys.readouterr().err
    assert tuned(tmp_path / "a", *words, "--quiet") == 0  # the same command, too
    assert tuned(tmp_path / "a", "fedavg", "--grid", "lr=0.1", "--quiet") == 2
    assert "holds another tuning" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--grid", "lr=0.1"], "tune: name methods"),
        (["fedavg", "--grid", "lamda=1"], "'lamda'"),
        (["fedavg", "--grid", "lr="], "lr must have at least one value"),
        (["fedavg", "--grid", "papr"], "did you mean 'paper'"),
        (["l2gd"], "one that has l2gd, got 'paper': no paper has it"),
        (["ditto", "--grid", "ffgg"], "the grid of ffgg has it not"),
        (["fedavg", "--grid", "lr=0.1,-1"], "lr must be a number > 0, got -1.0"),
        (["fedavg", "--grid", "lr=1", "--criterion", "test"], "all on validation data, got"),
        (["fedavg", "--space", "no-such-file.toml"], "cannot read no-such-file.toml"),
        (["fedavg", "--trials", "0"], "trials must be a whole number >= 1, got 0"),
        (["fedavg", "--trials", "2", "--grid", "lr=1"], "must not be given together"),
        (["fedavg", "--grid", "lr=1", "--valid", "0"], "has validation data"),
        (["qsgd", "--trials", "2"], "FedAvg through a channel"),
        (["fedavg", "--jobs", "-1"], "jobs must be a whole number >= 0, got -1"),
    ],
)
def test_what_makes_no_sense_is_said(tmp_path, capsys, words, message, monkeypatch):
    monkeypatch.setattr(Trial, "trained", lambda *_: pytest.fail("it ran"))
    assert main(["tune", *DATA, "--directory", str(tmp_path / "a"), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_directory_of_something_else(tmp_path, capsys):
    write_document(tmp_path / "tune.json", {"format": 1})
    assert main(["resume", str(tmp_path)]) == 2
    assert "started in Python" in capsys.readouterr().err
    write_document(tmp_path / "tune.json", {"format": 1, "plans": []})
    assert main(["resume", str(tmp_path)]) == 2
    assert "no plan is described" in capsys.readouterr().err
    assert main(["sweep", "fedavg", "--grid", "lr=1", *SMALL, "--directory", f"{tmp_path}/s"]) == 0
    assert tuned(tmp_path / "s", "fedavg", "--grid", "lr=1") == 2
    assert "holds a sweep" in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 80])
def test_it_is_readable_on_narrow_terminals(tmp_path, monkeypatch, width):
    out = io.StringIO()
    for module in (study, output):
        monkeypatch.setattr(module, "OUT", Console(file=out, width=width))
    words = ["lp-proj:dim=5", "--grid", "lam=0.1,1", "--grid", "personal_lr=0.1,0.2", "--quiet"]
    assert tuned(tmp_path / "a", *words) == 0
    lines = [line for line in out.getvalue().splitlines() if "best.toml" not in line]
    assert len(lines) > 20 and max(map(len, lines)) <= width
    assert "lam=0.1" in out.getvalue()
