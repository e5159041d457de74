"""Shakespeare by role: which character comes next?

LEAF's recipe: a client is a role of a play, and 80 characters are the context of the next one. Here
as in the other texts (text.py): windows of 80 characters, of which each predicts the next; a role's
speeches in the order of the play are one stream, of which the end tests. Letters keep their case.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...core.knobs import knob
from ..entries import register
from .text import Text, by_author, json_lines

# "HAMLET.", "First Citizen.", "THESEUS": a short line of capitalised words after an empty one
HEADING = re.compile(r"((?:[A-Z][\w'’-]*\.? ?){1,4}?(?:of [A-Z]\w+)?)\.|([A-Z][A-Z' -]{2,29})")
BREAK = re.compile(r"(ACT|SCENE|Scene|Act|PROLOGUE|EPILOGUE|INDUCTION|THE END|End of)\b")
# notes of the editor, and the numbers of verses in a song
NO_ROLE = re.compile(r"PERSONS|DRAMATIS|CHARACTERS|EXIT|EXEUNT|FINIS|THE |[IVX]+$")
DIRECTION = re.compile(r"\[[^][]{0,1000}\]")
LONGEST = 30  # characters of a role's name


def speeches(text: str) -> Iterator[tuple[str, str]]:
    """(role, speech) in the order of the play; roles in capitals, those that speak twice or more.

    Stage directions are left out, and so is what stands before the first and after the last act.

    >>> play = "ACT I.\\n\\nHAM.\\nTo be,\\nor not.\\n\\n[Exit.]\\n\\nKing.\\nAy.\\n\\nHam.\\nNo."
    >>> list(speeches(play))
    [('HAM', 'To be,\\nor not.'), ('HAM', 'No.')]
    """
    every_speech = list(_all(text))
    often = Counter(role for role, _ in every_speech)
    return ((role, speech) for role, speech in every_speech if often[role] > 1)


def _all(text: str) -> Iterator[tuple[str, str]]:
    text = DIRECTION.sub("", text.replace("\r\n", "\n"))
    role = ""
    lines: list[str] = []
    begun = False
    before = ""
    for line in (raw.strip() for raw in text.split("\n")):
        is_break = not before and BREAK.match(line) is not None
        name = _role(line) if begun and not before and not is_break else ""
        if is_break or name:
            if role and lines:
                yield role, "\n".join(lines)
            lines = []
            role = name
            begun = begun or is_break
        elif role and line:
            lines.append(line)
        before = line
    if role and lines:
        yield role, "\n".join(lines)


def _role(line: str) -> str:
    """The role that a line names; "" if it is none."""
    match = HEADING.fullmatch(line) if len(line) <= LONGEST else None
    if match is None:
        return ""
    name = (match[1] or match[2]).strip().upper()
    return "" if NO_ROLE.match(name) else name


@register("shakespeare")
@dataclass(frozen=True)
class Shakespeare(Text):
    """Shakespeare's plays by role (LEAF's recipe): next-character prediction.

    Caldas et al. (2018), LEAF: a benchmark for federated settings.
    """

    vocabulary: int = knob(
        80, "most frequent training characters to tell apart; all others are <unk>", low=1
    )
    length: int = knob(80, "characters in a window", low=1)
    minimum: int = knob(1_000, "least characters of a client; others are left out", low=0)
    cap: int = knob(0, "most characters of a client, its earliest; 0: no limit", low=0)

    name: ClassVar[str] = "shakespeare"
    file: ClassVar[str] = "shakespeare.jsonl"

    def read(self, path: Path) -> dict[str, list[str]]:
        speeches = json_lines(path)
        return by_author((f"{s['play']} {s['role']}", s["text"]) for s in speeches)

    def cut(self, text: str) -> list[str]:
        return list(text)


def plays_to_lines(folder: Path) -> None:
    """The plays, NAME_gut.txt, as `shakespeare.jsonl`, a line {"play", "role", "text"} per speech.

    In the order of the plays' names and of the speeches.
    """
    with open(folder / "shakespeare.jsonl", "w", encoding="ascii", newline="\n") as out:
        for path in sorted(folder.glob("*_gut.txt")):
            text = path.read_bytes().decode("latin-1")
            play = path.name.removesuffix("_gut.txt")
            for role, speech in speeches(text):
                out.write(json.dumps({"play": play, "role": role, "text": speech}) + "\n")
