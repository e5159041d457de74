"""The split advisor: what it measures, what it chooses, what it must not look at."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.study.splits import choose
from reference import splits as reference
from reference.softmax import Network

FEATURES, HIDDEN, CLASSES = 6, 4, 3


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


@pytest.fixture(scope="module")
def federation():
    """Five clients of 15, 20, ... samples."""
    data = il.data.load("synthetic", clients=5, samples=100, features=FEATURES, classes=CLASSES)
    who = [k for k in range(5) for _ in range(15 + 5 * k)]
    rows = [data.part(k, "train") for k in range(5)]
    X = torch.cat([X[: 15 + 5 * k] for k, (X, _) in enumerate(rows)])
    y = torch.cat([y[: 15 + 5 * k] for k, (_, y) in enumerate(rows)])
    return il.Federation.from_arrays(X, y, who, classes=CLASSES)


SETTINGS = {"rounds": 0, "batching": "full", "dtype": "float64", "progress": False}


@pytest.fixture(scope="module")
def found(federation):
    return il.splits(network(), federation, finetune_steps=7, finetune_lr=0.3, **SETTINGS)


def row_of(found, part):
    return next(r for r in found.rows if r["part"] == part)


PRIVATE = {
    "none": np.arange(0),
    "layer:1": np.arange(28),
    "layer:2": np.arange(28, 43),
    "biases": np.r_[24:28, 40:43],
    "all": np.arange(43),
}


@pytest.mark.parametrize("part", PRIVATE)
def test_it_measures_what_a_loop_over_clients_in_numpy_does(federation, found, part):
    x0 = nn.utils.parameters_to_vector(network().double().parameters()).detach().numpy()
    clients = [
        tuple(
            (X.double().numpy(), y.numpy())
            for X, y in (federation.part(k, "train"), federation.part(k, "valid"))
        )
        for k in range(5)
    ]
    model = Network(FEATURES, HIDDEN, CLASSES)
    train, valid, norms, of_mean = reference.measure(model, x0, PRIVATE[part], clients, 0.3, 7)
    row = row_of(found, part)
    sizes = {s: federation.sizes(s).numpy() for s in ("train", "valid")}
    same = {"rel": 1e-10, "abs": 1e-12}
    assert row["train_loss"] == pytest.approx(np.average(train, weights=sizes["train"]), **same)
    assert row["valid_loss"] == pytest.approx(np.average(valid, weights=sizes["valid"]), **same)
    assert row["gradient_left"] == pytest.approx(np.mean(norms), **same)
    assert row["gradient_left_of_mean"] == pytest.approx(of_mean, **same)
    best = min((r for r in found.rows if r["shared"]), key=lambda r: r["valid_loss"])
    against = reference.measure(
        model, x0, PRIVATE.get(best["part"], PRIVATE["all"]), clients, 0.3, 7
    )
    if best["part"] in PRIVATE:
        gap, error = reference.weighted_gap(valid, against[1], sizes["valid"])
        assert row["gap"] == pytest.approx(gap, **same)
        assert row["gap_error"] == pytest.approx(error, **same)


def test_sizes_and_bytes_are_those_of_the_messages(federation, found):
    row = row_of(found, "layer:1")
    assert (row["private"], row["shared"]) == (28, 15)
    method = il.Ffgg(part="layer:1")
    settings = {"rounds": 1, "sample": 5, "dtype": "float64", "progress": False}
    sent = il.run(method, network(), federation, **settings).summary()["bytes"]
    assert row["bytes_per_round"] == sent["up"] + sent["down"]
    assert row_of(found, "all")["bytes_per_round"] == 0
    adapter = row_of(found, "adapter")
    assert adapter["shared"] == 43 and adapter["private"] == 4 * (6 + 4 + 4 + 3)


def test_adapters_start_where_the_model_is(federation):
    """Without a step an adapted model is the same function, and its gradient the same."""
    still = il.splits(network(), federation, finetune_steps=1, finetune_lr=1e-12, **SETTINGS)
    none, adapter = row_of(still, "none"), row_of(still, "adapter")
    for key in ("valid_loss", "train_loss", "gradient_left"):
        assert adapter[key] == pytest.approx(none[key], rel=1e-9)


def test_test_data_are_never_looked_at(federation, found):
    targets = federation.targets.clone()
    inputs = federation.inputs.clone()
    tests = slice(int(federation.offsets["test"][0]), int(federation.offsets["test"][-1]))
    inputs[tests] = math.nan
    targets[tests] = 0
    spoilt = replace(federation, inputs=inputs, targets=targets)
    again = il.splits(network(), spoilt, finetune_steps=7, finetune_lr=0.3, **SETTINGS)
    assert again.summary() == found.summary()


def test_the_order_and_the_chunks_of_clients_change_nothing(federation, found):
    again = il.splits(network(), federation, finetune_steps=7, finetune_lr=0.3, chunk=2, **SETTINGS)
    for a, b in zip(again.rows, found.rows, strict=True):
        assert a["valid_loss"] == pytest.approx(b["valid_loss"], rel=1e-12)
        assert a["gradient_left_of_mean"] == pytest.approx(b["gradient_left_of_mean"], rel=1e-12)


def test_the_best_rate_on_validation_data_is_taken(federation):
    asked = {"finetune_steps": 5, "parts": "layer:2", "rank": 0, **SETTINGS}
    best = row_of(il.splits(network(), federation, **asked), "layer:2")
    each = [
        row_of(il.splits(network(), federation, finetune_lr=lr, **asked), "layer:2")["valid_loss"]
        for lr in (0.03, 0.1, 0.3, 1.0)
    ]
    assert best["valid_loss"] == min(each)
    assert best["lr"] == [(0.03, 0.1, 0.3, 1.0)[each.index(min(each))]]


def test_several_seeds_are_averaged_and_widen_the_error(federation):
    asked = {"finetune_steps": 3, "rounds": 2, "sample": 2, "progress": False}
    make = lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.ReLU(), nn.Linear(4, CLASSES))  # noqa: E731
    both = il.splits(make, federation, seeds=2, **asked)
    one, two = (il.splits(make, federation, seed=s, **asked) for s in (0, 1))
    for a, b, c in zip(both.rows, one.rows, two.rows, strict=True):
        assert a["valid_loss"] == pytest.approx((b["valid_loss"] + c["valid_loss"]) / 2)
    assert both.facts["seeds"] == [0, 1]


def test_a_random_private_start_is_that_of_ffgg(federation):
    """What FFGG predicts with before its first round, solver and draws alike."""
    asked = {"finetune_steps": 6, "finetune_lr": 0.2, "parts": "layer:2", "rank": 0}
    random = il.splits(network(), federation, private_start="random", **asked, **SETTINGS)
    method = il.Ffgg(part="layer:2", start="random", solver="gd", private_lr=0.2, steps=6)
    settings = {"rounds": 0, "batching": "full", "dtype": "float64", "progress": False}
    ffgg = il.run(method, network(), federation, **settings).summary()["valid"]["loss"]["mean"]
    assert row_of(random, "layer:2")["valid_loss"] == pytest.approx(ffgg, rel=1e-10)
    common = il.splits(network(), federation, **asked, **SETTINGS)
    assert row_of(common, "layer:2")["valid_loss"] != pytest.approx(ffgg, rel=1e-6)
    assert row_of(common, "none") != row_of(random, "layer:2")


# -- candidates ------------------------------------------------------------------------------------
def test_a_transformer_has_a_candidate_per_block_and_what_is_around_them():
    tokens = torch.randint(7, (60, 5))
    data = il.Federation.from_arrays(tokens, tokens, [i % 3 for i in range(60)], classes=7)
    options = {"blocks": 2, "heads": 2, "width": 8, "hidden": 8}
    model = il.models.make("transformer", (5,), 7, **options)
    quick = {"rounds": 0, "finetune_steps": 1, "finetune_lr": 0.1, "progress": False}
    found = il.splits(model, data, **quick)
    assert [(r["part"], r["also"]) for r in found.rows] == [
        ("none", []),
        ("embedding", []),
        ("block:1", ["input"]),
        ("block:2", ["output"]),
        ("head", []),
        ("norms", []),
        ("biases", []),
        ("adapter", []),
        ("all", []),
    ]
    kind = il.splits(model, data, adapter="bottleneck", rank=3, parts="adapter;head", **quick)
    assert [r["name"] for r in kind.rows] == ["none", "head", "adapter (bottleneck 3)", "all"]
    own = il.models.adapt(model, 2)
    parts = [r["part"] for r in il.splits(own, data, **quick).rows]
    assert parts[-3:] == ["adapter", "adapter,norms", "all"]


def test_running_statistics_go_along(federation):
    model = nn.Sequential(
        nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES)
    )
    found = il.splits(
        model, federation, rounds=2, finetune_steps=2, finetune_lr=0.1, batch=8, progress=False
    )
    assert all(math.isfinite(r["valid_loss"]) for r in found.rows)
    assert row_of(found, "norms")["private"] == 8


# -- the choice ------------------------------------------------------------------------------------
def a_row(part, private, loss, error=0.01, best=0.3):
    return {
        "part": part,
        "name": part,
        "also": [],
        "private": private,
        "shared": 100 - private,
        "valid_loss": loss,
        "gap": loss - best,
        "gap_error": error,
        "tied": loss - best <= error,
        "gradient_before": 1.0,
        "gradient_left": 0.5,
        "gradient_left_of_mean": 0.4,
    }


def test_of_candidates_within_the_error_the_smallest_private_part_is_taken():
    rows = [a_row("none", 0, 0.9), a_row("layer:1", 50, 0.3), a_row("layer:2", 10, 0.305)]
    choice, reasons = choose([*rows, a_row("all", 100, 0.4)], 10)
    assert choice == "layer:2"
    assert "layer:1: within one standard error of the best" in reasons[1]
    assert "more for the shared part to learn" in reasons[2]


def test_beyond_the_error_the_best_is_taken():
    rows = [a_row("none", 0, 0.9), a_row("layer:1", 50, 0.3), a_row("layer:2", 10, 0.32)]
    assert choose([*rows, a_row("all", 100, 0.4)], 10)[0] == "layer:1"


def test_where_the_shared_model_is_as_good_nothing_needs_to_be_personal():
    rows = [a_row("none", 0, 0.301), a_row("layer:1", 50, 0.3)]
    choice, reasons = choose([*rows, a_row("all", 100, 0.4)], 10)
    assert choice == "none" and "no part needs to be personal (fedavg)" in reasons[0]


def test_a_whole_model_of_ones_own_is_said_where_it_is_better():
    rows = [a_row("none", 0, 0.9), a_row("layer:1", 50, 0.3), a_row("all", 100, 0.2)]
    assert "does better still (0.2000)" in choose(rows, 10)[1][-1]


def test_a_shared_gradient_near_zero_is_said():
    rows = [a_row("none", 0, 0.9), a_row("layer:1", 50, 0.3) | {"gradient_left": 0.01}]
    assert "the shared part will hardly move" in choose([*rows, a_row("all", 100, 0.4)], 10)[1][1]


@pytest.mark.parametrize("part", ["layer:1", "layer:2"])
def test_the_part_that_differs_between_clients_is_found(part):
    """Clients who see the world turned around need another input; other labels, another output."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6 * 120, 8))
    hidden = np.tanh(X @ rng.normal(size=(8, 6)))
    y = (hidden @ rng.normal(size=(6, 4))).argmax(1)
    who = np.arange(len(X)) % 6
    if part == "layer:1":
        turns = [np.linalg.qr(rng.normal(size=(8, 8)))[0] for _ in range(6)]
        X = np.stack([turns[k] @ x for x, k in zip(X, who, strict=True)])
    else:
        orders = [rng.permutation(4) for _ in range(6)]
        y = np.array([orders[k][c] for c, k in zip(y, who, strict=True)])
    data = il.Federation.from_arrays(X, y, who.tolist(), classes=4)
    model = lambda: nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))  # noqa: E731
    asked = {"rounds": 20, "start": "fedavg:lr=0.3", "rank": 0, "parts": "layer:1;layer:2"}
    assert il.splits(model, data, progress=False, **asked).choice == part


