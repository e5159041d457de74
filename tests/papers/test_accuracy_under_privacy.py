"""Accuracy against ε: fair grids, budgets that are kept, and words that the figures give."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from idiolect_papers.own.privacy import (
    CASES,
    NAME,
    SIZES,
    WITHOUT,
    Bench,
    Figures,
    PrivacySize,
    delta_of,
    method_of,
    opening,
    page_of,
    projections,
    written,
)

DOCS = Path(__file__).parents[2] / "docs"
TINY = PrivacySize(
    rounds=3,
    steps=2,
    personal_steps=2,
    seeds=2,
    epsilons=(2.0, WITHOUT),
    rates=(0.3,),
    clips=(1.0,),
    shares=(0.5, 1.0),
    local_rates=(0.1,),
    fixed_at=(2.0,),
    jobs=1,
)


def row(method, epsilon, test, tuned=True, **more):
    """A stored row with these accuracies."""
    numbers = {"fedavg": 105, "finetune": 105, "lp-proj-5": 5}.get(method, 0)
    return {
        "set": "made",
        "who": "made",
        "clients": 100,
        "samples": 10.0,
        "d": 105,
        "majority": 0.2,
        "method": method,
        "epsilon": None if epsilon == WITHOUT else epsilon,
        "delta": 1e-3,
        "tuned": tuned,
        "chosen": {"lr": 0.1, "clip": 1.0, "sample": 50},
        "test": test,
        "spent": epsilon if epsilon != WITHOUT else 0.0,
        "noise": 1.0,
        "numbers": numbers,
        "length": 0.1,
        "gradients": 300.0,
        "bytes": 1000.0,
        **more,
    }


LOCAL = [0.50, 0.51, 0.52]
BETTER, ALIKE, NOISY = [0.70, 0.71, 0.72], [0.50, 0.51, 0.53], [0.40, 0.70, 0.60]


def figures(fedavg=(NOISY, BETTER, BETTER), projected=(ALIKE, ALIKE, ALIKE)):
    """At ε = 1 and 2 and without noise."""
    epsilons = (1.0, 2.0, WITHOUT)
    rows = [row("local", WITHOUT, LOCAL)]
    for name, tests in (("fedavg", fedavg), ("finetune", fedavg), ("lp-proj-5", projected)):
        rows += [row(name, e, t) for e, t in zip(epsilons, tests, strict=True)]
    return Figures(rows)


# -- what is run ----------------------------------------------------------------------------------
@pytest.mark.parametrize("scale", SIZES)
def test_every_method_has_the_same_grid_at_every_budget(scale):
    size = SIZES[scale]
    for title, case in CASES.items():
        bench = Bench(title, case, size, 100, 3322)
        for epsilon in size.epsilons[:-1]:
            tried = {
                name: [plan.varied for plan in bench.trials(name, epsilon)]
                for name in bench.methods
            }
            assert all(grid == tried["fedavg"] for grid in tried.values())
            assert len(tried["fedavg"]) == len(size.rates) * len(size.clips) * len(size.shares)


def test_local_has_at_least_the_gradients_of_every_other():
    size = SIZES["quick"]
    alone = method_of("local", 0.1, CASES["MNIST"], size).steps * size.rounds
    for name in Bench("MNIST", CASES["MNIST"], size, 100, 3322).methods:
        method = method_of(name, 0.1, CASES["MNIST"], size)
        if name == "ditto":
            spent = size.rounds * (method.steps + method.personal_steps)
        else:
            spent = size.rounds * method.steps + getattr(method, "personal_steps", 0)
        assert spent <= alone


def test_delta_is_below_one_over_the_clients():
    assert all(delta_of(clients) < 1 / clients for clients in (100, 300, 1000))


@pytest.mark.parametrize("title", ["one rule"])
def test_federations_are_drawn_anew_with_another_seed(title):
    case = replace(CASES[title], options={"clients": 5})
    (first, _), (again, _), (other, _) = (case.load(seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


def test_a_page_is_measured_and_its_runs_keep_to_their_budgets(tmp_path):
    cases = {"one rule": replace(CASES["one rule"], options={"clients": 20})}
    page, stored, picture = written(tmp_path, "quick", cases, TINY)
    rows = json.loads(stored.read_text("utf-8"))["rows"]
    assert {r["method"] for r in rows} >= {"local", "fedavg", "finetune", "ditto", "lp-proj-100"}
    for r in rows:
        if r["epsilon"] is not None:
            assert 0 < r["spent"] <= r["epsilon"] and len(r["test"]) == 2
    numbers = {r["method"]: r["numbers"] for r in rows}
    assert numbers["lp-proj-5"] == 5 and numbers["fedavg"] == 105 and numbers["fedper"] == 100
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "idiolect reproduce privacy --scale quick" in page.read_text("utf-8")


# -- what is said ---------------------------------------------------------------------------------
def test_a_method_pays_from_the_budget_on_from_which_it_is_always_clear():
    assert figures().least("fedavg") == 2.0
    assert figures(fedavg=(BETTER, NOISY, BETTER)).least("fedavg") == WITHOUT
    assert figures(fedavg=(BETTER, BETTER, NOISY)).least("fedavg") is None
    assert "from ε = 2 on, by FedAvg and fine-tuned FedAvg" in opening([figures()])
    assert "without noise: lp-proj 5" in opening([figures()])
    assert "at none of the budgets" in opening([figures(fedavg=(NOISY,) * 3)])


def test_small_messages_are_said_not_to_pay_where_they_do_not():
    text = projections([figures(fedavg=(BETTER,) * 3)])
    assert "clearly better in 0, clearly worse in 2" in text and "do not pay" in text


def test_being_ahead_of_a_drowned_rival_without_beating_local_is_no_gain():
    drowned = [0.20, 0.21, 0.22]
    text = projections([figures(fedavg=(drowned, drowned, BETTER))])
    assert "clearly better in 2" in text
    assert "In 2 of the 2 cases where it is ahead it does not clearly beat Local" in text


def test_the_stored_page_is_what_its_figures_say():
    stored = json.loads((DOCS / f"{NAME}.json").read_text("utf-8"))
    assert (DOCS / f"{NAME}.md").read_text("utf-8") == page_of(stored)
    clients = {r["clients"] for r in stored["rows"]}
    assert len(clients) == 3 and min(clients) >= 100 and max(clients) <= 1000
    assert all(len(r["test"]) >= 3 for r in stored["rows"])
    assert all(r["epsilon"] is None or r["spent"] <= r["epsilon"] for r in stored["rows"])
    assert not any(math.isnan(value) for r in stored["rows"] for value in r["test"])
