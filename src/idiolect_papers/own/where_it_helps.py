"""Which token follows this one? A row of scores for every token: softmax regression on the last."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from idiolect import Federation, Method, Plan, Task, data, make_method, models
from idiolect.study import Stock, job_progress
from idiolect.study import search_plans as search

from ..known_words import known_words
from ..runs import Runs


class Bigrams(nn.Module):
    """Scores for the next token from the last one alone, and how frequent each is.

    Convex, and quick enough to be tuned for every client of a text; a transformer knows more.
    """

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(outputs, outputs))
        self.frequency = nn.Parameter(torch.zeros(outputs))

    def forward(self, tokens: Tensor) -> Tensor:  # [B, T] -> [B, T, outputs]
        return self.table[tokens] + self.frequency

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)
        nn.init.zeros_(self.frequency)


PERSONALISED = ("finetune", "ditto", "lp-proj-2", "fedalt", "pfedme")
METHODS = ("local", "fedavg", *PERSONALISED)
STRENGTHS = (0.1, 1.0)  # λ of ditto, lp-proj and pfedme
FINETUNING = (10, 50)  # steps before use
PRIVATE = (0.1, 1.0)  # the private step size as a multiple of the other, for one part alone


@dataclass(frozen=True)
class Case:
    """A data set and its model."""

    data: str
    clients: str  # what a client is
    model: str | type[nn.Module] = "linear"
    options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)  # the two in the middle for personal methods
    parts: tuple[str, ...] = ("biases",)  # that fedalt may keep private
    known: bool = False  # only known words are to be predicted
    most: int = 100  # clients at quick scale; 0: the data set's own number
    batch: int = 32
    rounds: int = 30  # at quick scale

    def load(self, most: bool) -> Federation:
        """All clients, or at most so many: those with most samples."""
        limit = {"clients": self.most} if most and self.most else {}
        federation = data.load(self.data, **{**self.options, **limit})
        return known_words(federation) if self.known else federation

    def task(self, federation: Federation) -> Task:
        make_model = partial(
            models.make, self.model, federation.shape, federation.classes, **self.model_options
        )
        return Task(make_model)


_TEXT: dict[str, Any] = {
    "model": Bigrams,
    "rates": (1.0, 3.0, 10.0, 30.0),
    "parts": ("frequency",),
    "known": True,
    "batch": 8,
    "rounds": 15,
    "most": 15,
}
_IMAGES: dict[str, Any] = {
    "model": "mlp",
    "model_options": {"hidden": "32"},
    "parts": ("output", "input"),
    "batch": 16,
    "rounds": 20,
}
CASES = {
    "hapt": Case("hapt", "people", most=0, **_IMAGES),
    "heart": Case("heart", "hospitals", most=0),
    "chem97": Case("chem97", "schools"),
    "insteval": Case("insteval", "students"),
    "movielens": Case("movielens", "people"),
    "quickdraw (clients made by a label split)": Case(
        "quickdraw", "Dirichlet shares, α = 0.5", most=20, **_IMAGES
    ),
    "shakespeare": Case("shakespeare", "roles", options={"length": 20, "cap": 20_000}, **_TEXT),
    "sotu": Case("sotu", "presidents", options={"vocabulary": 100, "cap": 10_000}, **_TEXT),
    "chitchat": Case("chitchat", "people who chat", options={"vocabulary": 100}, **_TEXT),
}


def candidates(name: str, case: Case, d: int, steps: int) -> Iterator[tuple[Method, dict]]:
    """What is tried for a method, with its varied fields: as many settings for each.

    All of them take `steps` gradients per client and round.
    """
    if name in ("local", "fedavg"):
        for lr in case.rates:
            yield make_method(name, lr=lr, steps=steps), {"lr": lr}
        return
    for lr, second in product(case.rates[1:3], _seconds(name, case)):
        yield _personalised(name, lr, second, d, steps), {"lr": lr, **second}


def _seconds(name: str, case: Case) -> list[dict[str, Any]]:
    """The other setting that is tried beside the step size."""
    if name == "finetune":
        return [{"personal_steps": n} for n in FINETUNING]
    if name != "fedalt":
        return [{"lam": lam} for lam in STRENGTHS]
    if len(case.parts) > 1:
        return [{"part": part} for part in case.parts]
    return [{"part": case.parts[0], "private_lr": times} for times in PRIVATE]


def _personalised(name: str, lr: float, second: dict[str, Any], d: int, steps: int) -> Method:
    half = steps // 2
    if name == "finetune":
        return make_method(name, lr=lr, personal_lr=lr, steps=steps, **second)
    if name == "ditto":
        return make_method(
            name, lr=lr, personal_lr=lr, steps=half, personal_steps=steps - half, **second
        )
    if name == "fedalt":
        private = lr * second.get("private_lr", 1.0)
        own = {"part": second["part"], "private_lr": private}
        return make_method(name, lr=lr, steps=half, private_steps=steps - half, **own)
    if name == "pfedme":
        return make_method(name, personal_lr=lr, steps=steps, fresh=True, **second)
    subspace = {"projection": "sparse", "dim": max(1, d // 4), "w_start": "x0"}
    return make_method(name, personal_lr=lr, steps=steps, fresh=True, **subspace, **second)


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

    def setting(name: str, n: int, method: Any, varied: dict[str, Any], label: str) -> Plan:
        case = cases[name]
        run: dict[str, Any] = {
            "rounds": max(1, round(case.rounds * size.rounds)),
            "sample": whole[name].clients,
            "batch": case.batch,
            "eval_every": 0,
        }
        return Plan.of(
            method,
            settings=run,
            data=f"{name}/{n}",
            model=name,
            name=f"{name}, {n}: {label}",
            varied=varied,
        )

    tried = {
        (name, n, label): [
            setting(name, n, method, varied, label)
            for method, varied in candidates(label, cases[name], tasks[name].d, size.steps)
        ]
        for name, n in pairs
        for label in METHODS
    }
    every = [point for several in tried.values() for point in several]
    search_result = search(  # without test data
        every,
        stock(SEARCH),
        [SEARCH],
        jobs=size.jobs,
        directory=directory / "search",
        watch=job_progress,
    )
    standings = {key: search_result.standings(several[0].name) for key, several in tried.items()}
    winners = {key: ranked[0].plan for key, ranked in standings.items()}
    valid = {key: ranked[0].figure or 0.0 for key, ranked in standings.items()}
    finals: dict[tuple[str, int, str], Plan] = {}
    for name, n in pairs:
        best = max(PERSONALISED, key=lambda label: valid[name, n, label])
        for label in ("local", "fedavg", best):
            finals[name, n, label] = winners[name, n, label]
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
                "chosen": winners[name, n, label].varied,
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
    settings: Mapping[K, Plan],
    stock: Stock,
    seed: int,
    directory: Path,
    jobs: int,
    keep: Sequence[str] = (),
) -> dict[K, dict[str, Any]]:
    """The summary of every setting with one seed; what is stored is not run again."""
    by_key = Runs(directory, jobs)(settings, stock, [seed], keep)
    return {key: summaries[0] for key, summaries in by_key.items()}


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
