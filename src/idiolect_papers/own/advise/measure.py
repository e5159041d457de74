"""One case: what is advised, and what is true."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from idiolect.data.federation import Federation
from idiolect.methods import make_method
from idiolect.run.identity import package_source
from idiolect.run.result import Result
from idiolect.run.run import run
from idiolect.study.advise.advice import Advice
from idiolect.study.advise.advise import advise
from idiolect.task.task import Task

from .cases import Case

METHODS = ("finetune", "ditto")  # beside local and fedavg
TRUTH_SEEDS = 3
FIRST = 100  # seed of the truth's trainings: others than those of the advice


@dataclass(frozen=True)
class CaseJob:
    """A case and what is spent on it; a job of `run.grid`."""

    case: Case
    gradients: int
    seeds: int

    def key(self) -> str:
        parts = [asdict(self), METHODS, TRUTH_SEEDS, package_source()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def cost(self) -> float:
        return self.case.clients * self.case.samples + 2000

    def describe(self) -> str:
        return self.case.title()

    def train(self) -> dict[str, Any]:
        """The advice, and the truth of the same candidates."""
        began = time.process_time()
        federation, task = self.case.load()
        advice = advise(
            federation,
            task,
            METHODS,
            gradients=self.gradients,
            seeds=self.seeds,
            metric=self.case.metric,
            threads=1,
            progress=False,
        )
        spent = time.process_time() - began
        h = advice.heterogeneity
        return {
            "choice": advice.choice,
            "alternative": advice.alternative,
            "p": advice.p,
            "advised": {r["method"]: [r["gain"], r["low"], r["high"]] for r in advice.table},
            "ratio": None if h is None else [h.ratio, h.low, h.high],
            "side": "" if h is None else h.side,
            "told": {key: len(ids) for key, ids in advice.gains.items()},
            **self._truth(advice, federation, task),
            "cpu": round(spent, 1),
        }

    def _truth(self, advice: Advice, federation: Federation, task: Task) -> dict[str, Any]:
        """What each candidate reaches on the test set, trained on all training samples.

        And the standard error of its difference to Local on as many samples as there are to train
        on.
        """
        values = {}
        for row in advice.table:
            if not row["fields"]:
                continue  # a constant answer
            result = run(
                make_method(row["method"], **row["fields"]),
                task,
                federation,
                rounds=row["rounds"],
                sample=federation.clients,
                seed=FIRST,
                seeds=TRUTH_SEEDS,
                eval_every=0,
                threads=1,
                progress=False,
            )
            values[row["method"]] = _values(result, self.case.metric)
        samples = int(federation.sizes("train").sum())
        errors = {m: (v - values["local"]).std() / samples**0.5 for m, v in values.items()}
        return {
            "truth": {m: float(v.mean()) for m, v in values.items()},
            "errors": {m: float(e) for m, e in errors.items()},
        }


def _values(result: Result, metric: str) -> np.ndarray:  # -> [n]
    """Hit or loss of each test sample, the mean over seeds."""
    found = []
    for seed in result.seeds:
        session = result.session(seed.seed)
        message = session.server.message(session.server.version)
        hits, loss = session.hosts[0].each_sample(session.server.version, message, "test")
        found.append((hits if metric == "accuracy" else loss).numpy())
    return np.mean(found, axis=0)
