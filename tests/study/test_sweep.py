"""Sweeps: every combination with every seed, the same table whoever runs it and how often."""

import errno
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas
import pytest
import torch

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.report.format import number
from idiolect.run.plan import Plan
from idiolect.study import jobs as grid
from idiolect.study.many import Stock, Sweep, Trial, run_many
from idiolect.study.space import read_grid
from idiolect.study.sweep import sweep_plans
from idiolect.testing import federation
from study.tiny_jobs import Deadly, Square

DATA = federation()
SMALL = {"rounds": 2, "batch": 8}


def model():
    return il.models.make("linear", DATA.shape, DATA.classes)


def swept(methods="fedavg", **more):
    given = {"seeds": 2, "jobs": 1, **SMALL, **more}
    return il.sweep(methods, model, DATA, **given)


def plans(*methods):
    options = {"clients": 4, "samples": 60}
    settings = {**SMALL, "seeds": 2}
    return [Plan(m, data="synthetic", data_options=options, settings=settings) for m in methods]


# -- what is varied --------------------------------------------------------------------------------
def test_every_combination_has_every_seed():
    found = swept(["fedavg", "ditto"], grid={"lr": [0.01, 0.1], "lam": [0.1, 1.0]})
    rows = [(r["method"], r["lr"], r["lam"], r["seed"]) for r in found.rows()]
    fedavg = [("fedavg", lr, None, s) for lr in (0.01, 0.1) for s in (0, 1)]
    assert rows == fedavg + [
        ("ditto", lr, lam, s) for lr in (0.01, 0.1) for lam in (0.1, 1.0) for s in (0, 1)
    ]
    assert [s.label for s in found.settings][:3] == [
        "fedavg lr=0.01",
        "fedavg lr=0.1",
        "ditto lr=0.01 lam=0.1",
    ]


def test_a_run_of_a_sweep_is_that_run():
    found = swept("ditto", grid={"lam": [0.5], "sample": [2, 3]}, seed=4)
    for trial, summary in found.summaries.items():
        alone = il.run(
            il.Ditto(lam=0.5),
            model,
            DATA,
            seed=trial.seed,
            sample=trial.plan.varied["sample"],
            threads=1,
            **SMALL,
        )
        theirs = alone.summary()
        for name in ("accuracy", "loss", "valid", "bytes", "gradients_per_client"):
            assert summary[name] == theirs[name], name
    several = il.run(il.Ditto(lam=0.5), model, DATA, seed=4, seeds=2, sample=2, **SMALL, threads=1)
    for name in ("accuracy", "train", "valid", "global_model"):
        assert found.merged()[0][name] == several.summary()[name], name


def test_a_table_with_runs_that_collapsed_and_others_is_written(tmp_path):
    swept("fedavg", grid={"lr": [0.1, 1e30]}, seeds=1, eval_every=1, directory=tmp_path)
    table = pandas.read_csv(tmp_path / "table.csv")
    assert pandas.read_parquet(tmp_path / "table.parquet")["collapsed"].isna().tolist() == [
        True,
        False,
    ]
    assert table["collapsed"].isna().tolist() == [True, False]


def test_a_table_has_the_figures_of_clients_held_out(tmp_path):
    found = swept("fedavg", grid={"lr": [0.1]}, seeds=1, held_out=1, directory=tmp_path)
    (summary,) = found.merged()
    table = pandas.read_csv(tmp_path / "table.csv")
    assert table["held_out_accuracy"].tolist() == [summary["held_out"]["accuracy"]["mean"]]
    assert "held out" in str(found.table(160, show_test=True))
    assert "held out" not in str(found.table(160))  # those are figures on test data


def test_data_and_model_of_plans_can_be_varied():
    found = sweep_plans(plans("fedavg"), ["data.clients=3,5", "lr=0.1"], jobs=1)
    assert [(r["data.clients"], r["lr"]) for r in found.rows()] == [
        ("3", "0.1"),
        ("3", "0.1"),
        ("5", "0.1"),
        ("5", "0.1"),
    ]
    assert len({r["bytes_up"] for r in found.rows()}) == 2


