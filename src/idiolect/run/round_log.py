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

import os
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.files import csv_text, on_disk, private_opener, unwritten, write_atomic
from ..core.knobs import SettingError
from ..core.text import warn
from ..server.server import Server
from .directory import RunDirectory

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
        """Bring metrics.csv to the evaluated rounds so far, before this seed continues."""
        if self.folder is None:
            return
        path = self.folder.path / "metrics.csv"
        content = csv_text(lines, header=True) if lines else b""
        mark = Mark().and_then(content)
        metrics = GrowingFile(path)
        if not metrics.back_to(mark):
            with on_disk(path.name, path):
                write_atomic(path, content)
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

    def round_done(self, server: Server, rounds: int, delays: list[Line]) -> None:
        """A round is over: the account of its messages, and how long each has taken."""
        late = self.files.get("delays")
        if late is not None and delays:
            lines = [{"seed": self.seed, **line} for line in delays]
            self._append(late, "the delays", csv_text(lines, header=not late.mark.size))
        file = self.files.get("ledger")
        entry = server.ledger.last
        if file is None or entry is None:
            return
        fates = {"rejected": entry.rejected, "missing": entry.missing, "surplus": entry.surplus}
        line = {
            "seed": self.seed,
            "round": rounds,
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
        names = ("ledger", "accuracy", *(["delays"] if marks.get("delays", Mark()).size else []))
        return {name: marks[name] for name in names if name in marks}

    def load(self, saved: dict[str, Any], evaluated: int) -> None:
        """Return to the state of a checkpoint after `evaluated` evaluated rounds.

        What came after it is cut off. ValueError where the accuracies are not those of then.
        """
        marks = {name: Mark.of(saved.get(name)) for name in ("ledger", "accuracy")}
        marks["delays"] = Mark.of(saved["delays"]) if "delays" in saved else Mark()
        accuracy = self.files["accuracy"]
        rows = 4 * self.clients * evaluated
        if marks["accuracy"].size != rows or not accuracy.back_to(marks["accuracy"]):
            raise ValueError(
                f"{accuracy.path} is not as it was when it was saved (lost or changed); "
                "put it back, or continue from an earlier checkpoint"
            )
        for name in ("ledger", "delays"):
            file = self.files[name]
            if not file.back_to(marks[name]):
                warn(f"{file.path} has lost rounds or was changed; it restarts with the next round")

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
        """A last attempt to write what waits."""
        for file in self.files.values():
            if file.path is not None and file.path in unwritten:
                with on_disk(file.path.name, file.path, say=lambda text: None):
                    file.flush()
            file.close()

    def _append(self, file: GrowingFile, what: str, content: bytes) -> None:
        """Append; warn of a full disk once, until there is room again."""
        problems: list[str] = []
        with on_disk(what, file.path, problems.append):
            file.append(content)
        if problems and what not in self._failed:
            warn(problems[0])
        self._failed = self._failed | {what} if problems else self._failed - {what}


PIECE = 1 << 20  # bytes read at once
MAPPED = 8 << 20  # arrays of at least this many bytes are mapped from their file, not read


class Mark(NamedTuple):
    """How far a file had grown: what a checkpoint keeps of it."""

    size: int = 0  # bytes
    crc: int = 0  # CRC-32 of all of them

    @classmethod
    def of(cls, saved: Any) -> Mark:
        """From JSON; ValueError for anything else.

        >>> Mark.of([8, 3])
        Mark(size=8, crc=3)
        """
        whole = isinstance(saved, list) and all(type(n) is int and 0 <= n < 2**63 for n in saved)
        if not whole or len(saved) != 2:
            raise ValueError(f"{saved!r} is not a size and a CRC-32")
        return cls(*saved)

    def and_then(self, content: bytes) -> Mark:
        """The mark with this content appended."""
        return Mark(self.size + len(content), zlib.crc32(content, self.crc))


class GrowingFile:
    """Appended to piece by piece. What cannot be written waits in memory and is tried again.

    Without a path it is a temporary file without a name, which ends with the process.

    >>> file = GrowingFile(None)
    >>> file.append(b"round 1;")
    >>> mark = file.mark
    >>> file.append(b"round 2;")
    >>> file.back_to(mark)
    True
    >>> file.append(b"another 2;")
    >>> file.read()
    b'round 1;another 2;'
    """

    def __init__(self, path: Path | None):
        self.path = path
        self.mark = Mark()  # of all that was appended, written or not
        self._written = 0  # bytes of it that are in the file; what follows them there is void
        self._waiting: list[bytes] = []
        self._handle = -1  # opened when it is first needed

    def append(self, content: bytes) -> None:
        """More at the end. OSError where it could not be written: it then waits in memory."""
        self.mark = self.mark.and_then(content)
        self._waiting.append(content)
        self.flush()

    def flush(self) -> None:
        """Write what waits, and cut off what is void."""
        handle = self._open(create=bool(self._waiting))
        if handle < 0:
            return
        if os.fstat(handle).st_size != self._written:
            os.ftruncate(handle, self._written)
        while self._waiting:
            os.lseek(handle, self._written, os.SEEK_SET)
            rest = memoryview(self._waiting[0])
            while rest:
                rest = rest[os.write(handle, rest) :]
            self._written += len(self._waiting[0])
            del self._waiting[0]

    def sync(self) -> Mark:
        """All of it on the disk itself; how far it has grown."""
        self.flush()
        if self._handle >= 0 and self.path is not None:
            os.fsync(self._handle)
        return self.mark

    def back_to(self, mark: Mark) -> bool:
        """Whether the file begins with what was marked; if so, that alone is its content now."""
        content_mark = Mark()
        for piece in self._pieces(mark.size):
            content_mark = content_mark.and_then(piece)
        if content_mark != mark:
            return False
        longer = self._handle >= 0 and os.fstat(self._handle).st_size > mark.size
        if longer and self.path is not None:
            # a new file: the old one may be mapped by the result of an earlier run
            write_atomic(self.path, self._pieces(mark.size))
            self.close()
        self.mark = mark
        self._written = mark.size
        self._waiting = []
        return True

    def cut(self, size: int) -> None:
        """Remove this many bytes from the end.

        >>> file = GrowingFile(None)
        >>> file.append(b"round 1;round 2;")
        >>> file.cut(8)
        >>> file.read()
        b'round 1;'
        """
        mark = Mark()
        for piece in self._pieces(self.mark.size - size):
            mark = mark.and_then(piece)
        self.back_to(mark)

    def read(self) -> bytes:
        """The content, written or not."""
        return b"".join([*self._pieces(self._written), *self._waiting])

    def array(self, columns: int) -> np.ndarray:
        """The content as rows of float32: in memory while small or unwritten, else mapped."""
        if self.mark.size < MAPPED or self._waiting:
            return np.frombuffer(bytearray(self.read()), np.float32).reshape(-1, columns)
        with os.fdopen(os.dup(self._open()), "rb") as file:
            flat = np.memmap(file, np.float32, mode="c", shape=(self.mark.size // 4,))
        return np.asarray(flat).reshape(-1, columns)

    def close(self) -> None:
        """Nothing more comes, or not by this handle."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def __del__(self) -> None:
        self.close()

    def _pieces(self, size: int) -> Iterator[bytes]:
        handle = self._open()
        at = 0
        while handle >= 0 and at < size:
            os.lseek(handle, at, os.SEEK_SET)
            piece = os.read(handle, min(PIECE, size - at))
            if not piece:
                return
            at += len(piece)
            yield piece

    def _open(self, create: bool = False) -> int:
        """The handle of the file; -1 where there is none (yet)."""
        if self._handle < 0 and self.path is not None:
            self._handle = _opened(self.path, create)
        elif self._handle < 0 and create:
            try:
                with tempfile.TemporaryFile() as file:
                    self._handle = os.dup(file.fileno())
            except OSError:  # no folder for temporary files: it all stays in memory
                return -1
        return self._handle


def _opened(path: Path, create: bool) -> int:
    flags = os.O_RDWR | (os.O_CREAT if create else 0)
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = private_opener(str(path), flags)
    except FileNotFoundError:
        if create:
            raise
        return -1
    except OSError as error:
        if create and not (path.exists() or path.is_symlink()):
            raise  # no room for a new file
        raise SettingError(f"directory: cannot write to {path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SettingError(f"directory: {path} is not a regular file")
    return handle
