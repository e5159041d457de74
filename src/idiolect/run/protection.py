"""The privacy of a run: whether it is proved for its parts, and with how much noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..channels.link import Link
from ..core.knobs import SettingError
from ..core.text import warn
from ..methods import name_of
from ..privacy.accountant import LEAST_NOISE, Exposure
from ..privacy.coverage import why_not
from ..privacy.noise import Noise
from ..privacy.plan import Mechanism, PrivacyPlan
from ..privacy.protection import PROTECTIONS
from ..server.protocol import Contract
from ..server.selection import Poisson
from .settings import Settings

if TYPE_CHECKING:
    from .prepare import RunParts


def check_privacy(parts: RunParts) -> None:
    """Refuse a protection that is not proved for this method, channel and federation."""
    s, method, task = parts.settings, parts.method, parts.first_task
    if s.privacy is None:
        return
    text = PROTECTIONS.text(s.privacy)
    contract = Contract(method, task, s.channel, 0)
    if reason := why_not(method, task, s.privacy, contract.addresses):
        local = "" if s.privacy.at_client or method.traits.exchanges else "; 'local' can be used"
        raise SettingError(
            f"privacy must be none for {name_of(method)}, got {text!r}: {reason}{local}"
        )
    if "weighting" in method.explicit and getattr(method, "weighting", "equal") != "equal":
        raise SettingError(
            f"weighting must be 'equal' with privacy {text!r}, got {method.weighting!r}: "  # type: ignore[attr-defined]
            "every client counts alike, so that C bounds what it adds"
        )
    link = Link.fit(s.channel, method, task)
    if link.aggregate_stage is not None and not s.privacy.at_client:
        raise SettingError(
            f"channel must decode each message by itself with privacy {text!r}, whose server clips "
            "each of them; this one decodes the sum of a round's messages"
        )
    if s.delta >= 1 / parts.eligible:
        warn(
            f"delta: {s.delta:g} is not below 1 over the {parts.eligible:,} clients: one of them "
            f"could be shown as it is; at most {0.1 / parts.eligible:.1g} is usual"
        )
    parts.privacy_plan(s.seed)  # refuses a budget that is too small, before anything is written


def privacy_plan(
    s: Settings, eligible: int, sample: int, seed: int, begun: Mechanism | None = None
) -> PrivacyPlan | None:
    """Noise and exposure for so many clients heard of so many; None without privacy.

    Those of a run that has begun are as they were then, whatever its rounds are now.
    """
    if s.privacy is None:
        return None
    if begun is not None:
        source = Noise(s.noise_source, seed)
        return PrivacyPlan.begun(s.privacy, s.epsilon, s.delta, begun, source)
    poisson = isinstance(s.selection, Poisson) and not s.privacy.at_client and sample < eligible
    rate = sample / eligible if poisson else 1.0
    exposure = Exposure(rate, s.rounds if poisson else most_heard(s, eligible, sample))
    source = Noise(s.noise_source, seed)
    if exposure.amplified and 0 < s.privacy.noise < LEAST_NOISE:
        raise SettingError(
            f"privacy: noise must be 0 or a number >= {LEAST_NOISE:g} with selection 'poisson', "
            f"got {s.privacy.noise:g}: less protects nobody"
        )
    plan = PrivacyPlan.of(s.privacy, s.epsilon, s.delta, exposure, sample, eligible, source)
    one_round = plan.accountant.epsilon(1, s.delta)
    if s.epsilon and one_round > s.epsilon:
        raise SettingError(
            f"epsilon must be at least {one_round:.3g} for one round with noise {plan.noise:g} and "
            f"delta {s.delta:g}, got {s.epsilon:g}"
        )
    return plan


def most_heard(s: Settings, eligible: int, sample: int) -> int:
    """How often a client is heard at most in the planned rounds, with high probability.

    The noise is chosen for it. A client that is heard more often, which a fixed number heard per
    round leaves to chance, ends the run before its budget is passed.
    """
    if sample >= eligible or not s.rounds:
        return s.rounds
    from scipy.stats import binom

    most = binom.ppf(1 - 0.01 / eligible, s.rounds, sample / eligible)
    return int(np.clip(most, 1, s.rounds))
