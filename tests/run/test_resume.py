"""A run that was interrupted continues to exactly the result it would have had.

What is damaged is named and passed over.
"""

import errno
import gc
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from torch import nn

import idiolect as il
from helpers import by_turns, classification, private_of, rewrite, state_of, with_public
from idiolect import METHODS, Interrupted, SettingError
from idiolect.core import files, tensors
from idiolect.methods import make_method
from idiolect.run.checkpoint import CheckpointError
from idiolect.run.directory import RunDirectory

ROUNDS = 6


FEDERATION = classification((20,) * 6, features=8)


def task() -> il.Task:
    return il.Task(lambda: nn.Linear(8, 3))


def run(
    method: il.Method,
    directory: Path | None = None,
    stop_at: tuple[int, int] | None = None,
    **settings,
) -> il.Result:
    """A run that Ctrl-C stops after (seed, round)."""

    def progress(seed, round, accuracy):
        if (seed, round) == stop_at:
            os.kill(os.getpid(), signal.SIGINT)

    given = {"rounds": ROUNDS, "sample": 3, "batch": 8} | settings
    resume = directory is not None and (directory / "settings.json").exists()
    data = with_public(method, FEDERATION)
    return il.run(
        method, task(), data, directory=directory, progress=progress, resume=resume, **given
    )


def same(a: il.Result, b: il.Result) -> None:
    """Everything but the seconds is equal, bit for bit."""
    for one, two in zip(a.seeds, b.seeds, strict=True):
        ledgers = [r.session(one.seed).server.ledger.save() for r in (a, b)]
        states = [
            (state_of(r, one.seed), private_of(r, one.seed), ledger[0])
            for r, ledger in zip((a, b), ledgers, strict=True)
        ]
        for x, y in zip(*states, strict=True):
            assert x.keys() == y.keys()
            for n, t in x.items():
                assert torch.equal(t.nan_to_num(77), y[n].nan_to_num(77)), n
        assert ledgers[0][1] == ledgers[1][1]
        assert repr(one.history) == repr(two.history)
        assert np.array_equal(one.by_client, two.by_client, equal_nan=True)
        assert one.stopped == two.stopped
        assert repr(one.clients) == repr(two.clients)
    x, y = a.summary(), b.summary()
    assert {k: v for k, v in x.items() if k != "seconds"} == {
        k: v for k, v in y.items() if k != "seconds"
    }


def interrupted(method: il.Method, directory: Path, at: tuple[int, int], **settings) -> None:
    with pytest.raises(Interrupted, match=f"stopped after round {at[1]} of"):
        run(method, directory, at, **settings)


SETTINGS = {
    "plain": {},
    "momentum": {"server_lr": 0.5, "server_options": "momentum=0.9", "batching": "epochs"},
    "adam": {"server_optimizer": "adam", "server_lr": 0.01},
    "epochs": {"batching": "epochs", "schedule": "cosine"},
    "a file of rows": {"memory": 1e-7, "chunk": 4, "eval_every": 2},
    "held out": {"held_out": 2, "held_out_rounds": 3},
    "no evaluation": {"eval_every": 0, "clip": 0.5, "weight_decay": 0.01, "dtype": "float64"},
}


@pytest.mark.parametrize(("name", "settings"), by_turns(METHODS, ["momentum", "a file of rows"]))
def test_every_method_resumes_exactly(name, settings, tmp_path):
    """Two seeds; interrupted in the first one, and again in the second."""
    method = make_method(name)
    given = SETTINGS[settings] | {
        "seeds": 2,
        "rounds": 4,
        "sample": 0 if method.traits.hears_all else 3,
    }
    interrupted(method, tmp_path / "run", (0, 2), **given)
    interrupted(method, tmp_path / "run", (1, 1), **given)
    same(run(method, tmp_path / "run", **given), run(method, **given))


