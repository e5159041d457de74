"""What `advise` returns: the choice, the table behind it, who gains and who loses, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...core.columns import LONGEST, Column, FittedTable, render
from ...core.documents import plain
from ...core.files import private_folder, write_atomic, write_json
from ...core.knobs import SettingError
from ...core.plotting import NO_MATPLOTLIB
from ...core.text import PRINT_IT, plural, shown
from ...data.federation import Federation
from ...data.read.ids import ClientId
from ...host.baselines import trivial
from ...host.metrics import Metric, direction, parse_metrics
from ...host.scores import summarise
from ...report.format import count, number, signed, size
from ...report.plots import advice_picture
from ...report.units import Units
from ...report.verdicts import CANNOT_TELL, CLIENT_SAMPLES, GAINS, LOSES, ClientGain
from ...task.losses import Loss
from ..folders import refuse_taken
from ..trees import ALONE, TREES
from .budget import PrivacyBudget
from .estimate import HELD_OUT_SAMPLES, LOCAL, TOO_CLOSE, UNDECIDED, Compared, Decision, Gain
from .heterogeneity import ABOVE, BELOW, Heterogeneity
from .training import ENOUGH, GIVEN, STEP, Candidate, Holdout

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

WIDTH = 80
SHOWN = 5  # clients that are named of those who gain most, and of those who lose most


@dataclass(frozen=True)
class Advice:
    """Advice for a federation. Prints; `choice`, `table`, `gains` and `as_dict()` have the rest."""

    choice: str  # the method to deploy, "local", or "undecided"
    p: float  # p-value of the deciding comparison
    words: list[str]  # what to deploy, what it costs, how sure that is
    notes: list[str]  # assumptions, and limits of what the data can show
    metric: str  # the figure that decides: "loss" unless the user named another
    title: str
    alternative: str = ""  # "fedavg", "local" or "too close to call"; "" without FedAvg
    tie: float = 0.0  # smallest gain worth federating for, in the units of the metric
    table: list[dict[str, Any]] = field(default_factory=list)  # a row per candidate
    trees: list[dict[str, Any]] = field(default_factory=list)  # rows that are not federated
    clients: list[ClientGain] = field(default_factory=list)  # in the order of the federation
    gains_of: str = ""  # the candidate that they gain or lose by
    heterogeneity: Heterogeneity | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    details: list[str] = field(default_factory=list)  # what only some want to read
    verbose: bool = False  # whether details are printed too

    @property
    def decided(self) -> bool:
        """Whether the data decide."""
        return self.choice != UNDECIDED

    @property
    def gains(self) -> dict[str, list[ClientId]]:
        """Who gains, who loses, and of whom the data cannot tell, by the clients' own ids.

        By the chosen method against learning alone; where the choice is that, or none, by the best
        one that federates.
        """
        names = {"gain": GAINS, "lose": LOSES, "untold": CANNOT_TELL}
        return {
            key: [c.client for c in self.clients if c.verdict == verdict]
            for key, verdict in names.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data: what `--json` prints."""
        return plain(
            {
                "choice": self.choice,
                "alternative": self.alternative,
                "words": self.words,
                "notes": self.notes,
                "details": self.details,
                "metric": self.metric,
                "tie": self.tie,
                "p": self.p,
                "candidates": self.table,
                "trees": self.trees,
                "heterogeneity": self.heterogeneity and self.heterogeneity.as_dict(),
                "gains_of": self.gains_of,
                "gains": self.gains,
                "clients": [c.as_dict() for c in self.clients],
                "settings": self.settings,
                "seconds": self.seconds,
            }
        )

    def picture(self, path: str | Path) -> Path:
        """Draw the advice on one page (PNG)."""
        drawn = advice_picture(self.as_dict(), self.title, Path(path))
        if drawn is None:
            raise SettingError(NO_MATPLOTLIB)
        return drawn

    def save(self, directory: str | Path) -> Path:
        """Write advice.json, advice.txt and advice.png into a new folder."""
        path = Path(directory)
        refuse_advice(path)
        private_folder(path)
        write_json(path / "advice.json", self.as_dict())
        write_atomic(path / "advice.txt", f"{self}\n".encode())
        advice_picture(self.as_dict(), self.title, path / "advice.png")
        return path

    # -- tables ----------------------------------------------------------------------------------
    def tables(self) -> list[FittedTable]:
        """A line per candidate, and the clients who gain or lose most."""
        tables = [self._candidates()] if self.table else []
        return [*tables, *([self._clients()] if self.clients else [])]

    def _candidates(self) -> FittedTable:
        columns = [
            Column("candidate", 0, lambda r: shown(r["label"], LONGEST), words=True, least=14),
            Column(self._heading(self.metric), 0, lambda r: number(r["value"])),
            *(self._beside(name, at) for at, name in enumerate(self._others)),
            Column("gain over local", 1, lambda r: signed(r["gain"])),
            Column("95 % interval", 2, self._interval),
            *([Column("ε spent", 1, _spent)] if self._is_private else []),
            Column("bytes per round", 7, lambda r: "–" if r["bytes"] is None else _sent(r)),
            Column("step size ×", 8, lambda r: f"{r['step_factor']:g}" if r["fields"] else "–"),
            Column("rounds", 9, lambda r: count(r["rounds"]) if r["rounds"] else "–"),
            Column("gradients", 10, lambda r: count(r["gradients"])),
        ]
        return FittedTable(columns, [*self.table, *self.trees], shown(self.title))

    @property
    def _is_private(self) -> bool:
        return any(row.get("privacy") for row in self.table)

    @property
    def _others(self) -> list[str]:
        """The figures beside the one that decides."""
        return [name for name in self.table[0].get("figures", {}) if name != self.metric]

    def _beside(self, name: str, at: int) -> Column:
        return Column(self._heading(name), 3 + at, lambda r: number(r["figures"].get(name)))

    @staticmethod
    def _heading(name: str) -> str:
        return {"auc": "AUC", "f1": "F1"}.get(name, name.replace("_", " "))

    def _interval(self, row: dict[str, Any]) -> str:
        if row["low"] is None or not math.isfinite(row["low"]):
            return "–"
        return f"{signed(row['low'])} to {signed(row['high'])}"

    def _clients(self) -> FittedTable:
        clear = [c for c in self.clients if c.verdict != CANNOT_TELL]
        rest = [c for c in self.clients if c.verdict == CANNOT_TELL and c.gain == c.gain]
        ordered = sorted(clear or rest, key=lambda c: -c.gain)
        rows = ordered
        if len(ordered) > 2 * SHOWN:
            rows = [*ordered[:SHOWN], *ordered[-SHOWN:]]
        columns = [
            Column("client", 0, lambda c: shown(c.client, LONGEST), words=True, least=14),
            Column("samples", 2, lambda c: count(c.samples)),
            Column(f"gain by {shown(self.gains_of, 24)}", 0, lambda c: signed(c.gain)),
            Column("95 % interval", 1, lambda c: self._interval(c.as_dict())),
            Column("", 0, lambda c: c.verdict),
        ]
        what = "clients that gain or lose" if clear else "clients; the data cannot tell of any"
        some = "" if len(rows) == len(ordered) else f", {len(rows)} of {len(ordered):,}"
        return FittedTable(columns, rows, f"{what}, by gain{some}")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for line in [*self.words, *(self.details if self.verbose else [])]:
            yield Text(shown(line))
        yield Text("")
        yield from self.tables()
        for note in self.notes:
            yield Text(shown(f"note: {note}"), style="dim")

    def __str__(self) -> str:
        return "\n".join(line.rstrip() for line in render(self, WIDTH).split("\n"))

    def __repr__(self) -> str:
        row = next((r for r in self.table if r["label"] == self.choice), {"gain": None})
        gain = "" if row["gain"] is None else f", {self.metric} {signed(row['gain'])} over local"
        title = shown(self.title, 60)
        return f"Advice({shown(self.choice, 80)!r}{gain}, {title!r}; {PRINT_IT})"


