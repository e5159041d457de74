"""What the server could learn: docs/leakage.md, its picture, and its section of docs/trust.md.

All words that say what came out follow from the figures by the rules below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch

from idiolect import interval

from ..experiments import unknown
from ..page import Row, table, write_page
from ..panels import new_picture
from ..runs import train_all
from ..texts import read_text
from .inversion import PRIORS, SHOWN, SPAN, Effort, InversionJob, InversionSize
from .leakage import INVERTED, PROTECTIONS, network, pictures
from .membership import ATTACKS, LISTENED, PERSONAL, MembershipJob, MembershipSize

NAME = "leakage"
TEXTS = read_text(NAME)
WORDS = TEXTS["words"]
SIZES = {
    "quick": (InversionSize(), MembershipSize(seeds=3)),
    "full": (
        InversionSize(
            targets=100,
            groups=4,
            iterations=2000,
            slow_iterations=500,
            slow_sums=True,
        ),
        MembershipSize(rounds=20, seeds=10, shadows=16),
    ),
}
RECOVERED, RECOGNISED, NEITHER = "recovered", "recognised", "neither"
LEVEL = 0.001  # of the tests behind these words
ONE_SIDED = 0.025  # of the test whether members are told from others
HALF = 3.0  # dB: half the squared error
Cells = dict[str, dict[str, dict[str, Row]]]  # batch -> method -> protection -> figures


# -- figures ---------------------------------------------------------------------------------------
def inversion_jobs(size: InversionSize) -> list[InversionJob]:
    """Every method, batch size, number of clients in a sum and prior."""
    sums = sorted({protection.clients for protection in PROTECTIONS.values()})
    jobs = [
        InversionJob(method, batch, clients, prior, size)
        for method in INVERTED
        for batch in (1, size.batch)
        for clients in sums
        for prior in PRIORS
    ]
    return [job for job in jobs if job.clients == 1 or size.slow_sums or not job.slow]


def membership_jobs(size: MembershipSize) -> list[MembershipJob]:
    noises = sorted({protection.noise for protection in PROTECTIONS.values()})
    return [
        MembershipJob(method, noise, seed, size)
        for method in LISTENED
        for noise in noises
        for seed in range(size.seeds)
    ]


def cell(by_prior: Mapping[str, Row]) -> Row:
    """The figures of both attacks on the same messages."""
    return {
        "blind": _mean(next(iter(by_prior.values()))["blind"]),
        "originals": len(next(iter(by_prior.values()))["psnr"]),
        **{prior: attack_figures(columns) for prior, columns in by_prior.items()},
    }


def attack_figures(columns: Row) -> Row:
    """Of one attack, over the originals that it was after."""
    rows = zip(columns["psnr"], columns["blind"], columns["elsewhere"], strict=True)
    gains = [psnr - max(blind, elsewhere) for psnr, blind, elsewhere in rows]
    return {
        "psnr": _mean(columns["psnr"]),
        "half": _half(columns["psnr"]),
        "elsewhere": _mean(columns["elsewhere"]),
        "gain": _mean(gains),
        "gain_p": float(f"{gain_p(gains):.2g}"),
        "mse": _mean(columns["mse"], 5),
        "picked": sum(columns["picked"]),
        "of": len(gains),
    }


def verdict(cell: Row, line_up: int) -> str:
    """What the attacks on a message come to.

    `line_up`: how many pictures an original is told from, itself among them. An attack counts where
    it is no luck: where guesses are nearer to originals than a blind guess is and than the same
    guesses are to other pictures of the class, or where originals are picked out of a line-up more
    often than by chance. Then they are recovered where guesses are nearer by `HALF` dB in the mean,
    and else recognised.
    """
    from scipy.stats import binomtest

    words = {NEITHER}
    for attack in (cell[prior] for prior in PRIORS if prior in cell):
        nearer = attack["gain"] > 0 and attack["gain_p"] < LEVEL
        chance = binomtest(attack["picked"], attack["of"], 1 / line_up, "greater")
        if nearer or chance.pvalue < LEVEL:
            words.add(RECOVERED if attack["gain"] >= HALF else RECOGNISED)
    return next(word for word in (RECOVERED, RECOGNISED, NEITHER) if word in words)


def gain_p(gains: Sequence[float]) -> float:
    """One-sided, of a t test that the mean is not above 0; 1 for a single gain.

    >>> round(gain_p([1.0, 2.0, 3.0]), 3), gain_p([5.0])
    (0.037, 1.0)
    """
    from scipy.stats import ttest_1samp

    if len(gains) < 2:
        return 1.0
    return float(ttest_1samp(gains, 0.0, alternative="greater").pvalue)


def _mean(values: Sequence[float], digits: int = 2) -> float:
    return round(sum(values) / len(values), digits)


def _half(values: Sequence[float]) -> float | None:
    half = interval(list(values))
    return None if half is None else round(half, 2)


def inversion_figures(results: Mapping[InversionJob, Row], size: InversionSize) -> Cells:
    """All cells, of what was run."""
    columns: dict[tuple[int, str, str], dict[str, Row]] = {}
    for job, by_protection in results.items():
        for protection, own in by_protection.items():
            columns.setdefault((job.batch, job.method, protection), {})[job.prior] = own
    cells: Cells = {}
    for batch in (1, size.batch):
        cells[str(batch)] = {
            method: {
                protection: cell(columns[batch, method, protection])
                for protection in PROTECTIONS
                if (batch, method, protection) in columns
            }
            for method in INVERTED
        }
    return cells


def membership_figures(results: Mapping[MembershipJob, Row]) -> Row:
    """method -> protection -> attack -> figure -> one for each seed."""
    figures: Row = {}
    for job, by_protection in results.items():
        for protection, by_attack in by_protection.items():
            place = figures.setdefault(job.method, {}).setdefault(protection, {})
            for attack, advantage in by_attack.items():
                for name, value in advantage.items():
                    place.setdefault(attack, {}).setdefault(name, []).append(round(value, 4))
    return figures


# -- words -----------------------------------------------------------------------------------------
def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["a", "b", "c"]), listed(["a"]), listed([])
    ('a, b and c', 'a', 'no method')
    """
    if len(names) < 2:
        return "".join(names) or "no method"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def by_verdict(stored: Row, batch: str, protection: str) -> dict[str, list[str]]:
    """The methods of each word, of those that were run."""
    names: dict[str, list[str]] = {v: [] for v in (RECOVERED, RECOGNISED, NEITHER)}
    for method, by_protection in stored["inversion"][batch].items():
        if protection in by_protection:
            names[verdict(by_protection[protection], _line_up(stored))].append(method)
    return names


