"""Is anyone left behind? The clients behind the mean: best, median, worst, and who gains.

What a client gains is counted against Local, which trains as much and hears nobody, and against
the client's own constant answer (its most frequent class, or the mean of its training targets).
Who gains, who loses, and of whom the data cannot tell is the rule of verdicts.py, as in an advice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.columns import LONGEST, Column, FittedTable, render
from ..core.documents import plain
from ..core.knobs import SettingError
from ..core.text import plural, shown
from ..data.federation import Census
from ..data.redraw import PARTITION
from .format import count, number, signed
from .verdicts import CANNOT_TELL, GAINS, LOSES, ClientGain, judged_clients, weighed_terms

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
    gains: dict[str, ClientGain]  # over Local at equal compute; {} where there is none
    over_constant: Values  # over the client's own constant answer; {} where there is none

    def row(self, higher: bool) -> dict[str, Any]:
        """The method in one line."""
        label = self.label
        if not label.startswith(self.name):  # one of several of that method
            label = f"{self.name}: {label}"
        ordered = sorted(self.values.values(), reverse=higher)
        verdicts = Counter(gain.verdict for gain in self.gains.values())
        below = sum(gain < -SAME for gain in self.over_constant.values())
        return {
            "method": label,
            "best": ordered[0] if ordered else math.nan,
            "median": median(ordered) if ordered else math.nan,
            "worst": ordered[-1] if ordered else math.nan,
            "below_constant": below if self.over_constant else None,
            "gain": verdicts[GAINS] if self.gains else None,
            "lose": verdicts[LOSES] if self.gains else None,
            "cannot_tell": verdicts[CANNOT_TELL] if self.gains else None,
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
    weight: str = ""  # the column that samples are weighed by
    groups: dict[str, int] = field(default_factory=dict)  # of these samples; {} without groups

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
                **({"groups": self.groups[name]} if self.groups else {}),
                "values": {s.name: s.values.get(name, math.nan) for s in self.served},
                **_gain_figures(first.gains.get(name)),
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
            columns.append(Column("cannot tell", 4, counted("cannot_tell")))
        clients = plural(len(self.ordered), "client")
        title = f"{self.figure} of {clients}, each on its own test data"
        return FittedTable(columns, rows, title, self._note())

    def _note(self) -> str:
        notes = []
        if any(s.gains for s in self.served):
            units = "groups of test samples" if self.groups else "test samples"
            notes.append(
                "gain, lose, cannot tell: clients, against Local with as many gradients, by paired "
                f"tests on their {units} (5 % of those called may be wrong)"
            )
            bounds = [gain.low for s in self.served for gain in s.gains.values()]
            if self.groups and not any(map(math.isfinite, bounds)):
                notes.append(
                    "no intervals: a record does not say which samples are of one group; "
                    "compare --clients-table shows them, which has the data"
                )
        if any(s.over_constant for s in self.served):
            notes.append(
                f"below {self.constant}: clients that one constant answer, their own, serves better"
            )
        if self.without:
            have = "has" if self.without == 1 else "have"
            clients = plural(self.without, "client")
            notes.append(f"{clients} {have} no value: no test data, or not defined")
        if self.weight:
            notes.append(f"weighted by {shown(self.weight, LONGEST)!r}")
        return "\n".join(notes)

    def _clients(self) -> FittedTable:
        rows = self.rows()
        columns = [
            Column("client", 0, lambda r: shown(r["client"], LONGEST), words=True, least=14),
            Column("place", 90, lambda r: r["place"]),
            Column("test samples", 91, lambda r: count(r["samples"])),
        ]
        if self.groups:
            columns.append(Column("groups", 91.5, lambda r: count(r["groups"])))
        several = len(self.served) > 1
        for at, s in enumerate(self.served):
            # the first and the last (Local, where it is there) stay longest
            rank = 0 if at == 0 else 1 if s is self.served[-1] else 1 + at
            columns.append(_value_column(s.name if several else self.figure, s, rank))
        if self.served[0].gains:
            columns.append(Column("gain over Local", 92, lambda r: signed(r["gain"])))
            columns.append(Column("95 % interval", 94, _interval))
            columns.append(Column("verdict", 93, lambda r: r["verdict"] or "–"))
        if self.served[0].over_constant and not several:
            heading = f"over {self.constant}"
            columns.append(Column(heading, 95, lambda r: signed(r["over_constant"])))
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
    for one in results:
        refuse_pooled_clients(one.record.data.get("drawn", ""), len(one.seeds))
    if local is None and several:
        alone = [r for r in results if r.record.method == "local"]
        local = max(alone, key=_gradients, default=None)
    # Local is what the others are measured by: it stands last, unless it stands alone
    order = sorted(range(len(results)), key=lambda i: results[i].record.method == "local")
    names = short_names([results[i].record.method for i in order])
    records = [results[i].record for i in order]
    record = records[0]
    figure = record.figure
    higher = _higher(record, figure)
    constants = dict(zip(_names(record), record.baseline, strict=False))
    served = []
    for name, i, one in zip(names, order, records, strict=True):
        values = _values(one, figure)
        own = local is not None and one is not local.record
        gains = _gains(results[i], local, figure, higher) if own else {}
        served.append(
            Served(name, labels[i], values, gains, _difference(values, constants, higher))
        )
    rows = [row for row in record.seeds[0].clients if not row["malicious"] and not row["held_out"]]
    samples = {str(row["client"]): int(row["test_samples"]) for row in rows}
    constant = "majority class" if figure == "accuracy" else "constant answer"
    without = len(rows) - len(served[0].values)
    weight = str(record.data.get("weight", ""))
    groups = _groups(record)
    return ClientsView(figure, higher, served, samples, without, constant, weight, groups)


def refuse_pooled_clients(drawn: str, repeats: int) -> None:
    """Refuse a table of clients over repeats that have other clients, or other samples of them.

    `drawn` is what the seeds of the data draw; "" where all repeats have the same data.
    """
    if not drawn or repeats < 2:
        return
    reason = "in which the samples of a client are not the same"
    if drawn == PARTITION:
        reason = "whose clients are not the same people"
    raise SettingError(
        f"clients_table: no table can pool the clients of {repeats} draws of the data "
        f"(data_seeds), {reason}; clients.csv has a row for each client of each, and a run without "
        "data_seeds has the table"
    )


def _value_column(heading: str, s: Served, rank: int) -> Column:
    return Column(shown(heading, 30), rank, lambda r: number(r["values"][s.name]))


def _gradients(result: Any) -> float:
    return float(result.record.seeds[0].gradients_per_client)


def _higher(record: Any, figure: str) -> bool:
    facts = record.metrics.get(figure, {})
    return bool(facts.get("higher_is_better", figure != "loss"))


def _names(record: Any) -> list[str]:
    return [str(row["client"]) for row in record.seeds[0].clients]


def short_names(methods: Sequence[str]) -> list[str]:
    """A name of each row that no other has.

    >>> short_names(["fedavg", "local", "local"])
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


