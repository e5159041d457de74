"""What `run` returns: a record, and while they can be reached, the models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import nn

from ..core.files import (
    check_regular,
    private_folder,
    read_json_object,
    write_atomic,
    write_json,
)
from ..core.knobs import SettingError
from ..core.paths import resume_command
from ..core.types import Id
from ..report.tables import render, results_table
from . import checkpoint
from .arrays import float32_safetensors
from .directory import RunDirectory
from .journal import Journal
from .record import Record, SeedRecord
from .restore import bound_of
from .session import Session, host_folder

if TYPE_CHECKING:
    import pandas

Source = Callable[[int], Session]  # a seed -> its moving parts as they were at the end


class Result:
    """A record that can also reach models: those of this process, or those of a checkpoint."""

    def __init__(
        self, record: Record, source: Source | None = None, identity: dict[str, Any] | None = None
    ):
        self.record = record
        self._source = source  # where the models of a seed come from, if not from this process
        self._sessions: dict[int, Session] = {}  # finished in this process, by seed
        self._loaded: dict[int, Session] = {}  # read back: one at a time
        self._identity = identity  # what settings.json says

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

    def over_seeds(self, key: str, split: str = "test") -> list[float]:
        """A final figure, seed by seed."""
        return [s.final[split][key] for s in self.record.seeds]

    def to_pandas(self, table: str = "rounds") -> pandas.DataFrame:
        """A data frame of "rounds" (a row per seed and evaluated round) or "clients"."""
        return frame(table, {"rounds": self.rounds_table, "clients": self.clients_table})

    # -- models ----------------------------------------------------------------------------------
    def personal(self, client: Id, seed: int | None = None) -> nn.Module:
        """The model that a client predicts with, as a torch module; the client by its own id.

        Of the first seed, or of the seed with this number.
        """
        return self._session(seed).module(client)

    def export(
        self, folder: str | Path, seed: int | None = None, one_file: bool = False
    ) -> list[Path]:
        """Every client's own model as safetensors: a file per client, or one file for all.

        In one file a tensor is called `client/parameter`. The files; `clients.json` tells which is
        whose.
        """
        session = self._session(seed)
        task = session.contract.task
        target = private_folder(Path(folder))
        index: dict[str, str] = {}
        everything: dict[str, torch.Tensor] = {}
        paths: list[Path] = []
        for wire_id, id in enumerate(session.server.roster.ids):
            weights = task.layout.unflatten(session.personal(id).cpu())
            tensors = {n: t.contiguous().clone() for n, t in weights.items()}
            if one_file:
                everything |= {f"{id}/{n}": t for n, t in tensors.items()}
                continue
            path = target / f"client-{wire_id:06d}.safetensors"
            write_atomic(path, save_tensors(tensors))
            paths.append(path)
            index[path.name] = str(id)
        if one_file:
            paths = [target / "clients.safetensors"]
            write_atomic(paths[0], save_tensors(everything))
            index = {paths[0].name: "all"}
        write_json(target / "clients.json", index)
        return [*paths, target / "clients.json"]

    def session(self, seed: int | None = None) -> Session:
        """The moving parts of a seed as they were at its end."""
        return self._session(seed)

    def keep(self, seed: int, session: Session) -> None:
        """Hold a finished seed's models in this process."""
        self._sessions[seed] = session

    def _session(self, seed: int | None) -> Session:
        seeds = [s.seed for s in self.record.seeds]
        wanted = seeds[0] if seed is None else seed
        if wanted not in seeds:
            raise SettingError(f"seed: {seed} is not accepted; one of {', '.join(map(str, seeds))}")
        if wanted in self._sessions:
            return self._sessions[wanted]
        if wanted not in self._loaded:
            if self._source is None:
                raise SettingError(
                    "models: this record has none; give idiolect.load(directory, task=..., "
                    "federation=...) the task and the data of the run"
                )
            self._loaded = {wanted: self._source(wanted)}
        return self._loaded[wanted]

    # -- files -----------------------------------------------------------------------------------
    def save(self, directory: str | Path) -> Path:
        """Write a run directory: record, tables and, where models can be reached, checkpoints."""
        path = Path(directory)
        with RunDirectory(path, fresh=True) as folder:
            folder.write_json("settings.json", self.identity())
            folder.write_json("environment.json", self.record.starts)
            self.write(folder)
            for s in self.record.seeds:
                if s.seed in self._sessions or self._source is not None:
                    self._save_models(folder, s)
        return path

    def identity(self) -> dict[str, Any]:
        """What settings.json says of this run."""
        if self._identity is None:
            raise SettingError(
                "save: this result was not made by a run, and none can be told of it"
            )
        return self._identity

    def write(self, folder: RunDirectory) -> None:
        """Record and tables, into the run's own directory."""
        record = self.record
        if self.rounds_table():
            folder.write_csv("metrics.csv", self.rounds_table())
        folder.write_csv("clients.csv", self.clients_table())
        folder.write_json("result.json", self.summary())
        folder.write_json("record.json", record.as_dict())
        arrays = {f"seed-{s.seed}": s.by_client for s in record.seeds}
        write_atomic(folder.path / "record.safetensors", float32_safetensors(arrays))

    def _save_models(self, folder: RunDirectory, s: SeedRecord) -> None:
        session = self._session(s.seed)
        tensors, server = session.save()
        journal = Journal(folder, s.seed, len(session.server.roster))
        for row in s.by_client:
            journal.files["accuracy"].append(row.tobytes())
        facts = {
            "server": server,
            "history": s.history,
            "seconds": s.seconds,
            "times": s.times,
            "journal": journal.save(),
        }
        states = {"server": tensors}
        parts = {host_folder(i): host.save for i, host in enumerate(session.hosts)}
        bound = bound_of(self.identity(), session)
        checkpoint.save(folder.checkpoints(s.seed), bound, s.rounds, states, facts, parts)

    def __repr__(self) -> str:
        accuracy = self.over_seeds("accuracy")
        mean = sum(accuracy) / len(accuracy)
        name = self.record.data["name"]
        return f"Result({self.label!r}, {name!r}, accuracy {mean:.4f}, {len(accuracy)} seeds)"

    def __str__(self) -> str:
        return render(results_table([self.summary()]))


