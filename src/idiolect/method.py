"""What a method is: a few short functions of tensors, with its hyper-parameters as fields.

Every function is pure. What is not in a State does not exist, so a checkpoint is the States and
nothing else. A cohort is a matrix: private state and messages have the client as leading axis, the
server's state has none. docs/add-a-method.md walks through the whole interface.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from .core.knobs import Factors, Knobs, scaled
from .core.types import State
from .task.here import Here
from .task.task import Task


class Combine(Protocol):
    """The run's aggregation rule as `aggregate` is given it, for the messages of one round."""

    # float64[S]: training samples of each client heard, over the mean client's: m n_i / N; where
    # the clients have weights of their own (the setting client_weights), those: m p_i
    samples: Tensor
    clients: int  # N: how many clients may take part

    @property
    def heard(self) -> int:
        """S: how many clients were heard."""
        ...

    def __call__(self, up: State, weights: Tensor | None = None) -> State:
        """One vector for each part of the message: rows[S, m] -> [m], selected once per message.

        Without `weights[S]`, clients weigh what `Method.weigh` says.
        """
        ...


@dataclass(frozen=True)
class Method(Knobs):
    """The interface; its defaults are a method that sends one vector "w" of R^d and averages it."""

    # -- what is declared ------------------------------------------------------------------------
    # how many numbers a message holds, in words
    sends: ClassVar[str] = "d"
    # the part of the server's state that server optimisers step on
    shared_name: ClassVar[str] = "w"
    # whether it makes sense only if every client is heard in every round
    hears_all: ClassVar[bool] = False
    # the fields that a schedule scales where it names none
    rates: ClassVar[tuple[str, ...]] = ("lr",)
    # the parts of the message that are changes or gradients, not models
    changes: ClassVar[tuple[str, ...]] = ()
    # the parts of the message that no channel may alter
    plain: ClassVar[tuple[str, ...]] = ()
    # the models that a client trains, each with running statistics (BatchNorm) of its own: first
    # the one that is sent, last the one that it predicts with
    models: ClassVar[tuple[str, ...]] = ("w",)
    # whether the first of them starts from what the server sends, so that these can be averaged
    shares_statistics: ClassVar[bool] = True
    # what its clients count beside gradients, by `here.count`: whole numbers, summed over rounds
    counted: ClassVar[tuple[str, ...]] = ()
    # settings under a name, for the user who asks for them: {"paper": {"lr": 0.1}}
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    # the vectors that any optimiser may step at the clients, by the names that solvers are given;
    # none where the paper fixes the step, or derives more from it than the model it leads to
    optimizers: ClassVar[tuple[str, ...]] = ()
    # whether `update` may be given a message down for each client, rows[K, m], in place of one [m]
    # for all of them: asynchronous clients start from different models
    stacks: ClassVar[bool] = False
    # why there are none, for the user who asks for one
    own_step: ClassVar[str] = "it does not declare `optimizers`, the vectors that one may step"

    @property
    def trains(self) -> str:
        """Who updates in a round: "sampled", or "everyone" (then only the sampled are heard)."""
        return "sampled"

    @property
    def linear(self) -> bool:
        """Whether `aggregate` needs no more of the messages than their weighted mean."""
        return True

    @property
    def streams(self) -> bool:
        """Whether `aggregate` may be given the messages of a large cohort a few at a time.

        It may if it treats every row by itself, whatever is in the others, and counts clients by
        `rule.heard`.
        """
        return self.linear

    @property
    def needs_round(self) -> str:
        """Why its messages cannot be used one by one, as they arrive; "" where they can.

        They can if each is a change, or a model that started from the one received.
        """
        return ""

    def check(self, task: Task) -> None:
        """Refuse, before any work, what does not fit the task."""

    def stepped(self, task: Task) -> dict[str, Tensor | None]:
        """The coordinates of each vector of `optimizers`; None for all of R^d."""
        return dict.fromkeys(self.optimizers)

    def message(self, task: Task) -> dict[str, int]:
        """What a client sends: name -> how many numbers."""
        return {"w": task.d}

    def weigh(self, samples: Tensor) -> Tensor:
        """How the server weighs clients with these numbers of training samples[S]."""
        return samples

    # -- the server's side -----------------------------------------------------------------------
    def server(self, task: Task) -> State:
        """The server's state before round 0."""
        return {"w": task.x0.clone()}

    def broadcast(self, task: Task, server: State) -> State:
        """The message down."""
        return server

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        """The server's step: from its state and the messages (rows[S, m]) to its new state.

        Rows of clients are combined through `rule` only, so that robust rules can act.
        """
        return server | rule(up)

    # -- the clients' side -----------------------------------------------------------------------
    def private(self, task: Task, clients: np.ndarray) -> State:
        """Private rows of clients met for the first time (their stream keys, uint64[K])."""
        return {}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        """A round at the clients: (message up, new private rows); rows in, rows out."""
        raise NotImplementedError(f"{type(self).__name__} does not define update")

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        """x[K, d]: the model each client predicts with."""
        return down["w"].expand(here.rows, -1)

    # -- what others may ask ---------------------------------------------------------------------
    def reference(self, task: Task, down: State) -> State:
        """What a receiver knows already of a message: channels code the difference to it.

        Nothing where the message is a change.
        """
        models = {n: m for n, m in self.message(task).items() if n not in self.changes}
        return {n: down[n] for n, m in models.items() if n in down and down[n].shape == (m,)}

    def shared(self, task: Task, down: State) -> Tensor | None:  # -> [d]
        """The method's one global model, where it has one: evaluated beside the personal models."""
        w = down.get(self.shared_name)
        return w if w is not None and w.shape == task.x0.shape else None

    def handover(self, task: Task, down: State) -> Tensor | None:  # -> [d]
        """The model that a next stage starts from: the shared one; None where there is none."""
        return self.shared(task, down)

    def report(self, task: Task, clients: int, heard: int) -> dict[str, dict[str, Any]]:
        """What a reader of the result should know beside its figures, as plain data.

        A text under "warning" is shown before the run.
        """
        return {}

    def scaled(self, factors: Factors) -> Method:
        """The method of a round under a schedule: fields times their factors.

        "rates" stands for the learning rates that have no factor of their own.
        """
        changed = scaled(self, factors, self.rates)
        return replace(self, **changed) if changed else self