BAD = {
    "a key that no method has": ({"lamda": [1]}, "did you mean 'lam'"),
    "no values": ({"lr": []}, "lr must have at least one value"),
    "one text": ({"lr": "0.1"}, "a list of values"),
    "a value twice": ({"lr": [0.1, 0.1]}, "got one twice"),
    "seeds": ({"seeds": [1, 2]}, "must not vary seeds.*whole sweep"),
    "a part": ({"dta.clients": [1]}, "did you mean 'data'"),
    "data that are given": ({"data.clients": [1]}, "sweep over plans"),
    "a value": ({"lr": [0.1, -1.0]}, "lr must be a number > 0, got -1.0"),
    "of the run": ({"run.smple": [1]}, "did you mean 'sample'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_grid_that_makes_no_sense_is_refused_before_anything_runs(name, monkeypatch):
    monkeypatch.setattr(Trial, "train", lambda self: pytest.fail("it ran"))
    given, message = BAD[name]
    with pytest.raises(SettingError, match=message):
        swept(["fedavg", "ditto"], grid=given)


def test_a_text_without_values_is_refused():
    with pytest.raises(SettingError, match="NAME=VALUE"):
        read_grid(["lr"])
    with pytest.raises(SettingError, match="got lr twice"):
        sweep_plans(plans("fedavg"), ["lr=0.1", "lr=0.2"])
    with pytest.raises(SettingError, match="seeds must be a whole number >= 1, got 0"):
        swept(seeds=0)
    with pytest.raises(SettingError, match="methods must be at least one"):
        swept([])


# -- stopped, killed, with more workers ------------------------------------------------------------
def counted(monkeypatch):
    trained = Counter()
    train = Trial.train

    def counting(trial):
        trained[trial.describe()] += 1
        return train(trial)

    monkeypatch.setattr(Trial, "train", counting)
    return trained


def test_a_sweep_that_is_started_again_does_only_what_is_missing(tmp_path, monkeypatch):
    trained = counted(monkeypatch)
    whole = swept(grid={"lr": [0.01, 0.1]}, directory=tmp_path / "a")
    assert len(trained) == 4
    table = (tmp_path / "a/table.csv").read_bytes()
    lines = (tmp_path / "a/runs.jsonl").read_text().splitlines(keepends=True)
    half = lines[0] + lines[1][:40]  # killed while it wrote
    (tmp_path / "a/runs.jsonl").write_text(half)
    again = swept(grid={"lr": [0.01, 0.1]}, directory=tmp_path / "a")
    assert sum(trained.values()) == 7
    assert (tmp_path / "a/table.csv").read_bytes() == table
    assert again.rows() == whole.rows()
    more = swept(grid={"lr": [0.01, 0.1, 0.2]}, directory=tmp_path / "a")
    assert sum(trained.values()) == 9 and len(more.rows()) == 6


def test_worker_processes_make_the_same_table(tmp_path):
    grid = ["lr=0.01,0.1", "data.clients=3,4"]
    one = sweep_plans(plans("fedavg", "lp-proj"), grid, jobs=1, directory=tmp_path / "one")
    two = sweep_plans(plans("fedavg", "lp-proj"), grid, jobs=2, directory=tmp_path / "two")
    assert not one.failed and not two.failed
    tables = [(tmp_path / n / "table.csv").read_bytes() for n in ("one", "two")]
    assert tables[0] == tables[1] and len(tables[0].splitlines()) == 17
    assert pandas.read_parquet(tmp_path / "two/table.parquet").equals(two.frame())


def test_a_run_that_fails_costs_its_own_line_only(tmp_path, monkeypatch):
    train = Trial.train

    def failing(trial):
        if trial.plan.varied["lr"] == 0.1:
            raise ArithmeticError("too large")
        return train(trial)

    monkeypatch.setattr(Trial, "train", failing)
    found = swept(grid={"lr": [0.01, 0.1]}, directory=tmp_path / "a")
    assert len(found.rows()) == 2
    assert set(found.failed.values()) == {"ArithmeticError: too large"}
    monkeypatch.setattr(Trial, "train", train)
    assert len(swept(grid={"lr": [0.01, 0.1]}, directory=tmp_path / "a").rows()) == 4


def test_a_worker_that_is_killed_is_replaced(tmp_path):
    (tmp_path / "left").write_text("2")  # the first two to come are killed
    jobs = [Deadly(n, str(tmp_path / "left")) for n in range(5)]
    results = grid.finish(jobs, tmp_path / "runs.jsonl", workers=2)
    assert [results[job]["number"] for job in jobs] == [0, 1, 2, 3, 4]


def test_a_job_that_kills_every_worker_is_told_apart(tmp_path):
    always = Deadly(7, "")
    failed = {}
    jobs = [Square(2), always, Square(3)]
    results = grid.finish(
        jobs, tmp_path / "runs.jsonl", 2, failed=lambda job, error: failed.update({job: error})
    )
    assert set(results) == {Square(2), Square(3)}
    assert isinstance(failed[always], grid.WorkerLost)


def test_workers_that_cannot_import_a_job_end_the_grid_with_the_reason(tmp_path, monkeypatch):
    """Not one failure per job, nor a search that waits for ever."""
    (tmp_path / "vanishing.py").write_text(
        "from study.tiny_jobs import Square\nclass Own(Square): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("vanishing").Own
    (tmp_path / "vanishing.py").write_text("raise RuntimeError('no such licence')\n")
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    failed = {}
    with pytest.raises(SettingError, match=r"jobs: .*RuntimeError: no such licence.* jobs=1"):
        grid.finish(
            [own(1), own(2)], tmp_path / "runs.jsonl", 2, failed=lambda job, e: failed.update(job=e)
        )
    share = own(3)
    with pytest.raises(SettingError, match=r"jobs: .*RuntimeError: no such licence.* jobs=1"):
        grid.finish([Square(1), Square(2)], tmp_path / "runs.jsonl", 2, share=share)
    assert not failed


def test_a_script_whose_workers_cannot_start_ends_with_the_reason(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from pathlib import Path\nfrom idiolect.study.jobs import finish\n"
        "from study.tiny_jobs import Square\n"
        f"finish([Square(1), Square(2)], Path({str(tmp_path / 'runs.jsonl')!r}), workers=2,"
        " failed=lambda job, error: None)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "under if __name__ == '__main__'" in done.stderr


def test_a_model_that_workers_cannot_get_is_said(tmp_path):
    with pytest.raises(SettingError, match=r"jobs must be 1, got 2"):
        il.sweep("fedavg", lambda: model(), DATA, grid={"lr": [0.1]}, seeds=2, jobs=2, **SMALL)


def test_a_folder_of_something_else_is_refused(tmp_path):
    il.run("fedavg", model, DATA, directory=tmp_path / "run", **SMALL)
    with pytest.raises(SettingError, match="already holds a run"):
        swept(directory=tmp_path / "run")


# -- results ---------------------------------------------------------------------------------------
def test_the_best_setting_is_chosen_on_validation_data():
    found = swept(grid={"lr": [0.0001, 0.5]}, rounds=20)
    assert found.best().varied == {"lr": 0.5}
    assert found.best("loss").varied == {"lr": 0.5}
    frame = found.frame()
    assert list(frame["seed"]) == [0, 1, 0, 1]
    assert "seconds" not in frame.columns
    assert "fedavg lr=0.5" in str(json.dumps([r["label"] for r in found.merged()]))


def figures_in(table):
    """The cell of the main figure in every row."""
    return [cells[1] for cells in table.cells()]


def text_of(table):
    return " ".join(str(table).split())


def test_the_table_has_validation_figures_and_test_figures_on_request_with_a_warning():
    sweep = swept(grid={"lr": [0.01, 0.5]}, rounds=4)
    rows = sweep.merged()
    valid = [number(row["valid"]["accuracy"]["mean"]) for row in rows]
    test = [number(row["accuracy"]["mean"]) for row in rows]
    assert valid != test
    assert figures_in(sweep.table()) == valid
    assert "validation data of each client, last round (4)" in text_of(sweep.table())
    assert "test data of each client" not in text_of(sweep)  # print(sweep)
    assert figures_in(sweep.table(show_test=True)) == test
    warned = text_of(sweep.table(show_test=True))
    assert "test data of each client" in warned
    assert "a setting chosen by these figures is biased" in warned
    asked = swept(grid={"lr": [0.01, 0.5]}, rounds=4, show_test=True)
    assert figures_in(asked.table()) == test and asked.rows() == sweep.rows()
    assert asked.best().varied == sweep.best().varied


def test_metrics_in_the_table_are_those_on_validation_data():
    sweep = swept(grid={"lr": [0.5]}, rounds=4, metric="f1")
    (row,) = sweep.merged()
    assert row["valid"]["f1"]["mean"] != row["metrics"]["f1"]["mean"]
    assert figures_in(sweep.table()) == [number(row["valid"]["f1"]["mean"])]


def test_without_validation_samples_a_sweep_says_that_it_shows_test_figures():
    bare = il.data.load("synthetic", clients=4, samples=60, valid=0)
    sweep = il.sweep("fedavg", torch.nn.Linear(60, 10), bare, seeds=1, jobs=1, **SMALL)
    (row,) = sweep.merged()
    assert figures_in(sweep.table()) == [number(row["accuracy"]["mean"])]
    text = text_of(sweep.table())
    assert "no validation samples" in text and "test data of each client" in text
    assert "a setting chosen by these figures is biased" in text


def test_settings_without_validation_samples_among_others_are_named():
    sweep = sweep_plans(plans("fedavg"), ["data.valid=0,0.2"], jobs=1)
    without, with_samples = figures_in(sweep.table())
    assert without == "–" and with_samples != "–"
    assert "no validation samples: fedavg data.valid=0" in text_of(sweep.table())


def test_threads_are_one_unless_given():
    found = swept(grid={"lr": [0.1]}, seeds=1)
    (setting,) = found.settings
    assert setting.of_seed(0)["threads"] == 1
    assert torch.get_num_threads() >= 1


def test_ctrl_c_keeps_what_is_done(tmp_path, monkeypatch):
    train = Trial.train
    done = []

    def pressing(trial):
        done.append(trial)
        if len(done) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return train(trial)

    monkeypatch.setattr(Trial, "train", pressing)
    with pytest.raises(il.Interrupted):
        swept(grid={"lr": [0.01, 0.1]}, directory=tmp_path / "a")
    assert len((tmp_path / "a/runs.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "a/table.csv").exists()
    assert len(swept(grid={"lr": [0.01, 0.1]}, directory=tmp_path / "a").rows()) == 4
    assert len(done) == 4
    assert Path(tmp_path / "a/table.csv").exists()


def test_rounds_and_clients_can_be_kept():
    stock = Stock({"": DATA}, {"": il.Task(model)})
    point = Plan.of(il.FedAvg(lr=0.1), settings=SMALL, name="fedavg")
    found = run_many([point], stock, [3], jobs=1, keep=("by_round", "by_client"))
    (summary,) = found.summaries.values()
    assert [row["round"] for row in summary["by_round"]] == [1, 2]
    assert len(summary["by_client"]) == DATA.clients
    assert "by_round" not in run_many([point], stock, [3], jobs=1).rows()[0]


def test_a_full_disk_costs_no_result(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(grid, "store", full)
    monkeypatch.setattr(Sweep, "write", full)
    found = swept(grid={"lr": [0.01, 0.1]}, directory=tmp_path / "s")
    assert len(found.rows()) == 4
    said = capsys.readouterr().err
    assert "4 of 4 results could not be written (No space left on device)" in said
    assert "the table could not be written" in said
    monkeypatch.undo()
    assert swept(grid={"lr": [0.01, 0.1]}, directory=tmp_path / "s").rows() == found.rows()
    assert (tmp_path / "s" / "table.csv").exists()
