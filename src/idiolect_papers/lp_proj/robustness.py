"""The grid of the paper: methods, attacks and federations, and the runs behind its cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from idiolect import Federation, Method, Task, data, interval, make_method, models
from idiolect.study import Setting, Stock

from ..runs import Summary

FORMAT = 2  # of the stored figures: a change in what they mean makes the old ones void
ROUNDS = 200
SEEDS = 2
CLIENTS = 100
EVERY = 20  # rounds between looks at whether the models have collapsed


@dataclass(frozen=True)
class Competitor:
    """A row of the tables: a method, its fields, and the server's rule."""

    method: str
    fields: dict[str, Any]
    rule: str = "mean"  # {f}: the number of malicious clients that the rule is told
    sends: bool = True  # False: no attack reaches its benign clients, they are those of a clean run

    def make(self, dim: int) -> Method:
        """The method; `dim` is that of the subspace, where it has one."""
        own = {"dim": dim} if "dim" in self.fields else {}
        return make_method(self.method, **self.fields | own)


@dataclass(frozen=True)
class Threat:
    """A table of the paper: an attack, and the shares of malicious clients it is run with."""

    attack: str
    shares: tuple[float, ...] = (0.1, 0.2, 0.5, 0.8)


_FEDAVG = {"lr": 0.5, "steps": 1}
_DITTO = {"lam": 0.1, "lr": 0.1, "personal_lr": 0.1, "steps": 5, "personal_steps": 20}
_RSA = {"lam": 0.1, "lr": 0.1, "personal_lr": 0.1, "steps": 20, "server_step": "sum-new"}
_LP_PROJ = {
    "dim": 21,
    "lam": 0.1,
    "lr": 0.1,
    "personal_lr": 0.1,
    "alternations": 1,
    "steps": 20,
    "nu": 1e-10,
}
METHODS = {
    # as many gradients as lp-proj at most
    "Local": Competitor("local", {"lr": 0.1, "steps": 20}, sends=False),
    "Ditto": Competitor("ditto", _DITTO),
    "Global+Mean": Competitor("fedavg", _FEDAVG),
    "Global+Median": Competitor("fedavg", _FEDAVG, "median"),
    "Global+Krum": Competitor("fedavg", _FEDAVG, "krum(f={f})"),
    "RSA": Competitor("rsa", _RSA),
    "lp-proj-1": Competitor("lp-proj-1", _LP_PROJ),
    "lp-proj-2": Competitor("lp-proj-2", _LP_PROJ),
}
ATTACKS = {
    "same-value": Threat("same-value(std=100)"),
    "sign-flip": Threat("sign-flip(std=10)"),
    "gaussian": Threat("gaussian(std=100)"),
    "data-poison": Threat("data-poison(std=20)", (0.02, 0.05, 0.1, 0.2)),
}


@dataclass(frozen=True)
class Place:
    """A federation of the tables, and its model."""

    data: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    dim: int = 21  # of the subspace of lp-proj
    few: tuple[int, int] | None = None  # rounds of methods that train everyone, and of the others
    at_most: int | None = None  # clients

    def load(self, clients: int) -> tuple[Federation, Task]:
        """The data and the model."""
        federation = data.load(self.data, **self.options, clients=self.many(clients))
        shape = tuple(federation.inputs.shape[1:])
        return federation, Task(partial(models.make, self.model, shape, federation.classes))

    def many(self, clients: int) -> int:
        """Clients, where the grid has so many."""
        return min(clients, self.at_most or clients)

    def rounds(self, method: Method, most: int) -> int:
        """Of a method, where the grid has `most`."""
        return most if self.few is None else min(most, self.few[method.traits.trains != "everyone"])


MNIST = "MNIST"
VOLUME = "Synthetic, by volume"  # sizes by a power law: Tables 12 to 15
FEDERATIONS = {
    "Synthetic(0, 0)": Place("synthetic", "linear", {"alpha": 0.0, "beta": 0.0}),
    "Synthetic(1, 1)": Place("synthetic", "linear", {"alpha": 1.0, "beta": 1.0}),
    MNIST: Place("mnist", "mlp", {"classes_per_client": 2}, dim=50, few=(3, 60), at_most=40),
    VOLUME: Place("synthetic", "linear", {"sizes": "power", "minimum": 100}),
}