def _line_up(stored: Row) -> int:
    return int(stored["sizes"]["inversion"]["others"]) + 1


def inversion_words(stored: Row) -> list[str]:
    """A sentence for each batch size and protection."""
    lines = []
    for batch, protection in product(stored["inversion"], PROTECTIONS):
        names = by_verdict(stored, batch, protection)
        parts = [WORDS[v].format(names=_code(names[v])) for v in names if names[v]]
        if not names[RECOVERED] and not names[RECOGNISED]:
            parts = [WORDS["nothing"]]
        subject = WORDS["one" if batch == "1" else "many"].format(batch=batch)
        lines.append(f"- {subject}, {_title(protection)}: {'; '.join(parts)}.")
    return lines


def _title(protection: str) -> str:
    return str(TEXTS["protections"][protection])


@dataclass(frozen=True)
class Best:
    """The strongest membership attack on a method under a protection."""

    attack: str
    auc: float
    auc_half: float | None
    tpr: float
    tpr_half: float | None
    tells: bool  # whether one of the attacks is more than a guess

    def text(self, figure: str) -> str:
        """For a table: an area, or a share in percent.

        >>> Best("LiRA", 0.8125, 0.011, 0.0871, None, True).text("auc")
        '**0.81 ± 0.01**'
        >>> Best("LiRA", 0.51, 0.011, 0.0871, 0.01, False).text("tpr")
        '8.7 ± 1.0'
        """
        value, half = getattr(self, figure), getattr(self, f"{figure}_half")
        if figure == "tpr":
            return f"{100 * value:.1f}" + (f" ± {100 * half:.1f}" if half is not None else "")
        text = f"{value:.2f}" + (f" ± {half:.2f}" if half is not None else "")
        return f"**{text}**" if self.tells else text


