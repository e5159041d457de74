"""Figures of weighted samples: those of scikit-learn with sample_weight, and of repeated rows."""

import numpy as np
import pytest
import sklearn.metrics as skm
import torch

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.host.baselines import trivial
from idiolect.host.metrics import (
    Tally,
    TargetForm,
    check_metrics,
    in_use,
    parse_metrics,
    positive_class,
)
from idiolect.host.scores import summarise
from idiolect.study.trees import tree_rows
from idiolect.task.losses import LOSSES, Loss

rng = np.random.default_rng(0)
N = 300
OWNER = np.sort(rng.integers(0, 3, N))
LOGITS = rng.normal(size=(N, 2)).round(1)  # with ties
Y = (rng.random(N) < 0.4).astype(np.int64)
WEIGHTS = rng.uniform(0.1, 30.0, N)
P = torch.from_numpy(LOGITS).softmax(1)[:, 1].numpy()
ODDS = torch.from_numpy(LOGITS).log_softmax(1).diff(dim=1)[:, 0].numpy()
HARD = LOGITS.argmax(1)


def measured(name, outputs, y, classes, owner=OWNER, weights=WEIGHTS):
    """(value of each client, pooled value)."""
    (metric,) = in_use(parse_metrics(name), "", classes, "", positive_class([0, 1]))
    clients = int(owner.max()) + 1
    everyone = torch.arange(clients)
    form = TargetForm(classes, weighted=weights is not None)
    tally = Tally([metric], form, clients, everyone)
    at = None if weights is None else torch.from_numpy(weights)
    tally.add(torch.from_numpy(owner), torch.from_numpy(outputs), torch.from_numpy(y), at)
    counted = tally.measured(everyone)[metric.name]
    masses = torch.from_numpy(np.bincount(owner, weights)).double()
    return counted.each().numpy(), metric.pooled(counted.rows, counted.counts, masses)


def specificity(y, hard, sample_weight):
    return skm.recall_score(y, hard, pos_label=0, sample_weight=sample_weight)


OF_CLASSES = {
    "auc": (skm.roc_auc_score, ODDS),
    "pr_auc": (skm.average_precision_score, ODDS),
    "f1": (skm.f1_score, HARD),
    "precision": (skm.precision_score, HARD),
    "recall": (skm.recall_score, HARD),
    "specificity": (specificity, HARD),
    "balanced_accuracy": (skm.balanced_accuracy_score, HARD),
    "log_loss": (skm.log_loss, P),
    "brier": (skm.brier_score_loss, P),
}


@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_weighted_metric_of_classes_is_that_of_scikit_learn(name):
    function, answers = OF_CLASSES[name]
    each, pooled = measured(name, LOGITS, Y, 2)
    for k, value in enumerate(each):
        mine = k == OWNER
        expected = function(Y[mine], answers[mine], sample_weight=WEIGHTS[mine])
        assert value == pytest.approx(expected, abs=1e-12)
    steps = answers.round(2) if "auc" in name else answers  # pooled by steps of log-odds
    assert pooled == pytest.approx(function(Y, steps, sample_weight=WEIGHTS), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("rmse", skm.root_mean_squared_error),
        ("mae", skm.mean_absolute_error),
        ("r2", skm.r2_score),
    ],
)
def test_a_weighted_metric_of_values_is_that_of_scikit_learn(name, function):
    y, predicted = rng.normal(size=N) + OWNER, rng.normal(size=(N, 1))
    each, pooled = measured(name, predicted, y, 0)
    for k, value in enumerate(each):
        mine = k == OWNER
        expected = function(y[mine], predicted[mine], sample_weight=WEIGHTS[mine])
        assert value == pytest.approx(expected, abs=1e-12)
    assert pooled == pytest.approx(function(y, predicted, sample_weight=WEIGHTS), abs=1e-12)