@pytest.mark.parametrize("settings", ["adam", "epochs", "held out", "no evaluation"])
@pytest.mark.parametrize(
    "method", [il.FedProxSoft(), il.LpProj(init="own")], ids=lambda m: type(m).__name__
)
def test_every_setting_resumes_exactly(method, settings, tmp_path):
    interrupted(method, tmp_path / "run", (0, 4), **SETTINGS[settings])
    same(run(method, tmp_path / "run", **SETTINGS[settings]), run(method, **SETTINGS[settings]))


@pytest.mark.parametrize("at", range(1, ROUNDS))
def test_a_run_may_be_interrupted_after_any_round(at, tmp_path):
    interrupted(il.FedProxSoft(), tmp_path / "run", (0, at))
    same(run(il.FedProxSoft(), tmp_path / "run"), run(il.FedProxSoft()))


def test_an_interruption_in_the_last_round_of_a_seed_stops_before_the_next_seed(tmp_path):
    seen = []

    def progress(seed, round, accuracy):
        seen.append((seed, round))
        if (seed, round) == (0, 2):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        il.run(
            il.FedAvg(),
            task(),
            FEDERATION,
            rounds=2,
            seeds=3,
            directory=tmp_path / "run",
            progress=progress,
        )
    assert seen == [(0, 1), (0, 2)]
    same(
        run(il.FedAvg(), tmp_path / "run", rounds=2, seeds=3, sample=0, batch=64),
        run(il.FedAvg(), rounds=2, seeds=3, sample=0, batch=64),
    )


def test_a_second_interruption_stops_at_once(tmp_path):
    def progress(seed, round, accuracy):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stop:
        il.run(
            il.FedAvg(), task(), FEDERATION, rounds=3, directory=tmp_path / "run", progress=progress
        )
    assert stop.type is KeyboardInterrupt


def test_the_users_own_handler_of_interruptions_is_put_back():
    before = signal.getsignal(signal.SIGINT)
    run(il.FedAvg())
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_run_resumes_to_the_same_result_without_work(tmp_path, monkeypatch):
    done = run(il.FedProxSoft(), tmp_path / "run", seeds=2)
    monkeypatch.setattr(
        "idiolect.engine.rounds.Rounds.advance",
        lambda *_: pytest.fail("a finished run went on"),
    )
    same(run(il.FedProxSoft(), tmp_path / "run", seeds=2), done)


@pytest.mark.parametrize("stop", [{"bytes": 3000}, {"target_value": 0.3}])
def test_a_run_that_stopped_early_resumes_to_the_same_stop(stop, tmp_path):
    done = run(il.FedAvg(), tmp_path / "run", rounds=40, **stop)
    assert done.seeds[0].stopped != "rounds"
    same(run(il.FedAvg(), tmp_path / "run", rounds=40, **stop), done)


def test_a_diverging_run_resumes_exactly(tmp_path):
    """Infinite losses are kept as infinite."""
    data = il.Federation.from_arrays(
        np.arange(40.0).reshape(20, 2) * 1e3, np.linspace(0, 1, 20), [0, 1] * 10
    )
    given = {"rounds": 8, "sample": 2, "batch": 8}

    def progress(seed, round, accuracy):
        if round == 4:
            os.kill(os.getpid(), signal.SIGINT)

    module = nn.Linear(2, 1)
    whole = il.run(il.Local(steps=1, lr=1e3), il.Task(module, "mse"), data, **given)
    assert any(math.isinf(h["loss"]) for h in whole.seeds[0].history[:4])
    assert (whole.seeds[0].rounds, whole.seeds[0].stopped) == (5, "diverged")
    with pytest.raises(Interrupted):
        il.run(
            il.Local(steps=1, lr=1e3),
            il.Task(module, "mse"),
            data,
            directory=tmp_path / "run",
            progress=progress,
            **given,
        )
    same(
        il.run(
            il.Local(steps=1, lr=1e3),
            il.Task(module, "mse"),
            data,
            directory=tmp_path / "run",
            resume=True,
            **given,
        ),
        whole,
    )


