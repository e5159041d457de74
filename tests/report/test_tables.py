"""Tables on terminals of any width: a column is left out, a figure is never cut."""

import re

import pytest

from idiolect import Federation
from idiolect.report.goals import Goals
from idiolect.report.tables import majority_row, render, results_table

FEDERATION = Federation.from_arrays([[0.0]] * 4, [0, 1, 0, 1], [0, 0, 1, 1])
FIGURES = {"mean": 0.9123, "ci95": 0.1234, "variance": 0.0101, "worst10": 0.3456}
WIDE = {  # figures as wide as they come
    "label": "lp-proj-1 projection=contiguous dim=750 channel=qsgd(levels=16)",
    "seeds": [0, 1, 2],
    "rounds": 200,
    "accuracy": FIGURES,
    "loss": {**FIGURES, "mean": 12345.6789},
    "bytes": {"up": 999.9e6, "down": 123.4e9},
    "gradients_per_client": 1_234_567,
    "seconds": 12345.6,
    "malicious": {"clients": 20},
}
REACHED = {
    "at_budget": {"mean": 0.7512, "ci95": 0.6353, "by_seed": [0.7] * 3, "unspent": True},
    "to_target": {"mean": 366_000, "ci95": 367_300, "by_seed": [1] * 3},
    "at_budget_values": {"mean": 0.7512, "ci95": 0.6353, "by_seed": [0.7] * 3, "unspent": True},
    "to_target_values": {"mean": 42_405_333, "ci95": 25_702_102, "by_seed": [1] * 3},
}
CELLS = (
    "0.9123 0.1234 0.0101 0.3456 12345.6789 20 0.7512 ± 0.6353 † 366.0 kB ± 367.3 kB "
    "42,405,333 ± 25,702,102 999.9 MB 123.4 GB 1,234,567 12345.6"
)


def shown(width, row=WIDE, goals=None):
    """The lines of the table: its heading, then its rows without the caption."""
    text = render(results_table([majority_row(FEDERATION), WIDE | row], None, width, goals), width)
    assert all(len(line) <= width for line in text.splitlines())
    return text.split("test data of each client")[0].splitlines()


@pytest.mark.parametrize("width", [60, 72, 80, 90, 100, 120, 140, 200])
@pytest.mark.parametrize(
    "goals",
    [None, Goals(328_020, 0.6), Goals(4_236_900, 0.6, "values")],
    ids=["no goals", "in bytes", "in values"],
)
def test_no_figure_is_cut(width, goals):
    if width < 80 and goals and goals.count == "values":
        pytest.skip("two columns of that width have no place beside an accuracy")
    lines = shown(width, REACHED, goals)
    assert not any("…" in line for line in lines)
    heading = re.split(r"\s{2,}", lines[1].strip())
    figures = next(line for line in lines if "0.9123" in line)
    cells = re.split(r"\s{2,}", figures.strip())
    assert len(cells) == len(heading)
    assert all(cell in CELLS for cell in cells[1:])


def test_at_80_columns_a_table_has_accuracy_bytes_and_gradients():
    heading = " ".join(shown(80)[1].split())
    assert heading == "method accuracy ± 95 % malicious sent up sent down gradients"


def test_goals_are_shown_before_anything_else():
    heading = " ".join(shown(80, REACHED, Goals(328_020, 0.6))[1].split())
    assert heading == "method accuracy malicious accuracy at 328 kB bytes to 0.6"


def test_a_wide_terminal_has_all_columns():
    heading = " ".join(shown(140)[1].split())
    assert heading == (
        "method accuracy ± 95 % variance worst 10 % loss malicious "
        "sent up sent down gradients seconds"
    )


def test_a_long_name_is_folded_and_complete():
    names = "".join(line[:20].strip() for line in shown(80)[2:])
    assert WIDE["label"].replace(" ", "") in names.replace(" ", "")
