"""Repeats over the seed of the partition too: in every command, resumed, and refused with words."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect as il
from idiolect import Interrupted, SettingError
from idiolect.cli.main import main
from idiolect.run.data_seeds import DataSeeds

SETTINGS = {"rounds": 2, "batch": 8}


def digits(seed=0, **options):
    return il.data.load("digits", clients=5, seed=seed, **options)


def model():
    return il.models.make("linear", (1, 8, 8), 10)


def accuracies(result):
    return result.summary()["accuracy"]["by_seed"]


def run(**settings):
    return il.run("fedavg", model, digits(), progress=False, **SETTINGS, **settings)


# -- what a repeat is ------------------------------------------------------------------------------
def test_repeat_r_is_the_run_with_training_seed_r_on_partition_r():
    both = run(data_seeds=2)
    alone = [
        accuracies(il.run("fedavg", model, digits(seed), seed=seed, progress=False, **SETTINGS))
        for seed in (0, 1)
    ]
    assert accuracies(both) == [figure for (figure,) in alone]


def test_a_list_names_the_partitions_and_a_number_counts_from_the_seed_of_the_data():
    listed = run(data_seeds=[4, 9], seed=7)
    assert [(s.seed, s.data_seed) for s in listed.seeds] == [(7, 4), (8, 9)]
    counted = il.run("fedavg", model, digits(3), progress=False, data_seeds=2, **SETTINGS)
    assert [s.data_seed for s in counted.seeds] == [3, 4]


def test_the_caption_and_the_summary_say_what_the_repeats_are():
    result = run(data_seeds=2)
    assert "mean over 2 seeds of training and partition (0, 1)" in " ".join(str(result).split())
    assert result.summary()["data_seeds"] == {"draw": "partition", "seeds": [0, 1]}
    assert "data_seeds" not in run(seeds=2).summary()


def test_data_of_a_function_are_drawn_by_its_option_seed():
    def sites(seed: int = 0):
        x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        return il.Federation.from_arrays(x, np.arange(60) % 2, np.arange(60) % 3, seed=seed)

    result = il.run(
        "fedavg",
        torch.nn.Linear(4, 2),
        il.data.load(sites),
        data_seeds=2,
        progress=False,
        **SETTINGS,
    )
    assert "seeds of training and data" in " ".join(str(result).split())


def test_the_interval_covers_the_partition():
    both, training = run(data_seeds=4), run(seeds=4)
    assert both.summary()["accuracy"]["ci95"] > training.summary()["accuracy"]["ci95"]


@pytest.mark.parametrize("text", ["3", "4,8", "7,", ""])
def test_seeds_are_written_as_they_are_read(text):
    assert str(DataSeeds.parse(text)) == text


# -- resumed and loaded ----------------------------------------------------------------------------
def test_an_interrupted_run_continues_on_its_partitions(tmp_path):
    whole = run(data_seeds=2)

    def stop(moment):
        if moment.seed == 1 and moment.round == 1:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, Interrupted)):
        run(data_seeds=2, directory=tmp_path / "run", on_round=stop, checkpoint_every=1)
    again = run(data_seeds=2, directory=tmp_path / "run", resume=True)
    assert accuracies(again) == accuracies(whole)


def test_a_run_is_not_continued_on_other_partitions(tmp_path):
    run(data_seeds=[0, 1], directory=tmp_path / "run")
    with pytest.raises(SettingError, match="data_seeds was '0,1', is '0,2'"):
        run(data_seeds=[0, 2], directory=tmp_path / "run", resume=True)


def test_models_of_every_repeat_come_back_with_their_own_clients(tmp_path):
    result = run(data_seeds=2, directory=tmp_path / "run")
    data = digits(1)
    x, y = data.part(2, "test")
    for loaded in (
        il.load(tmp_path / "run", task=model),
        il.load(tmp_path / "run", task=model, federation=digits()),
    ):
        hits = loaded.predict(x, client=2, seed=1).labels == y.numpy()
        row = next(r for r in result.clients_table() if r["seed"] == 1 and r["client"] == 2)
        assert hits.mean() == pytest.approx(row["test_accuracy"])


def visits(seed: int = 0):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"site": rng.choice(list("abc"), 90), "age": rng.normal(40, 10, 90)})
    frame["cost"] = 1000 + 50 * frame["age"]
    return il.Federation.from_frame(frame, client="site", target="cost", seed=seed)


def test_rows_are_prepared_and_targets_scaled_as_in_the_repeat_of_the_model(tmp_path):
    def linear():
        return torch.nn.Linear(1, 1)

    data, place = il.data.load(visits), tmp_path / "run"
    result = il.run(
        "fedavg", linear, data, data_seeds=2, directory=place, progress=False, **SETTINGS
    )
    rows = pd.DataFrame({"age": [30.0, 50.0]})
    first, second = (result.predict(rows, client="a", seed=seed).values for seed in (0, 1))
    assert not np.allclose(first, second)
    loaded = il.load(place, task=linear)
    assert np.allclose(loaded.predict(rows, client="a", seed=1).values, second)


def test_stages_of_a_pipeline_share_the_partitions():
    stages = [("fedavg", 1), (il.Ffgg(part="output"), 1)]
    mlp = il.Task(lambda: il.models.make("mlp", (1, 8, 8), 10, hidden="8"))
    results = il.pipeline(stages, mlp, digits(), data_seeds=2, progress=False)
    assert [[s.data_seed for s in result.seeds] for result in results] == [[0, 1], [0, 1]]


@pytest.mark.slow
def test_worker_processes_train_on_the_same_partitions():
    apart = run(data_seeds=2, engine="processes", hosts=2)
    assert accuracies(apart) == pytest.approx(accuracies(run(data_seeds=2)), abs=1e-6)


# -- many runs -------------------------------------------------------------------------------------
def test_rows_of_a_comparison_share_the_partitions_and_the_baseline_is_their_mean():
    compared = il.compare(
        ["fedavg", "ditto"], model, digits(), data_seeds=2, progress=False, **SETTINGS
    )
    assert {tuple(row["data_seeds"]["seeds"]) for row in compared.rows()} == {(0, 1)}
    each = [
        il.compare(["fedavg"], model, digits(seed), baselines=False, progress=False, **SETTINGS)
        for seed in (0, 1)
    ]
    means = [one.majority["accuracy"]["mean"] for one in each]
    assert compared.majority["accuracy"]["mean"] == pytest.approx(sum(means) / 2)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_sweep_is_the_runs_one_by_one(jobs):
    swept = il.sweep(
        "fedavg", model, digits(), grid={"lr": [0.01, 0.1]}, jobs=jobs, data_seeds=2, **SETTINGS
    )
    rows = swept.rows()
    assert [(r["lr"], r["seed"], r["data_seed"]) for r in rows] == [
        (0.01, 0, 0),
        (0.01, 1, 1),
        (0.1, 0, 0),
        (0.1, 1, 1),
    ]
    direct = il.run(
        il.FedAvg(lr=0.1), model, digits(), data_seeds=2, threads=1, progress=False, **SETTINGS
    )
    assert [r["accuracy"] for r in rows[2:]] == accuracies(direct)
    assert "training and partition" in " ".join(str(swept).split())


def test_a_sweep_keeps_runs_on_one_partition_and_on_several_apart(tmp_path):
    options = {"grid": {"lr": [0.1]}, "jobs": 1, "directory": tmp_path / "sweep", **SETTINGS}
    il.sweep("fedavg", model, digits(), seeds=2, **options)
    il.sweep("fedavg", model, digits(), data_seeds=2, **options)
    lines = (tmp_path / "sweep" / "runs.jsonl").read_text().splitlines()
    keys = [json.loads(line)["key"] for line in lines]
    assert len(keys) == len(set(keys)) == 4


def test_a_tuning_searches_and_tests_on_the_partitions():
    tuned = il.tune(
        "fedavg",
        model,
        digits(),
        grid={"lr": [0.001, 0.1]},
        search_seeds=2,
        jobs=1,
        data_seeds=2,
        **SETTINGS,
    )
    assert [(s.seed, s.data_seed) for s in tuned.result.seeds] == [(2, 0), (3, 1)]
    standing = tuned.searches[tuned.names[0]].standings()[0]
    assert [s["data_seeds"]["seeds"] for s in standing.summaries] == [[0], [1]]
    assert np.isfinite(tuned.searches[tuned.names[0]].standings()[1].error)


def test_show_has_the_same_table(tmp_path, capsys):
    place = str(tmp_path / "run")
    command = ["run", "fedavg", "--data", "digits", "--clients", "5", "--rounds", "1"]
    main([*command, "--data-seeds", "2", "--quiet", "--directory", place])
    main(["show", place])
    assert "training and partition (0, 1)" in " ".join(capsys.readouterr().out.split())


# -- refused ---------------------------------------------------------------------------------------
def test_data_without_a_seed_are_refused():
    arrays = il.Federation.from_arrays(np.eye(8, dtype=np.float32), np.arange(8) % 2, [0, 1] * 4)
    with pytest.raises(SettingError, match="has no seed that draws its clients"):
        il.run("fedavg", torch.nn.Linear(8, 2), arrays, data_seeds=2)


def test_a_changed_copy_of_loaded_data_is_refused():
    with pytest.raises(SettingError, match="has no seed"):
        il.run("fedavg", model, digits().of([0, 1, 2]), data_seeds=2)


def test_a_seed_that_changes_nothing_is_refused():
    def fixed(seed: int = 0):
        return il.Federation.from_arrays(
            np.eye(8, dtype=np.float32), np.arange(8) % 2, [0, 1] * 4, valid=0, test=0
        )

    with pytest.raises(SettingError, match="seeds 0 and 1 draw the same data"):
        il.run("fedavg", torch.nn.Linear(8, 2), il.data.load(fixed), data_seeds=2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data_seeds": 3, "seeds": 2}, "seeds must be left out or 3"),
        ({"data_seeds": "x"}, "data_seeds must be a whole number"),
        ({"data_seeds": [1, 1]}, "data_seeds must be seeds that differ"),
        ({"data_seeds": -1}, "data_seeds must be a whole number"),
        ({"data_seeds": 2, "engine": "ray"}, "must be left out with engine 'ray'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        il.Settings(**settings)


def test_clients_of_several_partitions_are_not_pooled():
    from idiolect.report.clients import clients_view

    with pytest.raises(SettingError, match="whose clients are not the same people"):
        clients_view(run(data_seeds=2))
    rows = run(data_seeds=2).clients_table()
    assert {(row["seed"], row["data_seed"]) for row in rows} == {(0, 0), (1, 1)}


def test_a_table_of_clients_is_refused_before_the_run(tmp_path, capsys):
    place = tmp_path / "run"
    command = ["run", "fedavg", "--data", "digits", "--clients", "5", "--rounds", "1"]
    assert main([*command, "--data-seeds", "2", "--clients-table", "--directory", str(place)])
    assert "not the same people" in capsys.readouterr().err
    assert not place.exists()


def test_advice_and_splits_are_about_the_clients_at_hand():
    with pytest.raises(SettingError, match="data_seeds must not be given to advise"):
        il.advise(digits(), model, data_seeds=2)
    with pytest.raises(SettingError, match="data_seeds must not be given to splits"):
        il.splits(model, digits(), data_seeds=2)


def test_a_search_has_no_more_seeds_than_partitions():
    with pytest.raises(SettingError, match="search_seeds must be at most 2"):
        il.tune("fedavg", model, digits(), grid={"lr": [0.1]}, search_seeds=3, data_seeds=2)
