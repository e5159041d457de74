"""Rows of original papers: the data are dealt as printed, and marks follow from figures."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect import METHODS, Federation
from idiolect_papers.marks import AGREES, DIFFERS, NOT_RUN, ORDER, Cell, Figure, marked
from idiolect_papers.own import original_rows
from idiolect_papers.own.original_rows import (
    TEXTS,
    TOO_WIDE,
    WIDE,
    above,
    cells_of,
    compared,
    gains_over_local,
    half_the_classes,
    page_of,
    printed_tables,
    reasons,
    says,
    turned,
    ways_and_shots,
    written,
)
from idiolect_papers.published import read_table
from idiolect_papers.runs import Runs

DOCS = Path(__file__).parents[2] / "docs"
SMALLER = TEXTS["marks"]["smaller"]


@pytest.fixture
def few_images(monkeypatch):
    """Ten classes of 420 training and 160 test images; the first pixel is an image's number."""
    counts = {"train": 420, "test": 160}
    labels = np.concatenate([np.tile(np.arange(10), n) for n in counts.values()])
    split = np.repeat(list(counts), [10 * n for n in counts.values()])
    pixels = torch.rand(len(labels), 1, 28, 28, generator=torch.Generator().manual_seed(0))
    pixels[:, 0, 0, 0] = torch.arange(len(labels))
    images = Federation.from_arrays(
        pixels, labels, np.zeros(len(labels), int), split=split, classes=10
    )
    monkeypatch.setattr(original_rows, "images", lambda: images)
    return images


# -- data -----------------------------------------------------------------------------------------
def test_fedprotos_clients_have_two_to_five_classes_of_about_100_images_each(few_images):
    few = ways_and_shots(3, clients=4)
    train, test = few.class_counts("train"), few.class_counts("test")
    assert ((train > 0) == (test > 0)).all()
    assert set((train > 0).sum(1).tolist()) <= {2, 3, 4, 5}
    assert set(train.flatten().tolist()) <= {0, 99, 100}
    assert set(test.flatten().tolist()) == {0, 40}


@pytest.mark.parametrize("deal", [ways_and_shots, half_the_classes])
def test_no_image_is_dealt_twice_and_seeds_deal_others(deal, few_images):
    options = {"samples": 100} if deal is half_the_classes else {}
    first, again, other = (deal(clients=4, seed=seed, **options) for seed in (0, 0, 1))
    numbers = first.inputs[:, 0, 0, 0]
    assert len(numbers.unique()) == len(numbers)
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.targets, other.targets) or not torch.equal(
        first.inputs, other.inputs
    )


def test_pfedbayes_clients_have_five_classes_and_train_on_a_fifth(few_images):
    few = half_the_classes(clients=4, samples=100)
    train, test = few.class_counts("train"), few.class_counts("test")
    assert set(train.flatten().tolist()) == {0, 20} and set(test.flatten().tolist()) == {0, 80}
    assert (train > 0).sum(1).tolist() == [5] * 4
    assert (train[0] > 0).tolist() == (train[2] > 0).tolist() != (train[1] > 0).tolist()


# -- marks ----------------------------------------------------------------------------------------
def cell(row, ours, half=0.1, paper=97.0, smaller=False):
    figure = None if ours is None else Figure(ours, half, 2, True)
    return Cell("t", row, "n = 3", Figure(paper, None, 2), figure, smaller)


def told(*cells):
    return [says(c, m, cells) for c, m in zip(cells, marked(cells), strict=True)]


def test_a_cell_agrees_only_in_the_printed_setting():
    assert told(cell("a", 97.05), cell("b", 90.0, paper=96.0)) == [AGREES, ORDER]
    smaller = [cell("a", 97.05, smaller=True), cell("b", 90.0, paper=96.0, smaller=True)]
    assert told(*smaller) == [SMALLER["order"]] * 2
    turned = [cell("a", 80.0, smaller=True), cell("b", 90.0, paper=96.0, smaller=True)]
    assert told(*turned) == [SMALLER["other"]] * 2


def test_a_wide_interval_is_called_so_even_where_it_holds_the_printed_figure():
    assert told(cell("a", 97.0, half=WIDE + 0.1)) == [TOO_WIDE]
    assert told(cell("a", 97.0, half=None)) == [TOO_WIDE]  # one seed
    assert told(cell("a", 97.0, half=WIDE)) == [AGREES]
    assert told(cell("a", 90.0, half=WIDE)) == [DIFFERS]


def test_a_cell_that_was_not_run_or_diverged_says_so():
    assert told(cell("a", None)) == [NOT_RUN]
    diverged = Cell("t", "a", "c", Figure(97.0, None, 2), Figure(None, None, 2, True))
    assert told(diverged) == [TEXTS["marks"]["diverged"]]


