"""Choose on validation data with one seed, then run what was chosen with fresh seeds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from idiolect.data.federation import Federation
from idiolect.study.progress import watched
from idiolect.study.search import search
from idiolect.study.sweep import Setting, Stock

from ...runs import Runs
from .cases import METHODS, PERSONALISED, Case, candidates

K = TypeVar("K", bound=Hashable)
SEARCH = 0  # the seed of the search; those of the final runs follow


@dataclass(frozen=True)
class Size:
    """How much is run."""

    samples: tuple[int, ...] = (10, 40, 0)  # per client; 0: all
    rounds: float = 1.0  # times the rounds of a case
    steps: int = 10  # gradients per client and round
    seeds: int = 3
    limited: bool = True  # at most so many clients as a case says
    jobs: int = 0


SIZES = {"quick": Size(), "full": Size((5, 10, 20, 40, 80, 0), 5.0, 10, 10, False)}


def measure(cases: Mapping[str, Case], size: Size, directory: Path) -> list[dict[str, Any]]:
    """A row for every data set and number of samples."""
    whole = {name: case.load(size.limited) for name, case in cases.items()}
    pairs = [(name, n) for name in cases for n in _sizes(whole[name], size.samples)]
    tasks = {name: cases[name].task(whole[name]) for name in cases}

    def stock(seed: int) -> Stock:
        cut = {f"{name}/{n}": _cut(whole[name], n, seed) for name, n in pairs}
        return Stock(dict(cut), dict(tasks))

    def setting(name: str, n: int, method: Any, varied: dict[str, Any], label: str) -> Setting:
        case = cases[name]
        run: dict[str, Any] = {
            "rounds": max(1, round(case.rounds * size.rounds)),
            "sample": whole[name].clients,
            "batch": case.batch,
            "eval_every": 0,
        }
        return Setting(method, run, f"{name}/{n}", name, f"{name}, {n}: {label}", varied)

    tried = {
        (name, n, label): [
            setting(name, n, method, varied, label)
            for method, varied in candidates(label, cases[name], tasks[name].d, size.steps)
        ]
        for name, n in pairs
        for label in METHODS
    }
    every = [point for several in tried.values() for point in several]
    found = search(  # without test data
        every,
        stock(SEARCH),
        [SEARCH],
        jobs=size.jobs,
        directory=directory / "search",
        watch=watched,
    )
    standings = {key: found.standings(several[0].name) for key, several in tried.items()}
    chosen = {key: ranked[0].setting for key, ranked in standings.items()}
    valid = {key: ranked[0].figure or 0.0 for key, ranked in standings.items()}
    finals: dict[tuple[str, int, str], Setting] = {}
    for name, n in pairs:
        best = max(PERSONALISED, key=lambda label: valid[name, n, label])
        for label in ("local", "fedavg", best):
            finals[name, n, label] = chosen[name, n, label]
    runs = [
        _trained(finals, stock(seed), seed, directory / f"seed-{seed}", size.jobs, ("by_client",))
        for seed in range(SEARCH + 1, SEARCH + 1 + size.seeds)
    ]
    rows = []
    for name, n in pairs:
        labels = [label for first, second, label in finals if (first, second) == (name, n)]
        data = _cut(whole[name], n, SEARCH)
        row: dict[str, Any] = {
            "set": name,
            "samples": n,
            "clients": data.clients,
            "who": cases[name].clients,
            "median": int(data.sizes("train").median()),
            "majority": majority(data),
            "spread": spread(whole[name]),
            "methods": {},
        }
        for label in labels:
            mine = [one[name, n, label] for one in runs]
            row["methods"][label] = {
                "valid": valid[name, n, label],
                "chosen": chosen[name, n, label].varied,
                "test": [_pooled(s["accuracy"]) for s in mine],
                "gradients": mine[0]["gradients_per_client"],
                "bytes": sum(mine[0]["bytes"].values()),
                "clients": _changed(mine, [one[name, n, "local"] for one in runs]),
            }
        searched = [s for key, ranked in standings.items() if key[:2] == (name, n) for s in ranked]
        row["seconds"] = sum(s.summaries[0]["seconds"] for s in searched) + sum(
            one[key]["seconds"] for one in runs for key in finals if key[:2] == (name, n)
        )
        rows.append(row)
    return rows


def majority(federation: Federation) -> float:
    """What each client's commonest class in training gets right of all test data."""
    right = federation.majority_hits("test").sum()
    return float(right / federation.class_counts("test").sum())


def spread(federation: Federation) -> float:
    """How unlike the clients' classes are: mean total variation distance to all clients' together.

    0: all have the same mixture of classes; near 1: each has classes of its own. With few samples
    it is above 0 by chance; all training samples are counted.
    """
    counts = federation.class_counts("train").double()
    own = counts / counts.sum(1, keepdim=True)
    rest = counts.sum(0) - counts  # of the others
    return float((own - rest / rest.sum(1, keepdim=True)).abs().sum(1).mean() / 2)


def _sizes(federation: Federation, samples: Sequence[int]) -> list[int]:
    """The numbers of samples that leave something out for half of the clients, and all (0)."""
    median = float(torch.median(federation.sizes("train").float()))
    return [n for n in samples if n == 0 or n < median]


def _cut(federation: Federation, n: int, seed: int) -> Federation:
    """n training samples of each client, and a quarter as many for validation."""
    if not n:
        return federation
    return federation.capped({"train": n, "valid": max(1, n // 4)}, seed)


def _trained(
    settings: Mapping[K, Setting],
    stock: Stock,
    seed: int,
    directory: Path,
    jobs: int,
    keep: Sequence[str] = (),
) -> dict[K, dict[str, Any]]:
    """The summary of every setting with one seed; what is stored is not run again."""
    found = Runs(directory, jobs)(settings, stock, [seed], keep)
    return {key: summaries[0] for key, summaries in found.items()}


def _pooled(figure: Mapping[str, Any]) -> float:
    """Over all samples; minus infinity where a run has diverged."""
    return -math.inf if figure["mean"] is None else float(figure["mean"])


def _changed(mine: Sequence[dict], alone: Sequence[dict]) -> dict[str, float]:
    """The shares of clients whose mean test accuracy is above and below that of Local."""

    def by_client(summaries: Sequence[dict]) -> dict[Any, float]:
        sums: dict[Any, float] = {}
        for summary in summaries:
            for row in summary["by_client"]:
                if row["test_accuracy"] is not None:
                    sums[row["client"]] = sums.get(row["client"], 0.0) + row["test_accuracy"]
        return sums

    first, second = by_client(mine), by_client(alone)
    both = [c for c in first if c in second]
    return {
        "better": sum(first[c] > second[c] for c in both) / len(both),
        "worse": sum(first[c] < second[c] for c in both) / len(both),
    }
