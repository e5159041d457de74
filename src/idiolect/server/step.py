"""The server's step on the aggregated change: plain, or any optimiser of torch.

With momentum it is FedAvgM, with Adam FedAdam, and so on (Reddi et al., Adaptive federated
optimization, ICLR 2021). The optimiser is made anew in each round. Its state lives in the server's
state as tensors named "optimizer.*", so that a checkpoint has it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, cast

import torch

from ..core.knobs import SettingError, nearest
from ..core.types import State, prefixed, under

_PREFIX = "optimizer."
_NOT_FROM_A_GRADIENT_ALONE = ("optimizer", "lbfgs", "sparseadam", "muon")


def optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """torch's optimisers by lower-case name, those that step from a gradient alone."""
    known = {
        name.lower(): found
        for name, found in vars(torch.optim).items()
        if isinstance(found, type) and issubclass(found, torch.optim.Optimizer)
    }
    return {n: found for n, found in known.items() if n not in _NOT_FROM_A_GRADIENT_ALONE}


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
    """w <- optimiser step with gradient w - (aggregated w), for the shared vector w.

    SGD with lr 1 and no options is the plain step: the aggregate is taken exactly.

    >>> half = ServerStep(lr=0.5)
    >>> half({"w": torch.tensor([0.0])}, {"w": torch.tensor([1.0])}, shared="w")
    {'w': tensor([0.5000])}
    """

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

    def method_state(self, server: State) -> State:
        """The server's state without the optimiser's."""
        return {n: t for n, t in server.items() if not n.startswith(_PREFIX)}

    def __call__(self, server: State, after: State, shared: str) -> State:
        """The server's state after the round.

        `server` is the state before it, `after` the method's state with the aggregate in it, and
        `shared` the name of the vector to step on. Where `after` has none of that name, the step
        is plain.
        """
        kept = under(server, _PREFIX)
        if self.plain or shared not in after:
            return {**prefixed(kept, _PREFIX), **after}
        w = server[shared].clone()
        optimizer = self._make(w)
        if kept:
            optimizer.state[w] = {n: t.clone() for n, t in kept.items()}
        w.grad = server[shared] - after[shared]
        optimizer.step()
        state = {n: torch.as_tensor(v) for n, v in optimizer.state[w].items() if v is not None}
        return {**after, shared: w.detach(), **prefixed(state, _PREFIX)}

    def _make(self, w: torch.Tensor) -> torch.optim.Optimizer:
        try:
            return cast(Any, optimizers()[self.optimizer])([w], lr=self.lr, **parse(self.options))
        except (TypeError, ValueError, IndexError) as error:
            raise SettingError(
                f"server_options: {self.options!r} does not fit {self.optimizer}: {error}"
            ) from None
