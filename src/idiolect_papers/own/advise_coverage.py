"""Do the intervals of an advice hold what they promise? Clients, and candidates, of known gain."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.report import judged_clients
from idiolect.study import MANY_CLIENTS

from ..page import NOT_STATED, Page, Row, page_from_text
from ..runs import Work, train_all
from ..texts import read_text
from .gain_coverage import CANDIDATES, GainJob, GainSize

NAME = "advise-coverage"
TEXTS = read_text(NAME)
FEATURES = 5
TRUTH = 20_000  # samples that say what a client truly gains
LEAST, MOST = 0.93, 0.97  # shares of intervals that hold the truth, of 95 % intervals
NULL = 0.05  # share of clients called wrongly, or of false statements, that is allowed


@dataclass(frozen=True)
class CoverageJob(Work):
    """Federations of clients with two models each: one of its own, noisy, and a shared one."""

    samples: int  # of a client
    rate: float  # share of the outcome where all features are 0
    clients: int = 20
    repeats: int = 150
    seed: int = 0

    def describe(self) -> str:
        return f"{self.samples} samples, outcome {self.rate:g}"

    def train(self) -> dict[str, Any]:
        """How often the intervals hold the truth, and how many verdicts are wrong."""
        rng = np.random.default_rng([self.seed, self.samples, int(1000 * self.rate)])
        counts = {name: np.zeros(4) for name in ("accuracy", "loss")}
        for _ in range(self.repeats):
            for name, hits in self._federation(rng).items():
                counts[name] += hits
        return {
            name: (count[:2] / count[2]).tolist() + count[2:].tolist()
            for name, count in counts.items()
        }

    def _federation(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Intervals that hold the truth, plain t intervals that do, clients, wrong verdicts."""
        common = rng.normal(0, 0.6, FEATURES)
        shift = np.log(self.rate / (1 - self.rate))
        each: dict[str, list[Any]] = {"accuracy": [], "loss": []}
        truth: dict[str, list[Any]] = {"accuracy": [], "loss": []}
        for _ in range(self.clients):
            rule = common + rng.normal(0, 0.2, FEATURES)
            alone = rule + rng.normal(0, 0.35, FEATURES)
            shared = common + rng.normal(0, 0.1, FEATURES)
            for samples, into in ((self.samples, each), (TRUTH, truth)):
                x = rng.normal(size=(samples, FEATURES))
                y = rng.random(samples) < 1 / (1 + np.exp(-(x @ rule + shift)))
                margins = [np.where(y, 1, -1) * (x @ w + shift) for w in (shared, alone)]
                losses = [np.logaddexp(0, -z) for z in margins]
                d = {
                    "accuracy": (margins[0] > 0) * 1.0 - (margins[1] > 0),
                    "loss": losses[1] - losses[0],
                }
                for name, values in d.items():
                    into[name].append(values if into is each else values.mean())
        return {name: self._counts(each[name], np.array(truth[name]), name) for name in each}

    def _counts(self, each: Sequence[np.ndarray], truth: np.ndarray, name: str) -> np.ndarray:
        owner = np.repeat(np.arange(self.clients), self.samples)
        ids = tuple(range(self.clients))
        gains = judged_clients(np.concatenate(each), owner, ids, name == "accuracy")
        inside = sum(g.low <= t <= g.high for g, t in zip(gains, truth, strict=True))
        wrong = sum(
            (g.verdict == "gains" and t <= 0) or (g.verdict == "loses" and t >= 0)
            for g, t in zip(gains, truth, strict=True)
        )
        return np.array([inside, self._plain(each, truth), self.clients, wrong], dtype=float)

    def _plain(self, each: Sequence[np.ndarray], truth: np.ndarray) -> int:
        """Plain t intervals that hold the truth."""
        from scipy.stats import t as student

        rows = np.stack(each)
        half = student.ppf(0.975, self.samples - 1) * rows.std(1, ddof=1) / self.samples**0.5
        return int((np.abs(rows.mean(1) - truth) <= half).sum())


@dataclass(frozen=True)
class CoverageSize:
    """The grid, and how often each."""

    samples: tuple[int, ...] = (5, 10, 20, 50, 200)
    rates: tuple[float, ...] = (0.5, 0.2, 0.03)
    repeats: int = 150
    gains: GainSize = GainSize()

    def jobs(self) -> Iterator[CoverageJob]:
        for rate in self.rates:
            for samples in self.samples:
                yield CoverageJob(samples, rate, repeats=self.repeats)


