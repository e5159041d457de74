"""Landmarks by photographer (Google Landmarks v2, federated), from the map of users and pictures.

The test pictures of the federated version belong to no user; here a share of each user's own
pictures tests.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ...core.knobs import SettingError, knob
from ...core.text import note, option, shown
from ..download import OWN, folder_of, path_knob, reading
from ..entries import register
from ..federation import Federation
from ..partition import largest_clients
from ..read.folders import decode
from ..splits import Shares

FILE = "federated_train.csv"
COLUMNS = ("user_id", "image_id", "class")
IMAGE = re.compile(r"[0-9A-Za-z_-]{3,64}")
ROWS = 10_000_000  # of the map at most; the published one has 164,172

Row = tuple[str, str, str]  # user, image, class


@register("gldv2")
@dataclass(frozen=True)
class Gldv2(Shares):
    """Photographs of landmarks by photographer, 2,028 classes (GLDv2); from your files.

    Hsu, Qi and Brown (2020), Federated visual classification with real-world data distribution.
    """

    size: int = knob(64, "resize to size x size pixels", low=1)
    clients: int = knob(0, "number of clients, the users with most pictures; 0: all", low=0)
    minimum: int = knob(10, "least pictures of a client; others are left out", low=1)
    skip_missing: bool = knob(False, "leave out pictures that are not there; otherwise refused")
    memory: float = knob(8.0, "most GiB that the pictures may take as numbers", above=0)
    path: str = path_knob("gldv2")

    def load(self) -> Federation:
        folder = folder_of("gldv2", self.path)
        rows, files = self._with_pictures(read_map(folder / FILE), folder)
        sizes = Counter(user for user, *_ in rows)
        users = set(largest_clients(sizes, self.clients, self.minimum))
        used = [i for i, (user, *_) in enumerate(rows) if user in users]
        names = sorted({rows[i][2] for i in used}, key=lambda name: (len(name), name))
        return Federation.from_arrays(
            decode([files[i] for i in used], folder, self.size, "rgb", self.memory),
            [rows[i][2] for i in used],
            [rows[i][0] for i in used],
            class_names=names,
            channels="first",
            **self.shares(),
            name="gldv2",
        )

    def _with_pictures(self, rows: list[Row], folder: Path) -> tuple[list[Row], list[Path]]:
        """The rows whose pictures are there, and where, relative to the folder."""
        places = [_picture(folder, image) for _, image, _ in rows]
        lost = [image for (_, image, _), place in zip(rows, places, strict=True) if not place]
        if lost and not self.skip_missing:
            raise SettingError(
                f"path: {len(lost)} of {len(rows)} pictures are not in {folder}, the first is "
                f"{lost[0]}.jpg; {option('skip_missing', True)} leaves them out"
            )
        if lost:
            note(f"gldv2: {len(lost)} of {len(rows)} pictures are not there and left out")
        there = [(r, p) for r, p in zip(rows, places, strict=True) if p is not None]
        return [row for row, _ in there], [place for _, place in there]


def read_map(path: Path) -> list[Row]:
    """Who took which picture of what."""
    if not path.is_file():
        raise SettingError(f"path: {path.parent} holds no file {path.name}; {OWN['gldv2'].expects}")
    rows: list[Row] = []
    columns = ", ".join(COLUMNS)
    with reading(path, f"a map of pictures with columns {columns}"):
        with open(path, encoding="utf-8-sig", newline="") as lines:
            for line in csv.DictReader(lines):
                user, image, label = (line.get(name) for name in COLUMNS)
                if not user or not image or not label or not IMAGE.fullmatch(image):
                    raise ValueError(f"row {len(rows) + 1} is {shown(line, 100)}")
                rows.append((user, image, label))
                if len(rows) > ROWS:
                    raise ValueError(f"more than {ROWS} rows")
        if not rows:
            raise ValueError("no rows")
    return rows


def _picture(folder: Path, image: str) -> Path | None:
    """Where a picture is, relative to the folder; None: nowhere."""
    nested = Path(*image[:3], f"{image}.jpg")
    for place in ("train", "images", "."):
        for path in (Path(place, nested), Path(place, f"{image}.jpg")):
            if (folder / path).is_file():
                return path
    return None
