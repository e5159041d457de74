"""What a seed writes as its rounds end, so that a killed run has left something to read.

    metrics.csv          a line per evaluated round, of all seeds
    ledger-seed-0.csv    a line per round: what became of the messages that were asked for
    delays-seed-0.csv    a line per message, where time is simulated or training asynchronous
    accuracy-seed-0.f32  a row per evaluated round: test accuracy of every client, float32[clients]

A checkpoint keeps how far the others had grown, and a resumed run cuts off what came after;
metrics.csv is that of the history which the checkpoint holds. Without a directory there are only
the accuracies, in a temporary file without a name.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.text import csv_cell
from ..server.server import Server
from .check import warn
from .directory import RunDirectory
from .growing import GrowingFile, Mark
from .on_disk import on_disk

Line = dict[str, Any]


class Journal:
    """The growing files of one seed."""

    def __init__(self, folder: RunDirectory | None, seed: int, clients: int):
        self.folder = folder
        self.seed = seed
        self.clients = clients
        self.files: dict[str, GrowingFile] = {}  # by the name under which a checkpoint keeps them
        if folder is not None:
            for name in ("ledger", "delays"):
                self.files[name] = GrowingFile(folder.path / f"{name}-seed-{seed}.csv")
        path = None if folder is None else folder.path / f"accuracy-seed-{seed}.f32"
        self.files["accuracy"] = GrowingFile(path)
        self._failed: set[str] = set()  # what could not be written the last time

    def begin(self, lines: list[Line]) -> None:
        """metrics.csv as it is before this seed goes on: with the evaluated rounds so far."""
        if self.folder is None:
            return
        path = self.folder.path / "metrics.csv"
        content = csv_text(lines, header=True) if lines else b""
        mark = Mark().and_then(content)
        metrics = GrowingFile(path)
        if not metrics.back_to(mark):
            with on_disk(path.name):
                self.folder.write(path.name, content)
            metrics = GrowingFile(path)
            if not metrics.back_to(mark):
                self._append(metrics, path.name, content)
        self.files["metrics"] = metrics

    def evaluated(self, figures: Mapping[str, float], accuracy: np.ndarray) -> None:
        """A round was evaluated: its figures, and the accuracy of every client."""
        row = np.ascontiguousarray(accuracy, np.float32)
        self._append(self.files["accuracy"], "the accuracies of clients", row.tobytes())
        if metrics := self.files.get("metrics"):
            line = {"seed": self.seed, **figures}
            self._append(metrics, "metrics.csv", csv_text([line], header=not metrics.mark.size))

    def round_done(self, server: Server, round: int, delays: list[Line]) -> None:
        """A round is over: the account of its messages, and how long each has taken."""
        late = self.files.get("delays")
        if late is not None and delays:
            lines = [{"seed": self.seed, **line} for line in delays]
            safe = [{n: csv_cell(v) for n, v in line.items()} for line in lines]
            self._append(late, "the delays", csv_text(safe, header=not late.mark.size))
        file = self.files.get("ledger")
        entry = server.ledger.last
        if file is None or entry is None:
            return
        fates = {"rejected": entry.rejected, "missing": entry.missing, "surplus": entry.surplus}
        line = {
            "seed": self.seed,
            "round": round,
            "selected": entry.selected,
            "admitted": entry.admitted,
            **{fate: sum(reasons.values()) for fate, reasons in fates.items()},
            **{name: server.ledger.total(name) for name in ("bytes_up", "bytes_down")},
            "reasons": "; ".join(
                f"{fate}: {reason} {count}"
                for fate, reasons in fates.items()
                for reason, count in sorted(reasons.items())
            ),
        }
        self._append(file, "the ledger", csv_text([line], header=not file.mark.size))

    def save(self) -> dict[str, Mark]:
        """How far the files have grown, all of it on the disk; OSError where it is full."""
        marks = {name: file.sync() for name, file in self.files.items()}
        kept = ("ledger", "accuracy", *(["delays"] if marks.get("delays", Mark()).size else []))
        return {name: marks[name] for name in kept if name in marks}

    def load(self, saved: dict[str, Any], evaluated: int) -> None:
        """Back to what a checkpoint kept, after so many evaluated rounds.

        What came after it is cut off. ValueError where the accuracies are not what was kept.
        """
        marks = {name: Mark.of(saved.get(name)) for name in ("ledger", "accuracy")}
        marks["delays"] = Mark.of(saved["delays"]) if "delays" in saved else Mark()
        accuracy = self.files["accuracy"]
        rows = 4 * self.clients * evaluated
        if marks["accuracy"].size != rows or not accuracy.back_to(marks["accuracy"]):
            raise ValueError(
                f"{accuracy.path} is not as it was when it was saved (lost or changed); "
                "put it back, or go on from an earlier checkpoint"
            )
        for name in ("ledger", "delays"):
            file = self.files[name]
            if not file.back_to(marks[name]):
                warn(
                    f"{file.path} has lost rounds or was changed; it begins anew with the next one"
                )

    def grow(self, clients: int) -> None:
        """More clients have joined: in the rounds before they have no accuracy."""
        if clients == self.clients:
            return
        before = self.files["accuracy"]
        rows = before.array(self.clients)
        new = np.full((len(rows), clients - self.clients), np.nan, dtype=np.float32)
        wider = np.ascontiguousarray(np.concatenate([rows, new], axis=1))
        self.clients = clients
        if before.mark.size:
            before.cut(before.mark.size)
            self._append(before, "the accuracies of clients", wider.tobytes())

    def forget_last(self) -> None:
        """The accuracies without those of the last evaluated round."""
        self.files["accuracy"].cut(4 * self.clients)

    def by_client(self) -> np.ndarray:
        """Accuracies of all evaluated rounds, float32[rounds, clients]."""
        return self.files["accuracy"].array(self.clients)

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def _append(self, file: GrowingFile, what: str, content: bytes) -> None:
        """Append; a full disk is said once, until there was room again."""
        said: list[str] = []
        with on_disk(what, said.append):
            file.append(content)
        if said and what not in self._failed:
            warn(said[0])
        self._failed = self._failed | {what} if said else self._failed - {what}


def csv_text(lines: list[Line], header: bool) -> bytes:
    """Lines of a table as CSV.

    >>> csv_text([{"round": 1, "accuracy": 0.5}], header=True)
    b'round,accuracy\\r\\n1,0.5\\r\\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(lines[0]))
    if header:
        writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().encode()
