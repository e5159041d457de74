"""Figure 7 of the FedDeper paper: global and personal models on the clients' own test data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..page import Page, Row, Verdict, page_from_text
from ..panels import Line, Panel
from ..texts import read_text
from .runs import (
    BASELINES,
    CASES,
    LOCAL,
    SIZES,
    WORDS,
    DeperCase,
    DeperResults,
    DeperSize,
    counted,
    outcome,
    why,
)

NAME = "feddeper-figure7"
SHOWN = ("Deper", *BASELINES)
AROUND = 0.05  # personal models this near the global one in accuracy converge around it
Curves = dict[tuple[DeperCase, str], list[float]]  # accuracy by evaluated rounds


def write(folder: Path, scale: str) -> list[Path]:
    """The runs are among those of Table 1."""
    return page(folder, scale, SIZES[scale]).write(folder)


def page(folder: Path, scale: str, size: DeperSize, jobs: int = 0) -> Page:
    """Run what is missing, and draw the two panels."""
    results = outcome(folder, scale, size, [c for c in CASES if c.of_figure7], jobs)
    shown = [(c, m) for c in results.cases for m in SHOWN]
    gm: Curves = {(c, m): results.curve(c, m, "test_accuracy") for c, m in shown}
    pm: Curves = {(c, m): results.own_curve(c, m) for c, m in shown}
    facts, verdicts = _statements(results, gm, pm)
    return page_from_text(
        NAME,
        facts,
        verdicts,
        scale=size.text,
        tables={
            f"{case}, accuracy at the end:": _rows(results, case, gm, pm) for case in results.cases
        },
        pictures={
            read_text(NAME)["picture"]: [_panel(results, case, gm, pm) for case in results.cases]
        },
        figures={
            str(c): {
                m: {"round": results.rounds(c, m), "global": gm[c, m], "personal": pm[c, m]}
                for m in SHOWN
            }
            for c in results.cases
        },
        seconds=results.seconds,
    )


def _panel(results: DeperResults, case: DeperCase, gm: Curves, pm: Curves) -> Panel:
    lines = []
    for number, m in enumerate(SHOWN):
        rounds = results.rounds(case, m)
        lines.append(Line(f"{m}, PM", rounds, pm[case, m], style=number))
        lines.append(Line(f"{m}, GM", rounds, gm[case, m], style=number, formula=True))
    return Panel(f"n = {case.clients}", "rounds", "test accuracy", lines)


def _rows(results: DeperResults, case: DeperCase, gm: Curves, pm: Curves) -> list[Row]:
    rows: list[Row] = [
        {"method": m, "global model": gm[case, m][-1], "personal models": pm[case, m][-1]}
        for m in SHOWN
    ]
    alone = results.own(case, LOCAL)
    share = None if alone is None or alone.mean is None else alone.mean / 100
    return [*rows, {"method": "Local, equal gradients", "personal models": share}]


def _statements(
    results: DeperResults, gm: Curves, pm: Curves
) -> tuple[dict[str, Any], dict[str, Verdict]]:
    cases = results.cases
    gaps = {c: pm[c, "Deper"][-1] - gm[c, "Deper"][-1] for c in cases}
    above = sum(pm[c, m][-1] > gm[c, m][-1] for c in cases for m in BASELINES)
    crosses = sum(_crosses(pm[c, "Deper"], gm[c, "Deper"]) for c in cases)
    pairs = len(cases) * len(BASELINES)

    def improves(what: str, curves: Curves) -> tuple[bool | str, dict[str, str]]:
        final = {key: curve[-1] for key, curve in curves.items()}
        best = {c: max(BASELINES, key=lambda m: final[c, m]) for c in cases}
        words = [
            f"n = {c.clients}: {final[c, 'Deper']:.3f}, the best baseline ({m}) {final[c, m]:.3f}"
            for c, m in best.items()
        ]
        holds = sum(final[c, "Deper"] >= final[c, m] for c, m in best.items())
        return counted(holds, len(cases)), {"what": what, "improves": "; ".join(words)}

    facts = {
        "words": WORDS,
        "reason": why(results, cases),
        "around": "; ".join(f"n = {c.clients}: {g:+.3f} in accuracy" for c, g in gaps.items()),
        "above": above,
        "pairs": pairs,
        "crosses": crosses,
        "cases": len(cases),
    }
    return facts, {
        "improves": [improves("global", gm), improves("personal", pm)],
        "around": counted(sum(abs(g) <= AROUND for g in gaps.values()), len(cases)),
        "above": counted(above, pairs),
        "crosses": counted(crosses, len(cases)),
    }


def _crosses(a: list[float], b: list[float]) -> bool:
    return len({x > y for x, y in zip(a, b, strict=True) if x != y}) > 1
