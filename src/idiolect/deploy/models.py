"""The owner's models: from a site's state directory, and as exported files that need no data.

An export is a folder:

client-000000.safetensors, ...   the weights of each client's model
clients.json                     which file is whose
model.json                       what the weights belong to, and what goes in and comes out
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from ..core.documents import encode
from ..core.files import private_folder, read_document, write_atomic, write_document
from ..core.knobs import SettingError
from ..core.registry import names_in
from ..core.tensors import Shapes, check_shapes, read_tensors, shapes_of
from ..core.types import Id
from ..data.read.ids import ClientId, unknown_client
from ..host.durable import Durable
from ..host.host import Host
from ..host.service import Refused
from ..methods.predictor import no_single_model
from ..run.plan import Plan
from ..run.predict import Prediction, client_by_row, predict
from ..run.settings import DTYPES
from ..task.task import Task
from .site.agreement import Agreement, Builder, Enrolment, Members
from .site.rules import Rules
from .site.site import AgreedRun
from .site.state import ROWS, StateFolder

MODEL = "model.json"
CLIENTS = "clients.json"
FORMAT = 2
MOST_TRIES = 20  # while the process at work replaces the files that are read


class NotFinite(SettingError):
    """A model that is not finite: nothing that was asked is wrong, and there is no model."""

    exit_code = 1


@dataclass(frozen=True)
class ModelDescription:
    """What exported weights belong to."""

    format: int
    site: str
    run: str
    rounds: int
    method: str
    plan: dict[str, Any]
    data: dict[str, Any]  # what goes in and comes out


def export(models: SiteModels, folder: Path, site: str) -> list[Path]:
    """Every client's model; the files, of which the last two describe the others."""
    for client in models.ids:
        models.module(client)  # NotFinite before anything is written
    target = private_folder(folder)
    index = {}
    paths = []
    for number, client in enumerate(models.ids):
        path = target / f"client-{number:06d}.safetensors"
        write_atomic(path, save_tensors(models.tensors(client)))
        index[path.name] = client
        paths.append(path)
    write_document(target / CLIENTS, index)
    plan = models.agreement.plan
    run, method = f"{models.agreement.run:08x}", str(plan.get("method"))
    about = ModelDescription(FORMAT, site, run, models.rounds, method, plan, models.members.data)
    write_document(target / MODEL, encode(about))
    return [*paths, target / CLIENTS, target / MODEL]


def load_exported(folder: str | Path, *, trust: bool = False) -> ExportedModels:
    """The models in a folder that `idiolect host export` has written.

    Code that is neither idiolect's nor an installed package's is imported only if you `trust` the
    folder.
    """
    path = Path(folder)
    about = read_document(path / MODEL, ModelDescription)
    if about.format != FORMAT:
        raise SettingError(f"folder: {path} was written by another version of idiolect")
    index: dict[str, Id] = read_document(path / CLIENTS, dict[str, int | str])
    if any(Path(name).name != name for name in index):
        raise SettingError(f"folder: cannot use {path / CLIENTS}: it must name files of its folder")
    return ExportedModels(path, about, {client: name for name, client in index.items()}, trust)


