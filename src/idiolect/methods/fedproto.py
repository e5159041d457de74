"""FedProto: clients share what the classes look like, and no model.

Tan et al. 2022 (AAAI), Algorithm 1. Choose it where models must stay at home, or messages must be
small: what is sent is the mean feature vector of each class, its prototype, and local features are
drawn to the mean prototypes of all clients. The prototype of a class with one sample at a client is
that sample's features. Costs per round: C (F + 1) numbers up and down for each sampled client (C
classes, F features); `steps` gradients. Keeps each client's model, of which nothing is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Traits
from ..task.batches import Batch
from ..task.context import Here
from ..task.task import Task
from ..task.term import HEAD, Pass, Term
from .classifier import by_class, check_classes, head_size, labels
from .options import LocalSgd, epochs_knob, init_knob, own_models, steps_knob


@dataclass(frozen=True)
class FedProto(LocalSgd):
    """Clients share mean features by class, and no model. Where models must stay at home."""

    traits = Traits(
        sends="C (F + 1)",
        optimizers=("w",),
        shares_statistics=False,
        unlike_models=True,
        uncompressed=("shares",),
        needs_round="its prototypes are means over the clients of a round",
        reductions={
            "lam": "nothing pulls: this is Local, of the clients heard",
            "steps": "no model is trained",
        },
    )

    lr: float = knob(0.3, "step size", above=0)
    steps: int = steps_knob(20, "SGD steps per round")
    epochs: int = epochs_knob()
    lam: float = knob(1.0, "λ, pull of features to the shared prototypes; 0 is Local", low=0)
    pull: str = knob(
        "classes",
        "what is pulled: the mean features of each class in a mini-batch (the paper), or those of "
        "each sample (its code)",
        choices=("classes", "samples"),
    )
    weighting: str = knob(
        "samples",
        "the mean of a class weighted by its samples (the paper), or equal (its code)",
        choices=("samples", "equal"),
    )
    init: str = init_knob()

    def check(self, task: Task) -> None:
        check_classes(task)
        head_size(task)

    def message(self, task: Task) -> dict[str, int]:
        size = head_size(task)
        return {"sums": size.classes * size.features, "shares": size.classes}

    def server(self, task: Task) -> State:
        size = head_size(task)
        return {
            "prototypes": task.x0.new_zeros(size.classes * size.features),
            "known": task.x0.new_zeros(size.classes),  # 1 for classes that somebody has had
        }

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        return global_prototypes(server, rule(up))

    def reference(self, task: Task, down: State) -> State:
        return {}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"w": own_models(task, clients, self.init)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        rows = rows_of_prototypes(task, down, here.rows)

        def tie(batch: Batch) -> Term:
            return Term(self.tie, HEAD, rows)

        # Eq. 7: L_S(w) + λ L_R(C̄, C)
        extra = tie if self.lam else None
        w = self.sgd(task, private["w"], here, self.lr, self.steps, self.epochs, extra=extra)
        x = here.complete(w)
        up = here.of_training_samples(lambda k, samples: self.prototypes(task, x[k], samples))
        return up, {"w": w}

    def tie(self, run: Pass, rows: State) -> Tensor:
        """λ d(C_j, C̄_j), summed over the classes of the mini-batch [K]; or for each sample [K, B].

        d is the mean square of differences.
        """
        assert run.features is not None
        if self.pull == "samples":
            return self.lam * gaps_of_samples(run, rows)
        prototypes, ever_present = rows["prototypes"], rows["known"]
        sums, shares = by_class(run.features, run.targets, run.weights, ever_present.shape[1])
        here = shares > 0
        means = sums / torch.where(here, shares, 1).unsqueeze(-1)
        gap = (means - prototypes).square().mean(-1)
        return self.lam * (gap * ever_present * here).sum(1)

    def prototypes(self, task: Task, w: Tensor, samples: Batch) -> State:
        """The message: C_j times the weight of class j at the client, and that weight.

        The weight is |D_ij| / n_i, of clients that weigh n_i; or 1 for every class they have.
        """
        features = task.features(w, samples.inputs)
        sums, shares = by_class(features, samples.targets, samples.weights, head_size(task).classes)
        if self.weighting == "equal":
            here = shares > 0
            sums = sums / torch.where(here, shares, 1).unsqueeze(-1)
            shares = here.to(shares)
        return {"sums": sums.flatten(1), "shares": shares}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["w"]


# -- global prototypes, for other methods that align features with them ----------------------------
def global_prototypes(server: State, mean: State) -> State:
    """The server's prototypes, from the mean of sums and shares; unseen classes keep theirs."""
    # Eq. 6: C̄_j = Σ_i |D_ij| C_ij / N_j, over the clients heard that have the class
    shares = mean["shares"].unsqueeze(1)
    sums, before = (t.view(len(shares), -1) for t in (mean["sums"], server["prototypes"]))
    present = shares > 0
    prototypes = torch.where(present, sums / torch.where(present, shares, 1), before)
    ever_present = server["known"].maximum(present[:, 0].to(server["known"]))
    return {"prototypes": prototypes.flatten(), "known": ever_present}


def rows_of_prototypes(task: Task, down: State, rows: int) -> State:
    """What the server has sent of them, as the rows of a term."""
    return {
        "prototypes": down["prototypes"].view(*head_size(task)).expand(rows, -1, -1),
        "known": down["known"].expand(rows, -1),
    }


def gaps_of_samples(run: Pass, rows: State) -> Tensor:  # -> [K, B]
    """d(f(x), C̄_y) of each sample, the mean square of differences; 0 of unknown classes."""
    assert run.features is not None
    prototypes = rows["prototypes"]
    targets = labels(run.targets)
    index = targets.unsqueeze(-1).expand(-1, -1, prototypes.shape[-1])
    gap = (run.features - prototypes.gather(1, index)).square().mean(-1)
    return gap * rows["known"].gather(1, targets)
