"""The terms of a federation: as received from a server, as stored, and the contract they make.

Messages are not trusted: nothing is imported but what the owner allows, and no file is read because
a message names it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ...core.documents import decode, encode
from ...core.files import read_document, write_document
from ...core.knobs import Factors, Knobs, SettingError, knob, whole
from ...core.registry import only_names
from ...core.types import Id
from ...data.federation import Federation
from ...data.splits import SPLITS
from ...host.host import HostSettings
from ...host.metrics import positive_class
from ...host.service import Refused
from ...method import Method
from ...methods import name_of
from ...privacy.protection import Protection
from ...run.contract import build_contract
from ...run.model_check import behaviour_on
from ...run.plan import Plan
from ...run.prepare import trained_task
from ...run.protection import privacy_of_site
from ...run.schedule import Schedule
from ...run.settings import Settings, check_device
from ...server.protocol import Contract
from .spent import RunSpent

TABLE = "table"
ARRAY = "array"
MOST_CLIENTS = 1 << 20  # of a site
MOST_CLASSES = 1 << 16  # of a target
MOST_SAMPLES = 1 << 40  # of a client
AT_WORK = 8  # vectors of a model's size that a client at work takes
MOST_PARAMETERS = 10_000  # tensors of a model
MOST_NAME = 200  # characters of an id or of the name of a site
DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64)}


# -- the form of the data --------------------------------------------------------------------------
@dataclass(frozen=True)
class TableForm:
    """A table: names of columns and classes ([] for a regression), and how it is prepared."""

    target: str
    features: list[str]
    classes: list[bool | int | float | str]
    preparation: dict[str, Any] | None  # None: each site prepares by its own numbers
    kind: str = TABLE

    def __post_init__(self) -> None:
        if not self.features or len(set(self.features)) < len(self.features):
            raise ValueError("features must be one or more columns, each named once")
        if len(self.classes) > MOST_CLASSES or len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes must be at most {MOST_CLASSES}, each named once")

    @property
    def labels(self) -> tuple[bool | int | float | str, ...]:
        """The labels of the classes, in their order."""
        return tuple(self.classes)


@dataclass(frozen=True)
class ArrayForm:
    """Arrays of one shape."""

    inputs: list[Any]  # dtype, shape
    classes: int
    kind: str = ARRAY

    def __post_init__(self) -> None:
        match self.inputs:
            case [str(), list() as shape] if all(type(n) is int and n >= 0 for n in shape):
                return
        raise ValueError("inputs must be [dtype, shape]")

    @property
    def labels(self) -> tuple[int, ...]:
        """The labels of the classes: their numbers."""
        return tuple(range(self.classes))


def read_form(data: dict[str, Any]) -> TableForm | ArrayForm:
    """The form of the data, of unknown origin; ValueError says what is wrong."""
    forms = {TABLE: TableForm, ARRAY: ArrayForm}
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in forms:
        raise ValueError(f"data: kind must be one of {', '.join(forms)}, got {str(kind)[:40]!r}")
    try:
        return decode(data, forms[kind])
    except ValueError as error:
        raise ValueError(f"data: {error}") from None


# -- documents -------------------------------------------------------------------------------------
class RunDocument:
    """A dataclass that is a JSON file in the folder of a run."""

    FILE: ClassVar[str]

    def save(self, folder: Path) -> None:
        write_document(folder / self.FILE, encode(self))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """SettingError names file and field."""
        return read_document(folder / cls.FILE, cls)


@dataclass(frozen=True)
class Agreement(RunDocument):
    """Method, model, loss and run settings (`plan`), the run, its seed, the form of the data."""

    FILE: ClassVar[str] = "agreement.json"

    plan: dict[str, Any]
    run: int  # 32 bits
    seed: int
    data: dict[str, Any]  # see `read_form`

    def __post_init__(self) -> None:
        if not 0 <= self.run < 2**32:
            raise ValueError(f"run must be a whole number of 32 bits, got {self.run}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be a whole number >= 0, got {self.seed}")
        _ = self.form

    @cached_property
    def form(self) -> TableForm | ArrayForm:
        return read_form(self.data)


@dataclass(frozen=True)
class Members(RunDocument):
    """Which of the owner's clients take part, and what their data are like."""

    FILE: ClassVar[str] = "members.json"

    ids: list[int | str]  # as the owner calls them
    names: list[str]  # as the server does
    data: dict[str, Any]  # classes, class_names, inputs and preparation: what predictions need

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.names) or not self.ids:
            raise ValueError("there must be a name for each client")


