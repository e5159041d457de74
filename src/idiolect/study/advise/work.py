"""From candidates to advice: train, compare, decide, say."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...core.knobs import SettingError
from ...data.federation import Federation
from ...run.interrupts import finish_on_interrupt
from ...run.run import run
from ...run.settings import Settings
from ...task.task import Task
from ..compare import Row
from . import words
from .advice import Advice
from .asking import Asking
from .clients import client_gains
from .decision import LOCAL, UNDECIDED, Compared, Decision, alternative, decide
from .estimate import Gain, Held
from .heterogeneity import Heterogeneity, heterogeneity
from .holdout import GIVEN, Holdout
from .lines import Line, beaten_by_constant, candidate_line, constant_line
from .obstacles import remarks, settled
from .progress import Steps
from .training import Candidate, Trainer

clock = time.monotonic


@dataclass
class Work:
    """What the parts of an advice share."""

    federation: Federation
    task: Task
    asking: Asking
    chosen: Settings
    given: Mapping[str, Any]  # settings of the trainings, as given
    holdout: Holdout
    metric: str
    steps: Steps
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=clock)

    def advice(self, rows: list[Row], notes: list[str]) -> Advice:
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
            said = "Cannot tell: Local's own models diverge at every step size that was tried."
            return self._advice(Decision(UNDECIDED, 1.0), said)
        return self._judged([c for c in candidates if c.label in values], values)

    # -- trainings -------------------------------------------------------------------------------
    def _trained(self, rows: list[Row]) -> list[Candidate]:
        """Every candidate under every seed, but for those that cannot be run."""
        apart = ("seed", "seeds", "threads")
        trainer = Trainer(
            self.task,
            self.holdout,
            {k: v for k, v in self.given.items() if k not in apart},
            self.chosen.seed,
            self.asking.budget,
            self.metric,
            self.steps.done,
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
                self.steps.kept(len(candidate.tried), len(candidate.kept))
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
        held = Held(self.holdout.owner, self.federation.clients, repeated, counted)
        federated = {c.label: c for c in candidates if c.bytes}  # the others send nothing
        level = held.joint_level([values[label] - alone for label in federated])
        gains = {label: held.gain(values[label] - alone, level) for label in federated}
        tie = self.asking.tie
        if self.metric == "loss":
            tie *= abs(float(np.nanmean(alone)))

        def worse(one: str, other: str) -> bool:
            return held.gain(values[one] - values[other]).high < 0

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
        said = words.deploy(decision, gains, self.metric, tie, self.holdout.kind != GIVEN)
        trained = int((self.holdout.data.sizes("train") > 0).sum())
        heard = self.chosen.sample or trained
        chosen = federated[by]
        said.append(words.cost(by, chosen.bytes_up, chosen.bytes_down, heard, trained))
        found = ""
        if "fedavg" in federated:
            fedavg = held.gain(values["fedavg"] - alone)
            found = alternative(fedavg)
            said.append(words.alternative(found, fedavg, self.metric))
        spread = self._heterogeneity(next(c for c in candidates if c.label == LOCAL))
        if spread is not None:
            said.append(words.threshold(spread, found))
        clients = client_gains(values[by] - alone, held, self.federation.ids)
        said.append(words.clients(clients, by))
        return self._advice(
            decision,
            *said,
            alternative=found,
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
        for number in range(self.asking.splits):
            halves = self.holdout.halves(s.seed + number)
            result = run(
                method,
                self.task,
                halves,
                **{**settings, "rounds": local.rounds, "eval_every": 0, "seed": s.seed},
                progress=False,
            )
            rows = result.session().hosts[0].store.read(torch.arange(halves.clients))["x"]
            trained.append((rows[:, : bound.d].cpu(), halves.to(bound.device, bound.dtype)))
            self.steps.done("halves for R²")
        found = heterogeneity(trained, bound, s.seed)
        if found is None:
            self.notes.append(
                "R² is not estimated: it takes two clients with four training samples or more"
            )
        return found

    def _advice(self, decision: Decision, *said: str, **more: Any) -> Advice:
        f = self.federation
        return Advice(
            choice=decision.choice,
            p=decision.p,
            words=list(said),
            notes=self.notes,
            metric=self.metric,
            title=f"{f.name}: {f.clients:,} clients, d = {self.task.d:,}",
            settings={
                "gradients": self.asking.budget,
                "quick": self.asking.quick,
                "tie": self.asking.tie,
                "validation": self.holdout.kind,
                "seeds": self.chosen.seeds,
                "run": {k: v for k, v in self.chosen.as_dict().items() if k in self.given},
            },
            seconds=clock() - self.began,
            **more,
        )
