"""Error feedback: what did not arrive is added to the next message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from ..core.types import State
from ..wire.ragged import Ragged
from .stage import Coded, Form, Stage


@dataclass(frozen=True)
class Feedback(Stage):
    """x + e is coded by the stages that follow; e <- x + e - (what arrived).

    Each client keeps a row of n numbers, e. Makes biased channels (top-k, sign) converge.
    Karimireddy, Rebjock, Stich and Jaggi 2019, "Error feedback fixes SignSGD and other gradient
    compression schemes".

    >>> Feedback().client(Form(3))
    {'e': 3}
    """

    needs_receipt: ClassVar[bool] = True
    resends_losses: ClassVar[bool] = True

    def client(self, form: Form) -> dict[str, int]:
        return {"e": form.n}

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        whole = rows + state["e"]
        return Coded(Ragged.empty(len(rows)), whole, state={"e": whole})

    def acknowledge(self, rows: Tensor, received: Tensor, state: State, form: Form) -> State:
        return {"e": state["e"] - received.to(rows)}
