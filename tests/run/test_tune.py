"""Choosing among candidates on validation data."""

import pytest

from idiolect import FedAvg, Federation, Local, SettingError, Task, data, models
from idiolect.run import tune
from idiolect.run.tune import choose

FEDERATION = data.load("synthetic", clients=4, samples=60)
RATES = [(FedAvg(lr=lr), {}) for lr in (0.05, 0.1, 0.5)]


class OnlyValidation(dict):
    """A summary from which nothing but validation figures may be read."""

    def __getitem__(self, key):
        assert key == "valid", f"{key} was read"
        return super().__getitem__(key)


@pytest.fixture
def fake_run(monkeypatch):
    """Runs whose validation figure is best at lr 0.1 and whose test figure is best elsewhere."""
    seen = []

    def run(method, task, federation, **settings):
        seen.append((method, settings))
        off = abs(method.lr - 0.1)
        valid = {"accuracy": {"mean": 1 - off}, "loss": {"mean": off}}
        summary = OnlyValidation(valid=valid, accuracy={"mean": off}, loss={"mean": 1 - off})
        return type("FakeResult", (), {"summary": lambda self: summary})()

    monkeypatch.setattr(tune, "run", run)
    return seen


def test_the_highest_validation_accuracy_wins_and_all_figures_are_recorded(fake_run):
    choice = choose(RATES, None, FEDERATION, {"rounds": 5})
    assert choice.method.lr == 0.1 and choice.measure == "accuracy"
    assert choice.figures == pytest.approx((0.95, 1.0, 0.6))


def test_the_lowest_validation_loss_wins_for_a_regression(fake_run):
    regression = Federation.from_arrays([[0.0]] * 4, [0.5, 1.5, 2.5, 3.5], [0, 0, 1, 1])
    choice = choose(RATES, None, regression, {})
    assert choice.method.lr == 0.1 and choice.measure == "loss"
    assert choice.figures == pytest.approx((0.05, 0.0, 0.4))


def test_test_data_neither_choose_nor_stop_a_run(fake_run):
    settings = {"rounds": 5, "seeds": 3, "eval_every": 1, "target_accuracy": 0.5, "patience": 3}
    choose(RATES, None, FEDERATION, settings)
    always = {"rounds": 5, "seeds": 1, "eval_every": 0, "target_accuracy": 0.0, "progress": False}
    assert [given for _, given in fake_run] == [always] * 3


def test_a_candidate_has_run_settings_of_its_own(fake_run):
    candidates = [(FedAvg(lr=0.5), {"batch": 8}), (FedAvg(lr=0.1), {"batch": 16})]
    choice = choose(candidates, None, FEDERATION, {"batch": 64})
    assert [given["batch"] for _, given in fake_run] == [8, 16]
    assert choice.settings == {"batch": 16}


def test_a_single_candidate_is_chosen_without_a_run(fake_run):
    choice = choose([(Local(), {"batch": 8})], None, FEDERATION)
    assert choice.method == Local() and choice.settings == {"batch": 8}
    assert choice.figures == () and fake_run == []


def test_of_equal_candidates_the_first_is_chosen(fake_run):
    candidates = [(FedAvg(lr=0.2, steps=steps), {}) for steps in (3, 2)]
    assert choose(candidates, None, FEDERATION).method.steps == 3


def test_what_cannot_be_chosen_is_refused(monkeypatch):
    with pytest.raises(SettingError, match="candidates: there are none"):
        choose([], None, FEDERATION)
    nothing = {"valid": {"accuracy": {"mean": None}}}
    result = type("FakeResult", (), {"summary": lambda self: nothing})()
    monkeypatch.setattr(tune, "run", lambda *_, **__: result)
    with pytest.raises(SettingError, match="none has a finite validation accuracy"):
        choose(RATES, None, FEDERATION)


def test_a_real_choice():
    task = Task(lambda: models.make("linear", (60,), 10))
    candidates = [(FedAvg(lr=1e-6), {}), (FedAvg(lr=0.1), {"batch": 16})]
    choice = choose(candidates, task, FEDERATION, {"rounds": 10, "sample": 2})
    assert choice.method.lr == 0.1 and choice.settings == {"batch": 16}
    assert choice.figures[0] < choice.figures[1]
