"""What a method is: a few short functions of tensors, with its hyper-parameters as fields.

Every function is pure. What is not in a State does not exist, so a checkpoint is the States and
nothing else. A cohort is a matrix: private state and messages have the client as leading axis, the
server's state has none. docs/add-a-method.md walks through the whole interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from torch import Tensor, nn

from .core.knobs import Factors, Knobs, SettingError, scaled
from .core.types import Personal, State, Tree
from .task.context import Here
from .task.task import Task


class Combine(Protocol):
    """The run's aggregation rule as `aggregate` is given it, for the messages of one round."""

    # float64[S]: training samples of each client heard, over the mean client's: m n_i / N; where
    # the clients have weights of their own (the setting client_weights), those: m p_i
    samples: Tensor
    clients: int  # N: how many clients may take part

    @property
    def weight(self) -> float:
        """What those heard weigh together: S, or Σ m p_i over them with weights of their own."""
        ...

    @property
    def heard(self) -> int:
        """S: how many clients were heard."""
        ...

    @property
    def wire_ids(self) -> Tensor:  # int64[S], increasing
        """Whose messages these are: the places of their rows among those that the server keeps."""
        ...

    def __call__(self, up: State, weights: Tensor | None = None) -> State:
        """One vector for each part of the message: rows[S, m] -> [m], selected once per message.

        Without `weights[S]`, clients are weighted by `Method.weigh`, or by weights of their own.
        """
        ...

    def among(self, selection: Tensor) -> Combine:
        """The rule for some of the clients heard (bool[S]), such as those of a cluster."""
        ...


@dataclass(frozen=True)
class Exchange:
    """One of several exchanges of a round: what clients are sent in it, and what they send."""

    name: str  # `here.exchange` in `update`
    up: tuple[str, ...]  # the parts of `message` that are sent in it
    down: tuple[str, ...] | None = None  # the parts of `broadcast` that go down; None = all


@dataclass(frozen=True)
class Traits:
    """What a method declares about itself, in addition to its equations."""

    sends: str = "d"  # how many numbers a message holds, in words
    trains: str = "sampled"  # who updates: "sampled", or "everyone" (only the sampled are heard)
    hears_all: bool = False  # it makes sense only if every client is heard in every round
    shared_name: str = "w"  # the part of the server's state that server optimisers step on
    rates: tuple[str, ...] = ("lr",)  # the fields that a schedule scales where it names none
    changes: tuple[str, ...] = ()  # parts of the message that are changes or gradients, not models
    uncompressed: tuple[str, ...] = ()  # parts of the message that no channel may alter
    # `aggregate` needs no more of the messages than their weighted mean
    linear: bool = True
    # `aggregate` may be given a large cohort a few messages at a time: it treats every row by
    # itself and counts clients by `rule.heard`; None: as `linear`
    streams: bool | None = None
    # the exchanges of a round, in order, where there are several: `update` and `aggregate` are
    # called for each, and the clients of the first take part in all
    exchanges: tuple[Exchange, ...] = ()
    # `update` may be given a message down for each client, rows[K, m], in place of one [m] for all:
    # asynchronous clients start from different models
    row_messages: bool = False
    # why `aggregate` does not combine messages by the rule: what each client sends is kept by
    # itself; then no other rule than the mean is accepted
    uncombined: str = ""
    # why messages cannot be used one by one as they arrive; "" where each is a change, or a model
    # that started from the one received
    needs_round: str = ""
    # the models that a client trains, each with its own running statistics (BatchNorm): first the
    # one that is sent, last the one that it predicts with
    models: tuple[str, ...] = ("w",)
    # the first of them starts from what the server sends, so that its statistics can be averaged
    shares_statistics: bool = True
    # the vectors that any optimiser may step at the clients, by the names that solvers are given
    optimizers: tuple[str, ...] = ()
    # why there are none: the paper fixes the step, or derives more from it than the next model
    fixed_step: str = "it declares no vectors that one may step (Traits.optimizers)"
    # what of a client's private model can be computed from its messages, where the message holds as
    # many numbers as the model; "" where the private model is none of the message's business
    discloses: str = ""
    # it makes sense where groups of clients have models of their own (`TaskGroups`): what it sends
    # is no model, or a part that the models of all groups have (`Method.common_shapes`)
    unlike_models: bool = False
    # messages, and private rows that later ones depend on, depend on the client's data through
    # `task.grad` of mini-batches from `here.draw` alone (and on how many samples there are): then
    # clipped and noisy gradients make the messages private. It holds for the class that declares
    # it: a subclass with functions of its own says so again
    data_through_gradients: bool = False
    uses_public: bool = False  # it needs the public inputs of the federation (`Task.public`)
    counters: tuple[str, ...] = ()  # whole numbers that clients add to by `here.count`
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # {"paper": {"lr": 0.1}}
    # what the method is where a field is 0, {"lam": "this is Local"}, or where fields have values,
    # {"beta,server_rate=1": "this is FedAvg"}; "steps" counts without epochs
    reductions: Mapping[str, str] = field(default_factory=dict)

    @property
    def can_stream(self) -> bool:
        return self.linear if self.streams is None else self.streams


