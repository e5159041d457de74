"""The stored figures come out again."""

import json
from pathlib import Path

import pytest

from idiolect.experiments import golden
from idiolect.methods import METHODS

STORED = json.loads((Path(__file__).parent.parent / "docs" / "results.json").read_text())


def test_every_method_has_a_stored_figure_on_every_federation():
    assert set(STORED) == set(golden.FEDERATIONS)
    assert all(set(rows) == set(METHODS) - golden.SKIP for rows in STORED.values())


@pytest.mark.slow
@pytest.mark.parametrize("title", golden.FEDERATIONS)
def test_the_first_seed_gives_the_stored_accuracy(title):
    federation, task, sample = next(
        (f, t, s) for name, f, t, s in golden.federations() if name == title
    )
    for figure in golden.figures(federation, task, sample, seeds=1):
        stored = STORED[title][figure["method"]][0]
        assert figure["accuracy"]["mean"] == pytest.approx(stored, abs=0.015), figure["method"]
