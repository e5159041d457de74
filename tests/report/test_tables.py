"""Tables on terminals of any width: a column is left out, a figure is never cut."""

import re
from pathlib import Path

import pytest

from idiolect import Federation
from idiolect.core.columns import render
from idiolect.report.tables import majority_row, results_table
from idiolect.report.targets import Goals

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
    lines = shown(width, REACHED, goals)
    assert not any("…" in line for line in lines)
    heading = re.split(r"\s{2,}", lines[1].strip())
    figures = next(line for line in lines if "0.9123" in line)
    cells = re.split(r"\s{2,}", figures.strip())
    assert len(cells) == len(heading)
    assert all(cell in CELLS for cell in cells[1:])


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_columns_without_room_are_named_with_the_way_to_see_them(width):
    rows = [majority_row(FEDERATION), WIDE]
    text = render(results_table(rows, None, width), width)
    heading = text.splitlines()[1]
    note = " ".join(text.split()).partition("no room for: ")[2]
    for name in (
        "± 95 %",
        "variance",
        "worst 10 %",
        "loss",
        "malicious",
        "sent up",
        "sent down",
        "gradients",
        "seconds",
    ):
        assert (name in heading) != (name in note), name
    assert bool(note) == (width < 200)
    assert not note or note.endswith("(a wider terminal or --json shows them)")


def test_metrics_stand_behind_accuracy_and_the_chosen_one_before_it():
    metrics = {"auc": FIGURES, "f1": {**FIGURES, "mean": 0.5}}
    row = WIDE | {"metrics": metrics}
    heading = render(results_table([row], None, 140), 140).splitlines()[1].split()
    assert heading[:6] == ["method", "accuracy", "±", "95", "%", "auc"]
    chosen = row | {"metric": "f1"}
    heading = render(results_table([chosen], None, 140), 140).splitlines()[1].split()
    assert heading[:2] == ["method", "f1"] and "accuracy" in heading


def test_a_table_says_how_many_clients_are_heard_per_round():
    sends = WIDE | {"heard": {"clients": 10, "of": 100}}
    alike = [majority_row(FEDERATION), sends, sends | {"bytes": {"up": 0, "down": 0}}]
    assert "10 of 100 clients heard per round" in render(results_table(alike, None, 140))
    every = sends | {"label": "l2gd", "heard": {"clients": 10_000_000, "of": 10_000_000}}
    text = " ".join(render(results_table([sends, every], None, 140)).split())
    assert "clients heard per round: 10 of 100 by lp-proj-1" in text
    assert "10,000,000 of 10,000,000 by l2gd" in text
    none = sends | {"bytes": {"up": 0, "down": 0}}
    assert "none of 100 clients heard: nothing is sent" in render(results_table([none]))


def test_the_words_of_a_table_are_explained_in_one_line_if_they_are_in_it():
    sends = WIDE | {"method": "fedavg", "heard": {"clients": 10, "of": 100}}
    alone = WIDE | {"method": "local", "label": "local", "bytes": {"up": 0, "down": 0}}
    (line,) = (
        note for note in results_table([sends, alone]).caption.splitlines() if "client: " in note
    )
    for term in ("client: ", "round: ", "heard: ", "local: ", "gradients: ", "worst 10 %: "):
        assert line.count(term) == 1
    assert len(line) <= 200
    caption = results_table([WIDE | {"method": "ditto"}]).caption
    assert "local: " not in caption and "heard: " not in caption and "round: " in caption


def test_the_glossary_has_the_words_of_captions():
    page = (Path(__file__).parents[2] / "docs/glossary.md").read_text()
    for word in ("client", "round", "heard", "gradients", "worst 10 %", "± 95 %", "variance"):
        assert re.search(rf"^\| {re.escape(word)} \| [A-Z].*\. \|$", page, re.MULTILINE), word


def test_rejected_and_missing_messages_are_under_every_table():
    row = WIDE | {
        "heard": {"clients": 7.625, "of": 9},
        "messages": {"asked": 72, "counted": 61},
        "rejected_by_reason": {"not finite": 4, "overflow": 2},
        "missing_by_reason": {"timed out": 5},
    }
    text = " ".join(render(results_table([row, WIDE], None, 60)).split())
    assert "7.62 of 9 clients heard per round" in text
    fates = "61 of 72 messages counted; rejected: 4 not finite, 2 overflow; missing: 5 timed out"
    assert text.count("messages counted") == 1 and f"{WIDE['label']}: {fates}" in text


def test_clients_held_out_have_a_column_and_a_note():
    figures = {name: {**FIGURES, "mean": 0.4321} for name in ("accuracy", "loss")}
    row = WIDE | {
        "settings": {"run": {"held_out_rounds": 7}},
        "held_out": {"clients": 3, **figures},
    }
    text = render(results_table([majority_row(FEDERATION), row, WIDE], None, 160), 160)
    heading, _, majority, trained = text.splitlines()[1:5]
    assert heading.count("held out") == 1 and "0.4321" in trained and "0.4321" not in majority
    assert "accuracy of the 3 clients that take no part in training, after 7 rounds" in text
    assert "held out" not in render(results_table([WIDE], None, 160), 160)
    figures["loss"] = {**FIGURES, "mean": None}  # models that are not finite have an accuracy too
    text = render(results_table([row | {"held_out": {"clients": 3, **figures}}], None, 160), 160)
    assert "0.4321" not in text and "★" in text


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
