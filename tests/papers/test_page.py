"""Pages of experiments: claims and published cells beside ours, and the pages that list them."""

import importlib
import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest

import idiolect as il
from idiolect_papers import EXPERIMENTS
from idiolect_papers.experiments import KINDS
from idiolect_papers.marks import Cell, Figure, marked
from idiolect_papers.page import Claim, Page, glance, page_of, write_index
from idiolect_papers.panels import Line, Panel

DOCS = Path(__file__).parents[2] / "docs"


# -- theorems and constructed problems -------------------------------------------------------------
def theory_page(name="paper-figure1"):
    return Page(
        name,
        "Figure 1",
        settings="n = 10.",
        claims=[Claim("slope -1", "slope -0.9", "agrees")],
        tables={"Slopes": [{"method": "ffgg", "slope": -0.9}]},
        panels=[Panel("p", "rounds", "error", [Line("ffgg", [1, 2], [1.0, 0.5])], log="y")],
    )


def test_an_experiment_leaves_page_figures_picture_and_index(tmp_path):
    folder = tmp_path / "theory"
    folder.mkdir()
    paths = theory_page().write(folder)
    assert [p.name for p in paths] == [
        "paper-figure1.md",
        "paper-figure1.json",
        "paper-figure1.png",
        "theory.md",
    ]
    assert "| slope -1 | slope -0.9 | **agrees** |" in paths[0].read_text()
    assert "(theory/paper-figure1.png)" in paths[3].read_text()


def test_a_claim_that_differs_needs_a_reason():
    with pytest.raises(ValueError, match="reason"):
        Claim("1e-6", "1e-4", "differs")
    with pytest.raises(ValueError, match="verdict"):
        Claim("1e-6", "1e-4", "nearly")


def test_stored_pages_of_theory_are_those_of_their_figures(tmp_path):
    stored = sorted((DOCS / "theory").glob("*.json"))
    for path in stored:
        figures = json.loads(path.read_text())
        assert path.with_suffix(".md").read_text() == page_of(figures), path.name
        assert figures["name"] in EXPERIMENTS
        if figures["picture"]:
            assert path.with_name(figures["picture"]).exists()
    if stored:
        before = (DOCS / "theory.md").read_text()
        copy = tmp_path / "theory"
        copy.mkdir()
        for path in stored:
            (copy / path.name).write_text(path.read_text())
        assert write_index(copy).read_text() == before


def test_every_experiment_can_be_found_and_takes_its_options():
    for experiment in EXPERIMENTS.values():
        module, _, name = experiment.function.partition(":")
        write = getattr(importlib.import_module(f"idiolect_papers.{module}"), name)
        scale = {"scale": "quick"} if KINDS[experiment.kind][1] else {}
        inspect.signature(write).bind(Path(), **experiment.options, **scale)


# -- published tables ------------------------------------------------------------------------------
def cells(paper, ours):
    return [
        Cell("data", row, "accuracy", paper.get(row), ours.get(row))
        for row in dict.fromkeys([*paper, *ours])
    ]


def test_cells_agree_where_intervals_overlap():
    paper = {"a": Figure(0.90, 0.02), "b": Figure(0.70, None, 2)}
    assert marked(cells(paper, {"a": Figure(0.87, 0.02), "b": Figure(0.704)})) == ["agrees"] * 2


def test_a_cell_keeps_its_order_or_differs():
    paper = {n: Figure(v) for n, v in zip("abcde", (0.9, 0.8, 0.7, 0.6, 0.5), strict=True)}
    ours = {n: Figure(v) for n, v in zip("abcde", (0.3, 0.6, 0.55, 0.53, 0.45), strict=True)}
    assert marked(cells(paper, ours)) == ["differs", *["same order"] * 4]


def test_a_star_agrees_with_a_star_and_lies_below_all():
    paper = {"a": Figure(None), "b": Figure(0.5)}
    assert marked(cells(paper, {"a": Figure(None), "b": Figure(0.6)})) == ["agrees", "same order"]
    assert marked(cells(paper, {"a": Figure(0.9), "b": Figure(0.5)})) == ["differs", "agrees"]


def test_what_is_not_run_or_not_published_says_so():
    assert marked(cells({"a": Figure(0.5)}, {"b": Figure(0.5)})) == ["not run", ""]


def test_a_figure_is_a_mean_over_seeds():
    assert Figure.of([0.5, None]).mean is None
    assert Figure.of([0.5]).half is None
    assert str(Figure.of([0.4, 0.6], 2)) == "0.50 ± 1.27"
    assert Figure.of([0.4, 0.6], 2).reach == pytest.approx(0.055)  # not 1.27: a tenth of the mean


def table_page():
    paper = {"a": Figure(0.9), "b": Figure(0.5)}
    ours = {"a": Figure(0.1), "b": Figure(0.5), "Local": Figure(0.7)}
    return Page(
        "lp-proj-table99",
        "Table 99",
        scale="quick: one seed",
        printed="n = 10.",
        chosen="the rest.",
        cells=cells(paper, ours),
        reasons={"a": "another data set"},
        more={("data", "a"): {"chosen": "lr 0.1"}},
    )


def test_a_table_leaves_page_and_figures_and_is_counted(tmp_path):
    folder = tmp_path / "reproduced"
    folder.mkdir()
    page, figures, index = table_page().write(folder)
    assert "| a | 0.9000 | 0.1000 ✗ | lr 0.1 |" in page.read_text()
    assert "- a, accuracy (data): another data set" in page.read_text()
    assert page.read_text() == page_of(json.loads(figures.read_text()))
    assert "| [Table 99](reproduced/lp-proj-table99.md) | 1 | 0 | 1 | 0 |" in index.read_text()


def test_claims_stand_on_the_page_and_are_counted(tmp_path):
    folder = tmp_path / "reproduced"
    folder.mkdir()
    claims = [
        Claim("a is faster", "by 3 rounds", "agrees"),
        Claim("b is slow", "it is not", "differs", "not found"),
    ]
    page, _, index = replace(table_page(), cells=(), more={}, claims=claims).write(folder)
    assert "| b is slow | it is not | **differs**: not found |" in page.read_text()
    assert "| [Table 99](reproduced/lp-proj-table99.md) | 1 | 0 | 1 | 0 |" in index.read_text()


def test_stored_pages_of_tables_are_those_of_their_figures():
    stored = sorted((DOCS / "reproduced").glob("*.json"))
    for path in stored:
        figures = json.loads(path.read_text())
        assert path.with_suffix(".md").read_text() == page_of(figures), path.name
        assert figures["name"] in EXPERIMENTS
        assert all((path.parent / picture).exists() for picture in figures["pictures"].values())
    if stored:
        assert (DOCS / "reproduced.md").read_text() == glance(DOCS)


def test_a_scale_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(il.SettingError, match=r"scale must be left out .*, got 'quick'"):
        EXPERIMENTS["golden"](tmp_path, "quick")


def test_other_data_than_the_papers_never_agree():
    cell = Cell("data", "a", "accuracy", Figure(0.5), Figure(0.5), stand_in=True)
    other = Cell("data", "b", "accuracy", Figure(0.4), Figure(0.3), stand_in=True)
    assert marked([cell, other]) == ["same order", "same order"]
