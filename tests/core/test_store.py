"""Private rows: made when a client is first met, versioned by round, in memory or in a file."""

import gc
import os
import re
from pathlib import Path

import pytest
import torch

from idiolect.core.knobs import SettingError
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
    files = [Path(folder) / f for folder, _, files in os.walk(tmp_path) for f in files]
    assert {re.sub("[0-9]+", "N", f.name) for f in files} == {"rows-N.bin"}
    assert {f.stat().st_mode & 0o777 for f in files} == {0o600}
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
    with pytest.raises(ValueError, match=r"rows '[xn]'"):
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


# -- going back ------------------------------------------------------------------------------------
@kinds
def test_rows_go_back_to_what_they_were_before_a_round(limit, tmp_path):
    """Some of them, whoever else was written in it, in whichever chunks."""
    s = store(limit, tmp_path)
    step(s, [0, 1, 2, 5], 0)
    before = everything(s)
    version = s.version.clone()
    step(s, [0, 1], 1)
    step(s, [2, 6], 1)
    after = everything(s)
    s.back(torch.tensor([1, 4, 6]), 1)
    gone = torch.tensor([False, True, False, False, False, False, True]).unsqueeze(1)
    for n, t in everything(s).items():
        assert torch.equal(t, torch.where(gone, before[n], after[n]))
    assert s.version.tolist() == [1, 0, 1, -1, -1, 0, -1]
    assert torch.equal(s.version[gone.squeeze()], version[gone.squeeze()])
    s.back(torch.tensor([1]), 1)  # twice is once
    assert torch.equal(everything(s)["x"][1], before["x"][1])


@kinds
def test_everyone_goes_back(limit, tmp_path):
    s = store(limit, tmp_path)
    everyone = torch.arange(N)
    step(s, everyone.tolist(), 3)
    before = everything(s)
    step(s, everyone.tolist(), 4)
    s.back(everyone, 4)
    s.settle(4)
    assert all(torch.equal(t, before[n]) for n, t in everything(s).items())
    assert s.version.tolist() == [3] * N and not s._before


@kinds
def test_a_round_that_was_taken_back_is_run_again_as_if_for_the_first_time(limit, tmp_path):
    s = store(limit, tmp_path)
    step(s, [1, 2], 0)
    once = everything(s)
    for _ in range(2):
        s.back(torch.tensor([1, 2]), 0)
        step(s, [1, 2], 0)
        assert all(torch.equal(t, once[n]) for n, t in everything(s).items())


@kinds
def test_a_settled_round_leaves_nothing_behind_and_rows_of_later_rounds_are_kept(limit, tmp_path):
    s = store(limit, tmp_path)
    step(s, [0, 1], 0)
    s.settle(0)
    assert not s._before
    files = len(list(tmp_path.rglob("*.bin")))
    for round in range(1, 5):
        step(s, [0, 1], round)
        s.settle(round - 1)
        assert len(s._before) == 1
        s.settle(round)
        assert len(list(tmp_path.rglob("*.bin"))) == files


def test_what_is_kept_of_rows_in_files_is_in_files(tmp_path):
    s = store(1, tmp_path)
    step(s, [0, 1], 0)
    (before,) = s._before
    mapped = {t.data_ptr() for t in before.rows.values()}
    assert mapped <= s._files._paths.keys()


@kinds
def test_rows_that_a_method_hands_back_unchanged_are_kept_by_value(limit, tmp_path):
    """The same tensor comes back from an update of everyone; later a part of it is written."""
    s = store(limit, tmp_path)
    everyone = torch.arange(N)
    s.write(everyone, 0, s.read(everyone, 0))
    s.write(torch.tensor([2]), 0, {n: t + 9 for n, t in s.read(torch.tensor([2]), 0).items()})
    s.back(torch.tensor([2]), 0)
    assert everything(s)["x"][2].tolist() == [2.0] * D


def test_a_store_that_keeps_nothing_cannot_go_back():
    s = Store(3, lambda ids: {"x": torch.zeros(len(ids), 2)}, keep=False)
    s.write(torch.arange(3), 0, {n: t + 1 for n, t in s.read(torch.arange(3), 0).items()})
    s.back(torch.arange(3), 1)  # nothing of that round
    with pytest.raises(RuntimeError, match="keeps no rows from before"):
        s.back(torch.tensor([1]), 0)


# -- what others have saved ------------------------------------------------------------------------
def renamed(saved, old, new):
    return {new if n == old else n: t for n, t in saved.items()}


FOREIGN = {
    "a path for a name": (
        lambda s: renamed(s, "rows.x", "rows./tmp/w3-escaped"),
        "'rows./tmp/w3-escaped' is not expected; expected: version, made, rows.x, rows.n",
    ),
    "a name more": (lambda s: {**s, "rows.y": s["rows.x"]}, "'rows.y' is not expected"),
    "a name less": (lambda s: {n: t for n, t in s.items() if n != "rows.n"}, "'rows.n' is missing"),
    "wider rows": (
        lambda s: {**s, "rows.x": torch.zeros(N, 2 * D)},
        r"float32\[7, 6\]; float32\[7, 3\] is expected",
    ),
    "another dtype": (lambda s: {**s, "rows.x": s["rows.x"].double()}, "float64"),
    "more clients": (lambda s: {n: torch.cat([t, t]) for n, t in s.items()}, r"\[7\] is expected"),
    "a round to come": (lambda s: {**s, "version": s["version"] + 9}, "a round that is not done"),
    "a round before all": (lambda s: {**s, "version": s["version"] - 9}, "round that is not done"),
    "written, never met": (lambda s: {**s, "made": ~s["made"]}, "its client was never met"),
    "met, without rows": (
        lambda s: {n: t for n, t in s.items() if not n.startswith("rows.")},
        "their rows are missing",
    ),
    "versions that are no whole numbers": (
        lambda s: {**s, "version": s["version"].float()},
        "'version' is float32",
    ),
}


