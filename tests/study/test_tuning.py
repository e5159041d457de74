"""Settings are chosen on validation data alone; the same choice however often it is stopped."""

import errno
import os
import signal
from collections import Counter
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.core.knobs import SettingError, build
from idiolect.methods import make_method
from idiolect.run.plan import Plan
from idiolect.run.settings import Settings
from idiolect.study import jobs as grid_jobs
from idiolect.study.many import Stock, Trial
from idiolect.study.search import Criterion, error_over_clients, search_plans
from idiolect.study.space import derived_space, grid_of, papers, read_space
from idiolect.study.tpe import PrunedTrial
from idiolect.testing import federation

DATA = federation()
SMALL = {"rounds": 2, "batch": 8}
GRID = {"lr": [0.001, 0.1, 0.5], "lam": [0.1, 1.0]}
SPACE = {"lr": {"low": 0.001, "high": 1.0, "log": True}, "steps": [1, 5]}


def model():
    return il.models.make("linear", DATA.shape, DATA.classes)


def tuned(methods="ditto", data=DATA, **more):
    rates = {"lr": GRID["lr"]} if methods == "fedavg" else GRID
    how = {} if {"space", "trials"} & set(more) else {"grid": rates}
    return il.tune(methods, model, data, **{"jobs": 1, **how, **SMALL, **more})


def points(*rates, **run):
    part = {"settings": {**SMALL, **run}, "name": "fedavg"}
    return [Plan.of(il.FedAvg(lr=lr), **part, varied={"lr": lr}) for lr in rates]


def stock(data=DATA):
    return Stock({"": data}, {"": il.Task(model)})


# -- test data -------------------------------------------------------------------------------------
def poisoned(data):
    """Other test data altogether."""
    start = int(data.offsets["test"][0])
    inputs, targets = data.inputs.clone(), data.targets.clone()
    inputs[start:] = 1e6
    targets[start:] = (targets[start:] + 1) % data.classes
    return replace(data, inputs=inputs, targets=targets)


@pytest.mark.parametrize("how", [{}, {"space": SPACE, "trials": 8}], ids=["grid", "trials"])
def test_poisoned_test_data_do_not_change_what_is_chosen(how):
    before, after = tuned("fedavg", **how), tuned("fedavg", poisoned(DATA), **how)
    assert before.rows() == after.rows()
    assert before.best == after.best and before.importance == after.importance
    tested = [t.result.summary()["accuracy"]["mean"] for t in (before, after)]
    assert tested[0] != tested[1]


def test_a_search_has_no_test_data(monkeypatch):
    seen = []
    train = Trial.trained

    def looking(trial, *more):
        seen.append(grid_jobs.common().federation(trial.plan.data))
        return train(trial, *more)

    monkeypatch.setattr(Trial, "trained", looking)
    search_plans(points(0.1), stock(), [0], jobs=1)
    tuned("fedavg", space=SPACE, trials=2)
    assert len(seen) == 3
    for data in seen:
        assert not data.sizes("test").any()
        assert data.samples == int(DATA.sizes("train").sum() + DATA.sizes("valid").sum())


def test_a_run_without_test_data_trains_the_same():
    left = DATA.without("test")
    one, two = (il.run("ditto", model, data, **SMALL).summary() for data in (DATA, left))
    assert one["valid"] == two["valid"] and one["train"] == two["train"]
    assert one["accuracy"]["mean"] is not None and two["accuracy"]["mean"] is None


def test_a_target_on_test_data_stops_no_search():
    found = search_plans(points(0.1, target_value=0.01, rounds=3), stock(), [0], jobs=1)
    assert found.rows()[0]["rounds"] == 3
    assert found.best().run_settings["target_value"] == 0.01  # as it was given


def test_patience_is_kept_in_a_search():
    some = points(0.3, patience=1, patience_metric="accuracy", rounds=30)
    found = search_plans(some, stock(), [0], jobs=1)
    assert found.rows()[0]["rounds"] < 30


