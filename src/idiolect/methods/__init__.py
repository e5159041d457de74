"""The table of methods: name -> (class, the fields that the name fixes); presets, reductions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ..core.knobs import Knobs, SettingError, build, knob, nearest
from ..core.registry import Table
from ..method import Method
from ..task.task import Task
from .apfl import Apfl
from .byzvrmarina import ByzVrMarina
from .cfl import Cfl
from .dichotomy import Dichotomy
from .ditto import Ditto
from .duallora import DualLora
from .fedala import FedAla
from .fedalt import FedAlt, FedSim
from .fedamp import FedAmp
from .fedavg import FedAvg
from .fedbabu import FedBabu
from .feddane import FedDane
from .feddeper import FedDeper
from .feddyn import FedDyn
from .fedem import FedEm
from .fedfomo import FedFomo
from .fedmd import FedMd
from .fednova import FedNova
from .fedpac import FedPac
from .fedper import FedPer
from .fedproto import FedProto
from .fedprox import FedProx, FedProxSoft
from .fedrep import FedRep
from .fedrod import FedRod
from .fedsplit import FedSplit
from .fedtgp import FedTgp
from .ffgg import Ffgg, LocalFfgg
from .finetune import Finetune
from .fml import Fml
from .gpfl import Gpfl
from .ifca import Ifca
from .knnper import KnnPer
from .l2gd import L2gd
from .lgfedavg import LgFedAvg
from .local import Local
from .lora import FedIt, FedSaLora, FfaLora
from .lpproj import LpProj
from .moon import Moon
from .names import ABSENT
from .names import NAMES as NAMES
from .names import method_alone as method_alone
from .names import named_method as named_method
from .partial import SplitMethod as SplitMethod
from .perfedavg import PerFedAvg
from .pfedbayes import PFedBayes
from .pfedgraph import PFedGraph
from .pfedhn import PFedHn
from .pfedme import PFedMe
from .rsa import Rsa
from .scaffnew import Scaffnew
from .scaffold import Scaffold
from .slowmo import SlowMo

PRESET = "preset"
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
        "fedit": (FedIt, {}),
        "ffa-lora": (FfaLora, {}),
        "fedsa-lora": (FedSaLora, {}),
        "dual-lora": (DualLora, {}),
        "fedper": (FedPer, {}),
        "fedrep": (FedRep, {}),
        "fedbabu": (FedBabu, {}),
        "apfl": (Apfl, {}),
        "fedala": (FedAla, {}),
        "ifca": (Ifca, {}),
        "feddane": (FedDane, {}),
        "feddyn": (FedDyn, {}),
        "fednova": (FedNova, {}),
        "slowmo": (SlowMo, {}),
        "fedsplit": (FedSplit, {}),
        "byz-vr-marina": (ByzVrMarina, {}),
        "fedamp": (FedAmp, {}),
        "pfedhn": (PFedHn, {}),
        "cfl": (Cfl, {}),
        "fedfomo": (FedFomo, {}),
        "pfedgraph": (PFedGraph, {}),
        "heurfedamp": (FedAmp, {"attention": "cosine"}),
        "moon": (Moon, {}),
        "fedproto": (FedProto, {}),
        "fedtgp": (FedTgp, {}),
        "fedmd": (FedMd, {}),
        "knn-per": (KnnPer, {}),
        "fedrod": (FedRod, {}),
        "fml": (Fml, {}),
        "fedem": (FedEm, {}),
        "fedpac": (FedPac, {}),
        "gpfl": (Gpfl, {}),
        "pfedbayes": (PFedBayes, {}),
    },
    _entry,
    ABSENT,
)


def make_method(name: str, **fields: Any) -> Method:
    """A method by name: built in, from an installed package, or `module:Name`.

    `preset` names fields that belong together; explicit fields win.

    >>> make_method("lp-proj-2", dim=50).p
    2.0
    >>> make_method("lp-proj-2", preset="paper", lam=1).lr
    0.1
    """
    entry = method_alone(name)
    cls, fixed = METHODS.find(entry.method)
    all_fields = {**fixed, **entry.fields, **fields}
    return build(cls, unfold(cls, all_fields, f"method {name}"), f"method {name}")


def name_of(method: Method) -> str:
    """The most specific name of this method: lp-proj-1 rather than lp-proj.

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


