"""Summaries over seeds; and the best round from the 20th on, labelled as chosen on test data."""

import json
import math
from dataclasses import replace
from shlex import split

import pytest
import torch

import idiolect as il
from idiolect.cli.main import main
from idiolect.run.summary import Summary, best_after, best_late, merge

ARGS = split(
    "--clients 5 --samples 40 --features 6 --classes 3 --sample 2 --batch 8 --quiet --rounds"
)


@pytest.mark.parametrize(
    "settings",
    [
        {"metrics": "auc,f1", "metric": "f1", "eval_train": True},
        {"attack": "sign-flip", "malicious": 0.4, "held_out": 1, "held_out_rounds": 1},
        {"patience": 5, "eval_every": 2},
        {"timing": "arrivals", "delays": "exponential(mean=1)"},
    ],
    ids=["metrics", "malicious and held out", "validation", "asynchronous"],
)
def test_merged_summaries_of_single_seeds_are_the_summary_of_all_seeds(settings):
    federation = il.data.load("synthetic", clients=6, samples=200, valid=0.2)
    common = {"rounds": 21, "sample": 4, "batch": 8, **settings}

    record = il.run("ditto", torch.nn.Linear(60, 10), federation, seeds=2, **common).record
    singles = [replace(record, seeds=[seed]).summary() for seed in record.seeds]
    merged = merge([Summary.from_dict(json.loads(json.dumps(one))) for one in singles]).as_dict()
    together = record.summary()
    stale = [found.pop("staleness", 0) for found in (merged, together)]
    assert stale[0] == pytest.approx(stale[1])  # a mean of means
    assert merged == together and list(merged) == list(together)


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
    first, second = history((20, 0.5), (40, 0.4)), history((20, 0.2), (40, 0.7))
    found = best_late([best_after(first), best_after(second)])
    assert found["rounds"] == [20, 40] and found["by_seed"] == [0.5, 0.7]
    assert found["accuracy"] == pytest.approx(0.6)
    assert found["variance"] == pytest.approx(0.06)
    assert found["loss_variance"] == pytest.approx(0.12)
    assert "chosen on test data" in found["note"]


def test_a_run_that_ended_before_has_none():
    found = best_late([best_after(history((10, 0.5))), best_after(history((30, 0.6)))])
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
