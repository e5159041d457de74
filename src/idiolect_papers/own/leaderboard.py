"""The leaderboard: all methods, tuned alike, beside fine-tuned FedAvg at equal compute.

Cases are those of PFLlib, and natural ones. A row is stored in leaderboard.json with the key of all
that it depends on, so that the command runs only what is missing: methods that are new, or whose
defaults have changed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any

from torch import nn

from idiolect import Federation, Method, Plan, SettingError, Task, make_method
from idiolect.methods import equal_to
from idiolect.study import Stock

from ..case import Case, majority_accuracy
from ..page import Row
from ..runs import Runs, Summary, column
from ..texts import read_text

NAME = "leaderboard"
TEXTS = read_text(NAME)
FORMAT = 1  # of stored rows: a change in what they mean makes the old ones void


# -- cases ----------------------------------------------------------------------------------------
class FourLayerCnn(nn.Sequential):
    """PFLlib's FedAvgCNN: two unpadded 5x5 convolutions with pooling, then 512 units.

    >>> sum(p.numel() for p in FourLayerCnn((1, 28, 28), 10).parameters())
    582026
    """

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        channels, *sides = inputs
        height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
        super().__init__()
        for name, layer in {
            "conv1": nn.Conv2d(channels, 32, 5),
            "relu1": nn.ReLU(),
            "pool1": nn.MaxPool2d(2),
            "conv2": nn.Conv2d(32, 64, 5),
            "relu2": nn.ReLU(),
            "pool2": nn.MaxPool2d(2),
            "flatten": nn.Flatten(),
            "fc1": nn.Linear(64 * height * width, 512),
            "relu3": nn.ReLU(),
            "head": nn.Linear(512, outputs),
        }.items():
            self.add_module(name, layer)


@dataclass(frozen=True)
class BoardCase(Case):
    """A data set with its partition and model."""

    who: str = ""  # what a client is
    most: Mapping[str, int] | None = None  # samples of each client by split
    new: int = 4  # clients that are held out of training
    published: str = ""  # the column of PFLlib's table that has this setting or its larger form

    def load(self, **options: Any) -> tuple[Federation, Task]:
        federation, _ = super().load(**options)
        if self.most:
            federation = federation.capped(self.most)
        return federation, self.task(federation)

    def facts(self) -> Row:
        """What its runs depend on, as plain data."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        names = {n: v for n, v in own.items() if n not in ("who", "published")}
        return json.loads(json.dumps(names, default=lambda part: part.__name__))


_DIRICHLET = {"partition": "dirichlet", "alpha": 0.1, "capped": True, "minimum": 40}
_PATHOLOGICAL = {"partition": "classes", "classes_per_client": 2, "uneven": True}
_POOLED = {"pooled": True, "test": 0.25, "valid": 0.2}
_FEW: dict[str, Any] = {
    "model": "mlp",
    "model_options": {"hidden": "32"},
    "most": {"train": 120, "valid": 30, "test": 60},
}


def _images(
    data: str, partition: Mapping[str, Any], who: str, new: int = 4, **more: Any
) -> BoardCase:
    """An image set with 20 clients that train, and `new` ones."""
    options = {**_POOLED, **partition, "clients": 20 + new}
    return BoardCase(data, options=options, who=who, new=new, **more)


_SHARES, _PAIRS = "Dirichlet shares, α = 0.1", "two classes each"
QUICK = {
    "Fashion-MNIST, Dirichlet 0.1": _images(
        "fashion-mnist", _DIRICHLET, _SHARES, published="dirichlet", **_FEW
    ),
    "hapt": BoardCase("hapt", who="people with a phone at the waist", **_FEW),
    "Fashion-MNIST, two classes": _images(
        "fashion-mnist", _PATHOLOGICAL, _PAIRS, published="pathological", **_FEW
    ),
    "MNIST, Dirichlet 0.1": _images("mnist", _DIRICHLET, _SHARES, **_FEW),
    "CIFAR-10, Dirichlet 0.1": _images("cifar10", _DIRICHLET, _SHARES, **_FEW),
}
_CNN: dict[str, Any] = {"model": FourLayerCnn}
FULL = {
    "Fashion-MNIST, Dirichlet 0.1": _images(
        "fashion-mnist", _DIRICHLET, _SHARES, new=0, published="dirichlet", **_CNN
    ),
    "Fashion-MNIST, two classes": _images(
        "fashion-mnist", _PATHOLOGICAL, _PAIRS, new=0, published="pathological", **_CNN
    ),
    **{
        f"{title}, {kind}": _images(data, partition, who, **_CNN)
        for title, data in {"MNIST": "mnist", "CIFAR-10": "cifar10"}.items()
        for kind, partition, who in (
            ("Dirichlet 0.1", _DIRICHLET, _SHARES),
            ("two classes", _PATHOLOGICAL, _PAIRS),
        )
    },
    "hapt": BoardCase("hapt", "mlp", who="people with a phone at the waist"),
    "heart": BoardCase("heart", "mlp", model_options={"hidden": "16"}, who="hospitals", new=0),
    "quickdraw": BoardCase("quickdraw", "mlp", who="Dirichlet shares, α = 0.5"),
}


