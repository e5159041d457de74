"""Rows that arrive in any order are held once, and given in order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idiolect.wire import admission as held
from idiolect.wire.admission import RowBuffer

PLACES = 7


def row(place: int) -> torch.Tensor:
    return torch.tensor([[float(place), -float(place)]])


def rows_of(places) -> torch.Tensor:
    return torch.cat([row(k) for k in places]) if len(places) else torch.zeros(0, 2)


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(PLACES)), st.lists(st.integers(0, PLACES), max_size=4), st.booleans())
def test_rows_come_out_in_order_however_they_came(order, cuts, look):
    at = RowBuffer(PLACES)
    seen: list[int] = []
    earlier: list[tuple[list[int], torch.Tensor]] = []
    for part in np.split(np.array(order), sorted(cuts)):
        at.put(np.sort(part), {"w": rows_of(np.sort(part))})
        seen += part.tolist()
        if look and seen:
            earlier.append((sorted(seen), at.rows()["w"]))
    assert torch.equal(at.rows()["w"], rows_of(range(PLACES)))
    for places, rows in earlier:  # what was given before has not changed
        assert torch.equal(rows, rows_of(places))


@pytest.mark.parametrize("moved", [1, 20, 1000])
@pytest.mark.parametrize("missing", [[0], [6], [2, 3], [0, 2, 4, 6], [1, 2, 3, 4, 5]])
def test_gaps_are_closed_in_place(missing, moved, monkeypatch):
    monkeypatch.setattr(held, "MOVED", moved)
    at = RowBuffer(PLACES)
    there = [k for k in range(PLACES) if k not in missing]
    for k in reversed(there):
        at.put(np.array([k]), {"w": row(k)})
    assert torch.equal(at.rows()["w"], rows_of(there))
    at.put(np.array(missing), {"w": rows_of(missing)})
    assert torch.equal(at.rows()["w"], rows_of(range(PLACES)))


@pytest.mark.parametrize("clients", [1, PLACES])
def test_rows_that_are_held_share_no_memory_with_the_messages_they_came_in(clients):
    at = RowBuffer(clients)
    message_rows = rows_of(range(clients)) + 1
    at.put(np.arange(clients), {"w": message_rows})
    message_rows.zero_()
    assert torch.equal(at.rows()["w"], rows_of(range(clients)) + 1)
