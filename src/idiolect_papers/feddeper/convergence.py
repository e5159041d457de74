"""Figures 4 to 6 of the FedDeper paper: the training loss of the global model by rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from ..page import Claim, Page, Row
from ..panels import Line, Panel
from .runs import (
    CASES,
    CHOSEN,
    PRINTED,
    SIZES,
    Case,
    Outcome,
    Size,
    counted,
    methods,
    outcome,
    too_few,
    why,
)
from .table1 import BASELINES

LOSS = "train_loss"
NEVER = "never"
WIDE = 10  # losses over a range of this factor are drawn on a logarithmic axis
DIVERGED = 1.5  # times the lowest loss of the run
NEAR = 0.1  # losses that differ by less than a tenth are equally good


def write_figure4(folder: Path, scale: str) -> list[Path]:
    """The runs of Figures 4 to 6 are those of Table 1."""
    return page(4, "MNIST", 10, folder, scale, SIZES[scale]).write(folder)


def write_figure5(folder: Path, scale: str) -> list[Path]:
    return page(5, "MNIST", 100, folder, scale, SIZES[scale]).write(folder)


def write_figure6(folder: Path, scale: str) -> list[Path]:
    return page(6, "CIFAR-10", 100, folder, scale, SIZES[scale]).write(folder)


def page(
    number: int, data: str, clients: int, folder: Path, scale: str, size: Size, jobs: int = 0
) -> Page:
    """Run what is missing, and draw the panels of a figure."""
    cases = [c for c in CASES if (c.data, c.clients) == (data, clients)]
    results = outcome(folder, scale, size, cases, jobs)
    words = too_few(results, results.cases)
    early = f" Left out of what is compared: {words}." if words else ""
    missing_cases = [str(c) for c in cases if c not in results.cases]
    return Page(
        f"feddeper-figure{number}",
        f"FedDeper, Figure {number}: training loss by rounds ({data}, n = {clients})",
        scale=size.said,
        printed=PRINTED,
        chosen=CHOSEN + f" {MEASURED}",
        claims=_claims(results, clients),
        opening=OPENING
        + (f" Not run at this scale: {'; '.join(missing_cases)}." if missing_cases else "")
        + early,
        tables={f"{case}:": _rows(results, case) for case in results.cases},
        pictures={
            f"Training loss of the global model, {data}, n = {clients}": [
                _panel(results, case) for case in results.cases
            ]
        },
        figures={
            str(case): {
                m: {"round": results.rounds(case, m), LOSS: results.curve(case, m, LOSS)}
                for m in methods(clients)
            }
            for case in results.cases
        },
        seconds=results.seconds,
    )


def _panel(results: Outcome, case: Case) -> Panel:
    lines = [
        Line(m, results.rounds(case, m), results.curve(case, m, LOSS))
        for m in methods(case.clients)
    ]
    values = [y for line in lines for y in line.y if math.isfinite(y)]
    log = "y" if max(values) > WIDE * min(values) else ""
    return Panel(f"{case.model}, m = {case.heard}", "rounds", "training loss", lines, log)


def _rows(results: Outcome, case: Case) -> list[Row]:
    target = reachable(results, case)
    rows = []
    for m in methods(case.clients):
        loss = results.curve(case, m, LOSS)
        rows.append(
            {
                "method": m,
                "training loss at the end": loss[-1],
                "lowest": min(loss),
                f"rounds to {target:.3g}": first_below(results, case, m, target),
                "mean rise between two evaluations": rises(loss),
                "MB sent": sum(results.summaries[case, m][0]["bytes"].values()) / 1e6,
            }
        )
    return rows


# -- what the paper says --------------------------------------------------------------------------
def _claims(results: Outcome, clients: int) -> list[Claim]:
    if not results.learnt:
        return []
    return _moderate(results) if clients == 10 else _massive(results)


def _lowest(results: Outcome) -> Claim:
    shares = []
    for case in results.learnt:
        ours = results.curve(case, "Deper", LOSS)
        others = [results.curve(case, m, LOSS) for m in BASELINES]
        lowest = sum(a <= min(b) for a, *b in zip(ours, *others, strict=True))
        shares.append((case, lowest, len(ours)))
    return counted(
        "FedDeper has the lowest training loss in all aggregation rounds, below almost all "
        "baselines",
        _listed((c, f"lowest in {k} of {n} evaluated rounds") for c, k, n in shares),
        sum(k > 0.75 * n for _, k, n in shares),
        len(shares),
        _reason(results),
    )


def _moderate(results: Outcome) -> list[Claim]:
    """Figure 4: many of the clients are heard."""
    ratios = [(c, _last(results, c, "Deper") / _last(results, c, "SCAF")) for c in results.learnt]
    byte_ratios = [
        sum(results.summaries[c, "Deper"][0]["bytes"].values())
        / sum(results.summaries[c, "SCAF"][0]["bytes"].values())
        for c in results.learnt
    ]
    return [
        _lowest(results),
        counted(
            "FedDeper performs equally well as SCAFFOLD, and slightly better in one of four panels",
            _listed((c, f"{r:.2f} times SCAFFOLD's loss") for c, r in ratios),
            sum(r <= 1 + NEAR for _, r in ratios),
            len(ratios),
            _reason(results),
        ),
        counted(
            "with only half of SCAFFOLD's communication",
            f"{min(byte_ratios):.3f} to {max(byte_ratios):.3f} of its bytes",
            sum(abs(s - 0.5) < 0.01 for s in byte_ratios),
            len(byte_ratios),
        ),
    ]


def _massive(results: Outcome) -> list[Claim]:
    """Figures 5 and 6: few of the clients are heard."""
    faster, stable = [], []
    for case in results.learnt:
        target = reachable(results, case)
        needed = {m: first_below(results, case, m, target) for m in ("Deper", *BASELINES)}
        best = min(needed[m] or math.inf for m in BASELINES)
        faster.append((case, (needed["Deper"] or math.inf) <= best, needed))
        rise = {m: rises(results.curve(case, m, LOSS)) for m in ("Deper", "SCAF")}
        stable.append((case, rise["Deper"] < rise["SCAF"], rise))
    return [
        _lowest(results),
        counted(
            "FedDeper converges faster than all baselines",
            "rounds to the lowest loss that all methods reach: "
            + _listed(
                (c, ", ".join(f"{m} {k or NEVER}" for m, k in needed.items()))
                for c, _, needed in faster
            ),
            sum(ok for _, ok, _ in faster),
            len(faster),
            _reason(results),
        ),
        counted(
            "and is much stabler than SCAFFOLD",
            "mean rise of the loss between two evaluations: "
            + _listed((c, f"{r['Deper']:.3g} against {r['SCAF']:.3g}") for c, _, r in stable),
            sum(ok for _, ok, _ in stable),
            len(stable),
            _reason(results),
        ),
    ]


def _reason(results: Outcome) -> str:
    """Why something differs: FedDeper diverges, or it is not found."""
    turned = {}
    for case in results.learnt:
        loss = results.curve(case, "Deper", LOSS)
        if not loss[-1] < DIVERGED * min(loss):
            turned[case] = results.rounds(case, "Deper")[loss.index(min(loss))]
    if not turned:
        return why(results, results.learnt)
    return (
        "with the published ϱ FedDeper's loss rises again ("
        + _listed((c, f"after round {k}") for c, k in turned.items())
        + "), as on other data where clients are rarely heard ([fidelity](../fidelity.md))"
    )


# -- figures --------------------------------------------------------------------------------------
def reachable(results: Outcome, case: Case) -> float:
    """A loss that every method reaches: the highest of the lowest ones."""
    lowest = [min(results.curve(case, m, LOSS)) for m in methods(case.clients)]
    return max((x for x in lowest if math.isfinite(x)), default=math.nan)


def first_below(results: Outcome, case: Case, method: str, target: float) -> int | None:
    """The first evaluated round with a loss as low as this."""
    pairs = zip(results.rounds(case, method), results.curve(case, method, LOSS), strict=True)
    return next((k for k, loss in pairs if loss <= target), None)


def rises(loss: Sequence[float]) -> float:
    """The mean over evaluations of what the loss rose since the one before."""
    ups = [max(0.0, b - a) for a, b in pairwise(loss)]
    return sum(ups) / len(ups) if ups else 0.0


def _last(results: Outcome, case: Case, method: str) -> float:
    return results.curve(case, method, LOSS)[-1]


def _listed(of_cases: Iterable[tuple[Case, str]]) -> str:
    return "; ".join(f"{c.model}, m = {c.heard}: {words}" for c, words in of_cases)


OPENING = """\
The paper prints no numbers for this figure: what it says of it is compared. The loss is that of the
global model."""
MEASURED = """\
The training loss is measured on 5,000 of the training images, evenly spaced over all clients (all
of them where there are fewer). Statements are about cases in which some method comes below nine
tenths of the loss of a guess, ln 10; that limit was set after the first runs of the quick scale,
in which all three statements of Figure 6 differed without it."""
