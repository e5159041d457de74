"""How far can malicious clients move each rule? The constant c of a (δ, c)-robust aggregator.

c is that of Definition 2 of the FFGG paper, measured from below. `idiolect reproduce rules` writes
rules.md and rules.json: for every rule the worst of |x̂ - x̄|² / (δ σ²) over honest and malicious
rows of several kinds. x̄ is the mean of the honest rows, σ² the mean of |x_i - x_j|² over pairs of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from idiolect import Rule, rules, streams

from ..page import Row, table, write_page
from ..runs import Work, train_all
from ..texts import read_text

CLIENTS = 20
DIMENSION = 20
KEYS = 8  # random orders over which a rule that draws one is averaged
SHARES = (0.1, 0.2, 0.3, 0.4)  # of malicious clients
GROWING = (10, 20, 40, 80)  # clients, one of them malicious
RULES = (  # {f}: the number of malicious clients, which the rule is told
    "mean",
    "median",
    "geometric-median",
    "krum(f={f})",
    "multi-krum(f={f})",
    "bulyan(f={f})",
    "trimmed-mean(f={f})",
    "trimmed-mean",
    "meamed(f={f})",
    "mda(f={f})",
    "centred-clipping(tau=1)",
    "centred-clipping(tau=10)",
    "centred-clipping(tau=0)",
    "norm-bound + mean",
    "bucketing + median",
    "bucketing + geometric-median",
    "bucketing + krum(f={f})",
    "nnm(f={f}) + median",
    "nnm(f={f}) + geometric-median",
    "nnm(f={f}) + krum(f={f})",
    "nnm(f={f}) + trimmed-mean(f={f})",
)


# -- honest rows -------------------------------------------------------------------------------
def normal(stream: str, *shape: int) -> Tensor:
    """Standard normal numbers; every stream has its own."""
    numbers = streams.normal(streams.keys(0, f"rules {stream}"), int(np.prod(shape)))
    return torch.from_numpy(numbers).view(*shape)


def alike(n: int) -> Tensor:
    return normal("honest", n, DIMENSION)


def heavy(n: int) -> Tensor:
    """A few clients far away: directions at random, lengths with a long tail."""
    return normal("honest", n, DIMENSION) * normal("length", n, 1).abs() ** 3


def clusters(n: int) -> Tensor:
    """Two tight groups of about one size: the mean lies where nobody is."""
    rows = 1e-2 * normal("honest", n, DIMENSION)
    rows[: (n - 1) // 2, 0] += 10
    return rows


def minority(n: int) -> Tensor:
    """A tenth of the clients, at least one, has data of its own."""
    rows = 1e-2 * normal("honest", n, DIMENSION)
    rows[: max(1, n // 10), 0] += 10
    return rows


def apart(n: int) -> Tensor:
    """Every client alone on an axis, as when each has one class of its own."""
    axes = torch.eye(DIMENSION, dtype=torch.float64)
    return axes[torch.arange(n) % DIMENSION] + 1e-2 * normal("honest", n, DIMENSION)


HONEST: dict[str, Callable[[int], Tensor]] = {
    "alike": alike,
    "heavy tails": heavy,
    "two clusters": clusters,
    "a minority": minority,
    "apart": apart,
}


def spread(honest: Tensor) -> float:
    """σ² of Definition 2: the mean of |x_i - x_j|² over pairs i ≠ j.

    >>> spread(torch.tensor([[0.0], [1.0], [2.0]]))  # (1 + 4 + 1) / 3
    2.0
    """
    return float(2 * (honest - honest.mean(0)).square().sum() / (len(honest) - 1))


def honest_rows(kind: str, n: int) -> Tensor:
    """Rows of σ = 1 around a mean of length 1."""
    rows = HONEST[kind](n)
    rows = (rows - rows.mean(0)) / spread(rows) ** 0.5
    return rows + DIMENSION**-0.5


# -- malicious rows: honest[G, m], f -> rows[f, m] to try ---------------------------------------
def same_value(honest: Tensor, f: int) -> Iterator[Tensor]:
    for value in (-1.0, 1.0, 100.0):
        yield torch.full((f, honest.shape[1]), value, dtype=honest.dtype)


def sign_flip(honest: Tensor, f: int) -> Iterator[Tensor]:
    for scale in (1.0, 10.0):
        yield -scale * honest[torch.arange(f) % len(honest)]


def gaussian(honest: Tensor, f: int) -> Iterator[Tensor]:
    for scale in (0.3, 3.0, 100.0):  # the stream's old name stays: the stored figures have it
        yield honest.mean(0) + scale * normal("liars", f, honest.shape[1])


def little_is_enough(honest: Tensor, f: int) -> Iterator[Tensor]:
    """Baruch et al. 2019: a few standard deviations away, in every coordinate."""
    for z in (-3.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 3.0):
        yield (honest.mean(0) + z * honest.std(0)).expand(f, -1)


def inner_product(honest: Tensor, f: int) -> Iterator[Tensor]:
    """Xie et al. 2020: against the mean."""
    for scale in (0.1, 0.5, 1.0, 5.0):
        yield -scale * honest.mean(0).expand(f, -1)


def mimic(honest: Tensor, f: int) -> Iterator[Tensor]:
    """Karimireddy et al. 2022: all copy one honest client.

    It is that at either end of the direction in which the honest clients differ most.
    """
    away = honest - honest.mean(0)
    along = away @ torch.linalg.svd(away, full_matrices=False).Vh[0]
    for i in (int(along.argmin()), int(along.argmax())):
        yield honest[i].expand(f, -1)


ATTACKS = {
    "same value": same_value,
    "sign flip": sign_flip,
    "gaussian": gaussian,
    "a little is enough": little_is_enough,
    "inner product": inner_product,
    "mimic": mimic,
}


# -- the measure -------------------------------------------------------------------------------
def error(rule: Rule, rows: Tensor, mean: Tensor, keys: int) -> float:
    """|x̂ - x̄|², for a rule that draws an order its mean over several."""
    weights = torch.ones(len(rows), dtype=torch.float64)
    errors = (rule(rows, weights, key=key) - mean for key in range(keys))
    return sum(float(e.square().sum()) for e in errors) / keys


Worst = tuple[float, str, str]  # the largest ratio, for which honest rows, under which attack


def worst(text: str, n: int, f: int) -> Worst | None:
    """The most that f malicious clients moved a rule; None where it cannot withstand f of n.

    >>> worst("krum(f={f})", 20, 9) is None
    True
    """
    rule = rules.parse_rule(text.format(f=f))
    keys = KEYS if "bucketing" in text else 1
    try:
        rule.check(n)
    except rules.TooFew:
        return None
    largest = (0.0, "", "")
    for kind in HONEST:
        honest = honest_rows(kind, n - f)
        mean = honest.mean(0)
        scale = f / n * spread(honest)
        for attack, malicious_rows in ATTACKS.items():
            for malicious in malicious_rows(honest, f):
                moved = error(rule, torch.cat([honest, malicious]), mean, keys)
                largest = max(largest, (round(moved / scale, 3), kind, attack))
    return largest


TABLES: dict[str, dict[str, tuple[int, int]]] = {  # column -> clients, malicious ones
    "share of malicious clients": {
        f"δ = {delta:g}": (CLIENTS, round(delta * CLIENTS)) for delta in SHARES
    },
    "number of clients": {f"n = {n}": (n, 1) for n in GROWING},
}


def number(cell: Worst | None) -> str:
    if cell is None:
        return "–"
    return f"{cell[0]:.2g}" if cell[0] < 10 else f"{cell[0]:,.0f}"


def label(text: str) -> str:
    return "trimmed-mean, not told f" if text == "trimmed-mean" else text.replace("(f={f})", "")


@dataclass(frozen=True)
class RuleJob(Work):
    """One line of one of the two tables."""

    table: str
    rule: str

    def train(self) -> dict[str, Worst | None]:
        return {column: worst(self.rule, *at) for column, at in TABLES[self.table].items()}

    def describe(self) -> str:
        return f"{label(self.rule)}, by {self.table}"


def write(folder: Path) -> list[Path]:
    """Measure (under a minute) and write rules.md and rules.json."""
    jobs = {(table, rule): RuleJob(table, rule) for table in TABLES for rule in RULES}
    results = train_all(list(jobs.values()), folder, "rules", workers=1)
    stored = {
        title: {label(rule): results[jobs[title, rule]] for rule in RULES} for title in TABLES
    }
    words = read_text("rules")
    page = [
        words["head"].format(
            dimension=DIMENSION,
            ways=len(HONEST),
            honest=", ".join(HONEST),
            attacks=", ".join(ATTACKS),
        )
    ]
    for heading, rows in zip((words["first"], words["second"]), stored.values(), strict=True):
        page.append(heading.format(clients=CLIENTS))
        page += table([row(*line) for line in rows.items()])
    page.append(words["last"])
    return write_page(folder, "rules", "\n".join(page) + "\n", stored)


def row(rule: str, cells: dict[str, Worst | None]) -> Row:
    _, kind, attack = max(c for c in cells.values() if c)
    numbers = {column: number(cell) for column, cell in cells.items()}
    return {"rule": rule, **numbers, "the largest with": f"{kind}, {attack}"}
