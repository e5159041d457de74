"""The cells of the tables, over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from idiolect.host.scores import interval

from .grid import ATTACKS, NO_ATTACK, Key, Outcome


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
