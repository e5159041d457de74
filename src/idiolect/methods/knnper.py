"""kNN-Per: a shared model, corrected by what a client remembers of its own samples.

Marfoq, Neglia, Vidal and Kameni 2022 (ICML), Algorithm 1. Choose it to personalise a shared model
without training: each client predicts with a mixture of the model and of the labels of the k
training samples of its own that have the nearest features. Costs per round: as FedAvg; two forward
passes and a search among its samples for a prediction. Keeps nothing but the samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.knobs import knob
from ..core.types import Personal, State, Tree
from ..method import Traits
from ..task.batches import Batch
from ..task.context import Here
from ..task.losses import logits
from ..task.task import Task
from ..task.term import HEAD, find_layer
from .classifier import as_outputs, check_classes, labels, probabilities
from .fedavg import FedAvg

_AT_ONCE = 1 << 22  # distances in memory at a time


@dataclass(frozen=True)
class KnnPer(FedAvg):
    """FedAvg's model mixed with each client's nearest training samples. Needs no local training."""

    traits = replace(
        FedAvg.traits,
        reductions={"lam": "this is FedAvg", "steps": "the shared model stays as it starts"},
    )

    lam: float = knob(0.5, "λ_m, weight of the nearest samples; 0 is FedAvg", low=0, high=1)
    grid: int = knob(
        0,
        "each client chooses λ_m among lam, 0, 1/grid, ..., 1 by its validation data (the paper: "
        "10); 0 = lam for all",
        low=0,
    )
    neighbours: int = knob(10, "k, how many samples are looked at", low=1)
    scale: float = knob(1.0, "σ: weights of samples at distance d are exp(-d / σ)", above=0)
    distance: str = knob(
        "euclidean",
        "d, between features: euclidean (the paper), or its square over their number (its code)",
        choices=("euclidean", "squared"),
    )
    layer: str = knob(
        HEAD, "whose features: head (what the last layer is given) or the name of a module"
    )

    def refine(self, traits: Traits) -> Traits:
        if not self.grid:
            return traits
        return replace(traits, reductions={"steps": traits.reductions["steps"]})

    def check(self, task: Task) -> None:
        check_classes(task)
        find_layer(task.module, task.layout, self.layer)

    def personal(self, task: Task, down: State, private: State, here: Here) -> Personal:
        x = here.complete(down["w"].expand(here.rows, -1))

        def remember(k: Tensor, samples: Batch) -> State:
            features = task.features(x[k], samples.inputs, self.layer).flatten(2)
            exists = samples.weights > 0
            return {"features": features, "labels": labels(samples.targets), "exists": exists}

        lam = x.new_full((here.rows, 1), self.lam)
        rows = {"x": x, "lam": lam} | here.of_training_samples(remember)
        return rows | {"lam": self._best(rows, here)} if self.grid else rows

    def _best(self, rows: State, here: Here) -> Tensor:  # -> [K, 1]
        """λ_m of the smallest validation error; of equal ones the first."""
        choices = [self.lam, *(i / self.grid for i in range(self.grid + 1))]
        values = rows["lam"].new_tensor(choices)
        errors = [here.validate(rows | {"lam": v.expand_as(rows["lam"])}) for v in values]
        order = torch.stack(errors).sort(dim=0, stable=True).indices
        return values[order[0].to(values.device)].unsqueeze(1)

    def predict(self, task: Task, personal: State, inputs: Tree) -> Tree:
        x, lam = personal["x"], personal["lam"].unsqueeze(2)
        outputs = logits(task.outputs(x, inputs))
        shared = probabilities(task, outputs)
        features = task.features(x, inputs, self.layer).flatten(2)
        near = self.memory(features, personal, shared.shape[-1])
        # h_m = λ_m h_kNN + (1 - λ_m) h_S; h_S alone where there are no samples
        remembers = personal["exists"].any(1).view(-1, 1, 1)
        mixed = torch.where(remembers, lam * near + (1 - lam) * shared, shared)
        return as_outputs(task, mixed, outputs.shape[-1])

    def memory(self, features: Tensor, rows: State, classes: int) -> Tensor:
        """h_kNN: the labels of the nearest samples by their weights, [K, B, F] -> [K, B, C]."""
        more = max(self.neighbours - rows["features"].shape[1], 0)  # so that there are k
        memory = F.pad(rows["features"], (0, 0, 0, more))
        exists, targets = (F.pad(rows[name], (0, more)) for name in ("exists", "labels"))
        pieces = []
        for piece in features.split(max(1, _AT_ONCE // memory[..., 0].numel()), dim=1):
            distances = torch.cdist(piece, memory, compute_mode="donot_use_mm_for_euclid_dist")
            if self.distance == "squared":
                distances = distances.square() / memory.shape[2]
            distances = distances.masked_fill(~exists.unsqueeze(1), torch.inf)
            nearest, index = distances.sort(dim=-1, stable=True)  # of equal ones the first
            # ∝ Σ_i 1{y = y_i} exp(-d(φ(x), φ(x_i)) / σ)
            weights = (-nearest[..., : self.neighbours] / self.scale).softmax(-1)
            classes_near = targets.unsqueeze(1).expand_as(distances).gather(2, index)
            blank = piece.new_zeros(*weights.shape[:2], classes)
            pieces.append(blank.scatter_add(2, classes_near[..., : self.neighbours], weights))
        return torch.cat(pieces, dim=1)
