"""Poisoned labels: at malicious clients, in their training data, nowhere else."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import idiolect as il
from idiolect.attacks import parse_attack, poison
from idiolect.core.knobs import SettingError
from idiolect.data.federation import Federation
from idiolect.task.losses import as_loss

MALICIOUS = torch.tensor([1, 4])


def federation(classes=5, clients=6, samples=60, shape=(), names=None, seed=0):
    rng = np.random.default_rng(seed)
    n = clients * samples
    y = rng.normal(size=(n, *shape)) if classes == 0 else rng.integers(0, classes, (n, *shape))
    ids = np.repeat(np.array(names or [f"site {k}" for k in range(clients)]), samples)
    return Federation.from_arrays(rng.normal(size=(n, 3)), y, ids, classes=classes or None)


def changed(a, b):
    """Rows whose target differs."""
    return (
        (a.targets != b.targets).flatten(1).any(1)
        if a.targets.dim() > 1
        else a.targets != b.targets
    )


def training(f, clients):
    rows = torch.zeros(len(f.targets), dtype=torch.bool)
    for k in clients.tolist():
        rows[f.offsets["train"][k] : f.offsets["train"][k + 1]] = True
    return rows


@pytest.mark.parametrize("shape", [(), (4,)], ids=["classes", "tokens"])
@pytest.mark.parametrize("classes", [2, 3, 5, 62])
def test_every_training_label_of_a_malicious_client_is_wrong_and_no_other_is_touched(
    classes, shape
):
    f = federation(classes, shape=shape)
    g = poison(f, MALICIOUS, classes, "random", seed=3)
    mask = training(f, MALICIOUS)
    assert bool((f.targets != g.targets)[mask].all())
    assert torch.equal(f.targets[~mask], g.targets[~mask])
    assert bool(((g.targets >= 0) & (g.targets < classes)).all())


@pytest.mark.parametrize(
    "kind,labels", [("random", "wrong"), ("random", "uniform"), ("flip", "wrong")]
)
def test_all_but_the_targets_is_the_same_federation(kind, labels):
    f = federation()
    before = f.fingerprint()
    g = poison(f, MALICIOUS, f.classes, kind, 0, labels)
    assert (
        g.inputs is f.inputs
        and g.offsets is f.offsets
        and g.names == f.names
        and g.classes == f.classes
        and g.name == f.name
    )
    assert g.targets.dtype == f.targets.dtype and g.targets.data_ptr() != f.targets.data_ptr()
    assert f.fingerprint() == before != g.fingerprint()
    for split in ("valid", "test"):
        for k in range(f.clients):
            assert torch.equal(f.part(k, split)[1], g.part(k, split)[1])


def test_two_classes_flip():
    f = federation(2)
    mask = training(f, MALICIOUS)
    for kind in ("random", "flip"):
        assert torch.equal(poison(f, MALICIOUS, 2, kind, 0).targets[mask], 1 - f.targets[mask])


def test_flip_mirrors_the_classes_and_twice_is_nothing():
    f = federation(5)
    g = poison(f, MALICIOUS, 5, "flip", 0)
    mask = training(f, MALICIOUS)
    assert torch.equal(g.targets[mask], 4 - f.targets[mask])
    assert poison(g, MALICIOUS, 5, "flip", 0).fingerprint() == f.fingerprint()
    assert torch.equal(
        poison(f, MALICIOUS.repeat(2), 5, "flip", 0).targets, g.targets
    )  # a client named twice flips once


def test_wrong_labels_are_uniform_over_the_others_and_uniform_ones_over_all():
    f = federation(4, clients=2, samples=60_000)
    y = f.part(1, "train")[1]
    wrong = poison(f, torch.tensor([1]), 4, "random", 0).part(1, "train")[1]
    counts = torch.bincount((wrong - y) % 4, minlength=4) / len(y)
    assert counts[0] == 0 and (counts[1:] - 1 / 3).abs().max() < 0.01
    uniform = poison(f, torch.tensor([1]), 4, "random", 0, "uniform").part(1, "train")[1]
    counts = torch.bincount((uniform - y) % 4, minlength=4) / len(y)
    assert (counts - 1 / 4).abs().max() < 0.01


def test_labels_are_fixed_by_seed_and_name_not_by_the_other_clients():
    f = federation()
    g = poison(f, MALICIOUS, 5, "random", 7)
    assert torch.equal(g.targets, poison(f, MALICIOUS, 5, "random", 7).targets)
    assert not torch.equal(g.targets, poison(f, MALICIOUS, 5, "random", 8).targets)
    alone = poison(f, torch.tensor([4]), 5, "random", 7)
    assert torch.equal(alone.part(4, "train")[1], g.part(4, "train")[1])
    keep = np.repeat(
        [k in (1, 4) for k in range(6)], 60
    )  # the same two clients in a smaller federation
    few = Federation.from_arrays(
        np.ones((120, 1)),
        np.zeros(120, dtype=int),
        np.repeat([f"site {k}" for k in range(6)], 60)[keep],
        classes=5,
    )
    whole = Federation.from_arrays(
        np.ones((360, 1)),
        np.zeros(360, dtype=int),
        np.repeat([f"site {k}" for k in range(6)], 60),
        classes=5,
    )
    small, large = (
        poison(few, torch.tensor([0, 1]), 5, "random", 7),
        poison(whole, MALICIOUS, 5, "random", 7),
    )
    assert torch.equal(small.part(1, "train")[1], large.part(4, "train")[1])


def test_real_targets_change_places_or_sign():
    f = federation(0)
    moved, negated = poison(f, MALICIOUS, 0, "random", 0), poison(f, MALICIOUS, 0, "flip", 0)
    mask = training(f, MALICIOUS)
    assert (
        torch.equal(negated.targets[mask], -f.targets[mask])
        and not changed(f, negated)[~mask].any()
    )
    assert not changed(f, moved)[~mask].any()
    for k in MALICIOUS.tolist():
        a, b = f.part(k, "train")[1], moved.part(k, "train")[1]
        assert torch.equal(a.sort().values, b.sort().values) and not torch.equal(a, b)


def test_nobody_malicious_changes_nothing():
    f = federation()
    assert (
        poison(f, torch.empty(0, dtype=torch.int64), 5, "random", 0).fingerprint()
        == f.fingerprint()
    )


def test_a_malicious_client_without_training_data_is_no_trouble():
    split = ["test"] * 2 + ["train"] * 2
    f = Federation.from_arrays(np.eye(4), [0, 1, 1, 0], ["a", "a", "b", "b"], split=split)
    assert poison(f, torch.tensor([0]), 2, "random", 0).fingerprint() == f.fingerprint()


@pytest.mark.parametrize(
    "options,words",
    [
        ({"kind": "swap"}, "kind must be one of 'random', 'flip', got 'swap'"),
        ({"labels": "any"}, "labels must be one of 'wrong', 'uniform', got 'any'"),
        (
            {"malicious": torch.tensor([6])},
            "malicious: [6] are not all clients; accepted: 0 to 5",
        ),
        ({"malicious": torch.tensor([-1, 2])}, "malicious: [-1, 2] are not all clients"),
        ({"classes": 3}, "classes must be at least 5 for false labels, got 3"),
        ({"classes": 0}, "for false labels, got 0"),
    ],
)
def test_bad_input_is_refused_in_words(options, words):
    with pytest.raises(SettingError) as error:
        poison(
            federation(),
            **({"malicious": MALICIOUS, "classes": 5, "kind": "random", "seed": 0} | options),
        )
    assert words in str(error.value)


def test_one_class_has_no_wrong_label_and_real_targets_have_no_classes():
    with pytest.raises(SettingError, match="classes must be at least 2 for false labels, got 1"):
        poison(federation(1), MALICIOUS, 1, "random", 0)
    with pytest.raises(
        SettingError, match="classes must be 0 for the real targets of 'arrays', got 5"
    ):
        poison(federation(0), MALICIOUS, 5, "flip", 0)


def test_an_attack_poisons_as_its_fields_say():
    f = federation()
    for line, kind, labels in [
        ("data-poison", "random", "wrong"),
        ("data-poison(labels=uniform)", "random", "uniform"),
        ("label-flip", "flip", "wrong"),
        ("scaling + data-poison(labels=uniform)", "random", "uniform"),
    ]:
        assert torch.equal(
            parse_attack(line).poison(f, MALICIOUS, 2).targets,
            poison(f, MALICIOUS, 5, kind, 2, labels).targets,
        )
    for line in ("same-value", "alie", "zero + scaling"):
        assert parse_attack(line).poison(f, MALICIOUS, 2) is f


# -- targets that do not count, and targets of other kinds -----------------------------------------
def masked(ignored: int, classes: int = 4, keep: float = 0.7):
    """Six targets per sample, some of them `ignored`."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, classes, (120, 6))
    y[rng.random(y.shape) > keep] = ignored
    ids = np.repeat([f"site {k}" for k in range(6)], 20)
    return Federation.from_arrays(rng.normal(size=(120, 6, 3)), y, ids)


