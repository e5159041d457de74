"""What a sweep says of its end."""

from types import SimpleNamespace

import pytest

from idiolect.study import progress
from idiolect.study.progress import _Lines


class Run(SimpleNamespace):
    """A run of ten rounds."""

    __hash__ = object.__hash__

    def cost(self):
        return 10.0

    def describe(self):
        return "a run"


def runs(data, many):
    setting = SimpleNamespace(data=data, name="fedavg")
    return [Run(setting=setting) for _ in range(many)]


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.seconds)
    return now


def test_the_end_is_told_by_runs_on_the_same_data(clock):
    quick, slow = runs("quick", 4), runs("slow", 3)
    lines = _Lines([*quick, *slow])
    lines.report({}, None)
    results = {}
    for trial, seconds in ((quick[0], 1.0), (slow[0], 60.0)):
        clock.seconds += seconds
        results[trial] = {"seconds": seconds}
        lines.report(results, trial)
    # three quick runs and two slow ones are left, one after the other: 3 s and 2 min
    assert lines.words() == "2 of 7 runs, about 2 min left"
    assert lines.pace.left(clock.seconds) == pytest.approx(123)
    assert lines.pace.left(clock.seconds / 2) == pytest.approx(61.5)  # two were at work


def test_without_times_or_a_run_alike_the_rounds_tell(clock):
    quick, slow = runs("quick", 2), runs("slow", 2)
    lines = _Lines([*quick, *slow])
    lines.report({}, None)
    clock.seconds = 5.0
    lines.report({quick[0]: None}, quick[0])  # a trial of Optuna
    assert lines.words() == "1 of 4 runs, about 15 s left"
    lines.failed(quick[1], "it broke")
    clock.seconds = 8.0
    lines.report({quick[0]: {}, slow[0]: {"seconds": 4.0}}, slow[0])
    assert lines.words() == "2 of 4 runs, 1 failed, about 4 s left"


def test_what_was_done_before_is_not_left(clock):
    before, now = runs("data", 5), runs("data", 2)
    lines = _Lines([*before, *now])
    lines.report({key: {"seconds": 100.0} for key in before}, None)
    clock.seconds = 3.0
    lines.report({key: {} for key in before} | {now[0]: {"seconds": 3.0}}, now[0])
    assert lines.words() == "6 of 7 runs, about 3 s left"
