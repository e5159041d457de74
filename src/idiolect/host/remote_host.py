"""Proxies of hosts in other processes, and what an engine and a run expect of any host.

No private row passes through this process during training: a host writes and reads its files
itself, so they must be on a disk that both can reach. After the run, its models can be read here
from the files that it has left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from ..core.knobs import SettingError
from ..core.scratch import ScratchFolder
from ..core.types import Personal, State
from ..data.federation import Census, Federation
from ..wire.messages import DownMessage
from .calls import MOST_COUNTED, Call
from .host import Host, HostSettings
from .metrics import EvaluatedSamples, TargetForm, form_of
from .scores import Scores
from .subgroups import SubgroupScores, check_counts

ROUNDING = 1e-9  # by which a weighed mean of hits may lie above 1


class HostLike(Protocol):
    """A host, or the proxy of one: its clients, its files and its models."""

    settings: HostSettings
    wire_ids: Tensor

    def unreported(self, wire_ids: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        """Scores, of no sample, of clients that have reported none."""

    def personal(self, version: int, message: DownMessage, wire_id: int) -> Personal:
        """What a client predicts with: x[d], or a State."""

    def personal_rows(self, version: int, message: DownMessage, wire_ids: Tensor) -> Personal:
        """What some clients predict with: x[K, d], or rows."""

    def evaluate_others(self, models: Personal, wire_ids: Tensor, split: str) -> Scores:
        """Scores of models of other clients, one for each of these clients, on their data."""

    def each_sample(self, version: int, message: DownMessage, split: str) -> tuple[Tensor, Tensor]:
        """Hits and loss of every sample of a split."""

    def each_output(self, version: int, message: DownMessage, split: str) -> EvaluatedSamples:
        """What its client's model answers to every sample of a split."""

    def all_rows(self) -> State:
        """The private rows of all its clients."""

    def digest(self) -> str:
        """SHA-256 of the private rows."""

    def adopt(self, earlier: HostLike) -> None:
        """Start from the private rows of an earlier stage."""

    def save(self, folder: Path) -> None:
        """Write private rows and channel states to a folder."""

    def load(self, folder: Path, rounds: int | Tensor | None = None) -> None:
        """Restore them."""

    def most_bytes(self) -> int:
        """Upper bound on the bytes that `save` writes."""

    def release(self) -> None:
        """Free what only training and evaluation need."""


