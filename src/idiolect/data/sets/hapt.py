"""Activities of 30 people by the sensors of a phone at the waist (UCI HAPT), a client each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core.files import given_path
from ...core.knobs import Knobs, SettingError, knob
from .. import fetch
from ..federation import Federation
from ..splits import SPLITS

SIGNALS = "hapt-signals.npy"
ROWS = "hapt-rows.npy"
ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")  # 1 to 6
LIMIT = 1 << 28  # bytes of a file; the larger one has 27 MB


@dataclass(frozen=True)
class Hapt(Knobs):
    """What 30 people do (six activities), by windows of acceleration and rotation of their phone.

    Reyes-Ortiz, Oneto, Samà, Parra and Anguita (2016), Transition-aware human activity recognition
    using smartphones.
    """

    window: int = knob(128, "samples in a window, at 50 per second", low=1)
    step: int = knob(64, "samples from one window to the next", low=1)
    valid: float = knob(0.2, "share of the training windows kept for validation", low=0, below=1)
    test: float = knob(0.2, "share of each client's windows kept for testing", low=0, below=1)
    path: str = knob("", "folder that holds the files; empty: obtained once and kept in the cache")
    seed: int = knob(0, "seed of the split", low=0)

    def load(self) -> Federation:
        folder = given_path(self.path, "path") if self.path else fetch.get("hapt")
        signals = _read(folder / SIGNALS, np.dtype("<f4"), 6)
        rows = _read(folder / ROWS, np.dtype("<i2"), 3)
        if len(signals) != len(rows):
            raise SettingError(f"path: {folder} has {len(signals)} signals for {len(rows)} rows")
        first, run = cut(np.asarray(rows), self.window, self.step)
        if not len(first):
            raise SettingError(
                f"window: {self.window} is not accepted; no activity lasts as many samples"
            )
        user, _, label = rows[first].astype(np.int64).T
        part = draw_parts(user * 10 + label, first, run, self)
        kept = part >= 0
        first = first[kept]
        windows = signals[first[:, None] + np.arange(self.window)]  # [n, window, 6]
        return Federation.from_arrays(
            np.ascontiguousarray(windows.transpose(0, 2, 1)),  # channels first
            label[kept] - 1,
            user[kept],
            split=np.array(SPLITS)[part[kept]],
            classes=len(ACTIVITIES),
            class_names=ACTIVITIES,
            name="hapt",
        )


def cut(rows: np.ndarray, window: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """First sample and run of each window; a run is one activity of one recording without a break.

    >>> rows = np.array([[1, 0, 5]] * 5 + [[1, 0, -1]] + [[1, 1, 2]] * 4)
    >>> [found.tolist() for found in cut(rows, window=3, step=1)]
    [[0, 1, 2, 6, 7], [0, 0, 0, 2, 2]]
    """
    ends = np.flatnonzero((rows[1:] != rows[:-1]).any(1)) + 1
    starts = np.concatenate([[0], ends])
    sizes = np.diff(np.concatenate([starts, [len(rows)]]))
    label = rows[starts, 2]
    named = (label >= 1) & (label <= len(ACTIVITIES))
    many = np.where(named & (sizes >= window), (sizes - window) // step + 1, 0)
    within = np.arange(many.sum()) - np.repeat(many.cumsum() - many, many)
    run = np.repeat(np.arange(len(starts)), many)
    return starts[run] + within * step, run


def draw_parts(
    group: np.ndarray, first: np.ndarray, run: np.ndarray, how: Hapt
) -> np.ndarray:  # -> int64[n]: 0, 1, 2 for train, valid and test, -1: left out
    """A split of the windows of each group (a person's activity), without samples in common.

    Windows overlap, so the windows of a group that test are consecutive, from a random place on,
    and so are the next ones, which validate. A training window that shares samples with one of
    those is left out, and so is a validation window that shares some with a test window.
    """
    _, group = np.unique(group, return_inverse=True)
    sizes = np.bincount(group)
    order = np.lexsort((first, group))
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(group)) - np.repeat(sizes.cumsum() - sizes, sizes)
    place = (np.random.default_rng(how.seed).random(len(sizes)) * sizes).astype(np.int64)
    rank = (rank + place[group]) % sizes[group]
    tests = np.rint(how.test * sizes).astype(np.int64)
    valids = np.rint(how.valid * (sizes - tests)).astype(np.int64)
    part = np.where(rank < tests[group], 2, np.where(rank < (tests + valids)[group], 1, 0))
    out = part.copy()
    for gap in range(1, -(-how.window // how.step)):  # windows of one run are neighbours
        near = (run[gap:] == run[:-gap]) & (first[gap:] - first[:-gap] < how.window)
        left, right = part[:-gap], part[gap:]
        out[:-gap][near & (left < right)] = -1
        out[gap:][near & (right < left)] = -1
    return out


def _read(path: Path, kind: np.dtype, columns: int) -> np.ndarray:
    """An array in a file, which stays there until it is used."""
    if not path.is_file():
        raise SettingError(f"path: {path.parent} holds no file {path.name}")
    try:
        if path.stat().st_size > LIMIT:
            raise ValueError(f"more than {LIMIT} bytes")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.dtype != kind or array.ndim != 2 or array.shape[1] != columns or not len(array):
            raise ValueError(f"{array.dtype}{list(array.shape)}; {kind}[n, {columns}] is expected")
    except (ValueError, OSError, EOFError, SyntaxError, TypeError) as e:
        raise SettingError(f"path: {path} is not the hapt data: {e}") from None
    return array
