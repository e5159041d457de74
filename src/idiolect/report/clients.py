"""Is anyone left behind? The clients behind the mean: best, median, worst, and who gains.

What a client gains is counted against Local, which trains as much and hears nobody, and against
the client's own constant answer (its most frequent class, or the mean of its training targets).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from ..core.columns import LONGEST, Column, FittedTable, render
from ..core.documents import plain
from ..core.text import shown
from .format import count, number, signed

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

ENDS = 5  # clients shown at the worst end; three at the best and in the middle
Values = dict[str, float]  # of every client, by its name


@dataclass(frozen=True)
class Served:
    """How the clients fare under one method: a figure of each on its own test data."""

    name: str  # short, for the heading of a column
    label: str
    values: Values
    gains: Values  # over Local at equal compute; {} where there is none
    over_constant: Values  # over the client's own constant answer; {} where there is none

    def row(self, higher: bool) -> dict[str, Any]:
        """The method in one line."""
        label = self.label
        if not label.startswith(self.name):  # one of several of that method
            label = f"{self.name}: {label}"
        ordered = sorted(self.values.values(), reverse=higher)
        gains = [_sign(gain) for gain in self.gains.values()]
        below = sum(_sign(gain) < 0 for gain in self.over_constant.values())
        return {
            "method": label,
            "best": ordered[0] if ordered else math.nan,
            "median": median(ordered) if ordered else math.nan,
            "worst": ordered[-1] if ordered else math.nan,
            "below_constant": below if self.over_constant else None,
            "gain": gains.count(1) if gains else None,
            "lose": gains.count(-1) if gains else None,
            "same": gains.count(0) if gains else None,
        }


@dataclass(frozen=True)
class ClientsView:
    """Clients by name under one method or several. It prints itself, and fits the terminal."""

    figure: str  # accuracy, loss or the chosen metric
    higher: bool  # whether higher is better
    served: list[Served]
    samples: dict[str, int]  # test samples of every client
    without: int  # clients that have no value: no test samples, or the metric is not defined
    constant: str = "majority class"  # what a constant answer is here

    @property
    def ordered(self) -> list[str]:
        """The clients from best to worst under the first method."""
        values = self.served[0].values
        return sorted(values, key=lambda c: -values[c] if self.higher else values[c])

    def rows(self) -> list[dict[str, Any]]:
        """The clients that are shown, with their place among all."""
        names = self.ordered
        if len(names) <= 3 + 3 + ENDS:
            places = dict.fromkeys(names, "")
            if names:
                places |= {names[len(names) // 2]: "median", names[0]: "best", names[-1]: "worst"}
        else:
            middle = len(names) // 2
            places = dict.fromkeys(names[:3], "best")
            places |= dict.fromkeys(names[middle - 1 : middle + 2], "median")
            places |= dict.fromkeys(names[-ENDS:], "worst")
        first = self.served[0]
        return [
            {
                "client": name,
                "place": place,
                "samples": self.samples[name],
                "values": {s.name: s.values.get(name, math.nan) for s in self.served},
                "gain": first.gains.get(name),
                "over_constant": first.over_constant.get(name),
            }
            for name, place in places.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        return plain(
            {
                "figure": self.figure,
                "higher_is_better": self.higher,
                "clients": len(self.ordered),
                "without_value": self.without,
                "methods": [s.row(self.higher) for s in self.served],
                "shown": self.rows(),
            }
        )

    def tables(self) -> list[FittedTable]:
        """A line per method, and a line per client that is shown."""
        return [self._methods(), self._clients()]

    def _methods(self) -> FittedTable:
        def figure(key: str) -> Any:
            return lambda r: number(r[key])

        def counted(key: str) -> Any:
            return lambda r: "–" if r[key] is None else count(r[key])

        rows = [s.row(self.higher) for s in self.served]
        columns = [
            Column("method", 0, lambda r: shown(r["method"], LONGEST), words=True, least=14),
            Column("worst", 0, figure("worst")),
            Column("median", 2, figure("median")),
            Column("best", 3, figure("best")),
        ]
        if any(s.over_constant for s in self.served):
            columns.append(Column(f"below {self.constant}", 1, counted("below_constant")))
        if any(s.gains for s in self.served):
            columns += [Column(word, 0, counted(word)) for word in ("gain", "lose")]
            columns.append(Column("same", 4, counted("same")))
        title = f"{self.figure} of {len(self.ordered):,} clients, each on its own test data"
        return FittedTable(columns, rows, title, self._note())

    def _note(self) -> str:
        notes = []
        if any(s.gains for s in self.served):
            notes.append("gain, lose, same: clients, against Local with as many gradients")
        if any(s.over_constant for s in self.served):
            notes.append(
                f"below {self.constant}: clients that one constant answer, their own, serves better"
            )
        if self.without:
            notes.append(f"{self.without:,} clients have no value: no test data, or not defined")
        return "\n".join(notes)

    def _clients(self) -> FittedTable:
        rows = self.rows()
        columns = [
            Column("client", 0, lambda r: shown(r["client"], LONGEST), words=True, least=14),
            Column("place", 90, lambda r: r["place"]),
            Column("test samples", 91, lambda r: count(r["samples"])),
        ]
        several = len(self.served) > 1
        for at, s in enumerate(self.served):
            # the first and the last (Local, where it is there) stay longest
            rank = 0 if at == 0 else 1 if s is self.served[-1] else 1 + at
            columns.append(_value_column(s.name if several else self.figure, s, rank))
        if self.served[0].gains:
            columns.append(Column("gain over Local", 92, lambda r: signed(r["gain"])))
        if self.served[0].over_constant and not several:
            heading = f"over {self.constant}"
            columns.append(Column(heading, 93, lambda r: signed(r["over_constant"])))
        some = "" if len(rows) == len(self.ordered) else f"; {len(rows)} are shown"
        by = f" by {self.served[0].name}" if len(self.served) > 1 else ""
        title = f"clients from best to worst{by}{some}"
        return FittedTable(columns, rows, shown(title))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.tables()

    def __str__(self) -> str:
        return render(self, 100)


def clients_view(result: Any, local: Any = None) -> ClientsView:
    """The clients of a result or of a comparison: who is served best and worst, who gains.

    `local` is a result of Local with as many gradients on the same data; a comparison has one
    itself. Malicious and held-out clients are left out; figures are means over seeds.

    >>> import idiolect as il
    >>> import torch
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> result = il.run(il.FedAvg(), il.Task(torch.nn.Linear(60, 10)), federation, rounds=2)
    >>> view = clients_view(result)
    >>> len(view.rows()), view.rows()[0]["place"], view.figure
    (4, 'best', 'accuracy')
    """
    several = hasattr(result, "results")
    results = list(result.results) if several else [result]
    labels = list(result.labels) if several else [result.label]
    if local is None and several:
        alone = [r for r in results if r.record.method == "local"]
        local = max(alone, key=_gradients, default=None)
    # Local is what the others are measured by: it stands last, unless it stands alone
    order = sorted(range(len(results)), key=lambda i: results[i].record.method == "local")
    names = _short_names([results[i].record.method for i in order])
    records = [results[i].record for i in order]
    record = records[0]
    figure = record.figure
    higher = _higher(record, figure)
    theirs = {} if local is None else _values(local.record, figure)
    constants = dict(zip(_names(record), record.baseline, strict=False))
    served = []
    for name, i, one in zip(names, order, records, strict=True):
        values = _values(one, figure)
        own = one is not (None if local is None else local.record)
        gains = _difference(values, theirs, higher) if own else {}
        served.append(
            Served(name, labels[i], values, gains, _difference(values, constants, higher))
        )
    rows = [row for row in record.seeds[0].clients if not row["malicious"] and not row["held_out"]]
    samples = {str(row["client"]): int(row["test_samples"]) for row in rows}
    constant = "majority class" if figure == "accuracy" else "constant answer"
    without = len(rows) - len(served[0].values)
    return ClientsView(figure, higher, served, samples, without, constant)


def _value_column(heading: str, s: Served, rank: int) -> Column:
    return Column(shown(heading, 30), rank, lambda r: number(r["values"][s.name]))


def _gradients(result: Any) -> float:
    return float(result.record.seeds[0].gradients_per_client)


def _higher(record: Any, figure: str) -> bool:
    facts = record.metrics.get(figure, {})
    return bool(facts.get("higher_is_better", figure != "loss"))


def _names(record: Any) -> list[str]:
    return [str(row["client"]) for row in record.seeds[0].clients]


def _short_names(methods: Sequence[str]) -> list[str]:
    """A name of each row that no other has.

    >>> _short_names(["fedavg", "local", "local"])
    ['fedavg', 'local 1', 'local 2']
    """
    times = Counter(methods)
    counts: Counter[str] = Counter()
    names = []
    for method in methods:
        counts[method] += 1
        names.append(f"{method} {counts[method]}" if times[method] > 1 else method)
    return names


def _values(record: Any, figure: str) -> Values:
    """The figure of every client that has one, the mean over seeds."""
    by_client: dict[str, list[float]] = {}
    for seed in record.seeds:
        for row in seed.clients:
            value = row.get(f"test_{figure}")
            if row["malicious"] or row["held_out"] or value is None or math.isnan(value):
                continue
            by_client.setdefault(str(row["client"]), []).append(float(value))
    return {client: sum(values) / len(values) for client, values in by_client.items()}


def _difference(values: Values, others: dict[str, Any], higher: bool) -> Values:
    """How much better each client is served than by the others, where both are known."""
    sign = 1 if higher else -1
    return {
        client: sign * (value - others[client])
        for client, value in values.items()
        if others.get(client) is not None and not math.isnan(others[client])
    }


def _sign(gain: float) -> int:
    return 0 if abs(gain) < 1e-9 else int(math.copysign(1, gain))
