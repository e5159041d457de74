"""Gradient-boosted trees beside a comparison: figures on the same samples, never a choice."""

import json

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as skm
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from torch import nn

import idiolect as il
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError
from idiolect.study.advise.training import Holdout
from idiolect.study.trees import ALONE, POOLED, wanted
from idiolect.task.losses import Loss

FEATURES = ["a", "b", "c"]


def frame(rows=400, values=False):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((rows, 3)), columns=FEATURES)
    table["site"] = rng.integers(4, size=rows)
    signal = table["a"] * table["b"] + 0.3 * rng.standard_normal(rows)
    table["y"] = signal if values else np.where(signal > 0.4, "yes", "no")
    return table


def data(**options):
    return il.Federation.from_frame(frame(**options), client="site", target="y")


def compared(federation, outputs=2, **options):
    model = il.Task(lambda: nn.Linear(3, outputs), "cross_entropy" if outputs == 2 else "mse")
    return il.compare(["fedavg"], model, federation, rounds=2, **options)


def rows_of(federation, split, clients):
    parts = [federation.part(k, split) for k in clients]
    return tuple(np.concatenate([part[i].numpy() for part in parts]) for i in (0, 1))


def test_trees_stand_last_with_the_figures_of_scikit_learn_on_the_same_samples():
    federation = data()
    comparison = compared(federation, metrics="auc,recall")
    *_, alone, pooled = comparison.summary()
    assert (alone["label"], pooled["label"]) == (ALONE, POOLED)
    x, y = rows_of(federation, "train", range(4))
    inputs, targets = rows_of(federation, "test", range(4))
    p = HistGradientBoostingClassifier(random_state=0).fit(x, y).predict_proba(inputs)
    smooth = (len(y) * p + 1) / (len(y) + 2)
    assert pooled["accuracy"]["mean"] == pytest.approx((p.argmax(1) == targets).mean())
    assert pooled["loss"]["mean"] == pytest.approx(skm.log_loss(targets, smooth))
    assert pooled["metrics"]["auc"]["mean"] == pytest.approx(
        skm.roc_auc_score(targets, p[:, 1]), abs=0.003
    )
    assert pooled["metrics"]["recall"]["mean"] == pytest.approx(
        skm.recall_score(targets, p.argmax(1))
    )
    hits = 0
    for k in range(4):
        model = HistGradientBoostingClassifier(random_state=0).fit(
            *rows_of(federation, "train", [k])
        )
        inputs, targets = rows_of(federation, "test", [k])
        hits += (model.predict(inputs) == targets).sum()
    tests = int(federation.sizes("test").sum())
    assert alone["accuracy"]["mean"] == pytest.approx(hits / tests)
    assert alone["bytes"] == {"up": 0, "down": 0} and alone["seeds"] == []


def test_trees_of_real_targets_have_the_loss_and_the_metrics_of_the_run():
    federation = data(values=True)
    *_, pooled = compared(federation, outputs=1).summary()
    x, y = rows_of(federation, "train", range(4))
    inputs, targets = rows_of(federation, "test", range(4))
    predicted = HistGradientBoostingRegressor(random_state=0).fit(x, y).predict(inputs)
    assert pooled["loss"]["mean"] == pytest.approx(skm.mean_squared_error(targets, predicted))
    assert pooled["metrics"]["r2"]["mean"] == pytest.approx(skm.r2_score(targets, predicted))


def test_the_table_says_what_trees_are():
    text = " ".join(str(compared(data())).split())
    assert "not federated: of each client alone" in text and "needs the data in one place" in text
    assert ALONE in text
    assert "trees" not in str(compared(data(), trees=False))


def test_trees_are_no_result_that_could_be_chosen():
    comparison = compared(data())
    assert not any(label.startswith("trees") for label in comparison.labels)
    assert len(comparison.results) == 1 + 1  # fedavg, and Local at equal compute


