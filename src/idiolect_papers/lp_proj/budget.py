"""The federations of the tables, and their rows: methods, channels, settings to choose from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from idiolect import FedAvg, Federation, Local, Method, Plan, Task, data, make_method, models
from idiolect.report import Curve, Goals, count, curve, curve_picture, goal, number, size
from idiolect.study import Stock, grid_of, mean_over_seeds

from ..marks import Cell, Figure
from ..page import Page
from ..published import read_figure, read_rows
from ..runs import Runs, Summary, stored_runs
from ..texts import read_text

RATES = (0.05, 0.1, 0.5)  # the paper's grid; chosen on validation data of seed 0
FINETUNED = ", fine-tuned"  # the end of the label of a row whose models are fine-tuned before use
FINETUNE: dict[str, Any] = {
    "finetune_steps": 2,
    "finetune_lr": 0.1,
}  # the paper's, "for a fair comparison"
TUNED = ", tuned"  # in the label of a row whose channel is chosen from the paper's grid too
Candidate = tuple[Method, dict[str, Any]]  # a method, and run settings of its own


@dataclass(frozen=True)
class Case:
    """A federation with the budget and the target of the paper, counted as it does."""

    data: str
    model: str
    dim: int  # of the subspace of lp-proj
    budget: int  # 32-bit words
    target: float
    everyone_rounds: int  # of methods that train everyone: they get there in a few rounds
    sampled_rounds: int  # of the others
    search_rounds: int  # of a run that settings of a tuned row are chosen by
    heard: int = 10  # a tenth of the clients
    eval_every: int = 1
    fixed: bool = True  # rows at fixed settings of the channel too
    options: dict[str, Any] = field(default_factory=dict)  # of the data

    def load(self) -> tuple[Federation, Task]:
        """The data and the model."""
        federation = data.load(self.data, **self.options)
        shape = tuple(federation.inputs.shape[1:])
        return federation, Task(partial(models.make, self.model, shape, federation.classes))

    def rounds_of(self, label: str) -> int:
        everyone = label.startswith(("lp-proj", "Local"))
        return self.everyone_rounds if everyone else self.sampled_rounds

    @property
    def picture(self) -> str:
        return f"budget-{self.data}.png"


VOLUME = "Synthetic, by volume"  # sizes by a power law: Table 11
CASES = {
    "Synthetic(0, 0)": Case("synthetic", "linear", 21, 328_020, 0.6, 200, 200, 20),
    "MNIST, 2 classes per client": Case("mnist", "mlp", 50, 228_000, 0.7, 10, 60, 10),
    "CIFAR-10, 2 classes per client": Case(
        "cifar10", "lenet", 60, 1_029_600, 0.4, 1, 10, 3, heard=20, eval_every=2, fixed=False
    ),
    VOLUME: Case(
        "synthetic",
        "linear",
        21,
        194_700,
        0.6,
        200,
        200,
        20,
        options={"sizes": "power", "minimum": 100},
    ),
}
MAIN = [title for title in CASES if title != VOLUME]  # of Tables 1 and 5
CHANNELS = {  # the published algorithms, at settings of the paper's grid where it has one
    "QSGD": "qsgd(levels=5, bucket=500, norm=inf)",
    "QSGD, entropy coded": "qsgd(levels=5, bucket=500, norm=inf, coding=elias)",
    "DGC": "dgc(sparsity=0.999, start=0.75, rise=0.25)",
    "LBGM": "lbgm(threshold=0.5)",
    "Sketch": "sketch(exact=True)",
    "top-k, 8 bits": "feedback + topk(share=0.01) + int8",
}
SKETCH_ROWS = (3, 6)  # 0.005 and 0.01 of the 610 numbers of the logistic model


def rows(case: Case, d: int) -> dict[str, list[Candidate]]:
    """Label -> the candidates among which validation data choose, for a model of d numbers."""
    table: dict[str, list[Candidate]] = {
        "Local (sends nothing)": [(Local(lr=0.1, steps=20), {})],
        "lp-proj-1": [(make_method("lp-proj-1", dim=case.dim, preset="paper"), {})],
        "lp-proj-2": [(make_method("lp-proj-2", dim=case.dim, preset="paper"), {})],
        "FedAvg": _fedavg(),
        f"FedAvg{FINETUNED}": _fedavg(**FINETUNE),
    }
    if case.model != "linear":  # it is for models that have parts
        points = grid_of("lp-proj", "lg-fedavg").plans(d)
        table["LG-FedAvg"] = [(make_method("lg-fedavg", **p.method_fields), {}) for p in points]
    for title, channel in CHANNELS.items() if case.fixed else ():
        table[title] = _fedavg(channel=channel)
        table[f"{title}{FINETUNED}"] = _fedavg(**FINETUNE, channel=channel)
    for title, candidates in grids(d).items():
        table[f"{title}{TUNED}{FINETUNED}"] = candidates
    return table


def grids(d: int) -> dict[str, list[Candidate]]:
    """The paper's grids of compressed methods (its appendix C.2).

    A sketch of its rows, 0.005 d and 0.01 d, and columns, 0.02 d and 0.05 d, is larger than a model
    of more than 10,000 numbers: rows are as many as for the logistic model.
    """
    candidates: dict[str, list[Candidate]] = {
        title: [
            (FedAvg(**point.method_fields), {**FINETUNE, **point.own})
            for point in grid_of("lp-proj", title.lower()).plans(d)
        ]
        for title in ("QSGD", "DGC", "LBGM")
    }
    sketches = product((0.02, 0.05), SKETCH_ROWS, (0.01, 0.05))
    candidates["Sketch"] = [
        candidate
        for c, rows, k in sketches
        for candidate in _fedavg(
            (1,),
            **FINETUNE,
            channel=f"sketch(exact=True, columns={round(c * d)}, rows={rows}, k={round(k * d)})",
        )
    ]
    return candidates


def _fedavg(steps: Sequence[int] = (5,), **settings: Any) -> list[Candidate]:
    """FedAvg with every step size."""
    return [(FedAvg(lr=lr, steps=n, weighting="equal"), settings) for n in steps for lr in RATES]


Key = tuple[str, str]  # title of a federation, label of a row


def choose(
    runs: Runs,
    stock: Stock,
    cases: Mapping[str, Case],
    candidates: Mapping[Key, Sequence[Candidate]],
    rounds: int | None = None,
) -> dict[Key, Candidate]:
    """For each row the candidate that does best on validation data; a single one without a run.

    Candidates of a tuned row, which are many, have few rounds.
    """
    settings: dict[str, list[Plan]] = {}
    for key, several in candidates.items():
        case = cases[key[0]]
        short = case.search_rounds if TUNED in key[1] else case.rounds_of(key[1])
        run = {"rounds": min(short, rounds or short), "eval_every": 0}
        settings[_row(key)] = [setting(key, case, candidate, run) for candidate in several]
    best, _ = runs.chosen(settings, stock, seed=0)
    places = {key: settings[_row(key)].index(best[_row(key)]) for key in candidates}
    return {key: several[places[key]] for key, several in candidates.items()}


def _row(key: Key) -> str:
    return ": ".join(key)


def final(
    runs: Runs,
    stock: Stock,
    cases: Mapping[str, Case],
    winners: Mapping[Key, Candidate],
    seeds: int,
    rounds: int | None = None,
) -> dict[Key, list[Summary]]:
    """The runs of every row as it was chosen."""
    todo = {}
    for key, candidate in winners.items():
        case = cases[key[0]]
        settings = {"rounds": rounds or case.rounds_of(key[1]), "eval_every": case.eval_every}
        todo[key] = setting(key, case, candidate, settings)
    return runs(todo, stock, range(seeds), ("by_round",))


def setting(key: Key, case: Case, candidate: Candidate, settings: dict[str, Any]) -> Plan:
    """A candidate of a row, and how it is run."""
    title, label = key
    method, own = candidate
    varied = {"lr": method.as_dict()["lr"], "channel": own.get("channel", "none"), "data": title}
    if label.startswith(("LBGM", "LG-FedAvg")):
        varied["steps"] = method.as_dict()["steps"]
    run = {"sample": case.heard, **settings, **own}
    return Plan.of(method, settings=run, data=title, model=title, name=label, varied=varied)


def reached(
    label: str, candidate: Candidate, summaries: Sequence[Summary], goals: Goals
) -> tuple[Curve, dict[str, Any]]:
    """The curve of one row, and what it made of the goals."""
    method, own = candidate
    drawn = curve(label, [_numbers(row) for summary in summaries for row in summary["by_round"]])
    fields = method.as_dict()
    figures: dict[str, Any] = {"lr": fields["lr"]}
    if TUNED in label:
        figures |= {"steps": fields["steps"], "channel": own["channel"]}
    last = mean_over_seeds(label, summaries)["accuracy"]["mean"]
    return drawn, {**figures, **goals.reached(drawn), "last": last}


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A round as it was before it was stored: what is not finite is null in JSON."""
    return {name: math.nan if value is None else value for name, value in row.items()}


