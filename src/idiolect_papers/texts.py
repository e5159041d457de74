"""The words of pages: templates in texts/NAME.toml, filled with what was measured."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def read_text(name: str) -> dict[str, Any]:
    """The words of a page, by key.

    >>> read_text("lp-proj-theorem13")["claims"]["sampled"]
    {'paper': 'with client sampling, O(1/√T)', 'ours': 'slope {sampled}'}
    """
    path = resources.files(__package__).joinpath("texts", f"{name}.toml")
    return tomllib.loads(path.read_text("utf-8"))
