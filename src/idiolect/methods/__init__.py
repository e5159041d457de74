"""The table of methods: name -> (class, the fields that the name fixes)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..core.knobs import SettingError, build
from ..core.registry import Table
from ..method import Method
from .dichotomy import Dichotomy
from .ditto import Ditto
from .fedalt import FedAlt, FedSim
from .fedavg import FedAvg
from .feddeper import FedDeper
from .fedprox import FedProx, FedProxSoft
from .ffgg import Ffgg, LocalFfgg
from .finetune import Finetune
from .l2gd import L2gd
from .lgfedavg import LgFedAvg
from .local import Local
from .lpproj import LpProj
from .perfedavg import PerFedAvg
from .pfedme import PFedMe
from .presets import named, unfold
from .rsa import Rsa
from .scaffnew import Scaffnew
from .scaffold import Scaffold

Entry = tuple[type[Method], dict[str, Any]]  # the class, and the fields that the name fixes


def _entry(name: str, entry: Any) -> Entry:
    """A user's entry: a subclass of Method, or (subclass, fixed fields)."""
    cls, fixed = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, {})
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise SettingError(f"method must be a subclass of Method, got {name!r}")
    return cls, dict(fixed)


METHODS: Table[Entry] = Table(
    "method",
    "idiolect.methods",
    {
        "local": (Local, {}),
        "fedavg": (FedAvg, {}),
        "fedprox": (FedProx, {}),
        "fedprox-soft": (FedProxSoft, {}),
        "lp-proj": (LpProj, {}),
        "lp-proj-1": (LpProj, {"p": 1.0}),
        "lp-proj-2": (LpProj, {"p": 2.0}),
        "ditto": (Ditto, {}),
        "pfedme": (PFedMe, {}),
        "per-fedavg": (PerFedAvg, {}),
        "lg-fedavg": (LgFedAvg, {}),
        "rsa": (Rsa, {}),
        "l2gd": (L2gd, {}),
        "scaffold": (Scaffold, {}),
        "scaffnew": (Scaffnew, {}),
        "feddeper": (FedDeper, {}),
        "feddeper*": (FedDeper, {"steps": 5}),
        "ffgg": (Ffgg, {}),
        "local-ffgg": (LocalFfgg, {}),
        "fedalt": (FedAlt, {}),
        "fedsim": (FedSim, {}),
        "finetune": (Finetune, {}),
        "dichotomy": (Dichotomy, {}),
    },
    _entry,
)


def make_method(name: str, **fields: Any) -> Method:
    """A method by name: built in, from an installed package, or `module:Name`.

    `preset` names fields that belong together; those given beside it win.

    >>> make_method("lp-proj-2", dim=50).p
    2.0
    >>> make_method("lp-proj-2", preset="paper", lam=1).lr
    0.1
    """
    cls, fixed = METHODS.find(name)
    return build(cls, unfold(cls, {**fixed, **fields}, f"method {name}"), f"method {name}")


def name_of(method: Method) -> str:
    """The name that says most about this method: lp-proj-1 rather than lp-proj.

    A user's own class has the name it was found by, else its class's name.
    """
    fits = [
        name
        for name, (cls, fixed) in METHODS.known().items()
        if type(method) is cls and all(getattr(method, k) == v for k, v in fixed.items())
    ]
    most = max(fits, key=lambda name: len(METHODS.find(name)[1]), default="")
    return most or type(method).__name__


def label_of(method: Method) -> str:
    """The method's name and the fields that differ from its defaults: "lp-proj-1 lam=1".

    >>> label_of(make_method("lp-proj-2", preset="paper", dim=50))
    'lp-proj-2 preset=paper dim=50'
    """
    name = name_of(method)
    fixed = METHODS.known().get(name, (Method, {}))[1]
    preset = named(method)
    implied = {*fixed, *(method.traits.presets[preset] if preset else ())}
    changed = {"preset": preset} if preset else {}
    changed |= {
        f.name: getattr(method, f.name)
        for f in dataclasses.fields(method)
        if f.name not in implied and getattr(method, f.name) != f.default
    }
    return " ".join([name, *(f"{field}={_short(value)}" for field, value in changed.items())])


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
