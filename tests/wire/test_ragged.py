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