SEEDS = 3


def write(
    folder: Path,
    seeds: int = SEEDS,
    rounds: int | None = None,
    titles: tuple[str, ...] = tuple(MAIN),
    only: tuple[str, ...] = (),
    jobs: int = 0,
) -> list[Path]:
    """Measure every row of every federation and write the page, its figures and its pictures."""
    cases = {title: CASES[title] for title in titles}
    text = folder / "budget.md"
    figures = folder / "budget.json"
    with stored_runs(folder, "budget", jobs) as runs:
        stored, curves = measured(runs, cases, seeds, rounds, only)
        pictures = [
            path
            for title, case in cases.items()
            for path in curve_picture(
                curves[title], Goals(case.budget, case.target, "values"), folder / case.picture
            )
        ]
        text.write_text(page(stored), encoding="utf-8")
        figures.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return [text, figures, *pictures]


def measured(
    runs: Runs,
    cases: dict[str, Case],
    seeds: int,
    rounds: int | None = None,
    only: tuple[str, ...] = (),
) -> tuple[dict[str, dict[str, Any]], dict[str, list[Curve]]]:
    """Of every federation: what its rows made of budget and target, and their curves."""
    stock = Stock({}, {})
    for title, case in cases.items():
        stock.data[title], stock.tasks[title] = case.load()
    candidates = {
        (title, label): several
        for title, case in cases.items()
        for label, several in rows(case, stock.tasks[title].d).items()
        if not only or label in only
    }
    stored: dict[str, dict[str, Any]] = {title: {} for title in cases}
    curves: dict[str, list[Curve]] = {title: [] for title in cases}
    winners = choose(runs, stock, cases, candidates, rounds)
    for (title, label), summaries in final(runs, stock, cases, winners, seeds, rounds).items():
        goals = Goals(cases[title].budget, cases[title].target)
        drawn, figures = reached(label, winners[title, label], summaries, goals)
        curves[title].append(drawn)
        stored[title][label] = figures
    return stored, curves


