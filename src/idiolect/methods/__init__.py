"""The table of methods: name -> (class, the fields that the name fixes)."""

from __future__ import annotations

from typing import Any

from ..core.knobs import build, nearest
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
from .rsa import Rsa
from .scaffnew import Scaffnew
from .scaffold import Scaffold

METHODS: dict[str, tuple[type[Method], dict[str, Any]]] = {
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
}


def make(name: str, **fields: Any) -> Method:
    """A method by name.

    >>> make("lp-proj-2", dim=50).p
    2.0
    """
    if name not in METHODS:
        raise nearest(name, METHODS, "method")
    cls, fixed = METHODS[name]
    return build(cls, {**fixed, **fields}, f"method {name}")


def name_of(method: Method) -> str:
    """The name in the table that says most about this method (lp-proj-1 rather than lp-proj); a user's own class by its name."""
    fits = [
        n
        for n, (cls, fixed) in METHODS.items()
        if type(method) is cls and all(getattr(method, k) == v for k, v in fixed.items())
    ]
    return max(fits, key=lambda n: len(METHODS[n][1]), default=type(method).__name__)
