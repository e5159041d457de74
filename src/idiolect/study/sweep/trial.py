"""One run of a sweep, with one seed: a job that any process of this machine can do."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...core.documents import plain
from ...core.knobs import build
from ...data.federation import Federation
from ...data.shared import SharedData
from ...method import Method
from ...run.callbacks import Callback
from ...run.identity import identity_of
from ...run.result import Result
from ...run.run import run
from ...run.settings import Settings
from ...task.task import Task
from ..many import shared
from .global_rounds import GlobalRounds

FORMAT = 1  # of stored results: a change in what they mean makes the old ones void


def _valid_by_client(result: Result) -> list[float]:
    """The figure that settings are chosen by, on every client's validation data."""
    chosen = result.record.settings.get("metric")
    unknown = math.isnan(result.record.seeds[0].final["valid"]["accuracy"])
    measure = chosen or ("loss" if unknown else "accuracy")
    return [row[f"valid_{measure}"] for row in result.clients_table()]


KEPT: dict[str, Callable[[Result], list[Any]]] = {  # what a summary leaves out
    "by_round": Result.rounds_table,
    "by_client": Result.clients_table,
    "valid_by_client": _valid_by_client,
}
GLOBAL = "global_by_round"  # the global model in every evaluated round: it is watched, see there


@dataclass
class Stock:
    """What all trials have in common: data and models by name."""

    data: dict[str, Federation | SharedData]
    tasks: dict[str, Task]
    opened: dict[str, Federation] = field(default_factory=dict)

    def federation(self, name: str) -> Federation:
        """Data by name; opened once per process."""
        if name not in self.opened:
            found = self.data[name]
            self.opened[name] = found.open() if isinstance(found, SharedData) else found
        return self.opened[name]

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "tasks": self.tasks, "opened": {}}


@dataclass(frozen=True, eq=False)
class Setting:
    """What the runs of a sweep with several seeds have in common."""

    method: Method
    run: dict[str, Any]  # settings, but for the seed
    data: str  # names of a `Stock`
    task: str
    name: str  # of the method
    varied: dict[str, Any]  # by the grid: name -> value

    @property
    def label(self) -> str:
        """A few words: the method, and what is varied."""
        return " ".join([self.name, *(f"{k}={_text(v)}" for k, v in self.varied.items())])

    def digest(self, task: Task, federation: Federation) -> str:
        """Of everything that its results depend on, but for the seed."""
        settings = build(Settings, self.settings(0), "run")
        identity = identity_of(self.method, task, federation, settings)
        del identity["id"]
        text = json.dumps([FORMAT, plain(identity), self.label], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def settings(self, seed: int) -> dict[str, Any]:
        """Of the run with a seed. One thread by default: a result depends on no number of jobs."""
        return {"threads": 1, **self.run, "seed": seed, "seeds": 1}


@dataclass(frozen=True, eq=False)
class Trial:
    """One run of a sweep."""

    setting: Setting
    seed: int
    digest: str  # of everything that the result depends on, but for the seed
    keep: tuple[str, ...] = ()  # names of `KEPT`, or `GLOBAL`: more than the summary

    def key(self) -> str:
        return "-".join([self.digest, str(self.seed), *self.keep])

    def cost(self) -> float:
        """Rounds: what is known before it has run."""
        return float(build(Settings, self.setting.settings(self.seed), "run").rounds)

    def describe(self) -> str:
        return f"{self.setting.label} seed={self.seed}"

    def train(self) -> dict[str, Any]:
        return self.trained()

    def trained(self, on_evaluate: Callback | None = None) -> dict[str, Any]:
        """The run itself; `on_evaluate` as in `run`."""
        stock = shared()
        assert isinstance(stock, Stock)
        given = self.setting.settings(self.seed)
        began = time.process_time()
        federation = stock.federation(self.setting.data)
        task = stock.tasks[self.setting.task]
        watched = GlobalRounds(task, federation) if GLOBAL in self.keep else None
        watch: dict[str, Any] = {"progress": False, "on_evaluate": watched or on_evaluate}
        result = run(self.setting.method, task, federation, **watch, **given)
        kept = {name: KEPT[name](result) for name in self.keep if name != GLOBAL}
        if watched:
            kept[GLOBAL] = watched.rows
        return {**result.summary(), **kept, "cpu_seconds": time.process_time() - began}


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
