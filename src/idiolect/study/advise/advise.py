"""Should these clients learn together at all, and by which method? docs/advise.md has the rule."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch import Tensor, nn

from ...core.knobs import Knobs, SettingError, build, knob, refused_in
from ...core.text import plural, warnings_once
from ...data.federation import Federation
from ...host.lazy_federation import positive_of
from ...host.metrics import TargetForm, check_metrics, direction, form_of, parse_metrics
from ...host.metrics.catalogue import ALWAYS as SAMPLE_METRICS
from ...method import Method
from ...report.progress import Meter, style_of
from ...report.verdicts import weighed_terms
from ...run.interrupts import finish_on_interrupt
from ...run.plan import AnyMethod, AnyModel, Plan, read_federation, read_task
from ...run.prepare import reported_loss
from ...run.run import run, torch_threads
from ...run.sample_weights import weights_note
from ...run.settings import Settings
from ...run.typed_settings import RunSettings
from ...task.losses import Loss
from ...task.task import Task
from ..trees import NOTE as TREES_NOTE
from ..trees import wanted
from . import advice as words
from .advice import (
    Advice,
    Line,
    beaten_by_constant,
    candidate_line,
    constant_line,
    refuse_advice,
    tree_line,
)
from .budget import FIELDS, PrivacyBudget
from .estimate import (
    LEVEL,
    LOCAL,
    UNDECIDED,
    Compared,
    Decision,
    Gain,
    HeldOutSamples,
    Units,
    alternative,
    client_gains,
    decide,
    kish,
)
from .figures import LARGEST, MetricFigures, Resampled
from .heterogeneity import Heterogeneity, heterogeneity
from .training import ENOUGH, FIRST, GIVEN, Candidate, Holdout, Judged, Trainer
from .tree_yardstick import judge_trees

GRADIENTS = 500
QUICK_GRADIENTS = 150
SEEDS = 5
QUICK_SEEDS = 3
MOST_TREES = 120  # boosted models that are trained without being asked: a few seconds

ALWAYS = ("local", "fedavg")  # in every table
BESIDE = ("auc", "balanced_accuracy")  # shown beside the figure that decides, of classes
# personalised methods, by default; clients that differ by their biases alone are sites that see the
# classes in other shares
OWN_BIASES = "fedalt:part=biases"
PERSONAL = ("finetune", "ditto", OWN_BIASES, "lp-proj")
QUICK_PERSONAL = ("finetune", "ditto", OWN_BIASES)


@dataclass(frozen=True)
class AdviceOptions(Knobs):
    """The compute spent on the advice, and the samples it is judged by."""

    quick: bool = knob(
        False,
        f"a first answer: {QUICK_GRADIENTS} gradients, {QUICK_SEEDS} seeds and fewer candidates, "
        "unless given",
    )
    gradients: int = knob(
        0,
        "gradients per client that every candidate may spend, in each training; "
        f"0 = {GRADIENTS}, or {QUICK_GRADIENTS} with quick",
        low=0,
    )
    tie: float = knob(
        0.01,
        "smallest gain worth federating for: of accuracy, AUC and the like absolute; of the loss a "
        "fraction of what a constant answer has (classes), or of Local's (real targets)",
        low=0,
        below=1,
    )
    validation: str = knob(
        "auto",
        "samples to judge by: the validation samples as given, folds of the training and "
        f"validation samples, or auto: given where there are {ENOUGH:,} or more",
        choices=("auto", "given", "folds"),
    )

    @property
    def budget(self) -> int:
        """Gradients per client of one training."""
        return self.gradients or (QUICK_GRADIENTS if self.quick else GRADIENTS)

    @property
    def seeds(self) -> int:
        """Trainings of each candidate, unless given."""
        return QUICK_SEEDS if self.quick else SEEDS

    @property
    def splits(self) -> int:
        """Splits into halves that R^2 is estimated from."""
        return 1 if self.quick else 3

    def personal(self, task: Task) -> list[str]:
        """The candidates besides Local and FedAvg, unless given."""
        names = QUICK_PERSONAL if self.quick else PERSONAL
        return [name for name in names if name != OWN_BIASES or task.layout.parts.biases]


def check_run_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of runs that have no meaning for advice."""
    for name, reason in refused_in(Settings, "advise").items():
        if name in settings:
            raise SettingError(f"{name} must not be given to advise; {reason}")