KINDS = [("flip", "wrong"), ("random", "wrong"), ("random", "uniform")]


@pytest.mark.parametrize("kind,labels", KINDS)
@pytest.mark.parametrize("index", [-100, 0, 1, 3])
def test_ignored_targets_stay_ignored_and_no_other_becomes_one(kind, labels, index):
    f = masked(index)
    loss = as_loss(nn.CrossEntropyLoss(ignore_index=index))
    g = poison(f, MALICIOUS, 4, kind, 0, labels, loss)
    assert torch.equal(f.targets == index, g.targets == index)
    counted = training(f, MALICIOUS).unsqueeze(1) & (f.targets != index)
    false = g.targets[counted]
    assert bool(((false >= 0) & (false < 4)).all())
    if labels == "wrong" and (kind == "random" or index == -100):  # three classes have a middle one
        assert not bool((false == f.targets[counted]).any())


def test_the_classes_that_count_are_mirrored():
    f = masked(0)
    g = poison(f, MALICIOUS, 4, "flip", 0, loss=as_loss(nn.CrossEntropyLoss(ignore_index=0)))
    mirror = torch.tensor([0, 3, 2, 1])
    mask = training(f, MALICIOUS)
    assert torch.equal(g.targets[mask], mirror[f.targets[mask]])


