"""When some clients are slow: time to a target with and without rounds.

`idiolect reproduce async-stragglers`. Simulated time, the same delays for everybody: synchronous
rounds wait for the slowest client, asynchronous training for nobody.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idiolect import FedAvg, Ffgg, Moment, Task, data, interval, models, run

from ..closed_forms.quadratic import Quadratic
from ..page import NOT_STATED, page_from_text
from ..panels import Line, Panel
from ..runs import Work, train_all

NAME = "async-stragglers"
SYNC, ASYNC, BUFFERED = "synchronous", "asynchronous", "buffered"
MODES = (SYNC, ASYNC, BUFFERED)
DELAYS = {
    "all alike": "constant(mean=1)",
    "exponential": "exponential(mean=1)",
    "a tenth 10 times slower": "exponential(mean=1, slow=0.1, slowdown=10)",
    "heavy tails": "pareto(shape=1.5, mean=1)",
}
ALIKE, EXPONENTIAL, SLOW, _ = DELAYS
TUNED_ON = DELAYS[EXPONENTIAL]
DIGITS, QUADRATIC = "fedavg on digits", "ffgg on a quadratic"
PROBLEMS = (DIGITS, QUADRATIC)
POINTS = 80  # of a curve
STEADY = 5  # rounds over whose mean an accuracy must reach the target


@dataclass(frozen=True)
class StragglerSize:
    """The sizes of the experiment."""

    seeds: int = 5
    clients: int = 40
    sample: int = 10  # clients heard per round, and at work at a time
    buffer: int = 5
    rounds: int = 400  # at most
    accuracy: float = 0.9  # the target of fedavg on digits
    norm: float = 1e-3  # of ffgg on the quadratic: ‖F(θ)‖ over that at the start
    quadratic: tuple[int, int, int] = (400, 30, 10)  # n, d_θ, d_w
    rates: tuple[float, ...] = (16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25)  # each mode chooses one
    workers: int = 2  # runs at once


@dataclass(frozen=True)
class StragglerJob(Work):
    """One run until the target is reached."""

    size: StragglerSize
    problem: str
    mode: str
    delays: str
    rate: float
    seed: int
    validation: bool = False  # whether the target is one of validation data: to choose a rate by

    def cost(self) -> float:
        return 1.0 if self.mode == SYNC else 2.0

    def train(self) -> dict[str, Any]:
        figures: list[tuple[float, float]] = []  # (time, figure)
        method, task, federation, figure, settings = setting(self)

        def watch(moment: Moment) -> None:
            now = max(line["time"] for line in moment.delays)
            figures.append((now, figure(moment)))
            if self.reached(figures) or not abs(figures[-1][1]) < 1e9:
                moment.stop()

        run(method, task, federation, on_round=watch, **settings, **self.engine())
        places = np.unique(np.linspace(0, len(figures) - 1, POINTS).astype(int))
        return {
            "time": figures[-1][0] if self.reached(figures) else None,
            "rounds": len(figures),
            "curve": [[float(f"{v:.5g}") for v in figures[i]] for i in places],
        }

    def reached(self, figures: Sequence[tuple[float, float]]) -> bool:
        """Whether the figure is there to stay: of an accuracy, the mean of the last rounds."""
        steady, target = 1, -self.size.norm
        if self.problem == DIGITS:
            steady, target = STEADY, self.size.accuracy
        last = [value for _, value in figures[-steady:]]
        return len(last) == steady and sum(last) / steady >= target

    def engine(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "rounds": self.size.rounds,
            "sample": self.size.sample,
            "seed": self.seed,
            "delays": self.delays,
            "threads": 1,
            "progress": False,
        }
        if self.mode == SYNC:
            return settings
        settings |= {"timing": "arrivals", "staleness": "polynomial(a=0.5)"}
        return settings | ({"buffer": self.size.buffer} if self.mode == BUFFERED else {})


def setting(job: StragglerJob) -> tuple[Any, Task, Any, Any, dict[str, Any]]:
    """Method, task, data, the figure (more is better), and settings of the run."""
    size = job.size
    if job.problem == DIGITS:
        federation = data.load("digits", clients=size.clients, valid=0.15, seed=job.seed)
        task = Task(partial(models.make, "linear", (1, 8, 8), 10))
        name = "valid_accuracy" if job.validation else "accuracy"
        patience = {"patience": 10**6, "patience_metric": "accuracy"} if job.validation else {}
        figure = lambda m: m.figures[name]  # noqa: E731
        return FedAvg(lr=0.1, steps=5), task, federation, figure, {"server_lr": job.rate} | patience
    n, shared, private = size.quadratic
    problem = Quadratic(
        clients=size.clients,
        samples=n,
        shared=shared,
        private=private,
        zeta=10.0,
        truth="common",
        noise=0.0,
        seed=job.seed,
    ).draw()
    constants = problem.constants()
    start = problem.norm(torch.zeros(shared, dtype=torch.float64))
    # 1/L for a step of the server's that averages S messages, 1/(S L) for one by itself
    messages = {SYNC: size.sample, ASYNC: 1, BUFFERED: size.buffer}[job.mode]
    lr = job.rate * messages / size.sample / constants.F
    ffgg = Ffgg(part="w.*", lr=lr, solver="exact")
    exact = {"batching": "full", "dtype": "float64", "eval_every": 0}
    figure = lambda m: -problem.norm(m.state()["theta"]) / start  # noqa: E731
    return ffgg, problem.task(), problem.federation(), figure, exact


# -- the page -------------------------------------------------------------------------------------
def write(folder: Path, size: StragglerSize | None = None) -> list[Path]:
    """Choose rates, run everything and write the page."""
    began = time.perf_counter()
    size = size or StragglerSize()
    rates = choose_rates(folder, size)
    jobs = {
        (problem, name, mode): [
            StragglerJob(size, problem, mode, DELAYS[name], rates[problem, mode], seed)
            for seed in range(size.seeds)
        ]
        for problem, name, mode in product(PROBLEMS, DELAYS, MODES)
    }
    results = train_all(jobs, folder, NAME, size.workers)
    times = {key: [results[job]["time"] for job in by_seed] for key, by_seed in jobs.items()}
    curves = {key: results[by_seed[0]]["curve"] for key, by_seed in jobs.items()}

    def ratio(problem: str, name: str) -> float:
        """How much longer synchronous rounds take than the better of the others."""
        synchronous, *others = (
            float(np.mean(_reached(times[problem, name, mode]) or [math.inf])) for mode in MODES
        )
        return synchronous / min(others)

    def ratios(name: str) -> str:
        return ", ".join(f"{ratio(p, name):.2g} ({p})" for p in PROBLEMS)

    return page_from_text(
        NAME,
        facts={
            "size": size,
            "steady": STEADY,
            "tuned_on": TUNED_ON,
            "choices": ", ".join(f"{r:g}" for r in size.rates),
            "rates": "; ".join(
                f"{p}: " + ", ".join(f"{rates[p, mode]:g} {mode}" for mode in MODES)
                for p in PROBLEMS
            ),
            "slow": SLOW,
            "slow_ratios": ratios(SLOW),
            "alike_ratios": ratios(ALIKE),
        },
        verdicts={"slow": all(ratio(p, SLOW) > 1 for p in PROBLEMS), "alike": NOT_STATED},
        tables={
            f"Simulated time to the target: {problem} (mean ± 95 % interval over seeds)": [
                {"delays": name} | {mode: _text(times[problem, name, mode]) for mode in MODES}
                for name in DELAYS
            ]
            for problem in PROBLEMS
        },
        figures={", ".join(key): by_seed for key, by_seed in times.items()},
        panels=[
            panel(problem, name, {mode: curves[problem, name, mode] for mode in MODES})
            for problem, name in product(PROBLEMS, list(DELAYS)[1:])
        ],
        seconds=time.perf_counter() - began,
    ).write(folder)


def choose_rates(folder: Path, size: StragglerSize) -> dict[tuple[str, str], float]:
    """The rate of each mode that reaches the target first: on validation data, another seed."""
    jobs = {
        (problem, mode): [
            StragglerJob(size, problem, mode, TUNED_ON, rate, 1000, validation=True)
            for rate in size.rates
        ]
        for problem, mode in product(PROBLEMS, MODES)
    }
    results = train_all(jobs, folder, f"{NAME}-rates", size.workers)
    return {
        key: min(candidates, key=lambda job: results[job]["time"] or math.inf).rate
        for key, candidates in jobs.items()
    }


def _reached(times: Sequence[float | None]) -> list[float]:
    """Of the seeds that reached the target."""
    return [t for t in times if t is not None]


def _text(times: Sequence[float | None]) -> str:
    reached = _reached(times)
    if not reached:
        return "not reached"
    half = interval(reached) if len(reached) > 1 else None
    text = f"{sum(reached) / len(reached):.1f}" + (f" ± {half:.1f}" if half else "")
    every = len(reached) == len(times)
    return text if every else f"{text} ({len(reached)} of {len(times)} seeds)"


def panel(problem: str, name: str, curves: Mapping[str, Sequence[Sequence[float]]]) -> Panel:
    """The curves of the first seed."""
    sign, what, log = (
        (1, "test accuracy", "") if problem == DIGITS else (-1, "‖F(θ)‖ / ‖F(0)‖", "y")
    )
    lines = [
        Line(mode, [t for t, _ in curve], [sign * figure for _, figure in curve])
        for mode, curve in curves.items()
    ]
    return Panel(f"{problem}: {name}", "simulated time", what, lines, log=log)
