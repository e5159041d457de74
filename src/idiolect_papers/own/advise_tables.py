"""Is advice right on tables as sites have them? Messy tables, and their truth by scikit-learn.

Every case is a table: samples, targets, and the site of each. Made-up tables have a large test
sample per site, real ones five folds. The truth is the loss per sample of four kinds of models:
one per site (alone), one for all (pooled), one for all with an intercept of each site (shifted),
and one with a common part and a part of each site (partly pooled: all features, and again the
features times an indicator of the site). texts/
advise-tables.toml has the rule by which an advice is marked.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from idiolect import Federation, Task, advise, models

from ..page import NOT_STATED, Page, Row, page_from_text
from ..runs import Work, train_all
from ..texts import read_text

NAME = "advise-tables"
TEXTS = read_text(NAME)
TEST = 2000  # test samples of a site, where the table is made up
FOLDS = 5
TOGETHER = ("pooled", "shifted", "partly")  # kinds of models that learn together
SHARE = 0.01  # of the loss of a constant answer, or of the models alone: a tie


@dataclass(frozen=True)
class Table:
    """Samples of some sites."""

    x: np.ndarray  # float64[n, features]
    y: np.ndarray  # int64[n] or float64[n]
    site: np.ndarray  # int64[n]

    def at(self, rows: np.ndarray) -> Table:
        return Table(self.x[rows], self.y[rows], self.site[rows])

    @property
    def classes(self) -> int:
        """0: real targets."""
        return int(self.y.max()) + 1 if self.y.dtype.kind == "i" else 0

    def federation(self, name: str) -> Federation:
        """Without test samples; standardised, as a table of an owner is when it is read."""
        x = (self.x - self.x.mean(0)) / np.maximum(self.x.std(0), 1e-9)
        y = self.y if self.classes else ((self.y - self.y.mean()) / self.y.std())[:, None]
        return Federation.from_arrays(
            x.astype(np.float32),
            y if self.classes else y.astype(np.float32),
            self.site,
            classes=self.classes or None,
            valid=0.2,
            test=0.0,
            name=name,
        )


# -- made-up tables --------------------------------------------------------------------------------
@dataclass(frozen=True)
class MadeUp:
    """Sites with logistic rules of their own: how they differ, and how many samples they have."""

    sites: int = 10
    least: int = 60  # samples of a site
    most: int = 60
    features: int = 8
    strength: float = 0.6  # standard deviation of the common coefficients
    rate: float = 0.0  # log-odds of the outcome where all features are 0
    rules: str = "one"  # "one", "opposite", "groups", "own", "none"
    own: float = 0.0  # standard deviation of each site's own part of the coefficients
    shift: float = 0.0  # of the outcome's log-odds, from site to site
    moved: float = 0.0  # of the features' means, from site to site
    flipped: float = 0.0  # share of targets that are wrong
    unmeasured: int = 0  # features that every second site does not measure: 0 there
    huge: int = 0  # samples of the first site, where it is another
    classes: int = 2

    def draw(self, rng: np.random.Generator) -> tuple[Table, Table]:
        """The table, and a large one of the same sites."""
        sizes = rng.integers(self.least, self.most + 1, self.sites)
        sizes[0] = self.huge or sizes[0]
        outputs = 1 if self.classes == 2 else self.classes
        common = rng.normal(0, self.strength, (self.features, outputs))
        groups = rng.normal(0, self.strength, (3, self.features, outputs))
        pairs = []
        for k, size in enumerate(sizes):
            rule = {
                "one": common,
                "opposite": common * (-1) ** k,
                "groups": groups[k % 3],
                "own": rng.normal(0, self.strength, common.shape),
                "none": 0 * common,
            }[self.rules] + rng.normal(0, self.own, common.shape)
            middle = rng.normal(0, self.moved, self.features)
            shift = rng.normal(0, self.shift)
            several = (
                self._samples(rng, n, k, rule, middle, self.rate + shift) for n in (size, TEST)
            )
            pairs.append(tuple(several))
        train, test = ([pair[i] for pair in pairs] for i in (0, 1))
        return _joined(train), _joined(test)

    def _samples(
        self,
        rng: np.random.Generator,
        n: int,
        site: int,
        rule: np.ndarray,
        middle: np.ndarray,
        rate: float,
    ) -> Table:
        x = rng.normal(0, 1, (n, self.features)) + middle
        scores = x @ rule
        if self.classes == 2:
            y = (rng.random(n) < 1 / (1 + np.exp(-(scores[:, 0] + rate)))).astype(np.int64)
        else:
            y = (scores + rng.gumbel(size=scores.shape)).argmax(1).astype(np.int64)
        wrong = rng.random(n) < self.flipped
        y = np.where(wrong, (y + 1) % self.classes, y)
        if site % 2:
            x[:, : self.unmeasured] = 0.0
        return Table(x, y, np.full(n, site))


def _joined(tables: Sequence[Table]) -> Table:
    return Table(
        *(np.concatenate([getattr(t, part) for t in tables]) for part in ("x", "y", "site"))
    )


MADE_UP = {
    "rare": MadeUp(least=100, most=800, rate=-4.6),
    "rare-many": MadeUp(sites=30, least=60, most=300, rate=-4.0),
    "rare-opposite": MadeUp(sites=6, least=1500, most=2000, rate=-4.2, rules="opposite"),
    "rare-none": MadeUp(least=100, most=800, rate=-3.7, rules="none"),
    "one-small": MadeUp(least=30, most=30),
    "one-large": MadeUp(sites=6, least=1500, most=1500),
    "opposite": MadeUp(least=100, most=100, rules="opposite"),
    "opposite-large": MadeUp(sites=6, least=300, most=300, rules="opposite"),
    "groups": MadeUp(sites=12, rules="groups"),
    "none": MadeUp(rules="none"),
    "shifted-labels": MadeUp(least=80, most=80, shift=1.5),
    "one-huge": MadeUp(least=40, most=40, huge=3000),
    "tiny": MadeUp(sites=40, least=15, most=15),
    "own-rules": MadeUp(least=200, most=200, rules="own"),
    "alike": MadeUp(own=0.2),
    "moved": MadeUp(moved=1.0),
    "four-classes": MadeUp(classes=4),
    "two-sites": MadeUp(sites=2, least=80, most=80),
    "unmeasured": MadeUp(least=80, most=80, features=12, unmeasured=4),
    "noisy-labels": MadeUp(least=80, most=80, flipped=0.3),
}


# -- real tables -----------------------------------------------------------------------------------
def _cancer(kind: str, rng: np.random.Generator) -> Table:
    """Breast cancer (569 samples): sites at random, by the size of the cell, or contradictory."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    site = rng.integers(0, 8, len(y))
    if kind == "by size":
        site = np.argsort(np.argsort(x[:, 0])) * 6 // len(y)
    if kind == "flipped":
        y = np.where(site % 2 == 1, 1 - y, y)
    return Table(_standard(x), y.astype(np.int64), site)


