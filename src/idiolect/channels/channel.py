"""A channel: stages one after the other at the client, in reverse at the server."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError
from ..core.types import State
from ..wire.ragged import Ragged, Reader, join
from .stage import Form, Stage


@dataclass(frozen=True)
class Channel:
    """Stages in order. With none, numbers travel as they are."""

    stages: tuple[Stage, ...] = ()

    def check(self, form: Form) -> list[str]:
        """Refuse what does not fit together or does not fit the message; warnings otherwise."""
        warnings, forms = [], self.forms(form)
        for i, (stage, at) in enumerate(zip(self.stages, forms, strict=False)):
            if at.n == 0:
                before = type(self.stages[i - 1]).__name__.lower()
                raise SettingError(
                    f"channel: nothing is left to send after {before!r}; it must be the last stage"
                )
            if stage.joint and any(
                s.settles or s.numbers(f) != f.n or s.limit(f)
                for s, f in zip(self.stages[:i], forms, strict=False)
            ):
                what = "is read from the sum of all messages: only 'clip' can stand before it"
                raise SettingError(f"channel: {type(stage).__name__.lower()!r} {what}")
            if stage.repays and any(s.repays for s in self.stages[:i]):
                before = next(type(s).__name__.lower() for s in self.stages[:i] if s.repays)
                what = f"{before!r} and {type(stage).__name__.lower()!r} would both send again what was lost: keep one of them"
                raise SettingError(f"channel: {what}")
            if (stage.client(at) or stage.memory(at)) and any(s.moves for s in self.stages[:i]):
                mover = next(type(s).__name__.lower() for s in self.stages[:i] if s.moves)
                what = f"remembers coordinates, and {mover!r} sends others every round: put it before {mover!r}"
                raise SettingError(f"channel: {type(stage).__name__.lower()!r} {what}")
            warnings.append(stage.check(at))
        return [w for w in warnings if w]

    def forms(self, form: Form) -> list[Form]:
        """What each stage is given, and what is left after the last."""
        out = [form]
        for stage in self.stages:
            n = stage.numbers(out[-1])
            out.append(out[-1] if n == out[-1].n else replace(out[-1], n=n, starts=(0, n)))
        return out

    def limit(self, form: Form) -> int:
        """The most bytes a row can take."""
        forms = self.forms(form)
        return (
            sum(s.limit(f) for s, f in zip(self.stages, forms, strict=False))
            + forms[-1].n * form.dtype.itemsize
        )

    def down_values(self, form: Form) -> float:
        return min(
            [s.down_values(f) for s, f in zip(self.stages, [form] * len(self.stages), strict=True)],
            default=float(form.n),
        )

    def kept(self, what: str, form: Form) -> dict[str, int]:
        """Names and sizes of what is kept; `what` is "client", "memory" or "server"."""
        forms = self.forms(form)
        return {
            f"{i}.{n}": size
            for i, s in enumerate(self.stages)
            for n, size in getattr(s, what)(forms[i]).items()
        }

    @property
    def joint(self) -> int | None:
        """The place of the stage that is decoded from the aggregate."""
        return next((i for i, s in enumerate(self.stages) if s.joint), None)

    # -- the client's side -----------------------------------------------------------------------------------------------------
    def encode(
        self, rows: Tensor, state: State, keys: np.ndarray, form: Form
    ) -> tuple[Ragged, State, np.ndarray]:
        """Bytes of every row, the clients' rows after it, and the paper's count of 32-bit words."""
        body, _, state, values = self._encode(0, rows, state, keys, form)
        return body, state, values

    def _encode(
        self, i: int, rows: Tensor, state: State, keys: np.ndarray, form: Form
    ) -> tuple[Ragged, Tensor | None, State, np.ndarray]:
        """From stage i on: bytes, what will arrive (where a stage asks for it), state, values."""
        if i == len(self.stages):
            numbers = np.ascontiguousarray(rows.detach().to("cpu", form.dtype).numpy())
            raw = (
                numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
                .view(np.uint8)
                .reshape(len(rows), form.n * numbers.itemsize)
            )
            return Ragged.even(raw), rows.to(form.dtype), state, np.full(len(rows), float(form.n))
        stage, after = self.stages[i], self.forms_after(i, form)
        own = _own(state, i)
        with np.errstate(over="ignore"):
            coded = stage.encode(rows, own, streams.mix(keys + np.uint64(i)), form)
        state = state | {f"{i}.{n}": t for n, t in coded.state.items()}
        body, received, values = coded.body, None, coded.values
        who = np.ones(len(rows), dtype=bool) if coded.who is None else coded.who
        if coded.rest is not None:
            at = torch.from_numpy(who).to(rows.device)
            later = {n: t[at] for n, t in state.items() if int(n.split(".")[0]) > i}
            more, received, later, passed = self._encode(i + 1, coded.rest, later, keys[who], after)
            for n, t in later.items():
                state[n] = state[n].clone()
                state[n][at] = t
            body = join([body, more if who.all() else more.spread(who)])
            if values is None:
                values = np.zeros(len(rows))
                values[who] = passed
        arrived: Tensor | None = None
        if any(
            s.settles for s in self.stages[: i + 1]
        ):  # what the server will see, from the very bytes
            info = stage.read(Reader(coded.body), np.ones(len(rows), dtype=bool), form)
            arrived, _ = stage.decode(info, received, own, form)
            if stage.settles:
                state |= {
                    f"{i}.{n}": t
                    for n, t in stage.settle(rows, arrived, _own(state, i), form).items()
                }
        return body, arrived, state, np.zeros(len(rows)) if values is None else values

    def forms_after(self, i: int, form: Form) -> Form:
        n = self.stages[i].numbers(form)
        return form if n == form.n else replace(form, n=n, starts=(0, n))

    # -- the server's side -----------------------------------------------------------------------------------------------------
    def decode(self, reader: Reader, memory: State, form: Form) -> tuple[Tensor, State]:
        """Rows as they arrived, and the server's memory of these clients. With a joint stage: the rows it passed on."""
        first = 0 if self.joint is None else self.joint + 1
        return self._decode(
            first, reader, np.ones(len(reader.at), dtype=bool), memory, self.forms(form)[first]
        )

    def _decode(
        self, i: int, reader: Reader, who: np.ndarray, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        if i == len(self.stages):
            raw = np.ascontiguousarray(reader.take(form.n * form.dtype.itemsize, who))
            numbers = raw.view(
                torch.empty(0, dtype=form.dtype).numpy().dtype.newbyteorder("<")
            ).reshape(int(who.sum()), form.n)
            return torch.from_numpy(
                numbers.astype(numbers.dtype.newbyteorder("="), copy=True)
            ), memory
        stage, after = self.stages[i], self.forms_after(i, form)
        info = stage.read(reader, who, form)
        rest = None
        if after.n:
            passing = stage.passes(info, who)
            at = torch.from_numpy(passing[who])
            later = {n: t[at] for n, t in memory.items() if int(n.split(".")[0]) > i}
            rest, later = self._decode(i + 1, reader, passing, later, after)
            for n, t in later.items():
                memory = memory | {n: memory[n].clone()}
                memory[n][at] = t
        rows, own = stage.decode(info, rest, _own(memory, i), form)
        return rows, memory | {f"{i}.{n}": t for n, t in own.items()}


def _own(state: State, i: int) -> State:
    return {n.removeprefix(f"{i}."): t for n, t in state.items() if n.startswith(f"{i}.")}
