"""The pages of Tables 4 and 10."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from idiolect import paired_difference

from ...marks import Cell, Figure
from ...page import Page
from .measure import Outcome
from .published import COLUMNS, read_published
from .rows import EQUAL, UNTIED

OURS = (EQUAL, UNTIED)


def table(
    name: str, number: str, found: dict[str, Outcome], titles: Sequence[str], scale: str
) -> Page:
    """The published table beside ours, as far as it was run."""
    cells = [
        Cell(_title(title, found.get(title)), row, column, paper, ours, _stands_in(found, title))
        for title in titles
        for row in _rows(title, found.get(title))
        for column, paper, ours in _columns(title, row, found.get(title))
    ]
    more = {
        (_title(title, one), row): {
            "chosen": figures["chosen"],
            "gradients/client": f"{figures['gradients']:,.0f}",
        }
        for title, one in found.items()
        for row, figures in one["rows"].items()
    }
    return Page(
        name=name,
        title=f"lp-proj, {number}: personalisation and fairness",
        scale=f"{scale}: " + "; ".join(f"{t}: {one['scale']}" for t, one in found.items()),
        opening=opening(found),
        printed=PRINTED,
        chosen=CHOSEN,
        cells=cells,
        reasons=REASONS | {_title(t, one): one["note"] for t, one in found.items() if one["note"]},
        more=more,
        seconds=sum(one["cpu_seconds"] for one in found.values()),
    )


def _stands_in(found: dict[str, Outcome], title: str) -> bool:
    return bool(title in found and found[title]["note"])


def _title(title: str, one: Outcome | None) -> str:
    return title if one is None else f"{title}: {one['clients']} clients, d = {one['parameters']:,}"


def _rows(title: str, one: Outcome | None) -> list[str]:
    known = [row for data, row in read_published() if data == title]
    return [*known, *(row for row in OURS if one and row in one["rows"])]


def _columns(
    title: str, row: str, one: Outcome | None
) -> list[tuple[str, Figure | None, Figure | None]]:
    paper = read_published().get((title, row), {})
    ours = one["rows"].get(row) if one else None
    return [(c, paper.get(c), Figure.of(ours[c]) if ours else None) for c in COLUMNS]


def opening(found: dict[str, Outcome]) -> str:
    """What the two rows show that the paper's table lacks."""
    lines = [OPENING, ""]
    for title, one in found.items():
        rows = one["rows"]
        if not {EQUAL, UNTIED, "lp-proj-1", "lp-proj-2"} <= {*rows}:
            continue
        better = max(("lp-proj-1", "lp-proj-2"), key=lambda row: _mean(rows[row]))
        names = (better, EQUAL, UNTIED, "local")
        shown = "; ".join(f"{n} {Figure.of(rows[n]['accuracy'])}" for n in names if n in rows)
        alone = _gap(rows[better], rows[EQUAL])
        tied = _gap(rows["lp-proj-1"], rows[UNTIED])
        lines.append(f"- {title}: {shown}. {better} less Local: {alone}; the tie: {tied}.")
    return "\n".join(lines)


def _gap(ours: dict[str, Any], other: dict[str, Any]) -> str:
    """How much more accurate, and whether the seeds show it."""
    if None in ours["accuracy"] or None in other["accuracy"]:
        return "one of them has no result"
    difference, half = paired_difference(ours["accuracy"], other["accuracy"])
    if half is None:
        return f"{difference:+.4f} (one seed: it may be chance)"
    return f"{difference:+.4f} ± {half:.4f}"


def _mean(row: dict[str, Any]) -> float:
    mean = Figure.of(row["accuracy"]).mean
    return float("-inf") if mean is None else mean


OPENING = """\
The table lacks two rows: what a client reaches **alone with as many gradients** as lp-proj has, and
lp-proj itself with **λ = 0**, without any tie to the shared subspace. The paper's "local" takes one
step per round (so does its code), lp-proj twenty times R. A step alone is 0.05, 0.1 or 0.5, as for
the paper's "local"; a step of lp-proj's own models, in C.2, is 0.01, 0.05 or 0.1. Below, *the tie*
is lp-proj-1 less its λ = 0; differences are between runs with the same seed."""
PRINTED = """\
Table 3 (clients, classes per client, models) and Appendix C.2: every combination of its candidates,
chosen by accuracy on validation data (20 % of the training data); a tenth of the clients heard per
round; batches of 64; ν = 1e-10; d_sub 21 (Synthetic), 80 (EMNIST), 60 (CIFAR), 50 (MNIST), 600
(FASHIONMNIST); mean and deviation of 10 repeats. Train loss is the mean over clients' training
data, without the regulariser."""
CHOSEN = """\
T is not printed: 200 (the default of the authors' code) where the scale says nothing else. Inner
problems stop at ν or after 20 gradient steps, the number of the authors' code. R is the number of
alternations of lp-proj and pFedMe, of steps of FedAvg, Ditto's shared model and LG-FedAvg, and RSA
takes 20 R steps; its server takes the mean, as in that code. "local" takes one step per round, as
there. Per-FedAvg takes 5 steps. Means of clients are unweighted, as there.
MNIST and FASHIONMNIST hear a fifth of the clients, which is what Table 5 decodes to. Our data are
drawn with our own seeds; repeats differ in initialisation, P, batches and who is heard. What ±
means is not printed; ours is half the 95 % interval over seeds."""
REASONS = {
    "local": "one step per round is our reading of the authors' code; the paper does not say how "
    "many steps its Local takes",
}
