"""FedEM: clients share a few models, and each mixes them in its own proportions.

Marfoq et al. 2021 (NeurIPS), Algorithm 1. Choose it where every client's data are a mixture of a
few kinds that nobody knows. In each round a client says how likely each component made each of its
samples (E-step), takes the means as its weights, and trains every component on the samples it made
(M-step). Costs per round: M d numbers down to and up from each sampled client; M steps gradients,
and M forward passes per step. Keeps: M weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError, knob
from ..core.types import Personal, State, Tree
from ..method import Traits
from ..solvers import moved, turns
from ..task.batches import Batch
from ..task.context import Here
from ..task.losses import logits
from ..task.task import Task
from ..task.term import Pass, Term
from .classifier import OF_CLASSES, as_outputs, probabilities
from .options import WEIGHTINGS, Averaging, epochs_knob, steps_knob


@dataclass(frozen=True)
class FedEm(Averaging):
    """A few shared models, mixed by each client in its own proportions. For data of a few kinds."""

    traits = Traits(
        sends="M d",
        row_messages=True,
        reductions={"steps": "no model is trained, only the weights of each client"},
    )

    components: int = knob(3, "M, how many models are shared; 1 is FedAvg", low=1)
    lr: float = knob(0.3, "step size of every component", above=0)
    steps: int = steps_knob(20, "SGD steps of every component per round")
    epochs: int = epochs_knob()
    weighting: str = knob("samples", "the server's mean", choices=WEIGHTINGS)

    def refine(self, traits: Traits) -> Traits:
        return replace(traits, optimizers=tuple(f"w{m}" for m in range(self.components)))

    def check(self, task: Task) -> None:
        if task.statistics is not None:
            name = task.statistics.layout.names[0]
            raise SettingError(
                f"model must be without running statistics for this method, got {name!r}; "
                "torch.nn.GroupNorm has none"
            )
        starts = self.server(task)["w"].view(self.components, -1)
        if self.components > 1 and torch.equal(starts[0], starts[1]):
            raise SettingError(
                "weights must be empty for this method: its components start at different models, "
                f"got {task.initial.weights!r}"
            )

    def message(self, task: Task) -> dict[str, int]:
        return {"w": self.components * task.d}

    def server(self, task: Task) -> State:
        numbers = np.arange(self.components, dtype=np.uint64)
        starts = task.draw(streams.keys(task.seed, "component", 0, numbers))
        starts[0] = task.x0
        return {"w": starts.flatten()}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"pi": task.x0.new_full((len(clients), self.components), 1 / self.components)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        start = self._models(task, down, here).unbind(1)
        pi = private["pi"]

        def mean_shares(k: Tensor, samples: Batch) -> State:
            """M-step of the weights: π_m = 1/n Σ_i q(z_i = m)."""
            shares = _shares(task, [x[k] for x in start], pi[k], samples)
            return {"pi": (shares * samples.weights.unsqueeze(-1)).sum(1)}

        private_rows = {"pi": pi} | here.of_training_samples(mean_shares)
        models = list(start)
        by = [
            here.optimise.begin(f"w{m}", x, self.lr) if here.optimise else None
            for m, x in enumerate(models)
        ]
        for active in turns(here, self.steps, self.epochs):
            batch = here.draw()
            batch = batch if active is None else batch.only(active.to(pi.device))
            shares = _shares(task, start, pi, batch)
            for m, x in enumerate(models):
                # θ_m <- θ_m - η Σ_i q(z_i = m) ∇ l(θ_m; x_i, y_i)
                own = Term(partial(_weighed, task), samples={"share": shares[..., m]}, loss=0.0)
                models[m] = moved(x, task.grad(x, batch, own), self.lr, by[m], active)
        return {"w": torch.cat(models, dim=1)}, private_rows

    def personal(self, task: Task, down: State, private: State, here: Here) -> Personal:
        return {"models": self._models(task, down, here), "pi": private["pi"]}

    def _models(self, task: Task, down: State, here: Here) -> Tensor:  # -> [K, M, d]
        return down["w"].expand(here.rows, -1).unflatten(1, (self.components, task.d))

    def predict(self, task: Task, personal: State, inputs: Tree) -> Tree:
        # Σ_m π_m h_m(x): of classes probabilities are mixed, else outputs
        mixes_probabilities = isinstance(task.criterion, OF_CLASSES)
        parts = []
        for x, weights in zip(personal["models"].unbind(1), personal["pi"].unbind(1), strict=True):
            outputs = logits(task.outputs(x, inputs))
            each = probabilities(task, outputs) if mixes_probabilities else outputs
            parts.append(each * weights.view(-1, *[1] * (each.dim() - 1)))
        mixture = torch.stack(parts).sum(0)
        return as_outputs(task, mixture, outputs.shape[-1]) if mixes_probabilities else mixture


def _shares(task: Task, models: Sequence[Tensor], pi: Tensor, batch: Batch) -> Tensor:
    """E-step: q(z_i = m) ∝ π_m exp(-l(θ_m; x_i, y_i)), [K, B, M]."""
    losses = [
        _losses(task, task.outputs(x, batch.inputs, as_trained=True), batch.targets) for x in models
    ]
    return (pi.log().unsqueeze(1) - torch.stack(losses, dim=-1)).softmax(-1)


def _losses(task: Task, outputs: Tree, targets: Tree) -> Tensor:
    """The loss of each sample [K, B]."""
    if task.behaviour.compares:
        raise SettingError(
            "loss must give each sample a value of its own for this method, got "
            f"{task.criterion.name!r}"
        )
    each = task.objective.of_rows(outputs, targets)
    return each if each.dim() == 2 else each.flatten(2).mean(2)


def _weighed(task: Task, run: Pass, rows: State) -> Tensor:  # -> [K, B]
    return rows["share"] * _losses(task, run.outputs, run.targets)
