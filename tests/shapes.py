"""The shapes that comments in the source promise, as a table that is checked while code runs.

jaxtyping binds the letters (K clients of a cohort, S heard, d parameters, m numbers of a message, B
samples of a mini-batch) per call, so that a result must fit its arguments. The package itself needs
neither jaxtyping nor beartype: `checked` puts the checks around the functions, and takes them away.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from beartype import beartype
from jaxtyping import Bool, Float, Int, Real, Shaped, UInt8, UInt64, jaxtyped
from torch import Tensor

from idiolect import projections as package
from idiolect.attacks.attack import Attack
from idiolect.channels.stage import Stage
from idiolect.method import Method
from idiolect.server.rules.rule import Rule, Wrapper

Array = np.ndarray
Signature = dict[str, Any]  # a parameter's name, or "return" -> its type

FUNCTIONS: dict[str, Signature] = {
    "idiolect.core.streams:keys": {
        "clients": UInt64[Array, "K"] | None,
        "return": UInt64[Array, "_"],
    },
    "idiolect.core.streams:bits": {"key": UInt64[Array, "K"], "return": UInt64[Array, "K {count}"]},
    "idiolect.core.streams:uniform": {
        "key": UInt64[Array, "K"],
        "return": Float[Array, "K {count}"],
    },
    "idiolect.core.streams:normal": {
        "key": UInt64[Array, "K"],
        "return": Float[Array, "K {count}"],
    },
    "idiolect.core.streams:choose": {
        "key": UInt64[Array, "K"],
        "return": Int[Array, "{min(count,len(key))}"],
    },
    "idiolect.task.task:Task.outputs": {
        "x": Float[Tensor, "K {self.d}"],
        "inputs": Shaped[Tensor, "K B *_"],
        "return": Float[Tensor, "K B *_"],
    },
    "idiolect.task.task:Task.outputs_of_one": {
        "w": Float[Tensor, "{self.d}"],
        "inputs": Shaped[Tensor, "n *_"],
        "return": Float[Tensor, "n *_"],
    },
    "idiolect.task.task:Task.loss": {
        "x": Float[Tensor, "K {self.d}"],
        "return": Float[Tensor, "K"],
    },
    "idiolect.task.task:Task.grad": {
        "x": Float[Tensor, "K {self.d}"],
        "return": Float[Tensor, "K {self.d}"],
    },
    "idiolect.task.task:Task.hvp": {
        "x": Float[Tensor, "K {self.d}"],
        "v": Float[Tensor, "K {self.d}"],
        "return": Float[Tensor, "K {self.d}"],
    },
    "idiolect.task.task:Task.draw": {
        "keys": UInt64[Array, "K"],
        "return": Float[Tensor, "K {self.d}"],
    },
    "idiolect.task.task:Task.module_of": {"x": Float[Tensor, "{self.d}"]},
    "idiolect.task.layout:Split.parts": {
        "x": Float[Tensor, "*lead d"],
        "return": tuple[
            Float[Tensor, "*lead {len(self.theta)}"], Float[Tensor, "*lead {len(self.w)}"]
        ],
    },
    "idiolect.task.layout:Split.join": {
        "theta": Float[Tensor, "*_ {len(self.theta)}"],
        "w": Float[Tensor, "*_ {len(self.w)}"],
        "return": Float[Tensor, "*_ {len(self.theta)+len(self.w)}"],
    },
    "idiolect.task.batches:Batch.__init__": {
        "inputs": Shaped[Tensor, "K B *_"],
        "targets": Shaped[Tensor, "K B *_"],
        "weights": Float[Tensor, "K B"],
        "tally": Int[Tensor, "K"],
        "active": Bool[Tensor, "K"] | None,
    },
    "idiolect.task.context:Here.steps": {"return": Int[Tensor, "{self.rows}"]},
    "idiolect.task.context:Here.keys": {"return": UInt64[Array, "{self.rows}"]},
    "idiolect.task.context:Here.coins": {"return": Float[Array, "{count}"]},
    "idiolect.task.context:Here.validate": {
        "x": Float[Tensor, "{self.rows} d"],
        "return": Float[Tensor, "{self.rows}"],
    },
    "idiolect.wire.messages:heads": {
        "wire_ids": Int[Array, "K"],
        "weights": Real[Array, "K"],
        "return": UInt8[Array, "K 24"],
    },
    "idiolect.wire.messages:pack": {
        "wire_ids": Int[Array, "K"],
        "weights": Real[Array, "K"],
        "rows": dict[str, Shaped[Tensor, "K *_"]],
        "return": UInt8[Array, "K {schema.length}"],
    },
    "idiolect.wire.messages:unpack": {
        "bodies": UInt8[Array, "K {schema.length-24}"],
        "return": dict[str, Shaped[Tensor, "K *_"]],
    },
    "idiolect.server.rules.rule:combine_message": {
        "up": dict[str, Float[Tensor, "S _"]],
        "weights": Float[Tensor, "S"],
        "return": tuple[dict[str, Float[Tensor, "_"]], dict[str, Tensor]],
    },
    "idiolect.host.evaluation:Evaluator.personal": {
        "rows": Int[Tensor, "K"],
    },
}

# Functions of an interface: checked in the class itself and wherever a subclass defines them anew.
INTERFACES: list[tuple[type, dict[str, Signature]]] = [
    (
        Method,
        {
            "weigh": {"samples": Float[Tensor, "S"], "return": Float[Tensor, "S"]},
            "private": {
                "clients": UInt64[Array, "K"],
                "return": dict[str, Shaped[Tensor, "K *_"]],
            },
            "update": {
                "private": dict[str, Shaped[Tensor, "{here.rows} *_"]],
                "return": tuple[
                    dict[str, Float[Tensor, "{here.rows} _"]],
                    dict[str, Shaped[Tensor, "{here.rows} *_"]],
                ],
            },
            "aggregate": {"up": dict[str, Float[Tensor, "S _"]]},
            "personal": {
                "private": dict[str, Shaped[Tensor, "{here.rows} *_"]],
                "return": Float[Tensor, "{here.rows} {task.d}"]
                | dict[str, Shaped[Tensor, "{here.rows} *_"]],
            },
            "shared": {"return": Float[Tensor, "{task.d}"] | None},
        },
    ),
    (
        Rule,
        {
            "combine": {
                "rows": Float[Tensor, "S m"],
                "weights": Float[Tensor, "S"],
                "return": Float[Tensor, "m"],
            },
            "combine_with_state": {
                "rows": Float[Tensor, "S m"],
                "weights": Float[Tensor, "S"],
                "return": tuple[Float[Tensor, "m"], dict[str, Tensor]],
            },
        },
    ),
    (
        Wrapper,
        {
            "__call__": {
                "rows": Float[Tensor, "S m"],
                "weights": Float[Tensor, "S"],
                "return": tuple[Float[Tensor, "R m"], Float[Tensor, "R"]],
            }
        },
    ),
    (
        Attack,
        {
            "__call__": {
                "rows": Float[Tensor, "S m"],
                "malicious": Bool[Tensor, "S"],
                "reference": Float[Tensor, "m"] | None,
                "keys": UInt64[Array, "S"],
                "return": Float[Tensor, "S m"],
            }
        },
    ),
    (
        Stage,
        {
            "encode": {"rows": Float[Tensor, "K {form.n}"], "keys": UInt64[Array, "K"]},
            "decode": {"return": tuple[Float[Tensor, "_ {form.n}"], dict[str, Tensor]]},
            "acknowledge": {
                "rows": Float[Tensor, "K {form.n}"],
                "received": Float[Tensor, "K {form.n}"],
                "return": dict[str, Float[Tensor, "K _"]],
            },
            "finish": {"return": tuple[Float[Tensor, "{form.n}"], dict[str, Tensor]]},
            "query": {"return": Int[Tensor, "q"]},
            "answer": {"query": Int[Tensor, "q"], "return": Float[Tensor, "K q"]},
            "conclude": {
                "query": Int[Tensor, "q"],
                "exact": Float[Tensor, "q"],
                "return": tuple[Float[Tensor, "{form.n}"], Int[Tensor, "k"], dict[str, Tensor]],
            },
        },
    ),
]

PROJECTION: dict[str, Signature] = {
    "down": {"x": Float[Tensor, "K d"], "return": Float[Tensor, "K {self.dim}"]},
    "up": {"u": Float[Tensor, "K {self.dim}"], "return": Float[Tensor, "K d"]},
    "add_up": {
        "g": Float[Tensor, "K d"],
        "u": Float[Tensor, "K {self.dim}"],
        "return": Float[Tensor, "K d"],
    },
}


def with_shapes(function: Callable, signature: Signature) -> Callable:
    """The function, with its arguments and its result checked."""
    bare = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    bare.__kwdefaults__ = function.__kwdefaults__
    bare.__qualname__ = function.__qualname__
    bare.__module__ = function.__module__
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    unknown = signature.keys() - {"return", *names}
    assert not unknown, f"{function.__qualname__} has no parameter {', '.join(sorted(unknown))}"
    bare.__annotations__ = dict(signature)
    return jaxtyped(bare, typechecker=beartype)


def places() -> Iterator[tuple[str, Any, str, Signature]]:
    """(name, where the function lies, what it is called there, its signature)."""
    for name, signature in FUNCTIONS.items():
        module, _, path = name.partition(":")
        *outer, last = path.split(".")
        owner: Any = importlib.import_module(module)
        for part in outer:
            owner = getattr(owner, part)
        yield name, owner, last, signature
    for base, signatures in INTERFACES:
        for cls in family(base):
            for function, signature in signatures.items():
                if function in vars(cls):
                    yield f"{cls.__module__}:{cls.__name__}.{function}", cls, function, signature
    for cls in projections():
        for function, signature in PROJECTION.items():
            yield f"{cls.__module__}:{cls.__name__}.{function}", cls, function, signature


def family(cls: type) -> list[type]:
    """A class and all its subclasses."""
    return [cls, *(found for sub in cls.__subclasses__() for found in family(sub))]


def projections() -> list[type]:
    """Every class of the room with the functions of a projection, but the protocol itself."""
    names = [f"{package.__name__}.{m.name}" for m in pkgutil.iter_modules(package.__path__)]
    return [
        found
        for module in map(importlib.import_module, names)
        for found in vars(module).values()
        if isinstance(found, type)
        and found.__module__ == module.__name__
        and all(name in vars(found) for name in PROJECTION)
    ]


def holders(owner: Any, attribute: str) -> list[Any]:
    """The class, or every module of the package that has imported the function by name."""
    if isinstance(owner, type):
        return [owner]
    function = vars(owner)[attribute]
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("idiolect.")]
    return [m for m in modules if vars(m).get(attribute) is function]


_made: dict[Callable, Callable] = {}  # functions with their checks, made once


@contextmanager
def checked() -> Iterator[Counter[str]]:
    """Check every function of the tables until the end of the block; gives the calls of each."""
    calls: Counter[str] = Counter()
    before = []
    try:
        for name, owner, attribute, signature in list(places()):
            original = vars(owner)[attribute]
            if original not in _made:
                _made[original] = with_shapes(original, signature)
            around = _counted(name, _made[original], calls)
            for holder in holders(owner, attribute):
                before.append((holder, attribute, original))
                setattr(holder, attribute, around)
        yield calls
    finally:
        for owner, attribute, original in reversed(before):
            setattr(owner, attribute, original)


def _counted(name: str, function: Callable, calls: Counter[str]) -> Callable:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return function(*args, **kwargs)

    return call
