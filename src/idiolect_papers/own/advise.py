"""How often is advice right? Three families of federations, each swept through the threshold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from idiolect import Advice, Federation, Result, Task, advise, make_method, models, run
from idiolect.data.sets.regression import LogisticRegression
from idiolect.data.sets.synthetic import Synthetic

from ..closed_forms import logistic
from ..page import NOT_STATED, Page, Row, Verdict, page_from_text
from ..panels import Line, Panel
from ..runs import Work, train_all
from ..texts import read_text

NAME = "advise-accuracy"
TEXTS = read_text(NAME)
DATA_SEED = 16  # data seed: none that was looked at while the advice was written
SYNTHETIC, LOGISTIC, DIGITS = "synthetic", "logistic", "digits"


@dataclass(frozen=True)
class AdviceCase:
    """A federation of a family: what is swept, the rest of it, and the seed of its data."""

    family: str
    swept: float  # alpha; R^2 over its crossing; samples per client
    other: int  # samples per client; samples per client; classes per client
    clients: int
    test: int  # test samples per client
    seed: int

    @property
    def samples(self) -> int:
        """Training samples per client."""
        return int(self.swept) if self.family == DIGITS else self.other

    def title(self) -> str:
        """The case in words.

        >>> AdviceCase("digits", 40, 5, 10, 0, 1).title()
        'digits, 5 classes per client, 40 samples, data seed 1'
        """
        words = TEXTS["titles"][self.family].format(case=self)
        return f"{words}, data seed {self.seed}"

    def load(self) -> tuple[Federation, Task]:
        """Training and test samples, no validation samples; and the model."""
        return {SYNTHETIC: _synthetic, LOGISTIC: _logistic, DIGITS: _digits}[self.family](self)


@dataclass(frozen=True)
class AdviceSize:
    """The grid of cases, and what is spent on each."""

    alphas: tuple[float, ...] = (0.0, 1.0, 3.0)
    ratios: tuple[float, ...] = (0.0, 0.1, 0.3, 0.6, 1.0, 3.0, 10.0)
    per_client: tuple[int, ...] = (5, 10, 20, 40)  # samples, of digits
    synthetic: tuple[int, ...] = (40, 160)  # samples per client
    logistic: tuple[int, ...] = (40, 100)
    classes: tuple[int, ...] = (2, 5)  # per client, of digits
    clients: int = 30
    digits_clients: int = 20
    test: int = 400
    repeats: int = 2  # data seeds
    gradients: int = 300
    seeds: int = 5

    def cases(self) -> Iterator[AdviceCase]:
        swept = (
            (SYNTHETIC, self.alphas, self.synthetic, self.clients),
            (LOGISTIC, self.ratios, self.logistic, self.clients),
            (DIGITS, self.per_client, self.classes, self.digits_clients),
        )
        for family, values, others, clients in swept:
            for other in others:
                for place, value in enumerate(values):
                    # one seed has the same data for every alpha: see `Synthetic`
                    first = DATA_SEED + (100 * place if family == SYNTHETIC else 0)
                    for seed in range(first, first + self.repeats):
                        yield AdviceCase(family, value, other, clients, self.test, seed)


def _synthetic(case: AdviceCase) -> tuple[Federation, Task]:
    samples = case.other + case.test
    spec = Synthetic(
        alpha=case.swept,
        clients=case.clients,
        samples=samples,
        valid=0,
        test=case.test / samples,
        seed=case.seed,
    )
    return spec.load(), Task(partial(models.make, "linear", (60,), 10))


def _logistic(case: AdviceCase) -> tuple[Federation, Task]:
    """Section 4.1 of the paper: all clients at distance R, R² a multiple of the crossing's."""
    samples = case.other + case.test
    spec = LogisticRegression(
        clients=case.clients,
        samples=samples,
        features=10,
        bound=2.0,
        design="signs",
        norm=0.5,
        radius=0.1,
        places="sphere",
        valid=0,
        test=case.test / samples,
        seed=case.seed,
    )
    _, truth = spec.draw()
    crossing = logistic.crossing(spec, truth, case.other)
    spec = replace(spec, radius=case.swept**0.5 * crossing)
    return spec.load(), logistic.task(spec)


