"""What the figures say: who wins, by how much, whether that is clear, and what it depends on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from idiolect import interval, paired_difference

from ..page import table
from ..panels import Line, Panel, draw
from ..texts import read_text
from .where_it_helps import CASES, PERSONALISED, SIZES, Case, Size, measure

Row = dict[str, Any]
BETTER, WORSE, UNCLEAR = "helps", "hurts", "no clear difference"


def compared(row: Row) -> Row:
    """A row of the table, from the figures of a case.

    The federated method is FedAvg or the best personalised one, as validation data say. Differences
    are between runs with the same seed: the same samples were drawn for both.
    """
    methods = row["methods"]
    personal = next(name for name in methods if name in PERSONALISED)
    federated = max(("fedavg", personal), key=lambda name: methods[name]["valid"])
    gain, half = paired_difference(methods[federated]["test"], methods["local"]["test"])
    order = sorted(methods, key=lambda name: -float(np.mean(methods[name]["test"])))
    lead, reach = paired_difference(methods[order[0]]["test"], methods[order[1]]["test"])
    own, own_half = paired_difference(methods[personal]["test"], methods["fedavg"]["test"])
    return {
        "set": row["set"],
        "samples": row["samples"],
        "median": row["median"],
        "spread": row["spread"],
        "majority": row["majority"],
        "personal": personal,
        "federated": federated,
        "gain": gain,
        "half": half,
        "verdict": verdict(gain, half),
        "best": order[0],
        "second": order[1],
        "lead": lead,
        "lead_half": reach,
        "clear": reach is not None and lead > reach,
        "personal_gain": own,
        "personal_half": own_half,
        "personal_verdict": verdict(own, own_half),
        "means": {name: float(np.mean(facts["test"])) for name, facts in methods.items()},
        "clients": methods[federated]["clients"],
    }


def verdict(gain: float, half: float | None) -> str:
    """Whether a difference is clear: beyond its interval.

    >>> verdict(0.1, 0.05), verdict(-0.1, 0.05), verdict(0.1, 0.2), verdict(0.1, None)
    ('helps', 'hurts', 'no clear difference', 'no clear difference')
    """
    if half is None or abs(gain) <= half:
        return UNCLEAR
    return BETTER if gain > 0 else WORSE


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's, with mean ranks for ties; None where one of them does not vary.

    >>> rank_correlation([1, 2, 3], [10, 20, 40]), rank_correlation([1, 1], [2, 3])
    (1.0, None)
    """
    from scipy.stats import rankdata

    a, b = rankdata(x), rankdata(y)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(round(np.corrcoef(a, b)[0, 1], 12))


# -- where-it-helps.md: words, tables and the picture, from the figures of where-it-helps.json --

NAMES = {
    "local": "Local",
    "fedavg": "FedAvg",
    "finetune": "FedAvg, fine-tuned",
    "ditto": "Ditto",
    "lp-proj-2": "lp-proj (p = 2)",
    "fedalt": "FedAlt",
    "pfedme": "pFedMe",
}


def page_of(stored: dict[str, Any]) -> str:
    """The page of stored figures."""
    rows = stored["rows"]
    comparisons = [compared(row) for row in rows]
    lines = ["# Where does federation really help?", "", opening(comparisons), ""]
    lines += [
        *table([_first(row, f) for row, f in zip(rows, comparisons, strict=True)]),
        "",
        READ,
        "",
        "![Gain of federation over Local against samples per client](where-it-helps.png)",
        "",
        "Test accuracy of the federated method that validation data prefer, less that of Local at "
        "equal gradients, against training samples per client; bands are 95 % intervals.",
        "",
        "## What does it depend on?",
        "",
        *depends(comparisons),
        "",
        "## All figures",
        "",
        *table([_second(row) for row in rows]),
        "",
        "What was chosen on validation data:",
        "",
        *table([_third(row) for row in rows]),
        "",
        "## How it was measured",
        "",
        measured(stored),
        "",
    ]
    return "\n".join(lines)


def opening(comparisons: Sequence[Row]) -> str:
    """The answer, in a few sentences that the figures give."""
    many = Counter(f["verdict"] for f in comparisons)
    text = (
        f"Of {len(comparisons)} cases (a data set with so many samples per client), learning "
        f"together is clearly better than learning alone at equal gradients in {many[BETTER]}, "
        f"clearly worse in {many[WORSE]}, and makes no clear difference in {many[UNCLEAR]}."
    )
    text += f" (Of {len(comparisons)} comparisons at 95 %, about {0.05 * len(comparisons):.1g} "
    text += "would be clear by chance.)"
    clear = [f for f in comparisons if f["verdict"] == BETTER]
    if clear:
        most = max(clear, key=lambda f: f["gain"])
        text += f" The largest clear gain is {_points(most['gain'])} points ({_case(most)})."
    hurt = [f for f in comparisons if f["verdict"] == WORSE]
    if hurt:
        least = min(hurt, key=lambda f: f["gain"])
        text += f" The largest clear loss is {_points(-least['gain'])} points ({_case(least)})."
    winners = Counter(
        "Local"
        if f["best"] == "local"
        else "FedAvg"
        if f["best"] == "fedavg"
        else "a personalised method"
        for f in comparisons
    )
    counts_text = ", ".join(f"{name} in {count}" for name, count in winners.most_common())
    sure = sum(f["clear"] for f in comparisons)
    text += (
        f" Best on test data: {counts_text}; its lead over the second is clear in {sure} of these."
    )
    low = [f for f in comparisons if f["majority"] >= max(f["means"].values())]
    if low:
        text += (
            " No method beats each client's own commonest class on "
            f"{'; '.join(_case(f) for f in low)}."
        )
    return text


