"""The count sketch: a linear map to a small table from which large coordinates can be read back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError, knob
from ..core.types import State
from ..wire.ragged import Ragged
from .sparse import largest
from .stage import Coded, Form, Stage


class CountSketch:
    """R^n to a table T of `rows` x `columns`.

        T[i, c] = sum of s_i(j) x_j over the j with h_i(j) = c, with signs s = ±1

    Hashes h and signs s are words of the stream of a fixed seed, so that both sides have them
    without sending them. In one row s_i(j) T[i, h_i(j)] has mean x_j and variance at most
    ||x||^2 / columns over the seeds; the median over five rows is off by more than
    3 ||x|| / sqrt(columns) with probability at most 0.012 (one row: 1/9, Chebyshev; three of five
    must be off). Linear: sketch(a) + sketch(b) = sketch(a + b). Memory: 5 rows n bytes.

    Charikar, Chen and Farach-Colton 2002, "Finding frequent items in data streams".

    >>> s = CountSketch(n=1000, rows=5, columns=100)
    >>> x = torch.zeros(1000); x[7] = 3.0; x[70] = -2.0
    >>> table = s.sketch(x[None])[0]
    >>> list(table.shape), s.heavy(table, 2).tolist(), s.estimate(table)[[7, 70]].tolist()
    ([500], [7, 70], [3.0, -2.0])
    """

    def __init__(
        self, n: int, rows: int, columns: int, seed: int = 0, device: torch.device | str = "cpu"
    ):
        self.n = n
        self.rows = rows
        self.columns = columns
        place = np.empty((rows, n), dtype=np.int32)
        sign = np.empty((rows, n), dtype=np.int8)
        for i in range(rows):
            word = streams.bits(streams.keys(seed, "count sketch", i), 0, n)[0]
            place[i] = streams.below(word, np.array(columns))  # the upper half of the word
            sign[i] = (word & np.uint64(1)).astype(np.int8) * 2 - 1  # its last bit
        self.place = torch.from_numpy(place).to(device)
        self.sign = torch.from_numpy(sign).to(device)

    def sketch(self, x: Tensor) -> Tensor:  # [K, n] -> [K, rows * columns]
        """The table of every row of x."""
        table = x.new_zeros(len(x), self.rows, self.columns)
        for i, (place, sign) in enumerate(zip(self.place, self.sign, strict=True)):
            table[:, i].scatter_add_(1, place.long().expand(len(x), -1), x * sign)
        return table.flatten(1)

    def estimate(self, table: Tensor) -> Tensor:  # [rows * columns] -> [n]
        """The median over the rows (of an even number of rows: the mean of the middle two)."""
        estimates = table.view(self.rows, self.columns).gather(1, self.place.long()) * self.sign
        low = estimates.median(0).values
        return low if self.rows % 2 else (low - (-estimates).median(0).values) / 2

    def heavy(self, table: Tensor, k: int) -> Tensor:  # -> int64[k], sorted
        """The k coordinates whose estimates have the largest magnitudes."""
        return heaviest(self.estimate(table), k)


def heaviest(x: Tensor, k: int) -> Tensor:  # [n] -> int64[k], sorted
    """The places of the k largest magnitudes; of equal ones the first, on every machine.

    >>> heaviest(torch.tensor([1.0, -3.0, 1.0, 2.0]), 3).tolist()
    [0, 1, 3]
    """
    return torch.from_numpy(largest(x.detach().cpu().numpy()[None], k)[0]).to(x.device)


@lru_cache(maxsize=4)
def shared(n: int, rows: int, columns: int, seed: int, device: str) -> CountSketch:
    """The operator, made once per process."""
    return CountSketch(n, rows, columns, seed, device)


ASKED = 4  # coordinates that the server asks for, per coordinate that it takes (p2 of Ivkin et al.)


@dataclass(frozen=True)
class Sketch(Stage):
    """A table of rows x columns numbers per message; k coordinates of the model change per round.

    With S the count sketch, g a client's message (a change: its learning rate is in it) and <.> the
    server's aggregate:

    FetchSGD (Rothchild et al. 2020, "FetchSGD: communication-efficient federated learning with
    sketching", Algorithm 1); clients remember nothing:
        u <- momentum u + <S(g)>,  v <- v + lr u,  change = the k largest of the estimate of v.
        Then the cells of u and v that `change` falls into are cleared (momentum factor masking, in
        the table). With clear = false, v <- v - S(change), as Algorithm 1 is written, and u stays:
        it diverges where many coordinates are large.
    Sketched-SGD (exact = true; Ivkin et al. 2019, "Communication-efficient distributed SGD with
    sketching"); a client keeps u and v:
        u <- momentum u + g,  v <- v + lr u,  sends S(v). The server asks for v at the 4 k largest
        of the estimate of <S(v)>, takes the k largest of the aggregate of the exact answers as the
        change, and the clients clear u and v there.

    lr = 0 means 1 - momentum, so that momentum never enlarges the message (but slows coordinates
    that are taken, and so cleared, in every round); lr = 1 is the papers' recursion, their learning
    rate being in the client's. What is sent late is sent all at once, after about n/k rounds: if
    the run diverges, lower the clients' learning rate or lr.
    FetchSGD sees the same rows x columns combinations of every message and nothing else: it finds
    changes with few large coordinates; where there are many, gradient descent on a quadratic stops
    short of the optimum. exact = true has no such limit.

    Numbers up: rows x columns (and 4 k exact ones); down: 2 k (and 4 k asked for). Defaults for n
    numbers: k = n/40; columns = n/25, or n/50 with exact = true; both send n/5 up.

    >>> form = Form(79510)
    >>> Sketch().numbers(form), Sketch(exact=True).numbers(form), Sketch().size(form)[1]
    (15905, 7955, 1988)
    """

    columns: int = knob(0, "columns of the table; 0 = n/25, or n/50 if exact", low=0)
    rows: int = knob(5, "rows of the table", low=1)
    k: int = knob(0, "coordinates that change per round; 0 = n/40", low=0)
    exact: bool = knob(
        False,
        "ask the clients for exact values (Sketched-SGD) instead of the server's memory (FetchSGD)",
    )
    momentum: float = knob(0.9, "momentum, of the server's table or of each client", low=0, below=1)
    lr: float = knob(0.0, "factor of the momentum in what is accumulated; 0 = 1 - momentum", low=0)
    clear: bool = knob(
        True,
        "FetchSGD: clear the cells of what was taken instead of subtracting it",
        acts_with={"exact": False},
    )
    seed: int = knob(0, "seed of the hashes, the same at both sides", low=0)

    decodes_aggregate: ClassVar[bool] = True

    @property
    def second_exchange(self) -> bool:
        return self.exact

    @property
    def rate(self) -> float:
        """The factor of u in v."""
        return self.lr or 1 - self.momentum

    def size(self, form: Form) -> tuple[int, int]:
        """Columns, and coordinates that change."""
        columns = self.columns or -(-form.n // (50 if self.exact else 25))
        return columns, self.k or -(-form.n // 40)

    def check(self, form: Form) -> str:
        columns, k = self.size(form)
        if k > form.n:
            raise SettingError(
                f"channel sketch: k must be at most {form.n}, the numbers of the message, got {k}"
            )
        if self.rows * columns < form.n:
            return ""
        table = f"{self.rows} x {columns} = {self.rows * columns:,} numbers"
        return (
            f"a sketch of {table} is not smaller than the message of {form.n:,}: "
            "it does not compress"
        )

    def numbers(self, form: Form) -> int:
        return self.rows * self.size(form)[0]

    def client(self, form: Form) -> dict[str, int]:
        return {"u": form.n, "v": form.n} if self.exact else {}

    def server(self, form: Form) -> dict[str, int]:
        return {} if self.exact else {"u": self.numbers(form), "v": self.numbers(form)}

    def down_values(self, form: Form) -> float:
        k = self.size(form)[1]
        return float(2 * k + (ASKED * k if self.exact else 0))

    def operator(self, like: Tensor, form: Form) -> CountSketch:
        """The count sketch, on the device of `like`."""
        return shared(form.n, self.rows, self.size(form)[0], self.seed, str(like.device))

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        body = Ragged.empty(len(rows))  # the table is passed on as numbers
        s = self.operator(rows, form)
        if not self.exact:
            return Coded(body, s.sketch(rows), state=state)
        u = self.momentum * state["u"] + rows
        v = state["v"] + self.rate * u
        values = np.full(len(rows), float(self.numbers(form) + ASKED * self.size(form)[1]))
        return Coded(body, s.sketch(v), state={"u": u, "v": v}, values=values)

    def finish(self, aggregate: Tensor, state: State, form: Form) -> tuple[Tensor, State]:
        s = self.operator(aggregate, form)
        u = self.momentum * state["u"] + aggregate
        v = state["v"] + self.rate * u
        estimate = s.estimate(v)
        places = heaviest(estimate, self.size(form)[1])
        change = estimate.new_zeros(estimate.shape)
        change[places] = estimate[places]
        change_table = s.sketch(change[None])[0]
        if not self.clear:
            return change, {"u": u, "v": v - change_table}
        return change, {
            "u": u.masked_fill(change_table != 0, 0),
            "v": v.masked_fill(change_table != 0, 0),
        }

    def query(self, aggregate: Tensor, state: State, form: Form) -> Tensor:
        count = min(ASKED * self.size(form)[1], form.n)
        return self.operator(aggregate, form).heavy(aggregate, count)

    def answer(self, state: State, query: Tensor, form: Form) -> Tensor:
        return state["v"][:, query]

    def conclude(
        self, query: Tensor, exact: Tensor, state: State, form: Form
    ) -> tuple[Tensor, Tensor, State]:
        best = heaviest(exact, self.size(form)[1])
        change = exact.new_zeros(form.n)
        change[query[best]] = exact[best]
        return change, query[best], state

    def forget(self, state: State, chosen: Tensor, form: Form) -> State:
        return {name: rows.index_fill(1, chosen, 0) for name, rows in state.items()}
