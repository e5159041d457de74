"""The stored figures come out again."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import idiolect as il
from idiolect import FedAvg
from idiolect.methods import METHODS
from idiolect_papers import EXPERIMENTS
from idiolect_papers.own import golden

DOCS = Path(__file__).parents[2] / "docs"
STORED = json.loads((DOCS / "results.json").read_text())
TITLE = "Synthetic(0, 0)"


def test_the_stored_federations_are_those_of_the_table():
    assert set(STORED) == set(golden.FEDERATIONS)
    assert (DOCS / "results.md").read_text().startswith(golden.HEAD)


def test_methods_for_parts_have_a_model_with_parts():
    _, tasks = golden.load(TITLE)
    assert tasks["fedavg"].d == 610 < tasks["ffgg"].d == tasks["lg-fedavg"].d
    for name in ("ffgg", "local-ffgg", "fedalt", "fedsim", "lg-fedavg"):
        sent = sum(METHODS.find(name)[0]().message(tasks[name]).values())
        assert 0 < sent < tasks[name].d


@pytest.mark.slow
@pytest.mark.parametrize("title", golden.FEDERATIONS)
def test_the_first_seed_gives_the_stored_accuracy(title):
    """Methods that are not stored yet are left out: `idiolect reproduce golden-missing`."""
    heard = golden.FEDERATIONS[title].clients_per_round
    federation, tasks = golden.load(title)
    off = {}
    for name, accuracies in STORED[title].items():
        if name in METHODS:
            model = tasks[name]
            off[name] = golden.difference(accuracies[0], name, federation, model, heard)
    assert max(off.values()) <= golden.TOLERANCE, off


@pytest.mark.slow
def test_a_changed_method_is_noticed(monkeypatch):
    heard = golden.FEDERATIONS[TITLE].clients_per_round
    federation, tasks = golden.load(TITLE)
    stored = STORED[TITLE]["fedavg"][0]
    monkeypatch.setattr(golden, "make_method", lambda name: FedAvg(lr=0.45))
    off = golden.difference(stored, "fedavg", federation, tasks["fedavg"], heard)
    assert off > golden.TOLERANCE


def accuracies(monkeypatch, *values):
    """Let the runs of the check reach these accuracies, one after the other."""
    left = list(values)
    monkeypatch.setattr(golden, "accuracy", lambda *_, **__: left.pop(0))
    return left


def test_a_figure_near_the_stored_one_needs_no_second_run(monkeypatch):
    accuracies(monkeypatch, 0.81)
    assert golden.difference(0.8, "fedavg", None, None, 10) == pytest.approx(0.01)


def test_a_figure_in_the_range_of_other_roundings_is_no_difference(monkeypatch):
    left = accuracies(monkeypatch, 0.817, 0.84, 0.825, 0.832)
    assert golden.difference(0.8376, "fedprox-soft", None, None, 10) == 0.0 and not left


def test_a_figure_outside_of_that_range_is_one(monkeypatch):
    accuracies(monkeypatch, 0.80, 0.81, 0.79, 0.80)
    assert golden.difference(0.85, "fedavg", None, None, 10) == pytest.approx(0.04)


@pytest.fixture
def ran(monkeypatch):
    """The names of the methods that were run, without running them."""
    seen = []
    data = il.data.load("synthetic", clients=4, samples=40)
    summary = il.run("fedavg", torch.nn.Linear(60, 10), data, rounds=1).summary()
    summary["accuracy"] |= {"mean": 0.5, "by_seed": [0.5]}

    def runs(todo, stock, seeds):
        seen.extend(setting.name for setting in todo.values())
        return {key: [summary | {"seeds": [seed]} for seed in seeds] for key in todo}

    monkeypatch.setattr(golden, "stored_runs", lambda *_: nullcontext(runs))
    return seen


def test_only_missing_methods_are_run_and_added_where_they_belong(ran, tmp_path):
    for name in ("results.md", "results.json"):
        shutil.copy(DOCS / name, tmp_path)
    table = json.loads(json.dumps(STORED))
    del table[TITLE]["fedavg"], table[TITLE]["ditto"]
    (tmp_path / "results.json").write_text(json.dumps(table))
    paths = EXPERIMENTS["golden-missing"](tmp_path)
    assert ran == ["fedavg", "ditto"]
    text = paths[0].read_text()
    stored = json.loads(paths[1].read_text())
    assert stored[TITLE]["fedavg"] == [0.5] * 3
    assert stored[TITLE]["local"] == STORED[TITLE]["local"]
    assert [list(rows) for rows in stored.values()] == [list(rows) for rows in STORED.values()]
    before = (DOCS / "results.md").read_text().splitlines()
    changed = [line for line in text.splitlines() if line not in before]
    assert [line.split()[1] for line in changed] == ["fedavg", "ditto"]


def test_nothing_missing_leaves_the_files_as_they_are(ran, tmp_path):
    for name in ("results.md", "results.json"):
        shutil.copy(DOCS / name, tmp_path)
    golden.write_missing(tmp_path)
    assert ran == []
    for name in ("results.md", "results.json"):
        assert (tmp_path / name).read_bytes() == (DOCS / name).read_bytes()


def test_without_stored_files_everything_is_missing(ran, tmp_path):
    golden.write_missing(tmp_path)
    assert len(ran) == len(golden.FEDERATIONS) * len(set(METHODS) - golden.SKIP)
