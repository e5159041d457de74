"""The leaderboard's page: who beats fine-tuned FedAvg at equal compute, in words and tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from idiolect import METHODS, interval, paired_difference

from ..experiments import unknown
from ..marks import Figure
from ..page import Row, table, write_page
from ..published import read_table
from ..runs import Runs, scaled_runs
from ..texts import read_text
from .leaderboard import CASES, NAME, SIZES, BoardCase, BoardSize, bucket, measure
from .where_it_helps import rank_correlation

TEXTS = read_text(NAME)
WORDS = TEXTS["words"]
BETTER, WORSE, UNCLEAR = "better", "worse", "cannot tell"
LEVEL = 0.05  # the false discovery rate over all comparisons of the page
REFERENCE = "finetune"
MOST_NAMED = 8  # methods that a sentence lists


# -- comparisons ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Comparison:
    """A method in a case, less fine-tuned FedAvg with as many gradients; in accuracy."""

    case: str
    method: str
    gain: float
    half: float | None  # of the 95 % interval over seeds, for this comparison alone
    p: float  # of a paired t test over seeds
    over_local: float  # the method less Local with as many gradients
    verdict: str = UNCLEAR  # with all comparisons of the page in view

    def words(self) -> str:
        """For a sentence.

        >>> Comparison("digits", "ditto", 0.012, 0.004, 0.01, 0.2).words()
        '`ditto` (+1.2 ± 0.4)'
        """
        return f"`{self.method}` ({points(self.gain, self.half)})"


def comparisons(stored: Row) -> list[Comparison]:
    """All comparisons of a page, with verdicts at a false discovery rate of `LEVEL`.

    A row whose rivals are not there yet is not compared.
    """
    from scipy.stats import false_discovery_control

    size = BoardSize(**stored["size"])
    each = [
        _compared(title, name, row, _rivals(case, row, size))
        for title, case in stored["cases"].items()
        for name, row in case["methods"].items()
        if name != REFERENCE and _rivals(case, row, size)
    ]
    adjusted = false_discovery_control([c.p for c in each]) if each else []
    return [
        Comparison(**{**vars(c), "verdict": _verdict(c.gain, p)})
        for c, p in zip(each, adjusted, strict=True)
    ]


def _rivals(case: Row, row: Row, size: BoardSize) -> list[Row]:
    """The rows of fine-tuned FedAvg and Local with as many gradients; [] where one is missing."""
    gradients = bucket(row["gradients"], size)
    rows = [case["rivals"].get(f"{name} {gradients}") for name in (REFERENCE, "local")]
    return [] if None in rows else rows


def _compared(title: str, name: str, row: Row, rivals: Sequence[Row]) -> Comparison:
    own, tuned, alone = (_numbers(figures["accuracy"]) for figures in (row, *rivals))
    gain, half = paired_difference(own, tuned)
    over_local, _ = paired_difference(own, alone)
    return Comparison(title, name, gain, half, p_value(own, tuned), over_local)


def _verdict(gain: float, adjusted: float) -> str:
    if adjusted > LEVEL or gain == 0:
        return UNCLEAR
    return BETTER if gain > 0 else WORSE


def _numbers(values: Sequence[float | None]) -> list[float]:
    """A run that diverged has no accuracy, and counts as never right."""
    return [0.0 if v is None else v for v in values]


def p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided, of a paired t test over seeds; 1 where seeds tell nothing.

    >>> round(p_value([0.5, 0.6, 0.75], [0.4, 0.5, 0.6]), 3)
    0.02
    >>> p_value([0.5, 0.6], [0.5, 0.6]), p_value([0.5], [0.4])
    (1.0, 1.0)
    """
    from scipy.stats import ttest_rel

    differences = np.subtract(one, other).round(9)
    if len(differences) < 2 or not differences.any():
        return 1.0
    if np.ptp(differences) == 0:
        return 0.0
    return float(ttest_rel(one, other).pvalue)


