"""Long commands go on where they were, and settings beyond all measure are refused."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest
import torch

import idiolect as il
from idiolect import Interrupted
from idiolect.run.validate import numbers_fit
from idiolect.study import many as grid
from idiolect.study.many import finish, store, stored
from idiolect_papers import result_cache as module
from idiolect_papers.own import rules
from idiolect_papers.result_cache import kept
from study.tiny_jobs import Square


def counted(calls, value):
    def make():
        calls.append(value)
        return {"value": value}

    return make


def test_what_was_done_before_a_kill_is_not_done_again(tmp_path):
    path = tmp_path / "new folder" / ".page.jsonl"
    calls = []
    with pytest.raises(RuntimeError, match="killed"), kept(path) as keep:
        keep(counted(calls, 1), "first", {"rounds": 3})
        raise RuntimeError("killed")
    with kept(path) as keep:
        assert keep(counted(calls, 1), "first", {"rounds": 3}) == {"value": 1}
        assert keep(counted(calls, 2), "second", {"rounds": 3}) == {"value": 2}
        assert keep(counted(calls, 3), "first", {"rounds": 4}) == {"value": 3}
    assert calls == [1, 2, 3] and not path.exists()


def test_changed_code_finds_nothing(tmp_path, monkeypatch):
    calls = []
    with pytest.raises(RuntimeError, match="killed"), kept(tmp_path / "page.jsonl") as keep:
        keep(counted(calls, 1), "first")
        raise RuntimeError("killed")
    monkeypatch.setattr(module, "package_source", lambda: "changed")
    with kept(tmp_path / "page.jsonl") as keep:
        keep(counted(calls, 2), "first")
    assert calls == [1, 2]


def test_sigterm_stops_a_command_after_the_result_at_work(tmp_path):
    path = tmp_path / "page.jsonl"

    def stop():
        os.kill(os.getpid(), signal.SIGTERM)
        return 1

    with pytest.raises(Interrupted, match="the same command goes on"), kept(path) as keep:
        keep(stop, "first")
        keep(lambda: 2, "second")
    assert list(stored(path).values()) == [1]


def test_rules_go_on_where_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr(rules, "RULES", ("mean", "median"))
    monkeypatch.setattr(rules, "by_clients", lambda text: {"n = 10": (1.5, "alike", text)})
    monkeypatch.setattr(
        rules, "by_share", lambda text: {"δ = 0.1": None, "δ = 0.2": (2.0, "a", "b")}
    )
    whole = rules.write(tmp_path / "whole")
    done = []
    real = rules.by_clients

    def dying(text):
        done.append(text)
        if len(done) == 2:
            raise MemoryError
        return real(text)

    monkeypatch.setattr(rules, "by_clients", dying)
    with pytest.raises(MemoryError):
        rules.write(tmp_path / "parts")
    rules.write(tmp_path / "parts")
    assert done == ["mean", "median", "median"]
    assert [(tmp_path / "parts" / p.name).read_bytes() for p in whole] == [
        p.read_bytes() for p in whole
    ]
    assert {p.name for p in (tmp_path / "parts").iterdir()} == {p.name for p in whole}


# -- the file of a grid -------------------------------------------------------------------------
def test_a_grid_on_a_full_disk_goes_on_and_stores_what_it_has_when_there_is_room(
    tmp_path, monkeypatch, capsys
):
    path = tmp_path / "runs.jsonl"
    real = store

    def full(path: Path, lines: list[str]) -> None:
        with path.open("ab") as file:
            file.write(lines[0][:5].encode())  # what fits
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def report(results, job):
        if job == Square(0):
            monkeypatch.setattr(grid, "store", full)
        if job == Square(2):
            monkeypatch.setattr(grid, "store", real)

    results = finish([Square(n) for n in range(4)], path, report=report)
    assert [r["square"] for r in results.values()] == [0, 1, 4, 9]
    assert set(stored(path)) == {f"square {n}" for n in range(4)}
    assert "the square of 1 could not be written" in capsys.readouterr().err


def test_lines_that_are_not_text_count_as_not_run(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b'\xff\xfe{"key": 1}\n[[[\n' + b"[" * 100_000 + b"\n")
    assert stored(path) == {}
    finish([Square(2)], path)
    assert set(stored(path)) == {"square 2"}


# -- numbers beyond all measure -----------------------------------------------------------------
def test_a_step_size_that_the_precision_cannot_hold_is_refused():
    federation = il.data.load("synthetic", clients=4, samples=60)
    task = il.Task(lambda: torch.nn.Linear(60, 10))
    with pytest.raises(il.SettingError, match=r"lr: 1e\+300 is not accepted; numbers of float32"):
        il.run(il.FedAvg(lr=1e300), task, federation, rounds=1)
    with pytest.raises(il.SettingError, match=r"server_lr: 1e\+300 is not accepted"):
        il.run(il.FedAvg(), task, federation, rounds=1, server_lr=1e300)


def test_a_step_size_that_the_precision_holds_ends_in_a_collapse_that_is_reported(tmp_path):
    federation = il.data.load("synthetic", clients=4, samples=60)
    task = il.Task(lambda: torch.nn.Linear(60, 10))
    result = il.run(
        il.FedAvg(lr=1e300), task, federation, rounds=2, dtype="float64", directory=tmp_path / "run"
    )
    assert result.summary()["collapsed"] == [1]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["collapsed"] == [1]


def test_a_product_of_settings_that_overflows_is_a_clear_message():
    too_much = pytest.raises(il.SettingError, match="multiply to more than float32 holds")
    with too_much, numbers_fit("float32"):
        torch.zeros(1).add_(torch.ones(1), alpha=1e300)
    with pytest.raises(RuntimeError, match="shape"), numbers_fit("float32"):
        raise RuntimeError("another shape")
