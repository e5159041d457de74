"""Messy tables: their truth, and the rule by which advice is marked."""

import json

import numpy as np
import pytest

from idiolect_papers.own import advise_coverage
from idiolect_papers.own.advise_tables import (
    HONEST,
    MADE_UP,
    MISSED,
    REAL,
    RIGHT,
    TEXTS,
    WRONG,
    MadeUp,
    MarkedTable,
    TableJob,
    page_of_tables,
    site_losses,
)
from idiolect_papers.own.gain_coverage import GainSize


def marked(choice, gain, pooled=None, error=0.1, interval=1.0):
    def facts(value):
        return {"gain": value, "error": error, "interval": interval}

    advice = {"choice": choice, "cpu": 1.0, "gains": {}, "tie": 1.0, "p": 0.01}
    outcome = {
        "partly": facts(gain),
        "shifted": facts(gain),
        "pooled": facts(gain if pooled is None else pooled),
        "tie": 1.0,
        "losses": {"alone": 2.0, "pooled": 1.0, "shifted": 1.0, "partly": 1.0},
        "sites": 3,
        "samples": 90,
        "advice": {"quick": advice, "full": advice},
    }
    return MarkedTable(TableJob("rare", 0), outcome)


@pytest.mark.parametrize(
    ("choice", "gain", "pooled", "mark"),
    [
        ("local", 0.5, None, RIGHT),  # less than a tie
        ("local", 5.0, None, WRONG),
        ("local", -5.0, None, RIGHT),
        ("fedavg", 5.0, None, RIGHT),
        ("fedavg", 5.0, -3.0, WRONG),  # sites should learn together, not by one model
        ("ditto", 5.0, -3.0, RIGHT),
        ("ditto", -5.0, -6.0, WRONG),
        ("undecided", 2.0, None, HONEST),
        ("undecided", 5.0, None, MISSED),  # the table could show it
    ],
)
def test_advice_is_marked_by_the_written_rule(choice, gain, pooled, mark):
    assert marked(choice, gain, pooled).mark("quick") == mark


def test_there_are_at_least_twenty_tables_and_each_has_words():
    assert len(MADE_UP) + len(REAL) >= 20
    assert set(TEXTS["cases"]) == {*MADE_UP, *REAL}


def test_one_rule_is_learned_together_and_opposite_rules_alone():
    rng = np.random.default_rng(0)
    gains = {}
    for rules in ("one", "opposite"):
        table, test = MadeUp(sites=4, least=50, most=50, rules=rules).draw(rng)
        losses = site_losses(table, test, 2)
        gains[rules] = losses["alone"].mean() - losses["pooled"].mean()
    assert gains["one"] > 0.02 and gains["opposite"] < -0.02


def test_a_site_of_one_class_has_a_loss_for_the_other():
    rng = np.random.default_rng(0)
    table, test = MadeUp(sites=3, least=20, most=20, rate=-9.0).draw(rng)
    losses = site_losses(table, test, 2)
    assert all(np.isfinite(loss).all() for loss in losses.values())


def test_the_page_counts_what_is_wrong_and_what_was_missed():
    tables = [marked("fedavg", 5.0), marked("undecided", 5.0), marked("local", 9.0)]
    claims = [c.ours for c in page_of_tables(tables, 1.0).claims]
    assert claims[0] == f"wrong: {TEXTS['cases']['rare']}" and claims[1] == "2 of 3"


def test_a_small_coverage_writes_its_page(tmp_path, capsys):
    gains = GainSize(clients=(6, 20), samples=(30,), spreads=(0.0,), folds=(3,), repeats=10)
    size = advise_coverage.CoverageSize(samples=(10,), rates=(0.5,), repeats=5, gains=gains)
    folder = tmp_path / "theory"
    folder.mkdir()
    advise_coverage.write(folder, size, workers=1)
    stored = json.loads((folder / "advise-coverage.json").read_text())
    (case,) = stored["figures"]["cases"]
    assert case["accuracy"][0] > 0.9 and case["loss"][0] > 0.9
    few, many = stored["figures"]["gains"]
    assert min(few["held"] + many["held"]) >= 0.7 and few["truth"][0] > 0.02
    assert few["alone, falsely"] == few["alone"] and few["federate, falsely"] == 0