# -- the question ---------------------------------------------------------------------------------
Report = Callable[[int, int, str], None]  # trainings done, about how many there are, what was done


def advise(
    federation: Federation,
    task: AnyModel,
    methods: Sequence[AnyMethod] = (),
    *,
    quick: bool = False,
    gradients: int = 0,
    tie: float = 0.01,
    validation: str = "auto",
    trees: bool | None = None,
    directory: str | Path | None = None,
    progress: bool | Callable[[int, int, str], None] | None = None,
    **settings: Unpack[RunSettings],
) -> Advice:
    """Whether these clients should learn together, by which method, and who gains by it.

    Trains Local, FedAvg and a few personalised methods (or `methods`) with as many `gradients` per
    client each, over a grid of step sizes and several seeds, and judges them on samples that none
    was trained on: the federation's validation samples, or folds of its training samples. Test
    samples are never looked at. The rule of the choice is in docs/advise.md; `tie` is the
    smallest gain worth federating for. With `epsilon` (and `delta`) candidates are trained within
    that privacy budget of each client, Local without noise; the advice itself is not private.
    `trees` judges gradient-boosted trees of each client alone and of all data in one place on the
    same samples, for comparison only; without a word, on tables for which they are quick. Settings
    are those of `run`, except rounds and what stops a run.

    `progress` draws a bar (by default in a terminal or notebook, after two seconds of work), or is
    a function of (trainings done, about how many there are, what is at work).

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=12, samples=60)
    >>> model = lambda: il.models.make("linear", (60,), 10)
    >>> advice = il.advise(federation, model, quick=True, gradients=20)
    >>> advice.metric, [row["label"] for row in advice.table]
    ('loss', ['local', 'fedavg', 'finetune', 'ditto', 'fedalt part=biases', 'majority class'])
    """
    if isinstance(federation, Task | nn.Module) or isinstance(task, Federation):
        raise SettingError(
            "federation must come first, got a model; the order is (federation, task)"
        )
    whole, note = read_task(task, read_federation(federation))
    options = AdviceOptions(quick, gradients, tie, validation)
    common = dict(settings)
    check_run_settings(common)
    run_settings = build(Settings, {"seeds": options.seeds, **common}, "run")
    if directory is not None:
        refuse_advice(Path(directory))
    PrivacyBudget.of(run_settings, common)  # refuses a protection that it has no words for
    plans = _plans(methods or options.personal(whole))
    seeds = run_settings.seeds
    holdout = Holdout.of(federation, options.validation, run_settings.seed, seeds)
    if run_settings.metric:
        positive = positive_of(federation, run_settings.positive)
        check_metrics(whole, holdout.data, (), run_settings.metric, positive)
    with _reporting(progress) as report, torch_threads(run_settings.threads), warnings_once():
        folds = 1 if holdout.kind == GIVEN else seeds
        with_trees = wanted(federation, whole.criterion, trees, folds, MOST_TREES)
        others = options.splits + (folds if with_trees else 0)
        counter = TrainingCounter(report, len(plans), seeds, others)
        inquiry = Inquiry(
            federation,
            whole,
            options,
            run_settings,
            common,
            holdout,
            counter,
            with_trees,
            notes=[note] if note else [],
        )
        advice = inquiry.answer(plans)
    if directory is not None:
        advice.save(directory)
    return advice


def _plans(methods: Sequence[AnyMethod]) -> list[Plan]:
    """The candidates: Local and FedAvg at their defaults, and the others."""
    if isinstance(methods, str | Method | type):
        raise SettingError(f"methods must be a list of methods, got {methods!r}")
    plans: dict[str, Plan] = {}
    for method in (*ALWAYS, *methods):
        plan = Plan.of(method)
        if plan.method == "dichotomy":
            raise SettingError(
                "methods must not include dichotomy, which decides between fedavg and local by "
                "validation data, as advise does"
            )
        plans.setdefault(Candidate(plan).label, plan)
    return list(plans.values())


@contextmanager
def _reporting(progress: bool | Report | None) -> Iterator[Report | None]:
    """What trainings are reported to: the user's function, a bar, or nothing."""
    if progress is not None and callable(progress):
        yield progress
        return
    with Meter(1, style_of(progress), "trainings", estimated=True) as meter:
        yield lambda count, total, what: meter.update(count, what, total=total)


