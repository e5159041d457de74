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
from pathlib import Path
from typing import Any

from idiolect import (
    FedAlt,
    FedAvg,
    Federation,
    FedSim,
    Ffgg,
    Local,
    LocalFfgg,
    Method,
    Result,
    Start,
    Task,
    data,
    paired_difference,
    run,
)
from idiolect.study import SplitCandidate

from ..case import Case, majority_accuracy
from ..marks import Cell, Figure
from ..page import Page, page_from_text
from ..panels import Line, Panel
from ..published import read_rows, read_table
from ..runs import Work, train_all
from ..texts import read_text

SETS = ("FEMNIST", "GLDv2", "StackOverflow")
TABLE2 = read_table("ffgg-table2")[""]  # what stands after ± is not explained; three seeds
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
ROWS = (FEDAVG, LOCAL, *(f"{family}: {name}" for family in FAMILIES for name in SPLITS), FINETUNED)


@dataclass(frozen=True)
class FfggCase(Case):
    """A data set, its model, and which column of Table 3 it is trained by."""

    clients_per_round: float = 10  # where it is not as printed
    column: str = "EMNIST"
    rank: int = 4  # of adapters
    adapter: str = "low-rank"
    as_printed: bool = False  # server's optimiser, schedule, clipping, clients per round, batch
    rounds: tuple[int, int] = (0, 0)  # of steps 1 and 2; 0: as printed

    def settings(self, step: int, clients: int) -> dict[str, Any]:
        """Of step 1 or 2, with so many clients."""
        printed = TABLE3[self.column]
        rounds = self.rounds[step - 1] or printed["rounds"][step - 1]
        if not self.as_printed:
            return {"rounds": rounds, "sample": min(self.sample(clients), clients), "batch": 32}
        warmup = max(1, round(printed["warmup"] * rounds))
        linear = f"warmup:{warmup}*linear"
        return {
            "rounds": rounds,
            "sample": min(printed["sample"], clients),
            "batch": printed["batch"],
            "server_optimizer": printed["server_optimizer"],
            "server_lr": printed["server_lr"][step - 1],
            "schedule": linear if printed["schedule"] == "linear" else printed["schedule"],
            "clip": printed["clip"],
        }


