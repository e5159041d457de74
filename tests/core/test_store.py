"""Private rows: made when a client is first met, versioned by round, in memory or in a file."""

import gc
import os

import pytest
import torch

from idiolect.core.store import Store

N = 7
D = 3


def fresh(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "x": ids.unsqueeze(1) + torch.zeros(len(ids), D),
        "n": torch.full((len(ids), 1), -1, dtype=torch.int64),
    }


def store(limit: int, tmp_path, made=fresh) -> Store:
    return Store(N, made, limit, tmp_path)


def everything(s: Store) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in s.read(torch.arange(N)).items()}


def step(s: Store, ids: list[int], round: int, by: float = 1.0) -> None:
    """A round: x <- 2 x + by, so that a step taken twice shows."""
    i = torch.tensor(ids)
    rows = s.read(i, round)
    s.write(i, round, {"x": 2 * rows["x"] + by, "n": torch.full_like(rows["n"], round)})


LIMITS = {"memory": 1 << 30, "file": 1}
kinds = pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS.keys())


@kinds
def test_rows_are_made_when_a_client_is_first_met(limit, tmp_path):
    met = []
    s = store(limit, tmp_path, lambda ids: met.extend(ids.tolist()) or fresh(ids))
    assert s.read(torch.tensor([4, 2]))["x"].tolist() == [[4.0] * D, [2.0] * D]
    s.read(torch.tensor([2, 5]))
    s.read(torch.arange(N))
    assert met == [4, 2, 5, 0, 1, 3, 6]


@kinds
def test_a_repeated_round_starts_from_the_rows_before_it(limit, tmp_path):
    s = store(limit, tmp_path)
    step(s, [0, 1, 2], 0)
    step(s, [1, 3], 1)
    once = everything(s)
    for _ in range(3):
        step(s, [1, 3], 1)
        assert all(torch.equal(t, everything(s)[n]) for n, t in once.items())
    assert once["x"][:, 0].tolist() == [1, 7, 5, 7, 4, 5, 6]


@kinds
def test_a_repeated_round_of_everyone_starts_from_the_rows_before_it(limit, tmp_path):
    s = store(limit, tmp_path)
    step(s, list(range(N)), 0)
    step(s, list(range(N)), 1)
    once = everything(s)
    step(s, list(range(N)), 1)
    step(s, [2, 3], 1)
    assert torch.equal(everything(s)["x"], once["x"]) and once["x"][0, 0] == 3


@kinds
def test_a_round_in_chunks_can_be_repeated_in_other_chunks(limit, tmp_path):
    s = store(limit, tmp_path)
    for chunk in ([0, 1], [2, 3], [4]):
        step(s, chunk, 5)
    once = everything(s)
    for chunk in ([0], [1, 2, 3], [4]):
        step(s, chunk, 5)
    assert torch.equal(everything(s)["x"], once["x"])


@kinds
def test_a_round_repeated_for_more_clients_can_be_repeated_again(limit, tmp_path):
    s = store(limit, tmp_path)
    step(s, [0, 1], 0)
    step(s, [0, 1, 2], 0)
    once = everything(s)
    step(s, [0, 1, 2], 0)
    assert torch.equal(everything(s)["x"], once["x"])


@kinds
def test_reading_for_the_next_round_gives_the_newest_rows(limit, tmp_path):
    s = store(limit, tmp_path)
    step(s, [0], 0)
    assert (
        s.read(torch.tensor([0]), 1)["x"][0, 0] == 1
        and s.read(torch.tensor([0]), 0)["x"][0, 0] == 0
    )
    assert s.read(torch.tensor([0]))["x"][0, 0] == 1


def test_a_file_gives_the_rows_that_memory_gives(tmp_path):
    memory = store(1 << 30, tmp_path)
    file = store(1, tmp_path)
    g = torch.Generator().manual_seed(0)
    for round in range(6):
        ids = (
            torch.randperm(N, generator=g)[:4].sort().values.tolist()
            if round != 3
            else list(range(N))
        )
        for s in (memory, file):
            step(s, ids, round, by=0.5)
            if round == 4:
                step(s, ids, round, by=0.5)
    assert file.file_backed and not memory.file_backed
    a = memory.save()
    b = file.save()
    assert a.keys() == b.keys() and all(torch.equal(t, b[n]) for n, t in a.items())