def test_answers_yes_or_no_are_turned_round():
    """Several answers per sample as real numbers: 0 and 1, or probabilities under a binary loss."""
    rng = np.random.default_rng(0)
    ids = np.repeat([f"site {k}" for k in range(6)], 20)
    answers = (rng.random((120, 3)) > 0.5).astype(float)
    shares = rng.random((120, 3))
    for y, losses in (
        (answers, (None, "mse", nn.BCEWithLogitsLoss())),
        (shares, (nn.BCELoss(), F.binary_cross_entropy_with_logits)),
    ):
        f = Federation.from_arrays(rng.normal(size=(120, 3)), y, ids)
        mask = training(f, MALICIOUS)
        for loss in losses:
            g = poison(f, MALICIOUS, 0, "flip", 0, loss=loss and as_loss(loss))
            assert torch.equal(g.targets[mask], 1 - f.targets[mask])
    g = poison(f, MALICIOUS, 0, "flip", 0, loss=as_loss("mse"))
    assert torch.equal(g.targets[mask], -f.targets[mask])


@pytest.mark.parametrize("line", ["label-flip", "data-poison", "data-poison(labels=uniform)"])
@pytest.mark.parametrize("kernel", ["stacked", "rows", "vmap"])
def test_a_run_on_ignored_targets(line, kernel):
    model = partial(nn.Linear, 3, 4)
    result = il.run(
        *(il.FedAvg(steps=2, lr=0.05), il.Task(model), masked(-100)),
        **{"rounds": 2, "batch": 4, "attack": line, "malicious": 2, "kernel": kernel},
    )
    assert result.summary()["rejected"] == 0


def test_targets_that_the_loss_does_not_take_are_refused_before_the_first_round():
    rng = np.random.default_rng(0)
    ids = np.repeat([f"site {k}" for k in range(6)], 20)
    f = Federation.from_arrays(rng.normal(size=(120, 3)), rng.random(120), ids)

    def cross_entropy_of_shares(outputs, targets):
        return F.binary_cross_entropy(outputs.sigmoid().view_as(targets), targets, reduction="none")

    task = il.Task(partial(nn.Linear, 3, 1), cross_entropy_of_shares)
    settings = {"rounds": 1, "malicious": 2}
    with pytest.raises(SettingError, match=r"attack: it makes targets that the loss .* not take"):
        il.run(il.FedAvg(), task, f, attack="label-flip", **settings)
    il.run(il.FedAvg(), task, f, attack="data-poison", **settings)


def test_a_loss_that_ignores_a_class_number_beyond_the_outputs_says_what_to_do():
    f = masked(255)
    loss = nn.CrossEntropyLoss(ignore_index=255)
    with pytest.raises(SettingError, match=r"class 255 lies outside .* give the data ignored=255"):
        il.run(il.FedAvg(), il.Task(partial(nn.Linear, 3, 4), loss), f, rounds=1)
