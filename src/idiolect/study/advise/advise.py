"""Should these clients learn together at all, and by which method? docs/advise.md has the rule."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch import nn

from ...core.knobs import SettingError, build
from ...core.text import warnings_once
from ...data.federation import Federation
from ...method import Method
from ...report.progress import Meter, style_of
from ...run.interrupts import finish_on_interrupt
from ...run.plan import AnyMethod, AnyModel, Plan, read_federation, read_task
from ...run.run import run, torch_threads
from ...run.settings import Settings
from ...run.typed_settings import RunSettings
from ...task.task import Task
from . import text as words
from .advice import Advice, Line, beaten_by_constant, candidate_line, constant_line, refuse_advice
from .client_tests import client_gains
from .decide import LOCAL, UNDECIDED, Compared, Decision, alternative, decide
from .estimate import Gain, Held
from .heterogeneity import Heterogeneity, heterogeneity
from .holdout import GIVEN, Holdout
from .options import ALWAYS, AdviceOptions, refuse
from .text import remarks, settled
from .training import FIRST, Candidate, Trainer


def advise(
    federation: Federation,
    task: AnyModel,
    methods: Sequence[AnyMethod] = (),
    *,
    quick: bool = False,
    gradients: int = 0,
    tie: float = 0.01,
    validation: str = "auto",
    directory: str | Path | None = None,
    progress: bool | Callable[[int, int, str], None] | None = None,
    **settings: Unpack[RunSettings],
) -> Advice:
    """Whether these clients should learn together, by which method, and who gains by it.

    Trains Local, FedAvg and a few personalised methods (or `methods`) with as many `gradients` per
    client each, over a grid of step sizes and several seeds, and judges them on samples that none
    was trained on: the federation's validation samples, or folds of its training samples. Test
    samples are never looked at. The rule of the choice is in docs/advise.md; `tie` is the
    smallest gain worth federating for. Settings are those of `run`, except rounds and what stops
    a run.

    `progress` draws a bar (by default in a terminal or notebook, after two seconds of work), or is
    a function of (trainings done, about how many there are, what is at work).

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=12, samples=60)
    >>> model = lambda: il.models.make("linear", (60,), 10)
    >>> advice = il.advise(federation, model, quick=True, gradients=20)
    >>> advice.metric, [row["label"] for row in advice.table]
    ('accuracy', ['local', 'fedavg', 'finetune', 'ditto', 'majority class'])
    """
    if isinstance(federation, Task | nn.Module) or isinstance(task, Federation):
        raise SettingError(
            "federation must come first, got a model; the order is (federation, task)"
        )
    whole, note = read_task(task, read_federation(federation))
    options = AdviceOptions(quick, gradients, tie, validation)
    user_settings = dict(settings)
    refuse(user_settings)
    run_settings = build(Settings, {"seeds": options.seeds, **user_settings}, "run")
    if directory is not None:
        refuse_advice(Path(directory))
    rows = _rows(methods or options.personal)
    metric = run_settings.metric or ("accuracy" if federation.classes else "loss")
    holdout = Holdout.of(federation, options.validation, run_settings.seed)
    with _reporting(progress) as report, torch_threads(run_settings.threads), warnings_once():
        steps = TrainingCounter(report, len(rows), run_settings.seeds, options.splits)
        work = Work(federation, whole, options, run_settings, user_settings, holdout, metric, steps)
        advice = work.advice(rows, [note] if note else [])
    if directory is not None:
        advice.save(directory)
    return advice


def _rows(methods: Sequence[AnyMethod]) -> list[Plan]:
    """The candidates: Local and FedAvg at their defaults, and the others."""
    if isinstance(methods, str | Method | type):
        raise SettingError(f"methods must be a list of methods, got {methods!r}")
    rows: dict[str, Plan] = {}
    for method in (*ALWAYS, *methods):
        row = Plan.of(method)
        if row.short_name == "dichotomy":
            raise SettingError(
                "methods must not include dichotomy, which decides between fedavg and local by "
                "validation data, as advise does"
            )
        rows.setdefault(Candidate(row).label, row)
    return list(rows.values())


# -- From candidates to advice: train, compare, decide, say --

clock = time.monotonic
Report = Callable[[int, int, str], None]  # trainings done, about how many there are, what was done


@dataclass
class Work:
    """What the parts of an advice share."""

    federation: Federation
    task: Task
    options: AdviceOptions
    chosen: Settings
    given: Mapping[str, Any]  # settings of the trainings, as given
    holdout: Holdout
    metric: str
    steps: TrainingCounter
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=clock)

    def advice(self, rows: list[Plan], notes: list[str]) -> Advice:
        """The whole way."""
        self.notes = [*notes, *remarks(self.federation, self.holdout, self.chosen.seeds)]
        already = settled(self.holdout, self.chosen.seeds)
        if already:
            choice, why = already
            return self._advice(Decision(choice, float(choice == UNDECIDED)), why)
        candidates = self._trained(rows)
        values = {c.label: self._values(c) for c in candidates}
        for label in [label for label, v in values.items() if np.isinf(v).any()]:
            del values[label]
            self.notes.append(f"{label} is left out: its models diverge under some seed")
        if LOCAL not in values:
            reason = "Cannot tell: Local's own models diverge at every step size that was tried."
            return self._advice(Decision(UNDECIDED, 1.0), reason)
        return self._judged([c for c in candidates if c.label in values], values)

    # -- trainings -------------------------------------------------------------------------------
    def _trained(self, rows: list[Plan]) -> list[Candidate]:
        """Every candidate under every seed, but for those that cannot be run."""
        apart = ("seed", "seeds", "threads")
        trainer = Trainer(
            self.task,
            self.holdout,
            {k: v for k, v in self.given.items() if k not in apart},
            self.chosen.seed,
            self.options.budget,
            self.metric,
            self.steps.add,
        )
        candidates = []
        with finish_on_interrupt("finishing this training, then stopping") as interrupted:

            def proceed() -> None:
                if interrupted():
                    raise interrupted.stop("stopped before the advice was complete")

            for candidate in map(Candidate, rows):
                try:
                    trainer.price(candidate)
                    candidates.append(candidate)
                except SettingError as error:
                    if candidate.name == LOCAL:
                        raise
                    self.notes.append(f"{candidate.label} is left out: {error}")
            for candidate in candidates:
                trainer.search_steps(candidate, proceed)
                self.steps.set_step_sizes(len(candidate.tried), len(candidate.kept))
            for seed in range(1, self.chosen.seeds):
                for candidate in candidates:
                    for power in candidate.kept:
                        proceed()
                        trainer.train(candidate, power, seed)
            for candidate in candidates:
                trainer.choose_steps(candidate, self.chosen.seeds)
        return candidates

    def _values(self, candidate: Candidate) -> np.ndarray:  # -> [seeds, n]
        """What each held-out sample says, higher is better; -infinity where models diverge."""
        hits, loss = candidate.scores(self.chosen.seeds, self.holdout.half)
        lost = self.holdout.mask(self.chosen.seeds) & ~np.isfinite(loss)
        return np.where(lost, -math.inf, hits if self.metric == "accuracy" else -loss)

    # -- judgement -------------------------------------------------------------------------------
    def _judged(self, candidates: list[Candidate], values: dict[str, np.ndarray]) -> Advice:
        alone = values[LOCAL]
        repeated, counted = self.holdout.kind == GIVEN, self.metric == "accuracy"
        samples = Held(self.holdout.owner, self.federation.clients, repeated, counted)
        federated = {c.label: c for c in candidates if c.bytes}  # the others send nothing
        level = samples.joint_level([values[label] - alone for label in federated])
        gains = {label: samples.gain(values[label] - alone, level) for label in federated}
        tie = self.options.tie
        if self.metric == "loss":
            tie *= abs(float(np.nanmean(alone)))

        def worse(one: str, other: str) -> bool:
            return samples.gain(values[one] - values[other]).high < 0

        compared = [
            Compared(c.label, gains[c.label], c.bytes, c.personal) for c in federated.values()
        ]
        decision = decide(compared, tie, worse)
        table = self._table(candidates, values, gains, decision.choice)
        if not federated:
            why = "Cannot tell: no candidate that federates could be trained."
            return self._advice(Decision(UNDECIDED, 1.0), why, tie=tie, table=table)
        by = decision.choice
        if by not in federated:
            by = max(gains, key=lambda label: gains[label].mean)
        lines = words.deploy(decision, gains, self.metric, tie, self.holdout.kind != GIVEN)
        trained = int((self.holdout.data.sizes("train") > 0).sum())
        clients_heard = self.chosen.sample or trained
        candidate = federated[by]
        lines.append(
            words.cost(by, candidate.bytes_up, candidate.bytes_down, clients_heard, trained)
        )
        winner = ""
        if "fedavg" in federated:
            fedavg = samples.gain(values["fedavg"] - alone)
            winner = alternative(fedavg)
            lines.append(words.alternative(winner, fedavg, self.metric))
        spread = self._heterogeneity(next(c for c in candidates if c.label == LOCAL))
        if spread is not None:
            lines.append(words.threshold(spread, winner))
        clients = client_gains(values[by] - alone, samples, self.federation.ids)
        lines.append(words.clients(clients, by))
        return self._advice(
            decision,
            *lines,
            alternative=winner,
            tie=tie,
            table=table,
            clients=clients,
            gains_of=by,
            heterogeneity=spread,
        )

    def _table(
        self,
        candidates: list[Candidate],
        values: dict[str, np.ndarray],
        gains: dict[str, Gain],
        choice: str,
    ) -> list[Line]:
        sign = 1 if self.metric == "accuracy" else -1
        table = [
            candidate_line(c, sign * float(np.nanmean(values[c.label])), gains.get(c.label))
            for c in candidates
        ]
        loss = self.task.criterion
        constant = constant_line(self.holdout, self.chosen.seeds, loss, self.metric)
        if constant is None:
            return table
        remark = beaten_by_constant(table, constant, choice, self.metric)
        self.notes += [remark] if remark else []
        return [*table, constant]

    def _heterogeneity(self, local: Candidate) -> Heterogeneity | None:
        """R^2 against the threshold, from Local's models on halves of the clients' samples."""
        s = self.chosen
        needed = 2 * 8 * 4 * self.federation.clients * self.task.d
        if needed > s.memory * 2**30:
            text = f"R² is not estimated: it takes {needed / 2**30:.2g} GiB (the setting memory)"
            self.notes.append(text)
            return None
        apart = ("seed", "seeds", "sample", "threads")
        settings = {k: v for k, v in self.given.items() if k not in apart}
        bound = self.task.under(s.numerics(s.seed))
        method = local.method(local.power)
        trained = []
        for number in range(self.options.splits):
            halves = self.holdout.halves(s.seed + number)
            result = run(
                method,
                self.task,
                halves,
                **{**settings, "rounds": local.rounds, "eval_every": 0, "seed": s.seed},
                progress=False,
            )
            rows = result.session().hosts[0].all_rows()["x"]
            trained.append((rows[:, : bound.d].cpu(), halves.to(bound.device, bound.dtype)))
            self.steps.add("halves for R²")
        estimate = heterogeneity(trained, bound, s.seed)
        if estimate is None:
            self.notes.append(
                "R² is not estimated: it takes two clients with four training samples or more"
            )
        return estimate

    def _advice(self, decision: Decision, *sentences: str, **more: Any) -> Advice:
        f = self.federation
        return Advice(
            choice=decision.choice,
            p=decision.p,
            words=list(sentences),
            notes=self.notes,
            metric=self.metric,
            title=f"{f.name}: {f.clients:,} clients, d = {self.task.d:,}",
            settings={
                "gradients": self.options.budget,
                "quick": self.options.quick,
                "tie": self.options.tie,
                "validation": self.holdout.kind,
                "seeds": self.chosen.seeds,
                "run": {k: v for k, v in self.chosen.as_dict().items() if k in self.given},
            },
            seconds=clock() - self.began,
            **more,
        )


class TrainingCounter:
    """Counts trainings; their number is an estimate, since a grid of step sizes may grow."""

    def __init__(self, report: Report | None, candidates: int, seeds: int, halves: int):
        self.report = report
        self.count = 0
        self.total = candidates * (len(FIRST) + 2 * (seeds - 1)) + halves
        self.later_seeds = seeds - 1

    def set_step_sizes(self, tried: int, trained_further: int) -> None:
        """Correct the total once the step sizes of a candidate are known."""
        self.total += tried - len(FIRST) + (trained_further - 2) * self.later_seeds

    def add(self, what: str) -> None:
        """One training has ended."""
        self.count += 1
        if self.report:
            self.report(self.count, max(self.total, self.count), what)


@contextmanager
def _reporting(progress: bool | Report | None) -> Iterator[Report | None]:
    """What trainings are reported to: the user's function, a bar, or nothing."""
    if progress is not None and callable(progress):
        yield progress
        return
    with Meter(1, style_of(progress), "trainings", estimated=True) as meter:
        yield lambda count, total, what: meter.update(count, what, total=total)
