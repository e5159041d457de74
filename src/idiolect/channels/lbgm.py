"""Look-back gradient multiplier: a message near a multiple of an earlier one is one number."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..wire.ragged import Ragged, Reader, join
from . import bits
from .stage import Coded, Form, Stage, array


@dataclass(frozen=True)
class LBGM(Stage):
    """x is sent as rho g, g the last message sent in full, if little enough is lost.

        rho = <x, g> / ||g||^2
        ||x - rho g||^2 / ||x||^2 = 1 - cos^2(x, g) <= threshold:  send rho
        otherwise:  send x, and g <- x as it arrived

    Client and server both keep g (n numbers per client). What is lost stays lost; put `feedback`
    before it to send it later. threshold = 0 sends everything in full; so does a zero g (the first
    message).

    layers = false: one byte, then rho if it is 1; the row passes to the next stage if it is 0.
    layers = true, tensor by tensor: one bit per tensor (1 = rho), filled up to whole bytes; then,
    in order, rho or the tensor's numbers as they are. No stage can follow.

    Azam, Hosseinalipour, Qiu and Brinton 2022, "Recycling model updates in federated learning: are
    gradient subspaces low-rank?", Algorithm 1 (the look-back phase's error sin^2 alpha and
    coefficient rho).

    >>> x, g = torch.tensor([[3.0, 4.0], [4.0, -3.0]]), torch.tensor([[6.0, 8.0], [6.0, 8.0]])
    >>> coded = LBGM().encode(x, {"g": g}, np.zeros(2, np.uint64), Form(2))
    >>> coded.body.lengths.tolist(), coded.rest.tolist()
    ([5, 1], [[4.0, -3.0]])
    >>> coded.body.row(0)[1:] == np.float32(0.5).tobytes()
    True
    """

    threshold: float = knob(0.2, "the share of the squared norm that may be lost", low=0, high=1)
    layers: bool = knob(False, "decide for each tensor instead of for the whole message")

    needs_receipt: ClassVar[bool] = True

    def spans(self, form: Form) -> np.ndarray:  # -> int64[L + 1]
        """Where the parts start that are sent as rho or in full on their own, and n."""
        return np.unique((0, *form.starts, form.n)) if self.layers else np.array([0, form.n])

    def numbers(self, form: Form) -> int:
        return 0 if self.layers else form.n

    def limit(self, form: Form) -> int:
        size = form.dtype.itemsize
        return (len(self.spans(form)) + 6) // 8 + (form.n * size if self.layers else size)

    def client(self, form: Form) -> dict[str, int]:
        return {"g": form.n}

    def memory(self, form: Form) -> dict[str, int]:
        return {"g": form.n}

    def multiples(
        self, rows: Tensor, g: Tensor, form: Form
    ) -> tuple[np.ndarray, np.ndarray]:  # -> [K, L], bool[K, L]
        """rho of every part, and whether it is sent instead of the part; sums in float64."""
        spans = self.spans(form)
        x = np.ascontiguousarray(array(rows, form))
        y = np.ascontiguousarray(array(g, form))

        def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            parts = [(x[:, a:b], y[:, a:b]) for a, b in pairwise(spans)]
            return np.stack(
                [np.einsum("kj,kj->k", *part, dtype=np.float64, casting="safe") for part in parts],
                axis=1,
            )

        with np.errstate(all="ignore"):
            xy = dot(x, y)
            xx = dot(x, x)
            yy = dot(y, y)
            rho = (xy / yy).astype(form.kind)
            error = np.where(xx == 0, 0, 1 - (xy / xx) * (xy / yy))
        return rho, (error <= self.threshold) & np.isfinite(rho) & (self.threshold > 0)

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        rho, flags = self.multiples(rows, state["g"], form)
        spans = self.spans(form)
        size = form.dtype.itemsize
        body = Ragged.even(np.packbits(flags, axis=1, bitorder="little"))
        counts = np.where(flags, 1, np.diff(spans)).sum(1)  # numbers per row
        if not self.layers:
            full = ~flags[:, 0]
            number = Ragged(bits.to_bytes(rho, f"<f{size}"), np.where(full, 0, size))
            rest = rows[torch.from_numpy(full).to(rows.device)]
            return Coded(join([body, number]), rest, full, state, values=counts.astype(float))
        numbers = array(rows, form).copy()
        begins = spans[:-1]
        numbers[:, begins] = np.where(flags, rho, numbers[:, begins])  # rho at its part's place
        packed = np.zeros((len(rows), int(counts.max(initial=0))), dtype=form.kind)
        packed[np.arange(packed.shape[1]) < counts[:, None]] = numbers[_places(flags, spans)]
        body = join([body, Ragged(bits.to_bytes(packed, f"<f{size}"), counts * size)])
        return Coded(body, state=state, values=counts.astype(float))

    def read(
        self, reader: Reader, who: np.ndarray, form: Form
    ) -> tuple[np.ndarray, np.ndarray]:  # -> flags[K', L], numbers[K', L or n]
        spans = self.spans(form)
        size = form.dtype.itemsize
        parts = len(spans) - 1
        rows = np.flatnonzero(who)
        raw = np.ascontiguousarray(reader.take((parts + 7) // 8, who))
        whole = np.unpackbits(raw, axis=1, bitorder="little").astype(bool)
        reader.reject(np.any(whole[:, parts:], axis=1), who)
        flags = whole[:, :parts] & ~reader.bad[rows, None]
        counts = np.where(flags, 1, np.diff(spans) if self.layers else 0).sum(1)
        lengths = np.where(reader.bad[rows], 0, counts * size)
        packed = bits.from_bytes(reader.take(lengths, who), f"<f{size}")
        good = ~reader.bad[rows]
        keep = (_places(flags, spans) if self.layers else flags) & good[:, None]
        numbers = np.zeros(keep.shape, dtype=form.kind)
        numbers[keep] = packed[(np.arange(packed.shape[1]) < counts[:, None]) & good[:, None]]
        rho = numbers[:, spans[:-1]] if self.layers else numbers
        reader.reject(np.any(flags & ~np.isfinite(rho), axis=1), who)
        return flags, numbers

    def passes(self, info: Any, who: np.ndarray) -> np.ndarray:
        passing = who.copy()
        passing[who] = ~info[0][:, 0]
        return passing

    def decode(
        self, info: Any, rest: Tensor | None, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        g = memory["g"]
        spans = self.spans(form)
        flags = torch.from_numpy(info[0]).to(g.device)
        numbers = torch.from_numpy(info[1]).to(g)
        parts = np.repeat(np.arange(len(spans) - 1), np.diff(spans))
        part = torch.from_numpy(parts).to(g.device)  # the part of every number
        recycled = flags[:, part]
        if self.layers:
            rho = numbers[:, torch.from_numpy(spans[:-1]).to(g.device)]
            full = numbers
        else:
            rho = numbers
            full = torch.zeros_like(g)
            if rest is not None:
                full[~flags[:, 0]] = rest.to(g)
        rows = torch.where(recycled, rho[:, part] * g, full)
        return rows, memory | {"g": torch.where(recycled, g, full)}

    def acknowledge(self, rows: Tensor, received: Tensor, state: State, form: Form) -> State:
        flags = self.multiples(rows, state["g"], form)[1]  # the same arithmetic as when it was sent
        of_numbers = np.repeat(flags, np.diff(self.spans(form)), axis=1)
        recycled = torch.from_numpy(of_numbers).to(rows.device)
        return {"g": torch.where(recycled, state["g"], received.to(rows))}


def _places(flags: np.ndarray, spans: np.ndarray) -> np.ndarray:  # bool[K, L] -> bool[K, n]
    """Which numbers of a row are sent: all of a full part, the first of a recycled one."""
    keep = ~np.repeat(flags, np.diff(spans), axis=1)
    keep[:, spans[:-1]] = True
    return keep
