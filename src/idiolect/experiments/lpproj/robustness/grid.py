"""The grid of the paper: methods, attacks and federations, and the run behind each of its cells."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from .... import data, models
from ....core.knobs import build
from ....data.federation import Federation
from ....method import Method
from ....methods import make_method
from ....run.result import Result
from ....run.run import run
from ....run.settings import Settings, fixed_on_resume
from ....task.task import Task

FORMAT = 2  # of the stored runs: a change in what a run means makes the old ones void
ROUNDS = 200
SEEDS = 2
CLIENTS = 100
EVERY = 20  # rounds between looks at whether the models have collapsed


@dataclass(frozen=True)
class Competitor:
    """A row of the tables: a method, its fields, and the server's rule."""

    method: str
    fields: dict[str, Any]
    rule: str = "mean"  # {f}: the number of malicious clients that the rule is told
    sends: bool = True  # False: no attack reaches its benign clients, they are those of a clean run

    def make(self) -> Method:
        return make_method(self.method, **self.fields)


@dataclass(frozen=True)
class Threat:
    """A table of the paper: an attack, and the shares of malicious clients it is run with."""

    attack: str
    shares: tuple[float, ...] = (0.1, 0.2, 0.5, 0.8)


_FEDAVG = {"lr": 0.5, "steps": 1}
_DITTO = {"lam": 0.1, "lr": 0.1, "personal_lr": 0.1, "steps": 5, "personal_steps": 20}
_RSA = {"lam": 0.1, "lr": 0.1, "personal_lr": 0.1, "steps": 20, "server_step": "sum-new"}
_LP_PROJ = {
    "dim": 21,
    "lam": 0.1,
    "lr": 0.1,
    "personal_lr": 0.1,
    "alternations": 1,
    "steps": 20,
    "nu": 1e-10,
}
METHODS = {
    # as many gradients as lp-proj at most
    "Local": Competitor("local", {"lr": 0.1, "steps": 20}, sends=False),
    "Ditto": Competitor("ditto", _DITTO),
    "Global+Mean": Competitor("fedavg", _FEDAVG),
    "Global+Median": Competitor("fedavg", _FEDAVG, "median"),
    "Global+Krum": Competitor("fedavg", _FEDAVG, "krum(f={f})"),
    "RSA": Competitor("rsa", _RSA),
    "lp-proj-1": Competitor("lp-proj-1", _LP_PROJ),
    "lp-proj-2": Competitor("lp-proj-2", _LP_PROJ),
}
ATTACKS = {
    "same-value": Threat("same-value(std=100)"),
    "sign-flip": Threat("sign-flip(std=10)"),
    "gaussian": Threat("gaussian(std=100)"),
    "data-poison": Threat("data-poison(std=20)", (0.02, 0.05, 0.1, 0.2)),
}
FEDERATIONS: dict[str, dict[str, float]] = {
    "Synthetic(0, 0)": {"alpha": 0.0, "beta": 0.0},
    "Synthetic(1, 1)": {"alpha": 1.0, "beta": 1.0},
}


def heard_per_round(clients: int) -> int:
    """A tenth of the clients, at least one."""
    return max(1, round(0.1 * clients))


def percent(share: float) -> str:
    """A share as the page shows it.

    >>> percent(0.02)
    '2 %'
    """
    return f"{100 * share:.0f} %"


