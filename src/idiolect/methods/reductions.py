"""Settings under which a method reduces to a simpler one, shown before a run and with its figures.

A split with an empty side is one kind: where every parameter is private, nothing is sent, and where
every parameter is shared, nothing is personal. A weight of zero is the other: a tie of strength 0
ties nothing, no steps train nothing (`Traits.reductions`).
"""

from __future__ import annotations

from ..method import Method
from ..task.task import Task
from .partial import SplitMethod


def equal_to(method: Method, task: Task) -> str:
    """What this method is with these settings on this model, in words; "" where it is itself.

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
            reasons.append(f"{all_private}; {method.alone()}")
        elif not len(split.w):
            reasons.append(f"all {task.d:,} parameters are shared: {method.together()}")
    # a subclass may have other equations: what its parent reduces to is not claimed for it
    words = dict(method.traits.reductions) if "traits" in vars(type(method)) else {}
    untrained = words.pop("steps", "")
    for field, reduction in words.items():
        if getattr(method, field) == 0:
            reasons.append(f"{field} is 0: {reduction}")
    takes_no_step = (
        untrained and not getattr(method, "steps", 1) and not getattr(method, "epochs", 0)
    )
    if takes_no_step and not reasons:
        reasons.append(f"steps is 0: {untrained}")
    return "; ".join(reasons)
