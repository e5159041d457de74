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

from ..core.files import private_folder, read_json_object, write_atomic, write_json
from ..core.knobs import SettingError
from ..core.registry import names_in
from ..core.tensors import Shapes, check_shapes, read_tensors, shapes_of
from ..core.types import Id
from ..data.read.ids import ClientId, unknown_client
from ..host.durable import Durable
from ..host.host import Host
from ..host.service import Refused
from ..run.plan import Plan
from ..run.predict import Prediction, is_several, plain_list, predict
from ..run.settings import DTYPES
from ..task.task import Task
from .site.agreement import Agreement, ContractBuilder, Enrolment, Members
from .site.data import SiteData, joined
from .site.rules import Rules
from .site.state import ROWS, StateFolder

MODEL = "model.json"
CLIENTS = "clients.json"
FORMAT = 1
_MODEL = {
    "format": int,
    "site": str,
    "run": str,
    "rounds": int,
    "method": str,
    "plan": dict[str, Any],
    "data": dict[str, Any],
}


def export(models: SiteModels, folder: Path, site: str) -> list[Path]:
    """Every client's model; the files, of which the last two describe the others."""
    target = private_folder(folder)
    index = {}
    paths = []
    for number, id in enumerate(models.ids):
        path = target / f"client-{number:06d}.safetensors"
        write_atomic(path, save_tensors(models.tensors(id)))
        index[path.name] = id
        paths.append(path)
    write_json(target / CLIENTS, index)
    plan = models.agreement.plan
    about = {
        "format": FORMAT,
        "site": site,
        "run": f"{models.agreement.run:08x}",
        "rounds": models.rounds,
        "method": str(plan.get("method")),
        "plan": plan,
        "data": models.members.data,
    }
    write_json(target / MODEL, about)
    return [*paths, target / CLIENTS, target / MODEL]


def load_exported(folder: str | Path, *, trust: bool = False) -> ExportedModels:
    """The models in a folder that `idiolect host export` has written.

    Code that is neither idiolect's nor an installed package's is imported only if you `trust` the
    folder.
    """
    path = Path(folder)
    about = read_json_object(path / MODEL, _MODEL, limit=256 << 20)
    if about["format"] != FORMAT:
        raise SettingError(f"folder: {path} was written by another version of idiolect")
    index = read_json_object(path / CLIENTS, limit=256 << 20)
    for name, id in index.items():
        if Path(name).name != name or not isinstance(id, int | str):
            raise SettingError(f"folder: cannot use {path / CLIENTS}: a file and its client each")
    return ExportedModels(path, about, {id: name for name, id in index.items()}, trust)


@dataclass(frozen=True)
class ExportedModels:
    """Models of some clients, each an `nn.Module` that is ready for use."""

    path: Path
    about: dict[str, Any]
    files: dict[Id, str]  # by client
    trust: bool = False

    @cached_property
    def task(self) -> Task:
        """Model and loss."""
        plan = Plan.read(self.about["plan"], f"folder: plan in {self.path / MODEL}")
        data = self.about["data"]
        try:
            ((kind, shape),) = data["inputs"]
            blank = torch.zeros(1, *shape, dtype=getattr(torch, kind.removeprefix("torch.")))
            classes = int(data["classes"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
            raise SettingError(f"folder: {self.path / MODEL} does not tell what goes in") from None
        with names_in(self.path, self.trust):
            task = plan.make_task(SampleBlank(blank, classes, tuple(shape)))  # type: ignore[arg-type]
            return task.under(dtype=DTYPES[plan.make_settings().dtype])

    def module(self, id: Id | None = None) -> nn.Module:
        """The model of a client; of the only one without an id."""
        if id is None and len(self.files) == 1:
            id = next(iter(self.files))
        by_text = {str(own): name for own, name in self.files.items()}
        if str(id) not in by_text:
            raise unknown_client(id if id is not None else "", tuple(self.files))
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

        weights = read_tensors(self.path / by_text[str(id)], check)
        module.to(self.task.dtype).load_state_dict(weights)
        return module.eval()

    def predict(self, rows: Any, client: Any = None) -> Prediction:
        """What a client's model says of raw rows of a table (a data frame), or of inputs."""
        if is_several(client):
            return predict(self, rows, plain_list(client), self.about["data"])
        if client is None and len(self.files) == 1:
            client = next(iter(self.files))
        return predict(self, rows, client, self.about["data"])


@dataclass(frozen=True)
class SampleBlank:
    """The form of the data, for the making of a model by name."""

    inputs: torch.Tensor
    classes: int
    shape: tuple[int, ...]


TRIES = 20  # while the process at work replaces the files that are read


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
    def open(cls, state: Path, build: ContractBuilder, run: int | None = None) -> SiteModels:
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
            owned = SiteData.read(description["data"])
            rules = Rules(**description["rules"])
            agreement, members = Agreement.load(place), Members.load(place)
            data = joined(owned.agreed(agreement.data), members)
            work = build(agreement, data, rules.allow_code)
            enrolment = Enrolment.load(place, data.clients)
            if enrolment is None:
                raise SettingError("model: there is none yet: no client is enrolled in this run")
            host = Host(work.contract, data, torch.tensor(enrolment.wire_ids), work.settings)
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

    def personal(self, id: ClientId) -> Tensor:  # -> x[d]
        """The model that a client predicts with."""
        by_text = {str(own): k for k, own in enumerate(self.members.ids)}
        if str(id) not in by_text:
            raise unknown_client(id, tuple(self.members.ids))
        wire_id = int(self.host.wire_ids[by_text[str(id)]])
        return self.host.personal(self.version, self._down, wire_id)

    def tensors(self, id: ClientId) -> dict[str, Tensor]:
        """The same by the names of its parameters, in the order of the module."""
        module = self.module(id)
        return {n: t.detach().cpu().contiguous().clone() for n, t in module.state_dict().items()}

    def module(self, id: ClientId) -> nn.Module:
        """The same as a torch module."""
        return self.task.module_of(self.personal(id))


def _read(host: Host, members: Members, agreement: Agreement, rows: Path) -> SiteModels:
    """Rows and message as they are on disk, also while a process replaces them."""
    for tries in reversed(range(TRIES)):
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
