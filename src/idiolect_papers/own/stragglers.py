"""When some clients are slow: time to a target with and without rounds.

`idiolect reproduce async-stragglers`. Simulated time, the same delays for everybody: synchronous
rounds wait for the slowest client, asynchronous training for nobody.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idiolect import FedAvg, Ffgg, Moment, Task, data, interval, run
from idiolect.models import make

from ..closed_forms.quadratic import Quadratic
from ..page import Claim, Page, Row
from ..panels import Line, Panel
from ..runs import Work, finished

SYNC, ASYNC, BUFFERED = "synchronous", "asynchronous", "buffered"
MODES = (SYNC, ASYNC, BUFFERED)
DELAYS = {
    "all alike": "constant(mean=1)",
    "exponential": "exponential(mean=1)",
    "a tenth 10 times slower": "exponential(mean=1, slow=0.1, slowdown=10)",
    "heavy tails": "pareto(shape=1.5, mean=1)",
}
TUNED_ON = "exponential"
DIGITS, QUADRATIC = "fedavg on digits", "ffgg on a quadratic"
POINTS = 80  # of a curve
STEADY = 5  # rounds over whose mean an accuracy must reach the target


@dataclass(frozen=True)
class Size:
    """The sizes of the experiment."""

    seeds: int = 5
    clients: int = 40
    sample: int = 10  # clients heard per round, and at work at a time
    buffer: int = 5
    rounds: int = 400  # at most
    accuracy: float = 0.9  # the target of fedavg on digits
    norm: float = 1e-3  # of ffgg on the quadratic: ‖F(θ)‖ over that at the start
    quadratic: tuple[int, int, int] = (400, 30, 10)  # n, d_θ, d_w
    rates: tuple[float, ...] = (
        16.0,
        8.0,
        4.0,
        2.0,
        1.0,
        0.5,
        0.25,
    )  # among which each mode chooses one
    workers: int = 2  # runs at once


@dataclass(frozen=True)
class Job(Work):
    """One run until the target is reached."""

    size: Size = Size()
    problem: str = DIGITS
    mode: str = SYNC
    delays: str = ""
    rate: float = 1.0
    seed: int = 0
    validation: bool = False  # whether the target is one of validation data: to choose a rate by

    def cost(self) -> float:
        return 1.0 if self.mode == SYNC else 2.0

    def train(self) -> dict[str, Any]:
        figures: list[tuple[float, float]] = []  # (time, figure)
        method, task, federation, figure, settings = setting(self)
        target = self.size.accuracy if self.problem == DIGITS else -self.size.norm

        def watch(moment: Moment) -> None:
            now = max(line["time"] for line in moment.delays)
            figures.append((now, figure(moment)))
            if self.reached(figures, target) or not abs(figures[-1][1]) < 1e9:
                moment.stop()

        run(method, task, federation, on_round=watch, **settings, **self.engine())
        reached = self.reached(figures, target)
        places = np.unique(np.linspace(0, len(figures) - 1, POINTS).astype(int))
        return {
            "time": figures[-1][0] if reached else None,
            "rounds": len(figures),
            "curve": [[float(f"{v:.5g}") for v in figures[i]] for i in places],
        }

    def reached(self, figures: Sequence[tuple[float, float]], target: float) -> bool:
        """Whether the figure is there to stay: of an accuracy, the mean of the last rounds."""
        last = [v for _, v in figures[-(STEADY if self.problem == DIGITS else 1) :]]
        enough = len(last) == (STEADY if self.problem == DIGITS else 1)
        return enough and sum(last) / len(last) >= target

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


def setting(job: Job) -> tuple[Any, Task, Any, Any, dict[str, Any]]:
    """Method, task, data, the figure (more is better), and settings of the run."""
    size = job.size
    if job.problem == DIGITS:
        federation = data.load("digits", clients=size.clients, valid=0.15, seed=job.seed)
        task = Task(_logistic)
        name = "valid_accuracy" if job.validation else "accuracy"
        patience = {"patience": 10**6, "patience_metric": "accuracy"} if job.validation else {}
        method = FedAvg(lr=0.1, steps=5)
        return (
            method,
            task,
            federation,
            lambda m: m.figures[name],
            {"server_lr": job.rate, **patience},
        )
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


def _logistic() -> Any:
    return make("linear", (1, 8, 8), 10)


# -- the page -------------------------------------------------------------------------------------
def write(folder: Path, size: Size | None = None) -> list[Path]:
    """Choose rates, run everything and write the page."""
    began = time.perf_counter()
    size = size or Size()
    rates = chosen(folder, size)
    jobs = {
        (problem, name, mode, seed): Job(size, problem, mode, delays, rates[problem, mode], seed)
        for problem in (DIGITS, QUADRATIC)
        for name, delays in DELAYS.items()
        for mode in MODES
        for seed in range(size.seeds)
    }
    results = finished(list(jobs.values()), folder, "async-stragglers", size.workers)
    outcomes = {key: results[job] for key, job in jobs.items()}
    page = Page(
        name="async-stragglers",
        title="Time to a target when some clients are slow",
        settings=words(size, rates),
        claims=claims(outcomes, size),
        tables={
            f"Simulated time to the target: {problem} (mean ± 95 % interval over seeds)": rows(
                outcomes, problem, size
            )
            for problem in (DIGITS, QUADRATIC)
        },
        figures={
            f"{problem}, {name}, {mode}": [
                outcomes[problem, name, mode, seed]["time"] for seed in range(size.seeds)
            ]
            for problem in (DIGITS, QUADRATIC)
            for name in DELAYS
            for mode in MODES
        },
        panels=[
            panel(outcomes, problem, name)
            for problem in (DIGITS, QUADRATIC)
            for name in list(DELAYS)[1:]
        ],
        seconds=time.perf_counter() - began,
        order=14,
    )
    return page.write(folder)


def chosen(folder: Path, size: Size) -> dict[tuple[str, str], float]:
    """The rate of each mode that reaches the target first: on validation data, another seed."""
    jobs = {
        (problem, mode, rate): Job(
            size, problem, mode, DELAYS[TUNED_ON], rate, 1000, validation=True
        )
        for problem in (DIGITS, QUADRATIC)
        for mode in MODES
        for rate in size.rates
    }
    results = finished(list(jobs.values()), folder, "async-stragglers-rates", size.workers)
    best = {}
    for problem in (DIGITS, QUADRATIC):
        for mode in MODES:
            times = {rate: results[jobs[problem, mode, rate]]["time"] for rate in size.rates}
            best[problem, mode] = min(size.rates, key=lambda r: times[r] or float("inf"))
    return best


Outcomes = Mapping[tuple[str, str, str, int], dict[str, Any]]


def times(outcomes: Outcomes, problem: str, name: str, mode: str, size: Size) -> list[float]:
    """Of the seeds that reached the target."""
    each = [outcomes[problem, name, mode, seed]["time"] for seed in range(size.seeds)]
    return [t for t in each if t is not None]


def rows(outcomes: Outcomes, problem: str, size: Size) -> list[Row]:
    table = []
    for name in DELAYS:
        row: Row = {"delays": name}
        for mode in MODES:
            reached = times(outcomes, problem, name, mode, size)
            row[mode] = _text(reached, size.seeds)
        table.append(row)
    return table


def _text(reached: Sequence[float], seeds: int) -> str:
    if not reached:
        return "not reached"
    mean = sum(reached) / len(reached)
    half = interval(reached) if len(reached) > 1 else None
    text = f"{mean:.1f}" + (f" ± {half:.1f}" if half else "")
    return text if len(reached) == seeds else f"{text} ({len(reached)} of {seeds} seeds)"


def panel(outcomes: Outcomes, problem: str, name: str) -> Panel:
    """The curve of the first seed."""
    lines = []
    for mode in MODES:
        curve = np.array(outcomes[problem, name, mode, 0]["curve"])
        up = curve[:, 1] if problem == DIGITS else -curve[:, 1]
        lines.append(Line(mode, curve[:, 0].tolist(), up.tolist()))
    what = "test accuracy" if problem == DIGITS else "‖F(θ)‖ / ‖F(0)‖"
    log = "" if problem == DIGITS else "y"
    return Panel(f"{problem}: {name}", "simulated time", what, lines, log=log)


def claims(outcomes: Outcomes, size: Size) -> list[Claim]:
    def ratio(problem: str, name: str) -> float:
        means = [
            np.mean(times(outcomes, problem, name, mode, size) or [np.inf])
            for mode in (SYNC, ASYNC, BUFFERED)
        ]
        return float(means[0] / min(means[1:]))

    def told(name: str) -> str:
        return ", ".join(f"{ratio(p, name):.2g} ({p})" for p in (DIGITS, QUADRATIC))

    slow = list(DELAYS)[2]
    alike = next(iter(DELAYS))
    faster = all(ratio(p, slow) > 1 for p in (DIGITS, QUADRATIC))
    return [
        Claim(
            "Unbalanced computation times call for updates that do not wait (FFGG, Section 2)",
            f"{slow}: synchronous rounds take so many times as long as the better of the others: "
            + told(slow),
            "agrees" if faster else "differs",
            "" if faster else "stale messages cost more than waiting",
        ),
        Claim(
            "With equal delays there is nothing to gain",
            f"the same ratio: {told(alike)}",
            "not stated by the paper",
        ),
    ]


def words(size: Size, rates: Mapping[tuple[str, str], float]) -> str:
    n, shared, private = size.quadratic
    rates_text = "; ".join(
        f"{problem}: " + ", ".join(f"{rates[problem, mode]:g} {mode}" for mode in MODES)
        for problem in (DIGITS, QUADRATIC)
    )
    choices = ", ".join(f"{r:g}" for r in size.rates)
    form = f"n = {n}, d_θ = {shared}, d_w = {private}, ζ = 10"
    return f"""\
{size.clients} clients, of which {size.sample} are heard per round or at work at a time; simulated
time in units of the mean delay, the same draws for all. A synchronous round takes as long as the
slowest client that it hears. Asynchronous: every message is used as it arrives, with weight
(1 + staleness)^-0.5; buffered: {size.buffer} messages per step of the server (FedBuff). The next
client is sampled among those not at work.

Two problems: FedAvg (5 steps of 0.1) with logistic regression on the digits, to a pooled test
accuracy of {size.accuracy:g} in the mean of {STEADY} rounds; and FFGG with exact solutions on a
quadratic problem of its paper ({form}, one common θ*),
to ‖F(θ)‖ / ‖F(0)‖ = {size.norm:g}. Each way has one rate, chosen once with
{DELAYS[TUNED_ON]} on validation data of another seed, among {choices}
(factors of the server's step, for FFGG of 1/L per {size.sample} messages): {rates_text}.
{size.seeds} seeds; at most {size.rounds} rounds of {size.sample} messages."""
