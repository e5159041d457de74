"""The owner's models, from a state directory: whether or not its process is at work."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.knobs import SettingError
from ...data.read.ids import ClientId, unknown_client
from ...host.durable import Durable
from ...host.host import Host
from ...host.service import Refused
from .agreement import Agreement, Build, Enrolled, Members
from .folder import ROWS, Folder
from .owned import Owned, joined
from .rules import Rules

TRIES = 20  # while the process at work replaces the files that are read


class OwnModels:
    """Personal models of one run, of the clients of this site.

    They are made of the rows after the last round that was concluded, and of the last message from
    the server.
    """

    def __init__(self, host: Host, members: Members, agreement: Agreement, durable: Durable):
        self.host = host
        self.members = members
        self.agreement = agreement
        found = durable.last_down()
        if found is None:
            raise SettingError("model: there is none yet: no message of a server has come")
        self.version, self._down = found
        self.rounds = durable.version + 1

    @classmethod
    def open(cls, state: Path, build: Build, run: int | None = None) -> OwnModels:
        """Of a run, or of the last one; SettingError where there is none, or it cannot be read."""
        folder = Folder(state)
        told = folder.site()
        runs = folder.runs()
        chosen = folder.current() if run is None else run
        if chosen is None or chosen not in runs:
            known = ", ".join(f"{r:08x}" for r in runs) or "none"
            raise SettingError(f"run: this site has taken part in: {known}")
        place = folder.run(chosen)
        try:
            owned = Owned.read(told["data"])
            rules = Rules(**told["rules"])
            agreement, members = Agreement.load(place), Members.load(place)
            data = joined(owned.agreed(agreement.data), members)
            work = build(agreement, data, rules.allow_code)
            enrolled = Enrolled.load(place, data.clients)
            if enrolled is None:
                raise SettingError("model: there is none yet: nobody was enrolled in this run")
            host = Host(work.contract, data, torch.tensor(enrolled.wire_ids), work.settings)
            return _read(host, members, agreement, place / ROWS)
        except SettingError as error:
            if isinstance(error, Refused) and error.__cause__ is not None:
                raise SettingError(str(error.__cause__)) from None
            raise
        except (ValueError, OSError) as error:
            raise SettingError(
                f"state: the rows of run {chosen:08x} cannot be used: {error}"
            ) from None

    @property
    def contract(self) -> Any:
        return self.host.contract

    @property
    def ids(self) -> list[ClientId]:
        """The clients, as their owner calls them."""
        return list(self.members.ids)

    def personal(self, id: ClientId) -> Tensor:  # -> x[d]
        """The model that a client predicts with."""
        by_text = {str(own): k for k, own in enumerate(self.members.ids)}
        if str(id) not in by_text:
            raise unknown_client(id, tuple(self.members.ids))
        wire_id = int(self.host.wire_ids[by_text[str(id)]])
        return self.host.personal(self.version, self._down, wire_id)

    def tensors(self, id: ClientId) -> dict[str, Tensor]:
        """The same by the names of its parameters, in the order of the module."""
        module = self.module(id)
        return {n: t.detach().cpu().contiguous().clone() for n, t in module.state_dict().items()}

    def module(self, id: ClientId) -> nn.Module:
        """The same as a torch module."""
        return self.contract.task.module_of(self.personal(id))


def _read(host: Host, members: Members, agreement: Agreement, rows: Path) -> OwnModels:
    """Rows and message as they are on disk, also while a process replaces them."""
    for left in reversed(range(TRIES)):
        durable = Durable(host, rows)
        try:
            durable.peek()
            return OwnModels(host, members, agreement, durable)
        except SettingError:
            raise
        except (FileNotFoundError, ValueError):
            if not left:
                raise
            time.sleep(0.05)
    raise AssertionError
