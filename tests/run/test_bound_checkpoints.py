"""Checkpoints belong to one seed of one run; there is a complete one at every moment."""

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

import idiolect as il
from helpers import classification, rewrite
from idiolect import Interrupted, SettingError
from idiolect.run import checkpoint
from idiolect.run.checkpoint import Bound, CheckpointError
from run.test_resume import same

FEDERATION = classification((20,) * 6, features=8)
ME = Bound("ab" * 16, 0, "cd" * 32, 7)
ROOM = 1 << 20


def run(directory: Path, resume: bool | str = False, stop: int = 0, **settings) -> il.Result:
    def progress(seed: int, round: int, accuracy: float) -> None:
        if round == stop:
            os.kill(os.getpid(), signal.SIGINT)

    given = {"rounds": 4, "sample": 3, "batch": 8, "checkpoint_every": 2} | settings
    model = il.Task(lambda: nn.Linear(8, 3))
    method = il.FedProxSoft(steps=2)
    return il.run(
        method, model, FEDERATION, directory=directory, resume=resume, progress=progress, **given
    )


def stopped(directory: Path, at: int = 3, **settings) -> Path:
    with pytest.raises(Interrupted):
        run(directory, stop=at, **settings)
    return directory / "checkpoints"


def save(folder: Path, round: int, bound: Bound = ME, value: float = 0.0) -> Path:
    return checkpoint.save(folder, bound, round, {"server": {"w": torch.full((3,), value)}}, {})


def load(folder: Path, bound: Bound = ME, rounds: int = 10**9, room: int = ROOM):
    return checkpoint.load(folder, bound, rounds, room)


# -- always a complete one -------------------------------------------------------------------------
@pytest.mark.parametrize("rounds", [(4, 4), (2, 4, 4, 4), (0, 0), (2, 4)])
def test_at_no_file_operation_is_there_no_complete_checkpoint(rounds, tmp_path, monkeypatch):
    """Whatever is named, removed or written: before it and after it one can be loaded."""
    folder = tmp_path / "seed-0"
    for round in rounds[:-1]:
        save(folder, round)
    seen = []

    def watched(real):
        def call(*args, **kwargs):
            seen.append(load(folder).round)
            out = real(*args, **kwargs)
            seen.append(load(folder).round)
            return out

        return call

    remove = shutil.rmtree  # file by file, as it does

    def rmtree(path, ignore_errors=False):
        for file in sorted(Path(path).rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
            seen.append(load(folder).round)
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", watched(rmtree))
    monkeypatch.setattr(os, "replace", watched(os.replace))
    monkeypatch.setattr(checkpoint, "write_tensors", watched(checkpoint.write_tensors))
    save(folder, rounds[-1], value=1.0)
    assert len(seen) > 4 and set(seen) <= set(rounds)
    assert load(folder).round == rounds[-1]
    assert float(load(folder).read("server", lambda shapes: None)["w"][0]) == 1.0


def test_a_round_that_is_saved_again_gets_the_next_generation_and_the_round_before_stays(tmp_path):
    for round in (2, 4, 4, 4):
        save(tmp_path, round)
    assert [p.name for p in checkpoint.newest_first(tmp_path)] == [
        "000000000004-2",
        "000000000002-0",
    ]


def test_what_a_killed_run_was_writing_gets_its_name_only_if_that_is_free_and_one(tmp_path):
    whole = save(tmp_path, 3, value=3.0)
    for name in (f".writing-{whole.name}-1", ".writing-notes-1"):
        shutil.copytree(whole, tmp_path / name)
    checkpoint.recover(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [whole.name]
    whole.rename(tmp_path / f".writing-{whole.name}-1")
    checkpoint.recover(tmp_path)
    assert load(tmp_path).round == 3


def test_a_link_in_the_place_of_a_checkpoint_is_refused(tmp_path):
    elsewhere = save(tmp_path / "elsewhere", 3)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / elsewhere.name).symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match="links are refused"):
        load(folder)


def test_a_file_more_in_a_checkpoint_or_a_link_for_one_is_refused(tmp_path):
    path = save(tmp_path, 3)
    (path / "more.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="or there is another one"):
        load(tmp_path)
    (path / "more.safetensors").unlink()
    (path / "server.safetensors").rename(tmp_path / "server.safetensors")
    (path / "server.safetensors").symlink_to(tmp_path / "server.safetensors")
    with pytest.raises(CheckpointError, match=r"server\.safetensors"):
        load(tmp_path)


def test_a_checkpoint_that_names_a_file_outside_of_it_is_refused_though_its_seal_is_right(tmp_path):
    path = save(tmp_path, 3) / checkpoint.RECORD
    record = json.loads(path.read_text())
    record["sha256"]["../outside"] = "0" * 64
    body = {name: record[name] for name in ("bound", "round", "facts", "sha256")}
    record["seal"] = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    path.write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"'../outside' is not a file of a checkpoint"):
        load(tmp_path)