@kinds
@pytest.mark.parametrize(("change", "says"), FOREIGN.values(), ids=FOREIGN.keys())
def test_only_what_the_store_declares_is_loaded_and_nothing_else_is_touched(
    limit, change, says, tmp_path
):
    s = store(limit, tmp_path)
    step(s, [1, 2], 0)
    step(s, [2, 6], 1)
    saved = change({n: t.clone() for n, t in s.save().items()})
    (tmp_path / "other").mkdir()
    again = store(limit, tmp_path / "other")
    with pytest.raises(ValueError, match=says):
        again.load(saved, rounds=2)
    assert not list((tmp_path / "other").iterdir()) and not Path("/tmp/w3-escaped").exists()
    assert not again.made.any()
    again.load({n: t.clone() for n, t in s.save().items()}, rounds=2)


# -- a full disk -----------------------------------------------------------------------------------
def full(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no posix_fallocate here")
def test_a_full_disk_is_an_error_before_rows_are_written(tmp_path, monkeypatch):
    s = store(1, tmp_path)
    step(s, [0, 1], 0)
    rows = everything(s)
    s.settle(0)
    monkeypatch.setattr(os, "posix_fallocate", full)
    says = f"memory: .* no room for them in {tmp_path} .No space left on device.: .* GiB"
    with pytest.raises(SettingError, match=says):
        step(s, [0, 1], 1)
    assert torch.equal(s.read(torch.arange(2))["x"], rows["x"][:2])


def test_space_is_reserved_for_the_rows_that_are_written_and_no_others(tmp_path):
    wide = 1 << 18  # a row takes 1 MiB
    s = Store(64, lambda ids: {"x": torch.ones(len(ids), wide)}, 1, tmp_path)
    s.read(torch.tensor([5, 6, 40]))
    (file,) = tmp_path.rglob("*.bin")
    assert file.stat().st_size == 64 << 20
    assert 3 << 20 <= file.stat().st_blocks * 512 < 4 << 20


def test_space_is_reserved_where_the_system_offers_nothing_for_it(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    s = store(1, tmp_path)
    step(s, [1, 2], 0)
    assert everything(s)["x"][:, 0].tolist() == [0, 3, 5, 3, 4, 5, 6]
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SettingError, match="No space left on device"):
        step(s, [1, 2], 1)


def test_a_round_whose_rows_from_before_are_gone_is_not_run_again():
    """Settled, or saved half done and loaded: a second step on top of the first is refused."""
    ids = torch.arange(2)

    def made() -> Store:
        return Store(2, lambda ids: {"x": torch.zeros(len(ids), 1)})

    settled = made()
    settled.write(ids, 3, {"x": settled.read(ids, 3)["x"] + 1})
    assert settled.read(ids, 3)["x"].flatten().tolist() == [0, 0]
    settled.settle(3)
    half_done = made()
    half_done.write(ids[:1], 3, {"x": half_done.read(ids[:1], 3)["x"] + 1})
    loaded = made()
    loaded.load(half_done.save())
    for store in (settled, loaded):
        with pytest.raises(RuntimeError, match="round 3 has written these rows before"):
            store.read(ids, 3)
        assert store.read(ids, 4)["x"].shape == (2, 1)


def test_rows_of_another_form_are_not_adopted():
    store = Store(2, lambda ids: {"x": torch.zeros(len(ids), 3)})
    assert not store.adopt({"x": torch.ones(2, 4)})
    assert not store.adopt({"x": torch.ones(2, 3, dtype=torch.float64)})
    assert not store.adopt({"y": torch.ones(2, 3)})
    assert not Store(2, lambda ids: {}).adopt({})
    assert store.read(torch.arange(2))["x"].eq(0).all()
    assert store.adopt({"x": torch.ones(2, 3)}) and store.read(torch.arange(2))["x"].eq(1).all()


def test_files_leave_no_descriptor_open(tmp_path):
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("no /proc here")
    store = Store(50, lambda ids: {"x": torch.zeros(len(ids), 9)}, limit=0, scratch=tmp_path)
    store.read(torch.arange(5))
    before = len(list(folder.iterdir()))
    for round in range(10):
        ids = torch.arange(0, 50, 1 + round % 3)
        store.write(ids, round, {"x": store.read(ids, round)["x"] + 1})
        store.settle(round)
    assert store.file_backed and len(list(folder.iterdir())) <= before


def test_the_error_of_a_full_disk_says_how_much_is_needed(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    store = Store(1 << 20, lambda ids: {"x": torch.zeros(len(ids), 1 << 10)}, 0, tmp_path)
    with pytest.raises(SettingError, match=r"they may take 4 GiB; make room there") as caught:
        store.read(torch.tensor([7]))
    assert str(tmp_path) in str(caught.value)
