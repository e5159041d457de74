"""What a client predicts with, as a torch module: a model, or what its method makes of several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.types import Personal, State, Tree, map_tree
from ..method import Method
from ..task.task import Task
from . import name_of
from .wrapped import innermost


def module_of(method: Method, task: Task, personal: Personal) -> nn.Module:
    """The module of one client, from what its method's `personal` gave for it."""
    if isinstance(personal, Tensor):
        return task.module_of(personal)
    return Predictor(method, task, personal).eval()


def predicts_by_itself(method: Method) -> bool:
    """Whether its clients predict with something else than one model."""
    return type(innermost(method)).predict is not Method.predict


def no_single_model(method: Method) -> str:
    """What a user who asks for one model is answered."""
    return (
        f"clients of {name_of(method)} do not predict with one model; "
        "result.personal(client) is a torch module that predicts as they do"
    )


class Predictor(nn.Module):
    """A client of a method that does not predict with a single model: see `Method.predict`.

    Its buffers are what the method's `personal` gave for the client.
    """

    def __init__(self, method: Method, task: Task, personal: State):
        super().__init__()
        self.method = method
        self.task = task
        self._names = {f"personal_{place}": name for place, name in enumerate(sorted(personal))}
        for buffer, name in self._names.items():
            self.register_buffer(buffer, personal[name].detach().clone())

    @property
    def personal(self) -> State:
        """What the client predicts with, by name."""
        return {name: getattr(self, buffer) for buffer, name in self._names.items()}

    def forward(self, *inputs: Any, **named: Any) -> Tree:
        """Outputs [n, ...] for inputs [n, ...], as the task's own module takes them."""
        samples: Tree = named or (inputs[0] if len(inputs) == 1 else inputs)
        rows = {name: t.unsqueeze(0) for name, t in self.personal.items()}
        with torch.no_grad():
            one_client = map_tree(lambda t: t.unsqueeze(0), samples)
            return map_tree(lambda t: t[0], self.method.predict(self.task, rows, one_client))
