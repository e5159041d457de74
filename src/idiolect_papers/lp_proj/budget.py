"""What bytes buy: docs/budget.md, and Tables 1, 5 and 11 of the lp-proj paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from idiolect import FedAvg, Local, Method, Plan, make_method
from idiolect.report import Curve, Goals, count, curve, curve_picture, goal, number, size
from idiolect.study import grid_of, mean_over_seeds

from ..case import Case, stock_of
from ..marks import Cell, Figure, beside
from ..page import Row, page_from_text, table, write_page
from ..published import read_table
from ..runs import Runs, scaled_runs, stored_runs
from ..texts import read_text
from .cases import CASES as FEDERATIONS
from .cases import VOLUME

RATES = (0.05, 0.1, 0.5)  # the paper's grid; chosen on validation data of seed 0
FINETUNED = ", fine-tuned"  # the end of the label of a row whose models are fine-tuned before use
FINETUNE: dict[str, Any] = {
    "finetune_steps": 2,
    "finetune_lr": 0.1,
}  # the paper's, "for a fair comparison"
TUNED = ", tuned"  # in the label of a row whose channel is chosen from the paper's grid too
LOCAL = "Local (sends nothing)"
TEXT = "budget"
TEXTS = read_text(TEXT)
Candidate = tuple[Method, dict[str, Any]]  # a method, and run settings of its own


@dataclass(frozen=True)
class BudgetCase(Case):
    """A federation with the budget and the target of the paper, counted as it does."""

    budget: int = 0  # 32-bit words
    target: float = 0.6
    everyone_rounds: int = 200  # of methods that train everyone: they get there in a few rounds
    sampled_rounds: int = 200  # of the others
    search_rounds: int = 20  # of a run that settings of a tuned row are chosen by
    eval_every: int = 1
    fixed: bool = True  # rows at fixed settings of the channel too

    def rounds_of(self, label: str) -> int:
        everyone = label.startswith(("lp-proj", "Local"))
        return self.everyone_rounds if everyone else self.sampled_rounds

    @property
    def picture(self) -> str:
        return f"budget-{self.data}.png"


def _case(title: str, **goals: Any) -> BudgetCase:
    """A federation of the paper, of which a tenth of the clients is heard per round."""
    return BudgetCase(**{**vars(FEDERATIONS[title]), "clients_per_round": 0.1, **goals})


CASES = {
    "Synthetic(0, 0)": _case("Synthetic(0, 0)", budget=328_020),
    "MNIST, 2 classes per client": _case(
        "MNIST",
        budget=228_000,
        target=0.7,
        everyone_rounds=10,
        sampled_rounds=60,
        search_rounds=10,
    ),
    "CIFAR-10, 2 classes per client": _case(
        "CIFAR",
        budget=1_029_600,
        target=0.4,
        everyone_rounds=1,
        sampled_rounds=10,
        search_rounds=3,
        eval_every=2,
        fixed=False,
    ),
    VOLUME: _case(VOLUME, budget=194_700),
}
MAIN = tuple(title for title in CASES if title != VOLUME)  # of Tables 1 and 5
CHANNELS = {  # the published algorithms, at settings of the paper's grid where it has one
    "QSGD": "qsgd(levels=5, bucket=500, norm=inf)",
    "QSGD, entropy coded": "qsgd(levels=5, bucket=500, norm=inf, coding=elias)",
    "DGC": "dgc(sparsity=0.999, start=0.75, rise=0.25)",
    "LBGM": "lbgm(threshold=0.5)",
    "Sketch": "sketch(exact=True)",
    "top-k, 8 bits": "feedback + topk(share=0.01) + int8",
}
SKETCH_ROWS = (3, 6)  # 0.005 and 0.01 of the 610 numbers of the logistic model


def rows(case: BudgetCase, d: int) -> dict[str, list[Candidate]]:
    """Label -> the candidates among which validation data choose, for a model of d numbers."""
    table: dict[str, list[Candidate]] = {
        LOCAL: [(Local(lr=0.1, steps=20), {})],
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


# -- runs -----------------------------------------------------------------------------------------
Figures = dict[str, Any]  # of one federation: label of the row -> what it reached


def measured(
    runs: Runs,
    cases: Mapping[str, BudgetCase],
    seeds: int,
    rounds: int | None = None,
    only: Sequence[str] = (),
) -> tuple[dict[str, Figures], dict[str, list[Curve]]]:
    """Of every federation: what its rows made of budget and target, and their curves.

    Of every row the candidate that does best on validation data; candidates of a tuned row, which
    are many, have few rounds.
    """
    stock = stock_of(cases)
    candidates: dict[tuple[str, str], list[Plan]] = {}
    for title, case in cases.items():
        for label, several in rows(case, stock.tasks[title].d).items():
            if not only or label in only:
                searched = case.search_rounds if TUNED in label else case.rounds_of(label)
                run = {
                    "sample": case.sample(stock.federation(title).clients),
                    "rounds": min(searched, rounds or searched),
                    "eval_every": 0,
                }
                candidates[title, label] = [setting(title, label, c, run) for c in several]
    best, _ = runs.chosen({": ".join(key): c for key, c in candidates.items()}, stock, 0)
    final = {}
    for title, label in candidates:
        case, winner = cases[title], best[f"{title}: {label}"]
        run = {"rounds": rounds or case.rounds_of(label), "eval_every": case.eval_every}
        final[title, label] = replace(winner, settings=winner.settings | run)
    stored: dict[str, Figures] = {title: {} for title in cases}
    curves: dict[str, list[Curve]] = {title: [] for title in cases}
    for (title, label), summaries in runs(final, stock, range(seeds), ("by_round",)).items():
        goals = Goals(cases[title].budget, cases[title].target)
        drawn = curve(label, [_numbers(row) for one in summaries for row in one["by_round"]])
        curves[title].append(drawn)
        stored[title][label] = {
            **_chosen_fields(label, final[title, label]),
            **goals.reached(drawn),
            "last": mean_over_seeds(label, summaries)["accuracy"]["mean"],
        }
    return stored, curves


def setting(title: str, label: str, candidate: Candidate, run: dict[str, Any]) -> Plan:
    """A candidate of a row, and how it is run."""
    method, own = candidate
    varied = {"lr": method.as_dict()["lr"], "channel": own.get("channel", "none"), "data": title}
    if label.startswith(("LBGM", "LG-FedAvg")):
        varied["steps"] = method.as_dict()["steps"]
    settings = {**run, **own}
    return Plan.of(method, settings=settings, data=title, model=title, name=label, varied=varied)


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A round as it was before it was stored: what is not finite is null in JSON."""
    return {name: math.nan if value is None else value for name, value in row.items()}