class RemoteHost:
    """A host of this run in another process.

    `local` is a host of the same clients in this process, which has neither their samples nor their
    rows until the other one has ended: then it takes over.
    """

    ask: Callable[[Call], Call] | None = None  # how the other process is reached; None if it ended
    _rows: ScratchFolder | None = None  # that it has left

    def __init__(self, local: Host, load_data: Callable[[], Federation]):
        self._local = local
        self._load_data: Callable[[], Federation] | None = load_data
        self.settings = local.settings
        self.wire_ids = local.wire_ids

    def save(self, folder: Path) -> None:
        if self.ask is None:
            self.local.save(folder)
            return
        self.ask(Call("save", {"folder": str(folder.absolute())}))
        if not all((folder / name).is_file() for name in self._local.stores()):
            raise SettingError(
                f"directory: {folder} must be on a disk that all machines of the run reach under "
                "the same path"
            )

    def load(self, folder: Path, rounds: int | Tensor | None = None) -> None:
        if self.ask is None:
            self._local.load(folder, rounds)
            return
        newest = int(rounds.max()) if isinstance(rounds, Tensor) and len(rounds) else 0
        version = rounds if isinstance(rounds, int) else newest
        tensors = {"rounds": rounds} if isinstance(rounds, Tensor) else {}
        self.ask(Call("load", {"folder": str(folder.absolute()), "version": version}, tensors))

    def adopt(self, earlier: HostLike) -> None:
        """By way of files: the rows are written here and read by the other process."""
        self._local.adopt(earlier)
        with ScratchFolder() as folder:
            self._local.save(Path(folder) / "rows")
            self.load(Path(folder) / "rows", 0)
        for store in self._local.stores().values():
            store.forget()

    def leave(self) -> None:
        """The other process is about to end: it leaves its rows in a folder."""
        if self.ask is None:
            return
        self._rows = ScratchFolder()
        self.save(Path(self._rows.name) / "rows")
        self.ask = None

    @property
    def local(self) -> Host:
        """The host in this process, with the rows that the other one has left."""
        if self.ask is not None:
            raise SettingError("models: they are with their hosts until the run has ended")
        if self._rows is not None:
            self._local.load(Path(self._rows.name) / "rows")
            self._rows.cleanup()
            self._rows = None
        if self._load_data is not None:  # some methods train before they predict
            task = self._local.contract.task
            self._local.data = self._load_data().to(task.device, task.dtype)
            self._load_data = None
        return self._local

    @property
    def data(self) -> Federation:
        """The samples of its clients, in this process."""
        return self.local.data

    def personal(self, version: int, message: DownMessage, wire_id: int) -> Personal:
        return self.local.personal(version, message, wire_id)

    def personal_rows(self, version: int, message: DownMessage, wire_ids: Tensor) -> Personal:
        return self.local.personal_rows(version, message, wire_ids)

    def evaluate_others(self, models: Personal, wire_ids: Tensor, split: str) -> Scores:
        return self.local.evaluate_others(models, wire_ids, split)

    def each_sample(self, version: int, message: DownMessage, split: str) -> tuple[Tensor, Tensor]:
        return self.local.each_sample(version, message, split)

    def each_output(self, version: int, message: DownMessage, split: str) -> EvaluatedSamples:
        return self.local.each_output(version, message, split)

    def all_rows(self) -> State:
        return self.local.all_rows()

    def digest(self) -> str:
        return self.local.digest()

    def unreported(self, wire_ids: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        return self._local.unreported(wire_ids, splits)

    def check_subgroups(self, scores: SubgroupScores) -> None:
        """ValueError for figures by subgroup of another shape than these data have."""
        data = self._local.data
        form = form_of(data, self._local.contract.task.criterion)
        clients, metrics = len(scores.wire_ids), self.settings.metrics
        check_counts(scores.columns, data.subgroups, clients, metrics, form)

    def most_bytes(self) -> int:
        return self._local.most_bytes()

    def release(self) -> None:
        if self.ask is None:
            self._local.release()


class SiteProxy:
    """A host of another owner: its clients and their sample counts, nothing of what it holds."""

    def __init__(self, census: Census, wire_ids: Tensor, settings: HostSettings, form: TargetForm):
        if len(wire_ids) != census.clients or bool((wire_ids.diff() <= 0).any()):
            raise ValueError("wire ids must be increasing, one per client of the census")
        self.data = census
        self.wire_ids = wire_ids
        self.settings = settings
        self.form = form  # of outputs and targets, for metrics

    def unreported(self, wire_ids: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        clients = wire_ids[torch.isin(wire_ids, self.wire_ids)]
        blank = Scores.blank(clients, self.settings.metrics, self.form)
        return dict.fromkeys(splits, blank)

    def check_scores(
        self, by_split: Mapping[str, Scores], wire_ids: Tensor, splits: tuple[str, ...]
    ) -> None:
        """ValueError for scores that are impossible with the enrolled sample counts.

        Whether they are true is known to their owner alone.
        """
        if set(by_split) != set(splits):
            raise ValueError("scores must be of the splits that were asked for")
        rows = torch.searchsorted(self.wire_ids, wire_ids)
        for split, scores in by_split.items():
            if not torch.equal(scores.wire_ids, wire_ids):
                raise ValueError("scores must be of every client that was asked, in their order")
            # 0 where the owner does not report figures of so few samples
            enrolled = (scores.samples == self.data.sizes(split)[rows]) | (scores.samples == 0)
            if not bool(enrolled.all()):
                raise ValueError("scores must be of as many samples as were enrolled")
            if (scores.weights is not None) != self.form.weighted:
                raise ValueError("scores must have weights where samples have some, and only there")
            most = scores.samples * (1 + ROUNDING)  # a weighed mean, times the samples
            hits_outside = ~((scores.hits >= 0) & (scores.hits <= most))  # nor NaN
            gradients_outside = (scores.gradients < 0) | (scores.gradients > MOST_COUNTED)
            if bool(hits_outside.any()) or bool(gradients_outside.any()):
                raise ValueError("scores: hits must be from none to all samples, gradients >= 0")
            for measured in scores.metrics.values():
                width = (len(rows), measured.metric.width(self.form))
                shape = tuple(measured.metric.shape(self.form))
                if tuple(measured.rows.shape) != width or tuple(measured.counts.shape) != shape:
                    raise ValueError(f"scores: the metric {measured.metric.name} has another shape")

    def _at_owner(self, *arguments: object, **options: object) -> NoReturn:
        raise SettingError(
            "models: they are with the owners of the data; each owner exports them: "
            "idiolect host export"
        )

    personal = personal_rows = evaluate_others = each_sample = each_output = _at_owner
    all_rows = digest = adopt = _at_owner

    def save(self, folder: Path) -> None:
        """No-op: sites keep their own state."""

    def load(self, folder: Path, rounds: int | Tensor | None = None) -> None:
        """No-op: sites keep their own state."""

    def most_bytes(self) -> int:
        return 0

    def release(self) -> None:
        """Nothing is held here."""