class TrainingCounter:
    """Counts trainings; their number is an estimate, since a grid of step sizes may grow."""

    def __init__(self, report: Report | None, candidates: int, seeds: int, others: int):
        self.report = report
        self.count = 0
        self.total = candidates * (len(FIRST) + 2 * (seeds - 1)) + others  # halves, trees
        self.later_seeds = seeds - 1

    def set_step_sizes(self, tried: int, trained_further: int) -> None:
        """Correct the total once the step sizes of a candidate are known."""
        self.total += tried - len(FIRST) + (trained_further - 2) * self.later_seeds

    def add(self, what: str) -> None:
        """One training has ended."""
        self.count += 1
        if self.report:
            self.report(self.count, max(self.total, self.count), what)


# -- from candidates to advice: train, compare, decide, say ----------------------------------------
@dataclass
class Inquiry:
    """What the parts of an advice share."""

    federation: Federation
    task: Task
    options: AdviceOptions
    settings: Settings
    user_settings: Mapping[str, Any]  # of the trainings, as the user gave them
    holdout: Holdout
    counter: TrainingCounter
    with_trees: bool
    notes: list[str]
    began: float = field(default_factory=time.monotonic)
    diverged: list[str] = field(default_factory=list)  # candidates that are left out for it
    # of a metric that no single sample has, by label
    resampled: dict[str, Resampled] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """What decides: a proper score, unless the user names another figure."""
        return self.settings.metric or "loss"

    @cached_property
    def privacy(self) -> PrivacyBudget | None:
        """What a training may spend of each client; None where nobody asks."""
        return PrivacyBudget.of(self.settings, self.user_settings)

    @cached_property
    def form(self) -> TargetForm:
        return form_of(self.federation, self.task.criterion)

    @cached_property
    def figures(self) -> dict[str, MetricFigures]:
        """Figures that no single sample has: the metric that decides, and those shown beside."""
        targets = self.holdout.targets
        names = [] if self.metric in SAMPLE_METRICS else [self.metric]
        if self.form.classes and self.form.targets == 1:
            names += [name for name in BESIDE if name != self.metric]
        if not isinstance(targets, Tensor) or self.form.classes > LARGEST:
            return {}
        positive = positive_of(self.federation, self.settings.positive)
        metrics = [m.about(positive) for name in names for m in parse_metrics(name)]
        metrics = [m for m in metrics if not m.refusal(self.form)]
        return {
            m.name: MetricFigures(
                m,
                self.form,
                self.units,
                self.holdout.owner,
                targets,
                self.federation.clients,
                self.holdout.kind == GIVEN,
                self.settings.seed,
                self.holdout.weights,
            )
            for m in metrics
        }

    def answer(self, plans: list[Plan]) -> Advice:
        """The whole way."""
        seeds = self.settings.seeds
        self.notes += words.remarks(self.federation, self.holdout, seeds)
        self._note_units()
        settled = words.settled(self.holdout, seeds)
        if settled:
            choice, reason = settled
            return self._advice(Decision(choice, float(choice == UNDECIDED)), [reason])
        if self.metric not in (*SAMPLE_METRICS, *self.figures):
            raise SettingError(
                f"metric must be accuracy or loss for targets of this form, got {self.metric!r}"
            )
        candidates = self._train(plans)
        values = {c.label: self._values(c) for c in candidates}
        if self.privacy is not None:
            self.notes += words.privacy_notes(self.privacy, candidates)
        for label in [label for label, v in values.items() if np.isinf(v).any()]:
            del values[label]
            self.diverged.append(label)
            self.notes.append(f"{label} is left out: its models diverge under some seed")
        if LOCAL not in values:
            reason = "Cannot tell: Local's own models diverge at every step size that was tried."
            return self._advice(Decision(UNDECIDED, 1.0), [reason])
        return self._judge([c for c in candidates if c.label in values], values)

    def _note_units(self) -> None:
        """Say what intervals count, and which class a figure is of."""
        if self.holdout.group is not None:
            self.notes.append(
                f"intervals count {plural(len(self.units.owner), 'group')}, not the "
                f"{self.holdout.samples:,} samples in them"
            )
        if note := weights_note(self.federation):
            self.notes.append(note["weights"]["text"])
        if self.federation.subgroups:
            self.notes.append("subgroup has no effect on advice; run and compare give its figures")
        of_class = [f.metric for f in self.figures.values() if f.metric.of_positive]
        positive = positive_of(self.federation, self.settings.positive)
        if of_class and positive is not None:
            self.notes.append(f"{of_class[0].name} is of class {positive.name!r}")
        elif self.settings.positive:
            self.notes.append("positive has no effect: no figure here is of one class")

    def _train(self, plans: list[Plan]) -> list[Candidate]:
        """Every candidate under every seed, but for those that cannot be run."""
        trainer = Trainer(
            self.task,
            self.holdout,
            self._run_settings("seed", "seeds", "threads", *FIELDS),
            self.settings.seed,
            self.options.budget,
            self.metric,
            self.counter.add,
            self.figures.get(self.metric),
            bool(self.figures),
            self.privacy,
        )
        candidates = []
        with finish_on_interrupt("finishing this training, then stopping") as interrupted:

            def proceed() -> None:
                if interrupted():
                    raise interrupted.stop("stopped before the advice was complete")

            for candidate in map(Candidate, plans):
                try:
                    trainer.price(candidate)
                    candidates.append(candidate)
                except SettingError as error:
                    if candidate.name == LOCAL:
                        raise
                    self.notes.append(f"{candidate.label} is left out: {error}")
            for candidate in candidates:
                trainer.search_steps(candidate, proceed)
                self.counter.set_step_sizes(len(candidate.grid), len(candidate.finalists))
            for seed in range(1, self.settings.seeds):
                for candidate in candidates:
                    for power in candidate.finalists:
                        proceed()
                        trainer.train(candidate, power, seed)
            for candidate in candidates:
                trainer.choose_steps(candidate, self.settings.seeds)
        return candidates

    def _run_settings(self, *apart: str) -> dict[str, Any]:
        return {name: v for name, v in self.user_settings.items() if name not in apart}

    def _values(self, judged: Judged) -> np.ndarray:  # -> [seeds, n]
        """What each held-out sample says, higher is better; -infinity where models diverge."""
        hits, loss = judged.scores(self.settings.seeds, self.holdout.half)
        lost = self.holdout.mask(self.settings.seeds) & ~np.isfinite(loss)
        return np.where(lost, -math.inf, hits if self.metric == "accuracy" else -loss)

    def _gains(self, candidates: list[Candidate], values: dict[str, np.ndarray]) -> dict[str, Gain]:
        """The gain of every candidate that federates over Local; their intervals hold together."""
        alone = next(c for c in candidates if c.label == LOCAL)
        federated = [c for c in candidates if c.bytes]  # the others send nothing
        differences = [self._differences(values[c.label] - values[LOCAL]) for c in federated]
        return self._gains_over(alone, federated, self.samples.joint_level(differences))

    def _gains_over(
        self, base: Judged, others: Sequence[Judged], level: float = LEVEL
    ) -> dict[str, Gain]:
        """The gain of each of some over one, on the same samples."""
        if self.metric in SAMPLE_METRICS:
            mine = self._values(base)
            differences = {o.label: self._differences(self._values(o) - mine) for o in others}
            return {label: self.samples.gain(d, level) for label, d in differences.items()}
        figures, mask = self.figures[self.metric], self.holdout.mask(self.settings.seeds)
        for judged in (base, *others):
            if judged.label not in self.resampled:
                answers = judged.answers(self.settings.seeds, self.holdout.half)
                self.resampled[judged.label] = figures.resampled(answers, mask)
        pairs = {o.label: (self.resampled[o.label], self.resampled[base.label]) for o in others}
        return {
            label: replace(figures.gain(*pair, mask), level=level) for label, pair in pairs.items()
        }

    def _differences(self, d: np.ndarray) -> np.ndarray:
        """Paired differences of units from those of samples, d[seeds, n]: see `Units.values`.

        Where samples have weights, the mean of all units is the weighed mean of all samples.
        """
        if self.holdout.weights is not None:
            d = weighed_terms(d, self.holdout.weights)
        return self.units.values(d)

    @cached_property
    def samples(self) -> HeldOutSamples:
        repeated = self.holdout.kind == GIVEN
        whole = self.holdout.group is None and self.holdout.weights is None
        counted = self.metric == "accuracy" and whole
        clients, weights = self.federation.clients, self.holdout.weights
        if weights is None:
            return HeldOutSamples(self.units.owner, clients, repeated, counted)
        effective = kish(weights, self.holdout.owner, clients)
        return HeldOutSamples(
            *(self.units.owner, clients, repeated, counted),
            float(kish(weights, np.zeros_like(self.holdout.owner), 1)[0]) / len(weights),
            effective,
        )

    @cached_property
    def units(self) -> Units:
        return Units.of(self.holdout.owner, self.holdout.group)

    def _tie(self, alone: np.ndarray) -> float:
        """The smallest gain worth federating for, in the units of the metric.

        A gain in log loss is counted against what a constant answer has, the entropy of the
        training classes: 1 % of it is as much for a rare outcome as for an even one, and does not
        vanish where Local is nearly perfect. Real targets have no such scale: there it is Local's
        loss.
        """
        if self.metric != "loss":
            return self.options.tie
        if not self.federation.classes:
            return self.options.tie * abs(self.holdout.mean(alone))
        shares = self.holdout.data.class_totals("train").sum(0)
        shares = shares[shares > 0] / shares.sum()
        return self.options.tie * float(-(shares * shares.log()).sum())

    def _judge(self, candidates: list[Candidate], values: dict[str, np.ndarray]) -> Advice:
        alone = values[LOCAL]
        federated = {c.label: c for c in candidates if c.bytes}
        gains = self._gains(candidates, values)
        tie = self._tie(alone)
        compared = [
            Compared(c.label, gains[c.label], c.bytes, c.personal) for c in federated.values()
        ]
        decision = decide(compared, tie)
        table = self._table(candidates, values, gains, decision.choice)
        if not federated:
            return self._no_candidate(tie, table)
        label = decision.choice
        if label not in federated:
            label = max(gains, key=lambda candidate: gains[candidate].mean)
        unit = words.GainUnit(self.metric, tie, self.options.tie, bool(self.federation.classes))
        sentences = words.deployment(decision, compared, unit, self.holdout.kind != GIVEN)
        training = int((self.holdout.data.sizes("train") > 0).sum())
        clients_heard = self.settings.sample or training
        if self.privacy is not None:
            clients_heard = self.privacy.heard(training)
            sentences = words.within_budget(
                decision,
                federated[label],
                gains[label],
                tie,
                self.privacy,
                clients_heard,
                sentences,
            )
        sentences.append(words.cost(federated[label], clients_heard, training))
        winner = ""
        if "fedavg" in federated:
            winner = alternative(gains["fedavg"])
            if label != "fedavg":
                sentences.append(words.one_model_or_alone(gains["fedavg"], unit))
        details: list[str] = []
        spread = self._heterogeneity(next(c for c in candidates if c.label == LOCAL))
        if spread is not None:
            sentences.append(words.threshold(spread, winner))
            details.append(words.threshold_details(spread))
        if self.metric not in SAMPLE_METRICS:
            self.notes.append(
                f"single clients are judged by their loss: no sample has {unit.name} by itself"
            )
        difference, weights = values[label] - alone, self.holdout.weights
        if weights is not None:
            difference = weighed_terms(difference, weights, self.holdout.owner)
        counted = self.metric == "accuracy" and weights is None
        rows = replace(self.samples, owner=self.holdout.owner, counted=counted)
        clients = client_gains(difference, rows, self.federation.ids, self.holdout.group)
        sentences.append(words.gains_of_clients(clients, label))
        trees = self._judge_trees(candidates, table, gains, unit, sentences)
        return self._advice(
            decision,
            sentences,
            alternative=winner,
            tie=tie,
            table=table,
            trees=trees,
            clients=clients,
            gains_of=label,
            heterogeneity=spread,
            details=details,
        )

    def _no_candidate(self, tie: float, table: list[Line]) -> Advice:
        """Where no candidate that federates has figures."""
        if self.privacy is not None and self.diverged:
            return self._advice(
                Decision(LOCAL, 0.0), [words.all_diverge(self.privacy)], tie=tie, table=table
            )
        reason = "Cannot tell: no candidate that federates could be trained."
        return self._advice(Decision(UNDECIDED, 1.0), [reason], tie=tie, table=table)

    def _table(
        self,
        candidates: list[Candidate],
        values: dict[str, np.ndarray],
        gains: dict[str, Gain],
        choice: str,
    ) -> list[Line]:
        table = [
            candidate_line(c, self._shown(c), self.metric, gains.get(c.label)) for c in candidates
        ]
        shown = table[0]["figures"]
        metrics = [f.metric for f in self.figures.values()]
        constant = constant_line(self.holdout, self.settings.seeds, self._reported_loss, metrics)
        if constant is None:
            return table
        constant = {**constant, "value": constant["figures"].get(self.metric, math.nan)}
        constant["figures"] = {name: constant["figures"].get(name) for name in shown}
        remark = beaten_by_constant(table, constant, choice, self.metric)
        self.notes += [remark] if remark else []
        return [*table, constant]

    def _judge_trees(
        self,
        candidates: list[Candidate],
        table: list[Line],
        gains: dict[str, Gain],
        unit: words.GainUnit,
        sentences: list[str],
    ) -> list[Line]:
        """Lines of trees; a sentence where they are clearly better than every candidate."""
        if not self.with_trees:
            return []
        judged = judge_trees(
            self.holdout, self.settings.seeds, self._reported_loss, self.counter.add
        )
        if not self.form.odds:  # as the models answer, so that one figure serves both
            judged = [replace(trees, outputs=np.exp(trees.outputs)) for trees in judged]
        alone = next(c for c in candidates if c.label == LOCAL)
        over_local = self._gains_over(alone, judged, next(iter(gains.values())).level)
        self.notes.append(TREES_NOTE)
        lines = []
        for trees in judged:
            shown = self._shown(trees)
            lines.append(tree_line(trees.label, shown, self.metric, over_local[trees.label]))
            over_trees = self._gains_over(trees, candidates)
            if all(gain.high < 0 for gain in over_trees.values()):
                rivals = [r["value"] for r in table if r["label"] in over_trees]
                best = max(rivals) if direction(self.metric) else min(rivals)
                sentences.append(words.trees_ahead(trees.label, lines[-1]["value"], best, unit))
        return lines

    def _reported_loss(self, federation: Federation) -> Loss:
        return reported_loss(self.task, federation, self.settings)

    def _shown(self, candidate: Judged) -> dict[str, float]:
        """The figures of a candidate, by their names."""
        seeds, half = self.settings.seeds, self.holdout.half
        mask = self.holdout.mask(seeds)
        hits, loss = candidate.scores(seeds, half)
        shown = {"loss": self.holdout.mean(loss)}
        if self.form.classes:
            shown["accuracy"] = self.holdout.mean(hits)
        for name, figures in self.figures.items():
            value = figures.value(candidate.answers(seeds, half), mask)
            shown[name] = value if figures.metric.higher else -value
        return shown

    def _heterogeneity(self, local: Candidate) -> Heterogeneity | None:
        """R^2 against the threshold, from Local's models on halves of the clients' samples."""
        s = self.settings
        needed = 2 * 8 * 4 * self.federation.clients * self.task.d
        if needed > s.memory * 2**30:
            text = f"R² is not estimated: it takes {needed / 2**30:.2g} GiB (the setting memory)"
            self.notes.append(text)
            return None
        trained = []
        for number in range(self.options.splits):
            halves = self.holdout.halves(s.seed + number)
            settings = self._run_settings(
                "seed", "seeds", "sample", "threads", "selection", *FIELDS
            )
            settings |= {"rounds": local.rounds, "eval_every": 0, "seed": s.seed}
            result = run(local.method(local.power), self.task, halves, progress=False, **settings)
            session = result.session()
            task = session.contract.task  # in the units that it was trained in
            rows = session.hosts[0].all_rows()["x"]
            trained.append((rows[:, : task.d].cpu(), halves.to(task.device, task.dtype)))
            self.counter.add("halves for R²")
        estimate = heterogeneity(trained, task, s.seed)
        if estimate is None:
            self.notes.append(
                "R² is not estimated: it takes two clients with four training samples or more"
            )
        return estimate

    def _advice(self, decision: Decision, sentences: list[str], **more: Any) -> Advice:
        f = self.federation
        budget = "" if self.privacy is None else f", {self.privacy.text} for each client"
        return Advice(
            choice=decision.choice,
            p=decision.p,
            words=sentences,
            notes=self.notes,
            metric=self.metric,
            title=f"{f.name}: {plural(f.clients, 'client')}, d = {self.task.d:,}{budget}",
            settings={
                "gradients": self.options.budget,
                "quick": self.options.quick,
                "tie": self.options.tie,
                "validation": self.holdout.kind,
                "seeds": self.settings.seeds,
                "run": {
                    k: v for k, v in self.settings.as_dict().items() if k in self.user_settings
                },
            },
            seconds=time.monotonic() - self.began,
            **more,
        )