# -- criteria --------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["pooled", "clients", "worst10"])
def test_a_criterion_is_the_figure_of_that_name(kind):
    found = search_plans(points(0.01, 0.3), stock(), [0], kind, jobs=1)
    names = {"pooled": "mean", "clients": "mean_of_clients", "worst10": "worst10"}
    for standing in found.standings():
        alone = il.run(standing.plan.make_method(), model, DATA, threads=1, **SMALL).summary()
        assert standing.figure == alone["valid"]["accuracy"][names[kind]]
    figures = [s.figure for s in found.standings()]
    assert figures == sorted(figures, reverse=True)


def test_a_loss_is_better_when_it_is_lower():
    numbers = np.random.default_rng(0).normal(size=(120, 3))
    data = il.Federation.from_arrays(numbers, numbers @ [1.0, 2.0, 3.0], np.arange(120) % 4)
    linear = {"grid": {"lr": [1e-5, 0.1]}, "jobs": 1, "rounds": 10}
    found = il.tune("fedavg", lambda: torch.nn.Linear(3, 1), data, **linear)
    assert found.best[0].lr == 0.1
    assert found.as_dict()["criterion"] == {"kind": "pooled", "measure": "loss"}
    with_metric = il.tune(
        "fedavg",
        model,
        DATA,
        grid={"lr": [1e-5, 0.3]},
        jobs=1,
        metric="log_loss",
        metrics="log_loss",
        **SMALL,
    )
    assert with_metric.best[0].lr == 0.3


@pytest.mark.parametrize("given", ["test", "test_accuracy", "best-on-test", "Test"])
def test_test_data_are_no_criterion(given):
    with pytest.raises(SettingError, match=r"on validation data, got.*Test data are for the final"):
        tuned(criterion=given)


def test_an_unknown_criterion_suggests_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'pooled'"):
        tuned(criterion="poled")


# -- noise -----------------------------------------------------------------------------------------
def test_the_influence_of_clients_is_the_jackknife_of_the_figure():
    rng = np.random.default_rng(1)
    each, samples = rng.random(60), rng.integers(5, 50, 60)
    for kind in ("pooled", "clients"):
        criterion = Criterion(kind, "accuracy", True)
        weights = samples if kind == "pooled" else np.ones(60)
        left = [np.average(np.delete(each, i), weights=np.delete(weights, i)) for i in range(60)]
        jackknife = np.sqrt(59 / 60 * ((left - np.mean(left)) ** 2).sum())
        error = error_over_clients(criterion.influence(each, samples), np.zeros(60))
        assert error == pytest.approx(jackknife, rel=0.05)


def test_the_worst_tenth_depends_on_its_own_clients_alone():
    criterion = Criterion("worst10", "accuracy", True)
    each = np.linspace(0.1, 0.9, 30)
    influence = criterion.influence(each, np.full(30, 10))
    assert (influence[3:] == 0).all() and influence[0] < influence[1] < influence[2] == 0


def test_equal_settings_are_ties_and_the_first_is_chosen():
    some = [*points(0.1), *points(0.1)]
    some[1] = replace(some[1], varied={"lr": "the same"})
    found = search_plans(some, stock(), [0, 1], jobs=1)
    assert found.best() is some[0]
    (tie,) = found.ties()
    assert tie.gap == 0 and tie.tied and len(tie.by_seed) == 2


def test_a_setting_that_learns_nothing_is_no_tie():
    found = search_plans(points(0.5, 1e-9, rounds=30), stock(), [0, 1], jobs=1)
    assert found.best().varied == {"lr": 0.5} and not found.ties()
    worse = found.standings()[1]
    assert worse.gap > worse.error > 0
    assert found.importance() == {"lr": 1.0}


# -- papers' grids ---------------------------------------------------------------------------------
def test_every_candidate_of_every_paper_can_be_made():
    sizes = {}
    for paper, grids in papers().items():
        for name, one in grids.items():
            found = one.plans(d=610, rounds=50)
            for point in found:
                make_method(one.method, **point.method_fields)
                build(Settings, point.own, "run")
            told = {k for p in found for k in (*p.method_fields, *p.own, *p.varied)}
            assert set(one.letters) <= told and set(one.grid) <= set(one.letters)
            sizes[paper, name] = len(found)
    assert sizes["lp-proj", "fedavg"] == 6 and sizes["lp-proj", "lp-proj-2"] == 54
    assert [sizes["lp-proj", n] for n in ("sketch", "lbgm", "qsgd", "dgc")] == [24, 18, 27, 27]
    assert sizes["ffgg", "ffgg"] == 3 and sizes["feddeper", "feddeper"] == 3


