"""The file in which a grid stores its results."""

import errno
import os
from pathlib import Path

from idiolect.study import jobs as grid
from idiolect.study.jobs import finish, store, stored
from study.tiny_jobs import Square


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
