"""Plain data as TOML; Python itself only reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_text(value: Any) -> str:
    """A value as it is written in TOML.

    >>> toml_text(["a", 3, 0.5, True]), toml_text('say "no"')
    ('["a", 3, 0.5, true]', '"say \\\\"no\\\\""')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_text, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_sections(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections with a line per setting; empty ones are left out.

    >>> print(toml_sections({"run": {"rounds": 5}, "data": {}}), end="")
    [run]
    rounds = 5
    """
    texts = [
        "\n".join([f"[{name}]", *(f"{key} = {toml_text(value)}" for key, value in lines.items())])
        for name, lines in sections.items()
        if lines
    ]
    return "\n\n".join(texts) + "\n"
