"""Look-back gradient multiplier: a message close to a multiple of an earlier one is sent as that multiple."""

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
    """x is sent as rho g, g the last message sent in full, if what is lost is at most `threshold` of ||x||^2.

        rho = <x, g> / ||g||^2,  ||x - rho g||^2 / ||x||^2 = 1 - cos^2(x, g) <= threshold  ->  rho; otherwise x, and g <- x as it arrived

    Client and server both keep g (n numbers a client). What is lost stays lost; put `feedback` before it to send it later.
    With layers = true, tensor by tensor; the tensors that are sent in full are then in the stage's own bytes, as they are, and no stage
    can follow. Bytes: a bit for each tensor (1 = rho), filled up to whole bytes; then, in order, rho or the tensor's numbers; with
    layers = false, one byte, then rho if it is 1; the row goes on to the next stage if it is 0.
    threshold = 0 sends everything in full; a zero g (the first message) does too.

    Azam, Hosseinalipour, Qiu and Brinton 2022, "Recycling model updates in federated learning: are gradient subspaces low-rank?",
    Algorithm 1 (the look-back phase's error sin^2 alpha and coefficient rho).

    >>> x, g = torch.tensor([[3.0, 4.0], [4.0, -3.0]]), torch.tensor([[6.0, 8.0], [6.0, 8.0]])
    >>> coded = LBGM().encode(x, {"g": g}, np.zeros(2, np.uint64), Form(2))
    >>> coded.body.lengths.tolist(), coded.body.row(0)[1:] == np.float32(0.5).tobytes(), coded.rest.tolist()
    ([5, 1], True, [[4.0, -3.0]])
    """

    threshold: float = knob(0.2, "the share of the squared norm that may be lost", low=0, high=1)
    layers: bool = knob(False, "decide for each tensor instead of for the whole message")

    needs_receipt: ClassVar[bool] = True

    def spans(self, form: Form) -> np.ndarray:  # -> int64[L + 1]
        """Where the parts that are decided on their own start, and n."""
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
        at, x, y = (
            self.spans(form),
            np.ascontiguousarray(array(rows, form)),
            np.ascontiguousarray(array(g, form)),
        )

        def dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            parts = [(x[:, a:b], y[:, a:b]) for a, b in pairwise(at)]
            return np.stack(
                [np.einsum("kj,kj->k", *part, dtype=np.float64, casting="safe") for part in parts],
                axis=1,
            )

        with np.errstate(all="ignore"):
            xy, xx, yy = dot(x, y), dot(x, x), dot(y, y)
            rho = (xy / yy).astype(form.kind)
            error = np.where(xx == 0, 0, 1 - (xy / xx) * (xy / yy))
        return rho, (error <= self.threshold) & np.isfinite(rho) & (self.threshold > 0)

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        rho, flags = self.multiples(rows, state["g"], form)
        at, size = self.spans(form), form.dtype.itemsize
        body = Ragged.even(np.packbits(flags, axis=1, bitorder="little"))
        sent = np.where(flags, 1, np.diff(at)).sum(1)
        if not self.layers:
            full = ~flags[:, 0]
            number = Ragged(bits.to_bytes(rho, f"<f{size}"), np.where(full, 0, size))
            return Coded(
                join([body, number]),
                rows[torch.from_numpy(full).to(rows.device)],
                full,
                state,
                values=sent.astype(float),
            )
        numbers = array(rows, form).copy()
        numbers[:, at[:-1]] = np.where(
            flags, rho, numbers[:, at[:-1]]
        )  # rho stands where its part would begin
        packed = np.zeros((len(rows), int(sent.max(initial=0))), dtype=form.kind)
        packed[np.arange(packed.shape[1]) < sent[:, None]] = numbers[_places(flags, at)]
        body = join([body, Ragged(bits.to_bytes(packed, f"<f{size}"), sent * size)])
        return Coded(body, state=state, values=sent.astype(float))

    def read(
        self, reader: Reader, who: np.ndarray, form: Form
    ) -> tuple[np.ndarray, np.ndarray]:  # -> flags[K', L], numbers[K', L or n]
        at, size = self.spans(form), form.dtype.itemsize
        parts, rows = len(at) - 1, np.flatnonzero(who)
        whole = np.unpackbits(
            np.ascontiguousarray(reader.take((parts + 7) // 8, who)), axis=1, bitorder="little"
        ).astype(bool)
        reader.reject(np.any(whole[:, parts:], axis=1), who)
        flags = whole[:, :parts] & ~reader.bad[rows, None]
        sent = np.where(flags, 1, np.diff(at) if self.layers else 0).sum(1)
        packed = bits.from_bytes(
            reader.take(np.where(reader.bad[rows], 0, sent * size), who), f"<f{size}"
        )
        there = ~reader.bad[rows]
        keep = (_places(flags, at) if self.layers else flags) & there[:, None]
        numbers = np.zeros(keep.shape, dtype=form.kind)
        numbers[keep] = packed[(np.arange(packed.shape[1]) < sent[:, None]) & there[:, None]]
        rho = numbers[:, at[:-1]] if self.layers else numbers
        reader.reject(np.any(flags & ~np.isfinite(rho), axis=1), who)
        return flags, numbers

    def passes(self, info: Any, who: np.ndarray) -> np.ndarray:
        passing = who.copy()
        passing[who] = ~info[0][:, 0]
        return passing

    def decode(
        self, info: Any, rest: Tensor | None, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        at, g = self.spans(form), memory["g"]
        flags, numbers = torch.from_numpy(info[0]).to(g.device), torch.from_numpy(info[1]).to(g)
        part = torch.from_numpy(np.repeat(np.arange(len(at) - 1), np.diff(at))).to(
            g.device
        )  # the part of every number
        recycled = flags[:, part]
        if self.layers:
            rho, full = numbers[:, torch.from_numpy(at[:-1]).to(g.device)], numbers
        else:
            rho, full = numbers, torch.zeros_like(g)
            if rest is not None:
                full[~flags[:, 0]] = rest.to(g)
        rows = torch.where(recycled, rho[:, part] * g, full)
        return rows, memory | {"g": torch.where(recycled, g, full)}

    def acknowledge(self, rows: Tensor, received: Tensor, state: State, form: Form) -> State:
        flags = self.multiples(rows, state["g"], form)[1]  # the same arithmetic as when it was sent
        recycled = torch.from_numpy(np.repeat(flags, np.diff(self.spans(form)), axis=1)).to(
            rows.device
        )
        return {"g": torch.where(recycled, state["g"], received.to(rows))}


def _places(
    flags: np.ndarray, at: np.ndarray
) -> np.ndarray:  # bool[K, L], int64[L + 1] -> bool[K, n]
    """Which numbers of a row are sent: all of a full part, the first of a recycled one."""
    keep = ~np.repeat(flags, np.diff(at), axis=1)
    keep[:, at[:-1]] = True
    return keep
