"""A host in another process, as a run sees it: who is there, and how its rows are saved.

No private row passes through this process while the run goes on: the host writes and reads its
files itself, which must lie where both can reach them. After the run its owner may look at its
models here: then the rows are read from the files that it left.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..core.knobs import SettingError
from ..core.types import State
from ..data.federation import Census, Federation
from ..server.contract import Contract
from .calls import MOST_COUNTED, Call
from .host import Host
from .metrics import Form, Tally
from .scores import Scores
from .settings import HostSettings

Ask = Callable[[Call], Call]


class RemoteHost(Host):
    """A host of the same clients without their rows; what it is asked to do is done elsewhere."""

    ask: Ask | None = None  # how the real one is reached; None when it has gone
    load_data: Callable[[], Federation] | None = None  # when its owner wants models here
    _left: tempfile.TemporaryDirectory[str] | None = None  # its rows, when it has gone

    @classmethod
    def of(
        cls,
        contract: Contract,
        census: Census,
        wire_ids: Tensor,
        settings: HostSettings,
        load_data: Callable[[], Federation],
    ) -> RemoteHost:
        """A stand-in that knows its clients, and has no sample of theirs."""
        made = cls(contract, census, wire_ids, settings)
        made.load_data = load_data
        return made

    def save(self, folder: Path) -> None:
        """The host writes its own files; see `Host.save`."""
        if self.ask is None:
            self._take_over()
            super().save(folder)
            return
        self.ask(Call("save", {"folder": str(folder.absolute())}))
        if not all((folder / name).is_file() for name in self.stores()):
            raise SettingError(
                f"directory: {folder} is not on a disk that this machine shares with its hosts; "
                "a folder that all machines reach under the same path is accepted"
            )

    def load(self, folder: Path, rounds: int | Tensor | None = None) -> None:
        """The host reads its own files, after they were checked as `Host.load` does."""
        if self.ask is None:
            super().load(folder, rounds)
            return
        newest = int(rounds.max()) if isinstance(rounds, Tensor) and len(rounds) else 0
        version = rounds if isinstance(rounds, int) else newest
        tensors = {"rounds": rounds} if isinstance(rounds, Tensor) else {}
        self.ask(Call("load", {"folder": str(folder.absolute()), "version": version}, tensors))

    def adopt(self, earlier: Host) -> None:
        """Rows of an earlier stage, by way of a file."""
        ask, self.ask = self.ask, None
        super().adopt(earlier)
        with tempfile.TemporaryDirectory(prefix="idiolect-rows-") as folder:
            super().save(Path(folder) / "rows")
            self.ask = ask
            self.load(Path(folder) / "rows", 0)
        self._forget_rows()

    def leave(self) -> None:
        """The real host is about to go: it leaves its rows in a folder, for its owner."""
        if self.ask is None:
            return
        self._left = tempfile.TemporaryDirectory(prefix="idiolect-rows-")
        self.save(Path(self._left.name) / "rows")
        self.ask = None

    def personal_rows(self, version: int, message: bytes, wire_ids: Tensor) -> Tensor:  # -> x[K, d]
        """Models for their owner, when the run has ended."""
        self._take_over()
        return super().personal_rows(version, message, wire_ids)

    def all_rows(self) -> State:
        self._take_over()
        return super().all_rows()

    def release(self) -> None:
        if self.ask is None:
            super().release()

    def _take_over(self) -> None:
        if self.ask is not None:
            raise SettingError("models: they are at their hosts while the run goes on")
        if self._left is not None:
            super().load(Path(self._left.name) / "rows")
            self._left.cleanup()
            self._left = None
        if self.load_data is not None:  # some methods train before they predict
            task = self.contract.task
            self.data = self.load_data().to(task.device, task.dtype)
            self.load_data = None

    def _forget_rows(self) -> None:
        for store in self.stores().values():
            store.forget()


class SiteProxy(Host):
    """A host of the clients of a census; what it is asked to do is done elsewhere."""

    def __init__(self, census: Census, wire_ids: Tensor, settings: HostSettings, form: Form):
        if len(wire_ids) != census.clients or bool((wire_ids.diff() <= 0).any()):
            raise ValueError("wire ids: one per client of the census is needed, increasing")
        self.data = census
        self.wire_ids = wire_ids
        self.settings = settings
        self.form = form  # of outputs and targets, for metrics

    def evaluate(
        self, version: int, message: bytes, wire_ids: Tensor, splits: tuple[str, ...]
    ) -> dict[str, Scores]:
        """Scores that nobody has told: of these clients, on no sample."""
        return dict.fromkeys(splits, self._untold(wire_ids))

    def evaluate_shared(
        self,
        version: int,
        message: bytes,
        splits: tuple[str, ...],
        wire_ids: Tensor | None = None,
    ) -> dict[str, Scores]:
        """The same for the shared model."""
        return dict.fromkeys(splits, self._untold(self.wire_ids if wire_ids is None else wire_ids))

    def _untold(self, wire_ids: Tensor) -> Scores:
        mine = self.wire_ids[self.rows(wire_ids)]
        none = torch.zeros(len(mine), dtype=torch.int64)
        metrics = self.settings.metrics
        tally = Tally(metrics, self.form, len(mine), none.nonzero().flatten()) if metrics else None
        measured = tally.measured(torch.arange(len(mine))) if tally else {}
        hits = none.double() if self.data.classes else torch.full((len(mine),), torch.nan).double()
        return Scores(mine, hits, none.double(), none, none, measured)

    def check_scores(
        self, found: Mapping[str, Scores], wire_ids: Tensor, splits: tuple[str, ...]
    ) -> None:
        """Refuse, by ValueError, scores that clients with as many samples as enrolled cannot have.

        Whether they are true is known to their owner alone.
        """
        if set(found) != set(splits):
            raise ValueError("scores: of other splits than were asked for")
        rows = self.rows(wire_ids)
        for split, scores in found.items():
            if not torch.equal(scores.wire_ids, wire_ids):
                raise ValueError("scores: of every client that was asked, in their order")
            # none where the owner does not tell figures of so few
            told = (scores.samples == self.data.sizes(split)[rows]) | (scores.samples == 0)
            if not bool(told.all()):
                raise ValueError("scores: of other numbers of samples than were enrolled")
            outside = (scores.hits < 0) | (scores.hits > scores.samples)
            spent = (scores.gradients < 0) | (scores.gradients > MOST_COUNTED)
            if bool(outside.any()) or bool(spent.any()):
                raise ValueError("scores: hits from none to all samples, gradients >= 0")
            for measured in scores.metrics.values():
                width = (len(rows), measured.metric.width(self.form))
                shape = tuple(measured.metric.shape(self.form))
                if tuple(measured.rows.shape) != width or tuple(measured.counts.shape) != shape:
                    raise ValueError(f"scores: the metric {measured.metric.name} has another form")

    def personal_rows(self, version: int, message: bytes, wire_ids: Tensor) -> Tensor:  # -> x[K, d]
        raise SettingError(
            "models: they are with the owners of the data; each exports its own there: "
            "idiolect host export"
        )

    def digest(self) -> str:
        raise SettingError("models: private rows are with the owners of the data")

    def save(self, folder: Path) -> None:
        """Its owner keeps its rows: nothing of them is in a checkpoint of the server."""

    def load(self, folder: Path, rounds: int | Tensor | None = None) -> None:
        """Its owner has them."""

    def most_bytes(self) -> int:
        return 0

    def release(self) -> None:
        """Nothing is held here."""