def best(by_attack: Mapping[str, Mapping[str, Sequence[float]]]) -> Best:
    """The attack with the largest mean area.

    It tells members from others where the area of one attack is above 0.5 by a t test over seeds,
    at a level that allows for the number of attacks.
    """

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    name = max(by_attack, key=lambda attack: mean(by_attack[attack]["auc"]))
    auc, tpr = (list(by_attack[name][figure]) for figure in ("auc", "tpr"))
    level = ONE_SIDED / len(by_attack)
    tells = any(gain_p([a - 0.5 for a in own["auc"]]) < level for own in by_attack.values())
    return Best(name, mean(auc), interval(auc), mean(tpr), interval(tpr), tells)


def membership_words(stored: Row) -> list[str]:
    """A sentence for each protection: where members are told from others, and how well."""
    lines = []
    for protection in PROTECTIONS:
        several = {m: best(own[protection]) for m, own in stored["membership"].items()}
        telling = [f"`{m}` ({b.auc:.2f})" for m, b in several.items() if b.tells]
        silent = [f"`{m}`" for m, b in several.items() if not b.tells]
        parts = []
        if telling:
            parts.append(WORDS["tells"].format(names=listed(telling)))
        if silent:
            parts.append(WORDS["silent"].format(names=listed(silent)))
        lines.append(f"- {_title(protection).capitalize()}: {'; '.join(parts)}.")
    return lines


# -- tables ----------------------------------------------------------------------------------------
def inversion_rows(stored: Row, batch: str) -> list[Row]:
    return [
        {"message of": method}
        | {
            _title(p): cell_text(own[p], _line_up(stored)) if p in own else "not run"
            for p in PROTECTIONS
        }
        for method, own in stored["inversion"][batch].items()
    ]


def cell_text(figures: Row, line_up: int) -> str:
    """The better PSNR of the two attacks, and the larger share that is picked out."""
    psnr = max(figures[prior]["psnr"] for prior in PRIORS)
    picked = max(figures[prior]["picked"] for prior in PRIORS)
    text = f"{psnr:.1f} dB, {picked}/{figures['originals']}"
    return {RECOVERED: f"**{text}**", RECOGNISED: f"*{text}*"}.get(verdict(figures, line_up), text)


def membership_rows(stored: Row, figure: str) -> list[Row]:
    return [
        {"message of": method} | {_title(p): best(own[p]).text(figure) for p in PROTECTIONS}
        for method, own in stored["membership"].items()
    ]


def attack_rows(stored: Row) -> list[Row]:
    """Each attack by itself on messages without protection, and on what is not sent."""
    rows = []
    for method, own in stored["membership"].items():
        row: Row = {"message of": method}
        for attack in ATTACKS:
            row[attack] = best({attack: own["none"][attack]}).text("auc")
        row[PERSONAL] = best(own[PERSONAL]).text("auc")
        rows.append(row)
    return rows


