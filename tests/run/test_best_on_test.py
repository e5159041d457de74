"""The best round from the 20th on: chosen on test data, on request alone, and labelled so."""

import json
import math
from shlex import split

import pytest

import idiolect as il
from idiolect.cli.main import main
from idiolect.run.record import best_after, best_after_20

ARGS = split(
    "--clients 5 --samples 40 --features 6 --classes 3 --sample 2 --batch 8 --quiet --rounds"
)


def history(*rounds):
    return [
        {
            "round": r,
            "accuracy": a,
            "accuracy_variance": a / 10,
            "loss": 1 - a,
            "loss_variance": a / 5,
        }
        for r, a in rounds
    ]


def test_rounds_before_the_20th_do_not_count_and_the_first_of_equals_does():
    rows = history((19, 0.9), (20, 0.5), (25, 0.7), (30, 0.7), (35, 0.6))
    assert best_after(rows)["round"] == 25
    assert best_after(rows, after=1)["round"] == 19
    assert best_after(rows[:1]) == {}


def test_the_variance_is_that_of_the_same_round_and_figures_are_means_over_seeds():
    found = best_after_20([history((20, 0.5), (40, 0.4)), history((20, 0.2), (40, 0.7))])
    assert found["rounds"] == [20, 40] and found["by_seed"] == [0.5, 0.7]
    assert found["accuracy"] == pytest.approx(0.6)
    assert found["variance"] == pytest.approx(0.06)
    assert found["loss_variance"] == pytest.approx(0.12)
    assert "chosen on test data" in found["note"]


def test_a_run_that_ended_before_has_none():
    found = best_after_20([history((10, 0.5)), history((30, 0.6))])
    assert math.isnan(found["accuracy"]) and found["rounds"] == [None, 30]


def test_a_regression_has_the_round_with_the_least_loss():
    rows = [row | {"accuracy": math.nan} for row in history((20, 0.1), (21, 0.8), (22, 0.3))]
    assert best_after(rows)["round"] == 21


def test_it_is_in_every_summary_and_in_a_table_on_request_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "fedavg", *ARGS, "24", "--eval-every", "2", "--directory", "one"]) == 0
    plain = capsys.readouterr().out
    assert "best on test" not in plain and "chosen on test data" not in plain
    result = il.load("one")
    found = result.summary()["best_after_20"]
    late = [row for row in result.rounds_table() if row["round"] >= 20]
    top = max(late, key=lambda row: row["accuracy"])
    assert found["rounds"] == [top["round"]] and len(late) == 3
    assert found["variance"] == pytest.approx(top["accuracy_variance"])
    assert main(["show", "one", "--also", "best-after-20"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{found['accuracy']:.4f}" in shown and "chosen on test data" in shown
    assert main(["show", "one", "--also", "best"]) == 2
    assert "best-after-20" in capsys.readouterr().err
    assert main(["show", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best_after_20"] == found
