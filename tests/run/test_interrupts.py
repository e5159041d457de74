"""SIGTERM and SIGHUP stop a run as Ctrl-C does: after the round, saved, with an exit code."""

import json
import os
import signal
import threading

import pytest
from torch import nn

import idiolect as il
from helpers import classification
from idiolect import Interrupted
from idiolect.cli.main import main
from idiolect.engine.rounds import Rounds
from idiolect.run.interrupts import SIGNALS, finish_on_interrupt
from idiolect.study.jobs import finish, stored
from study.tiny_jobs import Square

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture
def send(monkeypatch):
    """A function that sends a signal to this process after so many rounds in all."""
    rounds = [0]
    plan: dict[int, tuple[int, ...]] = {}
    advance = Rounds.advance

    def counted(self, *args):
        advance(self, *args)
        rounds[0] += 1
        for number in plan.get(rounds[0], ()):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Rounds, "advance", counted)

    def after(count, *numbers):
        plan[rounds[0] + count] = numbers

    after.rounds = rounds
    return after


def federation() -> il.Federation:
    return classification((15,) * 4, features=4)


def task() -> il.Task:
    return il.Task(lambda: nn.Linear(4, 3))


GIVEN = {"rounds": 4, "sample": 2, "batch": 4}


@pytest.mark.parametrize("number", CODES)
def test_a_signal_ends_the_run_after_the_round_and_the_run_goes_on_to_the_same_result(
    number, send, tmp_path, capsys
):
    whole = il.run(il.FedAvg(), task(), federation(), **GIVEN)
    send(2, number)
    with pytest.raises(Interrupted, match="stopped after round 2 of 4") as stop:
        il.run(il.FedAvg(), task(), federation(), directory=tmp_path / "run", **GIVEN)
    assert stop.value.number == number
    assert "finishing this round, then saving" in capsys.readouterr().err
    again = il.run(
        il.FedAvg(), task(), federation(), directory=tmp_path / "run", resume=True, **GIVEN
    )
    assert again.seeds[0].history == whole.seeds[0].history


@pytest.mark.parametrize("number", CODES)
def test_handlers_are_put_back(number, send):
    def mine(*_):
        pytest.fail("the user's handler was called during the run")

    before = signal.signal(number, mine)
    try:
        send(1, number)
        with pytest.raises(Interrupted):
            il.run(il.FedAvg(), task(), federation(), **GIVEN)
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, before)


def test_a_second_signal_stops_at_once(send, tmp_path):
    send(1, signal.SIGTERM, signal.SIGTERM)
    with pytest.raises(Interrupted, match="at once") as stop:
        il.run(il.FedAvg(), task(), federation(), directory=tmp_path / "run", **GIVEN)
    assert stop.value.number == signal.SIGTERM
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_signal_that_is_ignored_stays_ignored(send):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        send(1, signal.SIGHUP)
        assert il.run(il.FedAvg(), task(), federation(), **GIVEN).seeds[0].rounds == 4
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_no_handler_is_touched():
    seen = []

    def work():
        with finish_on_interrupt("finishing") as interrupted:
            seen.append((interrupted(), [signal.getsignal(number) for number in SIGNALS]))

    before = [signal.getsignal(number) for number in SIGNALS]
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


def test_one_inside_another_is_the_same_one(capsys):
    with finish_on_interrupt("finishing this row") as outer:
        with finish_on_interrupt("finishing this round"):
            os.kill(os.getpid(), signal.SIGTERM)
        assert outer()
        with finish_on_interrupt("finishing this round") as inner:
            assert inner()
    assert "finishing this round" in capsys.readouterr().err


# -- several runs ---------------------------------------------------------------------------------
def test_a_comparison_and_a_pipeline_are_stopped_by_sigterm_and_go_on(send, tmp_path):
    methods = ["fedavg", "fedprox"]
    whole = il.compare(methods, task(), federation(), **GIVEN)
    send(6, signal.SIGTERM)
    with pytest.raises(Interrupted, match="after round 2 of 4"):
        il.compare(methods, task(), federation(), directory=tmp_path / "c", **GIVEN)
    found = il.compare(
        methods, task(), federation(), directory=tmp_path / "c", resume=True, **GIVEN
    )
    assert found.rounds_table() == whole.rounds_table()
    stages = [(il.FedAvg(), 2), (il.FedProx(), 2)]
    send(3, signal.SIGTERM)
    with pytest.raises(Interrupted, match="after round 1 of 2"):
        il.pipeline(stages, task(), federation(), directory=tmp_path / "p", sample=2)
    again = il.pipeline(
        stages, task(), federation(), directory=tmp_path / "p", resume=True, sample=2
    )
    expected = il.pipeline(stages, task(), federation(), sample=2)
    assert [r.rounds_table() for r in again] == [r.rounds_table() for r in expected]


def test_a_signal_in_the_last_round_of_a_row_stops_before_the_next(send, tmp_path):
    send(4, signal.SIGTERM)
    with pytest.raises(Interrupted, match="stopped before fedprox"):
        il.compare(["fedavg", "fedprox"], task(), federation(), directory=tmp_path / "c", **GIVEN)
    assert (tmp_path / "c" / "0-fedavg" / "record.json").exists()


def test_tuning_is_stopped_by_sigterm(send):
    send(3, signal.SIGTERM)
    with pytest.raises(Interrupted):
        il.tune("fedavg", task(), federation(), grid={"lr": [0.1, 0.2, 0.3]}, rounds=3, jobs=1)
    assert send.rounds == [3]


def test_a_grid_is_stopped_by_sigterm_after_the_job_at_work(tmp_path, monkeypatch):
    train = Square.train

    def stopping(job):
        if job.number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return train(job)

    monkeypatch.setattr(Square, "train", stopping)
    with pytest.raises(Interrupted) as stop:
        finish([Square(n, seconds=0.05) for n in range(4)], tmp_path / "runs.jsonl")
    assert stop.value.number == signal.SIGTERM
    assert set(stored(tmp_path / "runs.jsonl")) == {"square 0", "square 1"}


# -- the command line -----------------------------------------------------------------------------
SMALL = ["--clients", "4", "--samples", "40", "--quiet", "--json"]


@pytest.mark.parametrize("number", CODES)
def test_the_exit_code_tells_the_signal_and_the_message_how_to_go_on(
    number, send, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    send(2, number)
    assert main(["run", "fedavg", "--rounds", "3", *SMALL, "--directory", "one"]) == CODES[number]
    assert "continue with: idiolect resume one" in capsys.readouterr().err
    assert main(["resume", "one", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["rounds"] == 3


@pytest.mark.parametrize(
    "command", [["compare", "fedavg", "--rounds", "3"], ["pipeline", "fedavg@3"]]
)
def test_commands_of_several_runs_tell_it_too(command, send, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    send(2, signal.SIGTERM)
    assert main([*command, *SMALL, "--directory", "one"]) == 143
    assert "continue with: idiolect resume one" in capsys.readouterr().err
    assert main(["resume", "one", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)[-1]["rounds"] == 3
