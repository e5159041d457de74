"""One run of the grid: a federation, a method with its fields, a seed."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

from idiolect.core.knobs import build
from idiolect.method import Method
from idiolect.methods import make_method
from idiolect.methods.partial import SplitMethod
from idiolect.run.run import run
from idiolect.run.settings import Settings, fixed_on_resume

from .federations import KINDS, loaded, task_of

FORMAT = 1  # of the stored runs: a change in what a run means makes the old ones void
ROUNDS = 50


@dataclass(frozen=True)
class Run:
    """A run, and the part of the data that its figure is about: "valid" or "test"."""

    federation: str
    method: str
    fields: tuple[tuple[str, Any], ...]
    seed: int  # of the data and of the run
    part: str = "valid"
    rounds: int = ROUNDS

    def make(self) -> Method:
        return make_method(self.method, **dict(self.fields))

    def settings(self) -> dict[str, Any]:
        heard = 0 if self.make().traits.hears_all else KINDS[self.federation].heard
        given = {"rounds": self.rounds, "sample": heard, "seed": self.seed, "eval_every": 0}
        return build(Settings, {**given, "threads": 1}, "run").as_dict()

    def key(self) -> str:
        method = self.make()
        named = {"rounds", *fixed_on_resume()}
        settings = {k: v for k, v in self.settings().items() if k in named}
        kind = {"options": KINDS[self.federation].options, "title": self.federation}
        parts = [FORMAT, kind, type(method).__name__, method.as_dict(), settings, self.part]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def train(self) -> dict[str, Any]:
        began = time.process_time()
        method = self.make()
        federation = loaded(self.federation, self.seed)
        task = task_of(self.federation, isinstance(method, SplitMethod))
        summary = run(method, task, federation, progress=False, **self.settings()).summary()
        found = summary if self.part == "test" else summary["valid"]
        return {
            "accuracy": round(found["accuracy"]["mean"] or 0.0, 4),  # none: it has diverged
            "gradients": round(summary["gradients_per_client"], 1),
            "bytes": summary["bytes"]["up"] + summary["bytes"]["down"],
            "cpu": round(time.process_time() - began, 2),
        }

    def cost(self) -> float:
        """In runs of FedAvg: a method that trains everyone takes about as long as four of them."""
        return 4 if self.make().traits.trains == "everyone" else 1

    def describe(self) -> str:
        fields = ",".join(f"{name}={value}" for name, value in self.fields)
        return f"{self.federation}: {self.method}:{fields}, {self.part}, seed {self.seed}"