@dataclass(frozen=True)
class CellJob:
    """One run: a cell of the grid and a seed.

    A cell without malicious clients has attack "none" and serves the tables of all attacks.
    """

    federation: str
    method: str
    attack: str
    share: float
    seed: int
    rounds: int = ROUNDS
    clients: int = CLIENTS

    @property
    def cell(self) -> tuple[str, str, str, float]:
        return self.federation, self.method, self.attack, self.share

    def settings(self) -> dict[str, Any]:
        heard = heard_per_round(self.clients)
        expected = int(heard * self.share + 1e-9)
        most = max(0, (heard - 3) // 2)  # that Krum can be told: n >= 2 f + 3
        given = {
            "rounds": self.rounds,
            "sample": heard,
            "seed": self.seed,
            "eval_every": min(EVERY, self.rounds),
            "rule": METHODS[self.method].rule.format(f=min(expected, most)),
            "attack": ATTACKS[self.attack].attack if self.share else "none",
            "malicious": self.share,
            "threads": 1,
        }
        return build(Settings, given, "run").as_dict()

    def key(self) -> str:
        competitor = METHODS[self.method]
        options = {**FEDERATIONS[self.federation], "clients": self.clients}
        fields = competitor.make().as_dict()
        named = {"rounds", *fixed_on_resume()}
        settings = {k: v for k, v in self.settings().items() if k in named}
        parts = [FORMAT, options, competitor.method, fields, settings]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def train(self) -> dict[str, Any]:
        """The final test accuracy of the benign clients."""
        began = time.process_time()
        if self.share and not METHODS[self.method].sends:
            return self._untouched() | {"cpu": round(time.process_time() - began, 2)}
        result = self._run()
        summary = result.summary()
        clients = result.clients_table()
        out = {
            "accuracy": round(summary["accuracy"]["mean"], 6),
            "variance": round(summary["accuracy"]["variance"], 6),
            "collapsed": summary["collapsed"][0],
            "cpu": round(time.process_time() - began, 2),
            "malicious": [k for k, row in enumerate(clients) if row["malicious"]],
        }
        if not self.share:  # to ask later how the same clients do when nobody is malicious
            out["by_client"] = [round(row["test_accuracy"], 4) for row in clients]
        return out

    def _run(self, **changes: Any) -> Result:
        method = METHODS[self.method].make()
        federation = _data(self.federation, self.clients)
        return run(method, _task(), federation, progress=False, **self.settings() | changes)

    def _untouched(self) -> dict[str, Any]:
        """The clients that are benign here, in the clean run."""
        malicious = [row["malicious"] for row in self._run(rounds=0).clients_table()]
        clients, collapsed = _clean(replace(self, attack="none", share=0.0))
        rows = [row for row, lies in zip(clients, malicious, strict=True) if not lies]
        each = np.array([row["test_accuracy"] for row in rows])
        samples = [row["test_samples"] for row in rows]
        return {
            "accuracy": round(float(np.average(each, weights=samples)), 6),
            "variance": round(float(each.var()), 6),
            "collapsed": collapsed,
            "malicious": [k for k, lies in enumerate(malicious) if lies],
        }

    def cost(self) -> float:
        """In runs of FedAvg: a method that trains everyone takes about as long as eight of them."""
        if self.share and not METHODS[self.method].sends:
            return 0.1
        return 8 if METHODS[self.method].make().trains == "everyone" else 1

    def describe(self) -> str:
        return f"{self.title()}, seed {self.seed}, {self.rounds} rounds, {self.clients} clients"

    def title(self) -> str:
        """The cell in words.

        >>> CellJob("Synthetic(0, 0)", "RSA", "sign-flip", 0.1, seed=0).title()
        'Synthetic(0, 0): RSA, sign-flip 10 %'
        """
        threat = f"{self.attack} {percent(self.share)}" if self.share else "clean"
        return f"{self.federation}: {self.method}, {threat}"


@lru_cache(maxsize=4)
def _data(title: str, clients: int) -> Federation:
    return data.load("synthetic", **FEDERATIONS[title], clients=clients)


@lru_cache(maxsize=4)
def _clean(job: CellJob) -> tuple[list[dict[str, Any]], int | None]:
    """Its clients at the end, and the round from which on it has collapsed."""
    result = job._run()
    return result.clients_table(), result.summary()["collapsed"][0]


@lru_cache(maxsize=1)
def _task() -> Task:
    return Task(partial(models.make, "linear", (60,), 10))


def jobs(
    federations: Iterable[str],
    methods: Sequence[str],
    attacks: Sequence[str],
    seeds: int,
    rounds: int,
    clients: int,
) -> Iterator[CellJob]:
    """Every run of the grid, the clean ones once."""
    attacked = [(attack, share) for attack in attacks for share in ATTACKS[attack].shares]
    for federation in federations:
        for method in methods:
            for attack, share in [("none", 0.0), *attacked]:
                for seed in range(seeds):
                    yield CellJob(federation, method, attack, share, seed, rounds, clients)
