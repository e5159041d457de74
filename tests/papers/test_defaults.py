"""The defaults of the code are those that the written rule chooses from the stored figures."""

import dataclasses
import json
import shutil
from itertools import product
from pathlib import Path

import pytest

import idiolect as il
from idiolect.methods import METHODS, equal_to, make_method
from idiolect_papers import EXPERIMENTS
from idiolect_papers.own import defaults
from idiolect_papers.own.defaults import (
    FEDERATIONS,
    FORMS,
    GRIDS,
    NOT_SEARCHED,
    TEXTS,
    GridRun,
    chosen,
    page,
    regrets,
    rows_of,
    tied_table,
)
from idiolect_papers.own.defaults import CandidateScore as Score

DOCS = Path(__file__).parents[2] / "docs"
STORED = json.loads((DOCS / "defaults.json").read_text())
OTHER_NAMES = {"lp-proj-1", "lp-proj-2", "feddeper*", "heurfedamp"}  # of methods that have a grid


# -- the rule -----------------------------------------------------------------------------------
def test_the_worst_regret_decides():
    rows = [[Score(0.9, 1, 1), Score(0.5, 1, 1)], [Score(0.8, 9, 9), Score(0.7, 9, 9)]]
    assert regrets(rows) == pytest.approx([0.2, 0.1]) and chosen(rows) == 1


def test_among_equals_fewer_gradients_win_then_fewer_bytes_then_the_smaller_regret():
    best = [Score(0.9, 100, 10)]
    assert chosen([best, [Score(0.895, 50, 99)]]) == 1
    assert chosen([best, [Score(0.895, 100, 5)]]) == 1
    assert chosen([[Score(0.895, 100, 10)], best]) == 1
    assert chosen([best, best]) == 0
    assert chosen([best, [Score(0.88, 1, 1)]]) == 0  # no tie: too far below


# -- the stored figures --------------------------------------------------------------------------
def test_every_method_has_a_grid_and_the_stored_grids_are_those_of_the_code():
    assert set(GRIDS) | OTHER_NAMES | set(NOT_SEARCHED) == set(METHODS)
    assert not set(GRIDS) & set(NOT_SEARCHED)
    for name, grid in GRIDS.items():
        assert STORED["grids"][name]["candidates"] == list(grid.candidates), name
        assert STORED["grids"][name]["variants"] == list(grid.variants), name


def test_no_setting_of_a_grid_makes_a_method_another_one():
    """Such as Local: a default must make a method do what it is for."""
    task = il.Task(lambda: il.models.make("mlp", (1, 8, 8), 10, hidden="32"))
    for name, grid in GRIDS.items():
        for candidate, variant in product(grid.candidates, grid.variants):
            method = make_method(name, **candidate, **variant)
            assert equal_to(method, task) == "", (name, candidate)


def test_at_least_six_federations_decided():
    assert list(STORED["settings"]["federations"]) == list(FEDERATIONS) and len(FEDERATIONS) >= 6
    for name, grid in STORED["grids"].items():
        assert len(grid["cells"]) == len(FEDERATIONS) * len(GRIDS[name].variants)


@pytest.mark.parametrize("name", GRIDS)
def test_the_defaults_of_the_code_are_what_the_rule_chooses(name):
    grid = STORED["grids"][name]
    rows = rows_of(grid["cells"])
    assert chosen(rows) == grid["chosen"]
    assert [round(r, 4) for r in regrets(rows)] == grid["regrets"]
    cls, _ = METHODS.find(name)
    found = {f.name: f.default for f in dataclasses.fields(cls)}
    wanted = grid["candidates"][grid["chosen"]]
    assert {field: found[field] for field in wanted} == wanted


def test_feddeper_star_has_half_the_steps():
    assert 2 * make_method("feddeper*").steps == make_method("feddeper").steps


def test_the_page_is_that_of_the_figures():
    assert (DOCS / "defaults.md").read_text() == page(STORED)


@pytest.mark.parametrize(
    ("method", "title"), [("fedavg", "digits, iid"), ("fedsim", "digits, by form")]
)
def test_a_cell_comes_out_again(method, title):
    grid = STORED["grids"][method]
    candidate = grid["candidates"][grid["chosen"]]
    found = GRIDS[method].run(candidate, {}, title, seed=0).train()
    stored = grid["cells"][title][grid["chosen"]]
    assert found["accuracy"] == pytest.approx(stored["accuracy"][0], abs=0.015)


