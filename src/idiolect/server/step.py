"""The server's step on the aggregated change: plain, or any torch optimiser (FedAvgM, FedAdam, ...; Reddi et al. 2021).

The optimiser is made anew each round; its state lives in the server's state as tensors named "optimizer.*", so a checkpoint has it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, cast

import torch

from ..core.knobs import SettingError, nearest
from ..core.types import State

_PREFIX = "optimizer."


def optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """torch's optimisers by lower-case name, those that step from a gradient alone."""
    known = {
        n.lower(): c
        for n, c in vars(torch.optim).items()
        if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)
    }
    return {n: c for n, c in known.items() if n not in ("optimizer", "lbfgs", "sparseadam", "muon")}


def parse(options: str) -> dict[str, Any]:
    """Options as text, "momentum=0.9, betas=(0.9, 0.99)", to a dict.

    >>> parse("momentum=0.9, nesterov=True")
    {'momentum': 0.9, 'nesterov': True}
    """
    try:
        call = ast.parse(f"f({options})", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise SettingError(
            f"server_options: {options!r} is not accepted; write name=value, name=value"
        ) from None


@dataclass(frozen=True)
class ServerStep:
    """w <- optimiser step with gradient w - (aggregated w). SGD with lr 1 and no options is the plain step, taken exactly."""

    optimizer: str = "sgd"
    lr: float = 1.0
    options: str = ""

    def __post_init__(self) -> None:
        if self.optimizer not in optimizers():
            raise nearest(self.optimizer, optimizers(), "server_optimizer")
        self._make(torch.zeros(1))

    @property
    def plain(self) -> bool:
        return self.optimizer == "sgd" and self.lr == 1 and not self.options

    def without(self, server: State) -> State:
        """The method's own state."""
        return {n: t for n, t in server.items() if not n.startswith(_PREFIX)}

    def __call__(self, server: State, after: State) -> State:
        shared = "w" if "w" in after else "theta"
        if self.plain or shared not in after:
            return {**{n: t for n, t in server.items() if n.startswith(_PREFIX)}, **after}
        w = server[shared].clone()
        optimizer = self._make(w)
        had = {
            n.removeprefix(_PREFIX): t.clone() for n, t in server.items() if n.startswith(_PREFIX)
        }
        if had:
            optimizer.state[w] = had
        w.grad = server[shared] - after[shared]
        optimizer.step()
        kept = {
            f"{_PREFIX}{n}": torch.as_tensor(v)
            for n, v in optimizer.state[w].items()
            if v is not None
        }
        return {**after, shared: w.detach(), **kept}

    def _make(self, w: torch.Tensor) -> torch.optim.Optimizer:
        try:
            return cast(Any, optimizers()[self.optimizer])([w], lr=self.lr, **parse(self.options))
        except (TypeError, ValueError, IndexError) as error:
            raise SettingError(
                f"server_options: {self.options!r} does not fit {self.optimizer}: {error}"
            ) from None
