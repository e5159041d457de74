"""Rows of tables that papers of our methods print, beside ours; and why other methods have none.

A row is run as it is printed: what a paper leaves open is taken from its public code. Nothing is
searched for. At quick scale fewer rounds are run, and no cell may then agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from idiolect import Federation, Method, Plan, Task, data, make_method, models, paired_difference
from idiolect.study import Stock

from ..marks import AGREES, NOT_RUN, ORDER, Cell, Figure, apart, beside, marked
from ..page import Row, table, write_page
from ..published import read_table
from ..runs import Runs, Summary, column, scaled_runs
from ..texts import read_text

NAME = "original-rows"
TEXTS = read_text(NAME)
WIDE = 2.0  # points: half an interval above it tells nothing
TOO_WIDE = "too wide to tell"
REFERENCE = "Local"  # the row that others are set beside, where a table has it
PERSONAL = ("accuracy", "mean")  # of a summary: pooled over samples
OVER_CLIENTS = ("accuracy", "mean_of_clients")
GLOBAL = ("global_model", "accuracy", "mean")


# -- data -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Pool:
    """Samples of each class, in a drawn order, of which none is given twice."""

    by_class: list[np.ndarray]
    given: list[int]  # of each class, so many have been

    @classmethod
    def of(cls, labels: np.ndarray, first: int, end: int, rng: np.random.Generator) -> Pool:
        classes = range(int(labels.max()) + 1)
        own = [rng.permutation(first + np.flatnonzero(labels[first:end] == c)) for c in classes]
        return cls(own, [0] * len(own))

    def take(self, c: int, count: int) -> np.ndarray:
        """So many samples of class c.

        >>> labels = np.array([0, 1, 0, 1, 0])
        >>> pool = Pool.of(labels, 0, 5, np.random.default_rng(0))
        >>> sorted([*pool.take(0, 2).tolist(), *pool.take(0, 1).tolist()])
        [0, 2, 4]
        """
        first = self.given[c]
        if first + count > len(self.by_class[c]):
            raise ValueError(f"class {c} has {len(self.by_class[c])} samples, too few")
        self.given[c] += count
        return self.by_class[c][first : first + count]


Deal = list[tuple[int, str, np.ndarray]]  # client, split, samples


@cache
def images() -> Federation:
    """MNIST as one client: its 60,000 training images, then its 10,000 test images."""
    return data.load("mnist", clients=1, classes_per_client=10, level=False, valid=0.0)


def dealt(source: Federation, parts: Deal, change: Callable[[Tensor], Tensor]) -> Federation:
    """The federation of what each client was given."""
    samples = torch.from_numpy(np.concatenate([own for *_, own in parts]))
    counts = [len(own) for *_, own in parts]
    return Federation.from_arrays(
        change(source.inputs[samples]),
        source.targets[samples],
        np.repeat([client for client, *_ in parts], counts),
        split=np.repeat([split for _, split, _ in parts], counts),
        classes=source.classes,
        name=source.name,
    )


def ways_and_shots(ways: int = 3, clients: int = 20, spread: int = 2, seed: int = 0) -> Federation:
    """FedProto's: about `ways` classes per client, 99 or 100 training samples of each, 40 to test.

    The numbers of classes are drawn from `ways` - `spread`, at least 2, to `ways` + `spread`.
    """
    source = images()
    rng = np.random.default_rng(seed)
    labels = source.targets.numpy()
    train, test = (
        Pool.of(labels, int(at[0]), int(at[-1]), rng)
        for at in (source.offsets["train"], source.offsets["test"])
    )
    parts: Deal = []
    for client in range(clients):
        most = min(source.classes, ways + spread)
        count = rng.integers(max(2, ways - spread), most + 1)
        shots = int(rng.integers(99, 101))
        for c in rng.choice(source.classes, count, replace=False):
            parts.append((client, "train", train.take(c, shots)))
            parts.append((client, "test", test.take(c, 40)))
    return dealt(source, parts, lambda x: (x - 0.1307) / 0.3081)


def half_the_classes(clients: int = 10, samples: int = 1000, seed: int = 0) -> Federation:
    """pFedBayes's: 5 classes per client, in turn, so many samples of each; a fifth of them train.

    All 70,000 images are dealt from.
    """
    source = images()
    rng = np.random.default_rng(seed)
    labels = source.targets.numpy()
    pool = Pool.of(labels, 0, len(labels), rng)
    parts: Deal = []
    for client in range(clients):
        for k in range(5):
            own = pool.take((5 * client + k) % source.classes, samples)
            train = samples // 5
            parts += [(client, "train", own[:train]), (client, "test", own[train:])]
    return dealt(source, parts, lambda x: 2 * x - 1)


def two_classes(clients: int = 50, seed: int = 0) -> Federation:
    """pFedHN's: all of MNIST to 50 clients with two classes each, a fifth for validation."""
    return data.load("mnist", clients=clients, level=False, seed=seed)