# -- where collaboration helps -------------------------------------------------------------------
def test_collaboration_helps_on_some_federations_and_not_on_all():
    helps = [title for title, row in STORED["local"].items() if row["helps"]]
    assert "digits, iid" in helps and len(helps) < len(FEDERATIONS)


def test_every_method_is_compared_where_collaboration_helps():
    everyone = set(METHODS) - {"lp-proj", "local", *NOT_SEARCHED}
    for row in STORED["local"].values():
        assert set(row["methods"]) == (everyone if row["helps"] else set())


def test_no_default_is_worse_than_local_and_one_that_is_not_better_is_explained():
    verdicts = {
        name: figures["verdict"]
        for row in STORED["local"].values()
        for name, figures in row["methods"].items()
    }
    assert "worse" not in verdicts.values()
    assert {name for name, verdict in verdicts.items() if verdict != "better"} == set(
        TEXTS["explained"]
    )


def test_a_difference_is_worse_only_beyond_its_interval():
    def row(*pairs):
        cells = [
            [{"accuracy": v, "gradients": 1} for v in column] for column in zip(*pairs, strict=True)
        ]
        return defaults._difference(*cells)["verdict"]

    assert row((0.5, 0.6), (0.51, 0.61)) == "worse"
    assert row((0.5, 0.6), (0.61, 0.6)) == "within the interval"
    assert row((0.7, 0.6), (0.71, 0.61)) == "better"


def test_the_gain_of_lp_proj_grows_with_the_tied_part():
    gains = [row["lp-proj-2"] for row in STORED["tied"]]
    assert gains == sorted(gains) and gains[-1] > gains[0] + 0.1


def test_the_page_on_choosing_shows_the_tied_part():
    text = (DOCS / "choose.md").read_text()
    assert tied_table(STORED["tied"]) in text


# -- the command ---------------------------------------------------------------------------------
SMALL = {
    "seeds": 1,
    "checked": 2,
    "federations": ("digits, iid",),
    "methods": ("local", "fedavg", "lp-proj"),
    "rounds": 2,
    "dims": (21,),
    "workers": 1,
}


def test_a_small_grid_writes_its_page_and_a_second_start_runs_nothing_again(tmp_path, monkeypatch):
    text, figures = defaults.write(tmp_path, **SMALL)
    stored = json.loads(figures.read_text())
    assert list(stored["grids"]) == list(SMALL["methods"])
    assert "### fedavg" in text.read_text()
    before = text.read_text()

    def refuse(self):
        raise AssertionError(f"{self.describe()} was stored")

    monkeypatch.setattr(GridRun, "train", refuse)
    defaults.write(tmp_path, **SMALL)
    assert text.read_text() == before and json.loads(figures.read_text()) == stored


def test_only_grids_that_are_not_stored_are_run(tmp_path, monkeypatch):
    shutil.copy(DOCS / "defaults.json", tmp_path)
    seen = []

    def outcome(self):
        seen.append(self.method)
        return {"accuracy": 0.5, "gradients": 1.0, "bytes": 1, "cpu": 0.0}

    monkeypatch.setattr(GridRun, "train", outcome)
    text, figures = EXPERIMENTS["defaults-missing"](tmp_path)
    assert seen == [] and text.read_text() == page(STORED)
    missing = json.loads(figures.read_text())
    del missing["grids"]["slowmo"]
    figures.write_text(json.dumps(missing))
    _, figures = defaults.write_missing(tmp_path, workers=1)
    stored = json.loads(figures.read_text())
    assert set(seen) == {"slowmo", "local"}
    assert stored["grids"]["slowmo"]["regrets"] == [0.0] * len(GRIDS["slowmo"].candidates)
    assert stored["grids"] | {"slowmo": None} == STORED["grids"] | {"slowmo": None}


def test_forms_begin_where_the_labels_repeat():
    from sklearn.datasets import load_digits

    labels = "".join(map(str, load_digits(return_X_y=True)[1]))
    for start in FORMS:
        assert "9095565098984177351" in labels[start : start + 60]