def test_sizes_of_sketches_go_by_the_model():
    runs = [p.own["channel"] for p in grid_of("lp-proj", "sketch").plans(d=1000)]
    assert runs[0] == "sketch(exact=true, columns=20, rows=5, k=10)"
    assert runs[-1] == "sketch(exact=true, columns=50, rows=10, k=50)"


def test_the_first_paper_that_has_a_method_gives_the_grid():
    assert grid_of("paper", "fedavg") is papers()["lp-proj"]["fedavg"]
    assert grid_of("ffgg", "fedavg") is papers()["ffgg"]["fedavg"]
    with pytest.raises(SettingError, match="one that has l2gd, got 'paper': no paper has it"):
        grid_of("paper", "l2gd")
    with pytest.raises(SettingError, match="did you mean 'lp-proj'"):
        grid_of("lpproj", "ditto")


def test_fields_that_are_given_are_not_varied():
    found = il.tune("fedavg:lr=0.2", model, DATA, grid="paper", jobs=1, **SMALL)
    assert sorted(row["steps"] for row in found.rows()) == [1, 5]
    assert found.best[0].lr == 0.2


def test_settings_of_a_paper_can_be_searched():
    grid = grid_of("lp-proj", "lbgm").plans(il.Task(model).d, 2, {"lr": 0.1, "steps": 1})
    some = [replace(plan, settings=SMALL) for plan in grid]
    found = search_plans(some, stock(), [0], jobs=1)
    assert len(found.rows()) == 3 and found.names == ["lbgm"]
    assert "lbgm(threshold=" in found.best("lbgm").own["channel"]
    with pytest.raises(SettingError, match="must be one of lbgm, got 'dgc'"):
        found.best("dgc")


# -- spaces ----------------------------------------------------------------------------------------
BAD_SPACES = {
    "empty": ({}, "space: it is empty"),
    "low > high": ({"lr": {"low": 1, "high": 0.1}}, "low < high, got 1 and 0.1"),
    "no high": ({"lr": {"low": 1}}, "must have low and high"),
    "log of zero": ({"lr": {"low": 0, "high": 1, "log": True}}, "above 0"),
    "another key": ({"lr": {"low": 0.1, "hgh": 1}}, "did you mean 'high'"),
    "no choices": ({"lr": []}, "lr must have at least one choice"),
    "a number": ({"lr": 0.1}, "a list of choices"),
    "an unknown name": ({"lamda": [1, 2]}, "did you mean 'lam'"),
    "data": ({"data.clients": [3, 4]}, "one federation and one model"),
    "parts of steps": ({"steps": {"low": 1.5, "high": 3}}, "whole numbers"),
    "a value": ({"lr": [0.1, -1.0]}, "lr must be a number > 0, got -1.0"),
}


@pytest.mark.parametrize("name", BAD_SPACES)
def test_a_space_that_makes_no_sense_is_refused_before_anything_runs(name, monkeypatch):
    monkeypatch.setattr(Trial, "trained", lambda *_: pytest.fail("it ran"))
    space, message = BAD_SPACES[name]
    with pytest.raises(SettingError, match=message):
        tuned(space=space, trials=2)


def test_a_space_file(tmp_path):
    (tmp_path / "space.toml").write_text("lr = {low = 0.01, high = 1, log = true}\nlam = [0, 1]\n")
    found = read_space(tmp_path / "space.toml", [il.Ditto])
    assert found["lr"].log and found["lam"] == (0, 1)
    (tmp_path / "empty.toml").write_text("")
    for file, message in (("empty", "empty"), ("none", "cannot read")):
        with pytest.raises(SettingError, match=message):
            tuned(space=tmp_path / f"{file}.toml")
    (tmp_path / "space.toml").write_text("lr = {low")
    with pytest.raises(SettingError, match="is not TOML"):
        tuned(space=tmp_path / "space.toml")