def heard_per_round(clients: int) -> int:
    """A tenth of the clients, at least one."""
    return max(1, round(0.1 * clients))


def percent(share: float) -> str:
    """A share as the page shows it.

    >>> percent(0.02)
    '2 %'
    """
    return f"{100 * share:.0f} %"


# -- runs ----------------------------------------------------------------------------------------
Key = tuple[str, str, str, float]  # federation, method, attack, share of malicious clients
NO_ATTACK = ("none", 0.0)  # a cell without malicious clients serves the tables of all attacks
Outcome = dict[str, Any]  # what a run, or a clean one in its place, says of the benign clients


def keys(federations: Iterable[str], methods: Sequence[str], attacks: Sequence[str]) -> list[Key]:
    """Every cell of the grid, the clean ones once."""
    attacked = [(attack, share) for attack in attacks for share in ATTACKS[attack].shares]
    return [
        (federation, method, attack, share)
        for federation in federations
        for method in methods
        for attack, share in [NO_ATTACK, *attacked]
    ]


def place_of(federation: str, whole: bool = False) -> Place:
    """A federation, with all clients and rounds where the `whole` grid is wanted."""
    place = FEDERATIONS[federation]
    return replace(place, few=None, at_most=None) if whole else place


def setting(key: Key, rounds: int, clients: int, whole: bool = False) -> Setting:
    """The runs of a cell.

    Those of a method that sends nothing tell who is malicious and have no round: what its benign
    clients do is in the clean run.

    >>> setting(("Synthetic(0, 0)", "RSA", "sign-flip", 0.1), ROUNDS, CLIENTS).label
    'RSA attack=sign-flip 10 % data=Synthetic(0, 0)'
    """
    federation, name, attack, share = key
    competitor, place = METHODS[name], place_of(federation, whole)
    method = competitor.make(place.dim)
    heard = heard_per_round(clients)
    expected = int(heard * share + 1e-9)
    most = max(0, (heard - 3) // 2)  # that Krum can be told: n >= 2 f + 3
    wanted = place.rounds(method, rounds) if competitor.sends or not share else 0
    given = {
        "rounds": wanted,
        "sample": heard,
        "eval_every": min(EVERY, wanted),
        "rule": competitor.rule.format(f=min(expected, most)),
        "attack": ATTACKS[attack].attack if share else "none",
        "malicious": share,
    }
    threat = f"{attack} {percent(share)}" if share else "none"
    return Setting(
        method, given, federation, federation, name, {"attack": threat, "data": federation}
    )


def stocked(federations: Iterable[str], clients: int, whole: bool = False) -> Stock:
    """The data and the models."""
    stock = Stock({}, {})
    for title in federations:
        stock.data[title], stock.tasks[title] = place_of(title, whole).load(clients)
    return stock


def outcomes(found: Mapping[Key, Sequence[Summary]]) -> dict[Key, list[Outcome]]:
    """Of every cell, seed by seed."""
    out = {}
    for key, summaries in found.items():
        federation, name, _, share = key
        if share and not METHODS[name].sends:
            clean = found[federation, name, *NO_ATTACK]
            out[key] = [_untouched(s, c) for s, c in zip(summaries, clean, strict=True)]
        else:
            out[key] = [_outcome(s, clean=not share) for s in summaries]
    return out


def _outcome(summary: Summary, clean: bool) -> Outcome:
    """The final test accuracy of the benign clients."""
    clients = summary["by_client"]
    out = {
        "accuracy": round(summary["accuracy"]["mean"], 6),
        "variance": round(summary["accuracy"]["variance"], 6),
        "collapsed": summary["collapsed"][0],
        "malicious": [k for k, row in enumerate(clients) if row["malicious"]],
    }
    if clean:  # to ask later how the same clients do when nobody is malicious
        out["by_client"] = [round(row["test_accuracy"], 4) for row in clients]
    return out


def _untouched(attacked: Summary, clean: Summary) -> Outcome:
    """The clients that are benign under an attack, in the clean run."""
    malicious = [row["malicious"] for row in attacked["by_client"]]
    benign = [r for r, lies in zip(clean["by_client"], malicious, strict=True) if not lies]
    each = np.array([row["test_accuracy"] for row in benign])
    samples = [row["test_samples"] for row in benign]
    return {
        "accuracy": round(float(np.average(each, weights=samples)), 6),
        "variance": round(float(each.var()), 6),
        "collapsed": clean["collapsed"][0],
        "malicious": [k for k, lies in enumerate(malicious) if lies],
    }


@dataclass(frozen=True)
class Cell:
    """One figure of a table, over seeds."""

    accuracy: float  # mean over seeds
    variance: float  # population variance over benign clients, mean over seeds
    ci95: float | None = None  # half the 95 % interval of the accuracy over seeds
    collapsed: tuple[int, ...] = ()  # for each seed that collapsed, the round from which on
    by_seed: tuple[float, ...] = ()
    same_clients: float | None = None  # the clean accuracy of the clients that are benign here

    @classmethod
    def of(cls, results: Sequence[dict[str, Any]], clean: Sequence[dict[str, Any]] = ()) -> Cell:
        """The cell of the runs of all seeds; `clean` are those without malicious clients."""
        accuracy = [r["accuracy"] for r in results]
        same = None
        if clean:
            pairs = zip(results, clean, strict=True)
            same = _mean([_clean_accuracy(c, set(r["malicious"])) for r, c in pairs])
        return cls(
            accuracy=_mean(accuracy),
            variance=_mean([r["variance"] for r in results]),
            ci95=interval(accuracy),
            collapsed=tuple(r["collapsed"] for r in results if r["collapsed"]),
            by_seed=tuple(accuracy),
            same_clients=same,
        )

    def text(self) -> str:
        """As in the tables.

        >>> Cell(0.9, 0.01).text(), Cell(0.9, 0.01, 0.002).text()
        ('0.900 (0.010)', '0.900 ± 0.002 (0.010)')
        >>> Cell(0.1, 0.01, collapsed=(40, 60), by_seed=(0.1, 0.1)).text()
        '★ round 40'
        >>> Cell(0.1, 0.01, collapsed=(40,), by_seed=(0.1, 0.1, 0.1)).text()
        '★ round 40 (1 of 3 seeds)'
        """
        if self.collapsed:
            fallen = len(self.collapsed)
            seeds = len(self.by_seed)
            some = "" if fallen == seeds else f" ({fallen} of {seeds} seeds)"
            return f"★ round {min(self.collapsed)}{some}"
        spread = "" if self.ci95 is None else f" ± {self.ci95:.3f}"
        return f"{self.accuracy:.3f}{spread} ({self.variance:.3f})"

    def short(self) -> str:
        """The accuracy alone, or ★."""
        return "★" if self.collapsed else f"{self.accuracy:.3f}"


def _clean_accuracy(clean: dict[str, Any], malicious: set[int]) -> float:
    """The mean accuracy, in a clean run, of the clients that are benign in another one."""
    return _mean([a for k, a in enumerate(clean["by_client"]) if k not in malicious])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


Row = dict[float, Cell]  # share of malicious clients (0 = clean) -> cell


@dataclass
class Tables:
    """rows[federation, attack, method]: the cells of one row of one table."""

    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)

    @classmethod
    def of(cls, cells: Mapping[Key, Sequence[Outcome]], attacks: Iterable[str]) -> Tables:
        """The tables of finished runs."""
        out = cls()
        for federation, method in dict.fromkeys((f, m) for f, m, _, _ in cells):
            clean = cells[federation, method, *NO_ATTACK]
            for attack in attacks:
                row = {0.0: Cell.of(clean)}
                for share in ATTACKS[attack].shares:
                    row[share] = Cell.of(cells[federation, method, attack, share], clean)
                out.rows[federation, attack, method] = row
        return out

    def of_method(self, method: str) -> Iterator[tuple[str, str, Row]]:
        """(federation, attack, row) for every row of a method."""
        yield from ((f, a, row) for (f, a, m), row in self.rows.items() if m == method)

    def as_dict(self) -> dict[str, Any]:
        """As robustness.json holds them: federation -> attack -> method -> share -> cell."""
        out: dict[str, Any] = {}
        for (federation, attack, method), row in self.rows.items():
            methods = out.setdefault(federation, {}).setdefault(attack, {})
            methods[method] = {f"{share:g}": vars(cell) for share, cell in row.items()}
        return out

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Tables:
        """The tables of robustness.json."""
        out = cls()
        for federation, attacks in stored.items():
            for attack, methods in attacks.items():
                for method, cells in methods.items():
                    row = {float(share): _cell(fields) for share, fields in cells.items()}
                    out.rows[federation, attack, method] = row
        return out