def _chosen_fields(label: str, winner: Plan) -> dict[str, Any]:
    fields = winner.make_method().as_dict()
    if TUNED not in label:
        return {"lr": fields["lr"]}
    return {"lr": fields["lr"], "steps": fields["steps"], "channel": winner.settings["channel"]}


# -- budget.md ------------------------------------------------------------------------------------
def write(
    folder: Path,
    seeds: int = 3,
    rounds: int | None = None,
    titles: tuple[str, ...] = MAIN,
    only: tuple[str, ...] = (),
    jobs: int = 0,
) -> list[Path]:
    """Measure every row of every federation and write the page, its figures and its pictures."""
    cases = {title: CASES[title] for title in titles}
    with stored_runs(folder, "budget", jobs) as runs:
        stored, curves = measured(runs, cases, seeds, rounds, only)
        pictures = [
            path
            for title, case in cases.items()
            for path in curve_picture(
                curves[title], Goals(case.budget, case.target, "values"), folder / case.picture
            )
        ]
        return [*write_page(folder, "budget", page(stored), stored), *pictures]


def page(stored: dict[str, Figures]) -> str:
    """The page of these figures, by federation."""
    lines = [TEXTS["head"]]
    for title, figures in stored.items():
        case = CASES[title]
        lines += [
            f"## {title}: budget {case.budget:,} words, target {case.target}",
            "",
            *table([line(label, row) for label, row in figures.items()]),
            TEXTS["gains"],
        ]
        for what, suffix in (("a shared model", ""), ("fine-tuned", FINETUNED)):
            in_words = gain(figures, "to_target_values", suffix)
            in_bytes = gain(figures, "to_target", suffix)
            lines.append(f"- {what}: in words {in_words}; in bytes really sent {in_bytes}")
        lines += [*_chosen(figures), "", f"![Accuracy against words sent]({case.picture})", ""]
    tuned = {t: CASES[t].search_rounds for t, f in stored.items() if any(TUNED in n for n in f)}
    if tuned:
        rounds = "; ".join(f"{title}: {number}" for title, number in tuned.items())
        sketches = " or ".join(map(str, SKETCH_ROWS))
        lines.append(TEXTS["how_tuned"].format(rows=sketches, rounds=rounds))
    return "\n".join([*lines, TEXTS["tail"]])


