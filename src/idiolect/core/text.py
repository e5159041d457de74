"""Small parts by name and options in one line of text: "topk(share=0.01) + qsgd(levels=16)".

Channels, rules and attacks are chosen so, on the command line, in a plan or in Python; nothing is evaluated, only literals are read.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from .knobs import SettingError, build, nearest


def parse(text: str, field: str) -> list[tuple[str, dict[str, Any]]]:
    """The parts of a line, in order.

    >>> parse("bucketing(size=2) + trimmed-mean", "rule")
    [('bucketing', {'size': 2}), ('trimmed-mean', {})]
    """
    return [_one(part.strip(), field) for part in _pieces(text)]


def make(text: str, table: Mapping[str, type], field: str) -> list[Any]:
    """The parts as objects; `table` maps names to dataclasses whose fields are the options."""
    made = []
    for name, options in parse(text, field):
        if name not in table:
            raise nearest(name, table, field)
        made.append(build(table[name], options, f"{field} {name}"))
    return made


def _pieces(text: str) -> list[str]:
    """Split at the plus signs that stand outside parentheses (1e+3 stays whole)."""
    pieces, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == "+" and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += c
    return pieces


def _one(part: str, field: str) -> tuple[str, dict[str, Any]]:
    name, _, rest = part.partition("(")
    try:
        if "(" in part and not rest.endswith(")"):
            raise ValueError
        call = ast.parse(f"f({rest[:-1] if rest else ''})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError
        options = {str(k.arg): _value(k.value) for k in call.keywords}
    except (SyntaxError, ValueError):
        raise SettingError(f"{field}: {part!r} is not accepted; write NAME or NAME(option=value, ...), several joined by +") from None
    return name.strip(), options


def _value(node: ast.expr) -> Any:
    """A literal; a bare word is text."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