def _digits(kind: str, rng: np.random.Generator) -> Table:
    """Handwritten digits: odd or even at random sites; all ten by label."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    keep = rng.permutation(len(y))[:600]
    x, y = x[keep] / 16, y[keep]
    if kind == "odd":
        return Table(x, (y % 2).astype(np.int64), rng.integers(0, 10, len(y)))
    site = (y // 2 + rng.choice([0, 0, 0, 1], len(y))) % 5  # most of a site are of two digits
    return Table(x, y.astype(np.int64), site)


def _wine(rng: np.random.Generator) -> Table:
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    return Table(_standard(x), y.astype(np.int64), rng.integers(0, 6, len(y)))


def _diabetes(kind: str, rng: np.random.Generator) -> Table:
    """Progression of diabetes (442 samples), sites by age or at random; a value, or a class."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x = _standard(x)
    site = np.argsort(np.argsort(x[:, 0] + 1e-9 * rng.random(len(y)))) * 8 // len(y)
    if kind == "values":
        return Table(x, y.astype(np.float64), rng.integers(0, 8, len(y)))
    return Table(x, (y > np.median(y)).astype(np.int64), site)


def _standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / x.std(0)


REAL: dict[str, Callable[[np.random.Generator], Table]] = {
    "cancer": partial(_cancer, "at random"),
    "cancer-size": partial(_cancer, "by size"),
    "cancer-flipped": partial(_cancer, "flipped"),
    "digits-odd": partial(_digits, "odd"),
    "digits-labels": partial(_digits, "by label"),
    "wine": _wine,
    "diabetes": partial(_diabetes, "classes"),
    "diabetes-values": partial(_diabetes, "values"),
}