NOBODY = np.zeros(0, dtype=np.uint64)  # stream keys of no client


@dataclass(frozen=True)
class Method(Knobs):
    """The interface; its defaults are a method that sends one vector "w" of R^d and averages it."""

    traits: ClassVar[Traits] = Traits()
    explicit: ClassVar[frozenset[str]] = frozenset()  # of an object: the fields it was made with

    def __new__(cls, *values: Any, **named: Any) -> Self:
        method = super().__new__(cls)
        names = [f.name for f in fields(cls)[: len(values)]]
        object.__setattr__(method, "explicit", frozenset([*names, *named]))
        return method

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a trait outside of `traits`, where nothing would read it."""
        super().__init_subclass__(**options)
        hints = vars(cls).get("__annotations__", {})
        for f in fields(Traits):
            hint = hints.get(f.name)
            hyperparameter = hint is not None and "ClassVar" not in str(hint)
            if f.name in vars(cls) and not hyperparameter:
                raise SettingError(
                    f"{cls.__name__}.{f.name}: a trait must be declared in `traits`, "
                    f"e.g. traits = Traits({f.name}=...)"
                )

    def __post_init__(self) -> None:
        super().__post_init__()
        traits = type(self).traits
        if traits.data_through_gradients and not _declares_traits(type(self)):
            traits = replace(traits, data_through_gradients=False)
        object.__setattr__(self, "traits", self.refine(traits))

    # -- what is declared ------------------------------------------------------------------------
    def refine(self, traits: Traits) -> Traits:
        """The traits of this object, where they depend on its fields."""
        return traits

    def extend(self, module: nn.Module) -> nn.Module:
        """The user's module with what the method adds to it: a second head, a gate, a projection.

        Its parameters are then trained, sent and kept as the others.
        """
        return module

    def extended(self, task: Task) -> Task:
        """The task that the method trains: of the module with what the method adds to it."""
        return task if type(self).extend is Method.extend else task.extended(self.extend)

    def check(self, task: Task) -> None:
        """Refuse, before any work, what does not fit the task."""

    def step_coordinates(self, task: Task) -> dict[str, Tensor | None]:
        """The coordinates of each vector of `traits.optimizers`; None for all of R^d."""
        return dict.fromkeys(self.traits.optimizers)

    def message(self, task: Task) -> dict[str, int]:
        """What a client sends: name -> how many numbers."""
        return {"w": task.d}

    def common_shapes(self, task: Task) -> list[tuple[int, ...]]:
        """The shapes of the parameters that are sent, in order, where it sends a part of models.

        They must be the same in all groups of clients with unlike models.
        """
        return []

    def weigh(self, samples: Tensor) -> Tensor:
        """How the server weighs clients with these numbers of training samples[S].

        Not asked where clients have weights of their own.
        """
        return samples

    # -- the server's side -----------------------------------------------------------------------
    def server(self, task: Task) -> State:
        """The server's state before round 0."""
        return {"w": task.x0.clone()}

    def server_rows(self, task: Task, clients: np.ndarray) -> State:
        """What the server keeps for each client, of clients that join (stream keys, uint64[K]).

        The rows of all clients, [N, ...], are then parts of its state, at the places of their wire
        ids.
        """
        return {}

    def broadcast(self, task: Task, server: State) -> State:
        """The message down to all clients."""
        rows = self.server_rows(task, NOBODY)
        return {n: t for n, t in server.items() if n not in rows}

    def address(self, task: Task, server: State, clients: Tensor) -> State:
        """The message down to single clients (wire ids, int64[K]): rows[K, ...], a row for each.

        A client gets its own row only. Clients that have just joined are at the end of the rows.
        """
        return {}

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        """The server's step: from its state and the messages (rows[S, m]) to its new state.

        Rows of clients are combined through `rule` only, so that robust rules can act. What the
        server keeps for each client is given as rows of all, [N, ...], and returned as rows of all
        or of those heard, [S, ...]; what is left out stays as it is.
        """
        return server | rule(up)

    # -- the clients' side -----------------------------------------------------------------------
    def private(self, task: Task, clients: np.ndarray) -> State:
        """Private rows of clients met for the first time (their stream keys, uint64[K])."""
        return {}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        """A round at the clients: (message up, new private rows); rows in, rows out."""
        raise NotImplementedError(f"{type(self).__name__} does not define update")

    def personal(self, task: Task, down: State, private: State, here: Here) -> Personal:
        """x[K, d]: the model each client predicts with; or the rows that `predict` takes."""
        return down["w"].expand(here.rows, -1)

    def predict(self, task: Task, personal: State, inputs: Tree) -> Tree:
        """What clients answer to inputs[K, B, ...], where that is not the output of one model.

        A method that has it returns a State of rows from `personal`: models of a mixture,
        prototypes, neighbours.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define predict, because personal returned rows by name"
        )

    # -- what others may ask ---------------------------------------------------------------------
    def reference(self, task: Task, down: State) -> State:
        """What a receiver knows already of a message: channels code the difference to it.

        Nothing where the message is a change.
        """
        models = {n: m for n, m in self.message(task).items() if n not in self.traits.changes}
        return {n: down[n] for n, m in models.items() if n in down and down[n].shape == (m,)}

    def shared(self, task: Task, down: State) -> Tensor | None:  # -> [d]
        """The global model, where the method has one: evaluated as the personal models are."""
        w = down.get(self.traits.shared_name)
        return w if w is not None and w.shape == task.x0.shape else None

    def handover(self, task: Task, down: State) -> Tensor | None:  # -> [d]
        """The model that a next stage starts from: the shared one; None where there is none."""
        return self.shared(task, down)

    def report(self, task: Task, clients: int, heard: int) -> dict[str, dict[str, Any]]:
        """Notes for the reader of a result, as plain data.

        A text under "warning" is shown before the run.
        """
        return {}

    def scaled(self, factors: Factors) -> Method:
        """The method of a round under a schedule: fields times their factors.

        "rates" stands for the learning rates that have no factor of their own.
        """
        changed = scaled(self, factors, self.traits.rates)
        return replace(self, **changed) if changed else self


def _declares_traits(cls: type[Method]) -> bool:
    """Whether the class that declared the traits has all of the functions, too."""
    for one in cls.__mro__:
        if "traits" in vars(one):
            return True
        own = (thing for name, thing in vars(one).items() if not name.startswith("__"))
        if any(callable(thing) or isinstance(thing, property) for thing in own):
            return False
    return True