# -- presets: settings of a method under a name, `preset=paper` -----------------------------------
@dataclass(frozen=True)
class Preset(Knobs):
    """The setting `preset`, offered with the fields of every method."""

    preset: str = knob("", "fields under a name, paper: those of its paper; explicit fields win")


def has_preset(cls: type[Method]) -> bool:
    """Whether `preset` is this setting; not where the method has a field of that name itself."""
    return PRESET not in {f.name for f in dataclasses.fields(cls)}


def unfold(cls: type[Method], fields: dict[str, Any], what: str) -> dict[str, Any]:
    """The fields with those of the preset added; fields named explicitly win.

    >>> from .pfedme import PFedMe
    >>> unfold(PFedMe, {"preset": "paper", "lam": 1.0}, "method pfedme")["lam"]
    1.0
    """
    if PRESET not in fields or not has_preset(cls):
        return fields
    fields = dict(fields)
    name = fields.pop(PRESET)
    if not name:
        return fields
    if not cls.traits.presets:
        raise SettingError(
            f"preset must be empty, got {name!r}: {what} has none, only its defaults"
        )
    if not isinstance(name, str) or name not in cls.traits.presets:
        raise nearest(str(name), cls.traits.presets, f"{what} preset")
    return {**cls.traits.presets[name], **fields}


def named(method: Method) -> str:
    """The preset that a method's fields are those of; "" where it is none, or the defaults."""
    for name, fields in type(method).traits.presets.items():
        defaults = {f.name: f.default for f in dataclasses.fields(method)}
        other = any(defaults[field] != value for field, value in fields.items())
        if other and all(getattr(method, field) == value for field, value in fields.items()):
            return name
    return ""


def equal_to(method: Method, task: Task) -> str:
    """What this method is with these settings on this model, in words; "" where it is itself.

    A split with an empty side is one kind: where every parameter is private, nothing is sent, and
    where every parameter is shared, nothing is personal. A weight of zero is the other: a tie of
    strength 0 ties nothing, no steps train nothing (`Traits.reductions`).

    >>> import torch
    >>> from . import FedProx, LgFedAvg
    >>> equal_to(FedProx(mu=0), Task(torch.nn.Linear(60, 10)))
    'mu is 0: this is FedAvg'
    >>> equal_to(LgFedAvg(), Task(torch.nn.Linear(60, 10)))
    'all 610 parameters are shared: this is FedAvg'
    """
    reasons = []
    if isinstance(method, SplitMethod):
        split = method.split(task)
        if not len(split.theta):
            all_private = f"all {task.d:,} parameters are private: nothing is sent"
            advice = "a smaller private part would share the rest"
            reasons.append(f"{all_private}; {method.alone()}; {advice}")
        elif not len(split.w):
            reasons.append(f"all {task.d:,} parameters are shared: {method.together()}")
    # a subclass may have other equations: what its parent reduces to is not claimed for it
    words = dict(method.traits.reductions) if "traits" in vars(type(method)) else {}
    untrained = words.pop("steps", "")
    for condition, reduction in words.items():
        values = values_of(condition)
        if all(getattr(method, field) == value for field, value in values.items()):
            case = " and ".join(f"{field} is {value:g}" for field, value in values.items())
            reasons.append(f"{case}: {reduction}")
    takes_no_step = (
        untrained and not getattr(method, "steps", 1) and not getattr(method, "epochs", 0)
    )
    if takes_no_step:
        reasons.append(f"steps is 0: {untrained}")
    return "; ".join(reasons)


def values_of(condition: str) -> dict[str, float]:
    """The fields of a reduction's condition, and their values; 0 where none is named.

    >>> values_of("beta,server_rate=1")
    {'beta': 0.0, 'server_rate': 1.0}
    """
    pairs = (pair.partition("=") for pair in condition.split(","))
    return {field: float(value or 0) for field, _, value in pairs}
