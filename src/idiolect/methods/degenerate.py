"""Settings under which a method is another, simpler one: said before a run, and beside its figures.

A split with an empty side is one kind: where every parameter is private, nothing is sent, and where
every parameter is shared, nothing is personal. A weight of zero is the other: a tie of strength 0
ties nothing, no steps train nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..method import Method
from ..task.task import Task
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
from .partial import SplitMethod
from .perfedavg import PerFedAvg
from .pfedme import PFedMe
from .rsa import Rsa


def equal_to(method: Method, task: Task) -> str:
    """What this method is with these settings on this model, in words; "" where it is itself.

    >>> import torch
    >>> equal_to(FedProx(mu=0), Task(torch.nn.Linear(60, 10)))
    'mu is 0: this is FedAvg'
    >>> equal_to(LgFedAvg(), Task(torch.nn.Linear(60, 10)))
    'all 610 parameters are shared: this is FedAvg'
    """
    found = [_empty_side(method, task)] if isinstance(method, SplitMethod) else []
    for field, value, kinds, words in ZEROS:
        if type(method) in kinds and getattr(method, field) == value:
            found.append(f"{field} is {value}: {words}")
    if not any(found) and _takes_no_step(method):
        found.append(f"steps is 0: {UNTRAINED[type(method)](method)}")
    return "; ".join(filter(None, found))


# field, its value, the methods it is about, what they then are
ZEROS: tuple[tuple[str, float, tuple[type[Method], ...], str], ...] = (
    ("mu", 0, (FedProx,), "this is FedAvg"),
    ("personal_steps", 0, (Finetune,), "this is FedAvg"),
    ("lam", 0, (Ditto,), "the personal models are Local's, trained beside FedAvg's"),
    ("lam", 0, (L2gd,), "nothing is shared, and this is Local"),
    (
        "lam",
        0,
        (PFedMe, LpProj),
        "nothing is shared, the shared point never moves, and every client trains alone, as Local",
    ),
    ("lam", 0, (Rsa,), "the personal models are Local's"),
    ("lam", 0, (FedProxSoft,), "the personal models are Local's"),
    ("rho", 0, (FedDeper,), "the shared model is FedAvg's"),
)


def _empty_side(method: SplitMethod, task: Task) -> str:
    """Whether a split has nothing shared, or nothing private."""
    split = method.split(task)
    if not len(split.theta):
        return f"all {task.d:,} parameters are private: nothing is sent; {_alone(method)}"
    if not len(split.w):
        return f"all {task.d:,} parameters are shared: {_together(method)}"
    return ""


def _alone(method: SplitMethod) -> str:
    if isinstance(method, Ffgg):
        if method.start == "kept":
            return "this is Local, with a round's steps once more before use"
        where = "a random start" if method.start == "random" else "the initial model"
        return f"every client trains alone, anew from {where} each time: Local without rounds"
    if not getattr(method, "stateful", True):
        return "every client trains alone, anew from the initial model in each round"
    return "this is Local"


def _together(method: SplitMethod) -> str:
    if isinstance(method, LocalFfgg):
        return "this is FedAvg, with clients that weigh the same"
    if isinstance(method, Ffgg):
        return "this is FedAvg with one step per round, and clients that weigh the same"
    if isinstance(method, FedAlt) and method.private_steps:
        return "this is FedAvg, and its private steps change nothing"
    if isinstance(method, FedAlt | FedSim | LgFedAvg):
        return "this is FedAvg"
    return "nothing is personal"


def _takes_no_step(method: Any) -> bool:
    known = type(method) in UNTRAINED
    return known and method.steps == 0 and not getattr(method, "epochs", 0)


def _nothing(method: Any) -> str:
    return "no model is trained"


def _private_start(method: Any) -> str:
    where = {"random": "a random start", "common": "its initial values", "kept": "its start"}
    return f"the private part is not fine-tuned, and stays at {where[method.start]}"


# what methods without a step are
UNTRAINED: dict[type[Method], Callable[[Any], str]] = {
    **dict.fromkeys((Local, FedAvg, FedProx, LgFedAvg, FedSim, PerFedAvg, FedDeper), _nothing),
    **dict.fromkeys((PFedMe, LpProj, Rsa), lambda m: "the personal models stay as they start"),
    **dict.fromkeys((Ditto, Finetune), lambda m: "the shared model stays as it starts"),
    **dict.fromkeys((Ffgg, LocalFfgg), _private_start),
}
