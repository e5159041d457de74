"""FedROD: one model trained to serve everybody, and a personal last layer added to it.

Chen and Chao 2022 (ICLR), section 4, with linear personal heads. Choose it where clients have other
shares of the classes: the shared model is trained by the balanced softmax, as if every client had
all of its classes alike, and is good for new clients; the personal layer, trained by the client's
own loss on features that it does not shape, brings the client's shares back. Costs per round: d
numbers down to and up from each sampled client; 2 steps gradients. Keeps: a last layer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..core.knobs import SettingError, knob
from ..core.types import State
from ..method import Traits
from ..solvers import moved, turns
from ..task.batches import Batch
from ..task.context import Here
from ..task.task import Task
from ..task.term import Pass, Term
from .classifier import check_logits, class_scores, head_size, in_classes, labels
from .options import WEIGHTINGS, Averaging, epochs_knob, steps_knob


@dataclass(frozen=True)
class FedRod(Averaging):
    """A balanced shared model, with a personal last layer added. For unlike shares of classes."""

    traits = Traits(
        rates=("lr", "personal_lr"),
        row_messages=True,
        optimizers=("w", "head"),
        reductions={
            "personal_lr": "nothing is personal: this is FedAvg by the balanced softmax",
            "steps": "no model is trained",
        },
    )

    lr: float = knob(0.3, "step size of the shared model", above=0)
    personal_lr: float = knob(0.1, "step size of the personal last layer", low=0)
    steps: int = steps_knob(20, "SGD steps of both per round")
    epochs: int = epochs_knob()
    weighting: str = knob("samples", "the server's mean", choices=WEIGHTINGS)

    def check(self, task: Task) -> None:
        check_logits(task)
        head_size(task)
        names = task.layout.parts.head
        if len({name.rpartition(".")[0] for name in names}) > 1:
            raise SettingError(
                "model must have nothing but a linear layer at its end for this method, "
                f"got {', '.join(names)}"
            )

    def step_coordinates(self, task: Task) -> dict[str, Tensor | None]:
        return {"w": None, "head": task.split("head").w}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"head": task.x0.new_zeros(len(clients), len(task.split("head").w))}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        x = down["w"].expand(here.rows, -1)
        head = private["head"]
        classes = head_size(task).classes

        def log_shares(k: Tensor, samples: Batch) -> State:
            """log n_c; the unit of n_c makes no difference."""
            counts = in_classes(samples.targets, samples.weights, classes).sum(1)
            return {"log_shares": counts.log()}

        # of clients without samples all classes are alike
        balanced = Term(_balanced, rows=here.of_training_samples(log_shares), loss=0.0)
        by_x = here.optimise.begin("w", x, self.lr) if here.optimise else None
        by_head = here.optimise.begin("head", head, self.personal_lr) if here.optimise else None
        for active in turns(here, self.steps, self.epochs):
            batch = here.draw()
            batch = batch if active is None else batch.only(active.to(x.device))
            # θ, ψ <- by the balanced loss of the shared head's outputs
            g = task.grad(x, batch, balanced)
            # φ <- by the loss of both heads' outputs: of linear layers, those of their sum
            own = task.grad(_with_head(task, x, head), replace(batch, statistics=None))
            own = own[:, task.split("head").w]
            x = moved(x, g, self.lr, by_x, active)
            head = moved(head, own, self.personal_lr, by_head, active)
        return {"w": x}, {"head": head}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return _with_head(task, down["w"].expand(here.rows, -1), private["head"])


def _with_head(task: Task, x: Tensor, head: Tensor) -> Tensor:
    """Models x[K, d] whose last layer is the sum of two, of which the other is head[K, h]."""
    return x.index_add(1, task.split("head").w, head)


def _balanced(run: Pass, rows: State) -> Tensor:  # -> [K, B]
    """-log(n_y exp(g_y) / Σ_c n_c exp(g_c)), n_c the client's samples of class c."""
    scores = class_scores(run.outputs) + rows["log_shares"].unsqueeze(1)
    return -scores.log_softmax(-1).gather(-1, labels(run.targets).unsqueeze(-1)).squeeze(-1)