SAME = 1e-9  # figures that differ by less are equal


# -- gains over Local ------------------------------------------------------------------------------
def _gains(result: Any, local: Any, figure: str, higher: bool) -> dict[str, ClientGain]:
    """What every client that has a figure gains over Local, with verdicts.

    Paired sample by sample where the models of both are to be had. Where only figures are, hits
    are taken to disagree as often as these allow, and of other figures the data cannot tell.
    """
    values, theirs = (_values(one.record, figure) for one in (result, local))
    differences = _difference(values, theirs, higher)
    names = [name for name in _names(result.record) if name in differences]
    sizes = {str(row["client"]): row["test_samples"] for row in result.record.seeds[0].clients}
    effective = _effective(result.record, names)
    counted = figure == "accuracy" and effective is None
    groups = _groups(result.record)
    group = None
    try:
        each, owner, group = _paired(result, local, figure, names)
    except SettingError:
        # which samples are of one group the record does not say
        each, owner = _unpaired(values, theirs, sizes, names, counted and not groups)
    judged = judged_clients(each, owner, names, counted, effective=effective, group=group)
    return {
        name: replace(gain, gain=differences[name], samples=sizes[name], groups=groups.get(name))
        for name, gain in zip(names, judged, strict=True)
    }


def _effective(record: Any, names: Sequence[str]) -> np.ndarray | None:
    """As how many test samples of one weight those of each client say.

    None where the samples of no client weigh unlike: its accuracy is then a count over samples.
    """
    rows = {str(row["client"]): row for row in record.seeds[0].clients}
    worth = [row.get("test_effective", math.inf) - row["test_samples"] for row in rows.values()]
    if min(worth) > -SAME:
        return None
    return np.array([rows[name]["test_effective"] for name in names])


