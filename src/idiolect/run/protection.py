"""The privacy of a run: whether it is proved for its parts, and with how much noise."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..channels.link import Link
from ..core.knobs import SettingError
from ..core.text import warn
from ..host.host import Host
from ..host.lazy_federation import LazyFederation
from ..method import Method
from ..methods import name_of
from ..privacy.accountant import LEAST_NOISE, Exposure, calibrated_noise, library
from ..privacy.coverage import why_not
from ..privacy.noise import Noise
from ..privacy.plan import Mechanism, PrivacyPlan
from ..privacy.protection import PROTECTIONS
from ..privacy.samples import SampleExposure
from ..server.protocol import Contract
from ..server.roster import Roster
from ..server.selection import Poisson
from ..server.server import Server
from ..task.sample_clipping import check_task
from ..task.task import Task
from .contract import build_contract
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
    if _chosen(method, "weighting") not in (None, "equal"):
        raise SettingError(
            f"weighting must be 'equal' with privacy {text!r}, got {method.weighting!r}: "  # type: ignore[attr-defined]
            "every client counts alike, so that C bounds what it adds"
        )
    if s.privacy.unit == "sample":
        check_batches(s, text)
        for group in parts.each_group:
            check_task(group.first_task)
    link = Link.fit(s.channel, method, task)
    if link.aggregate_stage is not None and s.noise_by_server:
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


def _chosen(method: Method, name: str) -> Any:
    """A field that the user has chosen; None for a default, and for what there is not.

    A copy by dataclasses.replace is given all of its fields: then a value that is the default
    counts as one.
    """
    values = {f.name: f.default for f in fields(method)}
    copied = method.explicit >= set(values)
    if name not in values or name not in method.explicit:
        return None
    value = getattr(method, name)
    return None if copied and value == values[name] else value


def check_batches(s: Settings, text: str) -> None:
    """Refuse what gradients with clipped samples cannot have, before the first of them."""
    if s.batching not in ("replace", "poisson"):
        raise SettingError(
            f"batching must be 'poisson' with privacy {text!r}, got {s.batching!r}: every sample "
            "joins a mini-batch by itself, in secret, which is what the theorem is about"
        )
    if "batch" in s.schedule.fields:
        raise SettingError(
            f"schedule must leave batch as it is with privacy {text!r}: how likely a sample is in "
            "a mini-batch is accounted for once"
        )


def privacy_plan(parts: RunParts, seed: int, begun: Mechanism | None = None) -> PrivacyPlan:
    """Noise and exposure for the planned rounds.

    Those of a run that has begun are as they were then, whatever its rounds are now.
    """
    s, eligible, sample = parts.settings, parts.eligible, parts.clients_heard
    protection = s.privacy
    assert protection is not None
    by_sample = protection.unit == "sample"
    clip = _clip(s)
    source = Noise(s.noise_source, seed)
    if begun is not None:
        samples = None
        if by_sample:
            sizes = parts.federation.sizes("train").numpy()
            samples = SampleExposure.of(sizes, s.batch, begun.planned)
        return PrivacyPlan.begun(protection, clip, s.epsilon, s.delta, begun, source, samples)
    poisson = isinstance(s.selection, Poisson) and s.noise_by_server and sample < eligible
    if (poisson or by_sample) and 0 < protection.noise < LEAST_NOISE:
        raise SettingError(
            f"privacy: noise must be 0 or a number >= {LEAST_NOISE:g} with Poisson sampling, "
            f"got {protection.noise:g}: less protects nobody"
        )
    everyone = by_sample and parts.method.traits.trains == "everyone"
    rounds = s.rounds if poisson or everyone else most_heard(s, eligible, sample)
    exposure = Exposure(sample / eligible if poisson else 1.0, rounds)
    samples = sample_exposure(parts, rounds) if by_sample else None
    plan = PrivacyPlan.of(
        *(protection, clip, s.epsilon, s.delta, exposure, sample, eligible, source, samples)
    )
    one_round = 0.0 if by_sample else plan.accountant.epsilon(1, s.delta)
    if s.epsilon and one_round > s.epsilon:
        raise SettingError(
            f"epsilon must be at least {one_round:.3g} for one round with noise {plan.noise:g} and "
            f"delta {s.delta:g}, got {s.epsilon:g}"
        )
    return plan


def _clip(s: Settings) -> float:
    """C: of the secure sum where clients share its noise."""
    p = s.privacy
    return float(s.secure_sums.clip if p.in_sums else p.clip)  # type: ignore[union-attr,attr-defined]


def check_noise_is_given(s: Settings) -> None:
    """Refuse noise that each site of a deployment would not know."""
    if s.privacy is None:
        return
    text = PROTECTIONS.text(s.privacy)
    if s.privacy.in_sums and not s.sample:
        raise SettingError(
            f"sample must be a number of clients with privacy {text!r} in a deployment, got 0: how "
            "many share the noise must be known to each site before any of them comes"
        )
    if s.privacy.noise:
        return
    example = f"{s.privacy.title}(noise=2)"
    enough = ""
    if s.epsilon and s.privacy.unit == "client":
        noise = calibrated_noise(s.epsilon, s.delta, Exposure(1.0, s.rounds))
        example = f"{s.privacy.title}(noise={math.ceil(noise * 1000) / 1000:g})"
        enough = f", which is enough for {s.rounds} rounds that all clients are heard in"
    raise SettingError(
        f"privacy must have its noise as a number in a deployment, e.g. {example!r}{enough}, got "
        f"{text!r}: as little as epsilon allows depends on how many clients come, and each site "
        "adds its own noise, or counts what it has spent, by the number that its owner has agreed "
        "to"
    )


def privacy_of_site(
    s: Settings, method: Method, task: Task, sizes: np.ndarray
) -> PrivacyPlan | None:
    """What a site does to its own gradients or messages; None where it adds no noise.

    Refuses what is not proved. Noise is from the cryptographic source, whatever a server says.
    `sizes`: training samples of its clients.
    """
    if s.privacy is None:
        return None
    library()  # else it could not count what is spent
    check_noise_is_given(s)
    if not (s.privacy.at_client or s.privacy.in_sums):
        return None
    text = PROTECTIONS.text(s.privacy)
    if reason := why_not(method, task, s.privacy, addresses=False):
        raise SettingError(f"privacy must be none for {name_of(method)}, got {text!r}: {reason}")
    samples = None
    if s.privacy.unit == "sample":
        check_batches(s, text)
        check_task(task)
        samples = SampleExposure.of(sizes, s.batch)
    mechanism = Mechanism(s.privacy.noise, 1.0, s.rounds, max(s.sample, 1), max(len(sizes), 1))
    source, clip = Noise("secret"), _clip(s)
    return PrivacyPlan.begun(s.privacy, clip, s.epsilon, s.delta, mechanism, source, samples)


def sample_exposure(parts: RunParts, rounds: int) -> SampleExposure:
    """How often gradients touch a sample of each client: by one round of everyone, on trial."""
    exposure = SampleExposure.of(parts.federation.sizes("train").numpy(), parts.settings.batch)
    if parts.settings.privacy.noise:  # type: ignore[union-attr]
        return exposure
    return replace(exposure, planned=rounds * parts.gradients_per_round)


def gradients_per_round(parts: RunParts) -> np.ndarray:  # -> int64[N]
    """Gradients that each client takes in a round, tried without noise on a host of its own."""
    s, federation = parts.settings, parts.federation
    if isinstance(federation, LazyFederation):
        raise SettingError(
            "privacy: noise must be given as a number, e.g. 'samples(noise=1)', where the data are "
            "in other processes: how many gradients a client takes is tried on its data"
        )
    counts = np.zeros(federation.clients, dtype=np.int64)
    for number, group in enumerate(parts.each_group):
        task = group.task_of(s.seed)
        contract, of_host = build_contract(
            *(parts.method, task, s, 0, federation.classes, parts.positive)
        )
        mine = (parts.group_numbers == number) & (federation.sizes("train") > 0)
        wire_ids = mine.nonzero().flatten()
        roster = Roster()
        roster.enrol(federation.ids, federation.sizes("train").tolist())
        server = Server(contract, roster, rule=s.rule, sample=len(wire_ids))
        host = Host(contract, federation.of(wire_ids), wire_ids, replace(of_host, repeats=False))
        for update in host.updates(server.open(0).order):
            counts[update.trained.numpy()] = update.gradients.numpy()
    return counts


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