def depends(comparisons: Sequence[Row]) -> list[str]:
    """How the gain goes with samples per client and with how unlike the clients are."""
    lines = []
    by_size: dict[str, list[Row]] = {}
    for f in comparisons:
        by_size.setdefault(str(f["samples"] or "all"), []).append(f)
    rows = [
        {
            "samples per client": size,
            "cases": len(some),
            "mean gain over Local, points": _points(float(np.mean([f["gain"] for f in some]))),
            **{word: sum(f["verdict"] == word for f in some) for word in (BETTER, UNCLEAR, WORSE)},
        }
        for size, some in by_size.items()
    ]
    lines += ["**Samples per client.**", "", *table(rows), ""]
    falls: list[str] = []
    rises: list[str] = []
    for name in dict.fromkeys(f["set"] for f in comparisons):
        mine = [f for f in comparisons if f["set"] == name]
        if len(mine) > 1:
            (falls if mine[-1]["gain"] < mine[0]["gain"] else rises).append(name)
    sets = len(falls) + len(rises)
    text = (
        f"From the fewest samples to all of them the gain falls on {len(falls)} of {sets} sets"
        if sets
        else "Each set has one size only"
    )
    if rises and falls:
        text += f" and does not on {', '.join(rises)}"
    across = rank_correlation([f["median"] for f in comparisons], [f["gain"] for f in comparisons])
    text += f"; over all cases its rank correlation with samples per client is {_number(across)}."
    lines += [text, ""]
    own = rank_correlation(
        [f["spread"] for f in comparisons], [f["personal_gain"] for f in comparisons]
    )
    shared = rank_correlation([f["spread"] for f in comparisons], [f["gain"] for f in comparisons])
    many = Counter(f["personal_verdict"] for f in comparisons)
    lines += [
        "**How unlike clients are.** Measured by their classes: the mean total variation distance "
        "of a client's training labels to those of all others (0: the same mixture, 1: none in "
        f"common). Its rank correlation with the gain over Local is {_number(shared)}; with what "
        f"personalisation adds to FedAvg, {_number(own)}. The best personalised method is clearly "
        f"better than FedAvg in {many[BETTER]} of {len(comparisons)} cases, clearly worse in "
        f"{many[WORSE]}.",
        "",
        *table(
            [
                {
                    "set": name,
                    "unlike classes": f"{mine[0]['spread']:.2f}",
                    "personalised − FedAvg, points (by samples)": ", ".join(
                        _with(f["personal_gain"], f["personal_half"]) for f in mine
                    ),
                }
                for name, mine in _sets(comparisons).items()
            ]
        ),
        "",
    ]
    method_counts = Counter(NAMES[f["personal"]] for f in comparisons)
    counts_text = ", ".join(f"{name} {count}" for name, count in method_counts.most_common())
    lines += [f"**Which personalised method?** Chosen on validation data: {counts_text} times."]
    return lines


def measured(stored: dict[str, Any]) -> str:
    size = stored["size"]
    trials = stored["trials"]
    gradients = [row["methods"]["local"]["gradients"] for row in stored["rows"]]
    least, most = f"{min(gradients):.0f}", f"{max(gradients):.0f}"
    return (
        f"Scale {stored['scale']}: {least} to {most} gradients per client. Every client takes part "
        f"in every round, and every method takes {size['steps']} gradients per client and round "
        "(the fine-tuned one 10 or 50 more at the "
        "end), so that Local has the same gradients as the others; it sends nothing. "
        f"For each case and method {trials} settings are tried with seed 0 and the best on pooled "
        "validation accuracy is taken: four step sizes for Local and FedAvg, two step sizes and "
        "two values of one more setting for the others. Each method has as many trials, but the "
        "federated side has six methods to choose from and Local is one. The best personalised "
        "method is chosen on "
        f"validation data too. What was chosen then runs with {size['seeds']} fresh seeds, each "
        "with samples of its own: so many of a client's training samples, and a quarter as many "
        "for validation, are drawn from those it has. Test data are the same throughout; "
        "no setting is chosen among the trials by them. (The grid itself was not blind: the model "
        "for texts and the private step sizes of FedAlt were settled after trial runs whose test "
        "figures were seen.) Intervals are over seeds (Student's t), of "
        "differences between runs with the same seed. Models: multinomial logistic regression "
        "(heart, chem97, insteval, movielens), a hidden layer of 32 (hapt, quickdraw), a table of "
        "bigrams (texts: which of the commonest characters, or of the 100 commonest words, comes "
        "next; a sample is a window of 20). Small models, so that all of it can be tuned: what a "
        "large one gains may differ. The clients of quickdraw are made by a label split; those of "
        "the other sets are real. "
        f"Written by `idiolect reproduce where-it-helps --scale {stored['scale']}` "
        f"(the runs together took {stored['seconds'] / 60:.0f} minutes by the clock)."
    )


