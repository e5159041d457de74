"""FedMD: clients with models of their own teach each other by what these say of public inputs.

Li and Wang 2019, in the steps of its public code. Choose it where clients have unlike models and
there are inputs that everybody may have: the server takes the mean of the class scores that all
models give them (the consensus), every client trains towards it (digest), and then on its own data
(revisit). Costs per round: n C numbers up and down for each sampled client (n public inputs, C
classes); `digest_steps` + `steps` gradients. Keeps each client's model, of which nothing is sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError, knob
from ..core.types import State, Tree, length, map_tree
from ..method import Combine, Traits
from ..solvers import moved
from ..task.context import Here
from ..task.task import Task
from ..task.term import Pass, Term
from .classifier import check_logits, class_scores
from .options import LocalSgd, epochs_knob, init_knob, own_models, steps_knob

_AT_ONCE = 256  # public inputs in one pass of all clients


@dataclass(frozen=True)
class FedMd(LocalSgd):
    """Clients of any model learn from the mean scores of public inputs. Where models differ."""

    traits = Traits(
        sends="n C",
        optimizers=("w",),
        shares_statistics=False,
        needs_round="its consensus is a mean over the clients of a round",
        unlike_models=True,
        uses_public=True,
        reductions={
            "digest_steps": "nothing is learned from others: this is Local, of the clients heard",
            "steps": "no model is trained on its client's own data",
        },
    )

    lr: float = knob(0.1, "step size", above=0)
    steps: int = steps_knob(20, "SGD steps on the client's own data per round (revisit)")
    epochs: int = epochs_knob()
    digest_steps: int = knob(20, "SGD steps towards the consensus, before those (digest)", low=0)
    digest_batch: int = knob(64, "public inputs in a mini-batch of the digest", low=1)
    alignment: int = knob(
        0, "public inputs that are scored in a round, drawn anew each time; 0 = all", low=0
    )
    distance: str = knob(
        "absolute",
        "what the digest makes small: the mean absolute difference of scores (its code), or the "
        "mean square",
        choices=("absolute", "squared"),
    )
    weighting: str = knob(
        "equal",
        "the consensus: all clients alike (the paper), or by samples",
        choices=("equal", "samples"),
    )
    init: str = init_knob()

    def check(self, task: Task) -> None:
        check_logits(task)
        if task.public is not None and self.alignment > length(task.public):
            raise SettingError(
                f"alignment must be at most the {length(task.public)} public inputs, "
                f"got {self.alignment}"
            )

    def message(self, task: Task) -> dict[str, int]:
        if task.public is None:  # refused before any run
            return {"scores": 0}
        some = map_tree(lambda t: t[:1].unsqueeze(0), task.public)
        scores = class_scores(task.outputs(task.x0.unsqueeze(0), some))
        if scores.dim() != 3:
            raise SettingError("model must give one vector of class scores per sample for fedmd")
        return {"scores": self._count(task) * scores.shape[-1]}

    def server(self, task: Task) -> State:
        blank = task.x0.new_zeros(self.message(task)["scores"])
        return {"consensus": blank, "turn": task.x0.new_zeros(1)}  # consensuses so far

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        # Aggregate: f̃(x_i^0) = 1/m Σ_k f_k(x_i^0)
        return {"consensus": rule(up)["scores"], "turn": server["turn"] + 1}

    def reference(self, task: Task, down: State) -> State:
        return {}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"w": own_models(task, clients, self.init)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        turn, w = int(down["turn"]), private["w"]
        if turn and self.digest_steps:
            inputs = self._alignment(task, turn - 1)
            w = self._digest(task, w, inputs, down["consensus"].view(length(inputs), -1), here)
        # Revisit: each party trains its model on its own private data for a few epochs
        w = self.sgd(task, w, here, self.lr, self.steps, self.epochs)
        scores = self._scores(task, here.complete(w), self._alignment(task, turn))
        return {"scores": scores.flatten(1)}, {"w": w}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["w"]

    # -- inside ----------------------------------------------------------------------------------
    def _count(self, task: Task) -> int:
        return self.alignment or length(task.public)

    def _alignment(self, task: Task, turn: int) -> Tree:  # -> [m, ...]
        """The public inputs d_j ⊂ D_0 of a turn, which server and clients know by its number."""
        public = task.public
        if not self.alignment:
            return public
        words = streams.bits(streams.keys(task.seed, "alignment", turn), 0, length(public))[0]
        places = torch.from_numpy(np.sort(words.argsort(kind="stable")[: self.alignment]))
        return map_tree(lambda t: t[places.to(t.device)], public)

    def _digest(self, task: Task, w: Tensor, inputs: Tree, consensus: Tensor, here: Here) -> Tensor:
        """Digest: each party trains its model to approach the consensus f̃ on the public inputs."""
        batch = min(self.digest_batch, length(inputs))
        words = streams.bits(here.keys("digest"), 0, self.digest_steps * batch)
        index = streams.below(words, np.full((1, 1), length(inputs)))
        places = torch.from_numpy(index).view(here.rows, self.digest_steps, batch).to(w.device)
        by = here.optimise.begin("w", w, self.lr) if here.optimise else None
        for step in range(self.digest_steps):
            at = places[:, step]
            some = here.batch_of(map_tree(lambda t, at=at: t[at], inputs), step, "digest")
            term = Term(self._gap, samples={"consensus": consensus[at]}, loss=0.0)
            w = moved(w, task.grad(w, some, term), self.lr, by, None)
        return w

    def _gap(self, run: Pass, rows: State) -> Tensor:  # -> [K, B]
        gap = class_scores(run.outputs) - rows["consensus"]
        return (gap.abs() if self.distance == "absolute" else gap.square()).mean(-1)

    def _scores(self, task: Task, x: Tensor, inputs: Tree) -> Tensor:  # -> [K, m, C]
        """Communicate: each party computes its class scores f_k(x_i^0)."""
        pieces = []
        for low in range(0, length(inputs), _AT_ONCE):
            some = map_tree(
                lambda t, at=low: t[at : at + _AT_ONCE].expand(
                    len(x), *t[at : at + _AT_ONCE].shape
                ),
                inputs,
            )
            pieces.append(class_scores(task.outputs(x, some)))
        return torch.cat(pieces, dim=1)