# -- the truth -------------------------------------------------------------------------------------
def site_losses(train: Table, test: Table, classes: int, cross: int = 4) -> dict[str, np.ndarray]:
    """The loss of every test sample by models alone, pooled, shifted and partly pooled."""
    sites = np.unique(train.site)
    alone = np.full(len(test.y), math.nan)
    for site in sites:
        mine, theirs = train.at(train.site == site), test.at(test.site == site)
        alone[test.site == site] = _loss(mine.x, mine.y, theirs.x, theirs.y, classes, cross)
    return {
        "alone": alone,
        "pooled": _loss(train.x, train.y, test.x, test.y, classes, cross),
        "shifted": _loss(
            _with_intercepts(train, sites),
            train.y,
            _with_intercepts(test, sites),
            test.y,
            classes,
            cross,
        ),
        "partly": _loss(
            _with_sites(train, sites), train.y, _with_sites(test, sites), test.y, classes, cross
        ),
    }


def _with_intercepts(table: Table, sites: np.ndarray) -> np.ndarray:
    """The features and an indicator of every site, so large that it is hardly regularised."""
    return np.concatenate([table.x, 10.0 * (table.site[:, None] == sites)], 1)


def _with_sites(table: Table, sites: np.ndarray) -> np.ndarray:
    """The features and, for every site, an indicator and the features where it is that site."""
    own = np.concatenate([table.x, np.ones((len(table.x), 1))], 1)
    return np.concatenate([table.x, *(own * (table.site == site)[:, None] for site in sites)], 1)


STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # of regularisation, chosen by cross-validation


def _loss(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, classes: int, cross: int
) -> np.ndarray:
    """The loss of each test sample by a linear model of the others."""
    if not classes:
        from sklearn.linear_model import RidgeCV

        model = RidgeCV(alphas=[1 / s for s in (0.001, *STRENGTHS)]).fit(x, y)
        return np.asarray((model.predict(x_test) - y_test) ** 2)
    fold = np.random.default_rng(0).permutation(len(y)) % cross
    held_out = [
        [
            _log_loss(x[fold != k], y[fold != k], x[fold == k], y[fold == k], classes, strength)
            for k in range(min(cross, len(y)))
        ]
        for strength in STRENGTHS
    ]
    means = [np.concatenate(losses).mean() for losses in held_out]
    return _log_loss(x, y, x_test, y_test, classes, STRENGTHS[int(np.argmin(means))])


def _log_loss(
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    classes: int,
    strength: float,
) -> np.ndarray:
    """Of each test sample, by a logistic model with this strength of regularisation."""
    from sklearn.linear_model import LogisticRegression

    counts = np.bincount(y, minlength=classes)
    present = counts > 0
    shares = np.tile(counts / max(len(y), 1), (len(x_test), 1))
    if present.sum() > 1 and len(x_test):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # slow convergence
            model = LogisticRegression(C=strength, max_iter=500).fit(x, y)
        shares[:, present] = model.predict_proba(x_test)
    if not present.all():  # all classes that it has not seen have the share of one sample
        shares *= len(y) / (len(y) + 1)
        shares[:, ~present] = 1 / (len(y) + 1) / (~present).sum()
    return np.asarray(-np.log(np.maximum(shares[np.arange(len(y_test)), y_test], 1e-12)))