def write(folder: Path, size: CoverageSize | None = None, workers: int = 2) -> list[Path]:
    """Simulate every kind of client and of federation, and write the page."""
    began = time.monotonic()
    size = size or CoverageSize()
    jobs, gain_jobs = list(size.jobs()), list(size.gains.jobs())
    results = train_all([jobs, gain_jobs], folder, NAME, workers)
    clients = {job: results[job] for job in jobs}
    gains = {job: results[job] for job in gain_jobs}
    return coverage_page(clients, gains, time.monotonic() - began).write(folder)


Outcomes = dict[str, Any]


def coverage_page(
    clients: dict[CoverageJob, Outcomes], gains: dict[GainJob, Outcomes], seconds: float
) -> Page:
    """All that the page says."""
    facts, verdicts = _of_clients(clients)
    more_facts, more_verdicts = _of_gains(gains)
    figures = {
        "cases": [{"case": job.describe(), **o} for job, o in clients.items()],
        "gains": [{"case": job.describe(), **o} for job, o in gains.items()],
    }
    tables = {
        "gains": [_gain_row(job, o) for job, o in gains.items()],
        "statements": [_statement_row(job, o) for job, o in gains.items()],
        "cases": [_client_row(job, o) for job, o in clients.items()],
    }
    return page_from_text(
        NAME,
        facts=facts | more_facts,
        verdicts=verdicts | more_verdicts,
        tables=tables,
        figures=figures,
        seconds=seconds,
    )


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def _range(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %"


def _of_clients(clients: dict[CoverageJob, Outcomes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts and verdicts on single clients."""
    job, outcomes = next(iter(clients)), list(clients.values())
    facts: dict[str, Any] = {"clients": job.clients, "repeats": job.repeats}
    verdicts: dict[str, Any] = {"plain": NOT_STATED}
    for name in ("accuracy", "loss"):
        shares = [o[name][0] for o in outcomes]
        facts[name] = _range(shares)
        facts[f"plain_{name}"] = _percent(min(o[name][1] for o in outcomes))
        verdicts[name] = min(shares) >= LEAST
    wrong = max(o[name][3] / o[name][2] for o in outcomes for name in ("accuracy", "loss"))
    facts["wrong"] = f"at most {_percent(wrong)} of the clients"
    verdicts["wrong"] = wrong <= NULL
    return facts, verdicts


def _of_gains(gains: dict[GainJob, Outcomes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts and verdicts on gains over Local, and on statements."""
    facts: dict[str, Any] = {"federations": next(iter(gains)).repeats}
    verdicts: dict[str, Any] = {}
    for name, of_kind in (
        ("few", lambda job: job.clients < MANY_CLIENTS),
        ("many", lambda job: job.clients >= MANY_CLIENTS),
    ):
        outcomes = [o for job, o in gains.items() if of_kind(job)]
        shares = [share for o in outcomes for share in o["held"]]
        together = [o["held together"] for o in outcomes]
        facts[name], facts[f"{name}_together"] = _range(shares), _range(together)
        verdicts[name] = min(shares) >= LEAST and max(shares) <= MOST
        verdicts[f"{name}_together"] = min(together) >= LEAST
    false = max(o[key] for o in gains.values() for key in o if key.endswith(", falsely"))
    facts["false"] = f"at most {_percent(false)} of the advices of a kind"
    verdicts["false"] = false <= NULL
    return facts, verdicts


def _gain_row(job: GainJob, outcome: Outcomes) -> Row:
    row: Row = {"federations": job.describe()}
    for at, name in enumerate(CANDIDATES):
        row[f"{name}: true gain"] = f"{outcome['truth'][at]:+.4f}"
        row[f"{name}: standard deviation"] = f"{outcome['error'][at]:.4f}"
        row[f"{name}: stated"] = f"{outcome['stated error'][at]:.4f}"
        row[f"{name}: held"] = _percent(outcome["held"][at])
    return {**row, "both held, wider intervals": _percent(outcome["held together"])}


def _statement_row(job: GainJob, outcome: Outcomes) -> Row:
    keys = [key for key in outcome if key.startswith(("federate", "alone", "fedavg"))]
    return {"federations": job.describe(), **{key: _percent(outcome[key]) for key in keys}}


def _client_row(job: CoverageJob, outcome: Outcomes) -> Row:
    row: Row = {"samples per client": job.samples, "outcome": f"{100 * job.rate:g} %"}
    for name in ("accuracy", "loss"):
        ours, plain, clients, called = outcome[name]
        row[f"{name}: held"] = _percent(ours)
        row[f"{name}: plain t"] = _percent(plain)
        row[f"{name}: called wrongly"] = _percent(called / clients, 2)
    return row