def test_rows_go_to_a_file_only_above_the_limit(tmp_path):
    size = N * (4 * D + 8)
    for limit, backed in ((size, False), (size - 1, True)):
        s = store(limit, tmp_path)
        s.read(torch.tensor([0]))
        assert s.file_backed is backed


def test_the_file_is_in_the_scratch_folder_and_goes_with_the_store(tmp_path):
    s = store(1, tmp_path)
    step(s, [0, 3], 0)
    assert {f for _, _, files in os.walk(tmp_path) for f in files} == {"x", "n"}
    del s
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@kinds
def test_saved_rows_load_into_a_new_store(limit, tmp_path):
    s = store(limit, tmp_path)
    step(s, [1, 2], 0)
    step(s, [2, 6], 1)
    again = store(limit, tmp_path)
    again.load({n: t.clone() for n, t in s.save().items()})
    for other in (s, again):
        step(other, [0, 2, 6], 2)
    assert all(torch.equal(t, again.save()[n]) for n, t in s.save().items())
    assert again.made.tolist() == [True, True, True, False, False, False, True]


@kinds
@pytest.mark.parametrize(
    "rows",
    [
        {"x": torch.zeros(2, D + 1)},
        {"x": torch.zeros(2, D).double()},
        {"x": torch.zeros(3, D)},
        {"x": torch.zeros(2, D, 1)},
        {"n": torch.zeros(2, 1)},
    ],
    ids=["wider", "another dtype", "more rows", "another shape", "real for whole"],
)
def test_rows_of_another_shape_or_dtype_are_refused_and_nothing_changes(limit, rows, tmp_path):
    s = store(limit, tmp_path)
    before = everything(s)
    with pytest.raises(ValueError, match=r"private '[xn]'"):
        s.write(torch.tensor([0, 1]), 0, rows)
    assert (
        all(torch.equal(t, before[n]) for n, t in everything(s).items())
        and s.version.tolist() == [-1] * N
    )


@kinds
def test_two_parts_that_are_one_tensor_stay_two_parts(limit, tmp_path):
    s = Store(
        N,
        lambda ids: {"a": torch.zeros(len(ids), D), "b": torch.zeros(len(ids), D)},
        limit,
        tmp_path,
    )
    ids = torch.arange(N)
    x = torch.ones(N, D)
    s.read(ids, 0)
    s.write(ids, 0, {"a": x, "b": x})
    s.write(torch.tensor([2]), 1, {"a": torch.full((1, D), 7.0), "b": torch.full((1, D), 9.0)})
    assert everything(s)["a"][2, 0] == 7 and everything(s)["b"][2, 0] == 9


def test_a_method_without_private_rows_keeps_none(tmp_path):
    s = store(1 << 30, tmp_path, lambda ids: {})
    assert s.read(torch.tensor([1, 2]), 0) == {}
    s.write(torch.tensor([1, 2]), 0, {})
    assert s.save().keys() == {"version", "made"}


def test_a_store_without_memory_of_the_round_before_refuses_to_run_it_again():
    store = Store(3, lambda ids: {"x": torch.zeros(len(ids), 2)}, keep=False)
    ids = torch.arange(3)
    store.write(ids, 0, {n: t + 1 for n, t in store.read(ids, 0).items()})
    assert torch.equal(store.read(ids, 1)["x"], torch.ones(3, 2)) and not store._before
    with pytest.raises(RuntimeError, match="round 0 is run again"):
        store.write(ids, 0, store.read(ids, 0))


@kinds
def test_all_rows_can_be_read_in_any_order(limit, tmp_path):
    order = torch.arange(N).flip(0)
    rows = store(limit, tmp_path).read(order)
    assert rows["x"][:, 0].tolist() == order.tolist()
