"""What a plain installation can do, and what is said to install for the rest."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SUFFIXES = {".py", ".md", ".toml"}
PLACES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "Makefile",
    *(p for room in ("src", "docs", "examples", "benchmarks") for p in (ROOT / room).rglob("*")),
]
TEXTS = {p: p.read_text() for p in PLACES if p.suffix in SUFFIXES or p.name == "Makefile"}
HINT = re.compile(r"(?:idiolect|'\.)\[([\w, -]+)\]")
NEED = re.compile(r"needs? (?:the package )?(\w+)\W[^']{0,60}pip install 'idiolect\[(\w+)\]'")


def packages(requirements):
    return {re.split(r"[<>=\[ ]", text)[0] for text in requirements}


def test_pictures_need_nothing_beyond_a_plain_installation():
    assert "matplotlib" in packages(PROJECT["dependencies"])


def test_every_extra_that_is_named_exists_and_installs_something():
    named = {
        (extra.strip(), str(path.relative_to(ROOT)))
        for path, text in TEXTS.items()
        for names in HINT.findall(text)
        for extra in names.split(",")
    }
    assert {"flower", "ray", "tune"} <= {extra for extra, _ in named}
    assert not [place for place in named if not EXTRAS.get(place[0])]


@pytest.mark.parametrize("path", [p for p in TEXTS if NEED.search(TEXTS[p])], ids=lambda p: p.name)
def test_a_hint_names_the_extra_that_has_the_package(path):
    for package, extra in NEED.findall(TEXTS[path]):
        assert package.lower() in packages(EXTRAS[extra]), (package, extra)


def test_what_is_needed_is_pinned():
    pinned = packages((ROOT / "constraints.txt").read_text().splitlines())
    assert packages(PROJECT["dependencies"]) <= pinned