# -- words ----------------------------------------------------------------------------------------
def opening(stored: Row, every: Sequence[Comparison]) -> str:
    """What holds, in sentences that the figures give."""
    counts = Counter(c.verdict for c in every)
    facts = {
        "cases": "one case" if len(stored["cases"]) == 1 else f"{len(stored['cases'])} cases",
        "methods": len({c.method for c in every}),
        "number": len(every),
        "seeds": stored["size"]["seeds"],
        "better": counts[BETTER],
        "worse": counts[WORSE],
        "unclear": counts[UNCLEAR],
    }
    sentences = [WORDS["counts"].format(**facts)]
    if every:
        sentences += _across(every, {title: luck(c) for title, c in stored["cases"].items()})
    return " ".join(sentences)


def _across(every: Sequence[Comparison], spreads: Mapping[str, float]) -> list[str]:
    """What holds over all cases; `spreads` is what luck does to fine-tuned FedAvg in each."""
    verdicts: dict[str, list[str]] = {}
    for c in every:
        verdicts.setdefault(c.method, []).append(c.verdict)
    most = max(len(some) for some in verdicts.values())
    everywhere = [m for m, some in verdicts.items() if some == [BETTER] * most]
    mixed = [m for m, some in verdicts.items() if BETTER in some and WORSE in some]
    never = [m for m, some in verdicts.items() if WORSE not in some and BETTER in some]
    sentences = []
    if most > 1:
        key = "everywhere" if everywhere else "nowhere_all"
        sentences.append(WORDS[key].format(names=_listed(everywhere)))
    rest = [m for m in never if m not in everywhere]
    if rest:
        sentences.append(WORDS["sometimes"].format(names=_listed(rest)))
    if mixed:
        sentences.append(WORDS["mixed"].format(names=_listed(mixed)))
    better = [c for c in every if c.verdict == BETTER]
    if better:
        best = max(better, key=lambda c: c.gain)
        sentences.append(WORDS["largest"].format(words=best.words(), case=best.case))
        unsure = [c for c in better if c.gain < spreads[c.case]]
        if unsure:
            spread = points(max(spreads[c.case] for c in unsure)).lstrip("+")
            sentences.append(
                WORDS["unsure"].format(number=len(unsure), all=len(better), spread=spread)
            )
    else:
        sentences.append(WORDS["none"])
    return sentences


def case_words(title: str, case: Row, every: Sequence[Comparison]) -> str:
    """A paragraph about one case."""
    own = [c for c in every if c.case == title]
    groups = {
        word: sorted((c for c in own if c.verdict == word), key=lambda c: -c.gain)
        for word in (BETTER, WORSE, UNCLEAR)
    }
    sentences = [WORDS["case"].format(**case, models=f"{case['parameters']:,}")]
    if case["new"]:
        sentences.append(WORDS["new"].format(new=case["new"]))
    reference = case["methods"].get(REFERENCE)
    if reference:
        sentences.append(WORDS["reference"].format(accuracy=shown(reference["accuracy"])))
    better = [c.words() for c in groups[BETTER]]
    sentences.append(
        WORDS["better"].format(names=", ".join(better)) if better else WORDS["no_better"]
    )
    worse = groups[WORSE]
    if worse:
        names = _listed([c.method for c in worse])
        sentences.append(WORDS["worse"].format(number=len(worse), names=names))
    if groups[UNCLEAR]:
        sentences.append(WORDS["unclear"].format(number=len(groups[UNCLEAR])))
    sentences += _luck_words(case)
    alone = next((c for c in own if c.method == "local"), None)
    if alone:
        sentences.append(WORDS["local"].format(gain=points(alone.gain, alone.half)))
    sentences += _elsewhere(case)
    return " ".join(sentences)