@dataclass(frozen=True)
class ExportedModels:
    """Models of some clients, each an `nn.Module` that is ready for use."""

    path: Path
    about: ModelDescription
    files: dict[Id, str]  # by client
    trust: bool = False

    @cached_property
    def task(self) -> Task:
        """Model and loss."""
        plan = Plan.read(self.about.plan, f"folder: plan in {self.path / MODEL}")
        data = self.about.data
        try:
            ((kind, shape),) = data["inputs"]
            blank = torch.zeros(1, *shape, dtype=getattr(torch, kind.removeprefix("torch.")))
            classes = int(data["classes"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
            raise SettingError(f"folder: {self.path / MODEL} does not tell what goes in") from None
        with names_in(self.path, self.trust):
            task = plan.make_task(SampleBlank(blank, classes, tuple(shape)))  # type: ignore[arg-type]
            return task.under(dtype=DTYPES[plan.make_settings().dtype])

    def module(self, client: Id | None = None) -> nn.Module:
        """The model of a client; of the only one without an id."""
        if client is None and len(self.files) == 1:
            client = next(iter(self.files))
        by_text = {str(own): name for own, name in self.files.items()}
        if str(client) not in by_text:
            raise unknown_client("" if client is None else client, tuple(self.files))
        module = copy.deepcopy(self.task.module)
        shapes = shapes_of(dict(module.state_dict()))

        def check(shapes_in_file: Shapes) -> None:
            # numbers of either precision fit
            check_shapes(
                {
                    n: (s, shapes[n][1] if n in shapes else d)
                    for n, (s, d) in shapes_in_file.items()
                },
                shapes,
            )

        weights = read_tensors(self.path / by_text[str(client)], check)
        module.to(self.task.dtype).load_state_dict(weights)
        return module.eval()

    def predict(self, rows: Any, client: Any = None) -> Prediction:
        """What a client's model says of raw rows of a table (a data frame), or of inputs."""
        if client is None and len(self.files) == 1:
            client = next(iter(self.files))
        by_row = client_by_row(client)
        return predict(self, rows, client if by_row is None else by_row, self.about.data)


@dataclass(frozen=True)
class SampleBlank:
    """The form of the data, for the making of a model by name."""

    inputs: torch.Tensor
    classes: int
    shape: tuple[int, ...]


class SiteModels:
    """Personal models of one run, of the clients of this site.

    They are made of the rows after the last round that was concluded, and of the last message from
    the server.
    """

    def __init__(self, host: Host, members: Members, agreement: Agreement, durable: Durable):
        self.host = host
        self.members = members
        self.agreement = agreement
        message = durable.last_down()
        if message is None:
            raise SettingError("model: there is none yet: no message of a server has come")
        self.version, self._down = message
        self.rounds = durable.version + 1

    @classmethod
    def open(cls, state: Path, build: Builder, run: int | None = None) -> SiteModels:
        """Of a run, or of the last one; SettingError where there is none, or it cannot be read."""
        folder = StateFolder(state)
        description = folder.site()
        runs = folder.runs()
        number = folder.current() if run is None else run
        if number is None or number not in runs:
            names = ", ".join(f"{r:08x}" for r in runs) or "none"
            raise SettingError(f"run: this site has taken part in: {names}")
        place = folder.run(number)
        try:
            rules = Rules(**description.rules)
            agreement, members = Agreement.load(place), Members.load(place)
            run_here = AgreedRun.of(agreement, members, description.data, rules, build)
            if not (place / Enrolment.FILE).exists():
                raise SettingError("model: there is none yet: no client is enrolled in this run")
            host = run_here.host(Enrolment.load(place))
            return _read(host, members, agreement, place / ROWS)
        except SettingError as error:
            if isinstance(error, Refused) and error.__cause__ is not None:
                raise SettingError(str(error.__cause__)) from None
            raise
        except (ValueError, OSError) as error:
            raise SettingError(
                f"state: the rows of run {number:08x} cannot be used: {error}"
            ) from None

    @property
    def task(self) -> Task:
        """Model and loss."""
        return self.host.contract.task

    @property
    def ids(self) -> list[ClientId]:
        """The clients, as their owner calls them."""
        return list(self.members.ids)

    def module(self, client: ClientId) -> nn.Module:
        """The model that a client predicts with."""
        by_text = {str(own): k for k, own in enumerate(self.members.ids)}
        if str(client) not in by_text:
            raise unknown_client(client, tuple(self.members.ids))
        wire_id = int(self.host.wire_ids[by_text[str(client)]])
        try:
            x = self.host.personal(self.version, self._down, wire_id)
        except ValueError as error:  # the last message was to other clients
            raise SettingError(f"client: {client!r}: {error}") from None
        if not isinstance(x, Tensor):
            raise SettingError(f"model: {no_single_model(self.host.contract.method)}")
        if not bool(x.isfinite().all()):
            raise NotFinite(
                f"model: that of client {client!r} is not finite after round {self.rounds}: it is "
                "of no use, and not written; an earlier run's may be (--run)"
            )
        return self.task.module_of(x)

    def tensors(self, client: ClientId) -> dict[str, Tensor]:
        """The same by the names of its parameters, in the order of the module."""
        state = self.module(client).state_dict()
        return {n: t.detach().cpu().contiguous().clone() for n, t in state.items()}


def _read(host: Host, members: Members, agreement: Agreement, rows: Path) -> SiteModels:
    """Rows and message as they are on disk, also while a process replaces them."""
    for tries in reversed(range(MOST_TRIES)):
        durable = Durable(host, rows)
        try:
            durable.peek()
            return SiteModels(host, members, agreement, durable)
        except SettingError:
            raise
        except (FileNotFoundError, ValueError):
            if not tries:
                raise
            time.sleep(0.05)
    raise AssertionError
