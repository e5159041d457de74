"""The grid of the paper: methods, attacks and federations, and the runs behind its cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from idiolect import Federation, Method, Plan, Task, data, interval, make_method, models
from idiolect.study import Stock

from ..published import read_rows
from ..runs import Summary

FORMAT = 2  # of the stored figures: a change in what they mean makes the old ones void
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

    def make(self, dim: int) -> Method:
        """The method; `dim` is that of the subspace, where it has one."""
        own = {"dim": dim} if "dim" in self.fields else {}
        return make_method(self.method, **self.fields | own)


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


@dataclass(frozen=True)
class Place:
    """A federation of the tables, and its model."""

    data: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    dim: int = 21  # of the subspace of lp-proj
    few: tuple[int, int] | None = None  # rounds of methods that train everyone, and of the others
    at_most: int | None = None  # clients

    def load(self, clients: int) -> tuple[Federation, Task]:
        """The data and the model."""
        federation = data.load(self.data, **self.options, clients=self.many(clients))
        shape = tuple(federation.inputs.shape[1:])
        return federation, Task(partial(models.make, self.model, shape, federation.classes))

    def many(self, clients: int) -> int:
        """Clients, where the grid has so many."""
        return min(clients, self.at_most or clients)

    def rounds(self, method: Method, most: int) -> int:
        """Of a method, where the grid has `most`."""
        return most if self.few is None else min(most, self.few[method.traits.trains != "everyone"])


MNIST = "MNIST"
VOLUME = "Synthetic, by volume"  # sizes by a power law: Tables 12 to 15
FEDERATIONS = {
    "Synthetic(0, 0)": Place("synthetic", "linear", {"alpha": 0.0, "beta": 0.0}),
    "Synthetic(1, 1)": Place("synthetic", "linear", {"alpha": 1.0, "beta": 1.0}),
    MNIST: Place("mnist", "mlp", {"classes_per_client": 2}, dim=50, few=(3, 60), at_most=40),
    VOLUME: Place("synthetic", "linear", {"sizes": "power", "minimum": 100}),
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


# -- runs ----------------------------------------------------------------------------------------
Key = tuple[str, str, str, float]  # federation, method, attack, share of malicious clients
NO_ATTACK = ("none", 0.0)  # a cell without malicious clients serves the tables of all attacks
Outcome = dict[str, Any]  # what a run, or a clean one in its place, says of the benign clients


def keys(federations: Iterable[str], methods: Sequence[str], attacks: Sequence[str]) -> list[Key]:
    """Every cell of the grid, the clean ones once."""
    attacked = [(attack, share) for attack in attacks for share in ATTACKS[attack].shares]
    return [
        (federation, method, attack, share)
        for federation in federations
        for method in methods
        for attack, share in [NO_ATTACK, *attacked]
    ]


def place_of(federation: str, whole: bool = False) -> Place:
    """A federation, with all clients and rounds where the `whole` grid is wanted."""
    place = FEDERATIONS[federation]
    return replace(place, few=None, at_most=None) if whole else place


def setting(key: Key, rounds: int, clients: int, whole: bool = False) -> Plan:
    """The runs of a cell.

    Those of a method that sends nothing tell who is malicious and have no round: what its benign
    clients do is in the clean run.

    >>> setting(("Synthetic(0, 0)", "RSA", "sign-flip", 0.1), ROUNDS, CLIENTS).label
    'RSA attack=sign-flip 10 % data=Synthetic(0, 0)'
    """
    federation, name, attack, share = key
    competitor, place = METHODS[name], place_of(federation, whole)
    method = competitor.make(place.dim)
    per_round = heard_per_round(clients)
    expected = int(per_round * share + 1e-9)
    most = max(0, (per_round - 3) // 2)  # that Krum can be told: n >= 2 f + 3
    wanted = place.rounds(method, rounds) if competitor.sends or not share else 0
    run_settings = {
        "rounds": wanted,
        "sample": per_round,
        "eval_every": min(EVERY, wanted),
        "rule": competitor.rule.format(f=min(expected, most)),
        "attack": ATTACKS[attack].attack if share else "none",
        "malicious": share,
    }
    threat = f"{attack} {percent(share)}" if share else "none"
    return Plan.of(
        method,
        settings=run_settings,
        data=federation,
        model=federation,
        name=name,
        varied={"attack": threat, "data": federation},
    )


def stocked(federations: Iterable[str], clients: int, whole: bool = False) -> Stock:
    """The data and the models."""
    stock = Stock({}, {})
    for title in federations:
        stock.data[title], stock.tasks[title] = place_of(title, whole).load(clients)
    return stock


def outcomes(by_key: Mapping[Key, Sequence[Summary]]) -> dict[Key, list[Outcome]]:
    """Of every cell, seed by seed."""
    out = {}
    for key, summaries in by_key.items():
        federation, name, _, share = key
        if share and not METHODS[name].sends:
            clean = by_key[federation, name, *NO_ATTACK]
            out[key] = [_untouched(s, c) for s, c in zip(summaries, clean, strict=True)]
        else:
            out[key] = [_outcome(s, clean=not share) for s in summaries]
    return out


def _outcome(summary: Summary, clean: bool) -> Outcome:
    """The final test accuracy of the benign clients."""
    clients = summary["by_client"]
    out = {
        "accuracy": round(summary["accuracy"]["mean"], 6),
        "variance": round(summary["accuracy"]["variance"], 6),
        "collapsed": summary["collapsed"][0],
        "malicious": [k for k, row in enumerate(clients) if row["malicious"]],
    }
    if clean:  # to ask later how the same clients do when nobody is malicious
        out["by_client"] = [round(row["test_accuracy"], 4) for row in clients]
    return out


def _untouched(attacked: Summary, clean: Summary) -> Outcome:
    """The clients that are benign under an attack, in the clean run."""
    malicious = [row["malicious"] for row in attacked["by_client"]]
    benign = [r for r, lies in zip(clean["by_client"], malicious, strict=True) if not lies]
    each = np.array([row["test_accuracy"] for row in benign])
    samples = [row["test_samples"] for row in benign]
    return {
        "accuracy": round(float(np.average(each, weights=samples)), 6),
        "variance": round(float(each.var()), 6),
        "collapsed": clean["collapsed"][0],
        "malicious": [k for k, lies in enumerate(malicious) if lies],
    }


@dataclass(frozen=True)
class Cell:
    """One figure of a table, over seeds."""

    accuracy: float  # mean over seeds
    variance: float  # population variance over benign clients, mean over seeds
    ci95: float | None = None  # half the 95 % interval of the accuracy over seeds
    collapsed: tuple[int, ...] = ()  # for each seed that collapsed, the round from which on
    by_seed: tuple[float, ...] = ()
    same_clients: float | None = None  # the clean accuracy of the clients that are benign here

    @classmethod
    def of(cls, results: Sequence[dict[str, Any]], clean: Sequence[dict[str, Any]] = ()) -> Cell:
        """The cell of the runs of all seeds; `clean` are those without malicious clients."""
        accuracy = [r["accuracy"] for r in results]
        same = None
        if clean:
            pairs = zip(results, clean, strict=True)
            same = _mean([_clean_accuracy(c, set(r["malicious"])) for r, c in pairs])
        return cls(
            accuracy=_mean(accuracy),
            variance=_mean([r["variance"] for r in results]),
            ci95=interval(accuracy),
            collapsed=tuple(r["collapsed"] for r in results if r["collapsed"]),
            by_seed=tuple(accuracy),
            same_clients=same,
        )

    def text(self) -> str:
        """As in the tables.

        >>> Cell(0.9, 0.01).text(), Cell(0.9, 0.01, 0.002).text()
        ('0.900 (0.010)', '0.900 ± 0.002 (0.010)')
        >>> Cell(0.1, 0.01, collapsed=(40, 60), by_seed=(0.1, 0.1)).text()
        '★ round 40'
        >>> Cell(0.1, 0.01, collapsed=(40,), by_seed=(0.1, 0.1, 0.1)).text()
        '★ round 40 (1 of 3 seeds)'
        """
        if self.collapsed:
            fallen = len(self.collapsed)
            seeds = len(self.by_seed)
            some = "" if fallen == seeds else f" ({fallen} of {seeds} seeds)"
            return f"★ round {min(self.collapsed)}{some}"
        spread = "" if self.ci95 is None else f" ± {self.ci95:.3f}"
        return f"{self.accuracy:.3f}{spread} ({self.variance:.3f})"

    def short(self) -> str:
        """The accuracy alone, or ★."""
        return "★" if self.collapsed else f"{self.accuracy:.3f}"


def _clean_accuracy(clean: dict[str, Any], malicious: set[int]) -> float:
    """The mean accuracy, in a clean run, of the clients that are benign in another one."""
    return _mean([a for k, a in enumerate(clean["by_client"]) if k not in malicious])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


Row = dict[float, Cell]  # share of malicious clients (0 = clean) -> cell


@dataclass
class Tables:
    """rows[federation, attack, method]: the cells of one row of one table."""

    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Mapping[Key, Sequence[Outcome]], attacks: Iterable[str]) -> Tables:
        """The tables of finished runs."""
        out = cls()
        for federation, method in dict.fromkeys((f, m) for f, m, _, _ in cells):
            clean = cells[federation, method, *NO_ATTACK]
            for attack in attacks:
                row = {0.0: Cell.of(clean)}
                for share in ATTACKS[attack].shares:
                    row[share] = Cell.of(cells[federation, method, attack, share], clean)
                out.rows[federation, attack, method] = row
        return out

    def of_method(self, method: str) -> Iterator[tuple[str, str, Row]]:
        """(federation, attack, row) for every row of a method."""
        yield from ((f, a, row) for (f, a, m), row in self.rows.items() if m == method)

    def as_dict(self) -> dict[str, Any]:
        """As robustness.json holds them: federation -> attack -> method -> share -> cell."""
        out: dict[str, Any] = {}
        for (federation, attack, method), row in self.rows.items():
            methods = out.setdefault(federation, {}).setdefault(attack, {})
            methods[method] = {f"{share:g}": vars(cell) for share, cell in row.items()}
        return out

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Tables:
        """The tables of robustness.json."""
        out = cls()
        for federation, attacks in stored.items():
            for attack, methods in attacks.items():
                for method, cells in methods.items():
                    row = {float(share): _cell(fields) for share, fields in cells.items()}
                    out.rows[federation, attack, method] = row
        return out


def _cell(fields: dict[str, Any]) -> Cell:
    lists = {name: tuple(fields[name]) for name in ("collapsed", "by_seed")}
    return Cell(**{**fields, **lists})


# [federation, attack, method] -> accuracy and variance of each cell, clean first; None for a ★
Published = dict[tuple[str, str, str], list[tuple[float, float] | None]]


def read_published() -> Published:
    """Tables 6 to 9 and 12 to 15.

    >>> read_published()["Synthetic(0, 0)", "sign-flip", "lp-proj-2"]
    [(0.887, 0.01), (0.885, 0.01), (0.884, 0.01), None, None]
    """
    tables: Published = {}
    for row in read_rows("lp-proj-tables6-to-15"):
        federation, attack, method, *cells = row.values()
        tables[federation, attack, method] = [
            None if cell == "★" else (float(cell[:5]), float(cell[7:12])) for cell in cells
        ]
    return tables
