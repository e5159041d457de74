"""Two versions of the package against each other, figure by figure: has it become slower?

    python -m benchmarks.against /path/to/the/older/src src
    python -m benchmarks.against OLD NEW --only evaluation --passes 5
    python -m benchmarks.against OLD NEW --only "run of 25" --passes 6

Each version works in a process of its own, on one thread. They take turns: a measurement by the
one, the same by the other, and so on, in several pairs of processes. What a busy machine does to
the one it does to the other, and the least CPU time of each part of a figure counts. A ratio above
1 means that the new version is slower.

Only what both versions offer is used: `idiolect.run` with its progress callback, which is called
after every round. Round i has the same clients and batches in both, so it is compared with round i.
Where other work fills the machine, repeat until the ratios stay: 1 or 2 % are within its noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

PASSES = 3  # pairs of processes
TRIES = 3  # turns of each process per figure
WARM = 1  # rounds that are not counted
LIMIT = 1.03  # a ratio above this is marked

Parts = dict[str, float]  # part of a figure -> CPU seconds; only like-named parts are compared


@dataclass(frozen=True)
class Clients:
    """Gaussian clouds around one centre per class."""

    count: int
    shape: tuple[int, ...]
    train: int  # samples per client
    test: int
    unbalanced: bool = False  # from an eighth to three times as many samples

    def federation(self) -> Any:
        return _federation(self)


@lru_cache(maxsize=1)
def _federation(clients: Clients) -> Any:
    import numpy as np
    import torch

    import idiolect

    rng = np.random.default_rng(0)
    factor = np.geomspace(1 / 8, 3, clients.count) if clients.unbalanced else np.ones(clients.count)
    rng.shuffle(factor)
    train = np.ceil(clients.train * factor).astype(int)
    test = np.ceil(clients.test * factor).astype(int)
    owner = np.repeat(np.arange(clients.count), train + test)
    split = np.concatenate([["train"] * a + ["test"] * b for a, b in zip(train, test, strict=True)])
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(10, (len(owner),), generator=generator)
    centres = 0.3 * torch.randn(10, *clients.shape, generator=generator)
    inputs = torch.randn(len(owner), *clients.shape, generator=generator).add_(centres[targets])
    return idiolect.Federation.from_arrays(inputs, targets, owner, split=split)


@dataclass(frozen=True)
class Rounds:
    """Whole rounds of a run; also what the run takes before its first and after its last round."""

    name: str
    method: str  # a class of idiolect
    clients: Clients
    model: str
    options: dict[str, Any] = field(default_factory=dict)  # of the method
    settings: dict[str, Any] = field(default_factory=dict)
    rounds: int = 5

    def prepare(self) -> Callable[[], Parts]:
        import torch

        import idiolect

        federation = self.clients.federation()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = idiolect.models.make(self.model, self.clients.shape, 10)
        method = getattr(idiolect, self.method)(**self.options)
        settings = {"rounds": self.rounds, "batching": "epochs", "sample": 10, **self.settings}

        def measure() -> Parts:
            marks = []
            began = time.process_time()
            idiolect.run(
                method,
                idiolect.Task(module),
                federation,
                progress=lambda *_: marks.append(time.process_time()),
                **settings,
            )
            ended = time.process_time()
            each = {str(i): marks[i] - marks[i - 1] for i in range(WARM, self.rounds)}
            return each | {"rest": ended - began - (marks[-1] - marks[0])}

        return measure


@dataclass(frozen=True)
class Gradient:
    """The gradient of a cohort."""

    name: str
    rows: int
    shape: tuple[int, ...]
    model: str
    calls: int
    batch: int = 64

    def prepare(self) -> Callable[[], Parts]:
        import torch

        import idiolect

        try:
            from idiolect.task.batches import Batch
        except ImportError:  # before the package had rooms
            from idiolect.batches import Batch
        torch.manual_seed(0)
        task = idiolect.Task(idiolect.models.make(self.model, self.shape, 10))
        x = task.x0.repeat(self.rows, 1)
        batch = Batch(
            torch.rand(self.rows, self.batch, *self.shape),
            torch.randint(10, (self.rows, self.batch)),
            torch.full((self.rows, self.batch), 1 / self.batch),
            torch.zeros(self.rows, dtype=torch.int64),
        )

        def measure() -> Parts:
            least = float("inf")
            for _ in range(5):
                began = time.process_time()
                for _ in range(self.calls):
                    task.grad(x, batch)
                least = min(least, time.process_time() - began)
            return {"0": least / self.calls}

        return measure


@dataclass(frozen=True)
class WholeRun:
    """A whole run, from the call to its result: ten clients, a small network, the defaults."""

    name: str
    method: str  # as in the table of methods
    rounds: int = 25

    def prepare(self) -> Callable[[], Parts]:
        import torch

        import idiolect

        federation = idiolect.data.load("synthetic", clients=10, samples=600)
        module = torch.nn.Sequential(
            torch.nn.Linear(60, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10)
        )
        cls, options = idiolect.METHODS[self.method]
        method = cls(**options)
        sample = 0 if getattr(method, "traits", method).hears_all else 5

        def measure() -> Parts:
            began = time.process_time()
            task = idiolect.Task(module)
            idiolect.run(method, task, federation, rounds=self.rounds, sample=sample)
            return {"0": time.process_time() - began}

        return measure


IMAGES = Clients(100, (784,), 434, 109)
UNEVEN = Clients(100, (784,), 434, 109, unbalanced=True)
SMALL = Clients(100, (60,), 202, 63)
COLOUR = Clients(100, (3, 32, 32), 200, 50)
MANY = Clients(10_000, (60,), 40, 10)
PASS = {"epochs": 1}
ONE_STEP = {"steps": 1}
DITTO_STEP = {"steps": 1, "personal_steps": 1, "who": "sampled"}

# the methods that versions have in common since the first one with this table
METHODS = (
    *("local", "fedavg", "fedprox", "fedprox-soft", "lp-proj", "lp-proj-1", "lp-proj-2", "ditto"),
    *("pfedme", "per-fedavg", "lg-fedavg", "rsa", "l2gd", "scaffold", "scaffnew", "feddeper"),
    *("feddeper*", "ffgg", "local-ffgg", "fedalt", "fedsim", "finetune", "dichotomy"),
)

FIGURES = [
    Gradient("cohort gradient, 100 logistic 60-10", 100, (60,), "linear", 50),
    Gradient("cohort gradient, 10 MLP 784-100-10", 10, (784,), "mlp", 20),
    Gradient("cohort gradient, 20 LeNet 3x32x32", 20, (3, 32, 32), "lenet", 2),
    Rounds("round, FedAvg, MLP", "FedAvg", IMAGES, "mlp", PASS, rounds=8),
    Rounds("round, FedAvg, MLP, unbalanced", "FedAvg", UNEVEN, "mlp", PASS, rounds=8),
    Rounds(
        "round, FedAvg, MLP, channel qsgd",
        "FedAvg",
        IMAGES,
        "mlp",
        PASS,
        {"channel": "qsgd", "eval_every": 0},
        rounds=8,
    ),
    Rounds("round, lp-proj, logistic", "LpProj", SMALL, "linear", rounds=16),
    Rounds("round, FedAvg, LeNet", "FedAvg", COLOUR, "lenet", PASS, rounds=4),
    Rounds("round, pFedMe, MLP", "PFedMe", IMAGES, "mlp", rounds=3),
    Rounds(
        "round, Ditto, MLP",
        "Ditto",
        IMAGES,
        "mlp",
        {"epochs": 1, "personal_steps": 7, "who": "sampled"},
        rounds=6,
    ),
    Rounds("evaluation, shared MLP", "FedAvg", IMAGES, "mlp", ONE_STEP, {"sample": 1}, rounds=12),
    Rounds(
        "evaluation, shared MLP, unbalanced",
        "FedAvg",
        UNEVEN,
        "mlp",
        ONE_STEP,
        {"sample": 1},
        rounds=12,
    ),
    Rounds(
        "evaluation, personal MLPs", "Ditto", IMAGES, "mlp", DITTO_STEP, {"sample": 1}, rounds=10
    ),
    Rounds(
        "evaluation, personal MLPs, unbalanced",
        "Ditto",
        UNEVEN,
        "mlp",
        DITTO_STEP,
        {"sample": 1},
        rounds=10,
    ),
    Rounds(
        "round, FedAvg, logistic, 10,000 clients",
        "FedAvg",
        MANY,
        "linear",
        {"steps": 5},
        {"sample": 1000, "batch": 40},
        rounds=16,
    ),
    Rounds(
        "round, FedAvg, logistic, 10,000 clients, not evaluated",
        "FedAvg",
        MANY,
        "linear",
        {"steps": 5},
        {"sample": 1000, "batch": 40, "eval_every": 0},
        rounds=16,
    ),
    Rounds(
        "evaluation, personal logistic, 10,000 clients",
        "Ditto",
        MANY,
        "linear",
        DITTO_STEP,
        {"sample": 1},
        rounds=6,
    ),
    *(WholeRun(f"run of 25 rounds, {method}", method) for method in METHODS),
]
NAMED = {f.name: f for f in FIGURES}


# -- in the process of one version -----------------------------------------------------------------
def work() -> None:
    """Measure each figure whose name comes in; answer with its parts."""
    import torch

    import idiolect

    torch.set_num_threads(1)
    name = ""
    for line in sys.stdin:
        if line.strip() != name:
            name = line.strip()
            measure = NAMED[name].prepare()
            # after the data are made, as versions do that leave this to the first task
            getattr(idiolect, "keep_memory", lambda: None)()
        print(json.dumps(measure()), flush=True)


# -- in the process that compares ------------------------------------------------------------------
class Version:
    """A process with one version of the package."""

    def __init__(self, source: Path):
        environment = os.environ | {"PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", str(Path(__file__).resolve()), "--work"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def measure(self, name: str) -> Parts:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{name}: a process ended with {self.process.wait()}")
        return json.loads(answer)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def least(found: Parts, more: Parts) -> Parts:
    return {part: min(value, found.get(part, value)) for part, value in more.items()}


def compare(
    old: Path, new: Path, names: list[str], passes: int, tries: int
) -> dict[str, list[Parts]]:
    """For each figure, the least CPU seconds of its parts in the old and in the new version."""
    best: dict[str, list[Parts]] = {name: [{}, {}] for name in names}
    for number in range(passes):
        pair = [Version(old), Version(new)]
        for name in names:
            for turn in range(tries):
                order = (0, 1) if (number + turn) % 2 == 0 else (1, 0)
                for side in order:
                    best[name][side] = least(best[name][side], pair[side].measure(name))
        for version in pair:
            version.end()
        print(f"pass {number + 1} of {passes}", file=sys.stderr, flush=True)
    return best


def lines(best: dict[str, list[Parts]]) -> list[str]:
    """A Markdown table: milliseconds per round (or gradient), the ratio, and that of the rest."""
    rows = ["| figure | old, ms | new, ms | new / old | |", "|---|---|---|---|---|"]
    rests = []
    for name, (old, new) in best.items():
        rounds = [part for part in old if part != "rest"]
        before = sum(old[part] for part in rounds) / len(rounds)
        after = sum(new[part] for part in rounds) / len(rounds)
        rows.append(_line(name, before, after))
        if "rest" in old:
            rests.append(_line(f"start and end of a run: {name}", old["rest"], new["rest"]))
    return rows + rests


def _line(name: str, old: float, new: float) -> str:
    mark = "slower" if new / old > LIMIT else ""
    return f"| {name} | {1e3 * old:.2f} | {1e3 * new:.2f} | {new / old:.3f} | {mark} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="the src folder of one version")
    parser.add_argument("new", type=Path, help="and of the other")
    parser.add_argument("--only", default="", help="figures whose name contains this text")
    parser.add_argument("--passes", type=int, default=PASSES, help="pairs of processes")
    parser.add_argument("--tries", type=int, default=TRIES, help="turns of each process per figure")
    asked = parser.parse_args()
    names = [name for name in NAMED if asked.only in name]
    print("\n".join(lines(compare(asked.old, asked.new, names, asked.passes, asked.tries))))


if __name__ == "__main__":
    if sys.argv[1:] == ["--work"]:
        work()
    else:
        main()
