"""FedPAC: clients share a body whose features are aligned, and borrow from each other's heads.

Xu, Tong and Huang 2023 (ICLR). Choose it where clients differ in their shares of the classes and
some of them are alike: features of a class are drawn to its mean over all clients, and the server
mixes for each client the heads of those whose features and labels are like its own, by a small
quadratic programme that weighs their likeness against their noise. Costs per round: d + 2 C F + C
+ 1 numbers up and d + C (F + 1) down for each sampled client (C classes, F features), a head of its
own among them; head_steps + steps gradients. Keeps nothing at the clients, and a head for each at
the server.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Traits
from ..task.batches import Batch
from ..task.context import Here
from ..task.task import Task
from ..task.term import HEAD, Pass, Term
from .classifier import by_class, check_classes, head_size
from .fedproto import gaps_of_samples, global_prototypes, rows_of_prototypes
from .options import WEIGHTINGS, Averaging, epochs_knob, steps_knob
from .partial import train_part
from .simplex import mixtures


@dataclass(frozen=True)
class FedPac(Averaging):
    """Aligned features under heads mixed for each client. For unlike shares of classes."""

    traits = Traits(
        sends="d + 2 C F + C + 1",
        shared_name="theta",
        rates=("lr", "head_lr"),
        uncompressed=("shares", "variance"),
        optimizers=("theta", "w"),
        linear=False,
        uncombined="the server mixes heads for each client, by what all clients say of theirs",
        reductions={"combine,lam": "each client's head is its own: this is FedRep"},
    )

    lr: float = knob(0.1, "step size of the body", above=0)
    steps: int = steps_knob(20, "steps on the body per round")
    epochs: int = epochs_knob()
    head_lr: float = knob(0.1, "step size of the head", above=0)
    head_steps: int = knob(
        10, "steps on the head per round", low=0, acts_with={"epochs": 0, "head_epochs": 0}
    )
    head_epochs: int = knob(
        0,
        "passes over the client's data for the head per round, in place of head_steps; 0 = as "
        "many as epochs",
        low=0,
    )
    lam: float = knob(1.0, "λ, pull of features to the mean of their class over clients", low=0)
    combine: bool = knob(True, "heads are mixed for each client; else each keeps its own")
    weighting: str = knob("samples", "the server's mean of bodies", choices=WEIGHTINGS)

    def check(self, task: Task) -> None:
        check_classes(task)
        head_size(task)

    def step_coordinates(self, task: Task) -> dict[str, Tensor | None]:
        split = task.split("head")
        return {"theta": split.theta, "w": split.w}

    def message(self, task: Task) -> dict[str, int]:
        split, size = task.split("head"), head_size(task)
        means = size.classes * size.features
        models = {"theta": len(split.theta), "head": len(split.w)}
        return models | {"sums": means, "shares": size.classes, "moments": means, "variance": 1}

    # -- the server ------------------------------------------------------------------------------
    def server(self, task: Task) -> State:
        size = head_size(task)
        return {
            "theta": task.split("head").parts(task.x0)[0].clone(),
            "prototypes": task.x0.new_zeros(size.classes * size.features),
            "known": task.x0.new_zeros(size.classes),  # 1 for classes that somebody has had
        }

    def server_rows(self, task: Task, clients: np.ndarray) -> State:
        return {"head": task.split("head").parts(task.x0)[1].repeat(len(clients), 1)}

    def address(self, task: Task, server: State, clients: Tensor) -> State:
        return {"head": server["head"][clients.to(task.device)]}

    def handover(self, task: Task, down: State) -> Tensor:
        split = task.split("head")
        return split.join(down["theta"], split.parts(task.x0)[1])

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        theta = self.average(server, {"theta": up["theta"]}, rule)  # θ <- Σ_i n_i θ_i / n
        # c_k <- Σ_i n_ik c_ik / n_k
        means = rule({name: up[name] for name in ("sums", "shares")}, rule.samples)
        head = up["head"]
        if self.combine:
            # φ_i <- Σ_j α_ij φ_j
            head = mixtures(up["moments"], up["variance"][:, 0]).to(head) @ head
        return theta | {"head": head} | global_prototypes(server, means)

    # -- the clients -----------------------------------------------------------------------------
    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        split = task.split("head")
        theta = down["theta"].expand(here.rows, -1)
        rows = rows_of_prototypes(task, down, here.rows)

        def align(batch: Batch) -> Term:
            return Term(self.align, HEAD, rows)

        received = here.complete(split.join(theta, down["head"]))
        noise = here.of_training_samples(lambda k, s: statistics(task, received[k], s))
        # φ_i first, under the body received; then θ_i under that head
        amount = (self.head_steps, self.head_epochs or self.epochs)
        head = train_part(task, split, theta, down["head"], here, self.head_lr, "w", *amount)
        amount = (self.steps, self.epochs)
        extra = align if self.lam else None
        theta = train_part(task, split, theta, head, here, self.lr, "theta", *amount, extra)
        trained = here.complete(split.join(theta, head))
        means = here.of_training_samples(lambda k, s: class_sums(task, trained[k], s))
        blank = {n: theta.new_zeros(here.rows, m) for n, m in self.message(task).items()}
        return blank | noise | means | {"theta": theta, "head": head.contiguous()}, private

    def align(self, run: Pass, rows: State) -> Tensor:  # -> [K, B]
        """λ ||f(x) - c_y||² / F, c_y the mean features of the sample's class over all clients."""
        return self.lam * gaps_of_samples(run, rows)

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return task.split("head").join(down["theta"].expand(here.rows, -1), down["head"])


def class_sums(task: Task, x: Tensor, samples: Batch) -> State:
    """p_k c_k, the mean features of each class times its share of the samples, and p_k."""
    features = task.features(x, samples.inputs)
    sums, shares = by_class(features, samples.targets, samples.weights, head_size(task).classes)
    return {"sums": sums.flatten(1), "shares": shares}


def statistics(task: Task, x: Tensor, samples: Batch) -> State:
    """h_i = (p_k c_k) over the classes k, and V_i = (E ||f||² - ||h_i||²) / n_i."""
    features = task.features(x, samples.inputs)
    h = by_class(features, samples.targets, samples.weights, head_size(task).classes)[0].flatten(1)
    square = (features.square().sum(-1) * samples.weights).sum(1)  # Σ_k p_k E ||f||² of class k
    count = (samples.weights > 0).sum(1)
    variance = (square - h.square().sum(1)) / count
    return {"moments": h, "variance": variance.unsqueeze(1)}