# -- what lies in a run directory ------------------------------------------------------------------
def checkpoints(directory: Path, seed: int = 0) -> list[str]:
    return sorted(p.name for p in (directory / "checkpoints" / f"seed-{seed}").iterdir())


def at(round: int, generation: int = 0) -> str:
    """The name of a checkpoint."""
    return f"{round:012d}-{generation}"


def test_checkpoints_come_every_so_many_rounds_and_the_last_two_stay(tmp_path):
    seen = []

    def progress(seed, round, accuracy):
        seen.append(
            checkpoints(tmp_path / "run") if (tmp_path / "run" / "checkpoints").exists() else []
        )

    il.run(
        il.FedAvg(),
        task(),
        FEDERATION,
        rounds=7,
        directory=tmp_path / "run",
        progress=progress,
        checkpoint_every=2,
    )
    pairs = [
        [],
        [at(2)],
        [at(2)],
        [at(2), at(4)],
        [at(2), at(4)],
        [at(4), at(6)],
        [at(4), at(6)],
    ]
    assert seen == pairs and checkpoints(tmp_path / "run") == [at(6), at(7)]


def test_every_file_of_a_checkpoint_reaches_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(
        "os.fsync", lambda handle: events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
    )
    replace = os.replace
    monkeypatch.setattr(
        "os.replace", lambda a, b: (events.append(f"named {Path(b).name}"), replace(a, b))
    )
    run(il.FedAvg(), tmp_path / "run")
    written = {"server.safetensors", "accuracy-seed-0.f32", "host-0"}
    written |= {"private.safetensors", "channel.safetensors"}
    named = events.index(f"named {at(ROUNDS)}")
    assert written <= set(events[:named]) and events[named + 1] == "seed-0"
    record = next(e for e in events if e.startswith(".checkpoint.json."))
    assert events.index(record) < events.index("named checkpoint.json") < named
    # the names of the directory, of what is in it, and of the folders of checkpoints
    assert {tmp_path.name, "run", "checkpoints", "seed-0"} <= set(events[:named])


@pytest.mark.parametrize("settings", ["plain", "a file of rows"])
def test_nothing_executable_and_nothing_temporary_is_written(settings, tmp_path):
    interrupted(il.FedProxSoft(), tmp_path / "run", (0, 3), **SETTINGS[settings])
    result = run(il.FedProxSoft(), tmp_path / "run", **SETTINGS[settings])
    del result
    gc.collect()
    files = [p for p in (tmp_path / "run").rglob("*") if p.is_file()]
    assert {p.suffix for p in files} <= {".json", ".csv", ".safetensors", ".f32", ""} and not [
        p for p in files if p.name.startswith(".")
    ]
    assert {p.name for p in files if not p.suffix} == {"lock"}
    assert not list((tmp_path / "run").rglob(".writing*"))


def test_a_run_directory_says_what_ran_and_what_came_out(tmp_path):
    result = run(il.LpProj(dim=4), tmp_path / "run", seeds=2)
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["method"]["name"] == "lp-proj-1" and settings["method"]["dim"] == 4
    assert (
        settings["run"] == result.record.settings
        and settings["data"]["sha256"] == FEDERATION.fingerprint()
    )
    assert (
        json.loads((tmp_path / "run" / "environment.json").read_text())["starts"][0]["packages"][
            "torch"
        ]
        == torch.__version__
    )
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result.summary()
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 1 + 2 * ROUNDS
    assert len((tmp_path / "run" / "clients.csv").read_text().splitlines()) == 1 + 2 * 6


def test_what_a_killed_run_left_half_written_is_cleared_away(tmp_path):
    interrupted(il.FedProxSoft(), tmp_path / "run", (0, 3))
    half = tmp_path / "run" / "checkpoints" / "seed-0" / f".writing-{at(4)}-0badcafe"
    half.mkdir()
    (half / "server.safetensors").write_bytes(b"half")
    rows = tmp_path / "run" / "idiolect-scratch-abcdefgh"
    rows.mkdir()
    (rows / "x").write_bytes(b"rows")
    same(run(il.FedProxSoft(), tmp_path / "run"), run(il.FedProxSoft()))
    assert not half.exists() and not rows.exists()


