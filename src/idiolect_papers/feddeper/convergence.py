"""Figures 4 to 6 of the FedDeper paper: the training loss of the global model by rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..page import Page, Row, Verdict, page_from_text
from ..panels import Line, Panel
from ..texts import read_text
from .runs import (
    BASELINES,
    CASES,
    SIZES,
    WORDS,
    DeperCase,
    DeperResults,
    DeperSize,
    counted,
    methods,
    outcome,
    too_few,
    why,
)

TEXTS = read_text("feddeper-convergence")
LOSS = "train_loss"
NEVER = "never"
WIDE = 10  # losses over a range of this factor are drawn on a logarithmic axis
DIVERGED = 1.5  # times the lowest loss of the run
NEAR = 0.1  # losses that differ by less than a tenth are equally good
FIGURES = {4: ("MNIST", 10), 5: ("MNIST", 100), 6: ("CIFAR-10", 100)}  # data, n


def write(folder: Path, scale: str, figure: int) -> list[Path]:
    """The runs of Figures 4 to 6 are those of Table 1."""
    return page(figure, *FIGURES[figure], folder, scale, SIZES[scale]).write(folder)


def page(
    number: int, data: str, clients: int, folder: Path, scale: str, size: DeperSize, jobs: int = 0
) -> Page:
    """Run what is missing, and draw the panels of a figure."""
    cases = [c for c in CASES if (c.data, c.clients) == (data, clients)]
    results = outcome(folder, scale, size, cases, jobs)
    missing = "; ".join(str(c) for c in cases if c not in results.cases)
    early = too_few(results, results.cases)
    facts = {
        "number": number,
        "data": data,
        "clients": clients,
        "words": WORDS,
        "missing": TEXTS["missing"].format(cases=missing) if missing else "",
        "early": TEXTS["early"].format(cases=early) if early else "",
    }
    verdicts: dict[str, Verdict] = {}
    if results.learnt:
        statements = _moderate if clients == 10 else _massive
        for own, judged in (_lowest(results), statements(results)):
            facts |= own
            verdicts |= judged
    return page_from_text(
        f"feddeper-figure{number}",
        facts,
        verdicts,
        shared="feddeper-convergence",
        scale=size.text,
        tables={f"{case}:": _rows(results, case) for case in results.cases},
        pictures={
            TEXTS["picture"].format_map(facts): [_panel(results, case) for case in results.cases]
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


def _panel(results: DeperResults, case: DeperCase) -> Panel:
    lines = [
        Line(m, results.rounds(case, m), results.curve(case, m, LOSS))
        for m in methods(case.clients)
    ]
    values = [y for line in lines for y in line.y if math.isfinite(y)]
    log = "y" if max(values) > WIDE * min(values) else ""
    return Panel(f"{case.model}, m = {case.heard}", "rounds", "training loss", lines, log)


def _rows(results: DeperResults, case: DeperCase) -> list[Row]:
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


# -- what the paper says: facts and verdicts ------------------------------------------------------
Statements = tuple[dict[str, Any], dict[str, Verdict]]


def _lowest(results: DeperResults) -> Statements:
    shares = {}
    for case in results.learnt:
        ours = results.curve(case, "Deper", LOSS)
        others = [results.curve(case, m, LOSS) for m in BASELINES]
        lowest = sum(a <= min(b) for a, *b in zip(ours, *others, strict=True))
        shares[case] = (lowest, len(ours))
    lines = ((c, f"lowest in {k} of {n} evaluated rounds") for c, (k, n) in shares.items())
    holds = sum(k > 0.75 * n for k, n in shares.values())
    facts = {"lowest": _listed(lines), "reason": _reason(results)}
    return facts, {"lowest": counted(holds, len(shares))}


def _moderate(results: DeperResults) -> Statements:
    """Figure 4: many of the clients are heard."""
    ratios, byte_ratios = {}, []
    for case in results.learnt:
        last = [results.curve(case, m, LOSS)[-1] for m in ("Deper", "SCAF")]
        sent = [sum(results.summaries[case, m][0]["bytes"].values()) for m in ("Deper", "SCAF")]
        ratios[case] = last[0] / last[1]
        byte_ratios.append(sent[0] / sent[1])
    facts = {
        "equal": _listed((c, f"{r:.2f} times SCAFFOLD's loss") for c, r in ratios.items()),
        "half": (min(byte_ratios), max(byte_ratios)),
    }
    return facts, {
        "equal": counted(sum(r <= 1 + NEAR for r in ratios.values()), len(ratios)),
        "half": counted(sum(abs(s - 0.5) < 0.01 for s in byte_ratios), len(byte_ratios)),
    }


def _massive(results: DeperResults) -> Statements:
    """Figures 5 and 6: few of the clients are heard."""
    faster = stabler = 0
    needed, rise = {}, {}
    for case in results.learnt:
        target = reachable(results, case)
        rounds = {m: first_below(results, case, m, target) for m in ("Deper", *BASELINES)}
        best = min(rounds[m] or math.inf for m in BASELINES)
        faster += (rounds["Deper"] or math.inf) <= best
        needed[case] = ", ".join(f"{m} {k or NEVER}" for m, k in rounds.items())
        ours, theirs = (rises(results.curve(case, m, LOSS)) for m in ("Deper", "SCAF"))
        stabler += ours < theirs
        rise[case] = f"{ours:.3g} against {theirs:.3g}"
    facts = {"faster": _listed(needed.items()), "stabler": _listed(rise.items())}
    of = len(results.learnt)
    return facts, {"faster": counted(faster, of), "stabler": counted(stabler, of)}


def _reason(results: DeperResults) -> str:
    """Why something differs: FedDeper diverges, or it is not found."""
    turned = {}
    for case in results.learnt:
        loss = results.curve(case, "Deper", LOSS)
        if not loss[-1] < DIVERGED * min(loss):
            lowest = results.rounds(case, "Deper")[loss.index(min(loss))]
            turned[case] = f"after round {lowest}"
    if not turned:
        return why(results, results.learnt)
    return TEXTS["rises"].format(cases=_listed(turned.items()))


# -- figures --------------------------------------------------------------------------------------
def reachable(results: DeperResults, case: DeperCase) -> float:
    """A loss that every method reaches: the highest of the lowest ones."""
    lowest = [min(results.curve(case, m, LOSS)) for m in methods(case.clients)]
    return max((x for x in lowest if math.isfinite(x)), default=math.nan)


def first_below(results: DeperResults, case: DeperCase, method: str, target: float) -> int | None:
    """The first evaluated round with a loss as low as this."""
    pairs = zip(results.rounds(case, method), results.curve(case, method, LOSS), strict=True)
    return next((k for k, loss in pairs if loss <= target), None)


def rises(loss: Sequence[float]) -> float:
    """The mean over evaluations of what the loss rose since the one before."""
    ups = [max(0.0, b - a) for a, b in pairwise(loss)]
    return sum(ups) / len(ups) if ups else 0.0


def _listed(of_cases: Iterable[tuple[DeperCase, str]]) -> str:
    return "; ".join(f"{c.model}, m = {c.heard}: {words}" for c, words in of_cases)
