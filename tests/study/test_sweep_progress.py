"""The time left of a sweep is estimated from its finished runs."""

from types import SimpleNamespace

import pytest

from idiolect.report import progress as reporter
from idiolect.report.progress import Meter
from idiolect.run.plan import Plan
from idiolect.study import jobs as progress
from idiolect.study.jobs import JobProgress


class Run(SimpleNamespace):
    """A run of ten rounds."""

    __hash__ = object.__hash__

    def cost(self):
        return 10.0

    def describe(self):
        return "a run"


def runs(data, many):
    plan = Plan("fedavg", data=data, name="fedavg")
    return [Run(plan=plan) for _ in range(many)]


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.seconds)
    monkeypatch.setattr(reporter, "clock", lambda: now.seconds)
    return now


def lines_of(jobs):
    made = JobProgress(jobs, Meter(len(jobs), "lines", "runs"))
    made.report({}, None)
    return made


def last_line(capsys):
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_the_time_left_is_estimated_from_runs_on_the_same_data(clock, capsys):
    quick, slow = runs("quick", 4), runs("slow", 3)
    lines = lines_of([*quick, *slow])
    results = {}
    for trial, seconds in ((quick[0], 1.0), (slow[0], 60.0)):
        clock.seconds += seconds
        results[trial] = {"seconds": seconds}
        lines.report(results, trial)
    # three quick runs and two slow ones are left, one after the other: 3 s and 2 min
    assert last_line(capsys) == "2 of 7 runs (28 %): a run, about 2 min left"
    assert lines.seconds_left() == pytest.approx(123)
    clock.seconds /= 2  # two workers were busy
    assert lines.seconds_left() == pytest.approx(61.5)


def test_without_times_or_a_similar_run_the_number_of_runs_counts(clock, capsys):
    quick, slow = runs("quick", 2), runs("slow", 2)
    lines = lines_of([*quick, *slow])
    clock.seconds = 5.0
    lines.report({quick[0]: None}, quick[0])  # a trial of Optuna
    assert last_line(capsys) == "1 of 4 runs (25 %): a run, about 15 s left"
    lines.failed(quick[1], "it broke")
    assert "a run failed: it broke" in capsys.readouterr().err
    clock.seconds = 8.0
    lines.report({quick[0]: {}, slow[0]: {"seconds": 4.0}}, slow[0])
    assert last_line(capsys) == "3 of 4 runs (75 %): 1 failed, a run, about 4 s left"


def test_runs_stored_before_count_neither_as_left_nor_as_fast(clock, capsys):
    before, now = runs("data", 5), runs("data", 2)
    lines = JobProgress([*before, *now], Meter(7, "lines", "runs"))
    lines.report({key: {"seconds": 100.0} for key in before}, None)
    assert last_line(capsys) == "5 of 7 runs are stored already"
    clock.seconds = 3.0
    lines.report({key: {} for key in before} | {now[0]: {"seconds": 3.0}}, now[0])
    assert last_line(capsys) == "6 of 7 runs (85 %): a run, about 3 s left"