# -- damage ----------------------------------------------------------------------------------------
def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))


def edit(path: Path, name: str, value: int) -> None:
    """Another value in the record, which stays well-formed."""
    text, n = re.subn(rf'({name}\\*": )\d+', rf"\g<1>{value}", path.read_text(), count=1)
    assert n == 1
    path.write_text(text)


DAMAGE = {
    "a byte of the server": lambda p: flip(p / "server.safetensors", -5),
    "a byte of the header": lambda p: flip(p / "server.safetensors", 3),
    "a byte of the private rows": lambda p: flip(p / "host-0/private.safetensors", 200),
    "a file cut short": lambda p: os.truncate(p / "host-0/private.safetensors", 50),
    "an empty file": lambda p: os.truncate(p / "server.safetensors", 0),
    "a missing file": lambda p: (p / "host-0/private.safetensors").unlink(),
    "no record": lambda p: (p / "checkpoint.json").unlink(),
    "a record cut short": lambda p: os.truncate(p / "checkpoint.json", 40),
    "an empty record": lambda p: os.truncate(p / "checkpoint.json", 0),
    "a record of something else": lambda p: (p / "checkpoint.json").write_text("[1, 2]"),
    "a record without its parts": lambda p: (p / "checkpoint.json").write_text("{}"),
    "a record that is not text": lambda p: (p / "checkpoint.json").write_bytes(b"\xff\xfe\x00"),
    "another round in the record": lambda p: edit(p / "checkpoint.json", "round", 3),
    "another count in the record": lambda p: edit(p / "checkpoint.json", "admitted", 13),
    "an empty folder": lambda p: (shutil.rmtree(p), p.mkdir()),
}


def stopped_at_four(directory: Path) -> Path:
    interrupted(il.FedProxSoft(), directory, (0, 4), checkpoint_every=2)
    assert checkpoints(directory) == [at(2), at(4, 1)]
    return directory / "checkpoints" / "seed-0"


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(name, tmp_path, capsys):
    folder = stopped_at_four(tmp_path / "run")
    DAMAGE[name](folder / at(4, 1))
    capsys.readouterr()
    result = run(il.FedProxSoft(), tmp_path / "run", checkpoint_every=2)
    assert f"warning: checkpoint {folder / at(4, 1)} is damaged" in capsys.readouterr().err
    same(result, run(il.FedProxSoft(), checkpoint_every=2))


def test_with_all_checkpoints_damaged_the_run_is_refused_and_they_are_named(tmp_path):
    folder = stopped_at_four(tmp_path / "run")
    for name in (at(2), at(4, 1)):
        flip(folder / name / "server.safetensors", -5)
    with pytest.raises(CheckpointError) as error:
        run(il.FedProxSoft(), tmp_path / "run", checkpoint_every=2)
    assert (
        at(2) in str(error.value) and at(4, 1) in str(error.value) and "SHA-256" in str(error.value)
    )


def test_a_run_killed_before_its_first_checkpoint_was_whole_starts_again(tmp_path):
    folder = stopped_at_four(tmp_path / "run")
    shutil.rmtree(folder / at(2))
    (folder / at(4, 1)).rename(folder / f".writing-{at(4)}-0badcafe")
    (folder / f".writing-{at(4)}-0badcafe" / "checkpoint.json").unlink()
    result = run(il.FedProxSoft(), tmp_path / "run", checkpoint_every=2)
    assert result.record.starts[1]["from"] == {"0": 0}
    same(result, run(il.FedProxSoft(), checkpoint_every=2))


