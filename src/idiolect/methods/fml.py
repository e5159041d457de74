"""FML: a personal model and a shared one that teach each other.

Shen et al. 2020, "Federated mutual learning", Algorithm 1. Choose it where the whole model should
be personal and the shared one is needed too. At each client the shared model, called meme, and the
personal one learn from the labels and from each other's answers. Costs per round: d numbers down to
and up from each sampled client; 2 steps gradients, and two forward passes beside. Keeps: the
personal model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Traits
from ..solvers import moved, turns
from ..task.batches import Batch
from ..task.context import Here
from ..task.task import Task
from ..task.term import Pass, Term
from .classifier import check_logits, class_scores, labels
from .options import WEIGHTINGS, Averaging, epochs_knob, init_knob, own_models, steps_knob


@dataclass(frozen=True)
class Fml(Averaging):
    """A personal and a shared model that learn from each other's answers. For unlike labels."""

    traits = Traits(
        rates=("lr", "personal_lr"),
        row_messages=True,
        models=("w", "v"),
        optimizers=("w", "v"),
        reductions={"steps": "no model is trained"},
    )

    lr: float = knob(0.3, "step size of the shared model", above=0)
    personal_lr: float = knob(0.3, "step size of the personal model", above=0)
    steps: int = steps_knob(20, "SGD steps of both models per round")
    epochs: int = epochs_knob()
    alpha: float = knob(
        0.5, "α, weight of the labels for the personal model; 1 is Local", low=0, high=1
    )
    beta: float = knob(
        0.5, "β, weight of the labels for the shared model; 1 is FedAvg", low=0, high=1
    )
    weighting: str = knob("samples", "the server's mean", choices=WEIGHTINGS)
    init: str = init_knob()

    def check(self, task: Task) -> None:
        check_logits(task)

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"v": own_models(task, clients, self.init)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"].expand(here.rows, -1)
        v = private["v"]
        by_w = here.optimise.begin("w", w, self.lr) if here.optimise else None
        by_v = here.optimise.begin("v", v, self.personal_lr) if here.optimise else None
        for active in turns(here, self.steps, self.epochs):
            batch = here.draw()
            batch = batch if active is None else batch.only(active.to(w.device))
            taught_by_v = _lesson(task, here.complete(v, "v"), batch, self.beta)
            taught_by_w = _lesson(task, here.complete(w, "w"), batch, self.alpha)
            # L_meme = β L_C,meme + (1 - β) KL(p_local || p_meme)
            g = task.grad(w, batch.of("w"), taught_by_v)
            # L_local = α L_C,local + (1 - α) KL(p_meme || p_local)
            own = task.grad(v, batch.of("v"), taught_by_w)
            w = moved(w, g, self.lr, by_w, active)
            v = moved(v, own, self.personal_lr, by_v, active)
        return {"w": w}, {"v": v}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["v"]


def _lesson(task: Task, teacher: Tensor, batch: Batch, share: float) -> Term:
    """Labels weigh `share`, and the answers of models teacher[K, d] the rest."""
    answers = class_scores(task.outputs(teacher, batch.inputs, as_trained=True))
    return Term(partial(_divergence, 1 - share), samples={"teacher": answers}, loss=share)


def _divergence(weight: float, run: Pass, rows: State) -> Tensor:  # -> [K, B]
    """The weight times KL(teacher || model) of each sample's class probabilities."""
    labels(run.targets)
    teacher, model = (t.log_softmax(-1) for t in (rows["teacher"], class_scores(run.outputs)))
    return weight * F.kl_div(model, teacher, reduction="none", log_target=True).sum(-1)
