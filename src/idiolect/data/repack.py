"""What a package holds, turned into the plain files that are kept: by `Way.convert`, in a folder.

Kept files are arrays (.npy), IDX, CSV and JSON lines, always the same bytes for the same package,
so that they can be held to a SHA-256. No pickle is kept.
"""

from __future__ import annotations

import csv
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..core.knobs import SettingError
from .sets import images as idx
from .sets import pickles as pickled
from .sets import shakespeare as plays

CHANNELS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
UNPACKED = 1 << 26  # bytes of a table of R; the largest we take has 6 MB


def recordings_to_arrays(folder: Path) -> None:
    """`hapt.pkl`, {user: [frame]}, as `hapt-signals.npy` and `hapt-rows.npy`.

    Signals are float32[n, 6]; rows are int16[n, 3]: user, recording and label of each sample.
    """
    users = pickled.read((folder / "hapt.pkl").read_bytes())
    if not isinstance(users, dict) or not all(type(user) is int for user in users):
        raise SettingError("hapt.pkl: a dict of users is expected")
    signals = []
    rows = []
    count = 0
    for user in sorted(users):
        for frame in users[user]:
            table = pickled.table(frame)
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


def table_to_csv(name: str, columns: tuple[str, ...]) -> Callable[[Path], None]:
    """A converter of `NAME.pkl.xz`, a pickled frame, to these columns of it as `NAME.csv`."""

    def convert(folder: Path) -> None:
        with lzma.open(folder / f"{name}.pkl.xz") as stream:
            raw = stream.read(UNPACKED + 1)
        if len(raw) > UNPACKED:
            raise SettingError(f"{name}: the table unpacks to more than {UNPACKED} bytes")
        table = pickled.table(pickled.read(raw))
        missing = [column for column in columns if column not in table]
        if missing:
            raise SettingError(f"{name}: the table has no column {missing[0]!r}")
        lists = [np.asarray(table[column], dtype=object).tolist() for column in columns]
        with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*lists, strict=True))  # None is written as nothing

    return convert


def plays_to_lines(folder: Path) -> None:
    """The plays, NAME_gut.txt, as `shakespeare.jsonl`, a line {"play", "role", "text"} per speech.

    In the order of the plays' names and of the speeches.
    """
    with open(folder / "shakespeare.jsonl", "w", encoding="ascii", newline="\n") as out:
        for path in sorted(folder.glob("*_gut.txt")):
            text = path.read_bytes().decode("latin-1")
            play = path.name.removesuffix("_gut.txt")
            for role, said in plays.speeches(text):
                out.write(json.dumps({"play": play, "role": role, "text": said}) + "\n")


def drawings_to_idx(folder: Path) -> None:
    """The drawings, NAME.ndjson, as `quickdraw-images-idx4-ubyte` and `quickdraw-classes.txt`.

    Images are bytes [classes, drawings, 28, 28]; classes are in order of their names.
    """
    paths = sorted(folder.glob("*.ndjson"))
    classes = []
    for path in paths:
        values = np.array([json.loads(line) for line in path.read_bytes().splitlines()], np.float64)
        if values.shape != (100, 784) or not ((values >= 0) & (values <= 1)).all():
            raise SettingError(f"{path.name}: 100 drawings of 784 values in [0, 1] are expected")
        classes.append(np.rint(values * 255).astype(np.uint8).reshape(100, 28, 28))
    idx.write(folder / "quickdraw-images-idx4-ubyte", np.stack(classes))
    names = "".join(f"{path.name.removesuffix('.ndjson')}\n" for path in paths)
    (folder / "quickdraw-classes.txt").write_bytes(names.encode())
