"""Groups of clients with unlike models: a task for each group, and who is in which group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.knobs import SettingError, nearest
from ..core.types import Id
from .task import Task


class TaskGroups:
    """A model for each group of clients, where these have unlike architectures.

    `tasks` has a `Task` for each group by its name, or a list of tasks; a bare module (or what
    makes one) has its loss from the data, as in `idiolect.run`. `clients` says by client id in
    which group a client is; without it the clients get the models in turn: the client at position
    k has model k mod m. It may name clients that are to come (`result.personalise`).

    >>> from torch import nn
    >>> small, large = Task(nn.Linear(3, 2)), Task(nn.Sequential(nn.Linear(3, 9), nn.Linear(9, 2)))
    >>> TaskGroups({"small": small, "large": large}, {"Aachen": "large", "Bonn": "small"})
    TaskGroups(small: d = 8, large: d = 56)
    >>> TaskGroups([small, large]).numbers(["Aachen", "Bonn", "Celle"]).tolist()
    [0, 1, 0]
    """

    def __init__(
        self,
        tasks: Mapping[str, Any] | Sequence[Any],
        clients: Mapping[Any, str] | None = None,
    ):
        if not isinstance(tasks, Mapping):
            tasks = {f"model {k}": task for k, task in enumerate(tasks, 1)}
        if not tasks:
            raise SettingError("groups must have one or more models, got none")
        self.models: dict[str, Any] = {str(name): model for name, model in tasks.items()}
        self.clients = None if clients is None else {str(i): str(g) for i, g in clients.items()}
        for name in dict.fromkeys((self.clients or {}).values()):
            if name not in self.models:
                raise nearest(name, self.models, "group")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the groups, in their order."""
        return tuple(self.models)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The task of each group."""
        for name, model in self.models.items():
            if not isinstance(model, Task):
                raise SettingError(
                    f"groups: the model of {name!r} has no loss yet; give "
                    "idiolect.Task(module, loss)"
                )
        return tuple(self.models.values())

    @property
    def first(self) -> Task:
        """The task of the first group, by which the server keeps what all have in common."""
        return self.tasks[0]

    def each(self, change: Callable[[Any], Task]) -> TaskGroups:
        """The same groups with `change` of each model."""
        return TaskGroups({n: change(model) for n, model in self.models.items()}, self.clients)

    def with_clients(self, clients: Mapping[Any, str] | None) -> TaskGroups:
        """The same models with other clients."""
        return TaskGroups(self.models, clients)

    def numbers(self, ids: Sequence[Id]) -> Tensor:  # -> int64[N]
        """The group of each client, by its place among the groups."""
        if self.clients is None:
            return torch.arange(len(ids)) % len(self.models)
        missing = [i for i in ids if str(i) not in self.clients]
        if missing:
            more = f" (nor have {len(missing) - 1} others)" if len(missing) > 1 else ""
            raise SettingError(
                f"groups: client {missing[0]!r} has no model{more}; "
                f"give it one of {', '.join(self.names)}"
            )
        places = {name: k for k, name in enumerate(self.names)}
        return torch.tensor([places[self.clients[str(i)]] for i in ids], dtype=torch.int64)

    def check(self, ids: Sequence[Id]) -> None:
        """Refuse clients without a group, and groups without a client or with another loss."""
        numbers = self.numbers(ids)
        for k, name in enumerate(self.names):
            if not bool((numbers == k).any()):
                raise SettingError(f"groups: no client has the model {name!r}")
        losses = {t.criterion.name: n for n, t in zip(self.names, self.tasks, strict=True)}
        if len(losses) > 1:
            words = " and ".join(f"{loss!r} ({name})" for loss, name in losses.items())
            raise SettingError(f"loss must be the same for all groups of clients, got {words}")

    def __repr__(self) -> str:
        sizes = [
            f"{name}: d = {model.d:,}" if isinstance(model, Task) else name
            for name, model in self.models.items()
        ]
        return f"TaskGroups({', '.join(sizes)})"


AnyTask = Task | TaskGroups  # what a run trains: one model for all, or one for each group


def tasks_of(task: AnyTask) -> tuple[Task, ...]:
    """The task, or that of each group."""
    return task.tasks if isinstance(task, TaskGroups) else (task,)


def sizes_text(task: AnyTask, form: str = "") -> str:
    """d, or that of each group: "650, 2410".

    >>> from torch import nn
    >>> sizes_text(TaskGroups([Task(nn.Linear(3, 2)), Task(nn.Linear(3, 400))]), ",")
    '8, 1,600'
    """
    return ", ".join(f"{one.d:{form}}" for one in tasks_of(task))