def _digits(case: AdviceCase) -> tuple[Federation, Task]:
    """Handwritten digits by label: clients draw without replacement from three fifths of them.

    Every client is tested on all the others that have one of its classes; clients may share these.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(case.seed)
    order = rng.permutation(len(labels))
    cut = int(0.6 * len(order))
    train_pool, tests = order[:cut], order[cut:]
    offered = {c: list(train_pool[labels[train_pool] == c]) for c in range(10)}
    index, owner, split = [], [], []
    for k in range(case.clients):
        # each class has as many clients as any other
        classes = [(k * case.other + j) % 10 for j in range(case.other)]
        for j in range(case.samples):
            index.append(offered[classes[j % case.other]].pop())
        mine = tests[np.isin(labels[tests], classes)]
        index += list(mine)
        owner += [k] * (case.samples + len(mine))
        split += ["train"] * case.samples + ["test"] * len(mine)
    federation = Federation.from_arrays(
        (pixels[index] / 16).astype(np.float32),
        labels[index],
        np.array(owner),
        split=split,
        classes=10,
        valid=0,
        name="digits",
    )
    return federation, Task(partial(models.make, "linear", (64,), 10))


METHODS = ("finetune", "ditto", "fedalt:part=biases")  # beside local and fedavg
TRUTH_SEEDS = 3
TRUTH_SEED = 100  # seed of the truth's trainings: others than those of the advice


@dataclass(frozen=True)
class CaseJob(Work):
    """A case, and the compute and seeds of its advice."""

    case: AdviceCase
    gradients: int
    seeds: int

    def cost(self) -> float:
        return self.case.clients * self.case.samples + 2000

    def describe(self) -> str:
        return self.case.title()

    def train(self) -> dict[str, Any]:
        """The advice, and the truth of the same candidates."""
        began = time.process_time()
        federation, task = self.case.load()
        advice = advise(
            federation,
            task,
            METHODS[:-1] if self.case.family == LOGISTIC else METHODS,  # a model without biases
            gradients=self.gradients,
            seeds=self.seeds,
            threads=1,
            progress=False,
        )
        seconds = time.process_time() - began
        h = advice.heterogeneity
        return {
            "choice": advice.choice,
            "alternative": advice.alternative,
            "p": advice.p,
            "tie": advice.tie,
            "advised": {r["method"]: [r["gain"], r["low"], r["high"]] for r in advice.table},
            "ratio": None if h is None else [h.ratio, h.low, h.high],
            "side": "" if h is None else h.side,
            "told": {key: len(ids) for key, ids in advice.gains.items()},
            **self._truth(advice, federation, task),
            "cpu": round(seconds, 1),
        }

    def _truth(self, advice: Advice, federation: Federation, task: Task) -> dict[str, Any]:
        """What each candidate reaches on the test set, trained on all training samples.

        And the standard error of its difference to Local on as many samples as there are to train
        on.
        """
        values = {}
        for row in advice.table:
            if not row["fields"]:
                continue  # a constant answer
            result = run(
                make_method(row["method"], **row["fields"]),
                task,
                federation,
                rounds=row["rounds"],
                sample=federation.clients,
                seed=TRUTH_SEED,
                seeds=TRUTH_SEEDS,
                eval_every=0,
                threads=1,
                progress=False,
            )
            values[row["method"]] = _losses(result)
        samples = int(federation.sizes("train").sum())
        errors = {m: (v - values["local"]).std() / samples**0.5 for m, v in values.items()}
        return {
            "truth": {m: float(v.mean()) for m, v in values.items()},
            "errors": {m: float(e) for m, e in errors.items()},
        }


def _losses(result: Result) -> np.ndarray:  # -> [n]
    """The loss of each test sample, the mean over seeds."""
    by_seed = []
    for seed in result.seeds:
        session = result.session(seed.seed)
        host = session.hosts[0]
        message = session.server.message(session.server.version, host.wire_ids)
        _, losses = host.each_sample(session.server.version, message, "test")
        by_seed.append(losses.numpy())
    return np.mean(by_seed, axis=0)


# -- how cases are judged -------------------------------------------------------------------------
AWAY = 3.0  # ties
SEEN = 4.0  # standard errors
NEAR = 1.0
ENOUGH = 0.9  # share of the cases away from the threshold that are to be right
AWAY_AND_SEEN = "away"
AWAY_BY_TIES = "away, but more than the samples can show"
NEAR_IT = "near"
TOO_CLOSE = "too close to call"
UNDECIDED = "undecided"


@dataclass(frozen=True)
class JudgedCase:
    """A case, and what `CaseJob` measured: its advice and its truth."""

    case: AdviceCase
    outcome: dict[str, Any]

    def gain(self, method: str) -> float:
        """How much lower the true loss is than Local's, in ties of the advice."""
        truth = self.outcome["truth"]
        return float((truth["local"] - truth[method]) / self.tie)

    @property
    def tie(self) -> float:
        return float(self.outcome["tie"])

    @property
    def choice(self) -> str:
        """The method that was chosen, without its settings."""
        return str(self.outcome["choice"]).split(" ")[0]

    def advised(self, method: str) -> Sequence[float]:
        """The advised gain with both ends of its interval, in ties."""
        gains = self.outcome["advised"].get(method, (None, None, None))
        return [math.nan if gain is None else gain / self.tie for gain in gains]

    @property
    def best(self) -> str:
        """The best candidate that federates."""
        return max((m for m in self.outcome["truth"] if m != "local"), key=self.gain)

    @property
    def right(self) -> bool:
        """Whether no candidate is better than the choice by more than a tie."""
        if not self.decided:
            return False
        return self.gain(self.choice) >= max(map(self.gain, self.outcome["truth"])) - 1

    @property
    def decided(self) -> bool:
        return self.choice != UNDECIDED

    @property
    def together(self) -> bool:
        """Whether it federates where a candidate is better than Local, and not elsewhere.

        Where it federates, the method that it takes must itself be better than Local.
        """
        if self.gain(self.best) <= 0:
            return self.choice == "local"
        return self.choice not in ("local", UNDECIDED) and self.gain(self.choice) > 0

    def place(self, method: str) -> str:
        """Where the case lies, by the true gain of a method over Local."""
        gain = abs(self.gain(method))
        if gain >= AWAY:
            visible = gain * self.tie >= SEEN * self.outcome["errors"][method]
            return AWAY_AND_SEEN if visible else AWAY_BY_TIES
        return NEAR_IT if gain < NEAR else "between"

    @property
    def named(self) -> bool:
        """Whether the alternative names the better of FedAvg and Local."""
        return self.outcome["alternative"] == ("fedavg" if self.gain("fedavg") > 0 else "local")

    @property
    def too_close(self) -> bool:
        return self.outcome["alternative"] == TOO_CLOSE

    @property
    def sided(self) -> bool:
        """Whether R^2 lies on the side of its threshold where the better of the two is."""
        return self.outcome["side"] == ("below" if self.gain("fedavg") > 0 else "above")

    def row(self) -> Row:
        ratio = self.outcome["ratio"]
        return {
            "case": self.case.title(),
            "best that federates": self.best,
            "its true gain, in ties": f"{self.gain(self.best):+.1f}",
            "place": self.place(self.best),
            "choice": self.outcome["choice"],
            "right": "yes" if self.right else "no",
            "true gain of FedAvg, in ties": f"{self.gain('fedavg'):+.1f}",
            "FedAvg or Local": self.outcome["alternative"],
            "R² over its threshold": "–"
            if ratio is None
            else f"{ratio[0]:.2g} ({ratio[1]:.2g} to {ratio[2]:.2g})",
            "CPU s": self.outcome["cpu"],
        }