def frame(table: str, tables: dict[str, Callable[[], list[dict[str, Any]]]]) -> pandas.DataFrame:
    """A table as a data frame."""
    if table not in tables:
        known = ", ".join(map(repr, tables))
        raise SettingError(f"table: {table!r} is not accepted; one of {known}")
    try:
        import pandas
    except ImportError:
        raise SettingError("data frames need pandas: pip install 'idiolect[frames]'") from None
    return pandas.DataFrame(tables[table]())


def read_record(path: Path) -> Record:
    """The record of a run directory."""
    if not (path / "record.json").exists():
        begun = (path / "settings.json").exists()
        text = (
            f"the run in {path} is not finished; continue it with: {resume_command(path)}"
            if begun
            else f"{path} holds no run (record.json is missing)"
        )
        raise SettingError(f"directory: {text}")
    try:
        record = Record.from_dict(read_json_object(path / "record.json"))
        if (path / "record.safetensors").exists():
            _read_arrays(record, path / "record.safetensors")
    except SettingError as error:
        text = str(error).removeprefix("record: ").removeprefix("directory: ")
        raise SettingError(f"directory: cannot use {path / 'record.json'}: {text}") from None
    return record


def _read_arrays(record: Record, path: Path) -> None:
    """The accuracies of clients in every evaluated round, as many as the record has."""
    try:
        check_regular(path)
        with safe_open(path, framework="np") as file:
            for s in record.seeds:
                shape = [len(s.history), len(s.clients)] if s.history else [0, 0]
                found = file.get_slice(f"seed-{s.seed}")
                if found.get_dtype() != "F32" or found.get_shape() != shape:
                    raise ValueError(f"seed-{s.seed} is not float32 of shape {shape}")
                s.by_client = file.get_tensor(f"seed-{s.seed}")
    except (OSError, ValueError, SafetensorError) as error:
        raise SettingError(f"{path.name} beside it: {error}") from None