def chosen_again(case: Row) -> list[Row]:
    """All times that validation data chose fine-tuned FedAvg's settings: by number of gradients.

    Those with half to twice the gradients of its own row, so that gradients explain little.
    """
    own = case["methods"].get(REFERENCE)
    if own is None:
        return []
    rows = [own, *(row for n, row in case["rivals"].items() if n.startswith(f"{REFERENCE} "))]
    about_as_many = (row for row in rows if 0.5 <= row["gradients"] / own["gradients"] <= 2)
    return [row for row in about_as_many if mean(row["accuracy"]) is not None]


def luck(case: Row) -> float:
    """How far apart these come out, in accuracy; 0 where there is one only."""
    means = [mean(row["accuracy"]) or 0.0 for row in chosen_again(case)]
    return max(means) - min(means) if means else 0.0


def _luck_words(case: Row) -> list[str]:
    rows = chosen_again(case)
    if len(rows) < 2:
        return []
    means = [mean(row["accuracy"]) or 0.0 for row in rows]
    spent = [row["gradients"] for row in rows]
    facts = {"times": len(rows), "least": f"{min(means):.3f}", "most": f"{max(means):.3f}"}
    facts |= {"few": f"{min(spent):.0f}", "many": f"{max(spent):.0f}"}
    return [WORDS["luck"].format(**facts, spread=f"{100 * luck(case):.1f}")]


def _elsewhere(case: Row) -> list[str]:
    """About new clients and the data of others."""
    methods = case["methods"]
    sentences = []
    for column, key in (("new", "newcomers"), ("others", "others")):
        means = {n: m for n, row in methods.items() if (m := mean(row[column])) is not None}
        if len(means) < 2:
            continue
        best = max(means, key=lambda n: means[n])
        own = {n: mean(methods[n]["accuracy"]) or 0.0 for n in means}
        correlation = rank_correlation([own[n] for n in means], [means[n] for n in means])
        facts = {
            "best": best,
            "accuracy": f"{means[best]:.3f}",
            "reference": f"{means[REFERENCE]:.3f}" if REFERENCE in means else "–",
            "correlation": "not defined" if correlation is None else f"{correlation:+.2f}",
        }
        sentences.append(WORDS[key].format(**facts))
    return sentences


def missing(stored: Row) -> str:
    """What has not been run, by case; what is left out has its reason in a table of its own."""
    sentences = []
    cases = stored["cases"]
    not_begun = [title for title in stored["planned"] if title not in cases]
    if not_begun:
        sentences.append(WORDS["cases_missing"].format(names="; ".join(not_begun)))
    for title, case in cases.items():
        absent = [n for n in stored["methods"] if n not in {**case["methods"], **case["left_out"]}]
        if absent:
            sentences.append(WORDS["methods_missing"].format(case=title, names=_listed(absent)))
    return " ".join(sentences)