def test_arrays_have_trees_on_request_only_and_pictures_never():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((120, 3)).astype(np.float32), np.arange(120) % 2
    arrays = il.Federation.from_arrays(x, y, np.arange(120) // 30)
    assert len(compared(arrays).trees) == 0
    assert len(compared(arrays, trees=True).trees) == 2
    pictures = il.Federation.from_arrays(x.reshape(120, 1, 3), y, np.arange(120) // 30)
    with pytest.raises(SettingError, match=r"trees must be left out .* a row of numbers"):
        il.compare(
            ["fedavg"],
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(3, 2)),
            pictures,
            rounds=1,
            trees=True,
        )


def test_many_clients_have_no_trees_unless_they_are_asked_for():
    table = frame()
    table["site"] = np.arange(len(table)) // 5
    federation = il.Federation.from_frame(table, client="site", target="y")
    assert federation.clients == 80 and compared(federation).trees == []


def test_a_client_of_one_class_and_one_without_samples_have_trees_too():
    table = frame()
    table.loc[table["site"] == 0, "y"] = "no"
    federation = il.Federation.from_frame(table, client="site", target="y")
    alone, _ = compared(federation).trees
    assert 0 < alone["accuracy"]["mean"] <= 1 and np.isfinite(alone["loss"]["mean"])


def test_clients_held_out_are_left_out_of_the_trees_as_of_the_methods():
    federation = data()
    comparison = compared(federation, held_out=1, held_out_rounds=1)
    inside = [not row["held_out"] for row in comparison.results[0].clients_table()]
    kept = [k for k in range(4) if inside[k]]
    x, y = rows_of(federation, "train", kept)
    inputs, targets = rows_of(federation, "test", kept)
    model = HistGradientBoostingClassifier(random_state=0).fit(x, y)
    want = (model.predict(inputs) == targets).mean()
    assert comparison.trees[1]["accuracy"]["mean"] == pytest.approx(want)


def test_the_command_shows_them_and_show_has_them_again(tmp_path, capsys):
    path = tmp_path / "table.csv"
    frame().to_csv(path, index=False)
    command = ["compare", "fedavg", "--data", "table", "--path", str(path), "--client", "site"]
    command += ["--target", "y", "--rounds", "1", "--json", "--no-baselines"]
    assert main([*command, "--directory", str(tmp_path / "a")]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == ["majority", "fedavg", "trees", "trees"]
    assert main(["show", str(tmp_path / "a"), "--json"]) == 0
    assert "all data in one place" in capsys.readouterr().out
    assert main(["resume", str(tmp_path / "a"), "--rounds", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4
    assert main([*command, "--no-trees", "--directory", str(tmp_path / "b")]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main([*command, "--no-trees", "--trees", "--directory", str(tmp_path / "c")]) == 2
    assert "trees must be given without no_trees" in capsys.readouterr().err


# -- beside an advice ------------------------------------------------------------------------------
def advised(federation, outputs=2, **options):
    model = il.Task(lambda: nn.Linear(3, outputs), "cross_entropy" if outputs == 2 else "mse")
    small = {"quick": True, "gradients": 20, "progress": False, "threads": 1}
    return il.advise(federation, model, ["finetune"], **small, **options)


@pytest.fixture(scope="module")
def advice():
    return advised(data())


def test_an_advice_judges_trees_on_the_folds_of_the_candidates(advice):
    holdout = Holdout.of(data(), "folds", seed=0, seeds=3)
    losses = []
    for seed in range(3):
        fold, _ = holdout.under(seed)
        x, y = rows_of(fold, "train", range(4))
        inputs, targets = rows_of(fold, "valid", range(4))
        p = HistGradientBoostingClassifier(random_state=0).fit(x, y).predict_proba(inputs)
        smooth = (len(y) * p + 1) / (len(y) + 2)
        losses += (-np.log(smooth[np.arange(len(targets)), targets])).tolist()
    alone, pooled = advice.trees
    assert (alone["label"], pooled["label"]) == (ALONE, POOLED)
    assert pooled["figures"]["loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_trees_are_shown_and_named_where_they_are_clearly_better_and_never_chosen(advice):
    assert not any(row["label"].startswith("trees") for row in advice.table)
    assert advice.choice in ("local", "fedavg", "finetune", "undecided")
    assert "on pooled data do better than every candidate (log loss" in str(advice.words)
    assert "trees, all" in str(advice) and "not federated" in str(advice.notes)
    assert advice.as_dict()["trees"][1]["low"] > 0


def test_trees_that_are_not_clearly_better_are_not_praised():
    linear = frame(200)
    linear["y"] = np.where(linear["a"] + linear["b"] > 0, "yes", "no")
    federation = il.Federation.from_frame(linear, client="site", target="y")
    advice = advised(federation)
    assert len(advice.trees) == 2 and not any("trees" in line for line in advice.words)


def test_an_advice_leaves_out_trees_on_request_and_for_what_takes_long():
    assert advised(data(), trees=False).trees == []
    assert not wanted(data(), Loss(), None, folds=30, most=120)
    with pytest.raises(SettingError, match="trees must be True, False or None, got 'yes'"):
        advised(data(), trees="yes")


def test_trees_of_real_targets_are_judged_by_any_metric_and_local_sends_nothing():
    advice = advised(data(values=True), outputs=1, metric="mae")
    alone, pooled = advice.trees
    assert pooled["value"] == pooled["figures"]["mae"] < alone["figures"]["mae"]
    assert advice.table[0]["bytes"] == {"up": 0, "down": 0} and advice.table[0]["gain"] is None
