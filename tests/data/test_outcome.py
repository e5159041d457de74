"""Classes or values: the rule, its reasons, and how labels become class numbers."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from idiolect.core.knobs import SettingError
from idiolect.data.read.targets import FEW, read_column, read_targets


@pytest.mark.parametrize(
    ("values", "numbers", "labels"),
    [
        ([0.0, 1.0, 1.0, 0.0], [0, 1, 1, 0], (0.0, 1.0)),
        ([1, 2, 1], [0, 1, 0], (1, 2)),
        ([41401, 42731, 41401], [0, 1, 0], (41401, 42731)),
        ([-1, 1, 1], [0, 1, 1], (-1, 1)),
        (["yes", "no"], [1, 0], ("no", "yes")),
        ([True, False], [1, 0], (False, True)),
        ([1, "a", 1], [0, 1, 0], (1, "a")),
        (np.array([1, 5, 1], dtype=object), [0, 1, 0], (1, 5)),
        (torch.tensor([0.0, 1.0]), [0, 1], (0.0, 1.0)),
        (pd.Series([1, 5], dtype="Int64"), [0, 1], (1, 5)),
        (pd.Series([True, False], dtype="boolean"), [1, 0], (False, True)),
        (pd.Series(pd.Categorical(["lo", "hi"], ["lo", "mid", "hi"])), [0, 1], ("lo", "hi")),
        (pl.Series(["b", "a"]), [1, 0], ("a", "b")),
        (pl.Series(["b", "a"], dtype=pl.Categorical), [1, 0], ("a", "b")),
        (pl.Series(["b", "a"], dtype=pl.Enum(["b", "a"])), [0, 1], ("b", "a")),
        (pa.array(["b", "a"]), [1, 0], ("a", "b")),
        (pa.chunked_array([[7], [9]]), [0, 1], (7, 9)),
    ],
)
def test_few_labels_of_any_type_are_classes_and_keep_their_type(values, numbers, labels):
    found, names, reason = read_column(values)
    assert found.tolist() == numbers and found.dtype == np.int64
    assert names == labels and [type(n) for n in names] == [type(n) for n in labels]
    assert "read as" in reason


@pytest.mark.parametrize(
    "values",
    [
        [0.25, 1.5, 0.25, 1.5],
        np.arange(FEW + 1.0).repeat(5),
        np.arange(10.0),  # each occurs once
        [3.0, 3.0, 3.0],
    ],
)
def test_fractions_and_many_floating_numbers_are_values(values):
    numbers, labels, reason = read_column(values)
    assert numbers.tolist() == np.asarray(values, dtype=float).tolist() and labels == ()
    fractions = bool((numbers % 1).any())  # these need no note
    assert fractions != ("a regression; kind 'classes' makes them classes" in reason)


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (np.arange(100), 100),  # 0 to 99, all found
        (np.arange(1, 100), 99),
        (np.r_[np.arange(30), 40], 31),
        ([7, 7], 1),
        (np.arange(0, 300, 3), 0),
        (np.arange(18, 90), 0),
        (np.arange(50.0), 0),
    ],
)
def test_integers_are_class_numbers_where_most_of_them_occur(values, classes):
    numbers, _, _ = read_column(values)
    assert (0 if numbers.dtype.kind == "f" else int(numbers.max()) + 1) == classes


def test_class_numbers_stay_without_a_word():
    numbers, labels, reason = read_column([2, 0, 1, 1])
    assert (numbers.tolist(), labels, reason) == ([2, 0, 1, 1], (), "")
    numbers, labels, reason = read_column([1, 3], classes=5)
    assert (numbers.tolist(), labels, reason) == ([1, 3], (), "")


def test_the_kind_that_is_given_wins_and_nothing_is_said():
    assert read_column([0, 1], "values") == (pytest.approx([0.0, 1.0]), (), "")
    numbers, labels, reason = read_column([0.5, 1.5], "classes")
    assert (numbers.tolist(), labels, reason) == ([0, 1], (0.5, 1.5), "")


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ([1, None], "auto", "targets: row 1 is empty; every sample needs a target"),
        (pd.Series(["a", None]), "auto", "row 1 is empty"),
        (pl.Series([1, None]), "auto", "row 1 is empty"),
        (pa.array([1, None]), "auto", "row 1 is empty"),
        ([0.5, np.nan], "auto", "must be finite, got NaN or infinity in row 1"),
        ([0.5, np.inf], "classes", "must be finite, got NaN or infinity in row 1"),
        (["a", "b"], "values", "must be numbers for a regression, got texts"),
        (np.array(["2020"], dtype="datetime64[D]"), "auto", "got datetime64.* values"),
        ([("a", 1)], "auto", "must be numbers, got text"),
        (dict, "auto", "got the class dict"),
        ([1, 2], "class", "kind must be one of 'auto', 'classes', 'values', got 'class'"),
        ([-100, 0, 1, 0, 1, 1], "auto", "-100 marks an ignored position"),
    ],
)
def test_other_outcomes_are_refused_by_name(values, kind, message):
    with pytest.raises(SettingError, match=message):
        read_targets(values, 0 if values is dict else len(values), kind)


def test_a_column_without_samples_is_refused():
    with pytest.raises(SettingError, match="there are no samples"):
        read_column([])
