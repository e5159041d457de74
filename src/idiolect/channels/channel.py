"""A channel: stages one after the other at the client, in reverse at the server."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError
from ..core.types import State, prefixed, under
from ..wire.messages import numbers, raw_bytes
from ..wire.ragged import Ragged, Reader, join
from .stage import Form, Stage


@dataclass(frozen=True)
class Channel:
    """Stages in order. With none it is the identity: numbers travel as they are.

    What stage i keeps has the prefix "i." in a State.
    """

    stages: tuple[Stage, ...] = ()

    def check(self, form: Form) -> list[str]:
        """Refuse what does not fit together or does not fit the message; warnings otherwise."""
        forms = self.forms(form)
        warnings = []
        for i, stage in enumerate(self.stages):
            self._check_place(i, forms)
            warnings.append(stage.check(forms[i]))
        return [w for w in warnings if w]

    def _check_place(self, i: int, forms: list[Form]) -> None:
        """Refuse stage i where it cannot follow the stages before it."""
        stage, earlier = self.stages[i], self.stages[:i]
        name = _name(stage)
        if forms[i].n == 0:
            raise SettingError(
                f"channel: nothing is left to send after {_name(earlier[-1])}; "
                "it must be the last stage"
            )
        if stage.decodes_aggregate and any(
            s.needs_receipt or s.numbers(f) != f.n or s.limit(f)
            for s, f in zip(earlier, forms, strict=False)
        ):
            raise SettingError(
                f"channel: {name} is read from the sum of all messages: "
                "only 'clip' can stand before it"
            )
        resenders = [s for s in earlier if s.resends_losses]
        if stage.resends_losses and resenders:
            raise SettingError(
                f"channel: {_name(resenders[0])} and {name} would both send again what was lost: "
                "keep one of them"
            )
        movers = [s for s in earlier if s.moves_coordinates]
        if movers and (stage.client(forms[i]) or stage.memory(forms[i])):
            mover = _name(movers[0])
            raise SettingError(
                f"channel: {name} remembers coordinates, and {mover} sends others every round: "
                f"put it before {mover}"
            )

    def forms(self, form: Form) -> list[Form]:
        """What each stage is given, and what is left after the last."""
        out = [form]
        for i in range(len(self.stages)):
            out.append(self._form_after(i, out[-1]))
        return out

    def _form_after(self, i: int, form: Form) -> Form:
        """What stage i passes on of this form."""
        n = self.stages[i].numbers(form)
        return form if n == form.n else replace(form, n=n, starts=(0, n))

    def limit(self, form: Form) -> int:
        """The most bytes per row."""
        forms = self.forms(form)
        coded = sum(s.limit(f) for s, f in zip(self.stages, forms, strict=False))
        return coded + forms[-1].n * form.dtype.itemsize

    def down_values(self, form: Form) -> float:
        """32-bit words of the message down, as the lp-proj paper counts."""
        return min([s.down_values(form) for s in self.stages], default=float(form.n))

    def kept(self, what: str, form: Form) -> dict[str, int]:
        """Names and sizes of what is kept; `what` is "client", "memory" or "server"."""
        forms = self.forms(form)
        return {
            f"{i}.{n}": size
            for i, s in enumerate(self.stages)
            for n, size in getattr(s, what)(forms[i]).items()
        }

    @property
    def aggregate_at(self) -> int | None:
        """The place of the stage that the server decodes from the aggregate."""
        return next((i for i, s in enumerate(self.stages) if s.decodes_aggregate), None)

    # -- the client's side -------------------------------------------------------------------------
    def encode(
        self, rows: Tensor, state: State, keys: np.ndarray, form: Form
    ) -> tuple[Ragged, State, np.ndarray]:
        """Bytes of every row, the clients' rows afterwards, and 32-bit words per row."""
        body, _, state, values = self._encode(0, rows, state, keys, form)
        return body, state, values

    def _encode(
        self, i: int, rows: Tensor, state: State, keys: np.ndarray, form: Form
    ) -> tuple[Ragged, Tensor | None, State, np.ndarray]:
        """From stage i on: bytes, what will arrive (where a stage needs it), state, values."""
        if i == len(self.stages):
            body = Ragged.even(raw_bytes(rows.to(form.dtype)))
            return body, rows.to(form.dtype), state, np.full(len(rows), float(form.n))
        stage = self.stages[i]
        own = under(state, f"{i}.")
        with np.errstate(over="ignore"):
            coded = stage.encode(rows, own, streams.mix(keys + np.uint64(i)), form)
        state = state | prefixed(coded.state, f"{i}.")
        body = coded.body
        values = coded.values
        received: Tensor | None = None  # what the next stage's server side will give back
        if coded.rest is not None:
            who = np.ones(len(rows), dtype=bool) if coded.who is None else coded.who
            at = torch.from_numpy(who).to(rows.device)
            more, received, later, passed = self._encode(
                i + 1, coded.rest, _later(state, i, at), keys[who], self._form_after(i, form)
            )
            for n, t in later.items():
                state[n] = state[n].clone()
                state[n][at] = t
            body = join([body, more if who.all() else more.spread(who)])
            if values is None:
                values = np.zeros(len(rows))
                values[who] = passed
        arrived: Tensor | None = None
        if any(s.needs_receipt for s in self.stages[: i + 1]):  # decoded from the very bytes
            info = stage.read(Reader(coded.body), np.ones(len(rows), dtype=bool), form)
            arrived, _ = stage.decode(info, received, own, form)
            if stage.needs_receipt:
                after = stage.acknowledge(rows, arrived, under(state, f"{i}."), form)
                state |= prefixed(after, f"{i}.")
        return body, arrived, state, np.zeros(len(rows)) if values is None else values

    # -- the server's side -------------------------------------------------------------------------
    def decode(self, reader: Reader, memory: State, form: Form) -> tuple[Tensor, State]:
        """Rows as they arrived, and the server's memory of these clients.

        With a stage that is decoded from the aggregate: the rows that it passed on.
        """
        first = 0 if self.aggregate_at is None else self.aggregate_at + 1
        everyone = np.ones(len(reader.at), dtype=bool)
        return self._decode(first, reader, everyone, memory, self.forms(form)[first])

    def _decode(
        self, i: int, reader: Reader, who: np.ndarray, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        if i == len(self.stages):
            raw = reader.take(form.n * form.dtype.itemsize, who)
            rows = numbers(raw, form.kind)
            return rows.clone() if i else rows, memory  # a stage may write into what it is given
        stage = self.stages[i]
        after = self._form_after(i, form)
        info = stage.read(reader, who, form)
        rest = None
        if after.n:
            passing = stage.passes(info, who)
            at = torch.from_numpy(passing[who])
            rest, later = self._decode(i + 1, reader, passing, _later(memory, i, at), after)
            for n, t in later.items():
                memory = memory | {n: memory[n].clone()}
                memory[n][at] = t
        rows, own = stage.decode(info, rest, under(memory, f"{i}."), form)
        return rows, memory | prefixed(own, f"{i}.")


def _name(stage: Stage) -> str:
    return repr(type(stage).__name__.lower())


def _later(state: State, i: int, at: Tensor) -> State:
    """What the stages after stage i keep, of the rows `at`."""
    return {n: t[at] for n, t in state.items() if int(n.split(".")[0]) > i}