@dataclass(frozen=True, eq=False)
class Pipelines(Work):
    """All rows of the table for a data set and a seed."""

    case: FfggCase
    seed: int
    first: tuple[float, ...]  # step sizes of step 1 to choose from
    rates: Mapping[str, Sequence[float]]  # of step 2, by row
    directory: str = ""  # runs are stored there, so that a stopped one goes on; "": not at all

    @property
    def chooses(self) -> bool:
        """Whether there is a step size to choose."""
        return len(self.first) > 1 or any(len(rates) > 1 for rates in self.rates.values())

    def cost(self) -> float:
        first, second = (self.case.settings(step, 1)["rounds"] for step in (1, 2))
        return len(self.first) * first + 3 * sum(map(len, self.rates.values())) * second

    def describe(self) -> str:
        return f"{self.case.data} seed {self.seed}"

    def train(self) -> dict[str, Any]:
        began = time.process_time()
        federation, task = self.case.load()
        if self.chooses:
            federation = federation.without("test")
        settings = self.case.settings(1, federation.clients)  # of step 1
        starts = {
            lr: self._run(f"step1-{lr:g}", FedAvg(lr=lr, epochs=1), task, federation, settings)
            for lr in self.first
        }
        first = max(self.first, key=lambda lr: _number(_figures(starts[lr])["valid"]))
        shared = _figures(starts[first])["test"]
        out: dict[str, Any] = {"first": first, "rows": {}}
        for row, rates in self.rates.items():
            outcomes = [
                {"lr": lr, "start": shared, **self._row(row, lr, task, federation, starts[first])}
                for lr in rates
            ]
            out["rows"][row] = max(outcomes, key=lambda outcome: _number(outcome["valid"]))
        if not self.chooses:
            majority = majority_accuracy(federation)
            out |= {"majority": majority, "clients": federation.clients, "d": task.d}
        return out | {"seconds": time.process_time() - began}

    def _row(
        self, row: str, lr: float, task: Task, federation: Federation, start: Result
    ) -> dict[str, Any]:
        """What a row of the table reaches with this step size, after steps 2 and 3."""
        settings = self.case.settings(2, federation.clients)
        plain = {"batch": settings["batch"], "rounds": 1}
        name = f"{row}-{lr:g}"
        if row == FEDAVG:
            return {**_figures(start), "personalised": None}
        if row == LOCAL:
            plain["rounds"] = self._passes(federation.clients)
            alone = self._run(name, Local(lr=lr, epochs=1), task, federation, plain)
            return {**_figures(alone), "personalised": None}
        session = start.session(self.seed)
        x0 = session.server.handover()
        assert x0 is not None  # FedAvg has a shared model
        if row == FINETUNED:  # five epochs from the shared model
            method = Local(lr=lr, epochs=EPOCHS)
            alone = self._run(name, method, task, federation, plain, Start(x0.clone()))
            return {**_figures(alone), "personalised": None}
        family, split = row.rsplit(": ", 1)
        part = SPLITS[split]
        if part == "adapter":
            one = SplitCandidate(part, (), self.case.rank, self.case.adapter)
            bound, _, x0 = one.on(session.contract.task, x0)
            task = Task(bound.module, task.criterion)
        personalised = self._run(
            name, FAMILIES[family](part, lr), task, federation, settings, Start(x0.clone())
        )
        w = personalised.session(self.seed).server.handover()
        assert w is not None
        # step 3: some epochs on the private part alone, which no server hears of
        anew = "random" if family == FFGG else "common"
        last = self._run(
            f"{name}-step3",
            Ffgg(part=part, start=anew, private_lr=lr, epochs=EPOCHS),
            task,
            federation,
            settings | {"rounds": 0},
            Start(w.clone()),
        )
        return {
            **_figures(last),
            "personalised": _figures(personalised)["test"],
            "bytes": sum(personalised.summary()["bytes"].values()),
        }

    def _passes(self, clients: int) -> int:
        """Over its data, as many as a client makes on average in all three steps."""
        passes = 0.0
        for step, per_round in ((1, 1), (2, 3)):  # Local FFGG: one pass alone, then two in turn
            settings = self.case.settings(step, clients)
            passes += per_round * settings["rounds"] * (settings["sample"] / clients)
        return round(passes) + EPOCHS

    def _run(
        self,
        name: str,
        method: Method,
        task: Task,
        federation: Federation,
        settings: Mapping[str, Any],
        start: Start | None = None,
    ) -> Result:
        path = Path(self.directory) / self.key() / name.replace("/", "-")
        return run(
            method,
            task,
            federation,
            directory=path if self.directory else None,
            resume=bool(self.directory) and (path / "settings.json").exists(),
            start={self.seed: start} if start else None,
            seed=self.seed,
            threads=1,
            eval_every=0,
            progress=False,
            **settings,
        )


def fixed(rates: Sequence[float]) -> dict[str, Sequence[float]]:
    """The same step sizes for every row."""
    return {row: rates[:1] if row == FEDAVG else rates for row in ROWS}


def _figures(result: Result) -> dict[str, Any]:
    summary = result.summary()
    return {
        "test": summary["accuracy"]["mean"],
        "valid": summary["valid"]["accuracy"]["mean"],
        "train": summary["train"]["accuracy"]["mean"],
        "gradients": summary["gradients_per_client"],
    }


def _number(value: float | None) -> float:
    return -math.inf if value is None else value


# -- the page -------------------------------------------------------------------------------------
NAME = "ffgg-table2"
TEXTS = read_text(NAME)
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