# -- models ---------------------------------------------------------------------------------------
def named(layers: Mapping[str, nn.Module]) -> nn.Sequential:
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


def two_by_two(inputs: tuple[int, ...], outputs: int) -> nn.Sequential:
    """FedProto's CNN of MNIST, in its code with dropout: 50 features.

    >>> sum(p.numel() for p in two_by_two((1, 28, 28), 10).parameters())
    21840
    """
    return named(
        {
            "conv1": nn.Conv2d(inputs[0], 10, 5),
            "pool1": nn.MaxPool2d(2),
            "relu1": nn.ReLU(),
            "conv2": nn.Conv2d(10, 20, 5),
            "drop1": nn.Dropout2d(),
            "pool2": nn.MaxPool2d(2),
            "relu2": nn.ReLU(),
            "flatten": nn.Flatten(),
            "fc1": nn.Linear(320, 50),
            "relu3": nn.ReLU(),
            "drop2": nn.Dropout(),
            "fc2": nn.Linear(50, outputs),
        }
    )


def lenet(inputs: tuple[int, ...], outputs: int) -> nn.Sequential:
    """pFedHN's target network with 7 kernels.

    >>> sum(p.numel() for p in lenet((1, 28, 28), 10).parameters())
    40660
    """
    return named(
        {
            "conv1": nn.Conv2d(inputs[0], 7, 5),
            "relu1": nn.ReLU(),
            "pool1": nn.MaxPool2d(2),
            "conv2": nn.Conv2d(7, 14, 5),
            "relu2": nn.ReLU(),
            "pool2": nn.MaxPool2d(2),
            "flatten": nn.Flatten(),
            "fc1": nn.Linear(14 * 4 * 4, 120),
            "relu3": nn.ReLU(),
            "fc2": nn.Linear(120, 84),
            "relu4": nn.ReLU(),
            "fc3": nn.Linear(84, outputs),
        }
    )


