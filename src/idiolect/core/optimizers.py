"""torch's optimisers by name, with options as text: for the server's step and for the clients'."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any, cast

import torch

from .knobs import SettingError

_NOT_FROM_A_GRADIENT_ALONE = ("optimizer", "lbfgs", "sparseadam", "muon")


def optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """torch's optimisers by lower-case name, those that step from a gradient alone.

    >>> {"sgd", "adam"} <= optimizers().keys(), "lbfgs" in optimizers()
    (True, False)
    """
    classes = {
        name.lower(): cls
        for name, cls in vars(torch.optim).items()
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)
    }
    return {n: cls for n, cls in classes.items() if n not in _NOT_FROM_A_GRADIENT_ALONE}


def parse_options(options: str, field: str) -> dict[str, Any]:
    """Options as text, "momentum=0.9, betas=(0.9, 0.99)", to a dict; `field` is the setting's name.

    >>> parse_options("momentum=0.9, nesterov=True", "server_options")
    {'momentum': 0.9, 'nesterov': True}
    """
    try:
        call = ast.parse(f"f({options})", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise SettingError(
            f"{field}: {options!r} is not accepted; write name=value, name=value"
        ) from None


def make_optimizer(
    name: str, options: str, lr: float, parameters: Iterable[Any], field: str
) -> torch.optim.Optimizer:
    """A new optimiser of these tensors or parameter groups; options that do not fit are refused."""
    try:
        cls = cast(Any, optimizers()[name])
        return cls(parameters, lr=lr, **parse_options(options, field))
    except SettingError:
        raise
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise SettingError(f"{field}: {options!r} does not fit {name}: {error}") from None
