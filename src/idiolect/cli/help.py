"""`--help`: a line per flag, by section; `--help all` and `--help rounds` say more."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from ..report.console import OUT

COLUMN = 28  # where the texts begin


class Help(argparse.Action):
    """Print help and end: short by default, with a word all of it, one section or one flag."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any):
        super().__init__(option_strings, argparse.SUPPRESS, nargs="?", **options)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        sys.stdout.write(help_text(parser, str(values or "").strip().lstrip("-")))
        parser.exit()


def help_text(parser: argparse.ArgumentParser, topic: str = "") -> str:
    """The help on a topic: "" in short, "all", the name of a section or of a flag."""
    if topic == "all":
        return parser.format_help()
    for action in parser._actions:
        if topic and topic in (name.lstrip("-") for name in action.option_strings):
            return _in_full(parser, [action])
    for group in parser._action_groups:
        if topic and topic.lower() in (group.title or "").lower().split(" "):
            return _in_full(parser, group._group_actions, group.title or "")
    return _short(parser)


def _in_full(
    parser: argparse.ArgumentParser, actions: Sequence[argparse.Action], title: str = ""
) -> str:
    formatter = parser._get_formatter()
    formatter.start_section(title or "flag")
    formatter.add_arguments(actions)
    formatter.end_section()
    return formatter.format_help()


def _short(parser: argparse.ArgumentParser) -> str:
    """Usage, examples, and a line per flag with its default."""
    width = min(OUT.width, 100)
    words = [a for a in parser._actions if not a.option_strings]
    usage = " ".join([parser.prog, *(_place(a) for a in words), "[flags]"])
    blocks = [f"{usage}\n{textwrap.fill(parser.description or '', width)}"]
    for group in parser._action_groups:
        lines = [_line(a, width) for a in group._group_actions if a.help != argparse.SUPPRESS]
        if lines:
            title = {"positional arguments": "what", "options": "flags"}.get(
                group.title or "", group.title
            )
            blocks.append("\n".join([f"{title}:", *lines]))
    if parser.epilog:
        blocks.append(_filled(parser.epilog, width))
    if any(getattr(a, "short", "") for a in parser._actions):
        blocks.append(f"More: {parser.prog} --help all, or of one flag or section: --help rounds")
    return "\n\n".join(blocks) + "\n"


def _filled(text: str, width: int) -> str:
    """Paragraphs to the width; lines that are indented stay as they are."""
    lines = text.splitlines()
    return "\n".join(x if x.startswith(" ") else textwrap.fill(x, width) for x in lines)


def _place(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest).upper()
    return {"*": f"[{name} ...]", "+": f"{name} ...", "?": f"[{name}]"}.get(str(action.nargs), name)


def _line(action: argparse.Action, width: int) -> str:
    """A flag, its default, and what it is in few words."""
    head = ", ".join(action.option_strings) or _place(action)
    default = getattr(action, "shown_default", None)
    if default is not None:
        head += f" {default}" if str(default) else " TEXT"
    elif action.option_strings and action.nargs is None:
        head += f" {action.metavar or 'X'}"
    help_text = (action.help or "").replace("%%", "%")
    text = first_clause(getattr(action, "short", "") or help_text)
    first = "  " + head
    if len(first) < COLUMN - 1:
        first = first.ljust(COLUMN)
    else:
        first += "  "
    return textwrap.fill(
        text,
        max(width, 40),
        initial_indent=first,
        subsequent_indent=" " * COLUMN,
        break_long_words=False,
        break_on_hyphens=False,
    )


def first_clause(text: str) -> str:
    """A help text up to its examples and further explanations.

    >>> first_clause("S, clients heard per round; 0 = a tenth of them")
    'S, clients heard per round; 0 = a tenth of them'
    >>> first_clause("how messages up are coded, e.g. 'half'; see: channels")
    'how messages up are coded; see: channels'
    """
    return re.sub(r", e\.g\. [^;]*", "", text)
