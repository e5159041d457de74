"""The table of accuracy at a budget and bytes to a target."""

import json
from dataclasses import replace
from pathlib import Path

from idiolect.channels import Form, parse_channel
from idiolect_papers.lp_proj import budget
from idiolect_papers.lp_proj.budget import CASES, FINETUNED, gain, grids, page, rows

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
    monkeypatch.setattr(budget, "RATES", (0.1, 0.5))
    only = ("Local (sends nothing)", "lp-proj-1", "FedAvg", "QSGD", "QSGD, fine-tuned")
    title = "Synthetic(0, 0)"
    paths = budget.write(tmp_path, seeds=1, rounds=3, titles=(title,), only=only, jobs=1)
    assert {p.name for p in paths} == {"budget.md", "budget.json", "budget-synthetic.png"}
    stored = json.loads((tmp_path / "budget.json").read_text())[title]
    assert tuple(stored) == only
    assert stored["Local (sends nothing)"]["to_target"]["by_seed"] == [0]
    one_round = 21 * (100 + 10)  # to 100 clients, from 10
    assert stored["lp-proj-1"]["to_target_values"]["by_seed"] == [one_round]
    text = (tmp_path / "budget.md").read_text()
    assert "| FedAvg | " in text and "fine-tuned: in words" in text


def test_the_step_sizes_are_candidates_and_the_paper_rows_have_one():
    table = rows(CASES["Synthetic(0, 0)"], 610)
    assert [method.lr for method, _ in table["FedAvg"]] == [0.05, 0.1, 0.5]
    assert len(table["lp-proj-1"]) == len(table["Local (sends nothing)"]) == 1
    assert all("channel" in own for _, own in table["QSGD, fine-tuned"])


def test_a_tuned_row_has_every_setting_of_the_papers_grid_and_says_what_was_chosen(
    tmp_path, monkeypatch
):
    sizes = {title: len(candidates) for title, candidates in grids(610).items()}
    assert sizes == {"QSGD": 3 * 9, "DGC": 3 * 9, "LBGM": 3 * 2 * 3, "Sketch": 3 * 8}
    monkeypatch.setattr(budget, "RATES", (0.0001, 0.5))
    label = "LBGM, tuned, fine-tuned"
    title = "Synthetic(0, 0)"
    monkeypatch.setitem(CASES, title, replace(CASES[title], search_rounds=1))
    budget.write(tmp_path, seeds=1, rounds=2, titles=(title,), only=("lp-proj-1", label), jobs=1)
    stored = json.loads((tmp_path / "budget.json").read_text())[title][label]
    assert stored["lr"] == 0.5 and stored["channel"].startswith("lbgm(threshold=0.")
    text = (tmp_path / "budget.md").read_text()
    assert f"- LBGM `{stored['channel']}`, step size 0.5, steps {stored['steps']}" in text
    assert "The search is short" in text


def test_the_channels_of_the_grids_fit_the_models_of_all_federations():
    for case, d in zip(CASES.values(), (610, 79510, 62006, 610), strict=True):
        for candidates in rows(case, d).values():
            for _, own in candidates:
                parse_channel(own.get("channel", "none")).check(Form(d))


def test_the_stored_page_is_that_of_the_stored_figures():
    stored = json.loads((DOCS / "budget.json").read_text())
    assert set(stored) <= set(CASES)
    assert all(set(f) <= set(rows(CASES[title], 610)) for title, f in stored.items())
    assert (DOCS / "budget.md").read_text() == page(stored)


def test_stored_figures_stand_beside_the_published_ones():
    stored = json.loads((DOCS / "budget.json").read_text())
    cells = budget.cells(stored, 1)
    of_paper = [c for c in cells if c.paper]
    assert len(of_paper) == 2 * (7 + 8)
    assert all(c.ours is None for c in cells if c.table == "EMNIST")
    ours = {(c.row, c.column): c.ours for c in cells if c.table != "EMNIST"}
    assert ours["lp-proj-1", "words to the target"].mean == 2310
    assert ours["Local (sends nothing)", "words to the target"].mean == 0
    text = budget.opening(stored)
    assert "Synthetic(0, 0): Local reaches" in text
