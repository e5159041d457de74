"""The advice in words, and the checks and notes made before training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...core.knobs import SettingError
from ...data.federation import Federation
from ...report.format import size
from .client_tests import CLIENT_SAMPLES, GAINS, LOSES, ClientGain
from .decide import LOCAL, TOO_CLOSE, UNDECIDED, Decision
from .estimate import HELD_OUT_SAMPLES, Gain
from .heterogeneity import ABOVE, BELOW, Heterogeneity
from .holdout import GIVEN, Holdout

CONFIDENCE = ((0.001, "very sure"), (0.01, "sure"), (0.05, "fairly sure"))


# -- figures ---------------------------------------------------------------------------------------
def figure(value: float, metric: str, signed: bool = True) -> str:
    """A gain: accuracy in percentage points, the loss as it is.

    >>> figure(0.0312, "accuracy"), figure(-0.0004, "loss")
    ('+3.1 points', '-0.0004')
    """
    sign = "+" if signed else ""
    return f"{100 * value:{sign}.1f} points" if metric == "accuracy" else f"{value:{sign}.4f}"


def interval_text(gain: Gain, metric: str) -> str:
    """The interval of a gain, in parentheses; "" where there is none.

    >>> interval_text(Gain(0.03, 0.0, 5), "accuracy")
    ' (95 % interval +3.0 to +3.0)'
    """
    if not gain.freedom:
        return ""
    scale, digits = (100, 1) if metric == "accuracy" else (1, 4)
    low, high = (f"{scale * end:+.{digits}f}" for end in (gain.low, gain.high))
    return f" (95 % interval {low} to {high})"


def confidence(p: float) -> str:
    """A word for the p-value of the deciding comparison, and the value itself.

    >>> confidence(0.0001), confidence(0.0321)
    ('very sure (p < 0.001)', 'fairly sure (p = 0.032)')
    """
    word = next((word for bound, word in CONFIDENCE if p <= bound), "not sure")
    return f"{word} (p {f'= {p:.2g}' if p >= 0.001 else '< 0.001'})"


# -- the parts of the advice -----------------------------------------------------------------------
def deploy(
    decision: Decision, gains: dict[str, Gain], metric: str, tie: float, folds: bool
) -> list[str]:
    """What to deploy, and how sure that is; `folds`: every training sample is a judge already."""
    label = decision.choice
    if label not in gains:
        label = max(gains, key=lambda candidate: gains[candidate].mean)
    gain = gains[label]
    against = (
        f"{label} against learning alone: {figure(gain.mean, metric)}{interval_text(gain, metric)} "
        "on held-out samples."
    )
    if decision.choice == UNDECIDED:
        leaning = label if gain.mean >= tie else "local, which sends nothing"
        more = "." if folds else ": validation='folds' judges by all training samples in turn."
        return [
            f"Undecided: too close to call. {_listed(decision.hopes)} may gain "
            f"{figure(tie, metric, False)} over learning alone, or not.",
            against,
            f"The point estimate favours {leaning}; more validation samples are needed{more}",
        ]
    if decision.choice == LOCAL:
        reason = (
            "All federated methods are clearly worse."
            if gain.high < 0
            else f"No federated method gains {figure(tie, metric, False)}."
        )
        first = f"Let every client learn alone (local): nothing needs to be sent. {reason}"
    else:
        first = f"Deploy {label}: it is clearly better than learning alone."
    return [first, against, f"This is {confidence(decision.p)}."]


def cost(label: str, up: float, down: float, clients_heard: int, clients: int) -> str:
    """Bytes per round.

    >>> cost("ditto", 5000, 50_000, 5, 50)
    'ditto sends 5.0 kB up and 50.0 kB down per round, 5 of 50 clients heard: 1.0 kB up from each.'
    """
    total_up, total_down, each_up = (
        size(n) if n >= 1000 else f"{n:.0f} B" for n in (up, down, up / clients_heard)
    )
    return (
        f"{label} sends {total_up} up and {total_down} down per round, {clients_heard:,} of "
        f"{clients:,} clients heard: {each_up} up from each."
    )


def alternative(winner: str, gain: Gain, metric: str) -> str:
    """One model for all, or everyone alone."""
    verdict = {
        TOO_CLOSE: "too close to call",
        LOCAL: "everyone alone is clearly better",
        "fedavg": "one model for all is clearly better",
    }[winner]
    return (
        f"One model for all (fedavg) or everyone alone (local): {verdict}; fedavg "
        f"{figure(gain.mean, metric)} against local{interval_text(gain, metric)}."
    )


def threshold(h: Heterogeneity, winner: str) -> str:
    """R^2 against C m/N, and whether the held-out samples agree."""
    side = {
        BELOW: "below it, where one model for all does better than learning alone",
        ABOVE: "above it, where learning alone does better than one model for all",
    }.get(h.side, "too close to it to tell one model for all from learning alone")
    unit = ". In units of risk that is " if h.norm == "risk" else ", "
    theory = {BELOW: "fedavg", ABOVE: LOCAL}.get(h.side)
    if theory and winner not in (TOO_CLOSE, theory):
        side += ". The held-out samples show the opposite, and they decide"
    return (
        f"The clients' own optima lie R² = {h.r2:.3g} apart{unit}"
        f"{h.ratio:.2g} times the threshold C m/N (95 % interval {h.low:.2g} to {h.high:.2g}): "
        f"{side}."
    )


def clients(gains: Sequence[ClientGain], label: str) -> str:
    """How many clients gain and lose."""
    gain = sum(g.verdict == GAINS for g in gains)
    lose = sum(g.verdict == LOSES for g in gains)
    rest = len(gains) - gain - lose
    open_cases = f"{rest:,} are inconclusive" if rest else "none is inconclusive"
    return (
        f"With {label}, {gain:,} of {len(gains):,} clients clearly gain, {lose:,} clearly lose, "
        f"and {open_cases}."
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# -- before training -------------------------------------------------------------------------------
def settled(holdout: Holdout, seeds: int) -> tuple[str, str] | None:
    """The choice and its reason, where the question is settled before any training."""
    training = int((holdout.data.sizes("train") > 0).sum())
    if training == 0:
        raise SettingError("data: no client has a training sample")
    if training == 1:
        return LOCAL, (
            "There is one client with training samples: it has no one to learn with, and can only "
            "learn alone."
        )
    if not holdout.mask(seeds).any():
        return UNDECIDED, (
            "Cannot tell: no sample can be held out to judge by, since no client has "
            "validation samples or two training samples."
        )
    return None


def remarks(federation: Federation, holdout: Holdout, seeds: int) -> list[str]:
    """Assumptions, and limits of what the data can show, a line each."""
    data = holdout.data
    ever_held_out = holdout.mask(seeds).any(0)
    judged = int(ever_held_out.sum())
    notes = []
    if tested := int(federation.sizes("test").sum()):
        notes.append(f"the {tested:,} test samples were not looked at")
    if holdout.kind != GIVEN and judged:
        validation = bool(data.sizes("valid").any())
        which = "training and validation" if validation else "training"
        reason = "" if validation else " (the federation has no validation samples)"
        notes.append(
            f"judged by folds of the {which} samples{reason}: each seed holds out another fifth of "
            "each client's"
        )
    if 0 < judged < HELD_OUT_SAMPLES:
        notes.append(
            f"{judged} samples can be held out, fewer than {HELD_OUT_SAMPLES}: too few for a "
            "confidence interval or a decision"
        )
    counts = np.bincount(holdout.owner[ever_held_out], minlength=data.clients)
    if judged and (few := int((counts < CLIENT_SAMPLES).sum())):
        notes.append(
            f"{few:,} of {data.clients:,} clients have fewer than {CLIENT_SAMPLES} held-out "
            "samples: too few to judge each of them alone"
        )
    if data.classes and isinstance(data.targets, torch.Tensor):
        single_class = int(((data.class_counts("train") > 0).sum(1) == 1).sum())
        if single_class:
            notes.append(
                f"{single_class:,} of {data.clients:,} clients have training samples of a single "
                "class: a constant answer serves them as well as any model, as long as that stays "
                "so"
            )
    return notes
