"""Targets that users bring: labels of any type, several of them, tokens, masks, one-hot rows."""

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect as il
from idiolect import Federation
from idiolect.core.knobs import SettingError

N = 12
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
WHO = np.repeat(["a", "b", "c"], 4)


def of(targets, **options):
    return Federation.from_arrays(X, targets, WHO, valid=0, test=0, **options)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ((0.0, 1.0), "2 different values (0.0, 1.0) are read as classes"),
        ((1, 2), "kind 'values' makes it a regression, classes=3 keeps the numbers"),
        ((41401, 42731), "2 different values (41401, 42731) are read as classes"),
        ((-1, 1), "2 different values (-1, 1)"),
        (("no", "yes"), "texts are read as 2 classes (no, yes)"),
        ((False, True), "booleans are read as 2 classes (False, True)"),
    ],
)
def test_labels_of_any_type_become_class_numbers_and_are_kept(labels, said, capsys):
    f = of(list(labels) * 6)
    assert f.classes == 2 and f.class_names == labels
    assert f.targets.tolist() == [0, 1] * 6 and f.targets.dtype == torch.int64
    assert said in capsys.readouterr().err


def test_minus_one_beside_class_numbers_is_refused_unless_it_is_said_to_be_a_class():
    with pytest.raises(SettingError, match="-1 often stands for samples without a label"):
        of([-1, 0, 1] * 4)
    assert of([-1, 0, 1] * 4, kind="classes").class_names == (-1, 0, 1)


def test_the_guess_is_overruled_by_kind():
    assert of([0.0, 1.0] * 6, kind="values").classes == 0
    assert of([0, 1] * 6, kind="values").targets.is_floating_point()
    assert of([0.5, 1.5] * 6, kind="classes").class_names == (0.5, 1.5)


def test_the_number_of_classes_keeps_class_numbers_with_gaps():
    f = of([0, 1, 3] * 4, classes=4)
    assert (f.classes, f.class_names, f.targets.tolist()) == (4, (), [0, 1, 3] * 4)
    assert of([0, 1, 3] * 4).class_names == (0, 1, 3)


def test_names_of_classes_may_be_given():
    assert of([0, 1] * 6, class_names=["no", "yes"]).class_names == ("no", "yes")
    assert of(["b", "a"] * 6, class_names=["b", "a"]).targets.tolist() == [0, 1] * 6
    assert of([0, 1] * 6, class_names=["no", "yes", "never"]).classes == 3


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        (["b", "z"] * 6, {"class_names": ["b", "a"]}, "'z' is not among the class_names"),
        ([0, 2] * 6, {"class_names": ["b", "a"]}, "class 2 lies outside the 2 classes"),
        ([0, -1] * 6, {"class_names": ["b", "a"]}, "class -1 is negative"),
        ([0, 1] * 6, {"class_names": ["a", "a"]}, "class_names must differ, got one of them twice"),
        (
            [0, 1] * 6,
            {"class_names": ["a", "b"], "classes": 3},
            "classes must be the number of class_names, 2, got 3",
        ),
        (
            [0, 1] * 6,
            {"kind": "regression"},
            "kind must be one of 'auto', 'classes', 'values', got 'regression'",
        ),
        ([0, 1] * 6, {"classes": 2.5}, r"classes must be a whole number, got 2\.5"),
        (["a", None] * 6, {}, "row 1 is empty"),
        (
            np.eye(3)[np.arange(N) % 3],
            {},
            r"looks one-hot; give class numbers, targets.argmax\(1\)",
        ),
        (np.eye(3, dtype=int)[np.arange(N) % 3], {}, "looks one-hot"),
        (np.full((N, 4), -1), {}, "class -1 is negative; .* -100 marks positions to ignore"),
        (np.full((N, 4), -100), {}, "all positions are -100"),
        (np.full((N, 2), np.nan), {}, "targets must be finite, got NaN or infinity"),
        (
            np.full((N, 2), 0.5),
            {"kind": "classes"},
            "targets must be whole numbers of an integer type for kind 'classes'",
        ),
        ([["a", "b"]] * N, {}, "must be numbers, got text"),
        ({"a": ["x"] * N}, {}, r"targets\['a'\] must be numbers, got text"),
        (
            torch.nn.CrossEntropyLoss,
            {},
            "targets must be an array, samples first, got the class CrossEntropyLoss",
        ),
        ("ill", {}, "targets must be an array, samples first, got a str"),
    ],
)
def test_other_targets_are_refused_by_name(targets, options, message):
    with pytest.raises(SettingError, match=message):
        of(targets, **options)


@pytest.mark.parametrize(
    "column",
    [np.arange(N)[:, None] % 3, torch.arange(N)[:, None] % 3, [[k % 3] for k in range(N)]],
)
def test_a_column_of_targets_is_read_as_one_target_per_sample(column, capsys):
    assert of(column).targets.tolist() == [k % 3 for k in range(N)]
    assert "shape (12, 1) is read as (12,)" in capsys.readouterr().err


def test_a_frame_with_one_column_is_read_as_targets():
    assert of(pd.DataFrame({"ill": ["no", "yes"] * 6})).class_names == ("no", "yes")


def test_several_values_per_sample_make_a_regression():
    f = of(X[:, :2])
    assert f.classes == 0 and f.targets.tolist() == X[:, :2].tolist()
    assert of(np.eye(3)[np.arange(N) % 3], kind="values").targets.shape == (N, 3)


def test_tokens_and_masks_are_class_numbers_and_minus_100_is_ignored():
    tokens = np.where(X > 0, 4, -100)
    f = of(tokens)
    assert f.classes == 5 and f.targets.tolist() == tokens.tolist()
    assert of(np.zeros((N, 4, 4), dtype=bool)).targets.dtype == torch.int64


def test_token_targets_of_different_lengths_are_padded_with_what_is_ignored(capsys):
    f = of([[1] * (k % 3 + 1) for k in range(N)])
    assert f.targets[0].tolist() == [1, -100, -100]
    assert "padded with -100" in capsys.readouterr().err


def test_a_run_on_text_labels_learns():
    rng = np.random.default_rng(0)
    labels = np.array(["benign", "malignant"])[rng.integers(0, 2, 200)]
    x = rng.normal(size=(200, 2)) + 3 * (labels == "benign")[:, None]
    f = Federation.from_arrays(x, labels, rng.integers(1, 4, 200))
    task = il.Task(lambda: torch.nn.Linear(2, f.classes))
    result = il.run(il.FedAvg(lr=0.1), task, f, rounds=20, sample=3)
    assert result.summary()["accuracy"]["mean"] > 0.9