def test_a_space_is_derived_from_fields():
    found = derived_space(il.Ditto, {"steps": 3})
    assert set(found) == {"lr", "lam", "personal_lr", "personal_steps"}
    assert (found["lam"].low, found["lam"].high, found["lam"].log) == (0.001, 10.0, True)
    assert derived_space(il.FedDeper, {})["lam"].high == 1.0  # the most that it takes
    assert "lr" not in derived_space(il.LpProj, {})  # 0: chosen by the method
    with pytest.raises(SettingError, match="left to vary"):
        derived_space(il.FedAvg, {"lr": 0.1, "steps": 1})


# -- trials ----------------------------------------------------------------------------------------
def counted(monkeypatch, stop=0):
    """How often each setting was trained; Ctrl-C in the middle of one."""
    trained = Counter()
    train = Trial.trained

    def counting(trial, *more):
        trained[trial.describe()] += 1
        if sum(trained.values()) == stop:
            os.kill(os.getpid(), signal.SIGINT)
        return train(trial, *more)

    monkeypatch.setattr(Trial, "trained", counting)
    return trained


def test_trials_that_were_stopped_come_to_the_same(tmp_path, monkeypatch):
    given = {"space": SPACE, "trials": 8, "rounds": 10, "search_seeds": 2}
    whole = tuned("fedavg", **given)
    trained = counted(monkeypatch, stop=7)
    with pytest.raises(il.Interrupted):
        tuned("fedavg", **given, directory=tmp_path / "a")
    assert sum(trained.values()) == 7
    again = tuned("fedavg", **given, directory=tmp_path / "a")
    assert again.rows() == whole.rows() and again.best == whole.best
    assert set(trained.values()) == {1}
    assert again.cost.runs == whole.cost.runs


def test_a_hopeless_trial_is_stopped_by_its_validation_data():
    given = {"space": {"lr": {"low": 1e-6, "high": 0.5, "log": True}}, "trials": 14, "rounds": 10}
    found = tuned("fedavg", **given)
    early = [row for row in found.rows() if row.get("stopped") == "early"]
    assert early and all(row["rounds"] < 10 for row in early)
    assert found.best[0].lr not in [row["lr"] for row in early]
    finished = [row for row in found.rows() if row.get("stopped") is None]
    assert len(finished) + len(early) == 14
    assert found.importance["fedavg"] in ({"lr": 1.0}, {})


def test_a_trial_decides_by_what_others_had(monkeypatch):
    monkeypatch.setattr(grid_jobs, "_shared", Stock({"": DATA.without("test")}, stock().tasks))
    run = {**SMALL, "rounds": 10, "eval_every": 1, "patience": 99, "patience_metric": "accuracy"}
    setting = Plan.of(il.FedAvg(lr=1e-6), settings=run, name="fedavg")
    perfect = tuple(dict.fromkeys(range(1, 11), 1.0) for _ in range(5))
    hopeless = PrunedTrial(setting, 0, "", (), "s", perfect).train()
    assert hopeless["pruned"] and hopeless["rounds"] == 2  # a fifth of the rounds is for free
    first = PrunedTrial(setting, 0, "", (), "s", perfect[:4]).train()
    assert not first["pruned"] and first["rounds"] == 10 and len(first["curve"]) == 10


def test_without_optuna_it_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(SettingError, match=r"Optuna.*is not installed.*idiolect\[tune\]"):
        tuned(trials=3)


# -- all of it -------------------------------------------------------------------------------------
def test_the_final_run_has_fresh_seeds_and_local_beside():
    found = tuned(["ditto", "fedavg"], search_seeds=2, seeds=2, seed=5)
    assert found.seeds == {"search": [5, 6], "final": [7, 8]}
    rows = found.comparison.rows()
    assert [row["method"] for row in rows] == ["ditto", "fedavg", "local"]
    assert all(row["seeds"] == [7, 8] for row in rows)
    method, run = found.chosen["fedavg"]
    alone = il.run(method, model, DATA, **run).summary()
    assert alone["accuracy"] == rows[1]["accuracy"]
    assert found.cost.runs == 2 * (6 + 3)
    assert found.result in found.comparison.results
    assert {"ditto", "fedavg"} == set(found.ties) == set(found.importance)
    text = str(found)
    assert "within one standard error" in text and "cost of the search: 18 runs" in text


