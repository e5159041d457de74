"""Table 2 of the FFGG paper in form: which part of a model should be personal, on real clients.

`idiolect reproduce ffgg-table2`. The published sets are run where the folder of data sets
(`IDIOLECT_DATA`) holds their standard files in femnist/, gldv2/ and stackoverflow/; stand-ins
that can be fetched are run always. A job is a data set with a seed: one shared model is
pre-trained, and every row of the table starts from it. Where several step sizes are given,
validation data choose, and test data are not there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from idiolect import data, models, paired_difference
from idiolect.data.download import where
from idiolect.data.federation import Federation
from idiolect.method import Method
from idiolect.methods.fedalt import FedAlt, FedSim
from idiolect.methods.fedavg import FedAvg
from idiolect.methods.ffgg import Ffgg, LocalFfgg
from idiolect.methods.local import Local
from idiolect.run.result import Result
from idiolect.run.run import run
from idiolect.run.session import Start
from idiolect.study.splits import SplitCandidate as Candidate
from idiolect.task.task import Task

from ..known_words import known_words
from ..marks import Cell, Figure
from ..page import Page
from ..panels import Line, Panel
from ..published import read_figure, read_rows
from ..runs import Work, finished

SETS = {"FEMNIST": "femnist", "GLDv2": "gldv2", "StackOverflow": "stackoverflow"}


TABLE2 = {  # what stands after ± is not explained; three seeds are averaged
    row["method"]: {name: figure for name in SETS if (figure := read_figure(row[name]))}
    for row in read_rows("ffgg-table2")
}
PAIRS = {"rounds": int, "server_lr": float, "lr": float}  # of steps 1 (all parameters) and 2
NUMBERS = {"batch": int, "sample": int, "warmup": float, "clip": float}
TABLE3: dict[str, dict[str, Any]] = {
    row["column"]: {
        **{name: row[name] for name in ("server_optimizer", "schedule")},
        **{name: number(row[name]) for name, number in NUMBERS.items()},
        **{name: tuple(map(number, row[name].split())) for name, number in PAIRS.items()},
    }
    for row in read_rows("ffgg-table3")
}
EPOCHS = 5  # of step 3


# -- jobs: pre-train, personalise, fine-tune the private part -------------------------------------

SPLITS = {"Input Layer": "input", "Output Layer": "output", "Adapter": "adapter"}
FFGG, SHARED = "FFGG", "FFGG from the shared model"
FEDALT, FEDSIM = "FedAlt (Stateless)", "FedSim (Stateless)"
FINETUNED = "FedAvg, all fine-tuned"
FEDAVG, LOCAL = "FedAvg", "Local Training"
FAMILIES: dict[str, Callable[[str, float], Method]] = {  # of step 2: (part, step size)
    FFGG: lambda part, lr: LocalFfgg(
        part=part, lr=lr, private_lr=lr, epochs=1, local_epochs=1, start="random"
    ),
    SHARED: lambda part, lr: LocalFfgg(
        part=part, lr=lr, private_lr=lr, epochs=1, local_epochs=1, start="common"
    ),
    FEDALT: lambda part, lr: FedAlt(part=part, lr=lr, private_lr=lr, epochs=1, stateful=False),
    FEDSIM: lambda part, lr: FedSim(part=part, lr=lr, private_lr=lr, epochs=1, stateful=False),
}


@dataclass(frozen=True)
class FfggCase:
    """A data set, its model, and which column of Table 3 it is trained by."""

    data: str
    column: str
    options: tuple[tuple[str, Any], ...] = ()
    model: str = "mlp"
    model_options: tuple[tuple[str, Any], ...] = ()
    known: bool = False  # only known words are to be predicted
    rank: int = 4  # of adapters
    adapter: str = "low-rank"
    as_printed: bool = False  # server's optimiser, schedule, clipping, clients per round, batch
    rounds: tuple[int, int] = (0, 0)  # of steps 1 and 2; 0: as printed
    sample: int = 10  # the next two: where it is not as printed
    batch: int = 32

    def load(self) -> Federation:
        federation = data.load(self.data, **dict(self.options))
        return known_words(federation) if self.known else federation

    def task(self, federation: Federation) -> Task:
        own = dict(self.model_options)
        return Task(partial(models.make, self.model, federation.shape, federation.classes, **own))

    def settings(self, step: int) -> dict[str, Any]:
        """Of step 1 or 2."""
        printed = TABLE3[self.column]
        rounds = self.rounds[step - 1] or printed["rounds"][step - 1]
        if not self.as_printed:
            return {"rounds": rounds, "sample": self.sample, "batch": self.batch}
        warmup = max(1, round(printed["warmup"] * rounds))
        linear = f"warmup:{warmup}*linear"
        return {
            "rounds": rounds,
            "sample": printed["sample"],
            "batch": printed["batch"],
            "server_optimizer": printed["server_optimizer"],
            "server_lr": printed["server_lr"][step - 1],
            "schedule": linear if printed["schedule"] == "linear" else printed["schedule"],
            "clip": printed["clip"],
        }


@dataclass(frozen=True)
class Pipelines(Work):
    """All rows of the table for a data set and a seed."""

    case: FfggCase
    seed: int
    first: tuple[float, ...]  # step sizes of step 1 to choose from
    rates: tuple[tuple[str, tuple[float, ...]], ...]  # of step 2, by row
    directory: str = ""  # runs are stored there, so that a stopped one goes on; "": not at all

    @property
    def chooses(self) -> bool:
        """Whether there is a step size to choose."""
        return len(self.first) > 1 or any(len(rates) > 1 for _, rates in self.rates)

    def cost(self) -> float:
        tried = len(self.first) * self.case.settings(1)["rounds"]
        return tried + 3 * sum(len(r) for _, r in self.rates) * self.case.settings(2)["rounds"]

    def describe(self) -> str:
        return f"{self.case.data} seed {self.seed}"

    def train(self) -> dict[str, Any]:
        began = time.process_time()
        federation = self.case.load()
        if self.chooses:
            federation = federation.without("test")
        task = self.case.task(federation)
        begun = [self._begun(task, federation, lr) for lr in self.first]
        best = max(range(len(begun)), key=lambda i: _valid(begun[i]))
        out: dict[str, Any] = {"first": self.first[best], "rows": {}}
        shared = _figures(begun[best])
        for row, rates in self.rates:
            tried = {}
            for lr in rates:
                figures = self._row(row, lr, task, federation, begun[best])
                tried[lr] = {"lr": lr, "start": shared["test"], **figures}
            out["rows"][row] = max(tried.values(), key=lambda f: _number(f["valid"]))
        if not self.chooses:
            hits = federation.majority_hits("test").sum() / federation.class_counts("test").sum()
            out |= {"majority": float(hits), "clients": federation.clients, "d": task.d}
        return out | {"seconds": time.process_time() - began}

    def _begun(self, task: Task, federation: Federation, lr: float) -> Result:
        """Step 1."""
        return self._run(f"step1-{lr:g}", FedAvg(lr=lr, epochs=1), task, federation, 1)

    def _row(
        self, row: str, lr: float, task: Task, federation: Federation, begun: Result
    ) -> dict[str, Any]:
        """What a row of the table reaches with this step size, after steps 2 and 3."""
        if row == FEDAVG:
            return {**_figures(begun), "personalised": None}
        if row == LOCAL:
            return self._local(lr, task, federation)
        session = begun.session(self.seed)
        x0 = session.server.handover()
        assert x0 is not None  # FedAvg has a shared model
        if row == FINETUNED:
            alone = Local(lr=lr, epochs=EPOCHS)  # five epochs from the shared model
            more = {"rounds": 1, "batch": self.case.settings(2)["batch"]}
            last = self._run(f"{row}-{lr:g}", alone, task, federation, 0, Start(x0.clone()), more)
            return {**_figures(last), "personalised": None}
        family, split = row.rsplit(": ", 1)
        part = SPLITS[split]
        if part == "adapter":
            one = Candidate(part, (), self.case.rank, self.case.adapter)
            bound, _, x0 = one.on(session.contract.task, x0)
            task = Task(bound.module, task.criterion)
        name = f"{row}-{lr:g}"
        method = FAMILIES[family](part, lr)
        second = self._run(name, method, task, federation, 2, Start(x0.clone()))
        w = second.session(self.seed).server.handover()
        assert w is not None
        start = "random" if family == FFGG else "common"
        last = self._finetuned(name, part, start, lr, task, federation, Start(w.clone()))
        return {
            **_figures(last),
            "personalised": _figures(second)["test"],
            "bytes": sum(second.summary()["bytes"].values()),
        }

    def _finetuned(
        self,
        name: str,
        part: str,
        start: str,
        lr: float,
        task: Task,
        federation: Federation,
        begin: Start,
    ) -> Result:
        """Step 3: some epochs on the private part alone, which no server hears of."""
        method = Ffgg(part=part, start=start, private_lr=lr, epochs=EPOCHS)
        more = {"rounds": 0}
        return self._run(f"{name}-step3", method, task, federation, 2, begin, more)

    def _local(self, lr: float, task: Task, federation: Federation) -> dict[str, Any]:
        """As many passes over its data as a client makes on average in all three steps."""
        mean_passes = 0.0
        for step, passes in ((1, 1), (2, 3)):  # Local FFGG: one pass alone, then two in turn
            own = self.case.settings(step)
            client_share = min(own["sample"], federation.clients) / federation.clients
            mean_passes += passes * own["rounds"] * client_share
        rounds = round(mean_passes) + EPOCHS
        method = Local(lr=lr, epochs=1)
        plain = {"rounds": rounds, "batch": self.case.settings(1)["batch"]}
        result = self._run(f"local-{lr:g}", method, task, federation, 0, None, plain)
        return {**_figures(result), "personalised": None}

    def _run(
        self,
        name: str,
        method: Method,
        task: Task,
        federation: Federation,
        step: int,
        begin: Start | None = None,
        more: dict[str, Any] | None = None,
    ) -> Result:
        settings = {**(self.case.settings(step) if step else {}), **(more or {})}
        if "sample" in settings:
            settings["sample"] = min(settings["sample"], federation.clients)
        path = Path(self.directory) / self.key() / name.replace("/", "-")
        return run(
            method,
            task,
            federation,
            directory=path if self.directory else None,
            resume=bool(self.directory) and (path / "settings.json").exists(),
            start={self.seed: begin} if begin else None,
            seed=self.seed,
            threads=1,
            eval_every=0,
            progress=False,
            **settings,
        )


def all_rows() -> list[str]:
    """The rows that are run, in order."""
    split = [f"{family}: {name}" for family in FAMILIES for name in SPLITS]
    return [FEDAVG, LOCAL, *split, FINETUNED]


def fixed(rates: Sequence[float]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """The same step sizes for every row."""
    return tuple((row, (rates[0],) if row == FEDAVG else tuple(rates)) for row in all_rows())


def _figures(result: Result) -> dict[str, Any]:
    summary = result.summary()
    return {
        "test": summary["accuracy"]["mean"],
        "valid": summary["valid"]["accuracy"]["mean"],
        "train": summary["train"]["accuracy"]["mean"],
        "gradients": summary["gradients_per_client"],
    }


def _valid(result: Result) -> float:
    return _number(_figures(result)["valid"])


def _number(value: float | None) -> float:
    return -math.inf if value is None else value


# -- the page -------------------------------------------------------------------------------------

NAME = "ffgg-table2"
SEARCH = 100  # the seed of the search for step sizes; the final runs have 0, 1, 2
Results = list[dict[str, Any]]  # of one data set, by seed


@dataclass(frozen=True)
class FfggTable2Size:
    """How much is run."""

    text: str
    seeds: int = 3
    first: tuple[float, ...] = ()  # step sizes to choose from, of step 1; (): the printed one
    rates: tuple[float, ...] = ()  # of steps 2 and 3
    workers: int = 2
    stored: bool = False  # single runs too, so that a stopped one goes on


_SMALL = (("blocks", 2), ("heads", 2), ("width", 32), ("hidden", 64))
_WORDS: dict[str, Any] = {"model": "transformer", "model_options": _SMALL, "known": True}
_HIDDEN = (("hidden", "64,32"),)
STAND_INS = {
    "quickdraw (for FEMNIST)": FfggCase(
        "quickdraw", "EMNIST", (("clients", 30),), model_options=_HIDDEN, rounds=(60, 8)
    ),
    "hapt": FfggCase("hapt", "EMNIST", (("step", 128),), model_options=_HIDDEN, rounds=(60, 8)),
    "shakespeare (for StackOverflow)": FfggCase(
        "shakespeare",
        "StackOverflow",
        (("clients", 12), ("cap", 2000), ("length", 20)),
        rounds=(120, 6),
        sample=6,
        **_WORDS,
    ),
    "chitchat (for StackOverflow)": FfggCase(
        "chitchat",
        "StackOverflow",
        (("clients", 12), ("cap", 2000), ("vocabulary", 100)),
        rounds=(120, 6),
        sample=6,
        **_WORDS,
    ),
}
PUBLISHED = {  # as in appendix E.5, from standard files
    "FEMNIST": FfggCase("femnist", "EMNIST", (("minimum", 125),), "resnet18", adapter="conv"),
    "GLDv2": FfggCase(
        "gldv2",
        "GLDv2",
        (("minimum", 50), ("size", 224), ("test", 0.5)),
        "resnet18",
        adapter="conv",
    ),
    "StackOverflow": FfggCase(
        "stackoverflow",
        "StackOverflow",
        (("users", 1000),),
        "transformer",
        known=True,
        rank=16,
        adapter="bottleneck",
    ),
}
QUICK: dict[str, dict[str, Any]] = {  # of the published sets
    "FEMNIST": {"model": "mlp", "model_options": _HIDDEN, "options": (("clients", 50),)},
    "GLDv2": {"model": "mlp", "model_options": _HIDDEN, "options": (("clients", 50), ("size", 32))},
    "StackOverflow": {
        "model_options": _SMALL,
        "options": (("users", 50), ("cap", 3000), ("vocabulary", 100)),
    },
}
SIZES = {
    "quick": FfggTable2Size(
        "quick: 3 seeds, 60 or 120 rounds of step 1 and 6 or 8 of step 2, step sizes chosen on "
        "validation data with another seed",
        first=(0.3, 1.0),
        rates=(0.03, 0.3),
    ),
    "full": FfggTable2Size("full: 3 seeds, rounds and settings of Table 3", stored=True),
}


def cases(scale: str, folder: Path) -> dict[str, FfggCase]:
    """The stand-ins, and the published sets whose files are there."""
    data_sets = {}
    for title, case in PUBLISHED.items():
        path = folder / case.data
        if not path.is_dir():
            continue
        if scale == "quick":
            case = replace(case, rounds=(60, 8), rank=4, adapter="low-rank", **QUICK[title])
        data_sets[title] = replace(case, options=(*case.options, ("path", str(path))))
    data_sets |= STAND_INS
    if scale == "quick":
        return data_sets
    return {
        title: replace(case, as_printed=True, rounds=(0, 0)) for title, case in data_sets.items()
    }


def write(folder: Path, scale: str) -> list[Path]:
    """Run what can be run here, and write the page."""
    return tabled(cases(scale, where()), SIZES[scale], folder).write(folder)


def tabled(data_sets: Mapping[str, FfggCase], size: FfggTable2Size, folder: Path) -> Page:
    """The page of these data sets, measured."""
    return page(measure(data_sets, size, folder), size)


def page(results: Mapping[str, Results], size: FfggTable2Size) -> Page:
    """The page of these results."""
    ours = {title: rows_of(by_seed) for title, by_seed in results.items()}
    cells = [
        Cell("Test accuracy, %", row, name, paper[name], _percent(ours.get(name, {}).get(row)))
        for name in SETS
        for row, paper in TABLE2.items()
    ]
    stand_ins = [title for title in ours if title not in SETS]
    shown = list(next(iter(ours.values()), {}))
    tables = {
        "**Sets that can be had here: test accuracy, %**": [
            {"method": row} | {t: str(_percent(ours[t][row])) for t in stand_ins} for row in shown
        ]
        + [{"method": "each client's commonest class"} | _majority(results, stand_ins)],
        "**Step sizes and splits that validation data chose**": [
            {"method": row} | {t: _chosen(results[t], row) for t in stand_ins} for row in shown
        ],
        "**FFGG with the split that validation data prefer, less another row, in points**": [
            against(title, by_seed) for title, by_seed in results.items()
        ],
    }
    return Page(
        NAME,
        "FFGG, Table 2: which part of the model should be personal?",
        scale=size.text,
        printed=PRINTED,
        chosen=CHOSEN,
        cells=cells,
        opening=opening(results),
        tables=tables,
        pictures={PICTURE: panels(results)},
        figures=dict(results),
        seconds=sum(one["seconds"] for by_seed in results.values() for one in by_seed),
    )


def measure(
    data_sets: Mapping[str, FfggCase], size: FfggTable2Size, folder: Path
) -> dict[str, Results]:
    """Search step sizes with a seed of its own where there are several; then the final runs."""
    directory = str(folder / ".runs" / NAME) if size.stored else ""
    first = {t: size.first or TABLE3[c.column]["lr"][:1] for t, c in data_sets.items()}
    rates = {t: fixed(size.rates or TABLE3[c.column]["lr"][1:]) for t, c in data_sets.items()}
    search_seconds = dict.fromkeys(data_sets, 0.0)
    if size.first or size.rates:
        search = {
            title: Pipelines(case, SEARCH, first[title], rates[title], directory)
            for title, case in data_sets.items()
        }
        search_results = finished(list(search.values()), folder, f"{NAME}-search", size.workers)
        for title, job in search.items():
            result = search_results[job]
            first[title] = (result["first"],)
            rates[title] = tuple((row, (own["lr"],)) for row, own in result["rows"].items())
            search_seconds[title] = result["seconds"]
    jobs = {
        (title, seed): Pipelines(case, seed, first[title], rates[title], directory)
        for title, case in data_sets.items()
        for seed in range(size.seeds)
    }
    results = finished(list(jobs.values()), folder, NAME, size.workers)
    out: dict[str, Results] = {}
    for (title, _), job in jobs.items():
        out.setdefault(title, []).append(dict(results[job]))
    for title, by_seed in out.items():
        by_seed[0]["seconds"] += search_seconds[title]
    return out


# -- rows ----------------------------------------------------------------------------------------
def best_split(by_seed: Results, family: str) -> str:
    """The split of a family that validation data prefer, in the mean over seeds."""

    def valid(row: str) -> float:
        return sum(one["rows"][row]["valid"] or 0.0 for one in by_seed)

    return max((f"{family}: {split}" for split in SPLITS), key=valid)


def sources(by_seed: Results) -> dict[str, str]:
    """A row of the page -> the runs that it shows."""
    best = " (Stateless, Best)"
    out = {FEDAVG: FEDAVG, LOCAL: LOCAL}
    out |= {f"FFGG ({split})": f"{FFGG}: {split}" for split in SPLITS}
    out |= {
        f"FedAlt{best}": best_split(by_seed, FEDALT),
        f"FedSim{best}": best_split(by_seed, FEDSIM),
    }
    out |= {f"FFGG ({split}), from the shared model": f"{SHARED}: {split}" for split in SPLITS}
    return out | {FINETUNED: FINETUNED}


def rows_of(by_seed: Results) -> dict[str, list[float | None]]:
    """A row of the page -> test accuracy by seed."""
    return {
        row: [one["rows"][source]["test"] for one in by_seed]
        for row, source in sources(by_seed).items()
    }


def against(title: str, by_seed: Results) -> dict[str, str]:
    """FFGG at its best split against the other rows, with intervals over seeds."""
    rows = rows_of(by_seed)
    mine = best_split(by_seed, FFGG)
    own = [one["rows"][mine]["test"] or 0.0 for one in by_seed]
    out = {"data set": title, "split": mine.rsplit(": ", 1)[1]}
    for row in COMPARED:
        difference, half = paired_difference(own, [v or 0.0 for v in rows[row]])
        spread = "" if half is None else f" ± {100 * half:.2f}"
        out[row] = f"{100 * difference:+.2f}{spread} ({_word(difference, half)})"
    return out


COMPARED = (FEDAVG, LOCAL, "FedAlt (Stateless, Best)", "FedSim (Stateless, Best)", FINETUNED)


def _word(difference: float, half: float | None) -> str:
    if half is None or abs(difference) <= half:
        return "not clear"
    return "better" if difference > 0 else "worse"


def opening(results: Mapping[str, Results]) -> str:
    """Does the order of the paper show on these sets?"""
    missing = [name for name in SETS if name not in results]
    text = ""
    if missing:
        text += (
            f"{', '.join(missing)} cannot be fetched: their cells are run where the folder of "
            "data sets (IDIOLECT_DATA) holds their standard files. "
        )
    text += (
        "In the paper FFGG with its best split is better than FedAvg and Local on all three sets, "
        "better than FedAlt and FedSim on FEMNIST and GLDv2, and level with them on StackOverflow. "
    )
    compared = [against(title, by_seed) for title, by_seed in results.items()]
    comparisons = []
    for row in COMPARED:
        words = [one[row].rsplit("(", 1)[1].rstrip(")") for one in compared]
        counts = ", ".join(f"{word} on {words.count(word)}" for word in dict.fromkeys(words))
        comparisons.append(f"against {row}: {counts}")
    text += f"Here, of {len(compared)} sets, FFGG with the split that validation data prefer is, "
    return text + "; ".join(comparisons) + "."


def panels(results: Mapping[str, Results]) -> list[Panel]:
    """Test accuracy after each of the three steps."""
    out = []
    for title, by_seed in results.items():
        lines = []
        families = {"FFGG": FFGG, "FFGG, from shared": SHARED, "FedAlt": FEDALT, "FedSim": FEDSIM}
        for number, (label, family) in enumerate(families.items()):
            row = best_split(by_seed, family)
            steps = [
                _mean([one["rows"][row][key] for one in by_seed])
                for key in ("start", "personalised", "test")
            ]
            split = row.rsplit(": ", 1)[1].lower()
            lines.append(Line(f"{label} ({split})", [1, 2, 3], steps, style=number, points=True))
        for number, row in enumerate((FINETUNED, LOCAL), len(families)):
            level = _mean([one["rows"][row]["test"] for one in by_seed])
            lines.append(Line(row, [3], [level], style=number, points=True))
        out.append(Panel(title, "after step", "test accuracy, %", lines))
    return out


def _mean(values: Sequence[float | None]) -> float:
    numbers = [v for v in values if v is not None]
    return 100 * sum(numbers) / len(numbers) if len(numbers) == len(values) else float("nan")


def _percent(values: Sequence[float | None] | None) -> Figure | None:
    if values is None:
        return None
    return Figure.of([None if v is None else 100 * v for v in values], 2)


def _majority(results: Mapping[str, Results], titles: Sequence[str]) -> dict[str, str]:
    return {t: f"{100 * results[t][0]['majority']:.2f}" for t in titles}


def _chosen(by_seed: Results, row: str) -> str:
    source = sources(by_seed)[row]
    if source == FEDAVG:
        return f"lr {by_seed[0]['first']:g}"
    split = f"{source.rsplit(': ', 1)[1]}, " if "Best" in row else ""
    return f"{split}lr {by_seed[0]['rows'][source]['lr']:g}"


PICTURE = (
    "Test accuracy after each step: the shared model (1), personalised training (2), fine-tuning "
    "of the private part (3); each family with the split that validation data prefer."
)
PRINTED = """\
Table 3 and appendix E: (1) FedAvg on the whole model, (2) personalised training (Algorithm 4 for
FFGG: the private part drawn anew, one epoch on it alone, one epoch of steps in turn), (3) five
epochs on the private part. EMNIST: ResNet-18, batch 32, 10 clients per round, 2000 and 500 rounds,
step sizes 0.5 and 0.01. StackOverflow: transformer of 4 blocks, batch 64, 50 clients, FedAdam 5e-4
and 5e-5, 1000 and 500 rounds, step sizes 1 and 0.1, linear schedule with 10 % warm-up, gradients
clipped at 0.1. GLDv2: ResNet-18 from ImageNet, batch 64, 50 clients, FedAdam 2e-4 and 2e-5, 2500
and 600 rounds, step sizes 0.01 and 0.001. Accuracy over all test samples; mean of three seeds."""
CHOSEN = """\
what stands after ± in the paper is taken as half an interval. The exponential schedule of EMNIST
has no decay rounds ("N/A"): none is used. FedAvg is step 1 alone, as in the paper, with fewer
gradients than the rows that go on from it. Local Training starts from a random model and makes as
many passes over its data as a client of FFGG does on average in all three steps. FedAlt and FedSim
start the private part at the pre-trained one in every round, and so do the rows "from the shared
model" of FFGG, which the paper does not have; "FedAvg, all fine-tuned" fine-tunes the whole shared
model for five epochs. Adapters are added after step 1. Only known words are predicted. Stand-ins:
quickdraw has 62 classes of drawings, in clients made by a Dirichlet split (nobody knows who drew
them); hapt, 30 people; shakespeare, next character, 12 roles; chitchat, next word of the 100
commonest, 12 people. Their models are small at both scales: two hidden layers (64, 32) or a
transformer of two blocks of width 32, low-rank adapters of rank 4. At the quick scale the server
averages (no FedAdam, schedule or clipping), 10 clients (of texts 6) are heard per round, batches
have 32 samples, and the step sizes of step 1 (0.3, 1) and of steps 2 and 3 (0.03, 0.3) are chosen
on validation data with a seed of their own, for every row alike."""
