"""What a run leaves behind, as plain data: complete without the model and data that made it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from safetensors import SafetensorError, safe_open

from ..core.documents import expect, expect_fields, plain
from ..core.files import (
    read_document,
    resume_command,
    sha256_of,
    write_atomic,
    write_document,
)
from ..core.knobs import SettingError
from ..core.text import plural, shown
from ..core.types import Id
from ..host.metrics.sample_means import CalibrationError
from ..host.scores import Scores, wilson
from ..report.format import number
from ..report.subgroups import directions, over_seeds
from ..report.targets import point
from .directory import FORMAT
from .history import History
from .summary import Figures, Summary

ARRAYS = "record.safetensors"
_OPTIONAL = ("heard", "metrics", "baseline")


@dataclass
class SeedRecord:
    """One seed of a run. Every field is plain data but `by_client`, a NumPy array."""

    seed: int
    data_seed: int | None = None  # of the data that this seed trained on, where it has its own
    rounds: int = 0  # rounds done
    stopped: str = ""  # why: rounds, bytes, target, patience, callback, diverged; "" before the end
    collapsed: int = 0  # the first round whose models are not finite or absurd; 0 = sound
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)  # an evaluated round each
    times: list[float] = field(default_factory=list)  # seconds from the start to each of them
    best: dict[str, float] = field(default_factory=dict)  # the best evaluated round on valid. data
    final: dict[str, Figures] = field(default_factory=dict)  # split -> figures of honest clients
    malicious: Figures = field(default_factory=dict)  # test figures of the malicious clients
    held_out: Figures = field(default_factory=dict)  # test figures of the clients held out
    shared_model: Figures = field(
        default_factory=dict
    )  # of the one global model, where there is one
    clients: list[dict[str, Any]] = field(default_factory=list)  # a row per client
    reliability: list[dict[str, Any]] = field(default_factory=list)
    # ^ with the metric calibration_error: a row per client and bin, see `reliability_rows`
    subgroups: list[dict[str, Any]] = field(default_factory=list)
    # ^ where data have subgroups: a row per subgroup and figure, see report.subgroups
    sent: dict[str, int] = field(
        default_factory=dict
    )  # bytes_up, bytes_down, values_up, values_down
    gradients_per_client: float = 0.0  # training, and personalisation before use
    rejected: dict[str, int] = field(default_factory=dict)  # reason -> messages
    missing: dict[str, int] = field(default_factory=dict)  # reason -> clients without a message
    messages: dict[str, int] = field(default_factory=dict)  # asked for, and counted; {}: unknown
    counted: dict[str, int] = field(default_factory=dict)  # of all clients: see Traits.counters
    privacy: dict[str, Any] = field(default_factory=dict)
    # ^ with privacy: the mechanism, and ε by now; see PrivacyAccount.figures
    by_client: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    # ^ test accuracy of every client in every evaluated round, float32[rounds, clients]

    def __repr__(self) -> str:
        figures = self.final.get("test", {})
        reached = f", accuracy {number(figures['accuracy'])}" if figures else ""
        return (
            f"SeedRecord(seed {self.seed}, {plural(self.rounds, 'round')}, "
            f"{plural(len(self.clients), 'client')}{reached})"
        )

    @property
    def numbers(self) -> dict[str, int]:
        """Its seed, and that of its data where it has data of its own: columns of tables."""
        own = {} if self.data_seed is None else {"data_seed": self.data_seed}
        return {"seed": self.seed, **own}

    def progress(self) -> dict[str, Any]:
        """What a checkpoint keeps of a seed under way."""
        history = History(self.history).packed()
        return {"history": history, "seconds": self.seconds, "times": self.times}

    def count(self, part: str) -> int:
        """How many clients are "malicious" or "held_out"."""
        return sum(bool(row[part]) for row in self.clients)

    def losses(self) -> list[float]:
        """The losses of the clients that the figures are about, on test data or else on training
        data: those that have such samples."""
        honest = [row for row in self.clients if not (row["malicious"] or row["held_out"])]
        for split in ("test", "train"):
            if tested := [r[f"{split}_loss"] for r in honest if r[f"{split}_samples"]]:
                return tested
        return []


def client_rows(
    ids: Sequence[Id],
    scores: Mapping[str, Scores],
    counts: Mapping[str, Sequence[float]],
    held_out: Sequence[bool],
    malicious: Sequence[bool],
) -> list[dict[str, Any]]:
    """A row per client.

    Its samples, accuracy, loss and metrics on every split, and what it sent and spent.
    """
    columns: dict[str, Sequence[Any]] = {
        "client": ids,
        "held_out": held_out,
        "malicious": malicious,
    }
    for split, of_split in scores.items():
        accuracy, loss = of_split.of_clients()
        columns[f"{split}_samples"] = of_split.samples.tolist()
        if of_split.weights is not None:
            columns[f"{split}_weight"] = of_split.weights.tolist()
        columns[f"{split}_accuracy"] = accuracy.tolist()
        columns[f"{split}_loss"] = loss.tolist()
        for name, measured in of_split.metrics.items():
            columns[f"{split}_{name}"] = measured.each().tolist()
    columns |= counts
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def reliability_rows(ids: Sequence[Id], scores: Scores) -> list[dict[str, Any]]:
    """The reliability curve of every client: a row per client and bin of the highest probability.

    How often the prediction is right in a bin, with its 95 % interval (Wilson), beside the mean
    probability that the model gave it. [] where the metric calibration_error was not counted.
    """
    measured = scores.metrics.get(CalibrationError.name)
    if measured is None:
        return []
    rows = []
    for client, row in zip(ids, measured.rows, strict=True):
        for part in CalibrationError.curve(row):
            samples, effective = int(part["samples"]), part.pop("effective")
            low, high = wilson(part["accuracy"] * effective, effective)
            interval = {"accuracy_low": low, "accuracy_high": high}
            rows.append({"client": client, **part, "samples": samples, **interval})
    return rows


@dataclass
class Record:
    """All seeds of one method on one federation."""

    method: str  # its name
    label: str  # its name and the fields that differ from their defaults
    fields: dict[str, Any]  # its hyper-parameters
    settings: dict[str, Any]  # of the run
    data: dict[str, Any]  # name, clients, sha256
    model: dict[str, Any]  # module, loss, parameters: [[name, shape], ...]
    origin: dict[str, Any] = field(default_factory=dict)  # data and model by name, where known
    kernel: str = ""
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)  # see Method.report
    environment: dict[str, Any] = field(default_factory=dict)  # of the last start
    starts: list[dict[str, Any]] = field(default_factory=list)  # the environment of every start
    seeds: list[SeedRecord] = field(default_factory=list)
    format: int = FORMAT
    heard: dict[str, int] = field(default_factory=dict)  # clients heard per round, of how many
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)  # see host.metrics.described
    baseline: Sequence[float | None] = field(default_factory=list)
    # ^ the figure that each client's own constant answer reaches on its test data

    def of_seed(self, seed: int) -> SeedRecord:
        """What one of the seeds left behind."""
        return next(s for s in self.seeds if s.seed == seed)

    @property
    def figure(self) -> str:
        """The figure that this run is about: the chosen metric, accuracy, or the loss."""
        metric = self.settings.get("metric")
        if metric:
            return str(metric)
        tested = [s.final["test"] for s in self.seeds]
        unknown = all(math.isnan(f["accuracy"]) and not math.isnan(f["loss"]) for f in tested)
        return "loss" if tested and unknown else "accuracy"

    def __repr__(self) -> str:
        name = shown(self.data.get("name", ""), 40)
        return f"Record({shown(self.label, 80)!r}, {name!r}, {plural(len(self.seeds), 'seed')})"

    @property
    def parameters(self) -> int:
        """d, the numbers of a model; of the first group's where groups have unlike models."""
        return self.model_sizes[0]

    @property
    def model_sizes(self) -> list[int]:
        """d, or that of the model of each group of clients."""
        models = self.model.get("groups", {}).values() or [self.model]
        return [sum(math.prod(shape) for _, shape in one["parameters"]) for one in models]

    @property
    def sizes_text(self) -> str:
        """The same in words: "650, 2,410"."""
        return ", ".join(f"{size:,}" for size in self.model_sizes)

    def summary(self) -> dict[str, Any]:
        """The figures: what `--json` prints."""
        return Summary.of(self).as_dict()

    def rounds_table(self) -> list[dict[str, Any]]:
        """One row per seed and evaluated round, for metrics.csv."""
        return [{"seed": s.seed, **h} for s in self.seeds for h in s.history]

    def timed_rounds(self) -> list[dict[str, Any]]:
        """The rows of `rounds_table`, with the seconds since the start of their seed where known.

        Times are another number each time: they stand in no table that a resumed run repeats.
        """
        times = [
            s.times if len(s.times) == len(s.history) else [None] * len(s.history)
            for s in self.seeds
        ]
        flat = [t for of_seed in times for t in of_seed]
        return [
            {**row, "seconds": math.nan if t is None else t}
            for row, t in zip(self.rounds_table(), flat, strict=True)
        ]

    def clients_table(self) -> list[dict[str, Any]]:
        """One row per seed and client, for clients.csv."""
        return [{**s.numbers, **row} for s in self.seeds for row in s.clients]

    def reliability_table(self) -> list[dict[str, Any]]:
        """One row per seed, client and bin, for reliability.csv; see `reliability_rows`."""
        return [{"seed": s.seed, **row} for s in self.seeds for row in s.reliability]

    def subgroups_table(self) -> list[dict[str, Any]]:
        """One row per seed, model, subgroup, client ("" for all) and figure, for subgroups.csv."""
        first = ("model", "column", "subgroup")
        return [
            {"seed": s.seed, **{n: row[n] for n in first}, "client": row.get("client", "")} | row
            for s in self.seeds
            for row in s.subgroups
        ]

    def subgroups(self) -> list[dict[str, Any]]:
        """The same over seeds, with verdicts; see report.subgroups.

        Clients of several partitions are different people: then over all clients alone.
        """
        by_seed = [s.subgroups for s in self.seeds]
        if any(s.data_seed is not None for s in self.seeds[1:]):
            by_seed = [[row for row in rows if "client" not in row] for rows in by_seed]
        return over_seeds(by_seed, directions(self.metrics))

    def as_dict(self) -> dict[str, Any]:
        """Everything but the arrays, ready for JSON: NaN and infinity become null."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "seeds"}
        out = {name: value for name, value in out.items() if value or name not in _OPTIONAL}
        seeds = []
        for s in self.seeds:
            row = {f.name: getattr(s, f.name) for f in fields(s) if f.name != "by_client"}
            if s.data_seed is None:
                del row["data_seed"]
            if not s.privacy:
                del row["privacy"]
            seeds.append(row)
        return plain({**out, "seeds": seeds})

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Record:
        """The inverse of `as_dict`; a number that was null is NaN again.

        What is saved may come from anyone: SettingError names what is wrong in it.
        """
        try:
            expect(saved, dict[str, Any])
        except ValueError as error:
            raise SettingError(f"record: {error}") from None
        if saved.get("format") != FORMAT:
            raise SettingError(
                f"record: format must be {FORMAT}, which this version reads, "
                f"got {saved.get('format')!r}"
            )
        try:
            expect_fields(saved, _hints(cls), _OPTIONAL)
            hints = {k: v for k, v in get_type_hints(SeedRecord).items() if k != "by_client"}
            seed_rows = [{k: _numbers(v) for k, v in s.items()} for s in saved["seeds"]]
            for at, seed in enumerate(seed_rows):
                optional = {"best", "times", "counted", "messages", "reliability", "subgroups"}
                optional |= {"data_seed", "privacy"}
                expect_fields(seed, hints, optional, place=f"seeds[{at}]")
            record = cls(**{**saved, "seeds": [SeedRecord(**seed) for seed in seed_rows]})
            record.check()
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise SettingError(f"record: it is not complete: {what}") from None
        return record

    def check(self) -> None:
        """Raise where figures are missing that a finished run has."""
        expect(self.data, dict[str, Any], "data")
        expect(self.model["parameters"], list[list[Any]], "model.parameters")
        groups = self.model.get("groups", {})
        expect(groups, dict[str, dict[str, Any]], "model.groups")
        for name, facts in groups.items():
            expect(facts["parameters"], list[list[Any]], f"model.groups.{name}.parameters")
        if not self.seeds:
            raise ValueError("it has no seed")
        self.summary()
        for seed in self.seeds:
            for row in [*seed.final.values(), *seed.history, seed.best]:
                expect(row, dict[str, float], f"figures of seed {seed.seed}")
            for row in seed.history:
                point(self.label, {"seed": seed.seed, **row})
            seed.count("malicious")


def _hints(cls: type) -> dict[str, Any]:
    """The fields of a record as they are in JSON."""
    lists = {"seeds": list[dict[str, Any]], "baseline": list[float | None]}
    return {**get_type_hints(cls), **lists}


def _numbers(value: Any) -> Any:
    """null as NaN, where figures are expected."""
    if isinstance(value, dict):
        return {k: math.nan if v is None else _numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return value


def write_record(record: Record, path: Path) -> None:
    """record.safetensors, and record.json with its SHA-256, into a run directory."""
    arrays = {f"seed-{s.seed}": s.by_client for s in record.seeds}
    digest = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        for piece in float32_safetensors(arrays):
            digest.update(piece)
            yield piece

    write_atomic(path / ARRAYS, pieces())
    write_document(path / "record.json", {**record.as_dict(), "arrays": digest.hexdigest()})


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
        saved = read_document(path / "record.json", dict[str, Any])
        arrays = saved.pop("arrays", "")
        record = Record.from_dict(saved)
        if (path / ARRAYS).exists():
            _read_arrays(record, path / ARRAYS, arrays)
    except SettingError as error:
        text = str(error).removeprefix("record: ").removeprefix("directory: ")
        text = text.removeprefix(f"cannot use {path / 'record.json'}: ")
        raise SettingError(f"directory: cannot use {path / 'record.json'}: {text}") from None
    return record


def _read_arrays(record: Record, path: Path, sha256: str) -> None:
    """The accuracies of clients in every evaluated round, as many as the record has."""
    try:
        if sha256_of(path) != sha256:
            raise ValueError("it does not match its SHA-256 (damaged or edited)")
        with safe_open(path, framework="np") as file:
            for s in record.seeds:
                shape = [len(s.history), len(s.clients)] if s.history else [0, 0]
                part = file.get_slice(f"seed-{s.seed}")
                if part.get_dtype() != "F32" or part.get_shape() != shape:
                    raise ValueError(f"seed-{s.seed} is not float32 of shape {shape}")
                s.by_client = file.get_tensor(f"seed-{s.seed}")
    except (OSError, ValueError, SafetensorError) as error:
        raise SettingError(f"{path.name} beside it: {error}") from None


PIECE = 1 << 20  # numbers written at once


def float32_safetensors(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The bytes of a safetensors file with these float32 arrays, as the library writes them.

    >>> from safetensors.numpy import load
    >>> load(b"".join(float32_safetensors({"seed-0": np.ones((1, 2), np.float32)})))
    {'seed-0': array([[1., 1.]], dtype=float32)}
    """
    header = {}
    end = 0
    for name in sorted(arrays):
        start = end
        end += 4 * arrays[name].size
        shape = list(arrays[name].shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in sorted(arrays):
        flat = arrays[name].reshape(-1)
        for at in range(0, len(flat), PIECE):
            yield np.ascontiguousarray(flat[at : at + PIECE], "<f4").tobytes()