def truth(case: str, seed: int) -> tuple[Table, dict[str, Any]]:
    """The table of a case, and what is true of it."""
    rng = np.random.default_rng(seed)
    if case in MADE_UP:
        table, test = MADE_UP[case].draw(rng)
        classes = table.classes
        losses = site_losses(table, test, classes)
        judged = test
    else:
        table = REAL[case](rng)
        classes = table.classes
        judged, losses = _by_folds(table, classes, rng)
    return table, _facts(table, judged, losses, classes)


def _by_folds(
    table: Table, classes: int, rng: np.random.Generator
) -> tuple[Table, dict[str, np.ndarray]]:
    """Each fifth of every site in turn, by models of the rest."""
    place = np.empty(len(table.y), dtype=np.int64)
    for site in np.unique(table.site):
        mine = np.flatnonzero(table.site == site)
        place[mine] = rng.permutation(len(mine)) % FOLDS
    parts, by_kind = [], []
    for fold in range(FOLDS):
        parts.append(table.at(place == fold))
        by_kind.append(site_losses(table.at(place != fold), parts[-1], classes))
    losses = {kind: np.concatenate([b[kind] for b in by_kind]) for kind in by_kind[0]}
    return _joined(parts), losses


def _facts(
    table: Table, judged: Table, losses: dict[str, np.ndarray], classes: int
) -> dict[str, Any]:
    weight = _site_weights(table, judged)
    means = {kind: float(np.average(loss, weights=weight)) for kind, loss in losses.items()}
    if classes:
        shares = np.bincount(table.y, minlength=classes) / len(table.y)
        shares = shares[shares > 0]
        scale = float(-(shares * np.log(shares)).sum())
    else:
        scale = means["alone"]
    facts: dict[str, Any] = {"losses": means, "tie": SHARE * scale, "samples": len(table.y)}
    facts["sites"] = len(np.unique(table.site))
    facts["rarest"] = float(np.bincount(table.y).min() / len(table.y)) if classes else math.nan
    for kind in TOGETHER:
        d = losses["alone"] - losses[kind]
        gain = float(np.average(d, weights=weight))
        spread = math.sqrt(np.average((d - gain) ** 2, weights=weight))
        facts[kind] = {
            "gain": gain,
            "error": spread / math.sqrt(len(d)),  # of the truth
            "interval": 1.96 * spread / math.sqrt(len(table.y)),  # of what the table can show
        }
    return facts


def _site_weights(table: Table, judged: Table) -> np.ndarray:
    """Sites count by their samples in the table, however many test samples they have."""
    own, tested = np.bincount(table.site), np.bincount(judged.site)
    return (own / np.maximum(tested, 1))[judged.site]


# -- the advice ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TableJob(Work):
    """A case and the seed of its table."""

    case: str
    seed: int
    gradients: int = 0  # 0: as by default
    quick_alone: bool = False

    def describe(self) -> str:
        return str(TEXTS["cases"][self.case])

    def train(self) -> dict[str, Any]:
        """What advise says, quick and in full, and the truth."""
        table, facts = truth(self.case, self.seed)
        federation = table.federation(self.case)
        outputs = table.classes or 1
        task = Task(
            partial(models.make, "linear", (table.x.shape[1],), outputs),
            "cross_entropy" if table.classes else "mse",
        )
        advices = {}
        for kind in ("quick", "full"):
            if kind == "full" and self.quick_alone:
                continue
            began = time.process_time()
            advice = advise(
                federation,
                task,
                quick=kind == "quick",
                gradients=self.gradients,
                threads=1,
                progress=False,
            )
            advices[kind] = {
                "choice": advice.choice,
                "gains": {r["label"]: [r["gain"], r["low"], r["high"]] for r in advice.table},
                "tie": advice.tie,
                "p": advice.p,
                "cpu": round(time.process_time() - began, 1),
            }
        return {**facts, "advice": advices}


# -- marks -----------------------------------------------------------------------------------------
RIGHT, WRONG, HONEST, MISSED = "right", "**wrong**", "honestly undecided", "undecided"
VISIBLE = 3.0  # times the interval of what the table can show
SURE = 2.0  # standard errors of the truth


