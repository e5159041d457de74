"""Where federation helps: the page says what the figures say, and tuning is fair."""

import json
from pathlib import Path

import numpy as np
import pytest

from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect_papers.own.where_it_helps import (
    CASES,
    METHODS,
    HelpCase,
    HelpSize,
    candidates,
    compared,
    opening,
    page_of,
    spread,
    written,
)

DOCS = Path(__file__).parents[2] / "docs"
FEW = {
    "digits": HelpCase(
        "digits",
        "mlp",
        {"clients": 4},
        {"hidden": "8"},
        clients="made",
        parts=("output", "input"),
        most=0,
    ),
    "synthetic": HelpCase("synthetic", "linear", {"samples": 60}, clients="made", most=4),
}


def test_capped_clients_keep_so_many_of_their_own_samples_in_order():
    whole = data.load("synthetic", clients=5, samples=60)
    few = whole.capped({"train": 7}, seed=1)
    assert few.sizes("train").tolist() == [7] * 5
    assert few.sizes("test").tolist() == whole.sizes("test").tolist()
    for k in range(5):
        own, all_of_it = few.part(k, "train")[0], whole.part(k, "train")[0]
        places = [int((all_of_it == row).all(1).nonzero()[0]) for row in own]
        assert places == sorted(set(places))
        assert (few.part(k, "test")[0] == whole.part(k, "test")[0]).all()
    assert few.fingerprint() == whole.capped({"train": 7}, seed=1).fingerprint()
    assert few.fingerprint() != whole.capped({"train": 7}, seed=2).fingerprint()
    assert whole.capped({"train": 10**6}).fingerprint() == whole.fingerprint()


def test_capped_data_are_capped_again_under_another_seed_of_theirs():
    few = data.load("digits", clients=5).capped({"train": 9})
    again = data.load("digits", clients=5, seed=2).capped({"train": 9})
    assert few.redrawn(2).fingerprint() == again.fingerprint() != few.fingerprint()
    assert few.without("test").redrawn(2).fingerprint() == again.without("test").fingerprint()


@pytest.mark.parametrize("most", [{"train": 0}, {"training": 5}])
def test_what_cannot_be_kept_is_refused(most):
    with pytest.raises(SettingError, match=r"most must give a number >= 1 .*, got"):
        data.load("synthetic", clients=2, samples=60).capped(most)


def test_every_method_has_as_many_trials_and_gradients():
    for case in CASES.values():
        for name in METHODS:
            tried = list(candidates(name, case, 1000, 10))
            assert len(tried) == 4 and len({str(varied) for _, varied in tried}) == 4


def test_clients_with_the_same_mixture_are_not_unlike():
    x, y = np.zeros((8, 1), np.float32), [0, 1, 0, 1, 0, 1, 0, 1]
    same = data.Federation.from_arrays(x, y, [0, 0, 0, 0, 1, 1, 1, 1], split=["train"] * 8)
    other = data.Federation.from_arrays(x, y, y, split=["train"] * 8)
    assert spread(same) == 0 and spread(other) == 1


def figures(local, fedavg, ditto, valid=(0.5, 0.6, 0.7)):
    clients = {"clients": {"better": 0.5, "worse": 0.5}}
    tests = zip(("local", "fedavg", "ditto"), (local, fedavg, ditto), valid, strict=True)
    methods = {
        name: {"test": test, "valid": v, "chosen": {"lr": 0.1}, "gradients": 9.0, **clients}
        for name, test, v in tests
    }
    known = {"set": "s", "samples": 10, "clients": 2, "who": "made", "median": 10}
    return {**known, "majority": 0.3, "spread": 0.1, "methods": methods}


def test_validation_data_choose_the_federated_method_and_seeds_are_paired():
    row = figures([0.4, 0.5, 0.6], [0.7, 0.8, 0.9], [0.5, 0.6, 0.7])
    found = compared(row)
    assert found["federated"] == "ditto" and found["best"] == "fedavg"  # test data do not choose
    assert found["verdict"] == "helps" and found["gain"] == pytest.approx(0.1)
    assert compared(figures([0.5, 0.6], [0.4, 0.5], [0.3, 0.4]))["verdict"] == "hurts"
    unsure = compared(figures([0.5, 0.9], [0.9, 0.5], [0.8, 0.7]))
    assert unsure["verdict"] == "no clear difference"


def test_the_opening_counts_what_was_found():
    rows = [
        figures([0.4, 0.5, 0.6], [0.7, 0.8, 0.9], [0.5, 0.6, 0.7]),
        figures([0.5, 0.6, 0.7], [0.2, 0.3, 0.4], [0.1, 0.2, 0.3]),
    ]
    text = opening([compared(row) for row in rows])
    assert "Of 2 cases" in text and "at equal gradients in 1, clearly worse in 1, and" in text
    assert "The largest clear loss is 40.0 points (s, 10 samples)." in text


def test_a_tenth_of_quick_leaves_page_figures_and_picture(tmp_path):
    size = HelpSize((5, 0), rounds=0.1, steps=2, seeds=2, jobs=1)
    page, stored, drawn = written(tmp_path, "quick", FEW, size)
    kept = json.loads(stored.read_text())
    assert page.read_text() == page_of(kept)
    assert [(row["set"], row["samples"]) for row in kept["rows"]] == [
        (name, n) for name in FEW for n in (5, 0)
    ]
    for row in kept["rows"]:
        assert set(row["methods"]) >= {"local", "fedavg"} and len(row["methods"]) == 3
        assert all(len(facts["test"]) == 2 for facts in row["methods"].values())
        assert row["methods"]["local"]["gradients"] == row["methods"]["fedavg"]["gradients"]
        assert row["methods"]["local"]["bytes"] == 0
    assert drawn.stat().st_size > 1000


def test_the_stored_page_is_that_of_its_figures():
    stored = json.loads((DOCS / "where-it-helps.json").read_text())
    assert (DOCS / "where-it-helps.md").read_text() == page_of(stored)
