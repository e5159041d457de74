"""The terms of a federation: as received from a server, as stored, and the contract they make.

Messages are not trusted: nothing is imported but what the owner allows, and no file is read because
a message names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from ...core.documents import expect_fields
from ...core.files import read_json_object, write_json
from ...core.knobs import Knobs, SettingError, knob
from ...core.registry import only_names
from ...data.federation import Federation
from ...host.settings import HostSettings
from ...run.contract import build_contract
from ...run.plan import Plan
from ...run.settings import Settings, check_device
from ...server.contract import Contract
from .state import AGREEMENT, ENROLLED, MEMBERS

TABLE = "table"
ARRAY = "array"
_FORMS: dict[str, dict[str, Any]] = {
    TABLE: {
        "kind": str,
        "target": str,
        "features": list[str],
        "classes": list[bool | int | float | str],
        "preparation": dict[str, Any] | None,
    },
    ARRAY: {"kind": str, "inputs": list, "classes": int},
}
_AGREEMENT = {"plan": dict[str, Any], "run": int, "seed": int, "data": dict[str, Any]}


@dataclass(frozen=True)
class Agreement:
    """Method, model, loss and run settings (`plan`), the run, its seed, and the form of the data.

    `data` is {"kind": "table", "target", "features", "classes", "preparation"}, with names of
    classes ([] for a regression) and a preparation or None: each site prepares by its own numbers;
    or {"kind": "array", "inputs": [dtype, shape], "classes"}.
    """

    plan: dict[str, Any]
    run: int  # 32 bits
    seed: int
    data: dict[str, Any]

    @classmethod
    def read(cls, facts: Any) -> Agreement:
        """Of unknown origin; ValueError says what is wrong."""
        expect_fields(facts, _AGREEMENT)
        if not 0 <= facts["run"] < 2**32:
            raise ValueError("run: a whole number of 32 bits is expected")
        if not 0 <= facts["seed"] < 2**63:
            raise ValueError("seed: a whole number >= 0 is expected")
        return cls(**{**facts, "data": read_form(facts["data"])})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def save(self, folder: Path) -> None:
        write_json(folder / AGREEMENT, self.as_dict())

    @classmethod
    def load(cls, folder: Path) -> Agreement:
        try:
            return cls.read(read_json_object(folder / AGREEMENT, limit=64 << 20))
        except ValueError as error:
            raise ValueError(f"{folder / AGREEMENT}: {error}") from None


def read_form(data: Any) -> dict[str, Any]:
    """The form of the data, of unknown origin; ValueError says what is wrong."""
    kind = data.get("kind") if isinstance(data, dict) else None
    if kind not in _FORMS:
        raise ValueError(f"data: kind is {str(kind)[:40]!r}; one of {', '.join(_FORMS)}")
    expect_fields(data, _FORMS[kind], place="data")
    if kind == TABLE and (
        not data["features"] or len(set(data["features"])) < len(data["features"])
    ):
        raise ValueError("data: features are one or more columns, each named once")
    if kind == ARRAY:
        inputs = data["inputs"]
        sound = len(inputs) == 2 and isinstance(inputs[0], str) and isinstance(inputs[1], list)
        if not sound or not all(type(n) is int and n >= 0 for n in inputs[1]):
            raise ValueError("data: inputs are [dtype, shape]")
    return dict(data)


@dataclass(frozen=True)
class Members:
    """Which of the owner's clients take part, and what their data are like."""

    ids: list[int | str]  # as the owner calls them
    names: list[str]  # as the server does
    data: dict[str, Any]  # classes, class_names, inputs and preparation: what predictions need

    def save(self, folder: Path) -> None:
        write_json(folder / MEMBERS, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Members:
        hints = {"ids": list[int | str], "names": list[str], "data": dict[str, Any]}
        members = cls(**read_json_object(folder / MEMBERS, hints, limit=256 << 20))
        if len(members.ids) != len(members.names) or not members.ids:
            raise ValueError(f"{folder / MEMBERS}: a name for each client is expected")
        return members


@dataclass(frozen=True)
class Enrolment:
    """What a server has said of the clients of this site."""

    wire_ids: list[int]
    checksum: int  # of the contract
    validation: bool  # whether any client of the run, at whichever site, has validation data

    @classmethod
    def read(cls, facts: Any, clients: int) -> Enrolment:
        """Of unknown origin, for this number of clients; ValueError says what is wrong."""
        expect_fields(facts, {"wire_ids": list[int], "checksum": int, "validation": bool})
        ids = facts["wire_ids"]
        if len(ids) != clients or any(b <= a for a, b in pairwise(ids)):
            raise ValueError(f"wire_ids: {clients} increasing whole numbers are expected")
        if ids and not (ids[0] >= 0 and ids[-1] < 2**32 - 1):
            raise ValueError("wire_ids: whole numbers of 32 bits are expected")
        return cls(**facts)

    def save(self, folder: Path) -> None:
        write_json(folder / ENROLLED, asdict(self))

    @classmethod
    def load(cls, folder: Path, clients: int) -> Enrolment | None:
        """None before enrolment."""
        path = folder / ENROLLED
        if not path.exists():
            return None
        try:
            return cls.read(read_json_object(path, limit=256 << 20), clients)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


@dataclass(frozen=True)
class SiteContract:
    """What an agreement comes to at a site."""

    contract: Contract
    settings: HostSettings


# made by the layers above, which know methods, models and settings by name
ContractBuilder = Callable[[Agreement, Federation, tuple[str, ...]], SiteContract]


@dataclass(frozen=True)
class Machine(Knobs):
    """What a site computes with: its owner's choice, not the federation's."""

    device: str = knob("cpu", "cpu, cuda, cuda:1, mps, ...")
    threads: int = knob(0, "CPU threads; 0 = torch's choice", low=0)
    memory: float = knob(2.0, "GiB for clients at work, and for private rows in memory", above=0)


def check_machine(machine: Machine) -> None:
    """Refuse a device that is not there, and set the threads of this process."""
    check_device(machine.device)
    if machine.threads:
        torch.set_num_threads(machine.threads)


@dataclass(frozen=True)
class Builder:
    """Makes the work of a site from an agreement."""

    machine: Machine = Machine()
    scratch: Path | None = None

    def __call__(
        self, agreement: Agreement, federation: Federation, allowed: tuple[str, ...]
    ) -> SiteContract:
        """SettingError where the agreement asks for what there is not, or may not be."""
        plan = Plan.read(agreement.plan, "plan")
        _check_plan(plan)
        with only_names(allowed):
            method = plan.make_method()
            settings = plan.make_settings()
            _check_settings(settings)
            task = plan.make_task(federation)
            contract, host_settings = build_contract(
                method,
                task,
                settings,
                agreement.seed,
                agreement.run,
                federation.classes,
                device=self.machine.device,
                memory=self.machine.memory,
                scratch=self.scratch,
            )
        return SiteContract(contract, host_settings)


def _check_plan(plan: Plan) -> None:
    """Refuse what a message may not say, before any of it is looked at more closely."""
    if plan.data or plan.data_options:
        raise SettingError("plan: data: a message cannot say which data a site reads")
    if plan.task_options.get("weights"):
        raise SettingError("plan: weights: a message cannot name a file of a site")
    settings = plan.run_settings
    weights = settings.get("client_weights", "")
    if isinstance(weights, str) and weights and not weights.lstrip().startswith("{"):
        raise SettingError("plan: client_weights: a message cannot name a file of a site")
    for name in ("attack", "delays"):
        if settings.get(name) not in (None, "", "none"):
            raise SettingError(f"plan: {name}: it is for simulations, and a site is none")


def _check_settings(settings: Settings) -> None:
    if settings.asynchronous:
        raise SettingError("plan: engine: a site takes part in synchronous rounds")
