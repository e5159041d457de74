"""Where does federation really help? Local, FedAvg and personalised methods on real clients.

`idiolect reproduce where-it-helps` writes where-it-helps.md, .json and .png: for every naturally
federated data set and a few numbers of samples per client, each method tuned alike. The sets are
fetched if they are not there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from idiolect.core.documents import plain

from .cases import CASES, Case
from .measure import SIZES, Size, measure
from .page import page_of, picture

NAME = "where-it-helps"


def write(folder: Path, scale: str) -> list[Path]:
    """Measure, and write the page, its figures and its picture."""
    return written(folder, scale, CASES, SIZES[scale])


def written(folder: Path, scale: str, cases: Mapping[str, Case], size: Size) -> list[Path]:
    rows = measure(cases, size, folder / ".runs" / f"{NAME}-{scale}")
    stored = plain(
        {
            "scale": scale,
            "size": asdict(size),
            "trials": 4,
            "rows": rows,
            "seconds": round(sum(row.pop("seconds") for row in rows)),
        }
    )
    figures = folder / f"{NAME}.json"
    figures.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", "utf-8")
    page = folder / f"{NAME}.md"
    page.write_text(page_of(stored), "utf-8")
    return [page, figures, picture(stored, folder / f"{NAME}.png")]