def _cell(fields: dict[str, Any]) -> Cell:
    lists = {name: tuple(fields[name]) for name in ("collapsed", "by_seed")}
    return Cell(**{**fields, **lists})


# [federation, attack, method] -> accuracy and variance of each cell, clean first; None for a ★
Published = dict[tuple[str, str, str], list[tuple[float, float] | None]]


def read_published() -> Published:
    """The tables as data.

    >>> read_published()["Synthetic(0, 0)", "sign-flip", "lp-proj-2"]
    [(0.887, 0.01), (0.885, 0.01), (0.884, 0.01), None, None]
    """
    out: Published = {}
    federation = attack = ""
    for line in PUBLISHED.strip().splitlines():
        if head := re.fullmatch(r"(.+): (.+)", line):
            federation, attack = head.groups()
            continue
        method, *cells = line.split()
        out[federation, attack, method] = [
            None if c == "*" else (float(c[:4]), float(c[5:9])) for c in cells
        ]
    return out


# Tables 6 to 9 and 12 to 15: accuracy(variance); * = collapsed
PUBLISHED = """
Synthetic(0, 0): same-value
Ditto         .857(.018) .856(.017) .851(.020) .855(.017) .837(.014)
Global+Mean   .772(.044) .558(.150) .485(.161) .462(.169) .446(.166)
Global+Median .519(.140) .558(.129) .604(.121) .434(.156) .471(.155)
Global+Krum   .235(.109) .285(.127) .318(.133) .298(.131) .285(.122)
RSA           .832(.026) .881(.011) .879(.011) .885(.012) .863(.008)
lp-proj-1     .888(.010) .868(.013) .880(.011) .884(.012) .869(.010)
lp-proj-2     .887(.010) .865(.014) .873(.012) .875(.014) .858(.012)
Synthetic(0, 0): sign-flip
Ditto         .857(.018) .853(.017) .850(.017) * *
Global+Mean   .772(.044) .412(.146) .324(.130) * *
Global+Median .519(.140) .421(.131) .425(.139) .192(.087) *
Global+Krum   .280(.133) .304(.139) .308(.157) .281(.134) *
RSA           .832(.026) .829(.025) .834(.022) .881(.012) .848(.011)
lp-proj-1     .888(.010) .884(.011) .885(.010) .885(.010) .863(.010)
lp-proj-2     .887(.010) .885(.010) .884(.010) * *
Synthetic(0, 0): gaussian
Ditto         .857(.018) .651(.052) .674(.056) .722(.045) .710(.047)
Global+Mean   .772(.044) .174(.081) .173(.080) .189(.082) .246(.102)
Global+Median .519(.140) .124(.054) .143(.071) .189(.083) .204(.091)
Global+Krum   .235(.109) .133(.072) .148(.086) .208(.105) .290(.086)
RSA           .832(.026) .845(.019) .851(.018) .868(.017) .837(.015)
lp-proj-1     .888(.010) .876(.013) .880(.011) .885(.011) .862(.009)
lp-proj-2     .887(.010) .838(.023) .846(.020) .861(.018) .844(.011)
Synthetic(0, 0): data-poison
Ditto         .857(.018) .853(.019) .851(.019) .749(.068) .342(.123)
Global+Mean   .772(.044) .484(.163) .304(.134) .257(.129) .141(.059)
Global+Median .519(.140) .539(.141) .552(.130) .322(.118) .435(.133)
Global+Krum   .280(.133) .288(.130) .290(.134) .291(.156) .300(.146)
RSA           .832(.026) .850(.019) .865(.016) .876(.012) .875(.011)
lp-proj-1     .888(.010) .886(.011) .884(.011) .884(.011) .881(.011)
lp-proj-2     .887(.010) .886(.011) .881(.012) .868(.015) .866(.014)
Synthetic(1, 1): same-value
Ditto         .863(.018) .882(.015) .884(.014) .885(.012) .873(.012)
Global+Mean   .785(.051) .481(.168) .440(.175) .387(.171) .477(.147)
Global+Median .525(.142) .606(.124) .655(.122) .428(.163) .484(.166)
Global+Krum   .224(.105) .294(.135) .310(.139) .396(.143) .241(.149)
RSA           .844(.023) .901(.013) .903(.012) .906(.010) .916(.005)
lp-proj-1     .893(.014) .890(.014) .907(.010) .908(.010) .914(.005)
lp-proj-2     .891(.013) .890(.015) .905(.011) .898(.013) .907(.007)
Synthetic(1, 1): sign-flip
Ditto         .863(.018) .879(.015) .884(.013) * *
Global+Mean   .785(.051) .292(.142) .243(.134) * *
Global+Median .525(.142) .455(.140) .436(.169) .168(.092) *
Global+Krum   .269(.134) .287(.142) .326(.141) .372(.155) *
RSA           .844(.023) .856(.023) .863(.020) .905(.010) .920(.004)
lp-proj-1     .893(.014) .905(.011) .909(.010) .905(.009) .918(.005)
lp-proj-2     .891(.013) .902(.013) .908(.011) * *
Synthetic(1, 1): gaussian
Ditto         .863(.018) .694(.060) .741(.051) .762(.032) .795(.024)
Global+Mean   .785(.051) .194(.089) .188(.101) .196(.090) .295(.143)
Global+Median .525(.142) .132(.059) .124(.078) .231(.122) .250(.144)
Global+Krum   .224(.105) .157(.096) .159(.084) .248(.116) .268(.121)
RSA           .844(.023) .886(.014) .887(.014) .885(.015) .902(.006)
lp-proj-1     .893(.014) .898(.013) .910(.011) .905(.011) .916(.005)
lp-proj-2     .891(.013) .868(.020) .887(.016) .878(.013) .893(.008)
Synthetic(1, 1): data-poison
Ditto         .863(.018) .863(.019) .853(.023) .810(.045) .401(.184)
Global+Mean   .785(.051) .432(.156) .253(.124) .208(.111) .146(.090)
Global+Median .525(.142) .534(.151) .554(.144) .274(.132) .373(.152)
Global+Krum   .269(.134) .277(.129) .300(.145) .249(.140) .290(.163)
RSA           .844(.023) .864(.019) .874(.016) .894(.013) .903(.010)
lp-proj-1     .893(.014) .889(.013) .901(.012) .904(.011) .914(.009)
lp-proj-2     .891(.013) .896(.012) .893(.012) .895(.013) .899(.013)
EMNIST: same-value
Ditto         .907(.002) .293(.004) .294(.004) .289(.004) .282(.003)
Global+Mean   .770(.007) .057(.013) .058(.013) .061(.013) .072(.015)
Global+Median .556(.015) .057(.013) .058(.013) .061(.013) .072(.015)
Global+Krum   .504(.032) .057(.013) .058(.013) .061(.013) .072(.015)
RSA           .872(.002) .293(.004) .294(.004) .337(.012) .431(.021)
lp-proj-1     .906(.002) .908(.002) .905(.002) .908(.002) .908(.002)
lp-proj-2     .907(.002) .900(.002) .902(.002) .904(.002) .907(.002)
EMNIST: sign-flip
Ditto         .907(.002) .746(.004) .748(.003) * *
Global+Mean   .770(.007) .057(.013) .072(.012) * *
Global+Median .556(.015) .382(.021) .392(.024) .107(.005) *
Global+Krum   .501(.037) .452(.029) .409(.031) .495(.035) *
RSA           .872(.002) .501(.007) .598(.006) .905(.002) .907(.002)
lp-proj-1     .906(.002) .908(.002) .910(.002) .905(.002) .907(.002)
lp-proj-2     .907(.002) .907(.002) .907(.002) * *
EMNIST: gaussian
Ditto         .907(.002) .649(.004) .673(.004) .681(.006) .703(.006)
Global+Mean   .770(.007) .068(.005) .063(.005) .060(.008) .059(.009)
Global+Median .556(.015) .061(.001) .079(.002) .081(.002) .062(.011)
Global+Krum   .504(.032) .177(.005) .164(.009) .181(.006) .180(.006)
RSA           .872(.002) .782(.003) .786(.003) .820(.002) .844(.003)
lp-proj-1     .906(.002) .899(.002) .903(.002) .905(.002) .907(.002)
lp-proj-2     .907(.002) .862(.002) .862(.002) .881(.002) .883(.002)
EMNIST: data-poison
Ditto         .907(.002) .761(.003) .778(.005) .859(.002) *
Global+Mean   .770(.007) .179(.024) .110(.019) .150(.019) *
Global+Median .556(.015) .549(.013) .564(.015) .433(.012) .419(.011)
Global+Krum   .501(.037) .454(.038) .449(.022) .329(.030) .321(.031)
RSA           .872(.002) .832(.002) .825(.002) .871(.002) .878(.002)
lp-proj-1     .906(.002) .909(.002) .910(.002) .906(.002) .905(.002)
lp-proj-2     .907(.002) .907(.002) .907(.002) .908(.002) .906(.002)
CIFAR: same-value
Ditto         .796(.010) .501(.000) .502(.001) .502(.001) .511(.002)
Global+Mean   .456(.022) .106(.042) .116(.044) .115(.044) .150(.052)
Global+Median .247(.035) .106(.042) .116(.044) .115(.044) .150(.052)
Global+Krum   .246(.038) .106(.042) .116(.044) .115(.044) .150(.052)
RSA           .775(.010) .539(.008) .574(.013) .590(.016) .595(.013)
lp-proj-1     .791(.009) .786(.009) .790(.009) .797(.010) .795(.012)
lp-proj-2     .792(.009) .783(.009) .789(.010) .791(.012) .788(.011)
CIFAR: sign-flip
Ditto         .795(.010) .746(.016) .762(.015) * *
Global+Mean   .456(.022) .106(.042) .128(.029) * *
Global+Median .247(.035) .265(.039) .224(.018) * *
Global+Krum   .246(.038) .240(.038) .290(.019) .200(.059) *
RSA           .778(.009) .646(.010) .613(.013) .788(.010) .791(.010)
lp-proj-1     .790(.009) .795(.010) .793(.009) .801(.010) .788(.011)
lp-proj-2     .792(.009) .788(.009) .786(.010) * *
CIFAR: gaussian
Ditto         .796(.010) .668(.011) .674(.011) .658(.014) .604(.021)
Global+Mean   .456(.022) .139(.010) .151(.038) .146(.035) .153(.033)
Global+Median .247(.035) .112(.011) .136(.024) .159(.034) .144(.009)
Global+Krum   .246(.038) .160(.008) .166(.013) .156(.007) .169(.017)
RSA           .775(.010) .731(.011) .736(.010) .757(.009) .772(.011)
lp-proj-1     .791(.009) .790(.008) .791(.010) .797(.009) .795(.010)
lp-proj-2     .792(.009) .775(.011) .779(.010) .784(.010) .776(.011)
CIFAR: data-poison
Ditto         .795(.010) .750(.016) .749(.015) .739(.009) .765(.011)
Global+Mean   .456(.022) .102(.041) .139(.033) .153(.025) .155(.038)
Global+Median .247(.035) .252(.023) .247(.025) .292(.015) .288(.011)
Global+Krum   .246(.038) .250(.045) .250(.027) .301(.046) .222(.019)
RSA           .778(.009) .719(.011) .753(.010) .739(.013) .778(.011)
lp-proj-1     .790(.009) .795(.010) .793(.008) .795(.010) .801(.010)
lp-proj-2     .792(.009) .794(.009) .794(.008) .786(.009) .789(.009)
MNIST: same-value
Ditto         .986(.000) .529(.011) .516(.009) .958(.005) .939(.005)
Global+Mean   .942(.001) .107(.042) .120(.046) .113(.046) .198(.055)
Global+Median .808(.014) .861(.006) .120(.046) .113(.046) .175(.057)
Global+Krum   .647(.062) .668(.080) .120(.046) .113(.046) .168(.061)
RSA           .981(.001) .980(.000) .981(.001) .984(.000) .985(.000)
lp-proj-1     .982(.000) .982(.000) .982(.000) .984(.000) .987(.000)
lp-proj-2     .982(.000) .983(.001) .982(.000) .984(.000) .989(.000)
MNIST: sign-flip
Ditto         .986(.000) .981(.000) .981(.000) * *
Global+Mean   .942(.001) .188(.057) .296(.061) * *
Global+Median .859(.007) .103(.041) .817(.008) .206(.032) *
Global+Krum   .679(.076) .668(.080) .723(.045) .796(.029) *
RSA           .981(.001) .954(.006) .976(.001) .984(.000) .984(.000)
lp-proj-1     .982(.000) .982(.000) .982(.000) .984(.000) .984(.000)
lp-proj-2     .982(.000) .982(.000) .982(.000) * *
MNIST: gaussian
Ditto         .986(.000) .931(.002) .928(.002) .932(.003) .937(.002)
Global+Mean   .942(.001) .460(.027) .272(.040) .186(.027) .210(.043)
Global+Median .808(.014) .862(.006) .141(.038) .114(.039) .207(.062)
Global+Krum   .647(.062) .669(.062) .770(.012) .778(.013) .821(.013)
RSA           .981(.001) .957(.001) .963(.001) .979(.001) .982(.000)
lp-proj-1     .982(.000) .981(.000) .982(.001) .983(.000) .984(.000)
lp-proj-2     .982(.000) .978(.000) .980(.000) .984(.000) .987(.000)
MNIST: data-poison
Ditto         .986(.000) .983(.000) .982(.000) .982(.001) *
Global+Mean   .942(.001) .832(.007) .712(.025) .627(.047) .514(.028)
Global+Median .859(.007) .860(.006) .862(.006) .857(.007) .839(.006)
Global+Krum   .679(.076) .697(.078) .659(.068) .668(.080) .697(.046)
RSA           .981(.001) .978(.001) .975(.001) .979(.001) .979(.001)
lp-proj-1     .982(.000) .983(.000) .982(.000) .982(.000) .982(.001)
lp-proj-2     .982(.000) .982(.000) .982(.000) .982(.000) .982(.001)
FASHIONMNIST: same-value
Ditto         .977(.002) .605(.020) .611(.018) .630(.016) .615(.013)
Global+Mean   .967(.004) .130(.047) .151(.052) .153(.048) .176(.057)
Global+Median .729(.033) .739(.024) .119(.045) .120(.046) .162(.044)
Global+Krum   .374(.072) .413(.122) .119(.045) .140(.050) .192(.062)
RSA           .960(.004) .685(.033) .767(.036) .775(.022) .827(.018)
lp-proj-1     .975(.002) .973(.002) .980(.001) .976(.002) .976(.002)
lp-proj-2     .974(.002) .971(.003) .979(.001) .975(.002) .975(.002)
FASHIONMNIST: sign-flip
Ditto         .977(.002) .973(.002) .980(.001) * *
Global+Mean   .967(.004) .111(.043) .119(.045) * *
Global+Median .729(.033) .214(.031) .537(.038) * *
Global+Krum   .374(.072) .430(.069) .511(.107) .728(.065) *
RSA           .960(.004) .891(.021) .930(.011) .974(.002) .977(.002)
lp-proj-1     .975(.002) .975(.002) .981(.001) .976(.001) .977(.002)
lp-proj-2     .974(.002) .974(.002) .981(.001) * *
FASHIONMNIST: gaussian
Ditto         .977(.002) .886(.015) .880(.014) .873(.017) .895(.007)
Global+Mean   .967(.004) .167(.041) .165(.040) .170(.050) .174(.034)
Global+Median .729(.033) .650(.046) .346(.018) .192(.035) .192(.051)
Global+Krum   .374(.072) .437(.117) .468(.067) .494(.060) .362(.012)
RSA           .960(.004) .947(.007) .959(.002) .964(.002) .969(.002)
lp-proj-1     .975(.002) .973(.002) .978(.001) .977(.001) .974(.002)
lp-proj-2     .974(.002) .964(.003) .973(.001) .968(.002) .972(.002)
FASHIONMNIST: data-poison
Ditto         .977(.002) .972(.002) .973(.002) .964(.004) *
Global+Mean   .967(.004) .208(.070) .181(.070) .161(.055) *
Global+Median .729(.033) .739(.036) .720(.025) .721(.029) .840(.037)
Global+Krum   .374(.072) .480(.082) .488(.100) .401(.072) .581(.126)
RSA           .960(.004) .969(.003) .959(.004) .965(.003) .976(.002)
lp-proj-1     .975(.002) .974(.002) .973(.002) .974(.002) .980(.001)
lp-proj-2     .974(.002) .973(.002) .973(.002) .975(.002) .981(.001)
Synthetic, by volume: same-value
Ditto         .857(.024) .860(.021) .860(.021) .837(.019) .846(.016)
Global+Mean   .752(.069) .659(.145) .594(.154) .572(.144) .633(.126)
Global+Median .640(.117) .667(.125) .685(.122) .623(.130) .673(.147)
Global+Krum   .426(.132) .375(.121) .439(.097) .481(.095) .431(.082)
RSA           .839(.031) .919(.013) .913(.015) .906(.012) .910(.007)
lp-proj-1     .926(.011) .913(.014) .924(.012) .916(.009) .924(.006)
lp-proj-2     .924(.011) .885(.016) .903(.014) .883(.011) .892(.010)
Synthetic, by volume: sign-flip
Ditto         .857(.024) .860(.023) .861(.021) * *
Global+Mean   .752(.069) .587(.146) .429(.120) * *
Global+Median .640(.117) .605(.138) .568(.128) .115(.020) *
Global+Krum   .426(.132) .373(.104) .301(.125) .564(.122) *
RSA           .839(.031) .825(.035) .830(.036) .913(.011) .921(.007)
lp-proj-1     .926(.011) .926(.013) .926(.012) .916(.009) .921(.007)
lp-proj-2     .924(.011) .923(.013) .923(.012) * *
Synthetic, by volume: gaussian
Ditto         .857(.024) .707(.073) .679(.058) .693(.070) .703(.058)
Global+Mean   .752(.069) .331(.055) .349(.054) .436(.077) .598(.103)
Global+Median .640(.117) .254(.031) .143(.063) .371(.057) .573(.056)
Global+Krum   .426(.132) .128(.093) .158(.043) .258(.082) .465(.076)
RSA           .839(.031) .851(.023) .866(.020) .848(.014) .875(.012)
lp-proj-1     .926(.011) .916(.012) .919(.013) .917(.011) .926(.007)
lp-proj-2     .924(.011) .844(.028) .871(.019) .846(.020) .855(.020)
Synthetic, by volume: data-poison
Ditto         .857(.024) .853(.020) .846(.022) .761(.049) .322(.131)
Global+Mean   .752(.069) .618(.160) .398(.104) .234(.119) .275(.054)
Global+Median .640(.117) .652(.122) .661(.122) .427(.128) .443(.128)
Global+Krum   .426(.132) .411(.126) .494(.117) .444(.145) .442(.151)
RSA           .839(.031) .848(.023) .871(.026) .901(.015) .911(.013)
lp-proj-1     .926(.011) .916(.012) .919(.013) .922(.012) .915(.013)
lp-proj-2     .924(.011) .923(.012) .902(.012) .883(.017) .876(.017)
"""