# -- budget.md: its words and tables, from the figures of budget.json --

Figures = dict[str, Any]  # of one federation: label of the row -> what it reached


def page(stored: dict[str, Figures]) -> str:
    """The page of these figures, by federation."""
    lines = [HEAD]
    for title, figures in stored.items():
        case = CASES[title]
        lines += [
            f"## {title}: budget {case.budget:,} words, target {case.target}",
            "",
            "| method | accuracy at the budget | words to the target "
            "| bytes really sent to the target | accuracy, last round |",
            "|---|---|---|---|---|",
            *(f"| {label} | {line(f)} |" for label, f in figures.items()),
            "",
            "What the best compressed baseline sends to reach the target, as a multiple of what",
            "lp-proj-1 sends:",
            "",
        ]
        for what, suffix in (("a shared model", ""), ("fine-tuned", FINETUNED)):
            in_words = gain(figures, "to_target_values", suffix)
            in_bytes = gain(figures, "to_target", suffix)
            lines.append(f"- {what}: in words {in_words}; in bytes really sent {in_bytes}")
        lines += [*_chosen(figures), "", f"![Accuracy against words sent]({case.picture})", ""]
    tuned = {t: CASES[t].search_rounds for t, f in stored.items() if any(TUNED in n for n in f)}
    if tuned:
        rounds = "; ".join(f"{title}: {number}" for title, number in tuned.items())
        rows = " or ".join(map(str, SKETCH_ROWS))
        lines.append(HOW_TUNED.format(rows=rows, rounds=rounds))
    return "\n".join([*lines, TAIL])