def refuse_advice(path: Path) -> None:
    """Refuse a directory that holds an advice or a run."""
    refuse_taken(path)
    if (path / "advice.json").exists():
        raise SettingError(f"directory: {path} already holds an advice; choose another")


def _spent(row: dict[str, Any]) -> str:
    """What a training with these settings spends of the client that spends most."""
    return f"{row['privacy']['epsilon']:.3g}" if row.get("privacy") else "–"


def _sent(row: dict[str, Any]) -> str:
    return size(row["bytes"]["up"] + row["bytes"]["down"])


# -- The rows of the table: a line per candidate, and one for each client's constant answer --

Line = dict[str, Any]


def candidate_line(c: Candidate, figures: dict[str, float], metric: str, gain: Gain | None) -> Line:
    """A candidate: its figures, its gain over Local, what it costs, how it was trained."""
    return {
        "label": c.label,
        "method": c.name,
        "value": figures[metric],
        "figures": figures,
        "gain": gain and gain.mean,
        "low": gain and gain.low,
        "high": gain and gain.high,
        "bytes": {"up": c.bytes_up, "down": c.bytes_down},
        "rounds": c.rounds,
        "gradients": c.gradients,
        "step_factor": STEP**c.power,  # times the step sizes of its defaults
        "step_factors": [STEP**power for power in c.grid],  # that were tried
        "fields": c.method(c.power).as_dict(),
        "trainings": len(c.outcomes),
        "privacy": _private_settings(c),
    }


