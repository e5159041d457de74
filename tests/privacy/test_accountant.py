"""Figures of the accountant are those of dp-accounting, and calibrated noise meets its budget."""

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from idiolect.core.knobs import SettingError
from idiolect.privacy.accountant import Accountant, Exposure, calibrated_noise

SETTINGS = [  # noise, rate, rounds, delta
    (0.6, 0.01, 100, 1e-5),
    (1.0, 0.01, 1000, 1e-5),
    (1.0, 0.1, 30, 1e-6),
    (2.0, 0.1, 200, 1e-5),
    (4.0, 0.5, 50, 1e-5),
    (0.8, 0.2, 10, 1e-3),
    (1.0, 1.0, 1, 1e-5),
    (2.0, 1.0, 10, 1e-5),
    (10.0, 1.0, 200, 1e-6),
    (30.0, 1.0, 1000, 1e-5),
]


def of_the_library(noise: float, rate: float, rounds: int, delta: float) -> float:
    accountant = PLDAccountant()
    event = dp_accounting.GaussianDpEvent(noise)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    return accountant.compose(event, rounds).get_epsilon(delta)


@pytest.mark.parametrize("noise, rate, rounds, delta", [s for s in SETTINGS if s[1] < 1])
def test_sampled_rounds_cost_what_the_library_says(noise, rate, rounds, delta):
    epsilon = Accountant(noise, rate).epsilon(rounds, delta)
    assert epsilon == pytest.approx(of_the_library(noise, rate, rounds, delta), abs=1e-6)


@pytest.mark.parametrize("noise, rate, rounds, delta", [s for s in SETTINGS if s[1] == 1])
def test_rounds_that_are_known_cost_exactly_what_gaussian_mechanisms_do(noise, rate, rounds, delta):
    epsilon = Accountant(noise).epsilon(rounds, delta)
    mu = math.sqrt(rounds) / noise  # Balle and Wang 2018, theorem 8
    exact = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert exact == pytest.approx(delta, rel=1e-5)
    # the library's own composition on its grid is an upper bound of it
    assert 0 <= of_the_library(noise, rate, rounds, delta) - epsilon < 2e-3


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("rate, rounds", [(0.01, 500), (0.1, 50), (0.5, 20), (1.0, 1), (1.0, 200)])
def test_calibrated_noise_meets_epsilon_from_below_within_one_percent(epsilon, rate, rounds):
    noise = calibrated_noise(epsilon, 1e-5, Exposure(rate, rounds))
    assert 0.99 * epsilon < Accountant(noise, rate).epsilon(rounds, 1e-5) <= epsilon


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_the_quick_figure_is_never_below_the_exact_one(rate):
    accountant = Accountant(1.0, rate)
    for rounds in (1, 2, 7, 40, 99, 100, 130):
        exact = accountant.epsilon(rounds, 1e-5)
        assert exact <= accountant.at_most(rounds, 1e-5, last=100) <= 1.25 * exact


def test_more_exposures_never_cost_less():
    for rate in (0.1, 1.0):
        spent = [Accountant(1.0, rate).epsilon(n, 1e-5) for n in range(8)]
        assert spent[0] == 0 and spent == sorted(spent) and spent[1] > 0


def test_no_noise_is_no_privacy():
    assert Accountant(0.0).epsilon(1, 1e-5) == math.inf


def test_a_budget_that_no_noise_is_enough_for_is_refused():
    with pytest.raises(SettingError, match="epsilon must be larger for 1,000,000 rounds"):
        calibrated_noise(1e-7, 1e-12, Exposure(0.5, 1_000_000))