@dataclass(frozen=True)
class BoardSize:
    """How much is run."""

    rounds: int
    steps: int  # local steps per round, of methods that count them; of `epochs` too where it is 0
    epochs: int  # passes over a client's data per round, in place of steps
    seeds: int  # of the data, and of training: each has both of its own
    batch: int = 10
    searches: int = 1  # partitions that settings are chosen on; the seeds of the final runs follow

    def as_dict(self) -> Row:
        """Plain data."""
        return asdict(self)


SIZES = {"quick": BoardSize(25, 10, 0, 5), "full": BoardSize(2000, 200, 1, 5, searches=3)}
CASES = {"quick": QUICK, "full": FULL}


# -- candidates -----------------------------------------------------------------------------------
STEP_SIZES = ("lr", "personal_lr", "private_lr")  # scaled together
FEW_FACTORS = (1 / 3, 1.0, 3.0)  # on them, beside two values of the main field
MANY_FACTORS = tuple(3.0**exponent for exponent in (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0))  # alone
TRIALS = 2 * len(FEW_FACTORS)
ALTERNATIVES: dict[str, dict[str, Any]] = TEXTS["alternatives"]
STEPS: dict[str, dict[str, Any]] = TEXTS["steps"]
Choice = tuple[Method, Row]  # a method, and what tells it from the others


def candidates(name: str, size: BoardSize, **own: Any) -> list[Choice]:
    """What is tried for a method: as many settings for each, all with the same local work.

    Three step sizes and two values of the method's main field, the default and another one; six
    step sizes for a method without such a field. `own` fields go before those of the rule.
    """
    base = make_method(name, **(local_work(name, size) | own))
    rates = [n for n in STEP_SIZES if getattr(base, n, 0)]
    field, values = main_field(name, base)
    factors = FEW_FACTORS if field else MANY_FACTORS
    choices = []
    for factor, value in product(factors, values):
        varied = {n: float(f"{getattr(base, n) * factor:.3g}") for n in rates}
        if field:
            varied[field] = value
        choices.append((replace(base, **varied), varied))
    return choices


def local_work(name: str, size: BoardSize) -> Row:
    """The fields that give a method the local work of all: `steps`, or `epochs` at full scale.

    Of a method with another meaning of these fields they are in texts/leaderboard.toml.
    """
    method = make_method(name)
    if name in STEPS:
        words = {
            "=steps": size.steps,
            "=epochs": max(1, size.epochs),
            "=1/steps": 1 / size.steps,
        }
        return {n: words.get(v, v) if isinstance(v, str) else v for n, v in STEPS[name].items()}
    own = {f.name for f in fields(method)}
    if size.epochs and "epochs" in own:
        return {"epochs": size.epochs}
    return {n: v for n, v in {"steps": size.steps, "epochs": 0}.items() if n in own}


def main_field(name: str, method: Method) -> tuple[str, list[Any]]:
    """The field beside the step sizes that is tried, and its two values; ("", [None]) without one.

    Where texts/leaderboard.toml names none: the first strength at whose value 0 the method is
    another one (`Traits.reductions`), and a third of it.

    >>> main_field("fedprox", make_method("fedprox", mu=0.3))
    ('mu', [0.3, 1.0])
    >>> main_field("mine", make_method("fedprox", mu=0.3))
    ('mu', [0.3, 0.1])
    >>> main_field("fedavg", make_method("fedavg"))
    ('', [None])
    """
    (field, other), *_ = [*ALTERNATIVES.get(name, {}).items(), ("", None)]
    if field and getattr(method, field) != other:
        return field, [getattr(method, field), other]
    for field in method.traits.reductions:
        value = getattr(method, field, None)
        if isinstance(value, float) and value > 0 and field not in STEP_SIZES:
            return field, [value, float(f"{value / 3:.3g}")]
    return "", [None]