def picture(stored: dict[str, Any], path: Path) -> Path:
    """The gain over Local against samples per client, a line per set; tables and the rest."""
    comparisons = [compared(row) for row in stored["rows"]]
    lines = []
    for number, (name, mine) in enumerate(_sets(comparisons).items()):
        y = [100 * f["gain"] for f in mine]
        half = [100 * (f["half"] or 0.0) for f in mine]
        low = [a - b for a, b in zip(y, half, strict=True)]
        high = [a + b for a, b in zip(y, half, strict=True)]
        x = [f["median"] for f in mine]
        label = name.split(" (")[0]
        lines.append(Line(label, x, y, low, high, style=number, points=True))
    middle = (len(lines) + 1) // 2
    panels = [
        Panel(
            "",
            "training samples per client (median)",
            "gain over Local, points",
            [*some, _zero(some)],
            log="x",
        )
        for some in (lines[:middle], lines[middle:])
        if some
    ]
    return draw(panels, path)


def _zero(lines: Sequence[Line]) -> Line:
    every = [x for line in lines for x in line.x]
    return Line("", [min(every), max(every)], [0, 0], formula=True, style=6)


# -- rows of tables ------------------------------------------------------------------------------
def _first(row: Row, f: Row) -> Row:
    lead = f"{_points(f['lead'])} over {NAMES[f['second']]}"
    better, worse = (f"{100 * f['clients'][way]:.0f} %" for way in ("better", "worse"))
    return {
        "data set": row["set"],
        "samples per client": _samples(row),
        "best": NAMES[f["best"]],
        "lead, points": lead + (" (clear)" if f["clear"] else " (not clear)"),
        "federated − Local, points": _with(f["gain"], f["half"]),
        "so federation": f"**{f['verdict']}**" if f["verdict"] != UNCLEAR else UNCLEAR,
        "clients better / worse off": f"{better} / {worse}",
    }


def _second(row: Row) -> Row:
    methods = row["methods"]
    personal = compared(row)["personal"]
    return {
        "data set": row["set"],
        "samples per client": _samples(row),
        "clients": f"{row['clients']} ({row['who']})",
        "own commonest class": f"{row['majority']:.3f}",
        "Local": _accuracy(methods["local"]["test"]),
        "FedAvg": _accuracy(methods["fedavg"]["test"]),
        "best personalised": f"{_accuracy(methods[personal]['test'])} ({NAMES[personal]})",
        "gradients per client": f"{methods['local']['gradients']:.0f}",
    }


def _third(row: Row) -> Row:
    out: Row = {"data set": row["set"], "samples per client": _samples(row)}
    for name, facts in row["methods"].items():
        settings = " ".join(f"{k}={_short(v)}" for k, v in facts["chosen"].items())
        column = NAMES[name] if name in ("local", "fedavg") else "best personalised"
        own = "" if name in ("local", "fedavg") else f"{NAMES[name]}: "
        out[column] = own + settings
    return out


def _sets(comparisons: Sequence[Row]) -> dict[str, list[Row]]:
    by_set: dict[str, list[Row]] = {}
    for f in comparisons:
        by_set.setdefault(f["set"], []).append(f)
    return by_set


def _samples(row: Row) -> str:
    return str(row["samples"]) if row["samples"] else f"all (median {row['median']})"


def _case(f: Row) -> str:
    return f"{f['set'].split(' (')[0]}, {f['samples'] or 'all'} samples"


def _accuracy(values: Sequence[float]) -> str:
    half = interval(list(values))
    return f"{np.mean(values):.3f}" + ("" if half is None else f" ± {half:.3f}")


def _points(value: float) -> str:
    return f"{100 * value:.1f}"


def _with(value: float, half: float | None) -> str:
    return f"{100 * value:+.1f}" + ("" if half is None else f" ± {100 * half:.1f}")


def _number(value: float | None) -> str:
    return "not defined" if value is None else f"{value:+.2f}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


TEXTS = read_text("where-it-helps")
READ = TEXTS["read"]


NAME = "where-it-helps"


def write(folder: Path, scale: str) -> list[Path]:
    """Measure, and write the page, its figures and its picture."""
    return written(folder, scale, CASES, SIZES[scale])


def written(folder: Path, scale: str, cases: Mapping[str, Case], size: Size) -> list[Path]:
    rows = measure(cases, size, folder / ".runs" / f"{NAME}-{scale}")
    stored = {
        "scale": scale,
        "size": asdict(size),
        "trials": 4,
        "rows": rows,
        "seconds": round(sum(row.pop("seconds") for row in rows)),
    }
    figures = folder / f"{NAME}.json"
    figures.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", "utf-8")
    page = folder / f"{NAME}.md"
    page.write_text(page_of(stored), "utf-8")
    return [page, figures, picture(stored, folder / f"{NAME}.png")]
