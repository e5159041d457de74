"""What is claimed holds against attackers, and attackers see faults that are planted in the code.

Noise is of the secret kind, from a generator that repeats: these figures are the same every time.
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.privacy_canaries import DELTA, source_of
from benchmarks.privacy_faults import FAULTS, planted

from benchmarks import privacy_audit as audit
from idiolect.core import streams
from idiolect.privacy import Noise
from idiolect.privacy.accountant import Accountant
from idiolect.privacy.audit import (
    ErrorRates,
    Guesses,
    extreme_guesses,
    gaussian_bound,
    one_run_bound,
    two_sided_bound,
)
from idiolect.privacy.plan import MessageNoise
from idiolect.run import protection

UNSEEN = {("count not accounted", "adaptive"), ("noise halved", "run"), ("noise halved", "poisson")}


def evidence(case: audit.Case, monkeypatch, seed: int = 0) -> audit.Evidence:
    """Of few canaries and releases, whole runs included."""
    rng = np.random.default_rng(seed)
    source = source_of(rng)
    monkeypatch.setattr(protection, "Noise", partial(Noise, entropy=rng.bytes))
    return case.audit(audit.QUICK, rng, source)


# -- the code as it is, and with faults ------------------------------------------------------------
@pytest.mark.parametrize("name", audit.CASES)
def test_attackers_stay_below_the_claim(name, monkeypatch):
    assert not evidence(audit.CASES[name], monkeypatch).refutes


@pytest.mark.parametrize(("fault", "name"), [x for x in audit.PLANTED if x not in UNSEEN])
def test_attackers_see_a_planted_fault(fault, name, monkeypatch):
    with planted(fault):
        assert evidence(audit.CASES[name], monkeypatch).refutes


def test_every_fault_is_planted_somewhere():
    assert {fault for fault, _ in audit.PLANTED} == set(FAULTS)


def test_a_fixed_number_heard_hides_a_message_and_not_that_its_client_is_there(monkeypatch):
    """Another client is heard in place of one that is not."""
    silent, removed = (
        evidence(case, monkeypatch) for case in (audit.CASES["uniform"], audit.REMOVED)
    )
    assert not silent.refutes and removed.refutes
    assert silent.claim == removed.claim


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_client_that_diverged_sends_noise_as_any_other(number):
    """A number that is not finite would be told from every other message."""
    source = source_of(np.random.default_rng(0))
    mechanism = MessageNoise(clip=1.0, sigma=2.0, noise=source)
    reference = {"w": torch.ones(1000)}
    keys = streams.name_keys(["diverged"])
    sent = mechanism({"w": torch.full((1, 1000), number)}, reference, keys, 0)["w"] - 1
    assert abs(float(sent.mean())) < 0.3 and 1.8 < float(sent.std()) < 2.2


# -- the bounds ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "epsilon"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_the_one_run_bound_is_the_papers(m, r, v, delta, epsilon):
    """Appendix D and Section 7 of Steinke, Nasr and Jagielski."""
    assert Guesses(m, r, v).bound(delta, 0.05) == pytest.approx(epsilon, abs=1e-3)


def test_the_p_value_without_delta_is_a_binomial_tail():
    assert Guesses(50, 3, 3).p_value(0.0, 0.0) == pytest.approx(1 / 8)
    assert Guesses(50, 3, 0).p_value(2.0, 0.0) == 1
    # 1 + 2 m δ max(P[B = 2], P[B = 1 or 2] / 2, P[B = 0, 1 or 2] / 3)
    assert Guesses(50, 3, 3).p_value(0.0, 1e-3) == pytest.approx(1 / 8 + 0.1 * 3 / 8)


def test_more_right_guesses_and_a_smaller_delta_rule_out_more():
    bounds = [Guesses(1000, 200, v).bound(1e-5) for v in (100, 150, 180, 200)]
    assert bounds == sorted(bounds) and bounds[0] == 0
    assert Guesses(1000, 200, 180).bound(1e-3) < Guesses(1000, 200, 180).bound(0.0)


def test_the_lowest_scores_are_guessed_absent():
    scores, included = np.array([1.0, 2.0, 3.0, 4.0]), np.array([False, True, True, False])
    assert extreme_guesses(scores, included, 1) == Guesses(4, 2, 1)
    assert extreme_guesses(scores, included, 2) == Guesses(4, 4, 2)


def test_error_rates_are_those_of_clopper_and_pearson():
    present, absent = np.ones(100), np.zeros(100)
    rates = ErrorRates.at(0.5, present, absent, 0.05)
    assert rates.false_alarm == rates.miss == pytest.approx(1 - 0.025**0.01)
    assert rates.epsilon(0.0) == pytest.approx(np.log((1 - rates.miss) / rates.miss))


def test_scores_that_say_nothing_rule_out_nothing():
    rng = np.random.default_rng(0)
    scores, included = np.zeros(1000), rng.random(1000) < 0.5
    assert one_run_bound(scores, included, DELTA) == 0
    assert two_sided_bound(scores[included], scores[~included], DELTA) == 0
    assert gaussian_bound(scores[included], scores[~included], DELTA) == 0


def test_bounds_hold_as_often_as_they_say():
    """Of a Gaussian mechanism, whose ε is known."""
    epsilon = Accountant(1.0).epsilon(1, DELTA)
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(200):
        above += gaussian_bound(rng.normal(1, size=400), rng.normal(size=400), DELTA) > epsilon
    assert above <= 0.05 * 200


# -- the page --------------------------------------------------------------------------------------
def test_the_page_is_that_of_its_figures():
    stored = json.loads(audit.STORED.read_text())
    assert audit.PAGE.read_text() == audit.page(stored)
    assert set(stored["cases"]) == set(audit.CASES)
    assert [(one["fault"], one["case"]) for one in stored["faults"]] == list(audit.PLANTED)


def test_the_stored_figures_are_below_the_claims_and_show_the_faults():
    stored = json.loads(audit.STORED.read_text())
    assert not any(audit.Evidence(**one).refutes for one in stored["cases"].values())
    for line in stored["faults"]:
        fault, name = line.pop("fault"), line.pop("case")
        assert audit.Evidence(**line).refutes or (fault, name) in UNSEEN
