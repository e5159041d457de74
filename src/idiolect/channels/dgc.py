"""Deep Gradient Compression: top-k of what has added up, with momentum at the client."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import OtherThan, knob
from ..core.types import State
from ..wire.ragged import Ragged, Reader
from . import bits
from .dense import clipped
from .sparse import largest, pick, place
from .stage import Coded, Form, Stage, array


@dataclass(frozen=True)
class DGC(Stage):
    """For a message g of a client: u <- m u + g, v <- v + u; the k largest |v| are sent.

    What arrived is subtracted from v.

    - Momentum correction: u and v are the clients' rows. The paper's g is a gradient, and m takes
      the place of the momentum of the optimiser; where g is the change of a model after several
      steps, m acts on changes, so use no momentum elsewhere.
    - Momentum factor masking sets u to zero at the places sent; v is zero there but for what a
      later stage (half, qsgd) lost.
    - Clipping of g before it is added: the paper's threshold for N clients is thr N^-1/2; give that
      product as `clip`.
    - Warm-up: the sparsity of round t is min(1 - (1 - start) rise^floor(t / warmup), sparsity).
      With start 0.75 and rise 0.25: 75 %, 93.75 %, 98.4 %, 99.6 %, 99.9 %, as in the paper. Both
      sides know it from the round.

    Bytes: k places as an Elias-Fano code, about k (2 + log2(n / k)) / 8, with
    k = max(1, round((1 - sparsity) n)), or its sum over the tensors with `layers`. Words as the
    lp-proj paper counts: 1.5 k.

    Lin, Han, Mao, Wang and Dally 2018, "Deep gradient compression: reducing the communication
    bandwidth for distributed training".

    >>> stage, form = DGC(sparsity=0.5, warmup=0), Form(2)
    >>> g, zeros = torch.tensor([[1.0, -3.0]]), torch.zeros(1, 2)
    >>> coded = stage.encode(g, {"u": zeros, "v": zeros}, np.zeros(1, np.uint64), form)
    >>> coded.rest.tolist(), coded.state["u"].tolist()
    ([[-3.0]], [[1.0, 0.0]])
    """

    needs_receipt: ClassVar[bool] = True
    resends_losses: ClassVar[bool] = True
    moves_coordinates: ClassVar[bool] = True

    sparsity: float = knob(0.99, "part of the numbers that is not sent", low=0, below=1)
    momentum: float = knob(0.9, "m: how much of the last direction is kept", low=0, below=1)
    masking: bool = knob(
        True, "forget the momentum of what was sent", acts_with={"momentum": OtherThan(0)}
    )
    clip: float = knob(0.0, "longest message before it is added, 0 for any", low=0)
    layers: bool = knob(False, "the largest of each tensor of the message instead of all")
    warmup: int = knob(1, "rounds that each sparsity of the warm-up lasts, 0 for no warm-up", low=0)
    start: float = knob(
        0.75,
        "sparsity of the first round of the warm-up",
        low=0,
        below=1,
        acts_with={"warmup": OtherThan(0)},
    )
    rise: float = knob(
        0.25,
        "factor of what is sent from one sparsity of the warm-up to the next",
        above=0,
        below=1,
        acts_with={"warmup": OtherThan(0)},
    )

    def now(self, form: Form) -> float:
        """The sparsity of this round.

        >>> [round(DGC(sparsity=0.999).now(Form(1, round=t)), 4) for t in range(6)]
        [0.75, 0.9375, 0.9844, 0.9961, 0.999, 0.999]
        """
        if not self.warmup:
            return self.sparsity
        return min(1 - (1 - self.start) * self.rise ** (form.round // self.warmup), self.sparsity)

    def parts(self, form: Form) -> list[tuple[int, int, int]]:
        """(begin, end, k) of every part that has a top-k of its own."""
        edges = sorted({0, form.n, *(form.starts if self.layers else ())})
        return [(a, b, max(1, round((1 - self.now(form)) * (b - a)))) for a, b in pairwise(edges)]

    def numbers(self, form: Form) -> int:
        return sum(k for _, _, k in self.parts(form))

    def limit(self, form: Form) -> int:
        return bits.places_size(self.numbers(form), form.n)

    def client(self, form: Form) -> dict[str, int]:
        return {"u": form.n, "v": form.n}

    def down_values(self, form: Form) -> float:
        return 1.5 * self.numbers(form)

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        u = self.momentum * state["u"] + (clipped(rows, self.clip) if self.clip else rows)
        v = state["v"] + u
        x = array(v, form)
        places = np.concatenate([a + largest(x[:, a:b], k) for a, b, k in self.parts(form)], axis=1)
        if self.masking:
            u = u.scatter(1, torch.from_numpy(places).to(u.device), 0.0)
        body = Ragged.even(bits.pack_places(places, form.n))
        return Coded(
            body,
            pick(v, places),
            state={"u": u, "v": v},
            values=np.full(len(rows), self.down_values(form)),
        )

    def read(self, reader: Reader, who: np.ndarray, form: Form) -> np.ndarray:
        return bits.read_places(reader, who, self.numbers(form), form.n)

    def decode(
        self, info: Any, rest: Tensor | None, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        assert rest is not None
        return place(rest, info, form), memory

    def acknowledge(self, rows: Tensor, received: Tensor, state: State, form: Form) -> State:
        return state | {"v": state["v"] - received.to(state["v"])}
