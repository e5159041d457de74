"""A store of rows that gets more clients."""

import pytest
import torch

from idiolect.core.store import Store

D = 3
LIMITS = {"memory": 1 << 30, "file": 1, "a file once it has grown": 5 * D * 4}


def fresh(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"x": ids.unsqueeze(1) + torch.zeros(len(ids), D)}


def step(store: Store, ids: list[int], round: int) -> None:
    """x <- 2 x + 1, so that a step taken twice shows."""
    at = torch.tensor(ids)
    store.write(at, round, {"x": 2 * store.read(at, round)["x"] + 1})


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS.keys())
def test_rows_of_before_stay_and_new_ones_are_made_when_met(limit, tmp_path):
    store = Store(4, fresh, limit, tmp_path)
    step(store, [1, 3], 0)
    store.grow(6)
    assert store.clients == len(store.version) == len(store.made) == 6
    assert store.file_backed == (limit < 6 * D * 4)
    step(store, [3, 5], 1)
    rows = store.read(torch.arange(6))["x"][:, 0]
    assert rows.tolist() == [0, 3, 2, 15, 4, 11]
    assert store.version.tolist() == [-1, 0, -1, 1, -1, 1]


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS.keys())
def test_a_round_is_run_again_after_the_store_has_grown(limit, tmp_path):
    store = Store(4, fresh, limit, tmp_path)
    step(store, [0, 1, 2, 3], 0)
    store.grow(6)
    for _ in range(2):
        step(store, [0, 2, 5], 0)
        assert store.read(torch.arange(6))["x"][:, 0].tolist() == [1, 3, 5, 7, 4, 11]


def test_a_store_without_rows_grows():
    store = Store(2, lambda ids: {})
    store.read(torch.arange(2))
    store.grow(4)
    assert store.read(torch.arange(4)) == {} and store.made.all()


def test_a_store_does_not_shrink():
    store = Store(4, fresh)
    with pytest.raises(ValueError, match="clients must be at least the 4 of the store, got 3"):
        store.grow(3)
    store.grow(4)
    assert store.clients == 4


def test_what_was_saved_after_growing_is_loaded_into_a_store_that_has_not():
    grown = Store(4, fresh)
    step(grown, [1, 3], 0)
    grown.grow(6)
    step(grown, [5], 1)
    saved = {n: t.clone() for n, t in grown.save().items()}
    again = Store(4, fresh)
    step(again, [0], 0)  # forgotten
    with pytest.raises(ValueError, match=r"int64\[6\]; int64\[4\] is expected"):
        again.load(saved)
    again.load(saved, clients=6)
    assert again.clients == 6
    everyone = torch.arange(6)
    assert torch.equal(again.read(everyone)["x"], grown.read(everyone)["x"])


def test_a_store_that_loads_no_rows_has_none():
    store = Store(3, fresh)
    store.read(torch.arange(3))
    store.load(Store(3, fresh).save())
    assert not store.rows and not store.made.any()
    assert store.read(torch.tensor([2]))["x"].tolist() == [[2.0] * D]
