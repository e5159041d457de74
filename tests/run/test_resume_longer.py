"""A finished or unfinished run goes on with more rounds, to the result of a run of so many."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from helpers import classification
from idiolect.run.run import Interrupted
from idiolect.testing import private_of, state_of

DATA = classification(sizes=(20,) * 6, valid=0.2)
MODEL = il.Task(lambda: nn.Linear(6, 3))


def run(method="ditto", folder=None, rounds=8, stop=0, **settings) -> il.Result:
    def progress(seed: int, round: int, accuracy: float) -> None:
        if round == stop:
            os.kill(os.getpid(), signal.SIGINT)

    given = {"sample": 3, "batch": 8, **settings}
    resume = folder is not None and (folder / "settings.json").exists()
    return il.run(
        method,
        MODEL,
        DATA,
        directory=folder,
        resume=resume,
        progress=progress,
        rounds=rounds,
        **given,
    )


def same(longer: il.Result, straight: il.Result) -> None:
    """Figures, tables, server and private rows, bit for bit."""
    one, other = longer.summary(), straight.summary()
    assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert longer.rounds_table() == straight.rounds_table()
    assert longer.clients_table() == straight.clients_table()
    for seed in [s.seed for s in straight.seeds]:
        for part in (state_of, private_of):
            mine, theirs = part(longer, seed), part(straight, seed)
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[n], theirs[n]) for n in mine)
    arrays = zip(longer.seeds, straight.seeds, strict=True)
    assert all(np.array_equal(a.by_client, b.by_client, equal_nan=True) for a, b in arrays)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ditto", {}),
        ("lp-proj", {"seeds": 2}),
        ("scaffold", {"server_optimizer": "adam", "server_lr": 0.01}),
        ("fedavg", {"eval_every": 3, "channel": "feedback + topk(share=0.2)"}),
        ("ditto", {"schedule": "step:3:0.5", "held_out": 2, "eval_every": 5}),
    ],
)
def test_a_finished_run_of_5_goes_on_to_what_a_run_of_8_rounds_gives(method, settings, tmp_path):
    run(method, tmp_path / "run", rounds=5, **settings)
    longer = run(method, tmp_path / "run", **settings)
    same(longer, run(method, **settings))
    assert [start["rounds"] for start in longer.record.starts] == [5, 8]
    assert longer.record.starts[1]["from"]["0"] == 5
    saved = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert saved["run"]["rounds"] == 8 and longer.record.settings["rounds"] == 8


def test_the_files_are_those_of_a_run_of_8_rounds(tmp_path):
    run("ditto", tmp_path / "one", rounds=5, eval_every=3)
    run("ditto", tmp_path / "one", eval_every=3)
    run("ditto", tmp_path / "other", eval_every=3)
    for name in ("metrics.csv", "clients.csv", "record.safetensors", "accuracy-seed-0.f32"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_an_unfinished_run_may_grow_too_and_more_than_once(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(folder=folder, rounds=5, stop=3)
    with pytest.raises(Interrupted):
        run(folder=folder, rounds=7, stop=6)
    longer = run(folder=folder)
    same(longer, run())
    assert [start["rounds"] for start in longer.record.starts] == [5, 7, 8]


def test_a_run_that_is_to_be_longer_is_not_finished_until_it_is(tmp_path):
    folder = tmp_path / "run"
    run(folder=folder, rounds=5)
    with pytest.raises(Interrupted):
        run(folder=folder, stop=6)
    with pytest.raises(il.SettingError, match="is not finished; continue it with"):
        il.load(folder)
    run(folder=folder)
    same(il.load(folder, task=MODEL, federation=DATA), run())


def test_rounds_do_not_shrink_below_what_is_done(tmp_path):
    folder = tmp_path / "run"
    run(folder=folder)
    says = r"rounds must be a whole number >= 8, which .* has done \(seed 0\), got 5"
    with pytest.raises(il.SettingError, match=says):
        run(folder=folder, rounds=5)
    same(run(folder=folder), run())


def test_rounds_that_are_not_yet_done_may_be_given_up(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        run(folder=folder, stop=3)
    same(run(folder=folder, rounds=5), run(rounds=5))


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_a_schedule_over_all_rounds_refuses_more_of_them_with_a_word(schedule, tmp_path):
    folder = tmp_path / "run"
    run(folder=folder, rounds=5, schedule=schedule)
    says = f"rounds must be 5, as .* has, got 8: its schedule '{schedule}' spreads"
    with pytest.raises(il.SettingError, match=says):
        run(folder=folder, schedule=schedule)
    same(run(folder=folder, rounds=5, schedule=schedule), run(rounds=5, schedule=schedule))


def test_a_run_that_met_its_target_stays_where_it_met_it(tmp_path):
    folder = tmp_path / "run"
    first = run(folder=folder, rounds=5, target_value=0.01)
    assert first.seeds[0].stopped == "target" and first.seeds[0].rounds == 1
    assert run(folder=folder, target_value=0.01).seeds[0].rounds == 1


def test_a_saved_result_goes_on(tmp_path):
    run(rounds=5).save(tmp_path / "run")
    same(run(folder=tmp_path / "run"), run())


def test_clients_that_were_personalised_at_the_end_of_a_saved_result_stop_it(tmp_path):
    run(rounds=5, held_out=2).save(tmp_path / "run")
    with pytest.raises(Exception, match="its held-out clients were personalised at the end"):
        run(folder=tmp_path / "run", held_out=2)


def test_a_comparison_goes_on_too(tmp_path):
    folder = tmp_path / "run"
    rows = ["fedavg", "ditto:rounds=4", "lp-proj:dim=5"]
    given = {"sample": 3, "batch": 8}
    il.compare(rows, MODEL, DATA, rounds=5, directory=folder, **given)
    longer = il.compare(rows, MODEL, DATA, rounds=8, directory=folder, resume=True, **given)
    straight = il.compare(rows, MODEL, DATA, rounds=8, **given)
    assert longer.labels == straight.labels
    for one, other in zip(longer.results, straight.results, strict=True):
        same(one, other)
    assert [r.seeds[0].rounds for r in longer.results] == [8, 4, 8, 8]
    again = il.load(folder)
    assert [r.seeds[0].rounds for r in again.results] == [8, 4, 8, 8]


def test_local_at_equal_compute_of_a_longer_comparison_is_another_run_if_it_must_be(tmp_path):
    """The most costly row keeps its rounds, so that Local has fewer steps in more rounds."""
    folder = tmp_path / "run"
    rows = ["local:steps=1", "ditto:rounds=4"]
    given = {"sample": 6, "batch": 8}
    il.compare(rows, MODEL, DATA, rounds=5, directory=folder, **given)
    longer = il.compare(rows, MODEL, DATA, rounds=8, directory=folder, resume=True, **given)
    straight = il.compare(rows, MODEL, DATA, rounds=8, **given)
    assert longer.labels == straight.labels
    for one, other in zip(longer.results, straight.results, strict=True):
        same(one, other)


def test_the_origin_of_a_command_line_run_has_the_rounds_of_now(tmp_path):
    from idiolect.run.plan import Plan

    plan = Plan("fedavg", data="synthetic", data_options={"clients": 4, "samples": 60})
    data = plan.make_data()
    for rounds, resume in ((2, False), (4, True)):
        il.run(
            plan.make_method(),
            plan.make_task(data),
            data,
            directory=tmp_path / "run",
            origin={**plan.as_dict(), "settings": {"rounds": rounds}},
            resume=resume,
            rounds=rounds,
        )
    saved = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert saved["origin"]["settings"]["rounds"] == 4
    assert il.load(tmp_path / "run").personal(0) is not None
