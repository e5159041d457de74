"""What a run writes as it goes: there after a kill, cut off on resume, whole at the end."""

import csv
import errno
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save
from torch import nn

import idiolect as il
from idiolect.run import checkpoint
from idiolect.run import round_log as growing
from idiolect.run.checkpoint import CheckpointError
from idiolect.run.directory import RunDirectory
from idiolect.run.record import float32_safetensors
from idiolect.run.round_log import GrowingFile, Journal, Mark

FILES = ("metrics.csv", "ledger-seed-0.csv", "accuracy-seed-0.f32", "record.safetensors")


class Killed(BaseException):
    """Nothing in the code catches it: as good as a kill, for what is on the disk."""


def federation() -> il.Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=60)
    return il.Federation.from_arrays(rng.standard_normal((60, 4)), y, np.repeat(range(4), 15))


def run(directory=None, kill_at=None, resume=False, progress=None, **settings):
    def watch(seed, round, accuracy):
        if progress:
            progress(seed, round, accuracy)
        if (seed, round) == kill_at:
            raise Killed

    given = {"rounds": 6, "sample": 2, "batch": 4} | settings
    return il.run(
        il.FedAvg(),
        il.Task(lambda: nn.Linear(4, 3)),
        federation(),
        directory=directory,
        resume=resume,
        progress=watch,
        **given,
    )


def content(directory) -> dict[str, bytes]:
    found = sorted(p for p in directory.iterdir() if p.suffix in (".csv", ".f32"))
    return {p.name: p.read_bytes() for p in [*found, directory / "record.safetensors"]}


# -- metrics as they come -------------------------------------------------------------------------
def test_a_killed_run_has_left_a_line_per_evaluated_round(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path / "run", kill_at=(0, 4))
    whole = run()
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["1", "2", "3", "4"]
    assert [float(row["accuracy"]) for row in rows] == [
        h["accuracy"] for h in whole.seeds[0].history[:4]
    ]
    accuracy = np.fromfile(tmp_path / "run" / "accuracy-seed-0.f32", np.float32).reshape(4, 4)
    assert np.array_equal(accuracy, whole.seeds[0].by_client[:4])


def test_a_line_is_there_as_soon_as_its_round_is_evaluated(tmp_path):
    seen = []

    def progress(seed, round, accuracy):
        seen.append(len((tmp_path / "run" / "metrics.csv").read_text().splitlines()))

    run(tmp_path / "run", progress=progress, seeds=2, rounds=2)
    assert seen == [2, 3, 4, 5]


@pytest.mark.parametrize("kill_at", [(0, 1), (0, 3), (0, 6), (1, 1), (1, 5)])
@pytest.mark.parametrize("settings", [{}, {"eval_every": 2}], ids=["every", "second"])
def test_after_a_kill_and_a_resume_every_file_is_that_of_an_uninterrupted_run(
    kill_at, settings, tmp_path
):
    given = {"seeds": 2, "checkpoint_every": 2, **settings}
    run(tmp_path / "whole", **given)
    with pytest.raises(Killed):
        run(tmp_path / "run", kill_at=kill_at, **given)
    run(tmp_path / "run", resume=True, **given)
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_half_a_line_and_lines_of_lost_rounds_are_cut_off(tmp_path):
    run(tmp_path / "whole", checkpoint_every=2)
    with pytest.raises(Killed):
        run(tmp_path / "run", kill_at=(0, 5), checkpoint_every=2)
    for name in ("metrics.csv", "accuracy-seed-0.f32", "ledger-seed-0.csv"):
        with (tmp_path / "run" / name).open("ab") as file:
            file.write(b"0,6,0.1")
    run(tmp_path / "run", resume=True, checkpoint_every=2)
    assert content(tmp_path / "run") == content(tmp_path / "whole")