def left_out(name: str, task: Task, names: Sequence[str]) -> str:
    """Why a method of the table has no row of its own on such a model; "" where it has one."""
    try:
        method = make_method(name)
        for other in names[: names.index(name)]:
            if _twins(method, make_method(other)):
                return str(TEXTS["reasons"]["twin"].format(other=other))
        return equal_to(method, task)
    except SettingError as error:  # it needs more than a model and clients with data
        return str(error)


def _twins(one: Method, other: Method) -> bool:
    """Whether two methods have the same code and the same fields: on this model they are one."""
    code = ("private", "update", "aggregate", "personal", "predict", "shared", "split")
    same = all(getattr(type(one), n, None) is getattr(type(other), n, None) for n in code)
    return same and one.as_dict() == other.as_dict()


# -- equal compute --------------------------------------------------------------------------------
SPACING = 1.25  # of the numbers of gradients that the rivals are run with
RIVALS = ("local", "finetune")


def bucket(gradients: float, size: BoardSize) -> int:
    """The number of gradients per client of the rivals of a method: at least its own.

    Numbers a factor of 1.25 apart, so that methods with about as many share their rivals.

    >>> size = BoardSize(rounds=40, steps=10, epochs=0, seeds=3)
    >>> bucket(400, size), bucket(401, size), bucket(300, size), bucket(2000, size)
    (400, 500, 320, 2384)
    """
    base = size.rounds * size.steps
    exponent = math.ceil(math.log(gradients / base, SPACING) - 1e-9)
    return round(base * SPACING**exponent)