def _private_settings(c: Candidate) -> dict[str, Any] | None:
    """What a training spends of each client, and the settings that it takes."""
    if c.privacy is None:
        return None
    settings = {k: v for k, v in c.run_settings[c.power].items() if k != "noise_source"}
    return {
        "epsilon": c.privacy["epsilon"]["worst"],
        "delta": c.privacy["delta"],
        "noise": c.privacy["noise"],
        "protects": c.privacy["protects"],
        "sampling": c.privacy["sampling"],
        "settings": {"rounds": c.rounds, **settings},
    }


def constant_line(
    holdout: Holdout,
    seeds: int,
    loss_of: Callable[[Federation], Loss],
    metrics: Sequence[Metric],
) -> Line | None:
    """Each client's one constant answer, on the same held-out samples; None without a meaning.

    Its loss, where there are classes, is that of the class shares of its training samples.
    """
    counted = [*metrics, *parse_metrics("log_loss")] if holdout.data.classes else list(metrics)
    totals: dict[str, float] = {}
    mass = 0.0
    for seed in range(1 if holdout.kind == GIVEN else seeds):
        federation, held_out = holdout.under(seed)
        if not len(held_out):
            continue
        scores = trivial(federation, loss_of(federation), counted, split="valid")
        if scores is None:
            return None
        held_out_mass = float(federation.weight_totals("valid").sum())
        for name, value in summarise(scores).items():
            if isinstance(value, float):
                totals[name] = totals.get(name, 0.0) + value * held_out_mass
        mass += held_out_mass
    figures = {name: total / mass for name, total in totals.items()}
    if holdout.data.classes:
        figures["loss"] = figures.pop("log_loss", math.nan)
    label = "majority class" if holdout.data.classes else "training mean"
    return _untrained_line(label, "constant", figures, math.nan, None)


def tree_line(label: str, figures: dict[str, float], metric: str, gain: Gain) -> Line:
    """Trees: their figures, and their gain over Local."""
    return _untrained_line(label, TREES, figures, figures[metric], gain)


def _untrained_line(
    label: str, method: str, figures: dict[str, float], value: float, gain: Gain | None
) -> Line:
    """What sends nothing and takes no gradient."""
    return {
        "label": label,
        "method": method,
        "value": value,
        "figures": figures,
        "gain": gain and gain.mean,
        "low": gain and gain.low,
        "high": gain and gain.high,
        "bytes": None,
        "rounds": 0,
        "gradients": 0,
        "step_factor": None,
        "step_factors": [],
        "fields": {},
        "trainings": 0,
        "privacy": None,
    }


