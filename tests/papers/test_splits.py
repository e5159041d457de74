"""The check of the split advisor, at a small size of the same code."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from idiolect_papers.own.splits import CASES, SplitCase, page, verdict, write

DOCS = Path(__file__).parents[2] / "docs"
SMALL = SplitCase(
    "digits",
    "mlp",
    {"clients": 4, "classes_per_client": 2},
    {"hidden": "8"},
    clients_per_round=3,
    rounds=3,
    ffgg_rounds=2,
    steps=3,
    rank=2,
    seeds=1,
)


def test_every_case_is_measured(tmp_path):
    other = replace(SMALL, rank=3)
    _, table = write(tmp_path, {"small digits": SMALL, "another rank": other})
    assert list(json.loads(table.read_text())) == ["small digits", "another rank"]


def test_the_stored_page_is_that_of_its_figures():
    stored = json.loads((DOCS / "splits-checked.json").read_text())
    assert (DOCS / "splits-checked.md").read_text() == page(stored, CASES)


def test_the_page_has_ffgg_beside_every_candidate(tmp_path):
    text, table = write(tmp_path, {"small digits": SMALL})
    found = json.loads(table.read_text())["small digits"]
    parts = [row["name"] for row in found["advisor"]["common"]["candidates"]]
    assert parts == ["none", "layer:1", "layer:2", "biases", "adapter (low-rank 2)", "all"]
    assert all(list(found["ffgg"][how]) == parts[1:-1] for how in ("common", "random"))
    assert found["ffgg"]["common"] != found["ffgg"]["random"]
    words = text.read_text()
    assert "## small digits: mlp, d = 610" in words and "| layer:1 = input |" in words.replace(
        "*", ""
    )
    assert "FFGG from the pre-trained private part: " in words


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ({"a": 0.3, "b": 0.4}, "the recommended part (a) is the best"),
        (
            {"a": 0.3, "b": 0.295},
            "better than the recommended a by 0.0050, within one",
        ),
        (
            {"a": 0.3, "b": 0.2},
            "better than the recommended a by 0.1000, more than one",
        ),
    ],
)
def test_the_verdict_is_that_of_the_figures(losses, says):
    rows = [{"part": name, "name": name, "gap_error": 0.01} for name in "ab"]
    assert says in verdict("common", {"choice": "a", "candidates": rows}, losses)
