"""Where does federation help? Tuned methods against Local, with few samples per client and all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from idiolect import Federation, Method, Plan, interval, make_method, paired_difference
from idiolect.study import Stock, job_progress, search_plans

from ..case import Case, majority_accuracy
from ..page import Row, table, write_page
from ..panels import Line, Panel, draw
from ..runs import Runs, Summary, column
from ..texts import read_text


class Bigrams(nn.Module):
    """Scores for the next token from the last one alone, and how frequent each is.

    Convex, and quick enough to be tuned for every client of a text; a transformer knows more.
    """

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(outputs, outputs))
        self.frequency = nn.Parameter(torch.zeros(outputs))

    def forward(self, tokens: Tensor) -> Tensor:  # [B, T] -> [B, T, outputs]
        return self.table[tokens] + self.frequency

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)
        nn.init.zeros_(self.frequency)


# -- cases, candidates and runs -------------------------------------------------------------------
NAME = "where-it-helps"
TEXTS = read_text(NAME)
NAMES = TEXTS["names"]
PERSONALISED = ("finetune", "ditto", "lp-proj-2", "fedalt", "pfedme")
METHODS = ("local", "fedavg", *PERSONALISED)
STRENGTHS = (0.1, 1.0)  # λ of ditto, lp-proj and pfedme
FINETUNING = (10, 50)  # steps before use
PRIVATE = (0.1, 1.0)  # the private step size as a multiple of the other, for one part alone
SEARCH = 0  # the seed of the search; those of the final runs follow


@dataclass(frozen=True)
class HelpCase(Case):
    """A data set and its model, and what is tried on it."""

    clients: str = ""  # what a client is
    rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)  # the two in the middle for personal methods
    parts: tuple[str, ...] = ("biases",)  # that fedalt may keep private
    most: int = 100  # clients at quick scale, those with most samples; 0: all
    batch: int = 32
    rounds: int = 30  # at quick scale


_TEXT: dict[str, Any] = {
    "model": Bigrams,
    "rates": (1.0, 3.0, 10.0, 30.0),
    "parts": ("frequency",),
    "only_known": True,
    "batch": 8,
    "rounds": 15,
    "most": 15,
}
_IMAGES: dict[str, Any] = {
    "model": "mlp",
    "model_options": {"hidden": "32"},
    "parts": ("output", "input"),
    "batch": 16,
    "rounds": 20,
}
CASES = {
    "hapt": HelpCase("hapt", clients="people", most=0, **_IMAGES),
    "heart": HelpCase("heart", "linear", clients="hospitals", most=0),
    "chem97": HelpCase("chem97", "linear", clients="schools"),
    "insteval": HelpCase("insteval", "linear", clients="students"),
    "movielens": HelpCase("movielens", "linear", clients="people"),
    "quickdraw (clients made by a label split)": HelpCase(
        "quickdraw", clients="Dirichlet shares, α = 0.5", most=20, **_IMAGES
    ),
    "shakespeare": HelpCase(
        "shakespeare", clients="roles", options={"length": 20, "cap": 20_000}, **_TEXT
    ),
    "sotu": HelpCase(
        "sotu", clients="presidents", options={"vocabulary": 100, "cap": 10_000}, **_TEXT
    ),
    "chitchat": HelpCase(
        "chitchat", clients="people who chat", options={"vocabulary": 100}, **_TEXT
    ),
}


@dataclass(frozen=True)
class HelpSize:
    """How much is run."""

    samples: tuple[int, ...] = (10, 40, 0)  # per client; 0: all
    rounds: float = 1.0  # times the rounds of a case
    steps: int = 10  # gradients per client and round
    seeds: int = 3
    limited: bool = True  # at most so many clients as a case says
    jobs: int = 0


SIZES = {"quick": HelpSize(), "full": HelpSize((5, 10, 20, 40, 80, 0), 5.0, 10, 10, False)}


def candidates(name: str, case: HelpCase, d: int, steps: int) -> Iterator[tuple[Method, dict]]:
    """What is tried for a method, with its varied fields: as many settings for each.

    All of them take `steps` gradients per client and round.
    """
    if name in ("local", "fedavg"):
        for lr in case.rates:
            yield make_method(name, lr=lr, steps=steps), {"lr": lr}
        return
    for lr, second in product(case.rates[1:3], _seconds(name, case)):
        yield _personalised(name, lr, second, d, steps), {"lr": lr, **second}


def _seconds(name: str, case: HelpCase) -> list[dict[str, Any]]:
    """The other setting that is tried beside the step size."""
    if name == "finetune":
        return [{"personal_steps": n} for n in FINETUNING]
    if name != "fedalt":
        return [{"lam": lam} for lam in STRENGTHS]
    if len(case.parts) > 1:
        return [{"part": part} for part in case.parts]
    return [{"part": case.parts[0], "private_lr": times} for times in PRIVATE]


def _personalised(name: str, lr: float, second: dict[str, Any], d: int, steps: int) -> Method:
    half = steps // 2
    if name == "finetune":
        return make_method(name, lr=lr, personal_lr=lr, steps=steps, **second)
    if name == "ditto":
        return make_method(
            name, lr=lr, personal_lr=lr, steps=half, personal_steps=steps - half, **second
        )
    if name == "fedalt":
        private = lr * second.get("private_lr", 1.0)
        own = {"part": second["part"], "private_lr": private}
        return make_method(name, lr=lr, steps=half, private_steps=steps - half, **own)
    if name == "pfedme":
        return make_method(name, personal_lr=lr, steps=steps, fresh=True, **second)
    subspace = {"projection": "sparse", "dim": max(1, d // 4), "w_start": "x0"}
    return make_method(name, personal_lr=lr, steps=steps, fresh=True, **subspace, **second)


def measure(cases: Mapping[str, HelpCase], size: HelpSize, directory: Path) -> list[Row]:
    """A row for every data set and number of samples."""
    loaded = {
        name: case.load(**({"clients": case.most} if size.limited and case.most else {}))
        for name, case in cases.items()
    }
    whole = {name: federation for name, (federation, _) in loaded.items()}
    tasks = {name: task for name, (_, task) in loaded.items()}
    pairs = [(name, n) for name in cases for n in _sizes(whole[name], size.samples)]

    def stock(seed: int) -> Stock:
        return Stock({f"{name}/{n}": _cut(whole[name], n, seed) for name, n in pairs}, tasks)

    def plans(name: str, n: int, label: str) -> list[Plan]:
        case = cases[name]
        run: dict[str, Any] = {
            "rounds": max(1, round(case.rounds * size.rounds)),
            "sample": whole[name].clients,
            "batch": case.batch,
            "eval_every": 0,
        }
        return [
            Plan.of(
                method,
                settings=run,
                data=f"{name}/{n}",
                model=name,
                name=f"{name}, {n}: {label}",
                varied=varied,
            )
            for method, varied in candidates(label, case, tasks[name].d, size.steps)
        ]

    trials = {(name, n, label): plans(name, n, label) for name, n in pairs for label in METHODS}
    search_result = search_plans(  # without test data
        [plan for several in trials.values() for plan in several],
        stock(SEARCH),
        [SEARCH],
        jobs=size.jobs,
        directory=directory / "search",
        watch=job_progress,
    )
    standings = {key: search_result.standings(several[0].name) for key, several in trials.items()}
    valid = {key: ranked[0].figure or 0.0 for key, ranked in standings.items()}
    finals: dict[tuple[str, int, str], Plan] = {}
    for name, n in pairs:
        best = max(PERSONALISED, key=lambda label: valid[name, n, label])
        for label in ("local", "fedavg", best):
            finals[name, n, label] = standings[name, n, label][0].plan
    by_seed = [
        Runs(directory / f"seed-{seed}", size.jobs)(finals, stock(seed), [seed], ("by_client",))
        for seed in range(SEARCH + 1, SEARCH + 1 + size.seeds)
    ]
    summaries = {key: [runs[key][0] for runs in by_seed] for key in finals}
    rows = []
    for name, n in pairs:
        mine = {key[2]: several for key, several in summaries.items() if key[:2] == (name, n)}
        data = _cut(whole[name], n, SEARCH)
        searched = [s for key, ranked in standings.items() if key[:2] == (name, n) for s in ranked]
        rows.append(
            {
                "set": name,
                "samples": n,
                "clients": data.clients,
                "who": cases[name].clients,
                "median": int(data.sizes("train").median()),
                "majority": majority_accuracy(data),
                "spread": spread(whole[name]),
                "methods": {
                    label: {
                        "valid": valid[name, n, label],
                        "chosen": finals[name, n, label].varied,
                        "test": [  # none: it has diverged
                            -math.inf if mean is None else mean
                            for mean in column(several, "accuracy", "mean")
                        ],
                        "gradients": several[0]["gradients_per_client"],
                        "bytes": sum(several[0]["bytes"].values()),
                        "clients": _changed(several, mine["local"]),
                    }
                    for label, several in mine.items()
                },
                "seconds": sum(s.summaries[0]["seconds"] for s in searched)
                + sum(sum(column(several, "seconds")) for several in mine.values()),
            }
        )
    return rows


def spread(federation: Federation) -> float:
    """How unlike the clients' classes are: mean total variation distance to all clients' together.

    0: all have the same mixture of classes; near 1: each has classes of its own. With few samples
    it is above 0 by chance; all training samples are counted.
    """
    counts = federation.class_counts("train").double()
    own = counts / counts.sum(1, keepdim=True)
    rest = counts.sum(0) - counts  # of the others
    return float((own - rest / rest.sum(1, keepdim=True)).abs().sum(1).mean() / 2)


def _sizes(federation: Federation, samples: Sequence[int]) -> list[int]:
    """The numbers of samples that leave something out for half of the clients, and all (0)."""
    median = float(torch.median(federation.sizes("train").float()))
    return [n for n in samples if n == 0 or n < median]


def _cut(federation: Federation, n: int, seed: int) -> Federation:
    """n training samples of each client, and a quarter as many for validation."""
    return federation.capped({"train": n, "valid": max(1, n // 4)}, seed) if n else federation


def _changed(mine: Sequence[Summary], alone: Sequence[Summary]) -> dict[str, float]:
    """The shares of clients whose mean test accuracy is above and below that of Local."""

    def by_client(summaries: Sequence[Summary]) -> Counter[Any]:
        sums: Counter[Any] = Counter()
        for summary in summaries:
            for row in summary["by_client"]:
                if row["test_accuracy"] is not None:
                    sums[row["client"]] += row["test_accuracy"]
        return sums

    first, second = by_client(mine), by_client(alone)
    both = [c for c in first if c in second]
    return {
        "better": sum(first[c] > second[c] for c in both) / len(both),
        "worse": sum(first[c] < second[c] for c in both) / len(both),
    }


# -- what the figures say -------------------------------------------------------------------------
BETTER, WORSE, UNCLEAR = "helps", "hurts", "no clear difference"


def compared(row: Row) -> Row:
    """Who wins in a case, by how much, and whether that is clear.

    The federated method is FedAvg or the best personalised one, as validation data say. Differences
    are between runs with the same seed: the same samples were drawn for both.
    """
    methods = row["methods"]
    personal = next(name for name in methods if name in PERSONALISED)
    federated = max(("fedavg", personal), key=lambda name: methods[name]["valid"])
    gain, half = paired_difference(methods[federated]["test"], methods["local"]["test"])
    means = {name: float(np.mean(facts["test"])) for name, facts in methods.items()}
    best, second, *_ = sorted(methods, key=lambda name: -means[name])
    lead, reach = paired_difference(methods[best]["test"], methods[second]["test"])
    own, own_half = paired_difference(methods[personal]["test"], methods["fedavg"]["test"])
    return {
        **{name: row[name] for name in ("set", "samples", "median", "spread", "majority")},
        "personal": personal,
        "federated": federated,
        "gain": gain,
        "half": half,
        "verdict": verdict(gain, half),
        "best": best,
        "second": second,
        "lead": lead,
        "clear": reach is not None and lead > reach,
        "personal_gain": own,
        "personal_half": own_half,
        "personal_verdict": verdict(own, own_half),
        "means": means,
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


# -- the page -------------------------------------------------------------------------------------
def page_of(stored: Row) -> str:
    """The page of stored figures."""
    rows = stored["rows"]
    comparisons = [compared(row) for row in rows]
    personal = Counter(c["personal_verdict"] for c in comparisons)
    methods = Counter(NAMES[c["personal"]] for c in comparisons)
    gradients = [row["methods"]["local"]["gradients"] for row in rows]

    def correlation(one: str, other: str) -> str:
        value = rank_correlation([c[one] for c in comparisons], [c[other] for c in comparisons])
        return "not defined" if value is None else f"{value:+.2f}"

    tables = {
        "cases": list(map(_first, rows, comparisons)),
        "by_samples": _by_samples(comparisons),
        "by_set": [
            {
                "set": name,
                "unlike classes": f"{mine[0]['spread']:.2f}",
                "personalised − FedAvg, points (by samples)": ", ".join(
                    _with(c["personal_gain"], c["personal_half"]) for c in mine
                ),
            }
            for name, mine in _grouped(comparisons, "set").items()
        ],
        "figures": list(map(_second, rows, comparisons)),
        "chosen": list(map(_third, rows)),
    }
    return TEXTS["page"].format(
        opening=opening(comparisons),
        trend=_trend(comparisons),
        by_median=correlation("median", "gain"),
        by_spread=correlation("spread", "gain"),
        personal_by_spread=correlation("spread", "personal_gain"),
        personal_better=personal[BETTER],
        personal_worse=personal[WORSE],
        number=len(comparisons),
        methods=", ".join(f"{name} {count}" for name, count in methods.most_common()),
        least=f"{min(gradients):.0f}",
        most=f"{max(gradients):.0f}",
        minutes=stored["seconds"] / 60,
        **{name: stored[name] for name in ("scale", "size", "trials")},
        **{name: "\n".join(table(lines)) for name, lines in tables.items()},
    )


def opening(comparisons: Sequence[Row]) -> str:
    """The answer, in a few sentences that the figures give."""
    words = TEXTS["opening"]
    verdicts = _grouped(comparisons, "verdict")
    number = len(comparisons)
    counts = {word: len(verdicts.get(word, ())) for word in (BETTER, WORSE, UNCLEAR)}
    better, worse, unclear = counts.values()
    sentences = [
        words["cases"].format(
            number=number, better=better, worse=worse, unclear=unclear, chance=0.05 * number
        )
    ]
    if better:
        most = max(verdicts[BETTER], key=lambda c: c["gain"])
        sentences.append(words["gain"].format(points=_points(most["gain"]), case=_case(most)))
    if worse:
        least = min(verdicts[WORSE], key=lambda c: c["gain"])
        sentences.append(words["loss"].format(points=_points(-least["gain"]), case=_case(least)))
    winners = Counter(
        "a personalised method" if c["best"] in PERSONALISED else NAMES[c["best"]]
        for c in comparisons
    )
    sentences.append(
        words["best"].format(
            winners=", ".join(f"{name} in {count}" for name, count in winners.most_common()),
            clear=sum(c["clear"] for c in comparisons),
        )
    )
    low = [_case(c) for c in comparisons if c["majority"] >= max(c["means"].values())]
    if low:
        sentences.append(words["majority"].format(cases="; ".join(low)))
    return " ".join(sentences)


def _by_samples(comparisons: Sequence[Row]) -> list[Row]:
    return [
        {
            "samples per client": samples or "all",
            "cases": len(some),
            "mean gain over Local, points": _points(float(np.mean([c["gain"] for c in some]))),
            **{word: sum(c["verdict"] == word for c in some) for word in (BETTER, UNCLEAR, WORSE)},
        }
        for samples, some in _grouped(comparisons, "samples").items()
    ]


def _trend(comparisons: Sequence[Row]) -> str:
    """How the gain changes from the fewest samples to all of them."""
    several = {n: c for n, c in _grouped(comparisons, "set").items() if len(c) > 1}
    if not several:
        return "Each set has one size only"
    rises = [name for name, mine in several.items() if mine[-1]["gain"] >= mine[0]["gain"]]
    falls = len(several) - len(rises)
    text = "From the fewest samples to all of them the gain falls on "
    text += f"{falls} of {len(several)} sets"
    return text + (f" and does not on {', '.join(rises)}" if rises and falls else "")


def picture(stored: Row, path: Path) -> Path:
    """The gain over Local against samples per client, a line per set."""
    comparisons = [compared(row) for row in stored["rows"]]
    lines = []
    for number, (name, mine) in enumerate(_grouped(comparisons, "set").items()):
        low, y, high = (
            [100 * c["gain"] + side * 100 * (c["half"] or 0.0) for c in mine] for side in (-1, 0, 1)
        )
        x = [c["median"] for c in mine]
        lines.append(Line(name.split(" (")[0], x, y, low, high, style=number, points=True))
    middle = (len(lines) + 1) // 2
    across, up = "training samples per client (median)", "gain over Local, points"
    panels = []
    for some in filter(None, (lines[:middle], lines[middle:])):
        every = [x for line in some for x in line.x]
        zero = Line("", [min(every), max(every)], [0, 0], formula=True, style=6)
        panels.append(Panel("", across, up, [*some, zero], log="x"))
    return draw(panels, path)


def _first(row: Row, c: Row) -> Row:
    lead = f"{_points(c['lead'])} over {NAMES[c['second']]}"
    better, worse = (f"{100 * c['clients'][way]:.0f} %" for way in ("better", "worse"))
    return {
        "data set": row["set"],
        "samples per client": _samples(row),
        "best": NAMES[c["best"]],
        "lead, points": lead + (" (clear)" if c["clear"] else " (not clear)"),
        "federated − Local, points": _with(c["gain"], c["half"]),
        "so federation": f"**{c['verdict']}**" if c["verdict"] != UNCLEAR else UNCLEAR,
        "clients better / worse off": f"{better} / {worse}",
    }


def _second(row: Row, c: Row) -> Row:
    methods, personal = row["methods"], c["personal"]
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
        settings = " ".join(
            f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in facts["chosen"].items()
        )
        if name in PERSONALISED:
            out["best personalised"] = f"{NAMES[name]}: {settings}"
        else:
            out[NAMES[name]] = settings
    return out


def _grouped(comparisons: Sequence[Row], key: str) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for comparison in comparisons:
        groups.setdefault(comparison[key], []).append(comparison)
    return groups


def _samples(row: Row) -> str:
    return str(row["samples"]) if row["samples"] else f"all (median {row['median']})"


def _case(c: Row) -> str:
    return f"{c['set'].split(' (')[0]}, {c['samples'] or 'all'} samples"


def _accuracy(values: Sequence[float]) -> str:
    half = interval(list(values))
    return f"{np.mean(values):.3f}" + ("" if half is None else f" ± {half:.3f}")


def _points(value: float) -> str:
    return f"{100 * value:.1f}"


def _with(value: float, half: float | None) -> str:
    return f"{100 * value:+.1f}" + ("" if half is None else f" ± {100 * half:.1f}")


def write(folder: Path, scale: str) -> list[Path]:
    """Measure, and write the page, its figures and its picture."""
    return written(folder, scale, CASES, SIZES[scale])


def written(folder: Path, scale: str, cases: Mapping[str, HelpCase], size: HelpSize) -> list[Path]:
    rows = measure(cases, size, folder / ".runs" / f"{NAME}-{scale}")
    stored = {
        "scale": scale,
        "size": asdict(size),
        "trials": 4,
        "rows": rows,
        "seconds": round(sum(row.pop("seconds") for row in rows)),
    }
    paths = write_page(folder, NAME, page_of(stored), stored)
    return [*paths, picture(stored, folder / f"{NAME}.png")]
