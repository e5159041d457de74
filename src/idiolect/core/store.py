"""Rows of many clients: made when a client is first met, versioned by round, in a file when large.

Rows that a round has replaced are kept until it is settled, so that a round can be run again (else
a repeated message would step twice) and so that a client whose message did not count can go back
to the row it had before. A store whose rounds are never run again and never taken back can do
without (`keep`).
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from .files import FULL, private_opener
from .knobs import SettingError
from .scratch import ScratchFolder
from .tensors import Shapes, check_shapes, shapes_of
from .types import State, prefixed, under

_COPIED = 64 << 20  # bytes of rows that are copied between files at once


@dataclass(frozen=True, eq=False)
class _Before:
    """Rows as they were before a round."""

    round: int
    ids: Tensor  # increasing
    version: Tensor  # the rounds that wrote them
    rows: State


class Store:
    """Rows by number: `read(ids, round)` before an update, `write(ids, round, rows)` after it.

    >>> store = Store(3, lambda ids: {"x": torch.zeros(len(ids), 1)})
    >>> ids = torch.tensor([0, 2])
    >>> store.write(ids, 0, {"x": store.read(ids, 0)["x"] + 1})
    >>> store.back(torch.tensor([2]), 0)
    >>> store.settle(0)
    >>> store.read(torch.arange(3))["x"].flatten().tolist()
    [1.0, 0.0, 0.0]
    """

    def __init__(
        self,
        clients: int,
        fresh: Callable[[Tensor], State],
        limit: int = 2 << 30,
        scratch: Path | None = None,
        keep: bool = True,
    ):
        self.clients = clients
        self.fresh = fresh  # numbers of clients met for the first time -> their rows
        self.limit = limit  # bytes before rows move to a file
        self.scratch = scratch
        self.keep = keep
        self.rows: State = {}
        self.version = _unmet(clients)  # the round that wrote the row; -1: not yet met
        self.made = torch.zeros(clients, dtype=torch.bool)
        self._before: list[_Before] = []  # of the last round
        self._files: RowFiles | None = None

    @property
    def file_backed(self) -> bool:
        """Whether rows are in files."""
        return self._files is not None

    # -- a round ---------------------------------------------------------------------------------
    def read(self, ids: Tensor, round: int | None = None) -> State:
        """Rows of these clients; with a round, as they were before that round.

        A round that wrote rows and was settled, or was saved half done, cannot be run again.
        """
        self._meet(ids)
        rows = self._at(ids)
        if not self.keep or round is None:
            return rows
        again = self.version[ids] == round
        if not bool(again.any()):
            return rows
        rows = {n: t.clone() for n, t in rows.items()}
        kept_ids = torch.cat([ids[:0], *(b.ids for b in self._before if b.round == round)])
        if not bool(torch.isin(ids[again], kept_ids).all()):
            raise RuntimeError(
                f"round {round} has written these rows before, and what they were is not kept"
            )
        for before in self._before:
            mine = again & torch.isin(ids, before.ids)
            at = torch.searchsorted(before.ids, ids[mine])
            for n, t in rows.items():
                t[mine.to(t.device)] = before.rows[n][at.to(t.device)]
        return rows

    def all(self) -> State:
        """The rows of all clients, as they are: not copied, wherever they are."""
        if self.rows or self._like():
            self._meet(torch.arange(self.clients))
        return self.rows

    def write(self, ids: Tensor, round: int, rows: State) -> None:
        """New rows after `round`; ids are increasing."""
        if not rows:
            return
        self._check(ids, rows)
        new = ids[self.version[ids] != round]
        if not self.keep and len(new) < len(ids):
            raise RuntimeError(
                f"round {round} is run again, and this store keeps no rows from before"
            )
        if self.keep and len(new):
            self._keep(round, new, rows)
        if self._all(ids):
            self.rows = {n: t.detach().contiguous() for n, t in rows.items()}
            if len({t.data_ptr() for t in self.rows.values()}) < len(self.rows):
                self.rows = {n: t.clone() for n, t in self.rows.items()}  # one tensor, two names
        else:
            for n, t in rows.items():
                self.rows[n][ids.to(t.device)] = t
        self.version[ids] = round

    def back(self, ids: Tensor, round: int) -> None:
        """Rows of these clients as they were before `round`; others of it are not touched."""
        if not self.rows:
            return
        written = ids[self.version[ids] == round]
        if len(written) and not self.keep:
            raise RuntimeError(f"round {round}: this store keeps no rows from before")
        for before in self._before:
            mine = written[torch.isin(written, before.ids)]
            at = torch.searchsorted(before.ids, mine)
            for n, t in self.rows.items():
                t[mine.to(t.device)] = before.rows[n][at.to(t.device)]
            self.version[mine] = before.version[at]

    def settle(self, round: int) -> None:
        """The round is concluded: what was kept from before it is dropped."""
        self._drop([b for b in self._before if b.round <= round])

    def newer(self, round: int) -> Tensor:
        """The clients whose rows were written after this round."""
        return (self.version > round).nonzero().flatten()

    def put(self, ids: Tensor, rounds: Tensor, rows: State) -> None:
        """Restore rows read from a file; ValueError if they do not match."""
        like = shapes_of(self._like())
        check_shapes(shapes_of(rows), {n: ((len(ids), *s[1:]), d) for n, (s, d) in like.items()})
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.clients):
            raise ValueError("ids: unknown client row")
        if rounds.shape != ids.shape or rounds.dtype != self.version.dtype:
            raise ValueError("rounds: one for each row is expected")
        if bool((rounds < 0).any()):
            raise ValueError("rounds: whole numbers >= 0 are expected")
        self._meet(ids)
        for n, t in rows.items():
            own = self.rows[n]
            own[ids.to(own.device)] = t.to(own.device)
        self.version[ids] = rounds

    def forget(self) -> None:
        """Forget all clients."""
        self._drop(self._before)
        self.rows = {}
        self._files = None
        self.version = _unmet(self.clients)
        self.made = torch.zeros(self.clients, dtype=torch.bool)

    def grow(self, clients: int) -> None:
        """Room for more clients, at the end."""
        more = clients - self.clients
        if more < 0:
            raise ValueError(
                f"clients must be at least the {self.clients} of the store, got {clients}"
            )
        old = self.rows
        old_files = self._files  # the old rows, until they are copied
        old_made = self.made
        self.clients = clients
        self.version = torch.cat([self.version, _unmet(more)])
        self.made = torch.cat([old_made, torch.zeros(more, dtype=torch.bool)])
        if old:
            self._allocate(old)
            self._fill(old_made.nonzero().flatten(), old)
        del old_files

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self) -> State:
        """Everything, for a checkpoint."""
        return {**prefixed(self.rows, "rows."), "version": self.version, "made": self.made}

    def expected(self, clients: int | None = None, rows: bool = True) -> Shapes:
        """Names, shapes and dtypes of what `save` gives, with or without rows."""
        clients = self.clients if clients is None else clients
        shapes = shapes_of({"version": self.version[:0], "made": self.made[:0]})
        if rows:
            shapes |= shapes_of(self._like(), "rows.")
        return {n: ((clients, *shape[1:]), dtype) for n, (shape, dtype) in shapes.items()}

    def check(self, tensors: Shapes, clients: int | None = None) -> None:
        """Refuse what this store cannot have saved, before any of it is used.

        A store that has met no client has saved no rows.
        """
        rows = any(n.startswith("rows.") for n in tensors)
        check_shapes(tensors, self.expected(clients, rows))

    def load(
        self,
        tensors: State,
        device: torch.device | None = None,
        clients: int | None = None,
        rounds: int | Tensor | None = None,
    ) -> None:
        """As it was saved; rows on `device`.

        Names, shapes and dtypes are those that `fresh` declares, for `clients` clients (as many as
        there are here unless given), and no row is newer than the `rounds` that are done,
        given for all rows or for each; anything else is a ValueError.
        """
        self.check(shapes_of(tensors), clients)
        version = tensors["version"].clone()
        made_rows = tensors["made"].clone()
        too_new = torch.zeros(()) if rounds is None else version >= rounds
        if bool((version < -1).any()) or bool(too_new.any()):
            raise ValueError("version: a row is of a round that is not done")
        saved = {n: t.to(device) if device else t for n, t in under(tensors, "rows.").items()}
        if not saved and self._like() and bool(made_rows.any()):
            raise ValueError("made: clients were met, and their rows are missing")
        if saved and bool((version[~made_rows] >= 0).any()):
            raise ValueError("made: a row was written, and its client was never met")
        self.version = version
        self.made = made_rows
        self.clients = len(version)
        self._drop(self._before)
        self.rows = {}
        self._files = None
        if saved:
            self._allocate(saved)
            if self.file_backed:
                self._fill(made_rows.nonzero().flatten(), saved)
            else:
                for n, t in saved.items():
                    self.rows[n].copy_(t)

    def adopt(self, rows: State) -> bool:
        """Start from rows of an earlier stage; only where names and shapes are those kept here."""
        mine = self._like()
        alike = mine.keys() == rows.keys() and all(
            t.shape[1:] == rows[n].shape[1:] and t.dtype == rows[n].dtype for n, t in mine.items()
        )
        if not mine or not alike:
            return False
        everyone = torch.ones(self.clients, dtype=torch.bool)
        self.load({**prefixed(rows, "rows."), "version": self.version, "made": everyone})
        return True

    # -- inside ----------------------------------------------------------------------------------
    def _like(self) -> State:
        """Rows as they are made here, for their names, shapes and dtypes."""
        return self.rows or self.fresh(torch.arange(min(self.clients, 1)))

    def _check(self, ids: Tensor, rows: State) -> None:
        for name, t in rows.items():
            had = self.rows[name]
            if t.shape[1:] != had.shape[1:] or t.dtype != had.dtype or len(t) != len(ids):
                raise ValueError(
                    f"rows {name!r} became {t.dtype}{tuple(t.shape)}; "
                    f"they were {had.dtype}{tuple(had.shape[1:])}"
                )

    def _all(self, ids: Tensor) -> bool:
        """Whether these are all rows in memory, in their order."""
        if self.file_backed or len(ids) != self.clients:
            return False
        return bool((ids[1:] > ids[:-1]).all())

    def _at(self, ids: Tensor) -> State:
        """The rows as they are; all of them are not copied."""
        return {n: t if self._all(ids) else t[ids.to(t.device)] for n, t in self.rows.items()}

    def _keep(self, round: int, ids: Tensor, after: State) -> None:
        """Keep the rows that a round is about to replace; in a file, where rows are in one."""
        self._drop([b for b in self._before if b.round != round])
        rows = self._at(ids)
        addresses = {t.data_ptr() for t in after.values()}
        rows = {n: t.clone() if t.data_ptr() in addresses else t for n, t in rows.items()}
        if self._files is not None:
            file_rows = self._files.rows(len(ids), rows)
            self._files.reserve(file_rows, torch.arange(len(ids)))
            for n, t in file_rows.items():
                t.copy_(rows[n])
            rows = file_rows
        self._before.append(_Before(round, ids, self.version[ids].clone(), rows))

    def _drop(self, entries: list[_Before]) -> None:
        for before in entries:
            if self._files is not None:
                self._files.drop(before.rows)
        self._before = [b for b in self._before if b not in entries]

    def _meet(self, ids: Tensor) -> None:
        new = ids[~self.made[ids]]
        if not len(new):
            return
        rows = self.fresh(new)
        if rows and not self.rows:
            self._allocate(rows)
        if self._files is not None:
            self._files.reserve(self.rows, new.sort().values)
        for n, t in rows.items():
            self.rows[n][new.to(t.device)] = t
        self.made = self.made.index_fill(0, new, True)  # what was saved before stays as it is

    def _allocate(self, like: State) -> None:
        size = sum(t[:1].numel() * t.element_size() for t in like.values()) * self.clients
        on_cpu = all(t.device.type == "cpu" for t in like.values())
        if size > self.limit and on_cpu:
            self._files = RowFiles(self.scratch)
            self.rows = self._files.rows(self.clients, like)
        else:
            self._files = None
            self.rows = {n: t.new_zeros(self.clients, *t.shape[1:]) for n, t in like.items()}

    def _fill(self, ids: Tensor, rows: State) -> None:
        """Copy these rows from elsewhere, a few at a time."""
        if self._files is not None:
            self._files.reserve(self.rows, ids)
        size = sum(t[:1].numel() * t.element_size() for t in rows.values())
        for some in ids.split(max(1, _COPIED // max(size, 1))) if len(ids) else ():
            for n, t in rows.items():
                self.rows[n][some.to(t.device)] = t[some.to(t.device)]


def _unmet(clients: int) -> Tensor:
    return torch.full((clients,), -1, dtype=torch.int64)


_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_ZEROS = bytes(1 << 20)


class RowFiles:
    """A private folder of mapped files; names are ours, and it goes with this object."""

    def __init__(self, scratch: Path | None):
        place = Path(tempfile.gettempdir()) if scratch is None else scratch
        try:
            self._folder = ScratchFolder(place)
        except OSError as error:
            raise _no_room(error, place) from None
        self._place = place
        self._numbers = count()
        self._paths: dict[int, Path] = {}  # address of a mapped tensor -> its file
        self._size = 0  # bytes of all files, were they full

    def rows(self, rows: int, like: State) -> State:
        """Room for this many rows like those given; see `reserve`."""
        self._size += sum(rows * _row_size(t) for t in like.values())
        try:
            return {n: self._map(rows, t) for n, t in like.items()}
        except OSError as error:
            raise _no_room(error, self._place, self._size) from None

    def _map(self, rows: int, like: Tensor) -> Tensor:
        numbers = rows * like[:1].numel()
        if not numbers:
            return like.new_zeros(rows, *like.shape[1:])
        path = Path(self._folder.name) / f"rows-{next(self._numbers)}.bin"
        handle = private_opener(str(path), os.O_CREAT | os.O_EXCL | os.O_RDWR)
        try:
            os.ftruncate(handle, rows * _row_size(like))  # takes no space yet
        finally:
            os.close(handle)
        flat = torch.from_file(str(path), shared=True, size=numbers, dtype=like.dtype)
        self._paths[flat.data_ptr()] = path
        return flat.view(rows, *like.shape[1:])

    def reserve(self, rows: State, ids: Tensor) -> None:
        """Space for these rows, which have never been written; ids are increasing."""
        if not len(ids):
            return
        breaks = (ids.diff() != 1).nonzero().flatten() + 1
        runs = [(int(run[0]), len(run)) for run in ids.tensor_split(breaks)]
        try:
            for t in rows.values():
                if t.numel():
                    _reserve(self._paths[t.data_ptr()], runs, _row_size(t))
        except OSError as error:
            raise _no_room(error, self._place, self._size) from None

    def drop(self, rows: State) -> None:
        """Remove the files of these rows; their space is free once no tensor maps them."""
        for t in rows.values():
            path = self._paths.pop(t.data_ptr(), None)
            if path is not None:
                self._size -= len(t) * _row_size(t)
                path.unlink(missing_ok=True)


def _row_size(rows: Tensor) -> int:
    return rows[:1].numel() * rows.element_size()


def _no_room(error: OSError, place: Path, size: int = 0) -> Exception:
    if error.errno not in FULL:
        return error
    needed = f": they may take {size / 2**30:.3g} GiB" if size else ""
    return SettingError(
        "memory: the clients' rows are larger than the memory they are given, and there is no room "
        f"for them in {place} ({os.strerror(error.errno)}){needed}; make room there, continue with "
        "a larger memory (GiB), or run in a directory on a disk with more room"
    )


def _reserve(path: Path, runs: list[tuple[int, int]], size: int) -> None:
    """Space for runs of rows, (first, how many), in a file."""
    handle = os.open(path, os.O_RDWR)
    try:
        for first, rows in runs:
            _take(handle, first * size, rows * size)
    finally:
        os.close(handle)


def _take(handle: int, offset: int, length: int) -> None:
    """These bytes of a file are on the disk, or it is an OSError."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, offset, length)
            return
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    for at in range(offset, offset + length, len(_ZEROS)):
        os.pwrite(handle, _ZEROS[: offset + length - at], at)