def beaten_by_constant(table: list[Line], constant: Line, choice: str, metric: str) -> str:
    """A remark where no candidate, or not the chosen one, does better than a constant answer."""
    if math.isnan(constant["value"]):
        return ""
    sign = 1 if direction(metric) else -1
    better = [r["label"] for r in table if sign * (r["value"] - constant["value"]) > 0]
    answer = f"one constant answer per client ({constant['label']})"
    if not better:
        return f"no candidate does better than {answer}: models learn nothing more from these data"
    if choice not in (UNDECIDED, *better):
        return f"{choice} does no better than {answer}"
    return ""


# -- in words --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class GainUnit:
    """How gains of a metric are written, and the smallest one worth federating for."""

    metric: str
    tie: float  # in the units of the metric
    share: float = 0.01  # the option: of a loss, the fraction that the tie is
    classes: bool = True  # whether targets are classes, or real numbers

    @property
    def name(self) -> str:
        """The metric in words.

        >>> GainUnit("loss", 0.007).name, GainUnit("balanced_accuracy", 0.01).name
        ('log loss', 'balanced accuracy')
        """
        if self.metric == "loss":
            return "log loss" if self.classes else "loss"
        return {"auc": "AUC", "f1": "F1"}.get(self.metric, self.metric.replace("_", " "))

    def text(self, value: float, signed: bool = True) -> str:
        """A gain: accuracy in percentage points, other figures as they are.

        >>> unit = GainUnit("accuracy", 0.01)
        >>> unit.text(0.0312), unit.text(0.01, signed=False), GainUnit("loss", 0.01).text(-0.0004)
        ('+3.1 points', '1 point', '-0.0004')
        """
        sign = "+" if signed else ""
        if self.metric != "accuracy":
            return f"{value:{sign}.4f}" if signed else f"{value:.3g}"
        points = f"{100 * value:{sign}.1f}" if signed else f"{100 * value:.3g}"
        return f"{points} point{'' if points == '1' else 's'}"

    @property
    def smallest(self) -> str:
        """The smallest gain worth federating for.

        >>> GainUnit("accuracy", 0.01).smallest, GainUnit("auc", 0.01).smallest
        ('1 point of accuracy', '0.01 of AUC')
        >>> GainUnit("loss", 0.0069).smallest
        "0.0069 of log loss (1 % of a constant answer's)"
        """
        text = f"{self.text(self.tie, signed=False)} of {self.name}"
        if self.metric != "loss":
            return text
        whose = "a constant answer's" if self.classes else "local's"
        return f"{text} ({100 * self.share:.3g} % of {whose})"

    def interval(self, gain: Gain) -> str:
        """The interval of a gain, in parentheses; "" where there is none.

        >>> GainUnit("accuracy", 0.01).interval(Gain(0.03, 0.0, 5))
        ' (95 % interval +3.0 to +3.0)'
        """
        if not gain.freedom:
            return ""
        scale, digits = (100, 1) if self.metric == "accuracy" else (1, 4)
        low, high = (f"{scale * end:+.{digits}f}" for end in (gain.low, gain.high))
        return f" (95 % interval {low} to {high})"

    def against_alone(self, label: str, gain: Gain) -> str:
        """The gain of a candidate over learning alone, with its interval."""
        text = self.text(gain.mean)
        if self.metric != "accuracy":
            text = f"{self.name} {'better' if gain.mean > 0 else 'worse'} by {abs(gain.mean):.4f}"
        return f"{label} against learning alone: {text}{self.interval(gain)} on held-out samples."


def p_text(p: float) -> str:
    """A p-value in parentheses.

    >>> p_text(0.0024), p_text(0.0001)
    ('(p = 0.002)', '(p < 0.001)')
    """
    return f"(p = {p:.1g})" if p >= 0.001 else "(p < 0.001)"


