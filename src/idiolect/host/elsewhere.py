"""A host in another process, as a run sees it: who is there, and how its rows are saved.

No private row passes through this process while the run goes on: the host writes and reads its
files itself, which must lie where both can reach them. After the run its owner may look at its
models here: then the rows are read from the files that it left.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from ..core.knobs import SettingError
from ..core.types import State
from ..data.federation import Census, Federation
from ..server.contract import Contract
from .calls import Call
from .host import Host
from .terms import HostSettings

Ask = Callable[[Call], Call]


class Elsewhere(Host):
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
    ) -> Elsewhere:
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