def _groups(record: Any) -> dict[str, int]:
    """How many groups (patients) the test samples of every client are of; {} without groups."""
    rows = record.seeds[0].clients
    return {str(row["client"]): int(row["test_groups"]) for row in rows if "test_groups" in row}


def _paired(
    result: Any, local: Any, figure: str, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The difference of each test sample, the mean over seeds; its client's position, its group.

    Of a figure that no single sample has, that of the loss. None without groups.
    """
    seeds = [seed.seed for seed in result.record.seeds]
    by_seed = []
    for seed in seeds:
        one, other = (_samples(r, seed, figure) for r in (result, local))
        if one.shape != other.shape:
            raise SettingError("local: it must be of the same data")
        by_seed.append(one - other)
    everyone = _names(result.record)
    sizes = [int(row["test_samples"]) for row in result.record.seeds[0].clients]
    each = np.mean(by_seed, axis=0)
    if len(each) != sum(sizes):
        raise SettingError("clients: their samples are not all at hand")
    place = {name: at for at, name in enumerate(names)}
    owner = np.repeat([place.get(name, -1) for name in everyone], sizes)
    hosts = result.session(seeds[0]).hosts
    if _effective(result.record, names) is not None:
        weights = _in_order(hosts, [host.data.weights_of("test").numpy() for host in hosts])
        each = weighed_terms(each, weights, np.repeat(np.arange(len(sizes)), sizes))
    if any(host.data.groups is None for host in hosts):
        return each[owner >= 0], owner[owner >= 0], None
    group = _in_order(hosts, [host.data.groups_of("test").numpy() for host in hosts])
    return each[owner >= 0], owner[owner >= 0], group[owner >= 0]


def _samples(result: Any, seed: int, figure: str) -> np.ndarray:
    """What every test sample says of a result's personal models, higher is better."""
    session = result.session(seed)
    version = session.server.version
    if any(isinstance(host.data, Census) for host in session.hosts):
        raise SettingError("data: the samples are not at hand")
    server = session.server
    parts = [
        host.each_sample(version, server.message(version, host.wire_ids), "test")
        for host in session.hosts
    ]
    return _in_order(
        session.hosts, [(hits if figure == "accuracy" else -loss).numpy() for hits, loss in parts]
    )


def _in_order(hosts: Sequence[Any], parts: Sequence[np.ndarray]) -> np.ndarray:
    """An entry of each test sample at every host, in the order of clients."""
    sizes = [host.data.sizes("test").numpy() for host in hosts]
    pairs = zip(hosts, sizes, strict=True)
    owner = np.concatenate([np.repeat(host.wire_ids.numpy(), each) for host, each in pairs])
    return np.concatenate(parts)[owner.argsort(kind="stable")]


def _unpaired(
    values: Values, theirs: Values, sizes: dict[str, int], names: Sequence[str], counted: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Differences as unlike as the two accuracies of each client allow; none of other figures.

    >>> each, owner = _unpaired({"a": 0.75}, {"a": 0.5}, {"a": 4}, ["a"], True)
    >>> each.tolist()
    [1.0, 1.0, -1.0, 0.0]
    """
    if not counted:
        return np.zeros(0), np.zeros(0, dtype=np.int64)
    parts = []
    for name in names:
        n = int(sizes[name])
        ours, other = round(values[name] * n), round(theirs[name] * n)
        better = min(ours, n - other)
        worse = better - (ours - other)
        parts.append(np.repeat([1.0, -1.0, 0.0], [better, worse, n - better - worse]))
    return np.concatenate(parts), np.repeat(np.arange(len(names)), [len(p) for p in parts])


def _gain_figures(gain: ClientGain | None) -> dict[str, Any]:
    if gain is None:
        return dict.fromkeys(("gain", "low", "high", "verdict"))
    return {"gain": gain.gain, "low": gain.low, "high": gain.high, "verdict": gain.verdict}


def _interval(row: dict[str, Any]) -> str:
    if row["low"] is None or not math.isfinite(row["low"]):
        return "–"
    return f"{signed(row['low'])} to {signed(row['high'])}"
