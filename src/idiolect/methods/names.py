"""Names that stand for a method with settings, and names of the field that are not here.

`fedavgm` is FedAvg with momentum at the server: a method, fields of it, and settings of the run.
Whatever is set explicitly wins over what a name stands for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.knobs import SettingError


@dataclass(frozen=True)
class NamedMethod:
    """What a name stands for.

    >>> NAMES["fedavgm"].words()
    "fedavg with server_options='momentum=0.9'"
    """

    method: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)

    def words(self) -> str:
        values = [f"{name}={value!r}" for name, value in {**self.fields, **self.run}.items()]
        return " with ".join([self.method, ", ".join(values)] if values else [self.method])

    def run_beside(self, explicit: Collection[str]) -> dict[str, Any]:
        """Its settings of the run but for those that are set explicitly."""
        return {name: value for name, value in self.run.items() if name not in explicit}


# Reddi et al. 2021: β = (0.9, 0.99), τ = 1e-3, and v starts at τ²
_ADAPTIVE = "betas=(0.9, 0.99), eps=1e-3"
_ARRIVALS = {"timing": "arrivals", "staleness": "polynomial(a=0.5)"}

NAMES: dict[str, NamedMethod] = {
    "fedsgd": NamedMethod("fedavg", {"steps": 1}, {"batching": "full"}),
    "fedavgm": NamedMethod("fedavg", run={"server_options": "momentum=0.9"}),
    "fedadam": NamedMethod(
        "fedavg",
        run={"server_optimizer": "adam", "server_lr": 0.01, "server_options": _ADAPTIVE},
    ),
    "fedyogi": NamedMethod(
        "fedavg",
        run={"server_optimizer": "yogi", "server_lr": 0.01, "server_options": _ADAPTIVE},
    ),
    "fedadagrad": NamedMethod(
        "fedavg",
        run={
            "server_optimizer": "adagrad",
            "server_lr": 0.1,
            "server_options": "initial_accumulator_value=1e-6, eps=1e-3",
        },
    ),
    "fedasync": NamedMethod(
        "fedprox", run={**_ARRIVALS, "change_from": "newest", "server_lr": 0.6}
    ),
    "fedbuff": NamedMethod("fedavg", {"weighting": "equal"}, {**_ARRIVALS, "buffer": 10}),
    "power-of-choice": NamedMethod(
        "fedavg", {"weighting": "equal"}, {"selection": "power-of-choice"}
    ),
    "fedbn": NamedMethod("fedper", {"part": "norms"}, {"statistics": "private"}),
    "fedavg-ft": NamedMethod("finetune"),
    "perfedavg": NamedMethod("per-fedavg"),
    "maml": NamedMethod("per-fedavg"),
    "lgfedavg": NamedMethod("lg-fedavg"),
    "lpproj": NamedMethod("lp-proj"),
    "knnper": NamedMethod("knn-per"),
    "proxskip": NamedMethod("scaffnew"),
}

# methods of the field that are not implemented: the nearest that is, and how it differs
ABSENT = {
    "apple": "fedfomo, whose weights follow from losses instead of being learned",
    "fedcp": "gpfl, whose valve is told the client's classes instead of the sample",
    "fedgen": "fedprox",
    "fedgroup": "cfl, whose server divides the clients step by step",
    "fedkd": "fml, whose two models teach each other without compression",
    "fedopt": "fedadam, fedyogi or fedadagrad, which are its members",
    "fedpop": "ffgg",
    "hetlora": "fedalt with part=adapter, at one rank for all clients",
    "heterofl": "fedper on groups of clients with unlike models; its messages have unlike sizes",
    "pefll": "pfedhn, whose server learns the embeddings that its clients would compute",
    "pfedla": "fedala",
}


def named_method(name: str) -> NamedMethod:
    """What a name stands for; any other is a method's own.

    >>> named_method("fedbn").method, named_method("ditto")
    ('fedper', NamedMethod(method='ditto', fields={}, run={}))
    """
    return NAMES.get(name, NamedMethod(name))


def method_alone(name: str) -> NamedMethod:
    """The same where no settings of a run can follow; refuses a name that needs some."""
    entry = named_method(name)
    if entry.run:
        run = ", ".join(f"{setting}={value!r}" for setting, value in entry.run.items())
        raise SettingError(
            f"method: {name!r} is {entry.method} with settings of the run, which cannot be set "
            f"here; name {entry.method!r} and give {run}"
        )
    return entry
