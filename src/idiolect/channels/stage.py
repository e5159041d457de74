"""What a stage of a channel is: rows of numbers in; bytes of its own and fewer numbers out.

A channel is a sequence of stages. Each takes the numbers that the one before passed on, writes
bytes of its own and passes on what is still to be sent: `topk` writes which coordinates it sends
and passes on their values; `qsgd` writes everything as packed bits and passes nothing on. Numbers
left after the last stage are sent as they are.

Every function is pure. What a stage remembers is declared: rows that a client keeps (`client`),
rows that the server keeps for each client (`memory`) and vectors of the server (`server`). All
start at zero, and run and checkpoint carry them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import Knobs
from ..core.types import State
from ..wire.ragged import Ragged, Reader


@dataclass(frozen=True)
class Form:
    """What a stage is given: n numbers per row, and the round."""

    n: int
    starts: tuple[int, ...] = ()  # where the tensors of the row start; the last is n
    round: int = 0
    dtype: torch.dtype = torch.float32

    @property
    def kind(self) -> np.dtype:
        """The NumPy type of the numbers."""
        return torch.empty(0, dtype=self.dtype).numpy().dtype


@dataclass
class Coded:
    """What a stage makes of rows[K, n]."""

    body: Ragged  # its own bytes
    rest: Tensor | None = None  # numbers that are passed on, of the rows in `who`
    who: np.ndarray | None = None  # bool[K]: rows that pass numbers on; None = all
    state: State = field(default_factory=dict)  # the clients' rows afterwards
    # float[K]: 32-bit words per row as the lp-proj paper counts; None = as the later stages count
    values: np.ndarray | None = None


@dataclass(frozen=True)
class Stage(Knobs):
    """The interface; its defaults are a stage that passes everything on."""

    # The server decodes the aggregate of the rows instead of each row (sketches are linear).
    decodes_aggregate: ClassVar[bool] = False
    # The client needs to know what arrived: `acknowledge` is called with it.
    needs_receipt: ClassVar[bool] = False
    # What did not arrive is added to a later message. At most one such stage in a channel.
    resends_losses: ClassVar[bool] = False
    # The numbers passed on are other coordinates in every round, so that no later stage can
    # remember coordinates.
    moves_coordinates: ClassVar[bool] = False

    @property
    def second_exchange(self) -> bool:
        """With `decodes_aggregate`: whether the server asks for exact values of coordinates."""
        return False

    def check(self, form: Form) -> str:
        """Refuse what cannot work on this form; a warning, or ""."""
        return ""

    def numbers(self, form: Form) -> int:
        """How many numbers per row are passed on."""
        return form.n

    def limit(self, form: Form) -> int:
        """The most bytes of its own per row: a longer message is rejected before it is read."""
        return 0

    def client(self, form: Form) -> dict[str, int]:
        """Rows each client keeps: name -> numbers."""
        return {}

    def memory(self, form: Form) -> dict[str, int]:
        """Rows the server keeps for each client: name -> numbers."""
        return {}

    def server(self, form: Form) -> dict[str, int]:
        """Vectors the server keeps: name -> numbers."""
        return {}

    def down_values(self, form: Form) -> float:
        """32-bit words of the message down, as the lp-proj paper counts for this channel."""
        return float(form.n)

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        """Code rows[K, n].

        `state`: the clients' rows; `keys`: uint64[K], a random stream per client and round.
        """
        return Coded(Ragged.empty(len(rows)), rows, state=state)

    def read(self, reader: Reader, who: np.ndarray, form: Form) -> Any:
        """This stage's own bytes of the rows `who` (bool[K]), as whatever `decode` needs.

        The bytes may be hostile: mark rows as bad, do not raise.
        """
        return None

    def passes(self, info: Any, who: np.ndarray) -> np.ndarray:  # -> bool[K]
        """Which of the rows `who` passed numbers on."""
        return who

    def decode(
        self, info: Any, rest: Tensor | None, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        """Rows[K', n] again, and the server's memory of these clients.

        `rest`: the numbers passed on, of the rows that did so.
        """
        assert rest is not None
        return rest, memory

    def acknowledge(self, rows: Tensor, received: Tensor, state: State, form: Form) -> State:
        """The client's rows once it knows what arrived.

        `rows` went into this stage at the client, `received` came out of it at the server.
        """
        return state

    # -- stages that the server decodes from the aggregate -----------------------------------------
    def finish(self, aggregate: Tensor, state: State, form: Form) -> tuple[Tensor, State]:
        """The change [n], and the server's vectors afterwards.

        `aggregate`: of the numbers that were passed on; `state`: the server's vectors.
        """
        raise NotImplementedError

    def query(self, aggregate: Tensor, state: State, form: Form) -> Tensor:  # -> int64[q], sorted
        """Coordinates whose exact values the server asks for."""
        raise NotImplementedError

    def answer(self, state: State, query: Tensor, form: Form) -> Tensor:  # -> [K, q]
        """The clients' exact values, from their rows."""
        raise NotImplementedError

    def conclude(
        self, query: Tensor, exact: Tensor, state: State, form: Form
    ) -> tuple[Tensor, Tensor, State]:
        """(change [n], the chosen coordinates int64[k], the server's vectors afterwards).

        `exact`: the aggregated answer [q].
        """
        raise NotImplementedError

    def forget(self, state: State, chosen: Tensor, form: Form) -> State:
        """The clients' rows after the server has taken these coordinates."""
        raise NotImplementedError


def array(rows: Tensor, form: Form) -> np.ndarray:
    """Rows as a NumPy matrix of the message's type; may share memory with them."""
    return rows.detach().to("cpu", form.dtype).numpy()
