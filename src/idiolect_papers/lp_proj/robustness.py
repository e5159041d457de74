"""The grid of Tables 6 to 9 and 12 to 15 of the lp-proj paper: methods, attacks, federations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from idiolect import Method, Plan, interval, make_method
from idiolect.study import Stock

from ..case import Scale
from ..published import read_rows
from ..runs import Runs, Summary
from .cases import CASES

EVERY = 20  # rounds between looks at whether the models have collapsed
MNIST = "MNIST"
MNIST_CLIENTS = 40  # at most, unless the whole grid is run
MNIST_ROUNDS = (3, 60)  # at most, of methods that train everyone, and of the others
MAIN = ("Synthetic(0, 0)", "Synthetic(1, 1)", MNIST)  # of Tables 6 to 9


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

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.method, **self.fields, "rule": self.rule}


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
    "same-value": "same-value(std=100)",
    "sign-flip": "sign-flip(std=10)",
    "gaussian": "gaussian(std=100)",
    "data-poison": "data-poison(std=20)",
}
SHARES = dict.fromkeys(ATTACKS, (0.1, 0.2, 0.5, 0.8))  # of malicious clients
SHARES["data-poison"] = (0.02, 0.05, 0.1, 0.2)


def percent(share: float) -> str:
    """A share of malicious clients as the pages show it.

    >>> percent(0.02), percent(0.0)
    ('2 %', 'clean')
    """
    return f"{100 * share:.0f} %" if share else "clean"


# -- runs -----------------------------------------------------------------------------------------
class Attacked(NamedTuple):
    """A cell of the grid; one without malicious clients serves the tables of all attacks."""

    federation: str
    method: str
    attack: str = "none"
    share: float = 0.0  # of malicious clients

    @property
    def clean(self) -> Attacked:
        return Attacked(self.federation, self.method)


@dataclass(frozen=True)
class AttackGrid(Scale):
    """Which cells of the tables are run, and how."""

    federations: tuple[str, ...] = MAIN
    methods: tuple[str, ...] = tuple(METHODS)
    attacks: tuple[str, ...] = tuple(ATTACKS)
    clients: int = 100
    whole: bool = False  # MNIST with all its clients and rounds as well

    @property
    def per_round(self) -> int:
        """A tenth of the clients, at least one."""
        return max(1, round(0.1 * self.clients))

    def places(self) -> list[Attacked]:
        """Every cell, the clean ones once."""
        return [
            place
            for federation in self.federations
            for method in self.methods
            for place in (
                Attacked(federation, method),
                *(Attacked(federation, method, a, s) for a in self.attacks for s in SHARES[a]),
            )
        ]

    def setting(self, place: Attacked) -> Plan:
        """The runs of a cell.

        Those of a method that sends nothing tell who is malicious and have no round: what its
        benign clients do is in the clean run.

        >>> AttackGrid(200, 2).setting(Attacked("MNIST", "RSA", "sign-flip", 0.1)).label
        'RSA attack=sign-flip 10 % data=MNIST'
        """
        federation, name, attack, share = place
        competitor = METHODS[name]
        method = competitor.make(CASES[federation].dim)
        expected = int(self.per_round * share + 1e-9)
        most = max(0, (self.per_round - 3) // 2)  # that Krum can be told: n >= 2 f + 3
        rounds = self.rounds if competitor.sends or not share else 0
        if federation == MNIST and not self.whole:
            rounds = min(rounds, MNIST_ROUNDS[method.traits.trains != "everyone"])
        run_settings = {
            "rounds": rounds,
            "sample": self.per_round,
            "eval_every": min(EVERY, rounds),
            "rule": competitor.rule.format(f=min(expected, most)),
            "attack": ATTACKS[attack] if share else "none",
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

    def stock(self) -> Stock:
        """The data and the models."""
        stock = Stock({}, {})
        for title in self.federations:
            few = title == MNIST and not self.whole
            clients = min(self.clients, MNIST_CLIENTS) if few else self.clients
            stock.data[title], stock.tasks[title] = CASES[title].load(clients=clients)
        return stock

    def measure(self, runs: Runs) -> Tables:
        """The tables of these federations, methods and attacks."""
        settings = {place: self.setting(place) for place in self.places()}
        by_place = runs(settings, self.stock(), range(self.seeds), ("by_client",))
        results = outcomes(by_place)
        tables = Tables()
        for federation in self.federations:
            for method in self.methods:
                clean = results[Attacked(federation, method)]
                for attack in self.attacks:
                    row = {0.0: AttackedCell.of(clean)}
                    for share in SHARES[attack]:
                        place = Attacked(federation, method, attack, share)
                        row[share] = AttackedCell.of(results[place], clean)
                    tables.rows[federation, attack, method] = row
        return tables


@dataclass(frozen=True)
class Outcome:
    """What a run, or a clean one in its place, says of the benign clients in the end."""

    accuracy: float
    variance: float
    collapsed: int | None  # the round from which on
    malicious: frozenset[int]
    by_client: tuple[float, ...] = ()  # of all clients, where nobody is malicious

    def accuracy_without(self, malicious: frozenset[int]) -> float:
        """The mean accuracy of the clients that are benign in another run."""
        return _mean([a for k, a in enumerate(self.by_client) if k not in malicious])


def outcomes(by_place: Mapping[Attacked, Sequence[Summary]]) -> dict[Attacked, list[Outcome]]:
    """Of every cell, seed by seed."""
    results = {}
    for place, summaries in by_place.items():
        untouched = place.share and not METHODS[place.method].sends
        measured = by_place[place.clean] if untouched else summaries
        pairs = zip(summaries, measured, strict=True)
        results[place] = [_outcome(attacked, summary) for attacked, summary in pairs]
    return results


def _outcome(attacked: Summary, measured: Summary) -> Outcome:
    """The final test accuracy of the clients that are benign in the attacked run."""
    clients = measured["by_client"]
    malicious = frozenset(k for k, row in enumerate(attacked["by_client"]) if row["malicious"])
    accuracy, variance = (measured["accuracy"][name] for name in ("mean", "variance"))
    if measured is not attacked:
        benign = [row for k, row in enumerate(clients) if k not in malicious]
        each = np.array([row["test_accuracy"] for row in benign])
        accuracy = float(np.average(each, weights=[row["test_samples"] for row in benign]))
        variance = float(each.var())
    return Outcome(
        round(accuracy, 6),
        round(variance, 6),
        measured["collapsed"][0],
        malicious,
        () if malicious else tuple(round(row["test_accuracy"], 4) for row in clients),
    )


# -- tables ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class AttackedCell:
    """One figure of a table, over seeds."""

    accuracy: float  # mean over seeds
    variance: float  # population variance over benign clients, mean over seeds
    ci95: float | None = None  # half the 95 % interval of the accuracy over seeds
    collapsed: tuple[int, ...] = ()  # for each seed that collapsed, the round from which on
    by_seed: tuple[float, ...] = ()
    same_clients: float | None = None  # the clean accuracy of the clients that are benign here

    @classmethod
    def of(cls, results: Sequence[Outcome], clean: Sequence[Outcome] = ()) -> AttackedCell:
        """The cell of the runs of all seeds; `clean` are those without malicious clients."""
        accuracy = [r.accuracy for r in results]
        pairs = zip(results, clean, strict=False)
        return cls(
            accuracy=_mean(accuracy),
            variance=_mean([r.variance for r in results]),
            ci95=interval(accuracy),
            collapsed=tuple(r.collapsed for r in results if r.collapsed),
            by_seed=tuple(accuracy),
            same_clients=_mean([c.accuracy_without(r.malicious) for r, c in pairs])
            if clean
            else None,
        )

    def text(self) -> str:
        """As in the tables.

        >>> AttackedCell(0.9, 0.01).text(), AttackedCell(0.9, 0.01, 0.002).text()
        ('0.900 (0.010)', '0.900 ± 0.002 (0.010)')
        >>> AttackedCell(0.1, 0.01, collapsed=(40, 60), by_seed=(0.1, 0.1)).text()
        '★ round 40'
        >>> AttackedCell(0.1, 0.01, collapsed=(40,), by_seed=(0.1, 0.1, 0.1)).text()
        '★ round 40 (1 of 3 seeds)'
        """
        if self.collapsed:
            fallen, seeds = len(self.collapsed), len(self.by_seed)
            some = "" if fallen == seeds else f" ({fallen} of {seeds} seeds)"
            return f"★ round {min(self.collapsed)}{some}"
        spread = "" if self.ci95 is None else f" ± {self.ci95:.3f}"
        return f"{self.accuracy:.3f}{spread} ({self.variance:.3f})"

    def short(self) -> str:
        """The accuracy alone, or ★."""
        return "★" if self.collapsed else f"{self.accuracy:.3f}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


Row = dict[float, AttackedCell]  # share of malicious clients (0 = clean) -> cell


@dataclass
class Tables:
    """rows[federation, attack, method]: the cells of one row of one table."""

    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)

    @property
    def federations(self) -> list[str]:
        return list(dict.fromkeys(federation for federation, _, _ in self.rows))

    @property
    def attacks(self) -> list[str]:
        return list(dict.fromkeys(attack for _, attack, _ in self.rows))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for _, _, method in self.rows))

    def of_method(self, method: str) -> Iterator[tuple[str, str, Row]]:
        """(federation, attack, row) for every row of a method."""
        yield from ((f, a, row) for (f, a, m), row in self.rows.items() if m == method)

    def as_dict(self) -> dict[str, Any]:
        """As robustness.json holds them: federation -> attack -> method -> share -> cell."""
        tables: dict[str, Any] = {}
        for (federation, attack, method), row in self.rows.items():
            methods = tables.setdefault(federation, {}).setdefault(attack, {})
            methods[method] = {f"{share:g}": vars(cell) for share, cell in row.items()}
        return tables

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Tables:
        """The tables of robustness.json."""
        return cls(
            {
                (federation, attack, method): {float(s): _cell(c) for s, c in cells.items()}
                for federation, attacks in stored.items()
                for attack, methods in attacks.items()
                for method, cells in methods.items()
            }
        )


def _cell(fields: dict[str, Any]) -> AttackedCell:
    lists = {name: tuple(fields[name]) for name in ("collapsed", "by_seed")}
    return AttackedCell(**{**fields, **lists})


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