def rival_choices(name: str, gradients: int, size: BoardSize) -> list[Choice]:
    """Local, or FedAvg fine-tuned before use, with so many gradients or a few more.

    In as many rounds as all others: steps per round make up for the number of gradients, of which
    at most half are spent before use.
    """
    plain = replace(size, epochs=0)
    choices = []
    for method, varied in candidates(name, plain, epochs=0):
        own = {}
        if "personal_steps" in varied:
            own["personal_steps"] = min(varied["personal_steps"], gradients // 2)
        rest = gradients - own.get("personal_steps", 0)
        own["steps"] = max(1, math.ceil(rest / size.rounds))
        changed = make_method(name, **method.as_dict() | own)
        choices.append((changed, {n: getattr(changed, n) for n in varied}))
    return choices


# -- runs -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Board:
    """One case: its data and model, and how methods are run on it."""

    title: str
    case: BoardCase
    size: BoardSize
    runs: Runs
    federation: Federation
    task: Task

    @property
    def stock(self) -> Stock:
        return Stock({"": self.federation}, {"": self.task})

    def row(self, label: str, choices: Sequence[Choice]) -> Row:
        """The figures of the choice that validation data prefer, one per seed.

        SettingError where no choice can be run, or all of them diverge.
        """
        first, last = self.size.searches, self.size.searches + self.size.seeds
        plans = [self._plan(label, method, varied) for method, varied in choices]
        searched = {_repeated(plan, range(first)): plan for plan in plans}
        chosen, seconds = self.runs.chosen({label: list(searched)}, self.stock, *range(first))
        plan = _repeated(searched[chosen[label]], range(first, last))
        by_row = self.runs({label: plan}, self.stock, range(first, last), ("cross_client",))
        return {
            "chosen": plan.varied,
            **_figures(by_row[label]),
            "cpu": seconds + _cpu(by_row[label]),
        }

    def key(self, choices: Sequence[Choice]) -> str:
        """A digest of what a row depends on, but for the code."""
        methods = [[type(method).__name__, method.as_dict()] for method, _ in choices]
        size = self.size.as_dict()
        if size["searches"] == 1:
            del size["searches"]
        parts = [FORMAT, self.case.facts(), size, methods]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def _plan(self, label: str, method: Method, varied: Row) -> Plan:
        run = {
            "rounds": self.size.rounds,
            "sample": self.federation.clients - self.case.new,
            "batch": self.size.batch,
            "held_out": self.case.new,
            "eval_every": 0,
        }
        if not self.case.new:
            del run["held_out"]
        if method.traits.sends == "nothing":
            del run["sample"]
        return Plan.of(method, settings=run, name=label, varied=varied)


def _repeated(plan: Plan, seeds: range) -> Plan:
    """The same plan with a partition for each of these seeds."""
    own = {"seed": seeds[0], "data_seeds": ",".join(map(str, seeds)) + ","}
    return replace(plan, settings={**plan.settings, **own})


def _figures(summaries: Sequence[Summary]) -> Row:
    """By seed, what the tables have."""

    def others(summary: Summary) -> float | None:
        values = [row["test_accuracy"] for row in summary["cross_client"] if row["others"]]
        return sum(values) / len(values) if values else None

    new = [s["held_out"]["accuracy"]["mean"] if "held_out" in s else None for s in summaries]
    figures = {
        "accuracy": column(summaries, "accuracy", "mean"),
        "worst10": column(summaries, "accuracy", "worst10"),
        "new": new,
        "others": [others(summary) for summary in summaries],
    }
    gradients = column(summaries, "gradients_per_client")  # of some methods drawn by lot
    rounded = {n: [None if v is None else round(v, 5) for v in vs] for n, vs in figures.items()}
    costs = {"bytes": summaries[0]["bytes"], "gradients": round(sum(gradients) / len(gradients), 1)}
    return {**rounded, **costs}


def _cpu(summaries: Sequence[Summary]) -> float:
    return sum(column(summaries, "cpu_seconds"))


def measure(
    cases: Mapping[str, BoardCase],
    size: BoardSize,
    stored: Mapping[str, Row],
    names: Sequence[str],
    runs: Runs,
    only: Sequence[str] = (),
) -> Iterator[dict[str, Row]]:
    """The figures of all cases, each time a row is there; what is stored is not run again.

    With `only`, cases of other titles have what is stored of them.
    """
    done = {title: stored[title] for title in cases if title in stored}
    for title in only or cases:
        case = cases[title]
        federation, task = case.load()
        own = Runs(runs.directory / slug(title), runs.jobs)
        board = Board(title, case, size, own, federation, task)
        done[title] = _blank(board, stored.get(title, {}))
        for _ in _measured(board, done[title], names):
            yield done
    yield done


def slug(title: str) -> str:
    """A title as the name of a folder.

    >>> slug("Fashion-MNIST, Dirichlet 0.1")
    'fashion-mnist-dirichlet-0.1'
    """
    return title.lower().replace(",", "").replace(" ", "-")


def _blank(board: Board, before: Mapping[str, Any]) -> Row:
    """A case with the rows that are stored, and are looked through by `_measured`."""
    case, federation = board.case, board.federation
    return {
        "who": case.who,
        "published": case.published,
        "trained": federation.clients - case.new,
        "new": case.new,
        "parameters": board.task.d,
        "majority": round(majority_accuracy(federation), 4),
        "train": int(federation.sizes("train").sum()),
        "methods": dict(before.get("methods", {})),
        "rivals": dict(before.get("rivals", {})),
        "left_out": {},
    }


def _measured(board: Board, case: Row, names: Sequence[str]) -> Iterator[None]:
    """Rows that are missing, one after the other; those that no longer hold go first."""
    before = case["methods"]
    case["methods"] = {n: before[n] for n in names if n in before and _holds(board, n, before[n])}
    case["left_out"] = {n: why for n in names if (why := left_out(n, board.task, names))}
    for name in names:
        if name in case["left_out"]:
            case["methods"].pop(name, None)
            continue
        try:
            new = _update(board, case["methods"], name, candidates(name, board.size))
        except SettingError as error:
            case["left_out"][name] = str(error)
            case["methods"].pop(name, None)
            continue
        gradients = bucket(case["methods"][name]["gradients"], board.size)
        for rival in RIVALS:
            label = f"{rival} {gradients}"
            choices = rival_choices(rival, gradients, board.size)
            new |= _update(board, case["rivals"], label, choices)
        if new:
            yield
    used = {bucket(row["gradients"], board.size) for row in case["methods"].values()}
    labels = {f"{rival} {gradients}" for rival in RIVALS for gradients in used}
    case["rivals"] = {n: row for n, row in case["rivals"].items() if n in labels}


def _holds(board: Board, name: str, row: Row) -> bool:
    """Whether a stored row is that of the method's candidates of today."""
    try:
        return bool(row["key"] == board.key(candidates(name, board.size)))
    except SettingError:
        return False


def _update(board: Board, rows: Row, label: str, choices: Sequence[Choice]) -> bool:
    """Run a row unless it is there; whether it was run."""
    key = board.key(choices)
    if rows.get(label, {}).get("key") == key:
        return False
    rows.pop(label, None)
    rows[label] = {"key": key, **board.row(label, choices)}
    return True