def test_rows_whose_intervals_overlap_have_no_order():
    near = [cell("a", 95.2, smaller=True), cell("b", 95.1, paper=96.0, smaller=True)]
    assert told(*near) == [SMALLER["overlap"]] * 2


def test_differences_to_local_are_paired_and_cells_above_the_printed_figure_are_named():
    ours = {"Local": {"n": [95.0, 97.0]}, "a": {"n": [96.0, 98.0]}, "b": {"n": [1.0, None]}}
    assert gains_over_local(ours) == {("a", "n"): (1.0, 0.0)}
    assert gains_over_local({"a": {"n": [1.0, 2.0]}}) == {}
    cells = [cell("a", 98.0, smaller=True), cell("b", 96.0, smaller=True), cell("c", 98.0)]
    assert above(cells) == ["a (n = 3)"]
    beside_local = [cell("Local", 95.0, paper=94.0), cell("a", 94.0, paper=96.0)]
    assert turned(beside_local, {("a", "n = 3"): (-1.0, 0.5)}) == ["a (n = 3)"]
    for gain in ((1.0, 0.5), (-1.0, 1.5)):
        assert turned(beside_local, {("a", "n = 3"): gain}) == []


def test_a_table_of_one_row_at_a_smaller_scale_has_nothing_to_compare_with():
    rows = compared([cell("a", 97.0, smaller=True)])
    assert [row[""] for row in rows] == [SMALLER["alone"]]
    assert [row[""] for row in compared([cell("a", 97.0)])] == [AGREES]


# -- tables and pages -----------------------------------------------------------------------------
def test_every_row_that_is_run_is_a_printed_one_and_every_column_too():
    for key, printed in printed_tables().items():
        published = read_table(f"original-{key}")[""]
        assert set(printed.rows) <= set(published), key
        for row in published.values():
            assert list(row) == list(printed.figures), key
        words = TEXTS["tables"][key]
        assert set(words["scales"]) == set(TEXTS["seeds"]) and words["source"] and words["setting"]


def test_a_quick_row_has_fewer_rounds_than_printed():
    for printed in printed_tables().values():
        for row in printed.rows.values():
            assert 0 <= row.quick < row.rounds


def test_every_method_has_a_row_or_a_reason_and_nothing_is_left_blank():
    names = {name.lower() for name in TEXTS["methods"]}
    for name in ("fedper", "fedrep", "fedbabu", "apfl", "fedala", "fedrod", "fedpac", "gpfl"):
        assert name in names and name in METHODS
    for name in ("fedamp", "fedfomo", "pfedgraph", "pfedhn", "ifca", "cfl", "fedproto", "fedtgp"):
        assert name in names and name in METHODS
    for name in ("moon", "fml", "fedmd", "knn-per", "fedem", "pfedbayes", "feddyn", "fednova"):
        assert name in names and name in METHODS
    for name in ("fedsplit", "slowmo", "byz-vr-marina", "feddane", "fedit", "ffa-lora"):
        assert name in names and name in METHODS
    assert {"fedbn", "fedsa-lora"} <= names
    assert all(row["row"] and row["looked at"] for row in reasons())
    here = {name for printed in printed_tables().values() for name in printed.rows}
    for row in reasons():
        assert row["row"].startswith("above") == (row["method"] in here), row["method"]


def test_a_small_page_is_that_of_its_figures_and_says_that_it_is_smaller(
    few_images, monkeypatch, tmp_path
):
    printed = printed_tables()["fedproto"]
    rows = {name: replace(printed.rows[name], quick=1) for name in ("Local", "FedProto")}
    small = replace(printed, rows=rows, data={"n = 3": {"ways": 3, "clients": 3}})
    monkeypatch.setattr(original_rows, "printed_tables", lambda: {"fedproto": small})
    page, figures = written(tmp_path, "quick", ["fedproto"], 2, Runs(tmp_path / "runs", 1))
    stored = json.loads(figures.read_text())
    text = page.read_text()
    assert text == page_of(stored) and TEXTS["opening"]["quick"] in text
    assert set(stored["tables"]["fedproto"]) == set(rows)
    for row in stored["tables"]["fedproto"].values():
        assert [len(values) for values in row.values()] == [2]
    assert "| FedProx | n = 3 | 96.26 | – | not run | +2.21 | – |" in text


def test_the_stored_page_is_that_of_its_figures():
    stored = json.loads((DOCS / "original-rows.json").read_text())
    assert (DOCS / "original-rows.md").read_text() == page_of(stored)
    if stored["scale"] == "quick":
        for key in stored["tables"]:
            assert AGREES not in [row[""] for row in compared(cells_of(key, stored))]