def test_the_order_is_that_of_numbers(tmp_path):
    rounds = [9, 10, 999_999, 1_000_000, 10**11, 10**12, 10**13]
    for round in rounds:
        save(tmp_path, round)
    (tmp_path / "000000000009-10").mkdir()
    assert [checkpoint._number(p)[0] for p in checkpoint.newest_first(tmp_path)] == [
        10**13,
        10**12,
        9,
    ]
    assert load(tmp_path, rounds=10**14).round == 10**13


def test_damaged_checkpoints_that_are_newer_never_push_out_a_sound_one(tmp_path):
    for round in (5, 6):
        save(tmp_path, round)
        (checkpoint.newest_first(tmp_path)[0] / "checkpoint.json").write_text("")
    for round in (2, 3, 3):
        save(tmp_path, round)
        assert load(tmp_path).round == round


def test_a_finished_run_that_is_resumed_keeps_a_complete_checkpoint_throughout(
    tmp_path, monkeypatch
):
    done = run(tmp_path / "run")
    replace = os.replace

    def refused(a, b):
        if "checkpoints" in str(b) and not str(b).endswith("checkpoint.json"):
            raise OSError(28, "No space left on device")
        replace(a, b)

    monkeypatch.setattr(os, "replace", refused)
    same(run(tmp_path / "run", resume=True), done)
    monkeypatch.undo()
    same(run(tmp_path / "run", resume=True), done)


# -- whose it is -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"run": "ef" * 16}, "it belongs to another run"),
        ({"seed": 1}, "it belongs to seed 1, not to seed 0"),
        ({"settings": "00" * 32}, "settings.json is not the one it was made under"),
        ({"contract": 8}, "it was made under another contract"),
    ],
)
def test_a_checkpoint_of_anybody_else_is_refused_by_name(change, says, tmp_path):
    theirs = Bound(**{**vars(ME), **change})
    path = save(tmp_path, 3, theirs)
    with pytest.raises(CheckpointError, match=f"{path.name} is refused: {says}"):
        load(tmp_path)
    assert load(tmp_path, theirs).round == 3


def test_a_checkpoint_beyond_the_rounds_of_the_run_is_refused(tmp_path):
    save(tmp_path, 9)
    with pytest.raises(CheckpointError, match="is refused: it is of round 9, and the run has 8"):
        load(tmp_path, rounds=8)


def test_a_checkpoint_under_another_round_s_name_is_refused(tmp_path):
    save(tmp_path, 9).rename(tmp_path / "000000000012-0")
    with pytest.raises(CheckpointError, match="is refused: it is of round 9"):
        load(tmp_path)


def test_seed_0_copied_over_seed_1_is_refused(tmp_path):
    folder = stopped(tmp_path / "run", at=2, seeds=2)
    with pytest.raises(Interrupted):
        run(tmp_path / "run", resume=True, seeds=2, stop=3)  # in seed 0
    with pytest.raises(Interrupted):
        run(tmp_path / "run", resume=True, seeds=2, stop=2)  # in seed 1
    shutil.rmtree(folder / "seed-1")
    shutil.copytree(folder / "seed-0", folder / "seed-1")
    with pytest.raises(CheckpointError, match="it belongs to seed 0, not to seed 1"):
        run(tmp_path / "run", resume=True, seeds=2)


def test_a_leftover_of_a_longer_run_is_refused(tmp_path):
    """Also one of the same settings but for the rounds, or with nothing else but another id."""
    longer = stopped(tmp_path / "longer", at=6, rounds=9)
    for name, settings in (("shorter", {}), ("alike", {"rounds": 9})):
        mine = stopped(tmp_path / name, **settings)
        shutil.copytree(longer / "seed-0" / "000000000006-1", mine / "seed-0" / "000000000006-1")
        with pytest.raises(CheckpointError, match="000000000006-1 is refused: it belongs to anoth"):
            run(tmp_path / name, resume=True, **settings)


def test_settings_that_were_edited_are_refused(tmp_path):
    stopped(tmp_path / "run")
    file = tmp_path / "run" / "settings.json"
    rewrite(file, lambda saved: saved["run"].update(batch=9))
    with pytest.raises(CheckpointError, match=r"settings.json is not the one it was made under"):
        run(tmp_path / "run", resume=True, batch=9)


@pytest.mark.parametrize("left", ["checkpoints", "metrics.csv", "record.json"])
def test_a_new_run_refuses_a_directory_with_leftovers_of_another(left, tmp_path):
    run(tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        if path.name not in (left, "lock"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(SettingError, match=rf"directory: .* has {left} of an earlier run; choose"):
        run(tmp_path / "run")
    assert (tmp_path / "run" / left).exists()


# -- privacy ---------------------------------------------------------------------------------------
@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_everything_in_a_run_directory_is_its_users_alone(tmp_path):
    before = os.umask(0)
    try:
        run(tmp_path / "run", memory=1e-7, channel="feedback + topk(share=0.5)")
    finally:
        os.umask(before)
    modes = {
        p: p.stat().st_mode & 0o777 for p in [tmp_path / "run", *(tmp_path / "run").rglob("*")]
    }
    assert {m for p, m in modes.items() if p.is_dir()} == {0o700}
    assert {m for p, m in modes.items() if p.is_file()} == {0o600}
