"""The words of theory pages: templates that the stored pages were filled from."""

import json
import re
from importlib import resources
from pathlib import Path
from string import Formatter

import pytest

from idiolect_papers.page import Claim, page_from_text
from idiolect_papers.texts import read_text
from idiolect_papers.theory import Slope

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
    statements = list(words.get("claims", {}).values())
    for claim in stored["claims"] if statements else ():
        while not made(statements[0], claim):  # in the order of the file, some several times
            statements.pop(0)
            assert statements, claim


def made(statement, claim):
    """Whether a claim is this statement, filled."""
    parts = ["paper", "ours"]
    if claim["reason"] and claim["reason"] != "see the tables":
        parts.append("reason")
    return all(
        re.fullmatch(filled(statement.get(part, "")), claim[part], re.DOTALL) for part in parts
    )


def test_a_page_is_filled_with_facts_and_verdicts(monkeypatch):
    words = {
        "title": "A theorem",
        "order": 3,
        "settings": "{clients} clients.",
        "claims": {
            "rate": {"paper": "O(1/T)", "ours": "slope {slope}"},
            "floor": {"paper": "a floor", "ours": "none", "reason": "not tight"},
            "other": {"paper": "", "ours": ""},
            "each": {"paper": "{data}: best", "ours": "by {gap:g}"},
        },
    }
    monkeypatch.setattr("idiolect_papers.page.read_text", lambda name: words)
    facts = {"clients": 10, "slope": Slope(-0.98, 0.1)}
    verdicts = {"rate": False, "floor": "same order", "other": None}
    verdicts["each"] = [(True, {"data": data, "gap": gap}) for data, gap in (("a", 1), ("b", 2))]
    page = page_from_text("example", facts, verdicts)
    assert (page.title, page.order, page.settings) == ("A theorem", 3, "10 clients.")
    assert page.claims == [
        Claim("O(1/T)", "slope -0.98 ± 0.10", "differs", "see the tables"),
        Claim("a floor", "none", "same order", "not tight"),
        Claim("a: best", "by 1", "agrees"),
        Claim("b: best", "by 2", "agrees"),
    ]
