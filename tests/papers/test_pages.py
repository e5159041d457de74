"""Stored pages that are written from words and figures say what the code would write."""

import json
from pathlib import Path

from idiolect_papers.own import large_models as large
from idiolect_papers.own import projections

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_large_models_is_that_of_its_figures():
    stored = json.loads((DOCS / "large-models.json").read_text())
    assert (DOCS / "large-models.md").read_text() == large.page(stored)


def test_the_page_of_projections_has_its_words_and_tables():
    text = (DOCS / "projections.md").read_text()
    assert (
        text.startswith(projections.TEXTS["head"] + "\n|") and projections.TEXTS["middle"] in text
    )
    for title, setting in projections.FEDERATIONS.items():
        assert f"| {title}, d = " in text and f"dim {setting.dim}, {setting.rounds} rounds" in text
