"""Shakespeare by role: which character comes next?

LEAF's recipe: a client is a role of a play, and 80 characters are the context of the next one. Here
as in the other texts (text.py): windows of 80 characters, of which each predicts the next; a role's
speeches in the order of the play are one stream, of which the end tests. Letters keep their case.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ..core.knobs import knob
from .text import Text


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
        texts = defaultdict(list)
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                speech = json.loads(line)
                texts[f"{speech['play']} {speech['role']}"].append(speech["text"])
        return texts

    def cut(self, text: str) -> list[str]:
        return list(text)
