"""Resuming is exact only with the same code and the same number of threads: a change is told."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import idiolect as il
from helpers import classification, rewrite
from idiolect import Interrupted, SettingError
from idiolect.run import directory as starts
from idiolect.run import identity
from idiolect.run import identity as code
from idiolect.run.identity import class_source
from run.test_resume import same

FEDERATION = classification((20,) * 6, features=8)


@pytest.fixture(autouse=True)
def threads(monkeypatch) -> list[int]:
    """The number of threads as torch would have it; work is done on one."""
    number = [torch.get_num_threads()]
    torch.set_num_threads(1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: number[-1])
    monkeypatch.setattr(torch, "set_num_threads", number.append)
    yield number
    monkeypatch.undo()
    torch.set_num_threads(number[0])


def run(directory: Path | None, resume: bool | str = False, stop: int = 0, method=None, **settings):
    def progress(seed: int, round: int, accuracy: float) -> None:
        if round == stop:
            os.kill(os.getpid(), signal.SIGINT)

    return il.run(
        method or il.FedProxSoft(steps=2),
        il.Task(lambda: nn.Linear(8, 3)),
        FEDERATION,
        directory=directory,
        resume=resume,
        progress=progress,
        **{"rounds": 4, "sample": 3, "batch": 8} | settings,
    )


def stopped(directory: Path, **settings) -> Path:
    with pytest.raises(Interrupted):
        run(directory, stop=2, **settings)
    return directory


# -- threads ---------------------------------------------------------------------------------------
def test_a_resumed_run_goes_on_with_as_many_threads_as_it_had(tmp_path, capsys, threads):
    stopped(tmp_path / "run", threads=3)
    usual = threads[-1]
    result = run(tmp_path / "run", resume=True)
    assert [s["threads"] for s in result.record.starts] == [3, 3]
    assert threads[-2:] == [3, usual] and "threads" not in capsys.readouterr().err


def test_another_number_of_threads_is_warned_of(tmp_path, capsys):
    stopped(tmp_path / "run", threads=1)
    run(tmp_path / "run", resume=True, threads=2)
    said = capsys.readouterr().err
    assert "warning: threads: resumed with 2 (was 1)" in said
    assert "in the last bits" in said


@pytest.mark.parametrize("change", [{"memory": 1.5}, {"chunk": 2}])
def test_another_grouping_of_sums_is_warned_of(change, tmp_path, capsys):
    stopped(tmp_path / "run")
    run(tmp_path / "run", resume=True, **change)
    ((name, value),) = change.items()
    said = capsys.readouterr().err
    assert f"warning: {name}: resumed with {value} (was " in said


def test_the_record_has_the_environment_of_every_start(tmp_path):
    stopped(tmp_path / "run", threads=1, seeds=2)
    result = run(tmp_path / "run", resume=True, threads=2, seeds=2)
    record = il.load(tmp_path / "run").record
    saved = json.loads((tmp_path / "run" / "environment.json").read_text())["starts"]
    assert record.starts == result.record.starts == saved and len(saved) == 2
    assert [s["threads"] for s in saved] == [1, 2]
    assert [s["from"] for s in saved] == [{}, {"0": 2, "1": 0}]
    assert all(s["packages"]["torch"] == torch.__version__ for s in saved)
    assert saved[0]["when"] <= saved[1]["when"] and saved[0]["code"] == saved[1]["code"]


def test_without_a_directory_the_record_has_its_one_start():
    (start,) = run(None, threads=1).record.starts
    assert start["threads"] == 1 and start["from"] == {}


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_another_version_of_a_library_is_warned_of_by_both_names(name, tmp_path, capsys):
    stopped(tmp_path / "run")
    file = tmp_path / "run" / "environment.json"
    now = json.loads(file.read_text())["starts"][0]["packages"][name]
    rewrite(file, lambda saved: saved["starts"][0]["packages"].update({name: "1.2.3"}))
    same(run(tmp_path / "run", resume=True), run(None))
    said = capsys.readouterr().err
    assert f"{name}: resumed with version {now} (was 1.2.3)" in said


def test_an_environment_that_cannot_be_is_refused(tmp_path):
    stopped(tmp_path / "run")
    file = tmp_path / "run" / "environment.json"
    saved = json.loads(file.read_text())["starts"]
    for bad in ([], {}, [{**saved[0], "threads": 0}], [{**saved[0], "threads": 10**9}], [[]]):
        rewrite(file, lambda _, bad=bad: {"starts": bad})
        with pytest.raises(SettingError, match=r"cannot use .*environment.json"):
            run(tmp_path / "run", resume=True)
    assert starts.differences([], saved[0]) == []


# -- code ------------------------------------------------------------------------------------------
OWN = """
import idiolect as il