def test_a_checkpoint_that_was_whole_when_the_run_was_killed_is_not_lost(tmp_path):
    folder = stopped_at_four(tmp_path / "run")
    shutil.rmtree(folder / at(2))
    (folder / at(4, 1)).rename(folder / f".writing-{at(4)}-0badcafe")
    result = run(il.FedProxSoft(), tmp_path / "run", checkpoint_every=2)
    assert result.record.starts[1]["from"] == {"0": 4}
    same(result, run(il.FedProxSoft(), checkpoint_every=2))


@pytest.mark.parametrize(
    "change", [{"clip": 0.5}, {"dtype": "float64"}, {"weight_decay": 0.1}, {"hosts": 2}]
)
def test_a_changed_computation_is_noticed(change, tmp_path):
    interrupted(il.FedProxSoft(), tmp_path / "run", (0, 3))
    (name,) = change
    with pytest.raises(SettingError, match=f"another run: {name} was"):
        run(il.FedProxSoft(), tmp_path / "run", **change)


@pytest.mark.parametrize("change", [{"threads": 1}, {"memory": 1.0}, {"checkpoint_every": 2}])
def test_settings_that_change_no_result_may_change(change, tmp_path):
    interrupted(il.FedProxSoft(), tmp_path / "run", (0, 3))
    same(run(il.FedProxSoft(), tmp_path / "run", **change), run(il.FedProxSoft(), **change))


def test_a_run_of_another_format_is_refused_with_a_word(tmp_path):
    interrupted(il.FedProxSoft(), tmp_path / "run", (0, 3))
    path = tmp_path / "run" / "settings.json"
    rewrite(path, lambda saved: saved | {"format": 1})
    with pytest.raises(SettingError, match="has format 1, made by another version of idiolect"):
        run(il.FedProxSoft(), tmp_path / "run")


# -- only the same run continues -------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 1}, "another run: seed was 0, is 1"),
        ({"batching": "full", "batch": 4}, "batch was 8, is 4, batching was 'replace', is 'full'"),
        ({"method": il.FedProxSoft(lam=0.2)}, "another method: lam was 0.3, is 0.2"),
        ({"method": il.FedAvg()}, "another method: name was 'fedprox-soft', is 'fedavg'"),
        ({"task": il.Task(nn.Linear(8, 4))}, "another model: .*parameters was"),
        (
            {"task": il.Task(lambda: nn.Linear(8, 3), nn.CrossEntropyLoss(label_smoothing=0.1))},
            "another model: .*loss was 'cross_entropy'",
        ),
        ({"data": "changed"}, "another data: sha256"),
    ],
)
def test_changed_settings_are_refused_and_the_field_is_named(change, says, tmp_path):
    interrupted(il.FedProxSoft(), tmp_path / "run", (0, 3))
    given = {"rounds": ROUNDS, "sample": 3, "batch": 8} | change
    method, model = given.pop("method", il.FedProxSoft()), given.pop("task", task())
    data = FEDERATION
    if given.pop("data", None):
        inputs = FEDERATION.inputs.clone()
        inputs[17, 3] += 1e-6
        data = il.Federation(
            inputs, FEDERATION.targets, FEDERATION.offsets, FEDERATION.ids, FEDERATION.classes
        )
    with pytest.raises(SettingError, match=says):
        il.run(method, model, data, directory=tmp_path / "run", resume=True, **given)


def test_a_module_with_other_weights_is_refused_or_makes_no_difference(tmp_path):
    """A script that makes its module without a seed has other weights when it is started again."""
    first, second = nn.Linear(8, 3), nn.Linear(8, 3)
    given = {"rounds": ROUNDS, "sample": 1, "seeds": 2}
    whole = il.run(il.FedProxSoft(), il.Task(first), FEDERATION, **given)

    def progress(seed, round, accuracy):
        if round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        il.run(
            il.FedProxSoft(),
            il.Task(first),
            FEDERATION,
            directory=tmp_path / "run",
            progress=progress,
            **given,
        )
    try:
        result = il.run(
            il.FedProxSoft(),
            il.Task(second),
            FEDERATION,
            directory=tmp_path / "run",
            resume=True,
            **given,
        )
    except SettingError as error:
        assert "model" in str(error)
    else:
        same(result, whole)


