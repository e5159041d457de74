"""What a user may give for a method, a model and a federation, and what is meant by it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from ..core.knobs import SettingError
from ..data.federation import Federation
from ..method import Method
from ..methods import make_method
from ..task.task import Task
from .plan import method_spec

AnyMethod = Method | type[Method] | str
AnyModel = Task | nn.Module | type[nn.Module] | Callable[[], nn.Module]

_FEDERATION = (
    "make one with idiolect.Federation.from_arrays, from_frame or from_datasets, "
    "or idiolect.data.load"
)


def read_method(given: Any) -> Method:
    """A method from an object, a class (its defaults) or a text.

    >>> import idiolect as il
    >>> read_method("lp-proj:p=1,lam=0.5").lam, read_method(il.Ditto) == il.Ditto()
    (0.5, True)
    """
    if isinstance(given, Method):
        return given
    if isinstance(given, str):
        name, fields = method_spec(given)
        return make_method(name, **fields)
    if isinstance(given, type) and issubclass(given, Method):
        return given()
    hint = ""
    if _is_model(given) or isinstance(given, Federation):
        hint = "; the order is (method, task, federation)"
    raise SettingError(
        f"method: {_kind(given)} is not accepted; a method such as idiolect.Ditto(), "
        f"or a text like 'ditto' or 'lp-proj:p=1,lam=0.1'{hint}"
    )


def read_task(given: Any, federation: Any) -> tuple[Task, str]:
    """A task from what was given as one; and how its loss was chosen, "" where it was given.

    A module, a class of modules or a function that makes one gets its loss from the data:
    cross_entropy for classes, mse for real targets.
    """
    if isinstance(given, Federation) or isinstance(federation, Task | nn.Module):
        raise SettingError(
            "task: a federation stands in its place; the order is (method, task, federation)"
            if isinstance(given, Federation)
            else f"federation: {_kind(federation)} stands in its place; "
            "the order is (method, task, federation)"
        )
    read_federation(federation)
    if isinstance(given, Task):
        return given, ""
    if isinstance(given, type) and issubclass(given, Task):
        raise SettingError(
            "task: the class Task is not accepted; an object: idiolect.Task(module, loss)"
        )
    if isinstance(given, Method) or not _is_model(given):
        raise SettingError(
            f"task: {_kind(given)} is not accepted; a torch.nn.Module, a class or function that "
            "makes one, or idiolect.Task(module, loss)"
        )
    if not isinstance(given, nn.Module):
        _refuse_arguments(given)
    loss = "cross_entropy" if federation.classes else "mse"
    reason = f"the data have {federation.classes} classes"
    if not federation.classes:
        reason = "the targets are real numbers"
    return Task(given, loss), f"loss: {loss}, as {reason}; idiolect.Task(module, loss) has another"


def read_federation(given: Any) -> Federation:
    """The federation, if it is one."""
    if isinstance(given, Federation):
        return given
    raise SettingError(f"federation: {_kind(given)} is not accepted; {_FEDERATION}")


def _is_model(given: Any) -> bool:
    if isinstance(given, type):
        return issubclass(given, nn.Module)
    return isinstance(given, nn.Module | Task) or callable(given)


def _refuse_arguments(make: Callable[..., Any]) -> None:
    """A class or function whose call needs arguments cannot make a model by itself."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # it does not tell
        return
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]
    if needed:
        name = getattr(make, "__name__", type(make).__name__)
        raise SettingError(
            f"task: {name} needs {', '.join(needed)}; give an object, {name}(...), "
            f"or a function without arguments: lambda: {name}(...)"
        )


def _kind(given: Any) -> str:
    """What was given, in a few words."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if isinstance(given, str):
        return f"the text {given[:80]!r}"
    return f"an object of type {type(given).__name__}"