class Own(il.FedProxSoft):
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's own method, in a module that can be edited."""

    def load(text: str):
        (tmp_path / "own_method_of_a_user.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        sys.modules.pop("own_method_of_a_user", None)
        import linecache

        linecache.clearcache()
        module = __import__("own_method_of_a_user")
        return module.Own(steps=2)

    yield load
    sys.modules.pop("own_method_of_a_user", None)


def test_a_changed_method_is_refused_with_a_word_unless_by_force(own, tmp_path, capsys):
    stopped(tmp_path / "run", method=own(OWN))
    changed = own(OWN + "\nSTEP = 2\n")
    with pytest.raises(SettingError) as refused:
        run(tmp_path / "run", resume=True, method=changed)
    said = str(refused.value)
    assert "the source of the method has changed" in said and "--force" in said
    assert "may differ from those of an uninterrupted run" in said
    result = run(tmp_path / "run", resume="force", method=changed)
    assert "warning:" in capsys.readouterr().err
    first, second = result.record.starts
    assert first["code"]["method"] != second["code"]["method"]
    assert first["code"]["source"] == second["code"]["source"]


def test_the_same_method_from_the_same_file_goes_on(own, tmp_path):
    stopped(tmp_path / "run", method=own(OWN))
    same(run(tmp_path / "run", resume=True, method=own(OWN)), run(None, method=own(OWN)))


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ("source", "the source files of idiolect have changed"),
        ("idiolect", "idiolect 0.0.9 is now "),
    ],
)
def test_another_idiolect_is_refused_with_a_word(part, says, tmp_path, monkeypatch):
    now = code.code_of
    monkeypatch.setattr(identity, "code_of", lambda method: now(method) | {part: "0.0.9"})
    stopped(tmp_path / "run")
    monkeypatch.undo()
    with pytest.raises(SettingError, match=says):
        run(tmp_path / "run", resume=True)


def test_models_of_a_run_of_other_code_are_loaded_with_a_warning(tmp_path, capsys, monkeypatch):
    """They are what they are; only a run that goes on may come out otherwise."""
    done = run(tmp_path / "run")
    now = code.code_of
    monkeypatch.setattr(identity, "code_of", lambda method: now(method) | {"source": "changed"})
    task = il.Task(lambda: nn.Linear(8, 3))
    loaded = il.load(tmp_path / "run", task=task, federation=FEDERATION)
    assert torch.equal(loaded.personal(0).weight, done.personal(0).weight)
    assert "was started with other code" in capsys.readouterr().err


def test_only_true_false_and_force_are_accepted(tmp_path):
    with pytest.raises(SettingError, match="resume must be True, False or 'force', got 'yes'"):
        run(tmp_path / "run", resume="yes")


def test_a_class_of_a_script_is_known_by_its_own_lines_and_typed_ones_by_name():
    typed = type("Typed", (il.FedAvg,), {"__module__": "__main__"})
    assert class_source(typed) == class_source(typed) != class_source(il.FedAvg)
    assert class_source(il.FedAvg) != class_source(il.FedProx)
