"""The advice in plain words."""

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

SURE = ((0.001, "very sure"), (0.01, "sure"), (0.05, "fairly sure"))


def figure(value: float, metric: str, signed: bool = True) -> str:
    """A gain for people: accuracy in points, the loss as it is.

    >>> figure(0.0312, "accuracy"), figure(-0.0004, "loss")
    ('+3.1 points', '-0.0004')
    """
    sign = "+" if signed else ""
    return f"{100 * value:{sign}.1f} points" if metric == "accuracy" else f"{value:{sign}.4f}"


def between(gain: Gain, metric: str) -> str:
    """The interval of a gain, in parentheses; "" where there is none.

    >>> between(Gain(0.03, 0.0, 5), "accuracy")
    ' (95 % interval +3.0 to +3.0)'
    """
    if not gain.freedom:
        return ""
    if metric == "accuracy":
        return f" (95 % interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
    return f" (95 % interval {gain.low:+.4f} to {gain.high:+.4f})"


def sureness(p: float) -> str:
    """How sure a decision is whose comparison has this p-value.

    >>> sureness(0.0001), sureness(0.03)
    ('very sure', 'fairly sure')
    """
    return next((word for bound, word in SURE if p <= bound), "not sure")


def deploy(
    decision: Decision, gains: dict[str, Gain], metric: str, tie: float, folds: bool
) -> list[str]:
    """What to deploy, and how sure that is; `folds`: all samples are judged by already."""
    label = decision.choice if decision.choice in gains else _best(gains)
    gain = gains[label]
    against = (
        f"{label} against learning alone: {figure(gain.mean, metric)}{between(gain, metric)}, on "
        "samples that it was not trained on."
    )
    if decision.choice == UNDECIDED:
        leaning = label if gain.mean >= tie else "local, which sends nothing"
        return [
            f"Undecided: too close to call. {_listed(decision.hopes)} may gain "
            f"{figure(tie, metric, False)} over learning alone, or not.",
            against,
            f"By this estimate alone it would be {leaning}. More samples to judge by would tell"
            + ("." if folds else ": validation='folds' judges by all training samples in turn."),
        ]
    if decision.choice == LOCAL:
        first = "Let every client learn alone (local): nothing need be sent. " + (
            "All that federate are clearly worse."
            if gain.high < 0
            else f"None that federates gains {figure(tie, metric, False)}."
        )
    else:
        first = f"Deploy {label}: it is clearly better than learning alone."
    sure = f"This is {sureness(decision.p)} (p {shown_p(decision.p)})."
    return [first, against, sure]


def shown_p(p: float) -> str:
    """A p-value for people.

    >>> shown_p(0.0321), shown_p(1e-9)
    ('= 0.032', '< 0.001')
    """
    return f"= {p:.2g}" if p >= 0.001 else "< 0.001"


def cost(label: str, up: float, down: float, heard: int, clients: int) -> str:
    """Bytes per round.

    >>> cost("ditto", 5000, 50_000, 5, 50)
    'ditto sends 5.0 kB up and 50.0 kB down per round, 5 of 50 clients heard: 1.0 kB up from each.'
    """
    return (
        f"{label} sends {_bytes(up)} up and {_bytes(down)} down per round, {heard:,} of "
        f"{clients:,} clients heard: {_bytes(up / heard)} up from each."
    )


def _bytes(n: float) -> str:
    return size(n) if n >= 1000 else f"{n:.0f} B"


def alternative(found: str, gain: Gain, metric: str) -> str:
    """One model for all, or everyone alone."""
    words = {
        TOO_CLOSE: "too close to call",
        LOCAL: "everyone alone is clearly better",
        "fedavg": "one model for all is clearly better",
    }[found]
    return (
        f"One model for all (fedavg) or everyone alone (local): {words}; fedavg "
        f"{figure(gain.mean, metric)} against local{between(gain, metric)}."
    )


