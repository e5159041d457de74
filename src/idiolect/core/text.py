"""Small parts by name and options in one line of text: "topk(share=0.01) + qsgd(levels=16)".

Channels, rules and attacks are chosen so, on the command line, in a plan or in Python. Nothing is
evaluated; only literals are read.
"""

from __future__ import annotations

import ast
from typing import Any

from .knobs import SettingError, build
from .registry import Table


def split_outside(text: str, separator: str) -> list[str]:
    """Split at the separators that stand outside parentheses and brackets.

    >>> split_outside("a=(1, 2), b=3", ",")
    ['a=(1, 2)', ' b=3']
    """
    pieces = [""]
    depth = 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c == separator and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += c
    return pieces


def parse(text: str, field: str) -> list[tuple[str, dict[str, Any]]]:
    """The parts of a line, in order.

    >>> parse("bucketing(size=2) + trimmed-mean", "rule")
    [('bucketing', {'size': 2}), ('trimmed-mean', {})]
    """
    return [_one(part.strip(), field) for part in split_outside(text, "+")]


def build_parts(text: str, table: Table[Any], field: str) -> list[Any]:
    """The parts of a line as objects.

    `table` maps names to dataclasses whose fields are the options.
    """
    return [
        build(table.find(name), options, f"{field} {name}") for name, options in parse(text, field)
    ]


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
        raise SettingError(
            f"{field}: {part!r} is not accepted; "
            "write NAME or NAME(option=value, ...), several joined by +"
        ) from None
    return name.strip(), options


def _value(node: ast.expr) -> Any:
    """A literal; a bare word is text."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
