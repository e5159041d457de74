"""FEMNIST, handwritten characters by writer, from the files that LEAF writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...core.knobs import SettingError, knob
from ...core.text import note, shown
from ..download import OWN, folder_of, path_knob, reading
from ..entries import register
from ..federation import Federation
from ..partition import largest_clients
from ..read.convert import check_memory
from ..splits import Shares, complete_split

CLASSES = 62
SIDE = 28
LIMIT = 1 << 30  # bytes of a file; LEAF writes about 100 writers per file, some 100 MB

WriterSamples = dict[str, list[tuple[str, np.ndarray, np.ndarray]]]  # writer -> (split, x, y)


@register("femnist")
@dataclass(frozen=True)
class Femnist(Shares):
    """FEMNIST: handwritten digits and letters by writer, 28x28, 62 classes; from LEAF's files.

    Caldas et al. (2018), LEAF: a benchmark for federated settings.
    """

    clients: int = knob(0, "number of clients, the writers with most samples; 0: all", low=0)
    minimum: int = knob(10, "least samples of a client; others are left out", low=1)
    test: float = knob(
        0.2,
        "share of each client's samples kept for testing, where no folder test is",
        low=0,
        below=1,
    )
    memory: float = knob(8.0, "most GiB that the pictures may take", above=0)
    path: str = path_knob("femnist")

    def load(self) -> Federation:
        samples = self._choose(read_leaf(folder_of("femnist", self.path), self.memory))
        parts = [(writer, *part) for writer in sorted(samples) for part in samples[writer]]
        sizes = [len(y) for *_, y in parts]
        client = np.repeat(np.array([writer for writer, *_ in parts], dtype=object), sizes)
        options: dict[str, Any] = {}
        if any(split for _, split, *_ in parts):
            splits = np.repeat([split for _, split, *_ in parts], sizes)
            options["split"] = complete_split(splits, client, **self.shares())
        else:
            options = self.shares()
        return Federation.from_arrays(
            np.concatenate([x for _, _, x, _ in parts]).reshape(-1, 1, SIDE, SIDE),
            np.concatenate([y for *_, y in parts]),
            client,
            classes=CLASSES,
            channels="first",
            name="femnist",
            **options,
        )

    def _choose(self, samples: WriterSamples) -> WriterSamples:
        trains = {w for w, parts in samples.items() if any(split != "test" for split, *_ in parts)}
        if dropped := len(samples) - len(trains):
            note(f"femnist: {dropped} writers are left out: no training samples")
        sizes = {w: sum(len(y) for *_, y in samples[w]) for w in trains}
        return {w: samples[w] for w in largest_clients(sizes, self.clients, self.minimum)}


def read_leaf(folder: Path, memory: float) -> WriterSamples:
    """All samples below a folder; a split is "" where the folder is not divided."""
    divided = (folder / "train").is_dir()
    places = [(s, folder / s) for s in ("train", "test")] if divided else [("", folder)]
    files = [(split, path) for split, place in places for path in sorted(place.glob("*.json"))]
    if not files or (divided and files[0][0] != "train"):
        where = folder / "train" if divided else folder
        raise SettingError(f"path: {where} holds no .json file; {OWN['femnist'].expects}")
    samples: WriterSamples = {}
    size = 0
    for split, path in files:
        for writer, x, y in _read(path):
            size += x.nbytes
            check_memory(size, memory, "path", "the pictures")
            samples.setdefault(writer, []).append((split, x, y))
    return samples


def _read(path: Path) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(writer, float32[n, 784], int64[n]) of one file."""
    with reading(path, "a file of LEAF's femnist"):
        if path.stat().st_size > LIMIT:
            raise ValueError(f"more than {LIMIT} bytes")
        data = json.loads(path.read_bytes())["user_data"]
        return [(writer, *_samples(writer, own["x"], own["y"])) for writer, own in data.items()]


def _samples(writer: str, x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    pixels = np.asarray(x, dtype=np.float32)
    labels = np.asarray(y)
    if pixels.shape != (len(labels), SIDE * SIDE) or not len(labels):
        raise ValueError(
            f"writer {shown(writer, 60)!r} has x of shape {pixels.shape} for {len(labels)} of y; "
            f"[n, {SIDE * SIDE}] is expected"
        )
    whole = labels.dtype.kind in "iu" and labels.ndim == 1
    if not whole or labels.min() < 0 or labels.max() >= CLASSES:
        raise ValueError(f"writer {shown(writer, 60)!r} has a y that is none of 0 to {CLASSES - 1}")
    return pixels, labels.astype(np.int64)
