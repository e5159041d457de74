"""A run: settings in, result out; with checkpoints, exact resume, stops on bytes or accuracy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..core.knobs import SettingError, build
from ..data.federation import SPLITS, Federation
from ..host.scores import summarise
from ..method import Method
from ..methods import label_of, name_of
from ..task.task import Task
from . import checkpoint
from .check import check, numbers_fit, warn
from .directory import RunDirectory, environment
from .identity import check_same, identity_of, read_identity, run_number
from .interrupts import Interrupted, Interruption, finish_on_interrupt
from .journal import Journal
from .on_disk import on_disk
from .record import Record, SeedRecord
from .restore import restore
from .result import Result
from .seed import SENT, Seed, client_rows
from .session import People, Session, Start
from .settings import Settings
from .starts import differences, read_starts

# seed, rounds done, accuracy so far (NaN before the first evaluation)
Progress = Callable[[int, int, float], None]
clock = time.monotonic  # seconds

__all__ = ["Interrupted", "Progress", "run"]


def run(
    method: Method,
    task: Task,
    federation: Federation,
    *,
    directory: str | Path | None = None,
    progress: Progress | None = None,
    origin: dict[str, Any] | None = None,
    resume: bool | str = False,
    start: dict[int, Start] | None = None,
    **settings: Any,
) -> Result:
    """Train `method` on `federation` and evaluate every client's own model on its own data.

    Settings are the fields of `Settings`: rounds, sample, seeds, batch, ... With a `directory`,
    settings, metrics and checkpoints are written there and `resume=True` continues a run that was
    interrupted, to exactly the result it would have had: on as many threads as before unless told
    otherwise, and not with changed code unless by `resume="force"`. `origin` describes data and
    model by name, so that `idiolect resume` can rebuild them. `start` gives, for each seed, the
    model and private rows to start from (see `idiolect.pipeline`).

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> task = il.Task(torch.nn.Linear(60, 10))
    >>> result = il.run(il.FedAvg(), task, federation, rounds=2, sample=2)
    >>> result.summary()["values"]
    {'up': 2440, 'down': 2440}
    """
    chosen = build(Settings, settings, "run")
    check(method, task, federation, chosen)
    if resume not in (True, False, "force"):
        raise SettingError(f"resume: {resume!r} is not accepted; True, False or 'force'")
    identity = identity_of(method, task, federation, chosen, origin, start)
    runner = Runner(method, task, federation, chosen, identity, start or {}, progress)
    if directory is None:
        with torch_threads(chosen.threads):
            return runner.run(None, resume=False)
    with RunDirectory(directory, fresh=not resume) as folder:
        threads = chosen.threads
        folder.clear()
        if resume:
            identity = read_identity(folder.path)
            check_same(identity, runner.identity, folder.path, warn if resume == "force" else None)
            runner.starts = read_starts(folder.path)
            threads = threads or runner.starts[-1]["threads"]
        with torch_threads(threads):
            runner.begin(folder, identity)
            return runner.run(folder, bool(resume))


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """torch on this many threads, as before afterwards; 0 leaves it alone."""
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads:
            torch.set_num_threads(before)


@dataclass
class Runner:
    """Everything that a run's seeds have in common."""

    method: Method
    task: Task
    federation: Federation
    settings: Settings
    identity: dict[str, Any]
    start: dict[int, Start]
    progress: Progress | None
    starts: list[dict[str, Any]] = field(default_factory=list)  # the environment of each start

    def begin(self, folder: RunDirectory, identity: dict[str, Any]) -> None:
        """Write what the run is and where it is at work, or say what is other than before."""
        now = environment() | {"code": self.identity["code"], "from": {}}
        for difference in differences(self.starts, now):
            warn(difference)
        for name in ("chunk", "memory") if self.starts else ():
            before, given = identity["run"].get(name), getattr(self.settings, name)
            if before != given:
                warn(
                    f"{name}: this run was begun with {str(before)[:80]} and goes on with {given}: "
                    "sums may be formed in other groups, so that figures may differ from those of "
                    "an uninterrupted run in their last bits"
                )
        self.starts.append(now)
        begun = bool(self.starts[1:])
        self.identity = identity
        try:
            folder.write_json("environment.json", self.starts)
            if not begun:
                folder.write_json("settings.json", identity)
        except OSError as error:
            raise SettingError(
                f"directory: cannot write to {folder.path}: {error.strerror}"
            ) from None

    def run(self, folder: RunDirectory | None, resume: bool) -> Result:
        """All seeds, one after the other."""
        if not self.starts:
            self.starts.append(environment() | {"code": self.identity["code"], "from": {}})
        record = self._blank_record()
        result = Result(record, self._source(folder), self.identity)
        s = self.settings
        with finish_on_interrupt("finishing this round, then saving") as interrupted:
            for seed in range(s.seed, s.seed + s.seeds):
                session = self.session(seed, folder)
                journal = Journal(folder, seed, len(session.server.roster))
                one = Seed(session, SeedRecord(seed), self.identity, journal)
                record.kernel = one.session.contract.task.kernel
                record.seeds.append(one.record)
                if resume and folder:
                    self._restore(one, folder)
                journal.begin(record.rounds_table())
                last = seed + 1 == s.seed + s.seeds
                self._train(one, folder, interrupted, last)
                self._finish(one)
                one.session.release()
                journal.close()
                if not one.on_disk:
                    result.keep(seed, one.session)
                if folder is not None:
                    with on_disk("the result"):
                        result.write(folder)
        return result

    def _blank_record(self) -> Record:
        method = self.method
        s = self.settings
        eligible = len(People.of(self.federation, s, s.seed).eligible)
        heard = s.sampled(eligible, method.hears_all)
        notes = method.report(self.task.under(s.numerics(s.seed)), eligible, heard)
        for note in notes.values():
            if note.get("warning"):
                warn(note["warning"])
        return Record(
            method=name_of(method),
            label=label_of(method),
            fields=method.as_dict(),
            settings=s.as_dict(),
            data=self.identity["data"],
            model=self.identity["model"],
            origin=self.identity["origin"],
            notes=notes,
            environment=self.starts[-1],
            starts=self.starts,
        )

    def session(self, seed: int, folder: RunDirectory | None) -> Session:
        """A seed's moving parts, as they are before the first round."""
        return Session(
            self.method,
            self.task,
            self.federation,
            self.settings,
            seed,
            run_number(self.identity, seed),
            folder.path if folder else None,
            self.start.get(seed),
        )

    def _source(self, folder: RunDirectory | None) -> Callable[[int], Session] | None:
        """How a finished seed's models are found again: from its checkpoint."""
        if folder is None:
            return None
        path = folder.checkpoints

        def load(seed: int) -> Session:
            session = self.session(seed, None)
            restore(session, path(seed), self.identity, self.settings, warn)
            session.personalise_held_out(self.settings.held_out_rounds)
            return session

        return load

    # -- one seed --------------------------------------------------------------------------------
    def _restore(self, one: Seed, folder: RunDirectory) -> None:
        """Back to where the seed was when the run stopped."""
        path = folder.checkpoints(one.record.seed)
        checkpoint.recover(path)
        if checkpoint.found(path):
            one.restore(path, self.settings)
        self.starts[-1]["from"][str(one.record.seed)] = one.session.server.version
        with on_disk("the environment"):
            folder.write_json("environment.json", self.starts)

    def _train(
        self,
        one: Seed,
        folder: RunDirectory | None,
        interrupted: Interruption,
        last: bool,
    ) -> None:
        """Rounds until one of the stops; state is saved between rounds, where it is complete."""
        s = self.settings
        server = one.session.server
        record = one.record
        began = clock() - record.seconds
        saved = clock()
        while not (stop := self._stop(one)):
            if interrupted():
                record.seconds = clock() - began
                one.save(folder)
                raise interrupted.stop(
                    f"stopped after round {server.version} of {s.rounds} (seed {record.seed})"
                )
            with numbers_fit(s.dtype):
                one.session.engine.advance(s.schedule(server.version, s.rounds))
            if s.eval_every and (server.version % s.eval_every == 0 or server.version == s.rounds):
                one.evaluate()
                record.times.append(clock() - began)
            one.journal.round_done(server)
            record.seconds = clock() - began
            by_rounds = s.checkpoint_every and server.version % s.checkpoint_every == 0
            by_time = s.checkpoint_minutes and clock() - saved >= 60 * s.checkpoint_minutes
            if by_rounds or by_time:
                one.save(folder)
                saved = clock()
            if self.progress:
                accuracy = record.history[-1]["accuracy"] if record.history else float("nan")
                self.progress(record.seed, server.version, accuracy)
        record.stopped = stop
        one.save(folder)
        if interrupted() and not last:
            raise interrupted.stop(f"stopped after the last round of seed {record.seed}")

    def _stop(self, one: Seed) -> str:
        """Why the run ends here; "" while it goes on."""
        s = self.settings
        server = one.session.server
        history = one.record.history
        if server.version >= s.rounds:
            return "rounds"
        if s.bytes and server.ledger.bytes + server.round_bytes() > s.bytes:
            return "bytes"
        if s.target_accuracy and history and history[-1]["accuracy"] >= s.target_accuracy:
            return "target"
        return ""

    def _finish(self, one: Seed) -> None:
        """The final figures of a seed."""
        session = one.session
        people = session.people
        engine = session.engine
        record = one.record
        parts = {"honest": engine.evaluate(people.evaluated, SPLITS)}
        record.final = {split: summarise(scores) for split, scores in parts["honest"].items()}
        one.note_collapse(record.final["test"])
        ledger = session.server.ledger
        training = ledger.counts["gradients"][people.evaluated]
        spent = training + parts["honest"]["test"].gradients
        record.gradients_per_client = float(spent.double().mean())
        if len(people.malicious):
            parts["malicious"] = engine.evaluate(people.malicious, SPLITS)
            record.malicious = summarise(parts["malicious"]["test"])
        shared = engine.evaluate_shared(("test",))
        if shared:
            record.shared_model = summarise(shared["test"].only(people.evaluated))
        if len(people.held_out):
            session.personalise_held_out(self.settings.held_out_rounds)
            parts["held_out"] = engine.evaluate(people.held_out, SPLITS)
            record.held_out = summarise(parts["held_out"]["test"])
        record.rounds = session.server.version
        record.sent = {n: ledger.total(n) for n in SENT}
        record.rejected = ledger.refused
        record.missing = dict(ledger.missing)
        record.clients = client_rows(session, list(parts.values()))
        if record.history:
            record.by_client = one.journal.by_client()
