"""Activities of 30 people by the sensors of a phone at the waist (UCI HAPT), a client each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core.knobs import SettingError, knob
from ..download import file_in, folder_of, path_knob, reading
from ..entries import register
from ..federation import Federation
from ..splits import SPLITS, Shares
from . import pickles

SIGNALS = "hapt-signals.npy"
ROWS = "hapt-rows.npy"
CHANNELS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")  # 1 to 6
LIMIT = 1 << 28  # bytes of a file; the larger one has 27 MB


@register("hapt")
@dataclass(frozen=True)
class Hapt(Shares):
    """What 30 people do (six activities), by windows of acceleration and rotation of their phone.

    Reyes-Ortiz, Oneto, Samà, Parra and Anguita (2016), Transition-aware human activity recognition
    using smartphones.
    """

    window: int = knob(128, "samples in a window, at 50 per second", low=1)
    step: int = knob(64, "samples from one window to the next", low=1)
    path: str = path_knob("hapt")

    def load(self) -> Federation:
        folder = folder_of("hapt", self.path)
        signals = _read(folder, SIGNALS, np.dtype("<f4"), 6)
        rows = _read(folder, ROWS, np.dtype("<i2"), 3)
        if len(signals) != len(rows):
            raise SettingError(f"path: {folder} has {len(signals)} signals for {len(rows)} rows")
        first, run = cut(np.asarray(rows), self.window, self.step)
        if not len(first):
            raise SettingError(
                f"window must be shorter than the activities, got {self.window} samples"
            )
        user, _, label = rows[first].astype(np.int64).T
        part = draw_parts(user * 10 + label, first, run, self)
        used = part >= 0
        first = first[used]
        windows = signals[first[:, None] + np.arange(self.window)]  # [n, window, 6]
        return Federation.from_arrays(
            np.ascontiguousarray(windows.transpose(0, 2, 1)),  # channels first
            label[used] - 1,
            user[used],
            split=np.array(SPLITS)[part[used]],
            classes=len(ACTIVITIES),
            class_names=ACTIVITIES,
            name="hapt",
        )


def cut(rows: np.ndarray, window: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """First sample and run of each window; a run is one activity of one recording without a break.

    >>> rows = np.array([[1, 0, 5]] * 5 + [[1, 0, -1]] + [[1, 1, 2]] * 4)
    >>> [part.tolist() for part in cut(rows, window=3, step=1)]
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
    group: np.ndarray, first: np.ndarray, run: np.ndarray, settings: Hapt
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
    place = (np.random.default_rng(settings.seed).random(len(sizes)) * sizes).astype(np.int64)
    rank = (rank + place[group]) % sizes[group]
    tests = np.rint(settings.test * sizes).astype(np.int64)
    valids = np.rint(settings.valid * (sizes - tests)).astype(np.int64)
    part = np.where(rank < tests[group], 2, np.where(rank < (tests + valids)[group], 1, 0))
    out = part.copy()
    for gap in range(1, -(-settings.window // settings.step)):  # windows of one run are neighbours
        near = (run[gap:] == run[:-gap]) & (first[gap:] - first[:-gap] < settings.window)
        earlier, later = part[:-gap], part[gap:]
        out[:-gap][near & (earlier < later)] = -1
        out[gap:][near & (later < earlier)] = -1
    return out


def _read(folder: Path, name: str, kind: np.dtype, columns: int) -> np.ndarray:
    """An array in a file, which stays there until it is used."""
    path = file_in(folder, name, LIMIT)
    with reading(path, "the hapt data"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.dtype != kind or array.ndim != 2 or array.shape[1] != columns or not len(array):
            raise ValueError(f"{array.dtype}{list(array.shape)}; {kind}[n, {columns}] is expected")
    return array


def recordings_to_arrays(folder: Path) -> None:
    """`hapt.pkl`, {user: [frame]}, as `hapt-signals.npy` and `hapt-rows.npy`.

    Signals are float32[n, 6]; rows are int16[n, 3]: user, recording and label of each sample.
    """
    users = pickles.read((folder / "hapt.pkl").read_bytes())
    if not isinstance(users, dict) or not all(type(user) is int for user in users):
        raise SettingError("hapt.pkl: a dict of users is expected")
    signals = []
    rows = []
    count = 0
    for user in sorted(users):
        for frame in users[user]:
            table = pickles.table(frame)
            missing = [name for name in (*CHANNELS, "label") if name not in table]
            if missing:
                raise SettingError(f"hapt.pkl: user {user} has no column {missing[0]!r}")
            label = table["label"]
            signals.append(np.stack([table[name] for name in CHANNELS], 1).astype("<f4"))
            place = np.broadcast_to([user, count], (len(label), 2))
            rows.append(np.column_stack([place, label]).astype("<i2"))
            count += 1
    np.save(folder / "hapt-signals.npy", np.concatenate(signals))
    np.save(folder / "hapt-rows.npy", np.concatenate(rows))
