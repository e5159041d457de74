"""The server's step on the aggregated change: plain, or any optimiser of torch.

With momentum it is FedAvgM, with Adam FedAdam, and so on (Reddi et al., Adaptive federated
optimization, ICLR 2021). A new optimiser is built in each round. Its state lives in the server's
state as tensors named "optimizer.*", so that a checkpoint has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..core.knobs import Factors, nearest
from ..core.types import State, prefixed, under
from ..task.client_optimizer import make_optimizer, optimizers

_PREFIX = "optimizer."


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
        if not self.plain:  # torch takes seconds over the first optimiser of a process
            self._make(torch.zeros(1))

    @property
    def plain(self) -> bool:
        return self.optimizer == "sgd" and self.lr == 1 and not self.options

    def scaled(self, factors: Factors) -> ServerStep:
        """The step of a round under a schedule of `server_lr`."""
        factor = factors.get("server_lr", 1.0)
        return self if factor == 1 else replace(self, lr=self.lr * factor)

    def method_state(self, server: State) -> State:
        """The server's state without the optimiser's."""
        return {n: t for n, t in server.items() if not n.startswith(_PREFIX)}

    def __call__(self, server: State, after: State, shared: str) -> State:
        """The server's state after the round.

        `server` is the state before it, `after` the method's state with the aggregate in it, and
        `shared` the name of the vector to step on. Where `after` has none of that name, the step
        is plain.
        """
        optimizer_state = under(server, _PREFIX)
        if self.plain or shared not in after:
            return {**prefixed(optimizer_state, _PREFIX), **after}
        w = server[shared].clone()
        optimizer = self._make(w)
        if optimizer_state:
            optimizer.state[w] = {n: t.clone() for n, t in optimizer_state.items()}
        w.grad = server[shared] - after[shared]
        optimizer.step()
        state = {n: torch.as_tensor(v) for n, v in optimizer.state[w].items() if v is not None}
        return {**after, shared: w.detach(), **prefixed(state, _PREFIX)}

    def _make(self, w: torch.Tensor) -> torch.optim.Optimizer:
        return make_optimizer(self.optimizer, self.options, self.lr, [w], "server_options")
