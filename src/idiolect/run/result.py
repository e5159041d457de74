"""What `run` returns: a record, and while they can be reached, the models."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from ..core.files import private_folder, write_atomic, write_csv, write_document, write_json
from ..core.knobs import SettingError
from ..core.text import PRINT_IT, plural, shown
from ..core.types import Id, Personal
from ..data.federation import Federation
from ..data.prepare import Preparation
from ..data.read.ids import plain_id, unknown_client
from ..host.scores import COLLAPSE_LOSS
from ..methods.predictor import no_single_model, predicts_by_itself
from ..report.card import model_card
from ..report.format import number
from ..report.subgroup_tables import SubgroupsView, subgroups_view
from ..report.tables import results_table
from ..server.protocol import Contract
from ..server.roster import Roster
from ..task.initial import constants
from ..task.task import Task
from .adapter_export import write_adapter
from .cross_client import cross_client_rows
from .directory import RunDirectory
from .divergence import TIMES
from .identity import RunIdentity
from .personalise import PersonalisedModels, personalised
from .predict import (
    Models,
    Prediction,
    client_by_row,
    labels_of,
    predict,
    preparation_of,
    refuse_collapsed,
)
from .record import Record, SeedRecord, write_record
from .repeats import facts_of_repeat
from .round_log import Journal
from .session import Session
from .settings import Settings

if TYPE_CHECKING:
    import pandas

# a seed, and whether its best round is meant -> its moving parts as they were then
Source = Callable[[int, bool], Session]


_NO_MODELS = (
    "models: this record has none; give idiolect.load(directory, task=..., federation=...) the "
    "task and the data of the run. A result keeps its models by result.save(directory), not by "
    "pickle"
)


class RunModels(Models, Protocol):
    """Models of a run, and whose they are."""

    @property
    def roster(self) -> Roster: ...

    @property
    def contract(self) -> Contract: ...

    def personal(self, client: Id) -> Personal: ...  # -> x[d], or a State

    def task_of(self, client: Id) -> Task: ...


class Result:
    """A record that can also reach models: those of this process, or those of a checkpoint."""

    def __init__(
        self,
        record: Record,
        source: Source | None = None,
        identity: RunIdentity | None = None,
        federation: Federation | None = None,
        scratch: Any = None,
    ):
        self.record = record
        self._source = source  # where the models of a seed come from, if not from this process
        self._sessions: dict[int, Session] = {}  # finished in this process, by seed
        self._loaded: dict[tuple[int, bool], Session] = {}  # read back: one at a time
        self._identity = identity  # what settings.json says
        self._federation = federation  # of the run, where this process has it
        self._scratch = scratch  # a folder that ends with this result

    # -- figures ---------------------------------------------------------------------------------
    @property
    def method(self) -> str:
        """The method's name."""
        return self.record.method

    @property
    def label(self) -> str:
        """The method's name and the fields that differ from their defaults."""
        return self.record.label

    @property
    def seeds(self) -> list[SeedRecord]:
        """What each seed left behind."""
        return self.record.seeds

    def summary(self) -> dict[str, Any]:
        """The figures as plain data: what `--json` prints."""
        return self.record.summary()

    def rounds_table(self) -> list[dict[str, Any]]:
        """One row per seed and evaluated round."""
        return self.record.rounds_table()

    def clients_table(self) -> list[dict[str, Any]]:
        """One row per seed and client."""
        return self.record.clients_table()

    def cross_client_table(self, others: int = 10, split: str = "test") -> list[dict[str, Any]]:
        """One row per seed and client: how its own model does on the data of other clients.

        Means over the other clients that it meets: `others` of them, drawn at random, or all with
        0. Models are needed, and are in memory together; malicious and held-out clients are left
        out. Methods that train before use do so for the models' owners, on their data.
        """
        return [
            row
            for s in self.record.seeds
            for row in cross_client_rows(self.session(s.seed), others, split)
        ]

    def over_seeds(self, key: str, split: str = "test") -> list[float]:
        """A final figure, seed by seed."""
        return [s.final[split][key] for s in self.record.seeds]

    def to_pandas(self, table: str = "rounds") -> pandas.DataFrame:
        """A data frame: "rounds" (a row per seed and evaluated round), "clients" and others.

        "reliability" has a row per seed, client and bin of the metric calibration_error,
        "subgroups" one per seed, subgroup, client ("" for all) and figure.
        """
        tables = {
            "rounds": self.rounds_table,
            "clients": self.clients_table,
            "reliability": self.record.reliability_table,
            "subgroups": self.record.subgroups_table,
        }
        return frame(table, tables)

    @property
    def subgroups(self) -> SubgroupsView:
        """Figures by subgroup, over all clients and within each: `print` shows the tables."""
        return subgroups_view(self)

    def card(self, path: str | Path | None = None, local: Result | None = None) -> str:
        """The model card in Markdown, written to a file where one is given.

        `local` is a result of Local on the same data: then the card says who gains over it.
        """
        if local is not None:
            _check_local(self.record, local.record)
        text = model_card(self, local, Settings().as_dict())
        if path is not None:
            write_atomic(Path(path), text.encode())
        return text

    # -- models ----------------------------------------------------------------------------------
    def personal(
        self,
        client: Id | None = None,
        seed: int | None = None,
        *,
        position: int | None = None,
        best: bool = False,
    ) -> nn.Module:
        """The model that a client predicts with, as a torch module.

        The client by its own id (1 is the client called 1), or by its `position` among the
        clients, from 0. Of the first seed, or of the seed with this number. `best`: as it was in
        the best round by validation data (see the setting `keep_best`).
        """
        models = self.models(seed, best)
        return models.module(_id(models.roster, client, position))

    def predict(
        self,
        rows: Any,
        client: Any = None,
        seed: int | None = None,
        *,
        position: int | None = None,
        best: bool = False,
        allow_collapsed: bool = False,
    ) -> Prediction:
        """What a client's own model says of new rows.

        `rows` are raw rows of a table, prepared as the training data were (a data frame), or
        inputs as the model takes them (arrays, tensors). `client` is one id for all rows, or one
        for each row. Classes come back by the labels of the training data, real values in their
        units. Models whose training has collapsed are refused unless `allow_collapsed`.
        """
        models = self.models(seed, best)
        facts = facts_of_repeat(self.record.data, self._seed(seed).seed)
        by_row = None if position is not None else client_by_row(client)
        if by_row is None:
            owner = _id(models.roster, client, position)
            self._refuse_collapsed([owner], seed, best or allow_collapsed)
            return predict(models, rows, owner, facts, allow_collapsed)
        owners = [_id(models.roster, one, None) for one in by_row]
        self._refuse_collapsed(owners, seed, best or allow_collapsed)
        return predict(models, rows, owners, facts, allow_collapsed)

    def _refuse_collapsed(self, owners: list[Id], seed: int | None, allow: bool) -> None:
        """Refuse models of a collapsed run, but for clients whose own have not.

        Those have a finite loss on test data that is not far above the constant answer's.
        """
        record = self._seed(seed)
        if allow or not record.collapsed:
            return
        limits = [b or 0.0 for b in self.record.baseline] or [0.0] * len(record.clients)
        losses = {
            str(row["client"]): (row.get("test_loss"), COLLAPSE_LOSS + TIMES * limit)
            for row, limit in zip(record.clients, limits, strict=False)
        }
        for owner in dict.fromkeys(owners):
            loss, limit = losses.get(str(owner), (None, 0.0))
            if loss is None or not loss <= limit:
                refuse_collapsed(record.collapsed, owner)

    def _seed(self, seed: int | None) -> SeedRecord:
        """What a seed left behind, the first one's where none is named."""
        return next(s for s in self.record.seeds if seed in (None, s.seed))

    def personalise(
        self,
        federation: Federation,
        *,
        rounds: int | None = None,
        seed: int | None = None,
        returning: bool = False,
        best: bool = False,
        models: Mapping[Id, str] | None = None,
    ) -> Result:
        """Personal models for new clients, after training; nothing is sent.

        They do what held-out clients do: `rounds` of the method's own training towards the
        finished server (as many as `held_out_rounds` says unless given), then they are evaluated.
        The result is one as `run` gives, of these clients. Clients that took part before are
        refused, unless as `returning` ones, who start from scratch. Where groups of clients have
        unlike models, `models` says in which group each is; without it they are where the run's
        `TaskGroups` has them.
        """
        session = self.session(seed, best)
        own_rounds = self.record.settings["held_out_rounds"] if rounds is None else rounds
        new, record = personalised(session, self.record, federation, own_rounds, returning, models)
        return Personalised(record, new)

    @property
    def preparation(self) -> Preparation | None:
        """How raw rows of a table became inputs; None where the data were not a table."""
        return preparation_of(self.record.data)

    @property
    def class_names(self) -> tuple[Any, ...]:
        """The user's label of each class; () where classes are called by their numbers."""
        return labels_of(self.record.data)

    def export(
        self,
        folder: str | Path,
        seed: int | None = None,
        one_file: bool = False,
        best: bool = False,
    ) -> list[Path]:
        """Every client's own model as safetensors: a file per client, or one file for all.

        In one file a tensor is called `client/parameter`. Returns the files; `clients.json` says
        whose each is. `best`: as they were in the best round by validation data.
        """
        models = self.models(seed, best)
        if predicts_by_itself(models.contract.method):
            raise SettingError(f"export: {no_single_model(models.contract.method)}")
        target = private_folder(Path(folder))
        index: dict[str, str] = {}
        everything: dict[str, torch.Tensor] = {}
        paths: list[Path] = []
        for wire_id, client_id in enumerate(models.roster.ids):
            x = models.personal(client_id)
            assert isinstance(x, Tensor)
            task = models.task_of(client_id)
            if task.numerics.target_scale is None:
                weights = {**constants(task.module), **task.tensors_of(x.cpu())}
            else:  # the module that is handed out, whose outputs are in the user's units
                weights = {n: t.cpu() for n, t in task.module_of(x).state_dict().items()}
            tensors = {n: t.contiguous().clone() for n, t in weights.items()}
            if one_file:
                everything |= {f"{client_id}/{n}": t for n, t in tensors.items()}
                continue
            path = target / f"client-{wire_id:06d}.safetensors"
            write_atomic(path, save_tensors(tensors))
            paths.append(path)
            index[path.name] = str(client_id)
        if one_file:
            paths = [target / "clients.safetensors"]
            write_atomic(paths[0], save_tensors(everything))
            index = {paths[0].name: "all"}
        write_json(target / "clients.json", index)
        return [*paths, target / "clients.json"]

    def export_adapter(
        self, client: Id, folder: str | Path, seed: int | None = None, best: bool = False
    ) -> list[Path]:
        """A client's own adapter in peft's format, without the base, for a model of peft.

        `peft.PeftModel.from_pretrained(base, folder)` is then the client's model. Returns the
        files: adapter_config.json and adapter_model.safetensors.
        """
        return write_adapter(self.personal(client, seed, best=best), Path(folder))

    def models(self, seed: int | None = None, best: bool = False) -> RunModels:
        """The models of a seed, by client."""
        return self.session(seed, best)

    def keep(self, seed: int, session: Session) -> None:
        """Hold a finished seed's models in this process."""
        self._sessions[seed] = session

    def session(self, seed: int | None = None, best: bool = False) -> Session:
        """The moving parts of a seed as they were at its end, or in its best round."""
        seeds = [s.seed for s in self.record.seeds]
        wanted = seeds[0] if seed is None else seed
        if wanted not in seeds:
            raise SettingError(f"seed must be one of {', '.join(map(str, seeds))}, got {seed}")
        if best:
            self._check_best(wanted)
        elif wanted in self._sessions:
            return self._sessions[wanted]
        if (wanted, best) not in self._loaded:
            if self._source is None:
                raise SettingError(_NO_MODELS)
            self._loaded = {(wanted, best): self._source(wanted, best)}
        session = self._loaded[wanted, best]
        session_round = session.rounds
        if best and session_round != self.record.seeds[seeds.index(wanted)].best["round"]:
            raise SettingError(
                "best: the models of the best round are not there; "
                f"those of round {session_round} are"
            )
        return session

    def _check_best(self, seed: int) -> None:
        one = self._seed(seed)
        if not one.best or not self.record.settings.get("keep_best"):
            raise SettingError(
                "best: the models of the best round were not saved; run with keep_best=True"
            )

    # -- copies ----------------------------------------------------------------------------------
    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the record alone. Models stay where they are, see `save`."""
        return {"record": self.record, "identity": self._identity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Result.__init__(self, state["record"], None, state["identity"])

    def __copy__(self) -> Result:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Result:
        """The record is copied; the models, which no longer change, are shared."""
        other = self.__copy__()
        other.record = copy.deepcopy(self.record, memo)
        return other

    # -- files -----------------------------------------------------------------------------------
    def save(self, directory: str | Path) -> Path:
        """Write a run directory: record, tables and, where models can be reached, checkpoints."""
        path = Path(directory)
        with RunDirectory(path, fresh=True) as folder:
            write_document(path / "settings.json", self.identity().as_dict())
            write_document(path / "environment.json", {"starts": self.record.starts})
            self.write(folder)
            for s in self.record.seeds:
                if s.seed in self._sessions or self._source is not None:
                    session = self.session(s.seed)
                    journal = Journal(folder, s.seed, len(session.server.roster))
                    for row in s.by_client:
                        journal.files["accuracy"].append(row.tobytes())
                    facts = {**s.progress(), "journal": journal.save()}
                    session.save(folder.checkpoints(s.seed), self.identity(), facts)
                if s.best and self.record.settings.get("keep_best") and self._source is not None:
                    session = self.session(s.seed, best=True)
                    session.save(folder.checkpoints(s.seed, best=True), self.identity())
        return path

    def identity(self) -> RunIdentity:
        """What settings.json says of this run."""
        if self._identity is None:
            raise SettingError(
                "save: this result was not made by a run, so there are no settings to save"
            )
        return self._identity

    def write(self, folder: RunDirectory) -> None:
        """Record and tables, into the run's own directory."""
        record, path = self.record, folder.path
        if self.rounds_table():
            write_csv(path / "metrics.csv", self.rounds_table())
        write_csv(path / "clients.csv", self.clients_table())
        if reliability := self.record.reliability_table():
            write_csv(path / "reliability.csv", reliability)
        if subgroups := self.record.subgroups_table():
            write_csv(path / "subgroups.csv", subgroups)
        write_json(path / "result.json", self.summary())
        write_record(record, path)

    def __repr__(self) -> str:
        figures = self.over_seeds("accuracy")
        what = "loss" if math.isnan(sum(figures)) else "accuracy"
        figures = self.over_seeds(what)
        reached = f"{what} {number(sum(figures) / len(figures))}"
        if any(s.collapsed for s in self.seeds):
            reached = "collapsed"
        name = shown(self.record.data["name"], 40)
        label = shown(self.label, 80)
        seeds = plural(len(figures), "seed")
        return f"Result({label!r}, {name!r}, {reached}, {seeds}; {PRINT_IT})"

    def __str__(self) -> str:
        notes = self.record.notes
        lines = [
            notes.get("chosen", {}).get("loss", ""),
            notes.get("targets", {}).get("text", ""),
            notes.get("personalised", {}).get("text", ""),
        ]
        return "\n".join([str(results_table([self.summary()])), *map(shown, filter(None, lines))])


