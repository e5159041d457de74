"""The theorem of the alternative, at a small size of the same code."""

import json

import numpy as np
import pytest

from idiolect_papers.chen.alternative import crossing, exponents, write
from idiolect_papers.chen.runs import AlternativeSize, LogisticCell, slope

SMALL = AlternativeSize(
    clients=(4, 8),
    samples=(60, 240),
    radii=(0.05, 1.2),
    seeds=2,
    tuned=((4, 60),),
    tuned_seeds=1,
    lams=(0.1, 1.0),
)


def test_a_crossing_is_found_between_the_measured_places():
    radii = [0.01, 0.1, 1.0]
    fedavg = [1e-5 + R**2 for R in radii]
    assert crossing(radii, fedavg, [0.04] * 3) == pytest.approx(0.2, rel=0.01)
    assert np.isnan(crossing(radii, fedavg, [2.0] * 3))


def test_exponents_are_those_of_the_law_that_made_the_crossings():
    found = {(m, n): [(3 * m**1.2 / (m * n) ** 0.9) ** 0.5] * 2 for m in (8, 32) for n in (50, 500)}
    fit = exponents(found)
    assert fit.of_m.mean == pytest.approx(1.2) and fit.of_total.mean == pytest.approx(0.9)
    exact = {(m, n): [(5 / n) ** 0.5] * 2 for m in (8, 32) for n in (50, 500)}
    assert exponents(exact).one.mean == pytest.approx(1.0)
    assert exponents(exact | {(8, 50): [float("nan"), 1.0]}) is None


def test_a_slope_is_fitted_from_the_eighth_round_on():
    gaps = np.arange(1.0, 65.0) ** -1.5
    gaps[:7] = 100.0
    assert slope(gaps) == pytest.approx(-1.5)


def test_runs_reach_the_exact_minimisers_and_fedprox_is_between_the_baselines():
    found = LogisticCell(6, 80, 0.3, 0, 4, 2, (0.1, 10.0)).train()
    for row in found.values():
        if "exact" in row:
            assert row["aer"] == pytest.approx(row["exact"], rel=1e-3)
    worse = max(found["fedavg"]["aer"], found["local"]["aer"])
    assert found["fedprox"]["aer"] < worse and found["fedprox"]["lam"] in (0.1, 10.0)


def test_the_page_has_a_line_for_every_theorem(tmp_path):
    folder = tmp_path / "theory"
    folder.mkdir()
    page, figures, picture, _ = write(
        folder, SMALL, descents=2, workers=1, clients=8, sample=4, rounds=12
    )
    stored = json.loads(figures.read_text())
    text = page.read_text()
    for place in ("(3.3)", "(3.4)", "Theorem 3.3", "Theorem 3.1", "(3.8)", "Lemma B.2"):
        assert place in text
    assert len(stored["claims"]) == 9 and picture.stat().st_size > 10_000
    assert stored["figures"]["deviation"] < 0.01
    assert len(stored["figures"]["risks"]) == 8
    assert not list(folder.glob(".chen*"))