# -- pages -----------------------------------------------------------------------------------------
def page_of(stored: Row) -> str:
    """leakage.md."""
    inversion, membership = stored["sizes"]["inversion"], stored["sizes"]["membership"]
    facts = {
        **{f"i_{k}": v for k, v in inversion.items()},
        **{f"m_{k}": v for k, v in membership.items()},
        "scale": stored["scale"],
        "line_up": inversion["others"] + 1,
        "blind": stored["inversion"]["1"][next(iter(INVERTED))]["none"]["blind"],
        "blind_many": stored["inversion"][str(inversion["batch"])][next(iter(INVERTED))]["none"][
            "blind"
        ],
        "d": f"{stored['d']:,}",
        "level": LEVEL,
        "one_sided": ONE_SIDED,
        "components": Effort.components,
        "span": SPAN,
    }
    lines = [TEXTS["head"].format(**facts)]
    lines += ["## What came out", "", *inversion_words(stored), "", *membership_words(stored), ""]
    lines += [TEXTS["picture"].format(**facts)]
    for batch in stored["inversion"]:
        heading = TEXTS["one"] if batch == "1" else TEXTS["many"]
        lines += [heading.format(**facts), *table(inversion_rows(stored, batch)), ""]
    lines += [TEXTS["areas"].format(**facts), *table(membership_rows(stored, "auc")), ""]
    lines += [TEXTS["shares"].format(**facts), *table(membership_rows(stored, "tpr")), ""]
    lines += [TEXTS["attacks"].format(**facts), *table(attack_rows(stored)), ""]
    lines += [TEXTS["limits"].format(**facts)]
    return "\n".join(lines)


def section(stored: Row) -> str:
    """Of trust.md: the same in short."""
    rows = []
    for method, own in stored["membership"].items():
        inverted = next(m for m in (method, f"{method}, 1 step") if m in INVERTED)
        cells = stored["inversion"]["1"][inverted]
        row: Row = {"message of": method}
        for protection in SHORT:
            tells = best(own[protection])
            outcome = verdict(cells[protection], _line_up(stored))
            row[_title(protection)] = f"{WORDS['short'][outcome]}; {tells.text('auc')}"
        rows.append(row)
    words = TEXTS["section"].format(**stored["sizes"]["inversion"], scale=stored["scale"])
    return "\n".join(
        [
            HEADING,
            "",
            words,
            *table(rows),
            "",
            *[f"- {sentence}" for sentence in in_short(stored)],
            "",
        ]
    )


def in_short(stored: Row) -> list[str]:
    """What follows from the figures, in sentences."""
    plain = by_verdict(stored, "1", "none")
    sentences = []
    for v in (RECOVERED, RECOGNISED, NEITHER):
        if plain[v]:
            sentences.append(WORDS[f"short_{v}"].format(names=_code(plain[v])))
    areas = {
        p: {m: best(own[p]).auc for m, own in stored["membership"].items()} for p in PROTECTIONS
    }
    falls = [areas[p] for p in ("none", "sum of 10", "sum of 100")]
    if all(a[m] > b[m] for a, b in pairwise(falls) for m in stored["membership"]):
        low, high = (f"{f(falls[-1].values()):.2f}" for f in (min, max))
        sentences.append(WORDS["sums"].format(low=low, high=high))
    weak = by_verdict(stored, "1", "noise 0.1")
    seen = weak[RECOVERED] + weak[RECOGNISED]
    sentences.append(WORDS["share" if seen else "no_share"].format(names=_code(seen)))
    return sentences


def _code(names: Sequence[str]) -> str:
    return listed([f"`{name}`" for name in names])


# the protections of the short table
SHORT = ("none", "noise 0.1", "noise 1", "sum of 10", "sum of 100, noise 0.1")
HEADING = "## What the server could learn"


def with_section(page: str, own: str) -> str:
    """A page with its section written anew, or at its end.

    >>> page = f"# A\\n\\n{HEADING}\\n\\nold\\n\\n## B\\n"
    >>> print(with_section(page, "## New\\n"))
    # A
    <BLANKLINE>
    ## New
    <BLANKLINE>
    ## B
    <BLANKLINE>
    """
    before, heading, after = page.partition(HEADING)
    if not heading:
        return page.rstrip("\n") + "\n\n" + own
    rest = re.search(r"^## ", after, flags=re.MULTILINE)
    return before + own + ("\n" + after[rest.start() :] if rest else "")


