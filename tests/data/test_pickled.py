"""Pickles of frames are read as data: nothing that they name is called."""

import os
import pickle
import sys

import numpy as np
import pytest

from data.pickles import Call, Name, dump, new_array, new_frame, old_array, old_frame
from idiolect.core.knobs import SettingError
from idiolect.data.sets import pickles as pickled

NUMBERS = np.arange(6.0).reshape(2, 3)
LABELS = np.array([[7, 8, 9]])


def table(frame):
    found = pickled.table(pickled.read(dump(frame)))
    return {name: list(column) for name, column in found.items()}


@pytest.mark.parametrize("fortran", [False, True])
def test_a_frame_of_old_pandas_is_read(fortran):
    blocks = [(old_array(NUMBERS, fortran), 0, 2), (old_array(LABELS), 2, 3)]
    expected = {"a": [0, 1, 2], "b": [3, 4, 5], "label": [7, 8, 9]}
    assert table(old_frame(["a", "b", "label"], blocks, 3)) == expected


def test_a_frame_of_newer_pandas_is_read_with_its_columns_in_place():
    words = old_array(["x", float("nan"), "y"], shape=(1, 3))
    blocks = [(new_array(NUMBERS), [0, 2]), (words, [1])]
    expected = {"a": [0, 1, 2], "word": ["x", None, "y"], "b": [3, 4, 5]}
    assert table(new_frame(["a", "word", "b"], blocks, 3)) == expected


def test_the_present_pandas_is_not_needed():
    assert "pandas" not in vars(pickled)


class Evil:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize(
    "function, name",
    [(os.mkdir, "mkdir"), (eval, "builtins.eval"), (exec, "exec"), (getattr, "getattr")],
)
def test_a_pickle_that_calls_something_is_refused_before_it_does(
    tmp_path, protocol, function, name
):
    target = tmp_path / "evil"
    argument = str(target) if function is os.mkdir else f"__import__('os').mkdir({str(target)!r})"
    raw = pickle.dumps([1, Evil(function, argument)], protocol)
    with pytest.raises(SettingError, match=f"the pickle names '.*{name}'"):
        pickled.read(raw)
    assert not target.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"cidiolect.data.sets.pickles\nPickledCall\n.",
        b"cnumpy\ncore\n.",
        b"\x80\x04\x8c\x08builtins\x8c\x0fobject.__class__\x93.",
        b"(S'true'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'true'\no.",  # OBJ
        b"\x80\x02\x82\x01.",  # EXT1
        b"Ptoken\n.",  # PERSID
    ],
)
def test_other_ways_to_name_things_are_refused(raw):
    with pytest.raises(SettingError, match="the pickle "):
        pickled.read(raw)


def test_the_names_that_are_known_make_inert_records_only():
    made = pickled.read(dump(Call("_codecs", "encode", ("a", "rot13"), {"x": 1})))
    assert isinstance(made, pickled.PickledCall) and not callable(made)
    assert (made.name, made.args, made.state) == ("_codecs.encode", ("a", "rot13"), {"x": 1})
    with pytest.raises(SettingError, match="damaged"):  # a state cannot be given to the class
        pickled.read(b"\x80\x02c_codecs\nencode\n}b.")


@pytest.mark.parametrize("raw", [b"", b"junk", b"\x80\x04", b"\x80\x04]", b"r\xff\xff\xff\xff."])
def test_a_damaged_pickle_is_refused(raw):
    with pytest.raises(SettingError, match="damaged"):
        pickled.read(raw)


def test_a_large_place_in_the_memo_takes_no_memory():
    assert pickled.read(b"K\x01r\xff\xff\xff\x7f.") == 1  # LONG_BINPUT at 2**31 - 1


def test_a_pickle_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(pickled, "LIMIT", 3)
    with pytest.raises(SettingError, match="at most 3"):
        pickled.read(b"K\x01..")


@pytest.mark.parametrize(
    "array, message",
    [
        (old_array(NUMBERS, shape=(2, 2**40)), "shape .2, 1099511627776. with 6 values"),
        (old_array(NUMBERS, shape=(-2, -3)), "shape .-2, -3."),
        (old_array(NUMBERS, shape=(2, 3, 1)), "shape .2, 3, 1."),
        (new_array(NUMBERS, shape=(2, 4)), "with 6 values"),
        (old_array(NUMBERS.astype(np.float32)), "an array of f4; accepted: f8, i8 and text"),
        (old_array([["nested"]], shape=(1, 1)), "not all text"),
        (Name("numpy", "ndarray"), "_reconstruct is expected"),
        (5, "_reconstruct is expected, not int"),
        (old_array(NUMBERS[:, :2]), "a column of 2 values for 3 rows"),
        (old_array(NUMBERS[:1]), "1 columns for 2 names"),
    ],
)
def test_arrays_that_are_not_what_they_claim_are_refused(array, message):
    frame = old_frame(["a", "b"], [(array, 0, 2)], 3)
    with pytest.raises(SettingError, match=message):
        pickled.table(pickled.read(dump(frame)))


@pytest.mark.parametrize("value", [3, [], {"_data": 1}, Call("pandas.core.frame", "DataFrame")])
def test_what_is_no_frame_is_refused(value):
    with pytest.raises(SettingError, match="no table of numbers"):
        pickled.table(pickled.read(dump(value)))


def test_a_column_without_values_is_refused():
    with pytest.raises(SettingError, match="a column has no values"):
        pickled.table(
            pickled.read(dump(old_frame(["a", "b"], [(old_array(NUMBERS[:1]), 0, 1)], 3)))
        )


def test_nothing_is_imported_by_a_name_in_a_pickle():
    with pytest.raises(SettingError, match="antigravity"):
        pickled.read(b"cantigravity\nfly\n.")
    assert "antigravity" not in sys.modules
