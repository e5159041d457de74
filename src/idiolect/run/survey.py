"""Data by name, for a run whose hosts load them: one of the cluster's processes tells who there is.

The run's own process never holds a sample. What it needs to know of them (numbers of samples, their
form, the fingerprint, the trivial baseline) is found where they are, and so is whether model, loss
and metrics fit them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..data.federation import Federation
from ..host.baselines import trivial
from ..host.lazy_federation import LazyFederation
from ..host.metrics import in_use
from .plan import Plan
from .validate import check


def data_of(plans: Sequence[Plan]) -> Federation:
    """The data of plans that have the same: loaded here, or by hosts if all plans have them on Ray.

    >>> plan = Plan("fedavg", data="synthetic", data_options={"clients": 3})
    >>> data_of([plan]).clients
    3
    """
    settings = [plan.make_settings() for plan in plans]
    ask = settings[0].carrier.ask
    if ask is None or not all(s.carrier.loads_data for s in settings):
        return plans[0].make_data()
    return ask(Survey(tuple(plan.as_dict() for plan in plans)), settings[0].place)


@dataclass(frozen=True)
class Load:
    """Data by name, loaded where this is called."""

    plan: dict[str, Any]

    def __call__(self) -> Federation:
        return Plan.read(self.plan, "origin").make_data()


@dataclass(frozen=True)
class Survey:
    """The question: whose data are these, and do they fit what the plans want of them?"""

    plans: tuple[dict[str, Any], ...]

    def __call__(self) -> LazyFederation:
        load = Load(self.plans[0])
        data = load()
        plans = [Plan.read(plan, "origin") for plan in self.plans]
        task = plans[0].make_task(data)
        for plan in plans:
            check(plan.make_method(), task, data, plan.make_settings())
        s = plans[0].make_settings()
        used = in_use(s.metrics, s.metric, data.classes, task.criterion.name)
        baseline = trivial(data, task.criterion, used)
        return LazyFederation.of_data(data, sha256=data.fingerprint(), baseline=baseline, load=load)