def threshold(h: Heterogeneity, found: str) -> str:
    """R^2 against C m/N, and whether validation says the same."""
    side = {
        BELOW: "below it, where one model for all does better than learning alone",
        ABOVE: "above it, where learning alone does better than one model for all",
    }.get(h.side, "too near to it to tell one model for all from learning alone")
    text = (
        f"The clients' own optima lie R² = {h.r2:.3g} apart. In units of risk that is "
        if h.norm == "risk"
        else f"The clients' own optima lie R² = {h.r2:.3g} apart, "
    )
    text += f"{h.ratio:.2g} times the threshold C m/N (95 % interval {h.low:.2g} to {h.high:.2g}): "
    theory = {BELOW: "fedavg", ABOVE: LOCAL}.get(h.side)
    if theory and found not in (TOO_CLOSE, theory):
        side += ". The held-out samples say the opposite, and they decide"
    return f"{text}{side}."


def clients(gains: Sequence[ClientGain], label: str) -> str:
    """How many gain and lose."""
    gain = sum(g.verdict == GAINS for g in gains)
    lose = sum(g.verdict == LOSES for g in gains)
    rest = len(gains) - gain - lose
    untold = f"and of {rest:,} it cannot be told" if rest else "and all can be told"
    return (
        f"By {label}, {gain:,} of {len(gains):,} clients clearly gain, {lose:,} clearly lose, "
        f"{untold}."
    )


def _best(gains: dict[str, Gain]) -> str:
    """The candidate of the largest gain."""
    return max(gains, key=lambda label: gains[label].mean)


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# -- What the data cannot tell, and what was assumed: said before any figure --


def settled(holdout: Holdout, seeds: int) -> tuple[str, str] | None:
    """What settles the question before any training: (choice, words)."""
    training = int((holdout.data.sizes("train") > 0).sum())
    if training == 0:
        raise SettingError("data: no client has a training sample")
    if training == 1:
        return LOCAL, (
            "There is one client with training samples: it has nobody to learn with, and "
            "learning alone is all there is."
        )
    if not holdout.mask(seeds).any():
        return UNDECIDED, (
            "Cannot tell: no sample can be held out to judge by, since no client has "
            "validation samples or two training samples."
        )
    return None


def remarks(federation: Federation, holdout: Holdout, seeds: int) -> list[str]:
    """What was assumed, and what cannot be told, a line each."""
    data = holdout.data
    held = holdout.mask(seeds)
    notes = []
    tested = int(federation.sizes("test").sum())
    if tested:
        notes.append(f"the {tested:,} test samples were not looked at")
    if holdout.kind != GIVEN and held.any():
        has = bool(data.sizes("valid").any())
        which = "training and validation" if has else "training"
        why = "" if has else " (the federation has no validation samples)"
        notes.append(
            f"judged by folds of the {which} samples{why}: each seed holds out another fifth of "
            "each client's"
        )
    judged = int(held.any(0).sum())
    if 0 < judged < HELD_OUT_SAMPLES:
        notes.append(
            f"{judged} samples can be held out, fewer than {HELD_OUT_SAMPLES}: too few for a "
            "confidence interval or a decision"
        )
    seen = holdout.owner[held.any(0)]
    few = int((np.bincount(seen, minlength=data.clients) < CLIENT_SAMPLES).sum())
    if few and judged:
        notes.append(
            f"{few:,} of {data.clients:,} clients have fewer than {CLIENT_SAMPLES} held-out "
            "samples: too few to judge each of them alone"
        )
    single = _single_class(data)
    if single:
        notes.append(
            f"{single:,} of {data.clients:,} clients have training samples of a single class: a "
            "constant answer serves them as well as any model, if their samples stay so"
        )
    return notes


def _single_class(data: Federation) -> int:
    """How many clients have training samples of one class only."""
    if not data.classes or not isinstance(data.targets, torch.Tensor):
        return 0
    return int(((data.class_counts("train") > 0).sum(1) == 1).sum())
