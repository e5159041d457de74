"""Accuracy against ε: which methods are still better than Local under a privacy budget?

Clients are protected (`central`, noise by the server), drawn by Poisson sampling. lp-proj is here
because its messages have few numbers, so that the noise is that of few dimensions; Local needs no
privacy, since it sends nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

from idiolect import Federation, Method, Plan, data, interval, make_method, paired_difference
from idiolect.study import Stock, job_progress, search_plans

from ..case import Case, majority_accuracy
from ..page import Row, table, write_page
from ..panels import Line, Panel, draw
from ..runs import Runs, Summary, column
from ..texts import read_text

NAME = "accuracy-under-privacy"
TEXTS = read_text(NAME)
NAMES: dict[str, str] = TEXTS["names"]
WITHOUT = math.inf  # no noise, and no clipping
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, WITHOUT)
DIMS = (5, 21, 100)  # of lp-proj, below the number of parameters
SHARED = ("fedavg", "finetune", "ditto", "fedper")
RIVAL = "finetune"  # what lp-proj is measured against
SEARCH = 0  # the seed of the search; those of the final runs follow


# -- federations ----------------------------------------------------------------------------------
def one_rule(
    clients: int = 300,
    train: int = 10,
    valid: int = 10,
    test: int = 20,
    features: int = 20,
    classes: int = 5,
    differ: float = 0.3,
    seed: int = 0,
) -> Federation:
    """Clients with nearly one linear rule, W + differ V_k, and a few samples each.

    >>> federation = one_rule(clients=4)
    >>> federation.clients, federation.sizes("train").tolist()
    (4, [10, 10, 10, 10])
    """
    rng = np.random.default_rng(seed)
    samples = train + valid + test
    W = rng.standard_normal((features, classes))
    V = rng.standard_normal((clients, features, classes))
    x = rng.standard_normal((clients, samples, features))
    scores = np.einsum("knf,kfc->knc", x, W + differ * V)
    y = (scores + 0.5 * rng.gumbel(size=scores.shape)).argmax(-1)
    return Federation.from_arrays(
        x.reshape(-1, features).astype(np.float32),
        y.ravel(),
        np.repeat(np.arange(clients), samples),
        split=np.tile(["train"] * train + ["valid"] * valid + ["test"] * test, clients),
        classes=classes,
        name="one rule",
    )


def schools(clients: int = 1000, train: int = 10, seed: int = 0) -> Federation:
    """chem97: pupils of schools, a few of each school to train on.

    Columns are scaled by constants that everybody knows (ages in months around 18.5 years, grades
    around 6), since the mean and variance of all clients would be a release too.
    """
    whole = data.load("chem97", clients=clients, scale="none")
    few = whole.capped({"train": train, "valid": max(3, train // 4)}, seed)
    scale, centre = torch.tensor([1.0, 1.0, 6.0, 1.0]), torch.tensor([0.0, 0.0, 0.0, 6.0])
    return replace(few, inputs=(few.inputs - centre) / scale)


def images(name: str = "mnist", clients: int = 100, train: int = 15, seed: int = 0) -> Federation:
    """Images of 14x14 pixels, their classes in Dirichlet shares (α = 1)."""
    partition = {"partition": "dirichlet", "alpha": 1.0, "capped": True, "minimum": 40}
    shares = {"pooled": True, "valid": 0.2, "test": 0.25}
    whole = data.load(name, clients=clients, seed=seed, **partition, **shares)
    few = whole.capped({"train": train, "valid": 10, "test": 20}, seed)
    small = torch.nn.functional.avg_pool2d(few.inputs.float().reshape(-1, 1, 28, 28), 2)
    return replace(few, inputs=small)


@dataclass(frozen=True)
class PrivacyCase(Case):
    """A federation where learning together helps, and what its clients keep in private."""

    who: str = ""  # what a client is
    part: str = "head"  # that FedPer keeps private


CASES = {
    "one rule": PrivacyCase(one_rule, "linear", who="made: nearly one rule", part="biases"),
    "chem97": PrivacyCase(schools, "linear", who="schools", part="biases"),
    "MNIST": PrivacyCase(
        images, "mlp", model_options={"hidden": "16"}, who="Dirichlet shares, α = 1"
    ),
}


@dataclass(frozen=True)
class PrivacySize:
    """How much is run."""

    rounds: int = 30
    steps: int = 10  # gradients per client and round
    personal_steps: int = 10  # of the fine-tuned one, before use
    batch: int = 10
    seeds: int = 5
    epsilons: tuple[float, ...] = EPSILONS
    # the grid of every method and ε
    rates: tuple[float, ...] = (0.1, 0.3)
    clips: tuple[float, ...] = (0.1, 0.3, 1.0)
    shares: tuple[float, ...] = (0.2, 1.0)  # of the clients, heard per round in the mean
    local_rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    fixed_at: tuple[float, ...] = (1.0, 4.0)  # ε at which nothing is tuned, for comparison
    jobs: int = 0


SIZES = {
    "quick": PrivacySize(),
    "full": PrivacySize(
        rounds=60,
        seeds=10,
        rates=(0.03, 0.1, 0.3, 1.0),
        clips=(0.03, 0.1, 0.3, 1.0, 3.0),
        shares=(0.1, 0.5, 1.0),
        fixed_at=EPSILONS[:-1],
    ),
}
FIXED_RATE = 0.1  # of the rows without tuning, whose clipping norm follows the median


# -- methods and settings -------------------------------------------------------------------------
def methods_of(d: int) -> tuple[str, ...]:
    """The methods on a model with d parameters.

    >>> methods_of(30)
    ('fedavg', 'finetune', 'ditto', 'fedper', 'lp-proj-5', 'lp-proj-21')
    """
    return (*SHARED, *(f"lp-proj-{dim}" for dim in DIMS if dim < d))


def method_of(name: str, lr: float, case: PrivacyCase, size: PrivacySize) -> Method:
    """A method at a step size, with as many gradients per round as all others."""
    steps = size.steps
    if name == "local":  # with those that the fine-tuned one takes before use, or a few more
        steps += math.ceil(size.personal_steps / size.rounds)
        return make_method(name, lr=lr, steps=steps)
    if name == "fedavg":
        return make_method(name, lr=lr, steps=steps)
    if name == "finetune":
        own = {"personal_lr": lr, "personal_steps": size.personal_steps}
        return make_method(name, lr=lr, steps=steps, **own)
    if name == "ditto":
        half = steps // 2
        own = {"personal_lr": lr, "personal_steps": steps - half, "lam": 1.0}
        return make_method(name, lr=lr, steps=half, **own)
    if name == "fedper":
        return make_method(name, lr=lr, steps=steps, part=case.part)
    dim = int(name.rpartition("-")[2])
    return make_method(
        "lp-proj",
        p=2,
        dim=dim,
        lam=3.0,
        personal_lr=lr,
        steps=steps,
        fresh=True,
        projection="orthogonal",
        w_start="x0",
    )


def delta_of(clients: int) -> float:
    """δ, well below 1 over the number of clients.

    >>> delta_of(1000) < 1 / 1000
    True
    """
    return float(clients**-1.1)


def settings_of(epsilon: float, clip: float, sample: int, clients: int) -> Row:
    """Settings of a run within a budget; a clip of 0 follows the median of the norms."""
    heard: Row = {"sample": sample}
    if sample < clients:
        heard["selection"] = "poisson"
    if epsilon == WITHOUT:
        return heard
    return {
        **heard,
        "privacy": f"central(clip={clip:g}, quantile=0)" if clip else "central",
        "epsilon": epsilon,
        "delta": delta_of(clients),
        "noise_source": "seed",
    }


@dataclass(frozen=True)
class Bench:
    """One federation with its model, and the plans that are run on it."""

    title: str
    case: PrivacyCase
    size: PrivacySize
    clients: int
    d: int

    @property
    def methods(self) -> tuple[str, ...]:
        return methods_of(self.d)

    def trials(self, name: str, epsilon: float) -> Iterator[Plan]:
        """What is tried for a method at ε: step sizes, clipping norms, clients heard."""
        size = self.size
        if name == "local":
            for lr in size.local_rates:
                yield self._plan(name, lr, WITHOUT, {}, {"lr": lr})
            return
        clips = size.clips if epsilon != WITHOUT else (0.0,)
        for lr, clip, share in product(size.rates, clips, size.shares):
            sample = max(1, round(share * self.clients))
            varied = {"lr": lr, "clip": clip, "sample": sample}
            settings = settings_of(epsilon, clip, sample, self.clients)
            yield self._plan(name, lr, epsilon, settings, varied)

    def untuned(self, name: str, epsilon: float) -> Plan:
        """One that nothing was chosen for: the default clipping, everyone heard."""
        settings = settings_of(epsilon, 0.0, self.clients, self.clients)
        varied = {"lr": FIXED_RATE, "clip": 0.0, "sample": self.clients, "untuned": True}
        return self._plan(name, FIXED_RATE, epsilon, settings, varied)

    def _plan(self, name: str, lr: float, epsilon: float, own: Row, varied: Row) -> Plan:
        run = {"rounds": self.size.rounds, "batch": self.size.batch, "eval_every": 0, **own}
        return Plan.of(
            method_of(name, lr, self.case, self.size),
            settings=run,
            data=self.title,
            model=self.title,
            name=f"{self.title}: {name} at ε {epsilon:g}",
            varied=varied,
        )


# -- runs -----------------------------------------------------------------------------------------
Key = tuple[str, str, float, bool]  # federation, method, ε, whether it is tuned


def measure(cases: Mapping[str, PrivacyCase], size: PrivacySize, directory: Path) -> list[Row]:
    """A row for every federation, method and ε."""
    stocks = {seed: _stock(cases, seed) for seed in range(SEARCH, SEARCH + 1 + size.seeds)}
    first = stocks[SEARCH]
    benches = {
        title: Bench(title, case, size, first.federation(title).clients, first.tasks[title].d)
        for title, case in cases.items()
    }
    trials = {
        (title, name, epsilon): list(bench.trials(name, epsilon))
        for title, bench in benches.items()
        for name, epsilon in [("local", WITHOUT), *product(bench.methods, size.epsilons)]
    }
    search_result = search_plans(  # without test data
        [plan for several in trials.values() for plan in several],
        first,
        [SEARCH],
        jobs=size.jobs,
        directory=directory / "search",
        watch=job_progress,
    )
    standings = {key: search_result.standings(several[0].name) for key, several in trials.items()}
    finals: dict[Key, Plan] = {(*key, True): rows[0].plan for key, rows in standings.items()}
    for title, bench in benches.items():
        for name, epsilon in product(bench.methods, size.fixed_at):
            finals[title, name, epsilon, False] = bench.untuned(name, epsilon)
    by_seed = [
        Runs(directory / f"seed-{seed}", size.jobs)(finals, stocks[seed], [seed])
        for seed in stocks
        if seed != SEARCH
    ]
    searched = {
        key: sum(float(one["cpu_seconds"]) for s in rows for one in s.summaries)
        for key, rows in standings.items()
    }
    return [
        _row(
            benches[key[0]],
            key,
            plan,
            first.federation(key[0]),
            [runs[key][0] for runs in by_seed],
        )
        | {"cpu": sum(runs[key][0]["cpu_seconds"] for runs in by_seed) + searched.get(key[:3], 0.0)}
        for key, plan in finals.items()
    ]


def _stock(cases: Mapping[str, PrivacyCase], seed: int) -> Stock:
    """Federations drawn with a seed, and their models."""
    loaded = {title: case.load(seed=seed) for title, case in cases.items()}
    return Stock(
        {title: federation for title, (federation, _) in loaded.items()},
        {title: task for title, (_, task) in loaded.items()},
    )


def _row(
    bench: Bench, key: Key, plan: Plan, federation: Federation, several: Sequence[Summary]
) -> Row:
    title, name, epsilon, tuned = key
    first = several[0]
    spent = first.get("privacy")
    heard = plan.varied.get("sample", 0)
    chosen = {k: v for k, v in plan.varied.items() if k != "untuned"}
    numbers = sum(plan.make_method().message(bench.case.task(federation)).values())
    noise = spent["noise"] if spent else 0.0
    return {
        "set": title,
        "who": bench.case.who,
        "clients": bench.clients,
        "samples": float(federation.sizes("train").float().mean()),
        "d": bench.d,
        "majority": majority_accuracy(federation),
        "method": name,
        "epsilon": None if epsilon == WITHOUT else epsilon,
        "delta": delta_of(bench.clients),
        "tuned": tuned,
        "chosen": chosen,
        "test": [  # none: it has diverged
            0.0 if mean is None else round(mean, 5) for mean in column(several, "accuracy", "mean")
        ],
        "spent": max(s["privacy"]["epsilon"]["worst"] for s in several) if spent else 0.0,
        "noise": noise,
        "numbers": numbers,
        # of the noise in the mean of a round, in units of the clipping norm
        "length": noise * math.sqrt(numbers) / heard if heard else 0.0,
        "gradients": first["gradients_per_client"],
        "bytes": sum(first["bytes"].values()) / bench.clients,
    }


# -- what the figures say -------------------------------------------------------------------------
@dataclass(frozen=True)
class Figures:
    """The rows of one federation."""

    rows: Sequence[Row]

    @property
    def title(self) -> str:
        return str(self.rows[0]["set"])

    @property
    def epsilons(self) -> list[float]:
        return sorted({_epsilon(r) for r in self.rows if r["method"] != "local"})

    @property
    def methods(self) -> list[str]:
        return [name for name in dict.fromkeys(r["method"] for r in self.rows) if name != "local"]

    @property
    def projections(self) -> list[str]:
        return [name for name in self.methods if name.startswith("lp-proj")]

    @property
    def local(self) -> Row:
        return next(r for r in self.rows if r["method"] == "local")

    def row(self, name: str, epsilon: float, tuned: bool = True) -> Row | None:
        key = (name, epsilon, tuned)
        return next((r for r in self.rows if _key(r) == key), None)

    def test(self, name: str, epsilon: float) -> list[float]:
        row = self.row(name, epsilon)
        return self.local["test"] if row is None else row["test"]

    def gain(self, name: str, epsilon: float) -> tuple[float, float | None]:
        """Over Local with the same seeds."""
        return paired_difference(self.test(name, epsilon), self.local["test"])

    def clear(self, name: str, epsilon: float) -> bool:
        """Whether a method beats Local beyond the interval."""
        return is_clear(*self.gain(name, epsilon)) > 0

    def least(self, name: str) -> float | None:
        """The ε from which on a method clearly beats Local; None: it does not even without noise.

        At every larger ε that was run it does so too.
        """
        least = None
        for epsilon in reversed(self.epsilons):
            if not self.clear(name, epsilon):
                break
            least = epsilon
        return least


def is_clear(difference: float, half: float | None) -> int:
    """1 or -1 where a difference lies beyond its interval, else 0.

    >>> is_clear(0.1, 0.05), is_clear(-0.1, 0.05), is_clear(0.1, 0.2), is_clear(0.1, None)
    (1, -1, 0, 0)
    """
    if half is None or abs(difference) <= half:
        return 0
    return 1 if difference > 0 else -1


def _epsilon(row: Row) -> float:
    return WITHOUT if row["epsilon"] is None else float(row["epsilon"])


def _key(row: Row) -> tuple[str, float, bool]:
    return row["method"], _epsilon(row), row["tuned"]


def _by_set(rows: Sequence[Row]) -> list[Figures]:
    titles = dict.fromkeys(row["set"] for row in rows)
    return [Figures([row for row in rows if row["set"] == title]) for title in titles]


def epsilon_text(epsilon: float) -> str:
    """For the page.

    >>> epsilon_text(0.5), epsilon_text(math.inf)
    ('0.5', '∞')
    """
    return "∞" if epsilon == WITHOUT else f"{epsilon:g}"


def opening(sets: Sequence[Figures]) -> str:
    """From which ε on federating pays: the answer, in sentences that the figures give."""
    words = TEXTS["opening"]
    parts = []
    for figures in sets:
        least = {name: figures.least(name) for name in figures.methods}
        affordable = {n: e for n, e in least.items() if e is not None and e != WITHOUT}
        if not affordable:
            parts.append(words["never"].format(set=figures.title))
            continue
        earliest = min(affordable.values())
        names = _listed(n for n, e in affordable.items() if e == earliest)
        parts.append(
            words["from"].format(
                set=figures.title, methods=names, epsilon=epsilon_text(earliest), **_size(figures)
            )
        )
        if late := _listed(n for n, e in least.items() if e is None):
            parts.append(words["not"].format(methods=late))
    return " ".join(parts)


def projections(sets: Sequence[Figures]) -> str:
    """Whether the small messages of lp-proj pay, against fine-tuned FedAvg at the same ε."""
    words = TEXTS["projections"]
    comparisons = [
        (figures, name, epsilon, *_against(figures, name, epsilon))
        for figures in sets
        for name in figures.projections
        for epsilon in figures.epsilons
        if epsilon != WITHOUT
    ]
    verdicts = [is_clear(gain, half) for *_, gain, half in comparisons]
    better, worse = verdicts.count(1), verdicts.count(-1)
    sentences = [
        words["counts"].format(
            number=len(comparisons),
            better=better,
            worse=worse,
            unclear=len(comparisons) - better - worse,
        )
    ]
    if better:
        wins = [c for c, v in zip(comparisons, verdicts, strict=True) if v > 0]
        sentences.append(words["wins"].format(**_comparison(max(wins, key=lambda c: c[3]))))
        losing = sum(not figures.clear(name, eps) for figures, name, eps, *_ in wins)
        sentences.append(words["hollow"].format(losing=losing, better=better))
    else:
        sentences.append(words["none"])
    if worse:
        sentences.append(
            words["losses"].format(**_comparison(min(comparisons, key=lambda c: c[3])))
        )
    strict = min(e for figures in sets for e in figures.epsilons)
    lost = {
        name: [
            figures.test(name, WITHOUT)[i] - figures.test(name, strict)[i]
            for figures in sets
            if name in figures.methods
            for i in range(len(figures.local["test"]))
        ]
        for name in dict.fromkeys(n for f in sets for n in (*f.projections, RIVAL))
    }
    sentences.append(
        words["price"].format(
            epsilon=epsilon_text(strict),
            lost="; ".join(f"{NAMES[n]} {_points(float(np.mean(v)))}" for n, v in lost.items()),
        )
    )
    kept = []
    for figures in sets:
        best = max(figures.projections, key=lambda name: figures.gain(name, WITHOUT)[0])
        kept.append(
            words["kept"].format(
                set=figures.title,
                method=NAMES[best],
                gain=_with(*figures.gain(best, WITHOUT)),
                rival=_with(*figures.gain(RIVAL, WITHOUT)),
            )
        )
    sentences.append(words["reason"].format(gains="; ".join(kept)))
    return " ".join(sentences)


def _against(figures: Figures, name: str, epsilon: float) -> tuple[float, float | None]:
    return paired_difference(figures.test(name, epsilon), figures.test(RIVAL, epsilon))


def _comparison(c: tuple[Figures, str, float, float, float | None]) -> Row:
    figures, name, epsilon, gain, half = c
    return {
        "method": NAMES[name],
        "set": figures.title,
        "epsilon": epsilon_text(epsilon),
        "gain": _with(gain, half),
        "over_local": _with(*figures.gain(name, epsilon)),
    }


def untuned(sets: Sequence[Figures]) -> str:
    """What tuning was worth, which ε does not count."""
    gains = [
        float(np.mean(figures.test(r["method"], _epsilon(r))) - np.mean(r["test"]))
        for figures in sets
        for r in figures.rows
        if not r["tuned"]
    ]
    if not gains:
        return ""
    return TEXTS["untuned"]["text"].format(
        mean=_points(float(np.mean(gains))), most=_points(max(gains)), number=len(gains)
    )


# -- the page -------------------------------------------------------------------------------------
def page_of(stored: Row) -> str:
    """The page of stored figures."""
    sets, size = _by_set(stored["rows"]), stored["size"]
    accuracy = "\n\n".join(
        f"**{f.title}**: {_size_text(f)}\n\n" + "\n".join(table(_accuracies(f))) for f in sets
    )
    trials = len(size["rates"]) * len(size["clips"]) * len(size["shares"])
    tables = {
        "federations": [_federation(figures) for figures in sets],
        "thresholds": [
            {"method": NAMES[name], **{f.title: _threshold(f, name) for f in sets}}
            for name in dict.fromkeys(n for f in sets for n in f.methods)
        ],
        "projected": [row for figures in sets for row in _projected(figures)],
        "chosen": [row for figures in sets for row in _choices(figures)],
    }
    return TEXTS["page"].format(
        opening=opening(sets),
        chance=_by_chance(sets),
        projections=projections(sets),
        untuned=untuned(sets),
        accuracy=accuracy,
        trials=trials,
        cost=TEXTS["cost"]["text"].format(trials=trials),
        heard=", ".join(f"{100 * s:.0f} %" for s in size["shares"]),
        clips=", ".join(f"{c:g}" for c in size["clips"]),
        rates=", ".join(f"{c:g}" for c in size["rates"]),
        local_rates=", ".join(f"{c:g}" for c in size["local_rates"]),
        fixed_rate=FIXED_RATE,
        spent=_most_spent(stored["rows"]),
        minutes=stored["cpu"] / 60,
        scale=stored["scale"],
        size=size,
        **{name: "\n".join(table(lines)) for name, lines in tables.items()},
    )


def _by_chance(sets: Sequence[Figures]) -> str:
    """How many comparisons with Local there are, and how many would be clear without a reason."""
    number = sum(len(f.methods) * len(f.epsilons) for f in sets)
    return TEXTS["chance"]["text"].format(number=number, chance=0.05 * number)


def _most_spent(rows: Sequence[Row]) -> str:
    """The largest part of a budget that was spent.

    >>> _most_spent([{"epsilon": 2.0, "spent": 1.99}, {"epsilon": None, "spent": 0.0}])
    '99.5 %'
    """
    parts = [row["spent"] / row["epsilon"] for row in rows if row["epsilon"]]
    return f"{100 * max(parts, default=0.0):.1f} %"


def _size(figures: Figures) -> Row:
    local = figures.local
    return {"clients": f"{local['clients']:,}", "samples": f"{local['samples']:.0f}"}


def _size_text(figures: Figures) -> str:
    local = figures.local
    return TEXTS["table"]["title"].format(
        local=_accuracy(local["test"]), delta=local["delta"], **_size(figures)
    )


def _federation(figures: Figures) -> Row:
    local = figures.local
    return {
        "federation": figures.title,
        "clients": f"{local['clients']:,} ({local['who']})",
        "samples each": f"{local['samples']:.0f}",
        "parameters": f"{local['d']:,}",
        "δ": f"{local['delta']:.1e}",
        "own commonest class": f"{local['majority']:.3f}",
        "Local": _accuracy(local["test"]),
    }


def _accuracies(figures: Figures) -> list[Row]:
    rows = []
    for name in figures.methods:
        line: Row = {"method": NAMES[name]}
        for epsilon in figures.epsilons:
            text = _accuracy(figures.test(name, epsilon))
            bold = figures.clear(name, epsilon)
            line[f"ε = {epsilon_text(epsilon)}"] = f"**{text}**" if bold else text
        rows.append(line)
        fixed = {
            f"ε = {epsilon_text(e)}": _accuracy(row["test"])
            for e in figures.epsilons
            if (row := figures.row(name, e, tuned=False))
        }
        if fixed:
            rows.append({"method": f"{NAMES[name]}, nothing tuned", **fixed})
    return rows


def _threshold(figures: Figures, name: str) -> str:
    if name not in figures.methods:
        return "–"
    least = figures.least(name)
    if least is None:
        return "never"
    return "without noise only" if least == WITHOUT else f"ε ≥ {least:g}"


def _projected(figures: Figures) -> list[Row]:
    """lp-proj − fine-tuned FedAvg at the same ε, in points."""
    return [
        {
            "federation": figures.title,
            "method": NAMES[name],
            **{
                f"ε = {epsilon_text(e)}": _with(*_against(figures, name, e))
                for e in figures.epsilons
            },
        }
        for name in figures.projections
    ]


def _choices(figures: Figures) -> list[Row]:
    """What was chosen, and what it costs, at the smallest ε, a middle one and without noise."""
    epsilons = figures.epsilons
    shown = [epsilons[0], epsilons[len(epsilons) // 2], epsilons[-1]]
    rows = []
    for name in figures.methods:
        for epsilon in dict.fromkeys(shown):
            row = figures.row(name, epsilon)
            if row is None:
                continue
            chosen = row["chosen"]
            rows.append(
                {
                    "federation": figures.title,
                    "method": NAMES[name],
                    "ε": epsilon_text(epsilon),
                    "step size": f"{chosen['lr']:g}",
                    "C": f"{chosen['clip']:g}" if chosen["clip"] else "none",
                    "heard": f"{chosen['sample']:,}",
                    "numbers per message": f"{row['numbers']:,}",
                    "noise in the mean, in C": f"{row['length']:.2g}" if row["length"] else "0",
                    "gradients per client": f"{row['gradients']:.0f}",
                    "bytes per client": f"{row['bytes']:,.0f}",
                }
            )
    return rows


BLACK, DASHED = 6, 13  # styles of lines: black ones, of Local alone


def picture(stored: Row, path: Path) -> Path:
    """Accuracy against ε, a panel per federation; Local is a horizontal line."""
    every = dict.fromkeys(r["method"] for r in stored["rows"] if r["method"] != "local")
    styles = {name: number + (number == BLACK) for number, name in enumerate(every)}
    panels = []
    for figures in _by_set(stored["rows"]):
        places = {e: e if e != WITHOUT else 2 * _largest(figures) for e in figures.epsilons}
        x = [*places.values()]
        lines = []
        for name in figures.methods:
            tests = [figures.test(name, e) for e in places]
            y = [100 * float(np.mean(t)) for t in tests]
            half = [100 * (interval(t) or 0.0) for t in tests]
            low, high = ([a + s * b for a, b in zip(y, half, strict=True)] for s in (-1, 1))
            label = TEXTS["short"][name]
            lines.append(Line(label, x, y, low, high, styles[name], points=True))
        alone = 100 * float(np.mean(figures.local["test"]))
        lines.append(Line(TEXTS["short"]["local"], [x[0], x[-1]], [alone] * 2, style=DASHED))
        ticks = {place: epsilon_text(e) for e, place in places.items()}
        up = "test accuracy, %"
        panels.append(Panel(figures.title, "ε", up, lines, log="x", ticks=ticks, direct=True))
    return draw(panels, path)


def _largest(figures: Figures) -> float:
    return max((e for e in figures.epsilons if e != WITHOUT), default=1.0)


def _listed(names: Iterator[str]) -> str:
    texts = [NAMES[name] for name in names]
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def _accuracy(values: Sequence[float]) -> str:
    half = interval(list(values))
    return f"{100 * np.mean(values):.1f}" + ("" if half is None else f" ± {100 * half:.1f}")


def _points(value: float) -> str:
    return f"{100 * value:.1f}"


def _with(value: float, half: float | None) -> str:
    return f"{100 * value:+.1f}" + ("" if half is None else f" ± {100 * half:.1f}")


def write(folder: Path, scale: str) -> list[Path]:
    """Measure, and write the page, its figures and its picture."""
    return written(folder, scale, CASES, SIZES[scale])


def written(
    folder: Path, scale: str, cases: Mapping[str, PrivacyCase], size: PrivacySize
) -> list[Path]:
    rows = measure(cases, size, folder / ".runs" / f"{NAME}-{scale}")
    facts = {name: value for name, value in asdict(size).items() if name != "jobs"}
    stored = {
        "scale": scale,
        "size": facts | {"epsilons": [None if e == WITHOUT else e for e in size.epsilons]},
        "rows": rows,
        "cpu": round(sum(row.pop("cpu") for row in rows)),
    }
    paths = write_page(folder, NAME, page_of(stored), stored)
    return [*paths, picture(stored, folder / f"{NAME}.png")]
