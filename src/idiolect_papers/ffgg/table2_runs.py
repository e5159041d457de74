"""The three steps of the FFGG paper as jobs: pre-train, personalise, fine-tune the private part.

A job is a data set with a seed: one shared model is pre-trained, and every row of the table goes on
from it. Where several step sizes are given, validation data choose, and test data are not there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from idiolect import data, models
from idiolect.data.federation import Federation
from idiolect.method import Method
from idiolect.methods.fedalt import FedAlt, FedSim
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.ffgg import Ffgg, LocalFfgg
from idiolect.methods.local import Local
from idiolect.run.result import Result
from idiolect.run.run import run
from idiolect.run.session import Start
from idiolect.study.split_candidates import Candidate
from idiolect.study.tune.withheld import without_test
from idiolect.task.task import Task

from ..known_words import known_words
from ..runs import Work
from .published import EPOCHS, TABLE3

SPLITS = {"Input Layer": "input", "Output Layer": "output", "Adapter": "adapter"}
FFGG, SHARED = "FFGG", "FFGG from the shared model"
FEDALT, FEDSIM = "FedAlt (Stateless)", "FedSim (Stateless)"
FINETUNED = "FedAvg, all fine-tuned"
FEDAVG, LOCAL = "FedAvg", "Local Training"
FAMILIES: dict[str, Callable[[str, float], Method]] = {  # of step 2: (part, step size)
    FFGG: lambda part, lr: LocalFfgg(
        part=part, lr=lr, private_lr=lr, epochs=1, local_epochs=1, start="random"
    ),
    SHARED: lambda part, lr: LocalFfgg(
        part=part, lr=lr, private_lr=lr, epochs=1, local_epochs=1, start="common"
    ),
    FEDALT: lambda part, lr: FedAlt(part=part, lr=lr, private_lr=lr, epochs=1, stateful=False),
    FEDSIM: lambda part, lr: FedSim(part=part, lr=lr, private_lr=lr, epochs=1, stateful=False),
}


@dataclass(frozen=True)
class Case:
    """A data set, its model, and which column of Table 3 it is trained by."""

    data: str
    column: str
    options: tuple[tuple[str, Any], ...] = ()
    model: str = "mlp"
    model_options: tuple[tuple[str, Any], ...] = ()
    known: bool = False  # only known words are to be predicted
    rank: int = 4  # of adapters
    adapter: str = "low-rank"
    as_printed: bool = False  # server's optimiser, schedule, clipping, clients per round, batch
    rounds: tuple[int, int] = (0, 0)  # of steps 1 and 2; 0: as printed
    sample: int = 10  # the next two: where it is not as printed
    batch: int = 32

    def load(self) -> Federation:
        federation = data.load(self.data, **dict(self.options))
        return known_words(federation) if self.known else federation

    def task(self, federation: Federation) -> Task:
        own = dict(self.model_options)
        return Task(partial(models.make, self.model, federation.shape, federation.classes, **own))

    def settings(self, step: int) -> dict[str, Any]:
        """Of step 1 or 2."""
        printed = TABLE3[self.column]
        rounds = self.rounds[step - 1] or printed["rounds"][step - 1]
        if not self.as_printed:
            return {"rounds": rounds, "sample": self.sample, "batch": self.batch}
        warmup = max(1, round(printed["warmup"] * rounds))
        linear = f"warmup:{warmup}*linear"
        return {
            "rounds": rounds,
            "sample": printed["sample"],
            "batch": printed["batch"],
            "server_optimizer": printed["server_optimizer"],
            "server_lr": printed["server_lr"][step - 1],
            "schedule": linear if printed["schedule"] == "linear" else printed["schedule"],
            "clip": printed["clip"],
        }


@dataclass(frozen=True)
class Pipelines(Work):
    """All rows of the table for a data set and a seed."""

    case: Case
    seed: int
    first: tuple[float, ...]  # step sizes of step 1 to choose from
    rates: tuple[tuple[str, tuple[float, ...]], ...]  # of step 2, by row
    directory: str = ""  # runs are stored there, so that a stopped one goes on; "": not at all

    @property
    def chooses(self) -> bool:
        """Whether there is a step size to choose."""
        return len(self.first) > 1 or any(len(rates) > 1 for _, rates in self.rates)

    def cost(self) -> float:
        tried = len(self.first) * self.case.settings(1)["rounds"]
        return tried + 3 * sum(len(r) for _, r in self.rates) * self.case.settings(2)["rounds"]

    def describe(self) -> str:
        return f"{self.case.data} seed {self.seed}"

    def train(self) -> dict[str, Any]:
        began = time.process_time()
        federation = self.case.load()
        if self.chooses:
            federation = without_test(federation)
        task = self.case.task(federation)
        begun = [self._begun(task, federation, lr) for lr in self.first]
        best = max(range(len(begun)), key=lambda i: _valid(begun[i]))
        out: dict[str, Any] = {"first": self.first[best], "rows": {}}
        shared = _figures(begun[best])
        for row, rates in self.rates:
            tried = {}
            for lr in rates:
                found = self._row(row, lr, task, federation, begun[best])
                tried[lr] = {"lr": lr, "start": shared["test"], **found}
            out["rows"][row] = max(tried.values(), key=lambda f: _number(f["valid"]))
        if not self.chooses:
            hits = federation.majority_hits("test").sum() / federation.class_counts("test").sum()
            out |= {"majority": float(hits), "clients": federation.clients, "d": task.d}
        return out | {"seconds": time.process_time() - began}

    def _begun(self, task: Task, federation: Federation, lr: float) -> Result:
        """Step 1."""
        return self._run(f"step1-{lr:g}", FedAvg(lr=lr, epochs=1), task, federation, 1)

    def _row(
        self, row: str, lr: float, task: Task, federation: Federation, begun: Result
    ) -> dict[str, Any]:
        """What a row of the table reaches with this step size, after steps 2 and 3."""
        if row == FEDAVG:
            return {**_figures(begun), "personalised": None}
        if row == LOCAL:
            return self._local(lr, task, federation)
        session = begun.session(self.seed)
        x0 = session.server.handover()
        assert x0 is not None  # FedAvg has a shared model
        if row == FINETUNED:
            alone = Local(lr=lr, epochs=EPOCHS)  # five epochs from the shared model
            more = {"rounds": 1, "batch": self.case.settings(2)["batch"]}
            last = self._run(f"{row}-{lr:g}", alone, task, federation, 0, Start(x0.clone()), more)
            return {**_figures(last), "personalised": None}
        family, split = row.rsplit(": ", 1)
        part = SPLITS[split]
        if part == "adapter":
            one = Candidate(part, (), self.case.rank, self.case.adapter)
            bound, _, x0 = one.on(session.contract.task, x0)
            task = Task(bound.module, task.criterion)
        name = f"{row}-{lr:g}"
        method = FAMILIES[family](part, lr)
        second = self._run(name, method, task, federation, 2, Start(x0.clone()))
        w = second.session(self.seed).server.handover()
        assert w is not None
        start = "random" if family == FFGG else "common"
        last = self._finetuned(name, part, start, lr, task, federation, Start(w.clone()))
        return {
            **_figures(last),
            "personalised": _figures(second)["test"],
            "bytes": sum(second.summary()["bytes"].values()),
        }

    def _finetuned(
        self,
        name: str,
        part: str,
        start: str,
        lr: float,
        task: Task,
        federation: Federation,
        begin: Start,
    ) -> Result:
        """Step 3: some epochs on the private part alone, which no server hears of."""
        method = Ffgg(part=part, start=start, private_lr=lr, epochs=EPOCHS)
        more = {"rounds": 0}
        return self._run(f"{name}-step3", method, task, federation, 2, begin, more)

    def _local(self, lr: float, task: Task, federation: Federation) -> dict[str, Any]:
        """As many passes over its data as a client makes on average in all three steps."""
        spent = 0.0
        for step, passes in ((1, 1), (2, 3)):  # Local FFGG: one pass alone, then two in turn
            own = self.case.settings(step)
            heard = min(own["sample"], federation.clients) / federation.clients
            spent += passes * own["rounds"] * heard
        rounds = round(spent) + EPOCHS
        method = Local(lr=lr, epochs=1)
        plain = {"rounds": rounds, "batch": self.case.settings(1)["batch"]}
        result = self._run(f"local-{lr:g}", method, task, federation, 0, None, plain)
        return {**_figures(result), "personalised": None}

    def _run(
        self,
        name: str,
        method: Method,
        task: Task,
        federation: Federation,
        step: int,
        begin: Start | None = None,
        more: dict[str, Any] | None = None,
    ) -> Result:
        settings = {**(self.case.settings(step) if step else {}), **(more or {})}
        if "sample" in settings:
            settings["sample"] = min(settings["sample"], federation.clients)
        path = Path(self.directory) / self.key() / name.replace("/", "-")
        return run(
            method,
            task,
            federation,
            directory=path if self.directory else None,
            resume=bool(self.directory) and (path / "settings.json").exists(),
            start={self.seed: begin} if begin else None,
            seed=self.seed,
            threads=1,
            eval_every=0,
            progress=False,
            **settings,
        )


def all_rows() -> list[str]:
    """The rows that are run, in order."""
    split = [f"{family}: {name}" for family in FAMILIES for name in SPLITS]
    return [FEDAVG, LOCAL, *split, FINETUNED]


def fixed(rates: Sequence[float]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """The same step sizes for every row."""
    return tuple((row, (rates[0],) if row == FEDAVG else tuple(rates)) for row in all_rows())


def _figures(result: Result) -> dict[str, Any]:
    summary = result.summary()
    return {
        "test": summary["accuracy"]["mean"],
        "valid": summary["valid"]["accuracy"]["mean"],
        "train": summary["train"]["accuracy"]["mean"],
        "gradients": summary["gradients_per_client"],
    }


def _valid(result: Result) -> float:
    return _number(_figures(result)["valid"])


def _number(value: float | None) -> float:
    return -math.inf if value is None else value
