"""Stages as one run."""

import json
import shutil

import pytest
import torch

import idiolect as il
from helpers import private_of, state_of
from idiolect.cli.main import main

STAGES = [
    (il.FedAvg(), 6),
    (il.Ffgg(part="output", lr=0.5, private_lr=0.1, steps=20), 4),
    (il.FedAlt(part="output", steps=0, private_steps=30, who="everyone"), 3),
]


def federation():
    return il.data.load("digits", clients=6)


def task():
    return il.Task(lambda: il.models.make("mlp", (1, 8, 8), 10, hidden="8"))


def test_a_stage_starts_from_the_shared_model_of_the_one_before():
    first, second, _ = il.pipeline(STAGES, task(), federation(), dtype="float64")
    assert torch.equal(second.session().contract.task.x0, state_of(first)["w"])


def test_the_last_stage_leaves_the_shared_part_alone_and_improves_the_private_one():
    _, second, third = il.pipeline(STAGES, task(), federation(), dtype="float64")
    torch.testing.assert_close(
        state_of(third)["theta"], state_of(second)["theta"], rtol=1e-12, atol=1e-12
    )
    assert third.over_seeds("loss", "train") < second.over_seeds("loss", "train")


def test_private_rows_pass_to_a_stage_that_keeps_the_same_ones():
    stages = [
        (il.FedAlt(part="output"), 3),
        (il.FedAlt(part="output", steps=0, private_steps=0), 1),
    ]
    first, second = il.pipeline(stages, task(), federation())
    assert torch.equal(private_of(first)["w"], private_of(second)["w"])


@pytest.mark.parametrize("settings", [{"hosts": 3}, {"attack": "sign-flip", "malicious": 2}])
def test_every_host_hands_its_own_rows_over(settings):
    stages = [
        (il.FedAlt(part="output"), 3),
        (il.FedAlt(part="output", steps=0, private_steps=0), 1),
    ]
    first, second = il.pipeline(stages, task(), federation(), **settings)
    assert torch.equal(private_of(first)["w"], private_of(second)["w"])


def test_the_models_of_a_stage_come_back_from_its_directory(tmp_path):
    stages = [(il.FedAvg(), 3), (il.Ffgg(part="output", start="common"), 2)]
    results = il.pipeline(stages, task(), federation(), directory=tmp_path / "p")
    loaded = il.load(tmp_path / "p" / "stage-1", task=task(), federation=federation())
    for client in federation().ids:
        for a, b in zip(
            loaded.personal(client).parameters(),
            results[1].personal(client).parameters(),
            strict=True,
        ):
            assert torch.equal(a, b)


def test_a_stage_without_a_shared_model_can_only_be_the_last():
    with pytest.raises(il.SettingError, match="no shared model"):
        il.pipeline([(il.Local(), 1), (il.FedAvg(), 1)], task(), federation())


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_an_interrupted_pipeline_continues_to_exactly_the_same_result(
    stage, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = [
        "fedavg@3",
        "ffgg:part=output@3",
        "fedalt:part=output,steps=0,who=everyone@2",
        "--data",
        "digits",
        "--clients",
        "6",
        "--seeds",
        "2",
    ]
    assert (
        main(["pipeline", *words, "--json", "--directory", "whole", "--checkpoint-every", "1"]) == 0
    )
    whole = json.loads(capsys.readouterr().out)
    assert (
        main(["pipeline", *words, "--json", "--directory", "broken", "--checkpoint-every", "1"])
        == 0
    )
    capsys.readouterr()
    for later in range(stage, 3):  # as if it had been stopped during this stage, seed 1 not begun
        folder = tmp_path / "broken" / f"stage-{later}"
        _remove(folder / "checkpoints" / "seed-1")
        _remove(max((folder / "checkpoints" / "seed-0").iterdir()))
        if later > stage:
            _remove(folder)
    assert main(["resume", "broken", "--json"]) == 0
    assert [_figures(s) for s in json.loads(capsys.readouterr().out)] == [
        _figures(s) for s in whole
    ]


def _figures(summary):
    return {k: v for k, v in summary.items() if k != "seconds"}


def _remove(path):
    shutil.rmtree(path)


def test_a_stage_must_say_its_rounds(capsys):
    assert main(["pipeline", "fedavg"]) == 2
    assert "@ROUNDS" in capsys.readouterr().err


def test_stages_that_would_each_spend_a_budget_are_refused():
    federation = il.data.load("digits", clients=4)
    task = il.Task(lambda: il.models.make("linear", (1, 8, 8), 10))
    with pytest.raises(il.SettingError, match="privacy must be none with several stages"):
        il.pipeline([("fedavg", 2), ("fedavg", 2)], task, federation, epsilon=3.0)