class JudgedCases(list[JudgedCase]):
    """Cases, and how many of some of them are judged well."""

    def at(self, *places: str) -> JudgedCases:
        """By the best method that federates."""
        return JudgedCases(c for c in self if c.place(c.best) in places)

    def two_at(self, place: str) -> JudgedCases:
        """By FedAvg against Local."""
        return JudgedCases(c for c in self if c.place("fedavg") == place)

    def share(self, judgement: Callable[[JudgedCase], bool]) -> str:
        good = sum(map(judgement, self))
        return f"{good} of {len(self)}" + (f" ({good / len(self):.0%})" if self else "")

    def claim(self, judgement: Callable[[JudgedCase], bool], enough: float = ENOUGH) -> Verdict:
        """Whether enough of the cases are judged well, and how many are."""
        if not self:
            return [(NOT_STATED, {"share": "no such case"})]
        agrees = sum(map(judgement, self)) >= enough * len(self)
        return [(agrees, {"share": self.share(judgement)})]


# -- the page -------------------------------------------------------------------------------------
def write(folder: Path, size: AdviceSize | None = None, workers: int = 2) -> list[Path]:
    """Advise on every case, compare with the truth, and write the page."""
    began = time.monotonic()
    size = size or AdviceSize()
    jobs = [CaseJob(case, size.gradients, size.seeds) for case in size.cases()]
    results = train_all(jobs, folder, NAME, workers)
    outcomes = [results[job] for job in jobs]
    return reproduced(jobs, outcomes, size, time.monotonic() - began).write(folder)


