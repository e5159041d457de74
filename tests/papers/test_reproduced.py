"""Pages of reproduced figures: claims beside what came out, and one page of all of them."""

import json
from pathlib import Path

import pytest

from idiolect_papers import EXPERIMENTS
from idiolect_papers.panels import Line, Panel
from idiolect_papers.reproduced import Claim, Reproduced, page_of, write_index

DOCS = Path(__file__).parents[2] / "docs"


def _one(name="paper-figure1"):
    return Reproduced(
        name,
        "Figure 1",
        "n = 10.",
        [Claim("slope -1", "slope -0.9", "agrees")],
        {"Slopes": [{"method": "ffgg", "slope": -0.9}]},
        panels=[Panel("p", "rounds", "error", [Line("ffgg", [1, 2], [1.0, 0.5])], log="y")],
    )


def test_an_experiment_leaves_page_figures_picture_and_index(tmp_path):
    folder = tmp_path / "theory"
    folder.mkdir()
    paths = _one().write(folder)
    assert [p.name for p in paths] == [
        "paper-figure1.md",
        "paper-figure1.json",
        "paper-figure1.png",
        "theory.md",
    ]
    assert "| slope -1 | slope -0.9 | **agrees** |" in paths[0].read_text()
    assert "(theory/paper-figure1.png)" in paths[3].read_text()


def test_a_claim_that_differs_needs_a_reason():
    with pytest.raises(ValueError, match="reason"):
        Claim("1e-6", "1e-4", "differs")
    with pytest.raises(ValueError, match="verdict"):
        Claim("1e-6", "1e-4", "nearly")


def test_stored_pages_are_those_of_their_figures(tmp_path):
    stored = sorted((DOCS / "theory").glob("*.json"))
    for path in stored:
        figures = json.loads(path.read_text())
        assert path.with_suffix(".md").read_text() == page_of(figures), path.name
        assert figures["name"] in EXPERIMENTS
        if figures["picture"]:
            assert path.with_name(figures["picture"]).exists()
    if stored:
        before = (DOCS / "theory.md").read_text()
        copy = tmp_path / "theory"
        copy.mkdir()
        for path in stored:
            (copy / path.name).write_text(path.read_text())
        assert write_index(copy).read_text() == before


def test_every_experiment_can_be_found():
    import importlib

    for experiment in EXPERIMENTS.values():
        module, _, name = experiment.function.partition(":")
        assert callable(getattr(importlib.import_module(f"idiolect_papers.{module}"), name))