def line(label: str, row: Row) -> Row:
    """A row of the table."""
    return {
        "method": label,
        "accuracy at the budget": goal(row["at_budget_values"], number),
        "words to the target": goal(row["to_target_values"], count),
        "bytes really sent to the target": goal(row["to_target"], size),
        "accuracy, last round": number(row["last"]),
    }


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
    lines = [
        f"- {label.removesuffix(FINETUNED).removesuffix(TUNED)} `{row['channel']}`, step size "
        f"{row['lr']:g}, steps {row['steps']}"
        for label, row in figures.items()
        if TUNED in label
    ]
    return ["", "Chosen for the tuned rows:", "", *lines] if lines else []


# -- Tables 1, 5 and 11 ---------------------------------------------------------------------------
TABLE_SEEDS = {"quick": 2, "full": 10}
FULL: dict[str, Any] = {
    "everyone_rounds": 200,
    "sampled_rounds": 700,
}  # Table 5's QSGD needs 590 rounds
COLUMNS = {"accuracy at the budget": "at_budget_values", "words to the target": "to_target_values"}
DIGITS = {"accuracy at the budget": 3, "words to the target": 0}
TITLES = {  # as the paper calls them -> here
    "Synthetic(0, 0)": "Synthetic(0, 0)",
    "CIFAR": "CIFAR-10, 2 classes per client",
    "MNIST": "MNIST, 2 classes per client",
    VOLUME: VOLUME,
}


def write_table(folder: Path, number: int, scale: str, jobs: int = 0) -> list[Path]:
    """Table 5; Table 1, which has two of its data sets; Table 11, with volumes by a power law."""
    by_volume = number == 11
    cases = {title: CASES[title] for title in ((VOLUME,) if by_volume else MAIN)}
    if scale == "full":
        cases = {title: replace(case, **FULL) for title, case in cases.items()}
    name = "lp-proj-volume-budget" if by_volume else "lp-proj-budget"
    runs = scaled_runs(folder, name, scale, jobs)
    results, _ = measured(runs, cases, TABLE_SEEDS[scale])
    return page_from_text(
        f"lp-proj-table{number}",
        {},
        shared=TEXT,
        title=f"lp-proj, Table {number}: accuracy at a budget, and words to a target",
        scale=f"{scale}: {TABLE_SEEDS[scale]} seeds, {TEXTS['scales'][scale]}",
        opening=opening(results),
        cells=cells(results, number),
    ).write(folder)


def cells(results: dict[str, Figures], number: int) -> list[Cell]:
    """Of every data set the rows of the paper, and Local."""
    published = read_table("lp-proj-table5", "lp-proj-table11", digits=DIGITS)
    main = [title for title in published if title != VOLUME]
    titles = {1: ["Synthetic(0, 0)", "EMNIST"], 5: main, 11: [VOLUME]}[number]
    compared = []
    for title in titles:
        rows = results.get(TITLES.get(title, ""), {})
        ours = {
            row: {column: _ours(rows[label_of(row)], key) for column, key in COLUMNS.items()}
            for row in (*published[title], LOCAL)
            if label_of(row) in rows
        }
        compared += beside(title, published[title], ours, tuple(COLUMNS))
    return compared


def label_of(row: str) -> str:
    """Our row: compressed methods tuned by C.2 and personalised, as in the paper.

    >>> label_of("QSGD"), label_of("lp-proj-1")
    ('QSGD, tuned, fine-tuned', 'lp-proj-1')
    """
    return f"{row}{TUNED}{FINETUNED}" if row in ("Sketch", "LBGM", "QSGD", "DGC") else row


def _ours(row: dict[str, Any], key: str) -> Figure | None:
    """A ★ where a seed has none; nothing where the rounds ended before the budget was spent."""
    if row[key].get("unspent"):
        return None
    return Figure.of(row[key]["by_seed"], 3 if key.startswith("at_budget") else 0)


def opening(results: dict[str, Figures]) -> str:
    lines = [TEXTS["opening"], ""]
    for title, rows in results.items():
        local, tied = rows.get(LOCAL), rows.get("lp-proj-1")
        if local and tied:
            target = tied["to_target_values"]
            template = TEXTS["first_round" if target["rounds"][0] == 1 else "later_round"]
            words = _ours(tied, "to_target_values")
            facts = {"title": title, "local": local["last"], "tied": tied["last"], "words": words}
            lines.append(template.format_map(facts))
    return "\n".join(lines)