class Personalised(Result):
    """The result of clients that joined after training."""

    _models: PersonalisedModels | None = None  # None in a copy without models

    def __init__(self, record: Record, models: PersonalisedModels | None = None):
        super().__init__(record)
        self._models = models

    def models(self, seed: int | None = None, best: bool = False) -> RunModels:
        if self._models is None or best or seed not in (None, self.record.seeds[0].seed):
            return super().models(seed, best)
        return self._models

    def save(self, directory: str | Path) -> Path:
        raise SettingError(
            "save: models of clients that came after training are written by "
            "result.export(folder); the run itself is saved by the result of its training"
        )


def _check_local(record: Record, local: Record) -> None:
    """Refuse a run that the clients of this one cannot be measured by."""
    if local.method != "local":
        raise SettingError(f"local must be a run of the method 'local', got {local.method!r}")
    if local.data.get("sha256") != record.data.get("sha256"):
        raise SettingError("local must be a run on the same data, got one on other data")


def _id(roster: Roster, client: Id | None, position: int | None) -> Id:
    """Which client is meant; SettingError for one that is not there."""
    ids = roster.ids
    if (client is None) == (position is None):
        raise SettingError("client: give its id, or its position= (from 0), and not both")
    if position is not None:
        whole = isinstance(position, int | np.integer) and not isinstance(position, bool)
        if not whole or not 0 <= position < len(ids):
            raise SettingError(
                f"position must be a whole number from 0 to {len(ids) - 1}, got {position!r}"
            )
        return ids[int(position)]
    wanted = plain_id(client)
    try:
        return ids[roster.wire_id(wanted)]
    except SettingError:
        raise unknown_client(wanted, ids) from None


def frame(table: str, tables: dict[str, Callable[[], list[dict[str, Any]]]]) -> pandas.DataFrame:
    """A table as a data frame."""
    if table not in tables:
        names = ", ".join(map(repr, tables))
        raise SettingError(f"table must be one of {names}, got {table!r}")
    import pandas

    return pandas.DataFrame(tables[table]())