_SMALL = {"blocks": 2, "heads": 2, "width": 32, "hidden": 64}
_HIDDEN = {"hidden": "64,32"}
_WORDS: dict[str, Any] = {"column": "StackOverflow", "only_known": True}
STAND_INS = {
    "quickdraw (for FEMNIST)": FfggCase(
        "quickdraw", "mlp", {"clients": 30}, _HIDDEN, rounds=(60, 8)
    ),
    "hapt": FfggCase("hapt", "mlp", {"step": 128}, _HIDDEN, rounds=(60, 8)),
    "shakespeare (for StackOverflow)": FfggCase(
        "shakespeare",
        "transformer",
        {"clients": 12, "cap": 2000, "length": 20},
        _SMALL,
        clients_per_round=6,
        rounds=(120, 6),
        **_WORDS,
    ),
    "chitchat (for StackOverflow)": FfggCase(
        "chitchat",
        "transformer",
        {"clients": 12, "cap": 2000, "vocabulary": 100},
        _SMALL,
        clients_per_round=6,
        rounds=(120, 6),
        **_WORDS,
    ),
}
PUBLISHED = {  # as in appendix E.5, from standard files
    "FEMNIST": FfggCase("femnist", "resnet18", {"minimum": 125}, adapter="conv"),
    "GLDv2": FfggCase(
        "gldv2",
        "resnet18",
        {"minimum": 50, "size": 224, "test": 0.5},
        column="GLDv2",
        adapter="conv",
    ),
    "StackOverflow": FfggCase(
        "stackoverflow",
        "transformer",
        {"users": 1000},
        rank=16,
        adapter="bottleneck",
        **_WORDS,
    ),
}
QUICK: dict[str, dict[str, Any]] = {  # of the published sets
    "FEMNIST": {"model": "mlp", "model_options": _HIDDEN, "options": {"clients": 50}},
    "GLDv2": {"model": "mlp", "model_options": _HIDDEN, "options": {"clients": 50, "size": 32}},
    "StackOverflow": {
        "model_options": _SMALL,
        "options": {"users": 50, "cap": 3000, "vocabulary": 100},
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
        path = folder / str(case.data)
        if path.is_dir():
            if scale == "quick":
                case = replace(case, rounds=(60, 8), rank=4, adapter="low-rank", **QUICK[title])
            data_sets[title] = replace(case, options={**case.options, "path": str(path)})
    data_sets |= STAND_INS
    if scale == "quick":
        return data_sets
    return {
        title: replace(case, as_printed=True, rounds=(0, 0)) for title, case in data_sets.items()
    }


def write(folder: Path, scale: str) -> list[Path]:
    """Run what can be run here, and write the page."""
    size = SIZES[scale]
    return page(measure(cases(scale, data.where()), size, folder), size).write(folder)


def page(results: Mapping[str, Results], size: FfggTable2Size) -> Page:
    """The page of these results."""
    ours = {title: rows_of(by_seed) for title, by_seed in results.items()}
    stand_ins = [title for title in ours if title not in SETS]
    shown = list(next(iter(ours.values()), {}))
    return page_from_text(
        NAME,
        facts=comparison(results),
        scale=size.text,
        cells=[
            Cell("Test accuracy, %", row, name, paper[name], _percent(ours.get(name, {}).get(row)))
            for name in SETS
            for row, paper in TABLE2.items()
        ],
        tables={
            "**Sets that can be had here: test accuracy, %**": [
                {"method": row} | {t: str(_percent(ours[t][row])) for t in stand_ins}
                for row in shown
            ]
            + [
                {"method": "each client's commonest class"}
                | {t: f"{100 * results[t][0]['majority']:.2f}" for t in stand_ins}
            ],
            "**Step sizes and splits that validation data chose**": [
                {"method": row} | {t: _chosen(results[t], row) for t in stand_ins} for row in shown
            ],
            "**FFGG with the split that validation data prefer, less another row, in points**": [
                against(title, by_seed) for title, by_seed in results.items()
            ],
        },
        pictures={TEXTS["picture"]: [panel(*result) for result in results.items()]},
        figures=dict(results),
        seconds=sum(one["seconds"] for by_seed in results.values() for one in by_seed),
    )


def measure(
    data_sets: Mapping[str, FfggCase], size: FfggTable2Size, folder: Path
) -> dict[str, Results]:
    """Search step sizes with a seed of its own where there are several; then the final runs."""
    directory = str(folder / ".runs" / NAME) if size.stored else ""
    plans = {
        title: Pipelines(
            case,
            SEARCH,
            size.first or TABLE3[case.column]["lr"][:1],
            fixed(size.rates or TABLE3[case.column]["lr"][1:]),
            directory,
        )
        for title, case in data_sets.items()
    }
    search_seconds = dict.fromkeys(data_sets, 0.0)
    if size.first or size.rates:
        search = train_all(list(plans.values()), folder, f"{NAME}-search", size.workers)
        for title, plan in plans.items():
            result = search[plan]
            rates = {row: (own["lr"],) for row, own in result["rows"].items()}
            plans[title] = replace(plan, first=(result["first"],), rates=rates)
            search_seconds[title] = result["seconds"]
    jobs = {
        title: [replace(plan, seed=seed) for seed in range(size.seeds)]
        for title, plan in plans.items()
    }
    every = [job for by_seed in jobs.values() for job in by_seed]
    results = train_all(every, folder, NAME, size.workers)
    out = {title: [dict(results[job]) for job in by_seed] for title, by_seed in jobs.items()}
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


def comparison(results: Mapping[str, Results]) -> dict[str, Any]:
    """Does the order of the paper show on these sets?"""
    missing = ", ".join(name for name in SETS if name not in results)
    compared = [against(title, by_seed) for title, by_seed in results.items()]
    comparisons = []
    for row in COMPARED:
        words = [one[row].rsplit("(", 1)[1].rstrip(")") for one in compared]
        counts = ", ".join(f"{word} on {words.count(word)}" for word in dict.fromkeys(words))
        comparisons.append(f"against {row}: {counts}")
    return {
        "missing": TEXTS["missing"].format(names=missing) if missing else "",
        "sets": len(compared),
        "comparisons": "; ".join(comparisons),
    }


def panel(title: str, by_seed: Results) -> Panel:
    """Test accuracy after each of the three steps."""
    families = {"FFGG": FFGG, "FFGG, from shared": SHARED, "FedAlt": FEDALT, "FedSim": FEDSIM}
    lines = []
    for label, family in families.items():
        row = best_split(by_seed, family)
        steps = [
            _mean([one["rows"][row][key] for one in by_seed])
            for key in ("start", "personalised", "test")
        ]
        split = row.rsplit(": ", 1)[1].lower()
        lines.append(Line(f"{label} ({split})", [1, 2, 3], steps, points=True))
    for row in (FINETUNED, LOCAL):
        level = _mean([one["rows"][row]["test"] for one in by_seed])
        lines.append(Line(row, [3], [level], points=True))
    return Panel(title, "after step", "test accuracy, %", lines)


def _mean(values: Sequence[float | None]) -> float:
    numbers = [v for v in values if v is not None]
    return 100 * sum(numbers) / len(numbers) if len(numbers) == len(values) else float("nan")


def _percent(values: Sequence[float | None] | None) -> Figure | None:
    if values is None:
        return None
    return Figure.of([None if v is None else 100 * v for v in values], 2)


def _chosen(by_seed: Results, row: str) -> str:
    source = sources(by_seed)[row]
    if source == FEDAVG:
        return f"lr {by_seed[0]['first']:g}"
    split = f"{source.rsplit(': ', 1)[1]}, " if "Best" in row else ""
    return f"{split}lr {by_seed[0]['rows'][source]['lr']:g}"
