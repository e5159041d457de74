"""A method of your own: copy this file, rename the class, change it, and run it to check it.

    python method_skeleton.py                                  # every check that a method must pass
    idiolect run method_skeleton:Mixture --share 0.3           # use it, from the same folder

docs/add-a-method.md explains each part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

import idiolect as il
from idiolect.solvers import sgd
from idiolect.testing import check_method


@dataclass(frozen=True)
class Mixture(il.Method):
    """Clients predict with a mixture of the shared model and their own. A skeleton to copy."""

    # -- what is declared: only where it differs from the defaults of il.Method ------------------
    traits = il.Traits(rates=("lr", "personal_lr"))  # what a schedule scales

    # -- hyper-parameters: flags, TOML keys, docs and checks come from these lines ---------------
    lr: float = il.knob(0.1, "step size of the shared model", above=0)
    personal_lr: float = il.knob(0.1, "step size of the client's own model", above=0)
    steps: int = il.knob(5, "SGD steps on each of the two models per round", low=0)
    share: float = il.knob(0.5, "weight of the shared model in the mixture", low=0, high=1)
    server_rate: float = il.knob(1.0, "β: w <- w + β (mean - w)", above=0)

    # -- the clients' side: all clients at once, one row per client ------------------------------
    def private(self, task: il.Task, clients: np.ndarray) -> il.State:
        """What clients keep, when they are met for the first time."""
        return {"v": task.x0.repeat(len(clients), 1)}

    def update(
        self, task: il.Task, down: il.State, private: il.State, here: il.Here
    ) -> tuple[il.State, il.State]:
        """A round at the clients: (message up, new private rows)."""
        w = down["w"].expand(here.rows, -1)
        x = sgd(task, w, here, self.lr, self.steps)
        v = sgd(task, private["v"], here, self.personal_lr, self.steps)
        return {"w": x}, {"v": v}

    def personal(
        self, task: il.Task, down: il.State, private: il.State, here: il.Here
    ) -> Tensor:  # -> x[K, d]
        """The model each client predicts with."""
        return self.share * down["w"] + (1 - self.share) * private["v"]

    # -- the server's side -----------------------------------------------------------------------
    def aggregate(
        self, task: il.Task, server: il.State, up: il.State, rule: il.Combine
    ) -> il.State:
        """The server's step; clients are combined through `rule` only."""
        w = server["w"]
        return {"w": w + self.server_rate * (rule(up)["w"] - w)}


if __name__ == "__main__":
    check_method(Mixture())
    print("Mixture keeps every promise that a method makes")