def deployment(
    decision: Decision, compared: Sequence[Compared], unit: GainUnit, folds: bool
) -> list[str]:
    """What to deploy, and how sure that is; `folds`: every training sample is a judge already."""
    gains = {c.label: c.gain for c in compared}
    label = decision.choice
    if label not in gains:
        label = max(gains, key=lambda candidate: gains[candidate].mean)
    gain = gains[label]
    if decision.choice == UNDECIDED:
        leaning = label if gain.mean >= unit.tie else "local, which sends nothing"
        more = "." if folds else ": validation='folds' judges by all training samples in turn."
        return [
            f"Undecided. We cannot tell yet whether {_either(decision.hopes)} is at least "
            f"{_better(unit)} than learning alone.",
            unit.against_alone(label, gain),
            f"The point estimate favours {leaning}; more samples are needed to judge by{more}",
        ]
    if decision.choice == LOCAL:
        reason = f"no federated method gained {unit.smallest}"
        if all(g.high < 0 for g in gains.values()):
            reason = f"every federated method is worse by {unit.name}"
        smallest = unit.text(unit.tie, signed=False)
        return [
            f"Train each site alone: {reason}.",
            unit.against_alone(label, gain),
            f"The data rule out a gain of {smallest} {p_text(decision.p)}.",
        ]
    return [
        f"Deploy {label}: it gains {unit.smallest} or more over learning alone.",
        unit.against_alone(label, gain),
        f"The data rule out that federating gains nothing {p_text(decision.p)}.",
        *weighing(label, compared, unit),
    ]


def within_budget(
    decision: Decision,
    best: Candidate,
    gain: Gain,
    tie: float,
    budget: PrivacyBudget,
    heard: int,
    sentences: list[str],
) -> list[str]:
    """The sentences of a decision, after what a privacy budget makes of it.

    `best`: the candidate to deploy, or the one that does best of those that federate.
    """
    each = f"a privacy budget of {budget.text} for each client"
    if decision.choice == LOCAL:
        answer = f"Not at this budget: with {each}, federating is not worth it here."
    elif decision.choice != UNDECIDED:
        answer = f"Federating is worth it even with {each}."
    elif gain.mean < tie:
        answer = (
            f"Not at this budget, as far as these samples show: with {each}, no method that "
            "federates gains enough over learning alone by the estimate."
        )
    else:
        answer = f"With {each} the data do not decide whether federating is worth it."
    facts = best.privacy
    if facts is None:
        return [answer, *sentences]
    flags = " ".join(
        f"--{name.replace('_', '-')} {f'{value!r}' if isinstance(value, str) else f'{value:g}'}"
        for name, value in best.run_settings[best.power].items()
        if name != "noise_source"
    )
    spent = (
        f"A training of {best.label} as it was judged would spend "
        f"ε = {facts['epsilon']['worst']:.3g} of each client: --rounds {best.rounds} {flags}."
    )
    length = budget.noise_length(facts["noise"], best.numbers, heard)
    federates = decision.choice not in (LOCAL, UNDECIDED)
    return [answer, *sentences, spent, noise_in_mean(length, heard, federates)]


def noise_in_mean(length: float, heard: int, federates: bool) -> str:
    """How long the noise is beside what it hides, and what would help where that is too long.

    >>> noise_in_mean(12.3, 5, False)
    'The noise in the mean of 5 clients is 12 times as long as the mean itself can be: with so few \
clients it drowns what they say; more clients, fewer rounds or a larger ε would be needed.'
    >>> noise_in_mean(0.04, 500, True)
    'The noise in the mean of 500 clients is 0.04 times as long as the mean itself can be.'
    """
    text = (
        f"The noise in the mean of {plural(heard, 'client')} is {length:.2g} times as long as the "
        "mean itself can be"
    )
    if length < 1 or federates:
        return f"{text}."
    return (
        f"{text}: with so few clients it drowns what they say; more clients, fewer rounds or a "
        "larger ε would be needed."
    )


def all_diverge(budget: PrivacyBudget) -> str:
    """Where noise leaves no candidate with figures."""
    return (
        f"Not at this budget: with {budget.text} for each client, the models of every candidate "
        "that federates diverge from the noise. Train each site alone."
    )


