"""The table of accuracy at a budget and bytes to a target."""

import json
from pathlib import Path

from idiolect.experiments import budget
from idiolect.experiments.budget import cases
from idiolect.experiments.budget.cases import CASES, FINETUNED, rows
from idiolect.experiments.budget.page import gain, page

DOCS = Path(__file__).parents[2] / "docs"


def reached(words, bytes):
    return {"to_target_values": {"mean": words}, "to_target": {"mean": bytes}}


def test_the_gain_is_over_the_best_compressed_baseline_that_reaches_the_target():
    figures = {
        "lp-proj-1": reached(100, 500),
        "FedAvg": reached(50, 50),
        "QSGD": reached(None, None),
        "DGC": reached(900, 2000),
        "LBGM": reached(5000, 1500),
        "Sketch, fine-tuned": reached(20, 250),
    }
    assert gain(figures, "to_target_values", "") == "9.0 times (DGC)"
    assert gain(figures, "to_target", "") == "3.0 times (LBGM)"
    assert gain(figures, "to_target_values", FINETUNED) == "0.2 times (Sketch)"
    assert gain({"lp-proj-1": reached(100, 500)}, "to_target", "") == "none reaches it"


def test_every_row_is_measured_and_written(tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "RATES", (0.1, 0.5))
    only = ("Local (sends nothing)", "lp-proj-1", "FedAvg", "QSGD", "QSGD, fine-tuned")
    title = "Synthetic(0, 0)"
    paths = budget.write(tmp_path, seeds=1, rounds=3, titles=(title,), only=only)
    assert {p.name for p in paths} == {"budget.md", "budget.json", "budget-synthetic.png"}
    stored = json.loads((tmp_path / "budget.json").read_text())[title]
    assert tuple(stored) == only
    assert stored["Local (sends nothing)"]["to_target"]["by_seed"] == [0]
    one_round = 21 * (100 + 10)  # to 100 clients, from 10
    assert stored["lp-proj-1"]["to_target_values"]["by_seed"] == [one_round]
    text = (tmp_path / "budget.md").read_text()
    assert "| FedAvg | " in text and "fine-tuned: in words" in text


def test_the_step_sizes_are_candidates_and_the_paper_rows_have_one():
    table = rows(21)
    assert [method.lr for method, _ in table["FedAvg"]] == [0.05, 0.1, 0.5]
    assert len(table["lp-proj-1"]) == len(table["Local (sends nothing)"]) == 1
    assert all("channel" in own for _, own in table["QSGD, fine-tuned"])


def test_the_stored_page_is_that_of_the_stored_figures():
    stored = json.loads((DOCS / "budget.json").read_text())
    assert tuple(stored) == tuple(CASES)
    assert all(tuple(f) == tuple(rows(CASES[title].dim)) for title, f in stored.items())
    assert (DOCS / "budget.md").read_text() == page(stored)