NAMES = (*OF_CLASSES, "calibration_error", "auc_weighted", "f1_macro", "f1_weighted", "perplexity")


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_weight_three_is_three_samples(name):
    times = rng.integers(1, 4, N)
    again = np.repeat(np.arange(N), times)
    one = measured(name, LOGITS, Y, 2, weights=times.astype(float))
    other = measured(name, LOGITS[again], Y[again], 2, OWNER[again], weights=None)
    np.testing.assert_allclose(one[0], other[0], atol=1e-12)
    assert one[1] == pytest.approx(other[1], abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_one_change_no_bit_of_a_metric(name):
    one = measured(name, LOGITS, Y, 2, weights=np.ones(N))
    other = measured(name, LOGITS, Y, 2, weights=None)
    np.testing.assert_array_equal(one[0], other[0])
    assert one[1] == other[1]


@pytest.mark.parametrize("name", ["auc", "pr_auc", "f1", "specificity", "log_loss"])
def test_the_unit_of_weights_makes_no_difference(name):
    one, other = (measured(name, LOGITS, Y, 2, weights=u * WEIGHTS) for u in (1e-6, 1e9))
    np.testing.assert_allclose(one[0], other[0], atol=1e-12)


def test_a_client_of_one_class_has_no_specificity_whatever_it_weighs():
    y = np.where(OWNER == 0, 1, Y)
    each, _ = measured("specificity", LOGITS, y, 2)
    assert np.isnan(each[0]) and not np.isnan(each[1:]).any()


def federations(kind):
    """Weighted, and with repeated rows: the same figures are due."""
    x = rng.normal(size=(120, 3))
    y = (x[:, 0] > 0).astype(int) if kind == "classes" else x[:, 0] + rng.normal(size=120)
    clients, split = np.arange(120) % 4, np.array(["train", "test"])[np.arange(120) // 60]
    times = rng.integers(1, 4, 120)
    again = np.repeat(np.arange(120), times)
    return (
        il.Federation.from_arrays(x, y, clients, split=split, weight=times, kind=kind),
        il.Federation.from_arrays(
            x[again], y[again], clients[again], split=split[again], kind=kind
        ),
    )


def test_constant_answers_are_those_of_repeated_rows():
    one, other = (
        summarise(trivial(f, LOSSES["mse"], parse_metrics("rmse,r2")))
        for f in federations("values")
    )
    assert {k: v for k, v in one.items() if v == v} == pytest.approx(
        {k: v for k, v in other.items() if v == v}, abs=1e-12
    )
    one, other = (trivial(f, Loss()) for f in federations("classes"))
    torch.testing.assert_close(one.of_clients()[0], other.of_clients()[0])
    assert summarise(one)["accuracy"] == pytest.approx(summarise(other)["accuracy"], abs=1e-12)


def test_trees_go_by_weights():
    plain = il.Federation.from_arrays(LOGITS, Y, np.zeros(N), kind="classes")
    heavy = np.where(Y == 1, 50.0, 1.0)
    weighted = il.Federation.from_arrays(LOGITS, Y, np.zeros(N), kind="classes", weight=heavy)
    alike = il.Federation.from_arrays(LOGITS, Y, np.zeros(N), kind="classes", weight=np.ones(N))
    rows = [tree_rows(f, Loss(), parse_metrics("recall"))[1] for f in (plain, weighted, alike)]
    recall = [row["metrics"]["recall"]["mean"] for row in rows]
    assert recall[1] > 0.9 > recall[0] == recall[2]


def wrong(outputs, targets):
    return 0.0


def right(outputs, targets, sample_weight):
    hits = (outputs.argmax(1) == targets).double()
    return float((hits * sample_weight).sum() / sample_weight.sum())


def test_a_function_of_the_users_own_must_take_weights():
    data = il.Federation.from_arrays(LOGITS, Y, OWNER, weight=WEIGHTS)
    task = il.Task(torch.nn.Linear(2, 2))
    with pytest.raises(SettingError, match="samples have weights, and wrong does not go by them;"):
        check_metrics(task, data, parse_metrics([wrong]), "")
    result = il.run(
        "local",
        task,
        data,
        rounds=1,
        metrics=[right, ("theirs", skm.accuracy_score)],
        progress=False,
    )
    figures = result.record.seeds[0].final["test"]
    assert figures["right"] == pytest.approx(figures["accuracy"], abs=1e-12)
    assert figures["theirs"] == pytest.approx(figures["accuracy"], abs=1e-12)