# -- errors ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"parts": "layer:3"}, "layer:1 to layer:2"),
        ({"parts": "all"}, "must leave something to share"),
        (
            {"start": "local"},
            "start must be a method that has a shared model, such as fedavg, got local",
        ),
        ({"adapter": "lora"}, "one of low-rank, bottleneck, conv"),
        ({"rank": -1}, "rank"),
        ({"private_start": "kept"}, "'common' or 'random'"),
        ({"batchh": 3}, "did you mean 'batch'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(federation, asked, says):
    with pytest.raises(SettingError) as error:
        il.splits(network(), federation, **{**SETTINGS, "finetune_steps": 1, **asked})
    assert says in str(error.value)


def test_a_model_of_one_layer_has_no_parts_but_adapters_and_biases(federation):
    quick = {**SETTINGS, "finetune_steps": 1}
    found = il.splits(nn.Linear(FEATURES, CLASSES), federation, **quick)
    assert [r["part"] for r in found.rows] == ["none", "biases", "adapter", "all"]
    with pytest.raises(SettingError, match="one layer alone"):
        il.splits(nn.Linear(FEATURES, CLASSES, bias=False), federation, rank=0, **quick)


def test_without_validation_data_there_is_no_choice():
    data = il.data.load("synthetic", clients=3, samples=20, valid=0.0)
    with pytest.raises(SettingError, match="no client has validation data"):
        il.splits(nn.Linear(60, 10), data)


def test_a_start_that_diverged_is_said(federation):
    model = network()
    nn.init.constant_(model[0].weight, 1e38)
    quick = {"rounds": 0, "finetune_steps": 1, "progress": False}
    with pytest.raises(SettingError, match="the start has diverged"):
        il.splits(model, federation, **quick)