def _listed(names: Sequence[str]) -> str:
    """Names of methods for a sentence, the first of them if there are many.

    >>> _listed(["a", "b"]), _listed(list("abcdefghij"))
    ('`a`, `b`', '`a`, `b`, `c`, `d`, `e`, `f`, `g`, `h` and 2 more')
    """
    words = ", ".join(f"`{n}`" for n in names[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{words} and {more} more" if more > 0 else words


# -- figures --------------------------------------------------------------------------------------
def mean(values: Sequence[float | None]) -> float | None:
    """Over seeds; None where one has no figure."""
    return None if None in values else float(np.mean(values))  # type: ignore[arg-type]


def shown(values: Sequence[float | None]) -> str:
    """The mean over seeds with half its 95 % interval.

    >>> shown([0.5, 0.6, 0.7]), shown([0.5, None])
    ('0.600 ± 0.248', '–')
    """
    average = mean(values)
    if average is None:
        return "–"
    half = interval([v for v in values if v is not None])
    return f"{average:.3f}" + ("" if half is None else f" ± {half:.3f}")


def points(gain: float, half: float | None = None) -> str:
    """A difference of accuracies in points."""
    return f"{100 * gain:+.1f}" + ("" if half is None else f" ± {100 * half:.1f}")


def _plain(values: Sequence[float | None]) -> str:
    average = mean(values)
    return "–" if average is None else f"{average:.3f}"


def _megabytes(sent: Mapping[str, float]) -> str:
    return " / ".join(f"{sent[way] / 1e6:.3g}" for way in ("up", "down"))


# -- tables ---------------------------------------------------------------------------------------
def case_table(title: str, case: Row, every: Sequence[Comparison]) -> list[Row]:
    """A row per method, the most accurate first."""
    compared = {c.method: c for c in every if c.case == title}
    order = sorted(case["methods"].items(), key=lambda item: -(mean(item[1]["accuracy"]) or 0.0))
    rows = []
    for name, row in order:
        c = compared.get(name)
        rows.append(
            {
                "method": f"`{name}`",
                "accuracy": shown(row["accuracy"]),
                "worst tenth": _plain(row["worst10"]),
                "new clients": _plain(row["new"]),
                "others' data": _plain(row["others"]),
                "MB up / down": _megabytes(row["bytes"]),
                "gradients": f"{row['gradients']:.0f}",
                "− fine-tuned FedAvg": _none(name) if c is None else points(c.gain, c.half),
                "": "" if c is None else _marked(c.verdict),
                "− Local": "" if c is None else points(c.over_local),
            }
        )
    return rows


def _none(name: str) -> str:
    """What stands for a difference that there is not."""
    return "it" if name == REFERENCE else "–"


def _marked(verdict: str) -> str:
    return f"**{verdict}**" if verdict != UNCLEAR else verdict


def rival_table(stored: Row) -> list[Row]:
    """The rivals of all cases, by their numbers of gradients."""
    rows = []
    for title, case in stored["cases"].items():
        numbers = sorted({int(label.split()[1]) for label in case["rivals"]})
        for number in numbers:
            local, tuned = (case["rivals"].get(f"{n} {number}") for n in ("local", REFERENCE))
            rows.append(
                {
                    "case": title,
                    "at most": number,
                    "Local": shown(local["accuracy"]) if local else "–",
                    "fine-tuned FedAvg": shown(tuned["accuracy"]) if tuned else "–",
                    "their gradients": " / ".join(
                        f"{r['gradients']:.0f}" if r else "–" for r in (local, tuned)
                    ),
                }
            )
    return rows


def chosen_table(stored: Row) -> list[Row]:
    """What validation data chose, by method and case."""
    return [
        {
            "method": f"`{name}`",
            **{
                title: _settings(case["methods"][name]["chosen"])
                for title, case in stored["cases"].items()
                if name in case["methods"]
            },
        }
        for name in _names(stored["cases"].values(), "methods")
    ]


def _settings(varied: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{n} {v:g}" if isinstance(v, int | float) else f"{n} {v}" for n, v in varied.items()
    )


def _partitions(searches: int) -> str:
    """For a sentence.

    >>> _partitions(1), _partitions(3)
    ('one partition (seed 0)', '3 partitions (seeds 0 to 2)')
    """
    if searches == 1:
        return "one partition (seed 0)"
    return f"{searches} partitions (seeds 0 to {searches - 1})"


def left_out_table(stored: Row) -> list[Row]:
    """Methods without a row, and why."""
    cases = stored["cases"].values()
    rows = []
    for name in _names(cases, "left_out"):
        reasons = dict.fromkeys(c["left_out"][name] for c in cases if name in c["left_out"])
        rows.append({"method": f"`{name}`", "why": "; ".join(reasons)})
    return rows


def _names(cases: Iterable[Row], part: str) -> list[str]:
    return list(dict.fromkeys(name for case in cases for name in case[part]))


def published_rows(stored: Row) -> tuple[list[Row], str]:
    """PFLlib's figures beside ours of the same partition, and what may be said of them."""
    ours = {c["published"]: c["methods"] for c in stored["cases"].values() if c["published"]}
    rows, said = [], []
    pairs: dict[str, list[tuple[float, float]]] = {column: [] for column in ours}
    for method, figures in read_table("pfllib-leaderboard")[""].items():
        row: Row = {"method": method}
        for column, name in TEXTS["published"]["columns"].items():
            theirs = figures[column]
            assert isinstance(theirs, Figure) and theirs.mean is not None
            here = ours.get(column, {}).get(method.lower())
            row[f"{name}: PFLlib"] = str(theirs)
            row[f"{name}: here"] = _percent(here["accuracy"]) if here else "–"
            if here:
                pairs[column].append((theirs.mean, mean(here["accuracy"]) or 0.0))
        rows.append(row)
    for column, both in pairs.items():
        correlation = rank_correlation(*zip(*both, strict=True)) if len(both) > 2 else None
        if correlation is not None:
            said.append(
                WORDS["ranks"].format(
                    setting=TEXTS["published"]["columns"][column],
                    number=len(both),
                    correlation=f"{correlation:+.2f}",
                )
            )
    return rows, " ".join(said)


def _percent(values: Sequence[float | None]) -> str:
    average = mean(values)
    return "–" if average is None else f"{100 * average:.2f}"


# -- the page -------------------------------------------------------------------------------------
def page_of(stored: Row) -> str:
    """The page of stored figures."""
    every = comparisons(stored)
    sections = []
    for title, case in stored["cases"].items():
        words = case_words(title, case, every)
        sections += [f"## {title}", "", words, "", *table(case_table(title, case, every)), ""]
    published, ranks = published_rows(stored)
    seconds = sum(
        row["cpu"]
        for case in stored["cases"].values()
        for part in ("methods", "rivals")
        for row in case[part].values()
    )
    return TEXTS["page"].format(
        opening=opening(stored, every),
        missing=missing(stored) or WORDS["complete"],
        sections="\n".join(sections),
        rivals="\n".join(table(rival_table(stored))),
        chosen="\n".join(table(chosen_table(stored))),
        left_out="\n".join(table(left_out_table(stored))) or WORDS["none_left_out"],
        published="\n".join(table(published)),
        ranks=ranks,
        same=TEXTS["published"]["same" if stored["scale"] == "full" else "other"].format(
            **stored["size"]
        ),
        scale=stored["scale"],
        scale_words=TEXTS["scales"][stored["scale"]].format(**stored["size"]),
        size=stored["size"],
        searches=_partitions(stored["size"]["searches"]),
        level=f"{100 * LEVEL:.0f}",
        minutes=f"{seconds / 60:.0f}",
    )


def write(folder: Path, scale: str, only: Sequence[str] = ()) -> list[Path]:
    """Run what is missing, and write the page and its figures after every row."""
    runs = scaled_runs(folder, NAME, scale, jobs=1)
    return written(folder, scale, CASES[scale], SIZES[scale], list(METHODS), runs, only)


def written(
    folder: Path,
    scale: str,
    cases: Mapping[str, BoardCase],
    size: BoardSize,
    names: Sequence[str],
    runs: Runs,
    only: Sequence[str] = (),
) -> list[Path]:
    """The page and its figures; rows of another scale are not kept."""
    for title in only:
        if title not in cases:
            raise unknown(title, cases, "only")
    path = folder / f"{NAME}.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    rows = before.get("cases", {}) if before.get("scale") == scale else {}
    paths: list[Path] = []
    for done in measure(cases, size, rows, names, runs, only):
        stored = {
            "scale": scale,
            "size": size.as_dict(),
            "methods": list(names),
            "planned": list(cases),
            "cases": {title: done[title] for title in cases if title in done},
        }
        paths = write_page(folder, NAME, page_of(stored), stored)
    return paths