def line(f: dict[str, Any]) -> str:
    """The cells of a row."""
    cells = [
        goal(f["at_budget_values"], number),
        goal(f["to_target_values"], count),
        goal(f["to_target"], size),
        number(f["last"]),
    ]
    return " | ".join(cells)


def gain(figures: Figures, key: str, suffix: str) -> str:
    """How many times as much as lp-proj-1 the best compressed baseline sends to the target."""
    ours = figures["lp-proj-1"][key]["mean"]
    names = [*CHANNELS, *(channel + TUNED for channel in CHANNELS)]
    labels = [name + suffix for name in names if name + suffix in figures]
    theirs = {n: figures[n][key]["mean"] for n in labels if figures[n][key]["mean"]}
    if not ours or not theirs:
        return "none reaches it"
    best = min(theirs, key=lambda n: theirs[n])
    return f"{theirs[best] / ours:.1f} times ({best.removesuffix(FINETUNED)})"


def _chosen(figures: Figures) -> list[str]:
    """What validation data chose for the tuned rows."""
    tuned = {
        label.removesuffix(FINETUNED).removesuffix(TUNED): f
        for label, f in figures.items()
        if TUNED in label
    }
    lines = [
        f"{name} `{f['channel']}`, step size {f['lr']:g}, steps {f['steps']}"
        for name, f in tuned.items()
    ]
    return ["", "Chosen for the tuned rows:", "", *(f"- {text}" for text in lines)] if lines else []


TEXTS = read_text("budget")
HEAD = TEXTS["head"]
HOW_TUNED = TEXTS["how_tuned"]
TAIL = TEXTS["tail"]


TABLE_SEEDS = {"quick": 2, "full": 10}
FULL: dict[str, Any] = {
    "everyone_rounds": 200,
    "sampled_rounds": 700,
}  # Table 5's QSGD needs 590 rounds
COLUMNS = {"accuracy at the budget": "at_budget_values", "words to the target": "to_target_values"}
OURS = "Local (sends nothing)"
TITLES = {  # as the paper calls them -> here
    "Synthetic(0, 0)": "Synthetic(0, 0)",
    "CIFAR": "CIFAR-10, 2 classes per client",
    "MNIST": "MNIST, 2 classes per client",
    VOLUME: VOLUME,
}


def write_table5(folder: Path, scale: str, jobs: int = 0) -> list[Path]:
    titles = [title for title, _ in read_published() if title != VOLUME]
    results = _measured(folder, scale, {t: CASES[t] for t in MAIN}, jobs)
    return _page(5, results, list(dict.fromkeys(titles)), scale).write(folder)


def write_table1(folder: Path, scale: str, jobs: int = 0) -> list[Path]:
    results = _measured(folder, scale, {t: CASES[t] for t in MAIN}, jobs)
    return _page(1, results, ["Synthetic(0, 0)", "EMNIST"], scale).write(folder)


def write_table11(folder: Path, scale: str, jobs: int = 0) -> list[Path]:
    results = _measured(folder, scale, {VOLUME: CASES[VOLUME]}, jobs)
    return _page(11, results, [VOLUME], scale).write(folder)


def _measured(
    folder: Path, scale: str, cases: dict[str, Case], jobs: int
) -> dict[str, dict[str, Any]]:
    if scale == "full":
        cases = {title: replace(case, **FULL) for title, case in cases.items()}
    name = "volume-budget" if VOLUME in cases else "budget"
    runs = Runs(folder / ".runs" / f"lp-proj-{name}-{scale}", jobs)
    stored, _ = measured(runs, cases, TABLE_SEEDS[scale])
    return stored