@pytest.mark.slow  # worker processes start
def test_more_jobs_choose_the_same():
    (features,) = DATA.shape
    linear = torch.nn.Linear(features, DATA.classes)
    given = {"grid": {"lr": [0.01, 0.3]}, **SMALL}
    one, two = (il.tune("fedavg", linear, DATA, jobs=jobs, **given) for jobs in (1, 2))
    assert one.rows() == two.rows()
    given = {"space": SPACE, "trials": 4, **SMALL}
    one, two = (il.tune("fedavg", linear, DATA, jobs=2, **given) for _ in range(2))
    assert one.rows() == two.rows()


def test_a_tuning_goes_on_where_it_was(tmp_path, monkeypatch):
    whole = tuned(directory=tmp_path / "whole")
    trained = counted(monkeypatch, stop=3)
    with pytest.raises(il.Interrupted):
        tuned(directory=tmp_path / "a")
    again = tuned(directory=tmp_path / "a")
    assert set(trained.values()) == {1} and again.rows() == whole.rows()
    for name in ("best.toml", "table.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    again = tuned(directory=tmp_path / "a")  # finished: nothing is run any more
    assert again.comparison.rows()[0]["accuracy"] == whole.comparison.rows()[0]["accuracy"]
    with pytest.raises(SettingError, match="holds another tuning"):
        tuned(directory=tmp_path / "a", rounds=3)


def test_no_validation_data():
    numbers = np.random.default_rng(0).normal(size=(60, 3))
    data = il.Federation.from_arrays(numbers, np.arange(60) % 2, np.arange(60) % 4, valid=0)
    with pytest.raises(SettingError, match="no client of arrays has validation data"):
        il.tune("fedavg", lambda: torch.nn.Linear(3, 2), data, grid={"lr": [0.1]})


BAD = {
    "a key that no method has": ({"grid": {"lamda": [1]}}, "did you mean 'lam'"),
    "an empty grid": ({"grid": {}}, "grid must be NAME=VALUE"),
    "no values": ({"grid": {"lr": []}}, "lr must have at least one value"),
    "a grid and trials": ({"grid": {"lr": [1]}, "trials": 3}, "must not be given together"),
    "two kinds of grid": ({"grid": ["paper", "lr=1"]}, "either that of a paper"),
    "data": ({"grid": {"data.clients": [3]}}, "one federation and one model"),
    "no trials": ({"trials": 0}, "trials must be a whole number >= 1, got 0"),
    "no seeds": ({"search_seeds": 0}, "search_seeds must be a whole number >= 1, got 0"),
    "a method twice": ({"methods": ["ditto", "ditto"]}, "got ditto twice"),
    "no method": ({"methods": []}, "methods must be at least one"),
    "a compressor": ({"methods": "qsgd"}, "FedAvg through a channel"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_refused_before_anything_runs(name, monkeypatch):
    monkeypatch.setattr(Trial, "trained", lambda *_: pytest.fail("it ran"))
    given, message = BAD[name]
    with pytest.raises(SettingError, match=message):
        tuned(**given)


def test_settings_that_all_diverge_are_said(monkeypatch):
    numbers = 1e3 * np.random.default_rng(0).normal(size=(60, 3))
    data = il.Federation.from_arrays(numbers, numbers[:, 0], np.arange(60) % 4)
    with pytest.raises(SettingError, match="no setting has a finite validation loss"):
        il.tune("fedavg", lambda: torch.nn.Linear(3, 1), data, grid={"lr": [9.0]}, jobs=1)


def test_a_full_disk_costs_the_files_and_not_the_choice(tmp_path, monkeypatch, capsys):
    def full(path, body):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(import_module("idiolect.study.tune"), "write_atomic", full)
    found = tuned(directory=tmp_path / "a")
    assert found.best[0].lr in GRID["lr"]
    assert "best.toml could not be written (No space left on device)" in capsys.readouterr().err
