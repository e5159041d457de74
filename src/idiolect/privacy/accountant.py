"""What has been spent: (ε, δ) by Google's dp-accounting, never by formulas of our own.

A client is exposed once per round in which its message could be released. Where the server draws
each client by itself with probability q, in secret (Poisson sampling), every round counts for
everyone, amplified by sampling; otherwise a round counts in full for those who were heard, and for
nobody else.

>>> round(Accountant(noise=2.0).epsilon(1, 1e-5), 4), Accountant(2.0, rate=0.1).epsilon(0, 1e-5)
(1.9931, 0.0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from ..core.knobs import SettingError

LEAST_NOISE, MOST_NOISE = 0.05, 1e6
EXACT, QUICK = 1e-4, 1e-3  # steps of the grid of privacy losses
FACTOR = 1.25  # between the numbers of rounds that intermediate figures are counted for
WITHIN = 1e-3  # of the noise, to which it is calibrated
ORDERS = (*range(2, 65), 96, 128, 256, 512)  # of Rényi divergences


@dataclass(frozen=True)
class Exposure:
    """How often a round may touch a client."""

    rate: float  # q of Poisson sampling; 1 = whoever is heard is known
    rounds: int  # the most that any client is exposed to

    @property
    def amplified(self) -> bool:
        return self.rate < 1


@dataclass(frozen=True)
class Accountant:
    """Exposures of one client to a Gaussian mechanism of this noise multiplier."""

    noise: float  # z
    rate: float = 1.0  # q of Poisson sampling

    def epsilon(self, exposures: int, delta: float) -> float:
        """ε at δ after so many exposures."""
        if exposures == 0:
            return 0.0
        if self.noise == 0:
            return math.inf
        return _epsilon(self.noise, self.rate, exposures, delta)

    def at_most(self, exposures: int, delta: float, last: int) -> float:
        """An upper bound on the same that is quick to have after every round, `last` in all.

        It is that of a slightly larger number of rounds, of some twenty per run.

        >>> accountant = Accountant(1.0, rate=0.1)
        >>> exact = accountant.epsilon(37, 1e-5)
        >>> exact <= accountant.at_most(37, 1e-5, last=100) < 1.1 * exact
        True
        """
        if self.rate >= 1 or exposures == 0 or self.noise == 0:
            return self.epsilon(exposures, delta)
        rounded = math.ceil(FACTOR ** math.ceil(math.log(exposures, FACTOR) - 1e-9))
        if exposures <= last:
            rounded = min(rounded, last)
        return _epsilon(self.noise, self.rate, max(rounded, exposures), delta, QUICK)


@lru_cache(maxsize=4096)
def _epsilon(noise: float, rate: float, exposures: int, delta: float, step: float = EXACT) -> float:
    """By privacy loss distributions on a grid of this step, which rounds up."""
    if rate >= 1:  # n Gaussian mechanisms of noise z are one of noise z / √n
        sigma = noise / math.sqrt(exposures)
        return float(library().get_epsilon_gaussian(sigma, delta))
    losses = _losses(noise, rate, step).self_compose(exposures)
    return float(losses.get_epsilon_for_delta(delta))


@lru_cache(maxsize=16)
def _losses(noise: float, rate: float, step: float) -> Any:
    """The privacy loss of one round, with or without one client."""
    accounting = library()
    return accounting.losses.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        value_discretization_interval=step,
        neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def _sampled(noise: float, rate: float) -> Any:
    accounting = library()
    return accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(noise))


@lru_cache(maxsize=64)
def calibrated_noise(epsilon: float, delta: float, exposure: Exposure) -> float:
    """The least noise multiplier with which these exposures stay within ε.

    >>> noise = calibrated_noise(3.0, 1e-5, Exposure(rate=1, rounds=30))
    >>> 2.97 < Accountant(noise).epsilon(30, 1e-5) <= 3
    True
    """
    accounting = library()
    rounds = max(exposure.rounds, 1)
    if not exposure.amplified:
        noise = accounting.get_sigma_gaussian(epsilon, delta) * math.sqrt(rounds)
        return float(noise * (1 + 1e-9))
    high = _enough(epsilon, delta, exposure)
    low = high * 0.75
    while low > LEAST_NOISE and _epsilon(low, exposure.rate, rounds, delta, QUICK) <= epsilon:
        low, high = low * 0.75, low
    while high - low > WITHIN * high:
        middle = (low + high) / 2
        if _epsilon(middle, exposure.rate, rounds, delta, QUICK) <= epsilon:
            high = middle
        else:
            low = middle
    return high


def _enough(epsilon: float, delta: float, exposure: Exposure) -> float:
    """Noise that is enough by Rényi accounting, which is fast and asks for a little more."""
    low, high = LEAST_NOISE, 1.0
    while _renyi(high, exposure, delta) > epsilon:
        low, high = high, high * 2
        if high > MOST_NOISE:
            raise SettingError(
                f"epsilon must be larger for {exposure.rounds:,} rounds at delta {delta:g}, got "
                f"{epsilon:g}: no noise up to {MOST_NOISE:,.0f} times the sensitivity is enough"
            )
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        if _renyi(middle, exposure, delta) <= epsilon:
            high = middle
        else:
            low = middle
    return high


def _renyi(noise: float, exposure: Exposure, delta: float) -> float:
    accounting = library()
    accountant = accounting.rdp.RdpAccountant(ORDERS)
    accountant.compose(_sampled(noise, exposure.rate), max(exposure.rounds, 1))
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=1)
def library() -> Any:
    """dp-accounting, which takes a second to import."""
    try:
        import dp_accounting
        from dp_accounting import gaussian_mechanism, rdp
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError:
        raise SettingError(
            "privacy: the package dp-accounting counts what is spent, and is not installed; "
            "pip install 'idiolect[privacy]'"
        ) from None
    return SimpleNamespace(
        NeighboringRelation=dp_accounting.NeighboringRelation,
        GaussianDpEvent=dp_accounting.GaussianDpEvent,
        PoissonSampledDpEvent=dp_accounting.PoissonSampledDpEvent,
        get_epsilon_gaussian=gaussian_mechanism.get_epsilon_gaussian,
        get_sigma_gaussian=gaussian_mechanism.get_sigma_gaussian,
        losses=privacy_loss_distribution,
        rdp=rdp,
    )
