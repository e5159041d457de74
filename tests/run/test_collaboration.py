"""Collaboration fairness: the correlation of what clients reach alone and what they end with."""

import math

import numpy as np
import pytest
from scipy.stats import pearsonr

import idiolect as il
from idiolect.study.compare import collaboration_fairness, pearson

SETTINGS = {"rounds": 6, "sample": 4, "batch": 8, "seeds": 2, "eval_every": 0}


def federation():
    return il.data.load("synthetic", clients=8, samples=60)


def model():
    return il.models.make("linear", (60,), 10)


@pytest.fixture(scope="module")
def compared():
    return il.compare(["local:steps=2", "fedavg", "ditto"], model, federation(), **SETTINGS)


def by_client(result, seed):
    rows = [row for row in result.clients_table() if row["seed"] == seed]
    return {row["client"]: row for row in rows}


def test_it_is_pearsons_correlation_with_the_local_run_of_most_gradients(compared):
    alone = compared.results[-1]  # Local at equal compute, which `compare` adds
    assert alone.method == "local" and "as many gradients" in compared.labels[-1]
    for result, row in zip(compared.results, compared.rows(), strict=True):
        found = row["collaboration_fairness"]
        assert found["alone"] == compared.labels[-1] and found["figure"] == "accuracy"
        for seed, value in zip((0, 1), found["by_seed"], strict=True):
            mine, theirs = by_client(result, seed), by_client(alone, seed)
            x, y = ([r[c]["test_accuracy"] for c in theirs] for r in (theirs, mine))
            assert value == pytest.approx(pearsonr(x, y)[0], abs=1e-12)
        assert found["mean"] == pytest.approx(np.mean(found["by_seed"]))
    assert compared.rows()[-1]["collaboration_fairness"]["mean"] == pytest.approx(1)


def test_it_stands_in_the_table_on_request_alone(compared):
    from idiolect.core.columns import render

    assert "collaboration" not in str(compared)
    text = render(compared.table(140, also="collaboration"))
    value = compared.rows()[1]["collaboration_fairness"]["mean"]
    assert f"{value:.4f}" in text and "Pearson's correlation over clients" in text
    with pytest.raises(il.SettingError, match="collaboration"):
        compared.table(also="colaboration")


def test_without_a_local_run_there_is_none():
    found = il.compare(["fedavg"], model, federation(), baselines=False, **SETTINGS)
    assert found.rows()[0]["collaboration_fairness"] is None
    assert "needs a row of Local" in " ".join(_words(found.table(140, also="collaboration")))


def _words(table):
    from idiolect.core.columns import render

    return render(table).split()


def test_malicious_and_held_out_clients_do_not_count():
    found = il.compare(
        ["fedavg"],
        model,
        federation(),
        attack="sign-flip",
        malicious=2,
        held_out=2,
        **SETTINGS | {"seeds": 1, "sample": 3},
    )
    fed, alone = (by_client(r, 0) for r in found.results)
    counted = [c for c, row in fed.items() if not row["malicious"] and not row["held_out"]]
    assert len(counted) == 4
    x, y = ([r[c]["test_accuracy"] for c in counted] for r in (alone, fed))
    (value,) = found.rows()[0]["collaboration_fairness"]["by_seed"]
    expected = pearsonr(x, y)[0] if np.ptp(x) and np.ptp(y) else math.nan
    assert value == pytest.approx(expected, nan_ok=True)


def test_where_one_side_does_not_vary_it_is_not_defined():
    assert math.isnan(pearson([0.5, 0.5, 0.5], [0.1, 0.2, 0.3]))
    assert math.isnan(pearson([0.5], [0.1]))
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 30))
    assert pearson(x, y) == pytest.approx(pearsonr(x, y)[0], abs=1e-14)


def test_other_seeds_cannot_be_compared(compared):
    other = il.run("fedavg", model, federation(), **SETTINGS | {"seed": 5})
    local = compared.results[-1]
    first, _ = collaboration_fairness([other.record, local.record], ["fedavg", "local"])
    assert first is None