@dataclass(frozen=True)
class Enrolment(RunDocument):
    """What a server has said of the clients of this site."""

    FILE: ClassVar[str] = "enrolled.json"

    wire_ids: list[int]
    checksum: int  # of the contract
    validation: bool  # whether any client of the run, at whichever site, has validation data

    def __post_init__(self) -> None:
        ids = self.wire_ids
        increasing = all(a < b for a, b in pairwise(ids))
        if not ids or not increasing or ids[0] < 0 or ids[-1] >= 2**32 - 1:
            raise ValueError("wire_ids must be increasing whole numbers of 32 bits")


@dataclass(frozen=True)
class ClientSizes:
    """A client of a site, and how many samples of each split it has."""

    id: Id
    train: int
    valid: int
    test: int


@dataclass
class SiteCensus:
    """What a site tells of its clients: foreign input at the server."""

    clients: list[ClientSizes]
    inputs: list[Any]  # [[dtype, shape]] of a sample
    classes: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.clients) <= MOST_CLIENTS:
            raise ValueError(
                f"census: clients must be 1 to {MOST_CLIENTS}, got {len(self.clients)}"
            )
        for client in self.clients:
            sizes = (getattr(client, split) for split in SPLITS)
            if len(str(client.id)) > MOST_NAME or not all(0 <= n <= MOST_SAMPLES for n in sizes):
                raise ValueError("census: ids must be short, and samples whole numbers >= 0")
        if len({str(name) for name in self.ids}) < len(self.clients):
            raise ValueError("census: two clients have the same id")
        match self.inputs:
            case [[str(kind), list() as shape]] if kind in DTYPES and all(
                type(n) is int and 0 < n <= 1 << 30 for n in shape
            ):
                pass
            case _:
                raise ValueError("census: inputs must be [[dtype, shape]]")
        if not 0 <= self.classes <= 1 << 24:
            raise ValueError(f"census: classes must be a whole number >= 0, got {self.classes}")

    @property
    def ids(self) -> list[Id]:
        return [client.id for client in self.clients]

    def sizes(self, split: str) -> list[int]:
        """Samples of each client."""
        return [getattr(client, split) for client in self.clients]


# -- what orders may vary --------------------------------------------------------------------------
@dataclass(frozen=True)
class RoundTerms:
    """What the orders of a run may vary from round to round: the agreed schedule, and no more.

    >>> terms = RoundTerms(Schedule.parse("step:10:0.5"), 100, 64, "replace")
    >>> terms.factors(25)
    {'rates': 0.25}
    >>> terms.in_words(25)
    'rates x 0.25, batch 64'
    """

    schedule: Schedule
    rounds: int
    batch: int
    batching: str
    protection: Protection | None = None
    epsilon: float = 0.0  # the budget; 0 = none
    delta: float = 1e-5

    @classmethod
    def of(cls, settings: Settings) -> RoundTerms:
        """Those of the settings of a plan."""
        s = settings
        return cls(s.schedule, s.rounds, s.batch, s.batching, s.privacy, float(s.epsilon), s.delta)

    def spent(self, sizes: list[int]) -> RunSpent | None:
        """An account for clients with so many training samples; None without privacy."""
        if self.protection is None:
            return None
        fewest = min((n for n in sizes if n), default=1)
        return RunSpent.new(self.protection, self.delta, self.epsilon, fewest, self.batch)

    def factors(self, version: int) -> Factors:
        """What the settings of the plan are multiplied by in a round."""
        try:
            return self.schedule.factors(version, max(self.rounds, 1))
        except (OverflowError, ZeroDivisionError):
            raise Refused(f"factors: the agreed schedule has no value in round {version}") from None

    def batch_of(self, version: int) -> int:
        """Samples of a mini-batch in a round; 0 for all that a client has."""
        if self.batching == "full":
            return 0
        return whole(self.batch, self.factors(version).get("batch", 1.0))

    def check_batches(self, least: int, most: float) -> None:
        """Refuse terms under which a round would go below the smallest batch, or beyond `most`.

        The ends of the schedule are looked at now, each round when it comes.
        """
        for version in {0, max(self.rounds - 1, 0)}:
            self.check_batch(version, least, most)

    def check_batch(self, version: int, least: int, most: float) -> None:
        """Refuse a round with mini-batches of too few samples, or of more than memory holds."""
        batch = self.batch_of(version)
        if self.batching != "full" and batch < least:
            raise Refused(
                f"min_batch: mini-batches must have at least {least} samples at this site, got "
                f"{batch}"
            )
        if batch > most:
            raise Refused(f"memory: mini-batches of {batch} samples are too large for this site")

    def check(self, version: int, factors: Factors) -> None:
        """Refuse an order whose factors are not those that the schedule has for its round."""
        agreed = self.factors(version)
        alike = factors.keys() == agreed.keys() and all(
            math.isclose(factors[name], agreed[name], rel_tol=1e-9, abs_tol=1e-12)
            for name in agreed
        )
        if not alike:
            names = ", ".join(sorted(factors.keys() | agreed.keys()))[:80]
            raise Refused(
                f"factors must be those of the agreed schedule in round {version}: {names}"
            )

    def in_words(self, version: int) -> str:
        """What an order varies, for the log."""
        words = [f"{name} x {factor:.4g}" for name, factor in self.factors(version).items()]
        batch = self.batch_of(version)
        return ", ".join([*words, f"batch {batch}" if batch else "batches of all samples"])


