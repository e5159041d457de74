"""Figure 7 of the FedDeper paper: global and personal models on the clients' own test data."""

from __future__ import annotations

from pathlib import Path

from ..page import Claim, Page, Row
from ..panels import Line, Panel
from .runs import CASES, CHOSEN, LOCAL, PRINTED, SIZES, Case, Outcome, Size, counted, outcome, why
from .table1 import BASELINES

NAME = "feddeper-figure7"
SHOWN = ("Deper", *BASELINES)
ACCURACY = "test_accuracy"
AROUND = 0.05  # personal models this near the global one in accuracy converge around it


def write(folder: Path, scale: str) -> list[Path]:
    """The runs are among those of Table 1."""
    return page(folder, scale, SIZES[scale]).write(folder)


def page(folder: Path, scale: str, size: Size, jobs: int = 0) -> Page:
    """Run what is missing, and draw the two panels."""
    results = outcome(folder, scale, size, [c for c in CASES if c.of_figure7], jobs)
    return Page(
        NAME,
        "FedDeper, Figure 7: personal models (MNIST)",
        scale=size.said,
        printed=PRINTED,
        chosen=f"{CHOSEN} {MEASURED}",
        claims=_claims(results),
        opening=OPENING,
        tables={f"{case}, accuracy at the end:": _rows(results, case) for case in results.cases},
        pictures={
            "Accuracy of global models (GM) and personal models (PM) by rounds": [
                _panel(results, case) for case in results.cases
            ]
        },
        figures={
            str(case): {
                m: {
                    "round": results.rounds(case, m),
                    "global": results.curve(case, m, ACCURACY),
                    "personal": results.own_curve(case, m),
                }
                for m in SHOWN
            }
            for case in results.cases
        },
        seconds=results.seconds,
    )


def _panel(results: Outcome, case: Case) -> Panel:
    lines = []
    for number, m in enumerate(SHOWN):
        rounds = results.rounds(case, m)
        lines.append(Line(f"{m}, PM", rounds, results.own_curve(case, m), style=number))
        gm = results.curve(case, m, ACCURACY)
        lines.append(Line(f"{m}, GM", rounds, gm, style=number, formula=True))
    return Panel(f"n = {case.clients}", "rounds", "test accuracy", lines)


def _rows(results: Outcome, case: Case) -> list[Row]:
    rows: list[Row] = [
        {
            "method": m,
            "global model": results.curve(case, m, ACCURACY)[-1],
            "personal models": results.own_curve(case, m)[-1],
        }
        for m in SHOWN
    ]
    alone = results.own(case, LOCAL)
    share = None if alone is None or alone.mean is None else alone.mean / 100
    return [*rows, {"method": "Local, equal gradients", "personal models": share}]


def _claims(results: Outcome) -> list[Claim]:
    cases = results.cases
    gm = {(c, m): results.curve(c, m, ACCURACY) for c in cases for m in SHOWN}
    pm = {(c, m): results.own_curve(c, m) for c in cases for m in SHOWN}
    gaps = {c: pm[c, "Deper"][-1] - gm[c, "Deper"][-1] for c in cases}
    reason = why(results, cases)
    above = [(c, m) for c in cases for m in BASELINES if pm[c, m][-1] > gm[c, m][-1]]
    met = [c for c in cases if _crosses(pm[c, "Deper"], gm[c, "Deper"])]

    def improves(what: str, curves: dict[tuple[Case, str], list[float]]) -> Claim:
        best = {c: max(BASELINES, key=lambda m: curves[c, m][-1]) for c in cases}
        return counted(
            f"FedDeper improves the performance of {what} models",
            "; ".join(
                f"n = {c.clients}: {curves[c, 'Deper'][-1]:.3f}, the best baseline ({best[c]}) "
                f"{curves[c, best[c]][-1]:.3f}"
                for c in cases
            ),
            sum(curves[c, "Deper"][-1] >= curves[c, best[c]][-1] for c in cases),
            len(cases),
            reason,
        )

    return [
        improves("global", gm),
        improves("personal", pm),
        counted(
            "FedDeper's personal models converge around the global model",
            "; ".join(f"n = {c.clients}: {g:+.3f} in accuracy" for c, g in gaps.items()),
            sum(abs(g) <= AROUND for g in gaps.values()),
            len(cases),
            reason,
        ),
        counted(
            "the baselines' personal models usually do better than their global ones",
            f"in {len(above)} of {len(cases) * len(BASELINES)} cases",
            len(above),
            len(cases) * len(BASELINES),
            reason,
        ),
        counted(
            "the curve of FedDeper's personal models crosses that of its global one",
            f"for {len(met)} of {len(cases)} numbers of clients",
            len(met),
            len(cases),
            reason,
        ),
    ]


def _crosses(a: list[float], b: list[float]) -> bool:
    return len({x > y for x, y in zip(a, b, strict=True) if x != y}) > 1


OPENING = """\
Both kinds of models on the test data of the clients, which hold the classes that the client trains
on. Pooled over clients these are all test data, so that the global model's figure is its accuracy
on all classes. The paper prints no numbers for this figure: what it says of it is compared."""
MEASURED = """\
Figure 7 names neither the model nor m: the MLP with m = 5. The paper adds "a small number of common
data samples" to each client's test data without saying how many: none here. FedDeper's personal
model is v as the client keeps it for its next round; that of a baseline is the global model after τ
plain local steps."""
