"""Rows of bytes of different lengths, read from left to right."""

import numpy as np
import pytest

from idiolect.wire import ragged
from idiolect.wire.ragged import Ragged, Reader


@pytest.mark.parametrize("wide", [1, 1 << 30])
def test_rows_that_are_read_from_different_places_on_give_their_own_bytes(wide, monkeypatch):
    monkeypatch.setattr(ragged, "WIDE", wide)
    strings = [bytes(range(i, i + 40)) for i in range(6)] + [b"abc", b""]
    reader = Reader(Ragged.of(strings))
    begins = np.array([0, 3, 1, 0, 7, 2, 1, 0])
    counts = np.array([10, 0, 12, 40, 5, 39, 2, 0])  # the one before the last three is too long
    reader.take(begins)
    out = reader.take(counts)
    for k, (string, a, count) in enumerate(zip(strings, begins, counts, strict=True)):
        expected = b"" if k == 5 else string[a : a + count]
        assert out[k].tobytes() == expected.ljust(out.shape[1], b"\0")
    assert reader.bad.tolist() == [False] * 5 + [True, False, False]
    assert reader.finished().tolist() == [False, False, False, True, False, False, True, True]


def test_stacked_and_joined_rows_keep_their_bytes():
    """Whatever their widths: more rows than bytes, more bytes than rows, and none at all."""
    parts = [[b"a", b"b", b"c"], [b"vwxyz"], [], [b""]]
    rows = [string for part in parts for string in part]
    whole = ragged.stacked([Ragged.of(part) for part in parts])
    assert [whole.row(k) for k in range(len(whole))] == rows
    left, right = [b"", b"ab", b"c"], [b"1234", b"", b"5"]
    both = ragged.join([Ragged.of(left), Ragged.empty(3), Ragged.of(right)])
    joined = [a + b for a, b in zip(left, right, strict=True)]
    assert [both.row(k) for k in range(3)] == joined


def test_a_rejected_row_is_not_finished_though_it_was_read_to_its_end():
    reader = Reader(Ragged.of([b"a", b"b", b"c"]))
    reader.take(1)
    reader.reject(np.array([False, True, False]))
    reader.reject(np.array([True]), np.array([False, False, True]))
    assert reader.finished().tolist() == [True, False, False]