# -- the picture -----------------------------------------------------------------------------------
def picture(
    results: Mapping[InversionJob, Row], size: InversionSize, cells: Cells, path: Path
) -> Path:
    """Originals, a blind guess, and what was made of each method's message."""
    shown: dict[tuple[int, str, str, str], Any] = {
        (job.batch, job.method, protection, job.prior): own["shown"]
        for job, by_protection in results.items()
        for protection, own in by_protection.items()
    }
    everything = pictures(size.data, size.seed)
    originals = everything.inputs[:SHOWN]
    public = everything[size.targets : size.targets + size.public]
    blind = public.means()[everything.targets[:SHOWN]]
    groups = [(1, p) for p in PROTECTIONS] + [(size.batch, "none")]
    lines = ["original", "blind guess", *INVERTED]
    figure = new_picture(1.9 + 0.36 * SHOWN * len(groups), 0.6 + 0.42 * len(lines))
    axes = figure.subplots(len(lines), len(groups), squeeze=False)
    for row, line in enumerate(lines):
        for column, (batch, protection) in enumerate(groups):
            pane = axes[row][column]
            pane.set_xticks([])
            pane.set_yticks([])
            pane.spines[:].set_visible(False)
            if row == 0:
                title = protection if batch == 1 else f"batch of {batch}, {protection}"
                pane.set_title(title.replace("none", "no protection"), fontsize=7)
            if column == 0:
                pane.set_ylabel(line, rotation=0, ha="right", va="center", fontsize=7)
            if line == "original":
                several = originals
            elif line == "blind guess":
                several = blind
            elif protection in cells[str(batch)][line]:
                own = cells[str(batch)][line][protection]
                prior = max(PRIORS, key=lambda p, own=own: own[p]["psnr"])  # type: ignore[misc]
                numbers = shown[batch, line, protection, prior]
                several = torch.tensor(numbers) / 255
            else:
                pane.text(0.5, 0.5, "not run", ha="center", va="center", fontsize=6)
                continue
            strip = torch.cat([p[0] for p in several], dim=-1)
            pane.imshow(strip.numpy(), cmap="gray_r", vmin=0, vmax=1)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path


# -- the command -----------------------------------------------------------------------------------
def write(
    folder: Path,
    scale: str = "quick",
    sizes: tuple[InversionSize, MembershipSize] | None = None,
    workers: int = 1,
) -> list[Path]:
    """Run what is missing and write leakage.md, leakage.json, leakage.png, and trust.md's section.

    The quick scale takes some six minutes on one core.
    """
    if scale not in SIZES:
        raise unknown(scale, SIZES, "scale")
    new_picture(1, 1)  # refuse now, not after all the runs
    size, listening = sizes or SIZES[scale]
    inversions, listenings = inversion_jobs(size), membership_jobs(listening)
    results = train_all([inversions, listenings], folder, f"{NAME}-{scale}", workers)
    inverted = {job: results[job] for job in inversions}
    cells = inversion_figures(inverted, size)
    everything = pictures(size.data, size.seed)
    shape = tuple(everything.inputs.shape[1:])
    stored = {
        "scale": scale,
        "d": network(shape, everything.classes, size.hidden, size.seed).d,
        "sizes": {"inversion": asdict(size), "membership": asdict(listening)},
        "inversion": cells,
        "membership": membership_figures({job: results[job] for job in listenings}),
    }
    paths = write_page(folder, NAME, page_of(stored), stored)
    paths.append(picture(inverted, size, cells, folder / f"{NAME}.png"))
    trust = folder / "trust.md"
    if trust.exists():
        page = trust.read_text("utf-8")
        trust.write_text(with_section(page, section(stored)), "utf-8")
        paths.append(trust)
    return paths
