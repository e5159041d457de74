"""A host that is reached through frames of bytes: a process of its own, here or elsewhere."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.files import private_folder
from ..core.knobs import SettingError
from ..core.scratch import hold
from ..data.federation import Federation
from ..privacy.sums.stages import ProtocolError
from ..server.protocol import Contract, RoundConclusion, RoundRequest
from . import calls
from .calls import FAILED, Call
from .durable import Durable
from .host import Host, HostSettings
from .sums import HostSums


class Refused(SettingError):
    """A call that a host does not carry out; the text may be sent to the caller."""


class Service:
    """Answers the calls of an engine, one after the other.

    A call that comes twice in a row is carried out once: the second gets the first one's reply.
    """

    def __init__(self, host: Host, durable: Durable | None = None, masked: bool = False):
        """`masked`: of another owner, who under secure sums gets masked messages only."""
        self.host = host
        has_sums = masked and host.contract.sums is not None and bool(host.contract.up.length)
        self.sums = HostSums(host.contract, host.wire_ids) if has_sums else None
        self.durable = durable
        self.concluded = durable.version if durable else -1
        self._begun: RoundRequest | None = None  # the round whose end has not been announced
        self._last: tuple[bytes | None, bytes] = (None, b"")
        self._known: dict[str, Callable[[Call], Call]] = {
            "status": self._status,
            "update": self._update,
            "answer": self._answer,
            "sum": self._sum,
            "conclude": self._conclude,
            "begin": self._begin,
            "arrived": self._arrived,
            "evaluate": self._evaluate,
            "evaluate_shared": self._evaluate_shared,
            "evaluate_subgroups": self._evaluate_subgroups,
            "losses": self._losses,
            "save": self._save,
            "load": self._load,
            "release": self._release,
        }

    def handle(self, frame: bytes) -> bytes:
        """The reply to a frame; errors are part of the reply."""
        if frame == self._last[0]:
            return self._last[1]
        try:
            reply = self.reply(Call.open(frame)).pack()
        except Exception as error:
            return self.failed(error).pack()
        self._last = (frame, reply)
        return reply

    def reply(self, call: Call) -> Call:
        """What this host says to a call."""
        if call.kind not in self._known:
            raise ValueError(f"unknown call {call.kind[:40]!r}")
        return self._known[call.kind](call)

    def failed(self, error: Exception) -> Call:
        """The text of an error for the caller."""
        is_setting_error = isinstance(error, SettingError)
        text = str(error) if is_setting_error else traceback.format_exc()
        return Call(FAILED, {"text": text, "setting": is_setting_error})

    # -- calls -----------------------------------------------------------------------------------
    def _status(self, call: Call) -> Call:
        written = self.durable.version if self.durable else -1  # the last round that left rows
        return Call("status", {"concluded": self.concluded, "written": written})

    def _update(self, call: Call) -> Call:
        order = calls.read_order(call)
        if order.version <= self.concluded:
            self.host.open_down(order)  # refuses what is no order before anything is taken back
            self._go_back(order.version)
        self._abandon(order.version)
        update = self.host.update(order)
        if self.sums is not None:
            messages, values = self.sums.masked(order.version, update.messages, update.values)
            update = replace(update, messages=messages, values=values)
        self._begun = order
        return calls.sent_reply(update)

    def undo(self, version: int) -> None:
        """The round under way has not happened: its messages do not leave."""
        self.host.undo(version)
        if self._begun is not None and self._begun.version == version:
            self._begun = None

    @property
    def begun(self) -> int | None:
        """The round under way, whose end has not been announced."""
        return None if self._begun is None else self._begun.version

    def _go_back(self, version: int) -> None:
        """A round that was concluded is done again: the server was restarted from before it.

        Only the last one: what rows were before an earlier one is not kept.
        """
        if version < self.concluded:
            raise Refused(
                f"version must be {self.concluded} or later, got {version}: this host can go back "
                "to before the last round that it has concluded, no further"
            )
        try:
            if self.durable is not None:
                self.durable.back(version)
            elif not self.host.settings.repeats:
                raise ValueError("rows before it are not kept")
        except ValueError as error:
            raise Refused(f"version {version} cannot be repeated: {error}") from None
        self.concluded = version - 1
        self._begun = None

    def _answer(self, call: Call) -> Call:
        return calls.answer_reply(self.host.answer(calls.read_query(call)))

    def _sum(self, call: Call) -> Call:
        version, stage, frames = calls.read_sum(call)
        if self.sums is None:
            raise Refused("sum: there are no secure sums in this run")
        try:
            return calls.summed_reply(self.sums.answer(version, stage, frames))
        except ProtocolError as error:
            raise Refused(f"sum: {error}") from None

    def _conclude(self, call: Call) -> Call:
        verdict = calls.read_verdict(call)
        if verdict.version > self.concluded:
            if self._begun is None or self._begun.version != verdict.version:
                raise Refused(
                    f"version must be that of the round under way, got {verdict.version}: it was "
                    "not begun here, or not since this host was started"
                )
            self._end(verdict)
        return self._status(call)

    def _end(self, verdict: RoundConclusion) -> None:
        self.host.conclude(verdict)
        if self.durable is not None:
            self.durable.concluded(verdict.version)
        self.concluded = verdict.version
        self._begun = None

    def _abandon(self, version: int) -> None:
        """End a round whose end was never announced when another begins: nothing of it counted.

        That is all a host can know: the server lost the round before its end.
        """
        begun = self._begun
        if begun is not None and begun.version < version:
            no_clients = begun.heard[:0]
            self._end(RoundConclusion(begun.version, no_clients, begun.heard, {}))

    def _begin(self, call: Call) -> Call:
        assert self.host.async_work is not None
        return calls.sent_reply(self.host.async_work.begin([calls.read_order(call)]))

    def _arrived(self, call: Call) -> Call:
        verdict = calls.read_verdict(call)
        assert self.host.async_work is not None
        self.host.async_work.arrived(verdict)
        if self.durable is not None and len(rows := self.host.rows(verdict.counted)):
            self.durable.arrived(rows)
        self.concluded = verdict.version
        return self._status(call)

    def _evaluate(self, call: Call) -> Call:
        return calls.scores_reply(self.host.evaluate(*calls.read_evaluate(call)))

    def _evaluate_shared(self, call: Call) -> Call:
        version, down, wire_ids, splits = calls.read_evaluate(call)
        return calls.scores_reply(self.host.evaluate_shared(version, down, splits, wire_ids))

    def _evaluate_subgroups(self, call: Call) -> Call:
        return calls.subgroups_reply(self.host.evaluate_subgroups(*calls.read_subgroups(call)))

    def _losses(self, call: Call) -> Call:
        version, down, wire_ids, _ = calls.read_evaluate(call)
        return calls.scores_reply(self.host.losses(version, down, wire_ids))

    def _save(self, call: Call) -> Call:
        self.host.save(_folder(call))
        return self._status(call)

    def _load(self, call: Call) -> Call:
        """Rows of a checkpoint; what is on disk of later rounds is void."""
        rounds = call.tensors.get("rounds")
        self.host.load(_folder(call), rounds)
        self._begun = None
        self.concluded = int(call.facts["version"]) - 1
        if self.durable is not None:
            self.durable.reset(self.concluded)
        return self._status(call)

    def _release(self, call: Call) -> Call:
        self.host.release()
        return self._status(call)


@dataclass(frozen=True)
class HostRecipe:
    """What a host is built from in another process."""

    kind: type[Host]
    contract: Contract
    load: Callable[[], Federation]  # its clients' data
    wire_ids: Tensor
    settings: HostSettings
    options: dict[str, Any]
    threads: int = 1  # of torch
    folder: str = ""  # where it keeps its rows, if it may be restarted

    def service(self) -> Service:
        """The host, with its rows from disk if there are any."""
        torch.set_num_threads(self.threads)
        data = self.load()
        host = self.kind(self.contract, data, self.wire_ids, self.settings, **self.options)
        if not self.folder:
            return Service(host)
        durable = Durable(host, Path(self.folder), flush=False)
        hold(private_folder(durable.folder.parent), durable)  # on this machine, too
        durable.load()
        return Service(host, durable)


def _folder(call: Call) -> Path:
    folder: Any = call.facts.get("folder")
    if not isinstance(folder, str) or not folder:
        raise ValueError("folder must be a path")
    return Path(folder)
