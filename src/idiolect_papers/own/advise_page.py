"""The page: every case with its advice and its truth, and how often the two agree."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..page import Claim, Page
from ..panels import Line, Panel
from ..runs import finished
from ..texts import read_text
from .advise import DIGITS, LOGISTIC, METHODS, SYNTHETIC, TRUTH_SEEDS, Case, CaseJob, Sizes

TIE = 0.01
AWAY = 3.0  # ties
SEEN = 4.0  # standard errors
NEAR = 1.0
ENOUGH = 0.9  # share of the cases away from the threshold that are to be right
Outcome = dict[str, Any]
AWAY_AND_SEEN = "away"
AWAY_BY_TIES = "away, but more than the samples can show"
NEAR_IT = "near"


@dataclass(frozen=True)
class Judged:
    """A case, its advice and its truth."""

    case: Case
    found: Outcome

    @property
    def tie(self) -> float:
        return TIE * (self.found["truth"]["local"] if self.case.metric == "loss" else 1.0)

    def value(self, method: str) -> float:
        """The truth of a method, higher is better."""
        value = self.found["truth"][method]
        return -value if self.case.metric == "loss" else value

    def gain(self, method: str) -> float:
        """The true gain over Local, in ties."""
        return (self.value(method) - self.value("local")) / self.tie

    @property
    def best(self) -> str:
        """The best candidate that federates."""
        return max((m for m in self.found["truth"] if m != "local"), key=self.gain)

    @property
    def right(self) -> bool:
        """Whether no candidate is better than the choice by more than a tie."""
        choice = self.found["choice"].split(" ")[0]
        if choice == "undecided":
            return False
        most = max(self.value(m) for m in self.found["truth"])
        return self.value(choice) >= most - self.tie

    @property
    def decided(self) -> bool:
        return self.found["choice"] != "undecided"

    @property
    def together(self) -> bool:
        """Whether it federates where a candidate is better than Local, and not elsewhere.

        Where it federates, the method that it takes must itself be better than Local.
        """
        choice = self.found["choice"]
        if self.gain(self.best) <= 0:
            return bool(choice == "local")
        return choice not in ("local", "undecided") and self.gain(choice) > 0

    def place(self, method: str) -> str:
        """Where the case lies, by the true gain of a method over Local."""
        gain = abs(self.gain(method))
        if gain >= AWAY:
            visible = gain * self.tie >= SEEN * self.found["errors"][method]
            return AWAY_AND_SEEN if visible else AWAY_BY_TIES
        return NEAR_IT if gain < NEAR else "between"

    @property
    def named(self) -> bool:
        """Whether the alternative names the better of FedAvg and Local."""
        return self.found["alternative"] == ("fedavg" if self.gain("fedavg") > 0 else "local")

    @property
    def sided(self) -> bool:
        """Whether R^2 lies on the side of its threshold where the better of the two is."""
        return self.found["side"] == ("below" if self.gain("fedavg") > 0 else "above")

    def row(self) -> dict[str, Any]:
        outcome = self.found
        ratio = outcome["ratio"]
        return {
            "case": self.case.title(),
            "best that federates": self.best,
            "its true gain, in ties": f"{self.gain(self.best):+.1f}",
            "place": self.place(self.best),
            "choice": outcome["choice"],
            "right": "yes" if self.right else "no",
            "true gain of FedAvg, in ties": f"{self.gain('fedavg'):+.1f}",
            "FedAvg or Local": outcome["alternative"],
            "R² over its threshold": "–"
            if ratio is None
            else f"{ratio[0]:.2g} ({ratio[1]:.2g} to {ratio[2]:.2g})",
            "CPU s": outcome["cpu"],
        }


def reproduced(
    jobs: Sequence[CaseJob], outcomes: Sequence[Outcome], sizes: Sizes, seconds: float
) -> Page:
    """All that the page says."""
    cases = [Judged(job.case, outcome) for job, outcome in zip(jobs, outcomes, strict=True)]
    tables = {"How often": _counts(cases)}
    for family, heading in HEADINGS.items():
        rows = [c.row() for c in cases if c.case.family == family]
        tables |= {heading: rows} if rows else {}
    return Page(
        "advise-accuracy",
        "How often `idiolect advise` is right",
        settings=SETTINGS.format(
            gradients=sizes.gradients,
            seeds=sizes.seeds,
            clients=sizes.clients,
            digits=sizes.digits_clients,
            test=sizes.test,
            truth=TRUTH_SEEDS,
            methods=", ".join(METHODS),
        ),
        claims=_claims(cases),
        tables=tables,
        figures={"cases": [{"case": c.case.title(), **c.found} for c in cases]},
        panels=[panel for family in HEADINGS for panel in _panels(cases, family)],
        seconds=seconds,
        order=50,
        claimed="asked for",
    )


def _share(cases: Sequence[bool]) -> str:
    return f"{sum(cases)} of {len(cases)}" + (f" ({sum(cases) / len(cases):.0%})" if cases else "")


def _counts(cases: Sequence[Judged]) -> list[dict[str, Any]]:
    rows = []
    for family in (*HEADINGS, ""):
        mine = [c for c in cases if c.case.family == family or not family]
        away = [c for c in mine if c.place(c.best) == AWAY_AND_SEEN]
        by_ties = [c for c in mine if c.place(c.best).startswith("away")]
        near = [c for c in mine if c.place(c.best) == NEAR_IT]
        two_away = [c for c in mine if c.place("fedavg") == AWAY_AND_SEEN]
        two_near = [c for c in mine if c.place("fedavg") == NEAR_IT]
        rows.append(
            {
                "family": family or "all",
                "choice right, away": _share([c.right for c in away]),
                "federate or not right, away": _share([c.together for c in away]),
                "the same, by 3 ties alone": _share([c.right for c in by_ties]),
                "undecided, by 3 ties alone": _share([not c.decided for c in by_ties]),
                "choice right, near": _share([c.right for c in near]),
                "undecided, near": _share([not c.decided for c in near]),
                "FedAvg or Local right, away": _share([c.named for c in two_away]),
                "too close to call, near": _share(
                    [c.found["alternative"] == "too close to call" for c in two_near]
                ),
                "R² on the right side, away": _share([c.sided for c in two_away]),
            }
        )
    return rows


def _claims(cases: Sequence[Judged]) -> list[Claim]:
    away = [c.right for c in cases if c.place(c.best) == AWAY_AND_SEEN]
    two_away = [c.named for c in cases if c.place("fedavg") == AWAY_AND_SEEN]
    near = [c for c in cases if c.place("fedavg") == NEAR_IT]
    close = [c.found["alternative"] == "too close to call" for c in near]
    sided = [c.sided for c in cases if c.place("fedavg") == AWAY_AND_SEEN]
    away_at_all = [c for c in cases if c.place(c.best).startswith("away")]
    wrong = [c for c in away_at_all if c.decided and not c.right]
    named = "; ".join(f"{c.case.title()}: {c.found['choice']}" for c in wrong) or "none"
    return [
        _claim(
            "the choice is right in at least 90 % of the cases away from the threshold",
            away,
            reason="where it is decided and wrong, it federates rightly and takes FedAvg where "
            "fine-tuning or Ditto are one to three ties better: so few samples cannot tell these "
            "apart, and folds of a client with one or two samples per class train without the very "
            "class that they are judged by, which favours the shared model",
        ),
        _claim(
            "the same, of whether to federate at all (with a method that is better than Local)",
            [c.together for c in cases if c.place(c.best) == AWAY_AND_SEEN],
        ),
        _claim("so is its word on FedAvg or Local", two_away),
        _claim(
            "near the threshold it says that FedAvg or Local is too close to call (at least half)",
            close,
            0.5,
        ),
        Claim(
            "R² against C m/N alone, without any validation, names the better of the two (no "
            "claim; away from the threshold)",
            _share(sided),
            "not stated by the paper",
        ),
        Claim(
            "decided, and wrong, away from the threshold (no claim)",
            named,
            "not stated by the paper",
        ),
    ]


def _claim(
    text: str,
    cases: Sequence[bool],
    enough: float = ENOUGH,
    reason: str = "see the cases below",
) -> Claim:
    if not cases:
        return Claim(text, "no such case", "not stated by the paper")
    agrees = sum(cases) >= enough * len(cases)
    return Claim(text, _share(cases), "agrees" if agrees else "differs", "" if agrees else reason)


# -- pictures -------------------------------------------------------------------------------------
def _panels(cases: Sequence[Judged], family: str) -> list[Panel]:
    """True and advised gain of the best that federates, over what is swept."""
    panels = []
    others = sorted({c.case.other for c in cases if c.case.family == family})
    for other in others:
        mine = [c for c in cases if c.case.family == family and c.case.other == other]
        by: dict[float, list[Judged]] = {}
        for c in mine:
            by.setdefault(c.case.swept, []).append(c)
        lines = []
        for number, method in enumerate(("fedavg", *METHODS)):
            ys = [_mean([c.gain(method) for c in group]) for group in by.values()]
            lines.append(
                Line(f"{method}, truth", _places(by, family), ys, style=number, points=True)
            )
            advised = [_mean([_advised(c, method, 0) for c in group]) for group in by.values()]
            low = [_mean([_advised(c, method, 1) for c in group]) for group in by.values()]
            high = [_mean([_advised(c, method, 2) for c in group]) for group in by.values()]
            lines.append(
                Line("", _places(by, family), advised, low, high, style=number, formula=False)
            )
        name, across = AXES[family]
        vertical = [(1.0, "crossing")] if family == LOGISTIC else []
        log = "x" if family == LOGISTIC else ""
        title = name.format(other=other)
        panels.append(Panel(title, across, "gain over Local, in ties", lines, log, vertical))
    return panels


def _places(by: dict[float, list[Judged]], family: str) -> list[float]:
    """What is swept; 0 has no place on a logarithmic axis and stands at its left."""
    return [max(x, 0.03) if family == LOGISTIC else x for x in by]


def _advised(c: Judged, method: str, which: int) -> float:
    value = c.found["advised"][method][which] if method in c.found["advised"] else None
    return math.nan if value is None else value / c.tie


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


AXES = {
    SYNTHETIC: ("Synthetic(α, 0), {other} samples per client", "α"),
    LOGISTIC: ("logistic instance, {other} samples per client", "R² over its crossing"),
    DIGITS: ("digits, {other} classes per client", "samples per client"),
}
HEADINGS = {
    SYNTHETIC: "Synthetic(α, 0)",
    LOGISTIC: "The logistic instance of Chen, Zheng, Long and Su, Section 4.1",
    DIGITS: "Handwritten digits, few classes per client",
}
TEXTS = read_text("advise-accuracy")
SETTINGS = TEXTS["settings"]


def write(folder: Path, sizes: Sizes | None = None, workers: int = 2) -> list[Path]:
    """Advise on every case, compare with the truth, and write the page."""
    began = time.monotonic()
    sizes = sizes or Sizes()
    jobs = [CaseJob(case, sizes.gradients, sizes.seeds) for case in sizes.cases()]
    results = finished(jobs, folder, "advise-accuracy", workers)
    outcomes = [results[job] for job in jobs]
    return reproduced(jobs, outcomes, sizes, time.monotonic() - began).write(folder)