def one_layer(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """pFedBayes's: one hidden layer of 100 units."""
    return models.make("mlp", inputs, outputs, hidden="100")


# -- tables ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PrintedRow:
    """How a row is run: a method, and for how many rounds."""

    method: Method
    rounds: int  # as printed
    quick: int  # at quick scale; 0: not run
    quick_method: Method | None = None  # where it is another one at quick scale


@dataclass(frozen=True)
class PrintedTable:
    """A published table in its setting."""

    federation: Callable[..., Federation]  # of a seed, and of what differs between columns
    model: Callable[[tuple[int, ...], int], nn.Module]
    rows: Mapping[str, PrintedRow]
    figures: Mapping[str, Sequence[str]]  # by column, the path of its figure in a summary
    settings: Row  # of all runs
    data: Mapping[str, Row] = field(default_factory=dict)  # by column, where they differ
    quick: Row = field(default_factory=dict)  # settings at quick scale that differ
    quick_columns: int = 0  # the first ones only; 0: all

    def columns(self, scale: str) -> list[str]:
        every = list(self.figures)
        return every[: self.quick_columns or None] if scale == "quick" else every


def proto_rows() -> dict[str, PrintedRow]:
    """Table 1's methods that are here, with its numbers of rounds."""
    work: Row = {"lr": 0.01, "epochs": 1}
    return {
        "Local": PrintedRow(make_method("local", init="own", **work), 100, 10),
        "FedProx": PrintedRow(make_method("fedprox", **work), 110, 0),
        "FedPer": PrintedRow(make_method("fedper", part="fc*", **work), 100, 10),
        "FedAvg": PrintedRow(make_method("fedavg", **work), 150, 0),
        "FedRep": PrintedRow(
            make_method("fedrep", part="fc*", private_lr=0.01, private_epochs=1, **work), 100, 10
        ),
        "FedProto": PrintedRow(
            make_method("fedproto", lam=1.0, pull="samples", weighting="equal", init="own", **work),
            100,
            10,
        ),
    }


@cache
def printed_tables() -> dict[str, PrintedTable]:
    """By the name in texts/original-rows.toml and of the file of figures."""
    bayes = make_method(
        "pfedbayes", lr=0.001, shared_lr=0.001, steps=20, zeta=10.0, rho=-2.5, draws=1
    )
    hyper, quick_hyper = (
        make_method(
            "pfedhn", lr=0.005, steps=steps, hyper_lr=0.1, embedding=13, hidden=100, layers=1
        )
        for steps in (50, 20)
    )
    return {
        "fedproto": PrintedTable(
            ways_and_shots,
            two_by_two,
            proto_rows(),
            dict.fromkeys(("n = 3", "n = 4", "n = 5"), OVER_CLIENTS),
            {"batch": 8, "optimizer_options": "momentum=0.5"},
            {f"n = {ways}": {"ways": ways} for ways in (3, 4, 5)},
            quick_columns=1,
        ),
        "pfedbayes": PrintedTable(
            half_the_classes,
            one_layer,
            {"pFedBayes": PrintedRow(bayes, 800, 40)},
            {"personal models": PERSONAL, "global model": GLOBAL},
            {"batch": 100, "optimizer": "adam"},
        ),
        "pfedhn": PrintedTable(
            two_classes,
            lenet,
            {"pFedHN": PrintedRow(hyper, 5000, 100, quick_hyper)},
            {"50 clients": PERSONAL},
            {
                "batch": 64,
                "sample": 1,
                "optimizer_options": "momentum=0.9",
                "weight_decay": 5e-5,
            },
            quick={"sample": 5},
        ),
    }


# -- runs -----------------------------------------------------------------------------------------
def measured(
    printed: PrintedTable, scale: str, seeds: int, runs: Runs
) -> dict[str, dict[str, list[float | None]]]:
    """By row and column, the figures in per cent, one per seed of data and of training."""
    figures: dict[str, dict[str, list[float | None]]] = {}
    for columns, options in _by_data(printed, scale):
        federation = data.load(printed.federation, **options)
        inputs, outputs = federation.shape, federation.classes
        stock = Stock({"": federation}, {"": Task(partial(printed.model, inputs, outputs))})
        plans = {
            label: _plan(label, row, printed, scale, seeds)
            for label, row in printed.rows.items()
            if _rounds(row, scale)
        }
        for label, summaries in runs(plans, stock, range(seeds)).items():
            own = figures.setdefault(label, {})
            own |= {name: _percent(summaries, printed.figures[name]) for name in columns}
            own["cpu"] = column(summaries, "cpu_seconds")
    return figures


def _by_data(printed: PrintedTable, scale: str) -> list[tuple[list[str], Row]]:
    """The columns of a scale, those of the same data together."""
    groups: list[tuple[list[str], Row]] = []
    for name in printed.columns(scale):
        options = dict(printed.data.get(name, {}))
        same = [columns for columns, own in groups if own == options]
        if same:
            same[0].append(name)
        else:
            groups.append(([name], options))
    return groups


def _rounds(row: PrintedRow, scale: str) -> int:
    return row.quick if scale == "quick" else row.rounds


def _plan(label: str, row: PrintedRow, printed: PrintedTable, scale: str, seeds: int) -> Plan:
    settings, method = dict(printed.settings), row.method
    if scale == "quick":
        settings |= printed.quick
        method = row.quick_method or method
    if method.traits.sends == "nothing":
        settings.pop("sample", None)
    several = ",".join(map(str, range(seeds))) + ","
    settings |= {"rounds": _rounds(row, scale), "eval_every": 0, "data_seeds": several}
    return Plan.of(method, settings=settings, name=label)


def _percent(summaries: Sequence[Summary], path: Sequence[str]) -> list[float | None]:
    values = column(summaries, *path)
    return [None if v is None else round(100 * v, 3) for v in values]


# -- marks ----------------------------------------------------------------------------------------
Gains = Mapping[tuple[str, str], tuple[float, float]]  # by row and column: the mean, half of 95 %


def cells_of(key: str, stored: Row) -> list[Cell]:
    """The cells of a table: the figures as printed, and ours.

    What a paper prints behind ± is over clients, or is not said to be over what: it is no interval.
    """
    scale, ours = stored["scale"], stored["tables"][key]
    printed = printed_tables()[key]
    columns = printed.columns(scale)
    theirs = {
        label: {name: figure and replace(figure, half=None) for name, figure in row.items()}
        for label, row in read_table(f"original-{key}")[""].items()
    }
    here = {
        label: {name: Figure.of(row[name], 2) for name in columns if name in row}
        for label, row in ours.items()
    }
    return beside(key, theirs, here, columns, stand_in=scale == "quick")


def says(cell: Cell, mark: str, others: Sequence[Cell]) -> str:
    """What a cell tells beside the `others` of its column.

    At a smaller scale never that figures agree; of a wide interval nothing; and an order only where
    our intervals set rows apart.
    """
    if mark == NOT_RUN:
        return NOT_RUN
    assert cell.ours is not None
    if cell.ours.mean is None:
        return str(TEXTS["marks"]["diverged"])
    if cell.ours.half is None or cell.ours.half > WIDE:
        return TOO_WIDE
    words = TEXTS["marks"]["smaller" if cell.stand_in else "printed"]
    if mark == AGREES:
        return AGREES
    rivals = [other.ours for other in others if other is not cell and other.ours is not None]
    if not rivals:
        return str(words["alone"])
    if mark == ORDER and not any(apart(cell.ours, rival) for rival in rivals):
        return str(words["overlap"])
    return str(words["order" if mark == ORDER else "other"])


def compared(cells: Sequence[Cell], gains: Gains | None = None) -> list[Row]:
    """A line per row and column; `gains` are differences to Local over seeds, by row and column."""
    rows: list[Row] = []
    printed = {cell.column: cell.paper for cell in cells if cell.row == REFERENCE}
    for cell, mark in zip(cells, marked(cells), strict=True):
        others = [other for other in cells if other.column == cell.column]
        row: Row = {
            "row": cell.row,
            "column": cell.column,
            "printed": "–" if cell.paper is None else str(cell.paper),
            "here": "–" if cell.ours is None else str(cell.ours),
            "": says(cell, mark, others),
        }
        if printed:
            gap = _less(cell.paper, printed[cell.column])
            gain = (gains or {}).get((cell.row, cell.column))
            row["less Local: printed"] = "–" if gap is None else f"{gap:+.2f}"
            row["less Local: here"] = "–" if gain is None else f"{gain[0]:+.2f} ± {gain[1]:.2f}"
        rows.append(row)
    return rows


def _less(figure: Figure | None, other: Figure | None) -> float | None:
    if figure is other or figure is None or other is None:
        return None
    return None if figure.mean is None or other.mean is None else figure.mean - other.mean


def gains_over_local(
    ours: Mapping[str, Mapping[str, Sequence[float]]],
) -> Gains:
    """Row less Local on the same data, by row and column: the mean ± half the 95 % interval.

    >>> gains_over_local({"Local": {"n": [95.0, 96.0, 97.0]}, "a": {"n": [96.0, 96.9, 98.1]}})
    {('a', 'n'): (1.0, 0.248)}
    """
    out: dict[tuple[str, str], tuple[float, float]] = {}
    for label, row in ours.items():
        for name, values in row.items():
            local = ours.get(REFERENCE, {}).get(name)
            if label == REFERENCE or not local or None in [*values, *local] or len(local) < 2:
                continue
            gain, half = paired_difference(list(values), list(local))
            out[label, name] = round(gain, 3), round(half or 0.0, 3)
    return out


def turned(cells: Sequence[Cell], gains: Gains) -> list[str]:
    """The cells that our paired differences set on the other side of Local than printed."""
    printed = {cell.column: cell.paper for cell in cells if cell.row == REFERENCE}
    names = []
    for cell in cells:
        gain, half = gains.get((cell.row, cell.column), (0.0, 0.0))
        gap = _less(cell.paper, printed.get(cell.column))
        if gap and abs(gain) > half and gain * gap < 0:
            names.append(f"{cell.row} ({cell.column})")
    return names


def above(cells: Sequence[Cell]) -> list[str]:
    """The cells of a smaller scale that are above the printed figure already."""
    names = []
    for cell in cells:
        if not cell.stand_in or cell.paper is None or cell.ours is None:
            continue
        if apart(cell.ours, cell.paper) == 1 and (cell.ours.half or WIDE) < WIDE:
            names.append(f"{cell.row} ({cell.column})")
    return names


# -- the page -------------------------------------------------------------------------------------
def page_of(stored: Row) -> str:
    """The page of stored figures."""
    sections: list[str] = []
    told: list[str] = []
    better: list[str] = []
    other_side: list[str] = []
    for key in stored["tables"]:
        words = TEXTS["tables"][key]
        cells = cells_of(key, stored)
        better += above(cells)
        gains = gains_over_local(stored["tables"][key])
        other_side += turned(cells, gains)
        rows = compared(cells, gains)
        told += [row[""] for row in rows]
        settings = words["scales"][stored["scale"]]
        sections += [
            f"## {words['title']}",
            "",
            *table(rows),
            "",
            f"Printed: {words['source']}",
            "",
            f"Setting: {words['setting']}",
            "",
            f"At this scale: {settings}",
            "",
        ]
    return TEXTS["page"].format(
        opening=opening(told, stored, better, other_side),
        sections="\n".join(sections),
        reasons="\n".join(table(reasons())),
        seeds=stored["seeds"],
        scale=stored["scale"],
        wide=f"{WIDE:g}",
        minutes=f"{stored['cpu'] / 60:.0f}",
    )


def opening(
    told: Sequence[str], stored: Row, better: Sequence[str] = (), other_side: Sequence[str] = ()
) -> str:
    """How many cells say what; which are above what is printed, or on Local's other side."""
    counts = {word: told.count(word) for word in dict.fromkeys(told)}
    listed = ", ".join(f"{number} {word}" for word, number in counts.items())
    sentences = [TEXTS["opening"]["counts"].format(number=len(told), listed=listed)]
    if stored["scale"] == "quick":
        sentences.append(TEXTS["opening"]["quick"])
    elif not counts.get(AGREES):
        sentences.append(TEXTS["opening"]["none"])
    if better:
        sentences.append(TEXTS["opening"]["above"].format(names=", ".join(better)))
    if other_side:
        sentences.append(TEXTS["opening"]["turned"].format(names=", ".join(other_side)))
    return " ".join(sentences)


def reasons() -> list[Row]:
    """Every method of the task: a row here, or why there is none, and where was looked."""
    return [
        {"method": name, "row": row["row"], "looked at": row.get("looked", "–")}
        for name, row in TEXTS["methods"].items()
    ]


def write(folder: Path, scale: str, jobs: int = 1) -> list[Path]:
    """Run what is missing, and write the page."""
    runs = scaled_runs(folder, NAME, scale, jobs)
    return written(folder, scale, list(printed_tables()), TEXTS["seeds"][scale], runs)


def written(folder: Path, scale: str, keys: Sequence[str], seeds: int, runs: Runs) -> list[Path]:
    """The page and its figures of some tables."""
    tables: Row = {}
    for key in keys:
        own = Runs(runs.directory / key, runs.jobs)
        tables[key] = measured(printed_tables()[key], scale, seeds, own)
    cpu = sum(sum(row.pop("cpu")) for ours in tables.values() for row in ours.values())
    stored = {"scale": scale, "seeds": seeds, "cpu": round(cpu), "tables": tables}
    return write_page(folder, NAME, page_of(stored), stored)