def _page(number: int, results: dict[str, dict[str, Any]], titles: list[str], scale: str) -> Page:
    return Page(
        name=f"lp-proj-table{number}",
        title=f"lp-proj, Table {number}: accuracy at a budget, and words to a target",
        scale=f"{scale}: {TABLE_SEEDS[scale]} seeds, the rounds of docs/budget.md"
        if scale == "quick"
        else f"{scale}: {TABLE_SEEDS[scale]} seeds, 200 rounds of methods that train everyone, "
        "700 of the others",
        opening=_opening(results),
        printed=PRINTED,
        chosen=CHOSEN,
        cells=_cells(results, titles),
        reasons=REASONS,
    )


def _cells(results: dict[str, dict[str, Any]], titles: list[str]) -> list[Cell]:
    published = read_published()
    cells = []
    for title in titles:
        rows = results.get(TITLES.get(title, ""), {})
        published_rows = [row for data, row in published if data == title]
        for row in [*published_rows, *([OURS] if OURS in rows else [])]:
            paper = published.get((title, row), {})
            for column, key in COLUMNS.items():
                ours = _ours(rows.get(label_of(row)), key)
                cells.append(Cell(title, row, column, paper.get(column), ours))
    return cells


def label_of(row: str) -> str:
    """Our row: compressed methods tuned by C.2 and personalised, as in the paper.

    >>> label_of("QSGD"), label_of("lp-proj-1")
    ('QSGD, tuned, fine-tuned', 'lp-proj-1')
    """
    return f"{row}{TUNED}{FINETUNED}" if row in ("Sketch", "LBGM", "QSGD", "DGC") else row


def _ours(row: dict[str, Any] | None, key: str) -> Figure | None:
    """A ★ where a seed has none; nothing where the rounds ended before the budget was spent."""
    if row is None:
        return None
    if row[key].get("unspent"):
        return None
    return Figure.of(row[key]["by_seed"], 3 if key.startswith("at_budget") else 0)


def _opening(results: dict[str, dict[str, Any]]) -> str:
    lines = [OPENING, ""]
    for title, rows in results.items():
        local, tied = rows.get(OURS), rows.get("lp-proj-1")
        if local and tied:
            words = _ours(tied, "to_target_values")
            lines.append(
                f"- {title}: Local reaches {local['last']:.3f} with 0 words, lp-proj-1 "
                f"{tied['last']:.3f} in the end; its first round, {words} words, is already above "
                "the target"
                if tied["to_target_values"]["rounds"][0] == 1
                else f"- {title}: Local reaches {local['last']:.3f} with 0 words, lp-proj-1 "
                f"{tied['last']:.3f} in the end and the target after {words} words"
            )
    return "\n".join(lines)


OPENING = TEXTS["opening"]
PRINTED = TEXTS["printed"]
CHOSEN = TEXTS["chosen"]
_LATE = "the authors' code evaluates before each round: its count has one round more than ours"
REASONS = {
    "lp-proj-1/words to the target": _LATE,
    "lp-proj-2/words to the target": _LATE,
    "words to the target": "everyone trains 20 steps before the first message, and two steps of "
    "fine-tuning reach the target from any shared model: one round is enough here",
    "LG-FedAvg": "the paper charges all clients for what is sent down, here those that are heard",
    "QSGD": "in the authors' code only one client is evaluated for QSGD and DGC",
    "DGC": "in the authors' code only one client is evaluated for QSGD and DGC",
}


def read_published() -> dict[tuple[str, str], dict[str, Figure]]:
    """Tables 5 and 11: [data set, method] -> figures by column.

    >>> {name: str(f) for name, f in read_published()["MNIST", "lp-proj-1"].items()}
    {'accuracy at the budget': '0.982 ± 0.000', 'words to the target': '12,000 ± 0'}
    """
    digits = {"accuracy at the budget": 3, "words to the target": 0}
    return {
        (row["data"], row["method"]): {
            column: figure
            for column, n in digits.items()
            if (figure := read_figure(row[column], n))
        }
        for table in ("lp-proj-table5", "lp-proj-table11")
        for row in read_rows(table)
    }
