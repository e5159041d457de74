"""Settings beyond what the precision can hold are refused."""

import json

import pytest
import torch

import idiolect as il
from idiolect.run.session import numbers_fit


def test_a_step_size_that_the_precision_cannot_hold_is_refused():
    federation = il.data.load("synthetic", clients=4, samples=60)
    task = il.Task(lambda: torch.nn.Linear(60, 10))
    with pytest.raises(
        il.SettingError, match=r"lr must be at most 3.4e\+38, the largest float32, got 1e\+300"
    ):
        il.run(il.FedAvg(lr=1e300), task, federation, rounds=1)
    with pytest.raises(il.SettingError, match=r"server_lr must be at most .* got 1e\+300"):
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