def test_a_changed_or_lost_table_of_metrics_is_written_again(tmp_path):
    run(tmp_path / "whole", checkpoint_every=2)
    for number, damage in enumerate((lambda p: p.unlink(), lambda p: p.write_bytes(b"x,y\r\n"))):
        directory = tmp_path / f"run-{number}"
        with pytest.raises(Killed):
            run(directory, kill_at=(0, 5), checkpoint_every=2)
        damage(directory / "metrics.csv")
        with pytest.raises(Killed):
            run(directory, kill_at=(0, 5), resume=True, checkpoint_every=2)
        metrics = (directory / "metrics.csv").read_bytes()
        assert (tmp_path / "whole" / "metrics.csv").read_bytes().startswith(metrics)
        run(directory, resume=True, checkpoint_every=2)
        assert content(directory) == content(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_accuracies_that_are_not_as_saved_are_refused_and_the_file_is_named(damage, tmp_path):
    with pytest.raises(Killed):
        run(tmp_path / "run", kill_at=(0, 5), checkpoint_every=2)
    path = tmp_path / "run" / "accuracy-seed-0.f32"
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    {
        "missing": path.unlink,
        "short": lambda: os.truncate(path, 20),
        "flipped": lambda: path.write_bytes(data),
    }[damage]()
    with pytest.raises(CheckpointError, match=r"accuracy-seed-0\.f32 is not as it was"):
        run(tmp_path / "run", resume=True, checkpoint_every=2)


@pytest.mark.parametrize("name", ["metrics.csv", "accuracy-seed-0.f32", "ledger-seed-0.csv"])
def test_a_link_in_place_of_a_growing_file_is_not_followed(name, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    with pytest.raises(Killed):
        run(tmp_path / "run", kill_at=(0, 5), checkpoint_every=2)
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / name).symlink_to(outside)
    with pytest.raises((il.SettingError, CheckpointError)):
        run(tmp_path / "run", resume=True, checkpoint_every=2)
    assert outside.read_bytes() == b"precious"


# -- the ledger -----------------------------------------------------------------------------------
def test_a_line_of_the_ledger_tells_the_fate_of_every_selected_client(tmp_path):
    entry = SimpleNamespace(
        selected=5, admitted=2, rejected={"not finite": 2}, missing={"silent": 1}, surplus={}
    )
    sent = {"bytes_up": 80, "bytes_down": 200}
    ledger = SimpleNamespace(last=entry, total=sent.get)
    with RunDirectory(tmp_path / "run", fresh=True) as folder:
        journal = Journal(folder, 0, clients=4)
        journal.round_done(SimpleNamespace(ledger=ledger), 1, [])
        journal.round_done(SimpleNamespace(ledger=ledger), 2, [])
        journal.close()
    with (tmp_path / "run" / "ledger-seed-0.csv").open() as file:
        first, second = csv.DictReader(file)
    assert first == {
        "seed": "0",
        "round": "1",
        "selected": "5",
        "admitted": "2",
        "rejected": "2",
        "missing": "1",
        "surplus": "0",
        "bytes_up": "80",
        "bytes_down": "200",
        "reasons": "rejected: not finite 2; missing: silent 1",
    }
    assert second["round"] == "2"


def test_the_ledger_of_a_run_has_a_line_per_round_evaluated_or_not(tmp_path):
    result = run(tmp_path / "run", eval_every=0)
    with (tmp_path / "run" / "ledger-seed-0.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert all(row["selected"] == row["admitted"] == "2" for row in rows)
    assert int(rows[-1]["bytes_up"]) == result.seeds[0].sent["bytes_up"]
    assert not (tmp_path / "run" / "metrics.csv").exists()


def test_a_rejected_client_is_in_the_ledger_with_its_reason(tmp_path):
    run(tmp_path / "run", malicious=1, attack="gaussian(std=1e39)", sample=4)
    with (tmp_path / "run" / "ledger-seed-0.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(row["selected"] == "4" for row in rows)
    assert all(
        int(row["admitted"]) + int(row["rejected"]) + int(row["missing"]) == 4 for row in rows
    )
    assert rows[0]["rejected"] == "1" and rows[0]["reasons"].startswith("rejected: ")


def test_a_ledger_that_was_changed_is_said_and_costs_no_result(tmp_path, capsys):
    whole = run()
    with pytest.raises(Killed):
        run(tmp_path / "run", kill_at=(0, 5), checkpoint_every=2)
    (tmp_path / "run" / "ledger-seed-0.csv").write_text("nothing")
    result = run(tmp_path / "run", resume=True, checkpoint_every=2)
    assert "ledger-seed-0.csv has lost rounds or was changed" in capsys.readouterr().err
    assert result.seeds[0].history == whole.seeds[0].history
    with (tmp_path / "run" / "ledger-seed-0.csv").open() as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["5", "6"]


# -- accuracies of clients ------------------------------------------------------------------------
def test_accuracies_are_on_the_disk_and_not_in_the_checkpoint(tmp_path):
    run(tmp_path / "run", checkpoint_every=2)
    assert not list((tmp_path / "run" / "checkpoints").rglob("history*"))
    assert (tmp_path / "run" / "accuracy-seed-0.f32").stat().st_size == 6 * 4 * 4


def test_large_arrays_are_mapped_and_equal_those_read(tmp_path, monkeypatch):
    small = run(tmp_path / "small")
    monkeypatch.setattr(growing, "MAPPED", 1)
    for large in (run(tmp_path / "large"), run()):
        array = large.seeds[0].by_client
        assert isinstance(array, np.ndarray) and isinstance(array.base.base, np.memmap)
        assert np.array_equal(array, small.seeds[0].by_client)
    name = "record.safetensors"
    assert (tmp_path / "large" / name).read_bytes() == (tmp_path / "small" / name).read_bytes()


def test_a_run_without_a_directory_leaves_no_file_and_no_descriptor(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run()
    before = len(os.listdir("/proc/self/fd"))
    result = run()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list(tmp_path.iterdir()) and result.seeds[0].by_client.shape == (6, 4)


def test_without_a_folder_for_temporary_files_accuracies_stay_in_memory(monkeypatch):
    def nowhere(*_, **__):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    expected = run().seeds[0].by_client
    monkeypatch.setattr("tempfile.TemporaryFile", nowhere)
    assert np.array_equal(run().seeds[0].by_client, expected)


def test_arrays_are_written_as_the_library_writes_them(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "seed-2": rng.random((3, 5), np.float32),
        "seed-10": rng.random((4, 5), np.float32),
        "seed-0": np.zeros((0, 0), np.float32),
    }
    written = b"".join(float32_safetensors(arrays))
    assert written == save(arrays)
    (tmp_path / "file").write_bytes(written)
    assert all(np.array_equal(t, arrays[n]) for n, t in load_file(tmp_path / "file").items())


# -- a file that grows ----------------------------------------------------------------------------
def test_a_result_keeps_its_mapped_rows_when_the_file_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(growing, "MAPPED", 1)
    file = GrowingFile(tmp_path / "rows")
    file.append(np.zeros(2, np.float32).tobytes())
    mark = file.mark
    file.append(np.ones(2000, np.float32).tobytes())
    rows = file.array(2)
    again = GrowingFile(tmp_path / "rows")
    assert again.back_to(mark)
    again.append(b"")
    assert (tmp_path / "rows").stat().st_size == 8
    assert rows.sum() == 2000  # a mapping of a file that was cut short would end the process


@pytest.mark.parametrize(
    "saved", [None, 3, [1], [1, -1], [1.0, 2], [True, 2], ["1", 2], [2**70, 1]]
)
def test_a_mark_is_two_whole_numbers(saved):
    with pytest.raises(ValueError, match="is not a size and a CRC-32"):
        Mark.of(saved)


def test_a_growing_file_is_private(tmp_path):
    file = GrowingFile(tmp_path / "rows")
    file.append(b"x")
    assert (tmp_path / "rows").stat().st_mode & 0o777 == 0o600


# -- a full disk ----------------------------------------------------------------------------------
@pytest.fixture
def disk(monkeypatch):
    """A disk that can be full: then only the first byte of what is written gets there."""
    state = SimpleNamespace(full=False)
    write = os.write

    def limited(handle, data):
        if not state.full:
            return write(handle, data)
        if len(data) > 1:
            return write(handle, data[:1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.write", limited)
    return state


def test_what_a_full_disk_does_not_take_is_written_when_there_is_room(disk, tmp_path):
    file = GrowingFile(tmp_path / "file")
    file.append(b"one;")
    disk.full = True
    for content in (b"two;", b"three;"):
        with pytest.raises(OSError, match="No space left"):
            file.append(content)
    assert file.read() == b"one;two;three;"
    disk.full = False
    file.append(b"four;")
    assert (tmp_path / "file").read_bytes() == file.read() == b"one;two;three;four;"


@pytest.mark.parametrize("room_at", [5, None])
def test_a_full_disk_is_said_once_per_file_and_costs_nothing(room_at, disk, tmp_path, capsys):
    whole = run(tmp_path / "whole", checkpoint_every=2)
    capsys.readouterr()

    def progress(seed, round, accuracy):
        disk.full = round >= 2 and (room_at is None or round < room_at)

    result = run(tmp_path / "run", progress=progress, checkpoint_every=2)
    err = capsys.readouterr().err
    assert err.count("metrics.csv could not be written (No space left on device)") == 1
    assert err.count("the accuracies of clients could not be written") == 1
    assert "the checkpoint of round 4 could not be written" in err
    assert np.array_equal(result.seeds[0].by_client, whole.seeds[0].by_client)
    written = content(tmp_path / "run")
    expected = content(tmp_path / "whole")
    if room_at is None:  # those that are written as a whole at the end are not touched by this disk
        expected = {n: b for n, b in expected.items() if n in ("metrics.csv", "record.safetensors")}
    assert {n: written[n] for n in expected if "clients" not in n} == {
        n: b for n, b in expected.items() if "clients" not in n
    }


# -- checkpoints by time --------------------------------------------------------------------------
def saves(directory, monkeypatch, minutes_per_round, **settings) -> list[int]:
    """The rounds whose checkpoint was written."""
    now = [0.0]
    rounds = []
    save = checkpoint.save

    def noted(folder, bound, round, *args):
        rounds.append(round)
        return save(folder, bound, round, *args)

    monkeypatch.setattr(sys.modules["idiolect.run.loop"], "clock", lambda: now[0])
    monkeypatch.setattr(checkpoint, "save", noted)

    def progress(seed, round, accuracy):
        now[0] += 60 * minutes_per_round

    run(directory, progress=progress, rounds=12, **settings)
    return rounds


@pytest.mark.parametrize(
    ("minutes_per_round", "settings", "expected"),
    [
        (1, {}, [6, 11, 12]),
        (0.1, {}, [12]),
        (7, {}, [*range(2, 13), 12]),  # a round that takes longer is saved at its end
        (1, {"checkpoint_minutes": 0}, [12]),
        (1, {"checkpoint_minutes": 2.5}, [4, 7, 10, 12]),
        (1, {"checkpoint_every": 3}, [3, 6, 9, 12, 12]),
        (2, {"checkpoint_every": 5}, [4, 5, 8, 10, 12]),
    ],
)
def test_a_checkpoint_is_saved_at_least_every_five_minutes_and_at_the_end(
    minutes_per_round, settings, expected, tmp_path, monkeypatch
):
    assert saves(tmp_path / "run", monkeypatch, minutes_per_round, **settings) == expected


def test_the_minutes_may_change_on_resume(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path / "run", kill_at=(0, 5), checkpoint_every=2)
    result = run(tmp_path / "run", resume=True, checkpoint_every=2, checkpoint_minutes=1)
    assert result.seeds[0].rounds == 6
