"""The words of theory pages: templates that the stored pages were filled from."""

import json
import re
from importlib import resources
from pathlib import Path
from string import Formatter

import pytest

from idiolect_papers.page import Claim
from idiolect_papers.theory import Slope, read_text, theory_page

DOCS = Path(__file__).parents[2] / "docs" / "theory"
TEXTS = resources.files("idiolect_papers").joinpath("texts")
NAMES = [
    name
    for name in sorted(p.name.removesuffix(".toml") for p in TEXTS.iterdir() if "toml" in p.name)
    if "order" in read_text(name)  # the other files have words of other kinds of pages
]


def filled(template):
    """A pattern of all texts that the template can become."""
    parts = Formatter().parse(template)
    return "".join(
        re.escape(text) + (".*?" if field is not None else "") for text, field, *_ in parts
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_page_has_the_words_of_its_template(name):
    stored = json.loads((DOCS / f"{name}.json").read_text())
    words = read_text(name)
    assert (stored["title"], stored["order"]) == (words["title"], words["order"])
    assert re.fullmatch(filled(words["settings"]), stored["settings"], re.DOTALL)
    statements = words.get("claims", {}).values()
    for claim, statement in zip(stored["claims"], statements, strict=False):
        assert re.fullmatch(filled(statement["paper"]), claim["paper"], re.DOTALL)
        assert re.fullmatch(filled(statement["ours"]), claim["ours"], re.DOTALL)
        if claim["reason"] and claim["reason"] != "see the tables":
            assert re.fullmatch(filled(statement["reason"]), claim["reason"], re.DOTALL)


def test_a_page_is_filled_with_facts_and_verdicts(monkeypatch):
    words = {
        "title": "A theorem",
        "order": 3,
        "settings": "{clients} clients.",
        "claims": {
            "rate": {"paper": "O(1/T)", "ours": "slope {slope}"},
            "floor": {"paper": "a floor", "ours": "none", "reason": "not tight"},
            "other": {"paper": "", "ours": ""},
        },
    }
    monkeypatch.setattr("idiolect_papers.theory.read_text", lambda name: words)
    facts = {"clients": 10, "slope": Slope(-0.98, 0.1)}
    page = theory_page("example", facts, {"rate": False, "floor": "same order", "other": None})
    assert (page.title, page.order, page.settings) == ("A theorem", 3, "10 clients.")
    assert page.claims == [
        Claim("O(1/T)", "slope -0.98 ± 0.10", "differs", "see the tables"),
        Claim("a floor", "none", "same order", "not tight"),
    ]