def test_a_directory_that_holds_a_run_is_not_written_over(tmp_path):
    done = run(il.FedAvg(), tmp_path / "run")
    with pytest.raises(
        SettingError,
        match="already holds a run; choose another, or continue it with: idiolect resume",
    ):
        il.run(il.FedProx(), task(), FEDERATION, directory=tmp_path / "run", rounds=1)
    same(run(il.FedAvg(), tmp_path / "run"), done)


def test_a_directory_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(SettingError, match=r"holds no run \(settings.json is missing\)"):
        il.run(il.FedAvg(), task(), FEDERATION, directory=tmp_path / "nothing", resume=True)
    assert not (tmp_path / "nothing").exists()


def test_a_run_in_progress_cannot_be_started_again(tmp_path):
    refused = []

    def progress(seed, round, accuracy):
        with pytest.raises(SettingError, match="in use by another run"):
            il.run(
                il.FedAvg(), task(), FEDERATION, directory=tmp_path / "run", resume=True, rounds=2
            )
        refused.append(round)

    il.run(il.FedAvg(), task(), FEDERATION, directory=tmp_path / "run", rounds=2, progress=progress)
    assert refused == [1, 2]


def test_a_directory_locked_by_another_process_is_refused_until_it_ends(tmp_path):
    run(il.FedAvg(), tmp_path / "run")
    hold = (
        "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "run" / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(SettingError, match="in use by another run"):
            run(il.FedAvg(), tmp_path / "run")
        other.stdin.close()
        other.wait()
    assert run(il.FedAvg(), tmp_path / "run").seeds[0].rounds == ROUNDS


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="directory: cannot write to"):
        RunDirectory(tmp_path / "file" / "run", fresh=True)


# -- a full disk -----------------------------------------------------------------------------------
def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_says_safetensors(*_, **__):
    raise SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


@pytest.mark.parametrize(
    "failure", [full, full_says_safetensors], ids=["OSError", "SafetensorError"]
)
def test_a_full_disk_is_said_and_costs_neither_the_result_nor_the_earlier_checkpoint(
    failure, tmp_path, monkeypatch, capsys
):
    def progress(seed, round, accuracy):
        if round == 3:
            monkeypatch.setattr(tensors, "save_file", failure)

    given = {"rounds": ROUNDS, "sample": 3, "batch": 8, "checkpoint_every": 2}
    result = il.run(
        il.FedProxSoft(), task(), FEDERATION, directory=tmp_path / "run", progress=progress, **given
    )
    err = capsys.readouterr().err
    assert (
        "warning: the checkpoint of round 4 could not be written (No space left on device)" in err
    )
    assert checkpoints(tmp_path / "run") == [at(2)]
    monkeypatch.undo()
    same(result, run(il.FedProxSoft(), checkpoint_every=2))
    same(run(il.FedProxSoft(), tmp_path / "run", checkpoint_every=2), result)


def test_a_disk_that_fills_up_while_text_is_written_costs_no_result(tmp_path, monkeypatch, capsys):
    def progress(seed, round, accuracy):
        if round == 3:
            monkeypatch.setattr(os, "fsync", full)

    given = {"rounds": ROUNDS, "sample": 3, "batch": 8, "checkpoint_every": 2}
    result = il.run(
        il.FedProxSoft(), task(), FEDERATION, directory=tmp_path / "run", progress=progress, **given
    )
    err = capsys.readouterr().err
    assert "the result could not be written" in err
    assert checkpoints(tmp_path / "run") == [at(2)] and not [
        p for p in (tmp_path / "run").iterdir() if p.name.startswith(".")
    ]
    monkeypatch.undo()
    same(run(il.FedProxSoft(), tmp_path / "run", checkpoint_every=2), result)


def test_a_disk_that_is_full_from_the_start_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "write_atomic", full)
    with pytest.raises(SettingError, match="No space left on device"):
        run(il.FedAvg(), tmp_path / "run")