# -- the contract ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Machine(Knobs):
    """What a site computes with: its owner's choice, not the federation's."""

    device: str = knob("cpu", "cpu, cuda, cuda:1, mps, ...")
    threads: int = knob(0, "CPU threads; 0 = torch's choice", low=0)
    memory: float = knob(2.0, "GiB for clients at work, and for private rows in memory", above=0)

    @property
    def most_bytes(self) -> int:
        """The same in bytes."""
        return int(self.memory * 2**30)


def check_machine(machine: Machine) -> None:
    """Refuse a device that is not there, and set the threads of this process."""
    check_device(machine.device)
    if machine.threads:
        torch.set_num_threads(machine.threads)


@dataclass(frozen=True)
class Builder:
    """Makes contract and host settings of a site from an agreement."""

    machine: Machine = Machine()

    def __call__(
        self, agreement: Agreement, federation: Federation, allowed: tuple[str, ...]
    ) -> tuple[Contract, HostSettings, RoundTerms]:
        """SettingError where the agreement asks for what there is not, or may not be."""
        plan = Plan.read(agreement.plan, "plan")
        _check_plan(plan)
        with only_names(allowed):
            method = plan.make_method()
            settings = plan.make_settings()
            if settings.asynchronous:
                raise SettingError("plan: timing: a site takes part in synchronous rounds")
            check_one_exchange(method)
            # device and memory are the owner's, and no part of the contract
            numerics = settings.numerics(agreement.seed)
            numerics = replace(numerics, device=torch.device(self.machine.device))
            most = self.machine.most_bytes // (AT_WORK * numerics.dtype.itemsize)
            check_size(plan, federation, most)
            task = trained_task(method, plan.make_task(federation), federation).under(numerics)
            numbers = sum(method.message(task).values())
            if numbers > most:
                raise SettingError(f"memory: messages must have at most {most} numbers here")
            method.check(task)
            behaviour_on(task, federation)
            contract, host_settings = build_contract(
                method,
                task,
                settings,
                agreement.run,
                federation.classes,
                # by the labels alone: which class is rarer would differ between sites
                positive_class(agreement.form.labels, settings.positive),
                privacy=privacy_of_site(settings, method, task, federation.sizes("train").numpy()),
            )
            if contract.up_lengths()[1] > self.machine.most_bytes // AT_WORK:
                raise SettingError("memory: coded messages must fit in the memory of this site")
            host_settings = replace(host_settings, memory=self.machine.most_bytes)
            return contract, host_settings, RoundTerms.of(settings)


def check_size(plan: Plan, federation: Federation, most: int) -> None:
    """Refuse a model of more than `most` parameters before any of them takes memory.

    It is made without memory (torch's meta device), and given up at the parameter that is too many.
    Code of the owner's own that cannot be made so is theirs to bound.
    """
    counts = {"numbers": 0, "parameters": 0}

    def count(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        counts["numbers"] += 0 if parameter is None else parameter.numel()
        counts["parameters"] += 1
        if counts["numbers"] > most or counts["parameters"] > MOST_PARAMETERS:
            raise SettingError(
                f"memory: the model must have at most {most} numbers in at most {MOST_PARAMETERS} "
                "parameters at this site"
            )

    make = plan.model_maker(federation)
    handle = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            make()
    except SettingError:
        raise
    except Exception:
        if ":" not in plan.model:
            raise
    finally:
        handle.remove()


def check_one_exchange(method: Method) -> None:
    """Refuse a method whose rounds have several exchanges."""
    if method.traits.exchanges:
        raise SettingError(
            f"method must have one exchange of messages per round in a deployment, got "
            f"{name_of(method)!r}: a site keeps its rows from before its last order, and could not "
            "begin a round of several again whose server was lost in between"
        )


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