@dataclass(frozen=True)
class MarkedTable:
    """A case, its truth and what advise said."""

    job: TableJob
    outcome: dict[str, Any]

    @property
    def best(self) -> str:
        """The best kind of model that learns together."""
        return max(TOGETHER, key=lambda kind: self.outcome[kind]["gain"])

    @property
    def gain(self) -> float:
        """The true gain of learning together, in ties."""
        return float(self.outcome[self.best]["gain"] / self.outcome["tie"])

    @property
    def visible(self) -> bool:
        """Whether the table can show the true gain."""
        facts = self.outcome[self.best]
        return bool(abs(facts["gain"]) > VISIBLE * facts["interval"])

    def mark(self, kind: str) -> str:
        """By the rule of the page."""
        choice = self.outcome["advice"][kind]["choice"]
        together, pooled = self.outcome[self.best], self.outcome["pooled"]
        if choice == "undecided":
            return MISSED if self.visible else HONEST
        if choice == "local":
            too_much = together["gain"] - SURE * together["error"] > self.outcome["tie"]
            return WRONG if too_much else RIGHT
        facts = pooled if choice == "fedavg" else together
        return WRONG if facts["gain"] + SURE * facts["error"] < 0 else RIGHT

    def row(self) -> Row:
        o = self.outcome
        row = {
            "table": TEXTS["cases"][self.job.case],
            "sites": o["sites"],
            "samples": f"{o['samples']:,}",
            "alone": f"{o['losses']['alone']:.4g}",
            "pooled": f"{o['losses']['pooled']:.4g}",
            "shifted": f"{o['losses']['shifted']:.4g}",
            "partly pooled": f"{o['losses']['partly']:.4g}",
            "true gain, in ties": f"{self.gain:+.1f}",
            "visible": "yes" if self.visible else "no",
        }
        for kind, advice in o["advice"].items():
            row[kind] = f"{advice['choice']}: {self.mark(kind)}"
            row[f"{kind}, CPU s"] = advice["cpu"]
        return row


# -- the page --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TableSize:
    """Which cases, and how many seeds of tables."""

    cases: tuple[str, ...] = (*MADE_UP, *REAL)
    seed: int = 101
    gradients: int = 0

    def jobs(self) -> Iterator[TableJob]:
        for number, case in enumerate(self.cases):
            yield TableJob(case, self.seed + number, self.gradients)


def write(folder: Path, size: TableSize | None = None, workers: int = 2) -> list[Path]:
    """Advise on every table, compare with the truth, and write the page."""
    began = time.monotonic()
    jobs = list((size or TableSize()).jobs())
    results = train_all(jobs, folder, NAME, workers)
    tables = [MarkedTable(job, results[job]) for job in jobs]
    return page_of_tables(tables, time.monotonic() - began).write(folder)


def page_of_tables(tables: Sequence[MarkedTable], seconds: float) -> Page:
    """All that the page says."""
    visible = [t for t in tables if t.visible]
    verdicts: dict[str, Any] = {"all": NOT_STATED}
    facts: dict[str, Any] = {"tables": len(tables), "test": TEST, "visible": len(visible)}
    for kind in ("quick", "full"):
        marks = [t.mark(kind) for t in tables]
        wrong = [t for t, mark in zip(tables, marks, strict=True) if mark == WRONG]
        decided = sum(t.outcome["advice"][kind]["choice"] != "undecided" for t in visible)
        facts[f"{kind}_wrong"] = "; ".join(TEXTS["cases"][t.job.case] for t in wrong) or "none"
        facts[f"{kind}_decided"] = f"{decided} of {len(visible)}"
        facts[f"{kind}_right"] = f"{marks.count(RIGHT)} of {len(tables)}"
        verdicts[f"{kind}_wrong"] = not wrong
        verdicts[f"{kind}_decided"] = decided >= 0.8 * len(visible)
    return page_from_text(
        NAME,
        facts=facts,
        verdicts=verdicts,
        tables={"tables": [t.row() for t in tables]},
        figures={"tables": [{"case": t.job.case, **t.outcome} for t in tables]},
        seconds=seconds,
    )
