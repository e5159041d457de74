"""The check of the split advisor, at a small size of the same code."""

import json

import pytest

from idiolect_papers.own.splits import Case, verdict, write

SMALL = Case(
    "digits",
    "mlp",
    3,
    {"clients": 4, "classes_per_client": 2},
    {"hidden": "8"},
    rounds=3,
    ffgg_rounds=2,
    steps=3,
    rank=2,
    seeds=1,
)


def test_the_page_has_ffgg_beside_every_candidate(tmp_path):
    text, table = write(tmp_path, {"small digits": SMALL})
    found = json.loads(table.read_text())["small digits"]
    parts = [row["name"] for row in found["advisor"]["common"]["candidates"]]
    assert parts == ["none", "layer:1", "layer:2", "biases", "adapter (low-rank 2)", "all"]
    assert all(list(found["ffgg"][how]) == parts[1:-1] for how in ("common", "random"))
    assert found["ffgg"]["common"] != found["ffgg"]["random"]
    page = text.read_text()
    assert "## small digits: mlp, d = 610" in page and "| layer:1 = input |" in page.replace(
        "*", ""
    )
    assert "FFGG from the pre-trained private part: " in page


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