def reproduced(
    jobs: Sequence[CaseJob], outcomes: Iterable[dict[str, Any]], size: AdviceSize, seconds: float
) -> Page:
    """All that the page says."""
    cases = JudgedCases(JudgedCase(job.case, o) for job, o in zip(jobs, outcomes, strict=True))
    away, two_away = cases.at(AWAY_AND_SEEN), cases.two_at(AWAY_AND_SEEN)
    wrong = [c for c in cases.at(AWAY_AND_SEEN, AWAY_BY_TIES) if c.decided and not c.right]
    families = {
        family: JudgedCases(c for c in cases if c.case.family == family) for family in HEADINGS
    }
    return page_from_text(
        NAME,
        facts={
            "size": size,
            "truth": TRUTH_SEEDS,
            "methods": ", ".join(METHODS[:-1]) + " and fedalt with biases of each client's own",
            "sided": two_away.share(lambda c: c.sided),
            "wrong": "; ".join(f"{c.case.title()}: {c.outcome['choice']}" for c in wrong) or "none",
        },
        verdicts={
            "choice": away.claim(lambda c: c.right),
            "together": away.claim(lambda c: c.together),
            "named": two_away.claim(lambda c: c.named),
            "too_close": cases.two_at(NEAR_IT).claim(lambda c: c.too_close, 0.5),
            "sided": NOT_STATED,
            "wrong": NOT_STATED,
        },
        tables={
            "How often": [_counts(family, mine) for family, mine in families.items()]
            + [_counts("all", cases)],
            **{HEADINGS[f]: [c.row() for c in mine] for f, mine in families.items() if mine},
        },
        figures={"cases": [{"case": c.case.title(), **c.outcome} for c in cases]},
        panels=[panel for family, mine in families.items() for panel in _panels(family, mine)],
        seconds=seconds,
    )


def _counts(family: str, cases: JudgedCases) -> Row:
    away, near = cases.at(AWAY_AND_SEEN), cases.at(NEAR_IT)
    by_ties = cases.at(AWAY_AND_SEEN, AWAY_BY_TIES)
    two_away, two_near = cases.two_at(AWAY_AND_SEEN), cases.two_at(NEAR_IT)
    return {
        "family": family,
        "choice right, away": away.share(lambda c: c.right),
        "federate or not right, away": away.share(lambda c: c.together),
        "the same, by 3 ties alone": by_ties.share(lambda c: c.right),
        "undecided, by 3 ties alone": by_ties.share(lambda c: not c.decided),
        "choice right, near": near.share(lambda c: c.right),
        "undecided, near": near.share(lambda c: not c.decided),
        "FedAvg or Local right, away": two_away.share(lambda c: c.named),
        "too close to call, near": two_near.share(lambda c: c.too_close),
        "R² on the right side, away": two_away.share(lambda c: c.sided),
    }


def _panels(family: str, cases: Iterable[JudgedCase]) -> list[Panel]:
    """True and advised gain of every method that federates, over what is swept."""
    by_panel: dict[int, dict[float, list[JudgedCase]]] = {}
    for c in cases:
        by_panel.setdefault(c.case.other, {}).setdefault(c.case.swept, []).append(c)
    axes = TEXTS["axes"][family]
    vertical = [(1.0, "crossing")] if family == LOGISTIC else []
    panels = []
    for other, by_place in by_panel.items():
        # 0 has no place on a logarithmic axis and stands at its left
        x = [max(at, 0.03) if family == LOGISTIC else at for at in by_place]
        lines = []
        methods = [m for m in next(iter(by_place.values()))[0].outcome["truth"] if m != "local"]
        for number, method in enumerate(methods):
            truth = [_mean([c.gain(method) for c in group]) for group in by_place.values()]
            lines.append(Line(f"{method}, truth", x, truth, style=number, points=True))
            advised, low, high = (
                [_mean([c.advised(method)[k] for c in group]) for group in by_place.values()]
                for k in range(3)
            )
            lines.append(Line("", x, advised, low, high, style=number))
        title, log = axes["title"].format(other=other), "x" if vertical else ""
        up = "gain over Local, in ties"
        panels.append(Panel(title, axes["across"], up, lines, log, vertical))
    return panels


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


HEADINGS = TEXTS["headings"]