def privacy_notes(budget: PrivacyBudget, candidates: Sequence[Candidate]) -> list[str]:
    """What ε covers, and what it does not."""
    private = [c for c in candidates if c.privacy is not None]
    if not private:
        return []
    facts = next(c.privacy for c in private if c.privacy is not None)
    trainings = sum(len(c.outcomes) + 1 for c in private)  # and the round that shows the price
    sampling = "amplified by Poisson sampling" if facts["sampling"] == "poisson" else "all heard"
    notes = [
        f"ε spent: by one training that follows, with the settings of that line, at δ = "
        f"{budget.delta:g}; it protects each client ({facts['neighbours']}) from "
        f"{facts['against']}; trusted: {facts['trusted']}; {sampling}; Local sends nothing and "
        "spends nothing",
        "not covered by that ε: this advice. Choice, step sizes, clipping and all its figures are "
        "made of held-out samples of every client without noise, and so is any scaling of columns; "
        f"its own {trainings:,} trainings of those that federate are each within the budget, "
        f"together up to {trainings:,} times ε and δ by basic composition. Show the advice to "
        "nobody who may not see the clients' data",
    ]
    if budget.noise_source == "seed":
        notes.append(
            "noise of these trainings comes from the seed, so that the advice can be repeated; "
            "that of a run comes from a secret source"
        )
    return notes


def trees_ahead(label: str, value: float, best: float, unit: GainUnit) -> str:
    """That trees are clearly better than every candidate, and what they take.

    >>> trees_ahead("trees, all data in one place", 0.31, 0.36, GainUnit("loss", 0.007))
    'Gradient-boosted trees on pooled data do better than every candidate (log loss 0.3100 against \
0.3600 at best); they need the data in one place.'
    """
    figures = f"({unit.name} {number(value)} against {number(best)} at best)"
    if label == ALONE:
        return (
            "Gradient-boosted trees trained at each site alone do better than every candidate "
            f"{figures}: consider them; they send nothing."
        )
    return (
        f"Gradient-boosted trees on pooled data do better than every candidate {figures}; they "
        "need the data in one place."
    )


def _better(unit: GainUnit) -> str:
    """By how much a candidate must be better to be worth federating for.

    >>> _better(GainUnit("accuracy", 0.01)), _better(GainUnit("auc", 0.01))
    ('1 point better', '0.01 of AUC better')
    """
    text = unit.text(unit.tie, signed=False)
    return f"{text} better" if unit.metric == "accuracy" else f"{unit.smallest} better"


def weighing(label: str, compared: Sequence[Compared], unit: GainUnit) -> list[str]:
    """Why this one of several that federate: gain first, then bytes, then simplicity."""
    others = [c for c in compared if c.label != label]
    choice = next(c for c in compared if c.label == label)
    if not others:
        return []
    rival = max(others, key=lambda c: c.gain.mean)
    ahead = choice.gain.mean - rival.gain.mean
    text = f"{rival.label} ({unit.text(rival.gain.mean)})"
    if ahead > unit.tie:
        return [f"It gained most; next is {text}."]
    reason = "sends as much and is no simpler"
    if rival.bytes > 1.05 * choice.bytes:
        reason = f"sends {rival.bytes / choice.bytes:.2g} times as many bytes"
    elif rival.personal and not choice.personal:
        reason = "sends as much and is less simple: it has a model per client"
    return [
        f"Gain was weighed first, then bytes, then simplicity: {text} is within "
        f"{unit.text(unit.tie, signed=False)} of it or below, and {reason}."
    ]


def cost(candidate: Candidate, clients_heard: int, clients: int) -> str:
    """Bytes per round.

    >>> from ...run.plan import Plan
    >>> cost(Candidate(Plan.of("ditto"), bytes_up=5000, bytes_down=50_000), 5, 50)
    'ditto sends 5.0 kB up and 50.0 kB down per round, 5 of 50 clients heard: 1.0 kB up from each.'
    """
    up, down = candidate.bytes_up, candidate.bytes_down
    total_up, total_down, each_up = (
        size(n) if n >= 1000 else f"{n:.0f} B" for n in (up, down, up / clients_heard)
    )
    return (
        f"{candidate.label} sends {total_up} up and {total_down} down per round, "
        f"{clients_heard:,} of {plural(clients, 'client')} heard: {each_up} up from each."
    )


def one_model_or_alone(gain: Gain, unit: GainUnit) -> str:
    """One model for all against everyone alone."""
    return "One model for all: " + unit.against_alone("fedavg", gain)


def threshold(h: Heterogeneity, winner: str) -> str:
    """Whether the sites are alike enough for one model, by R^2 over C m/N."""
    index = f"heterogeneity index {'below 0.1' if h.ratio < 0.1 else f'{h.ratio:.2g}'}"
    theory = {BELOW: "fedavg", ABOVE: LOCAL}.get(h.side)
    text = {
        BELOW: f"Sites look alike enough for one shared model ({index}; above 1, train alone).",
        ABOVE: f"Sites differ too much for one shared model ({index}; below 1, they would not).",
    }.get(h.side, f"Sites may be alike enough for one shared model, or not ({index}, around 1).")
    if theory and winner not in (TOO_CLOSE, "", theory):
        text += " The held-out samples show the opposite, and they decide."
    return text


def threshold_details(h: Heterogeneity) -> str:
    """R^2 against C m/N, as in the theorem."""
    unit = ". In units of risk that is " if h.norm == "risk" else ", "
    return (
        f"The clients' own optima lie R² = {h.r2:.3g} apart{unit}{h.ratio:.2g} times the "
        f"threshold C m/N (95 % interval {h.low:.2g} to {h.high:.2g})."
    )


def gains_of_clients(gains: Sequence[ClientGain], label: str) -> str:
    """How many clients gain and lose.

    >>> gains_of_clients([ClientGain("a", 9, 0.5, 0.1, 0.9, GAINS)], "ditto")
    'With ditto, 1 of 1 client gains and 0 lose; of 0 the data cannot tell.'
    """
    gain = sum(g.verdict == GAINS for g in gains)
    lose = sum(g.verdict == LOSES for g in gains)
    rest = len(gains) - gain - lose
    return (
        f"With {label}, {gain:,} of {plural(len(gains), 'client')} gain{'s' * (gain == 1)} and "
        f"{lose:,} lose{'s' * (lose == 1)}; of {rest:,} the data cannot tell."
    )


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _either(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


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
        reason = " (the federation has no validation samples)"
        if validation:
            reason = f" (validation samples by themselves are enough from {ENOUGH:,} on)"
        share = ("third", "quarter", "fifth")[holdout.folds - 3] if holdout.folds >= 3 else "part"
        how = f"each seed holds out another {share} of each client's"
        if holdout.time is not None:
            first = int((~ever_held_out).sum())
            how = (
                f"forward in time, each client's in up to {holdout.folds + 1} blocks; each seed "
                "trains on what is before one of them and is judged on that block, so that the "
                f"first block of each client judges nothing ({plural(first, 'sample')} in all)"
            )
        notes.append(f"judged by folds of the {which} samples{reason}: {how}")
    if 0 < judged < HELD_OUT_SAMPLES:
        notes.append(
            f"{plural(judged, 'sample')} can be held out, fewer than {HELD_OUT_SAMPLES}: too few "
            "for a confidence interval or a decision"
        )
    unit = "sample" if holdout.group is None else "group"
    groups = None if holdout.group is None else holdout.group[ever_held_out]
    units = Units.of(holdout.owner[ever_held_out], groups)
    counts = np.bincount(units.owner, minlength=data.clients)
    if judged and (few := int((counts < CLIENT_SAMPLES).sum())):
        notes.append(
            f"{few:,} of {plural(data.clients, 'client')} {_have(few)} fewer than "
            f"{CLIENT_SAMPLES} held-out {unit}s: "
            f"too few to judge {'it' if few == 1 else 'each of them'} alone"
        )
    if data.classes and isinstance(data.targets, torch.Tensor):
        single_class = int(((data.class_counts("train") > 0).sum(1) == 1).sum())
        if single_class:
            notes.append(
                f"{single_class:,} of {plural(data.clients, 'client')} {_have(single_class)} "
                "training samples of a single class: a constant answer serves "
                f"{'it' if single_class == 1 else 'them'} as well as any model, as long as that "
                "stays so"
            )
    return notes
