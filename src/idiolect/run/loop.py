"""One seed of a run under way: evaluated, saved between rounds, restored from a checkpoint."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..core.files import check_object
from ..core.knobs import SettingError
from ..core.text import warn
from ..data.federation import SPLITS, Federation
from ..host.baselines import per_client
from ..host.lazy_federation import whole
from ..host.metrics import Metric, described, direction, in_use
from ..host.scores import COLLAPSE_LOSS, ENDS, Scores, summarise
from ..method import Method
from ..methods import batchnorm, label_of, name_of
from ..methods.reductions import equal_to
from ..report.format import Figure
from ..report.progress import RoundReport
from ..task.task import Task
from . import checkpoint
from .callbacks import Callbacks, Moment
from .directory import (
    RunDirectory,
    checkpoint_folder,
    differences,
    environment,
    on_disk,
    read_starts,
)
from .early_stopping import best_row, columns, splits, waited
from .identity import check_same, read_identity, run_number, with_rounds
from .interrupts import Interruption, finish_on_interrupt
from .record import Record, SeedRecord
from .restore import bound_of, refusing, restore
from .result import Result
from .round_log import Journal
from .session import HostPlacement, People, Session, Start, host_folder
from .settings import Settings
from .validate import numbers_fit, timing
from .worker_hosts import WorkerHosts

BY_CALLBACK = "callback"  # why a seed stopped that a callback ended
SENT = ("bytes_up", "bytes_down", "values_up", "values_down")


@dataclass
class Seed:
    """One seed under way: what is at work, and what it leaves behind."""

    session: Session
    record: SeedRecord
    identity: dict[str, Any]  # of the run
    journal: Journal
    settings: Settings
    on_disk: bool = False  # whether the last checkpoint was written

    def evaluate(self) -> None:
        """Test figures of this round."""
        clients = self.session.people.evaluated
        by_split = self.session.engine.evaluate(clients, splits(self.settings))
        scores = by_split["test"]
        ledger = self.session.server.ledger
        figures: dict[str, float] = {"round": self.session.rounds, **summarise(scores)}
        figures |= {n: ledger.total(n) for n in SENT}
        gradients = ledger.counts["gradients"][clients]
        figures["gradients_per_client"] = float(gradients.double().mean())
        figures |= self.session.engine.figures()
        more = {split: summarise(by_split[split]) for split in splits(self.settings)[1:]}
        for name in columns(self.settings):
            split, _, figure = name.partition("_")
            figures[name] = more[split][figure]
        self.record.history.append(figures)
        accuracy = torch.full((len(self.session.server.roster),), torch.nan)
        accuracy[scores.wire_ids] = scores.of_clients()[0].float()
        self.journal.evaluated(figures, accuracy.numpy())
        self.note_collapse(figures)

    def figure(self, settings: Settings) -> Figure:
        """The chosen figure of the last evaluated round; NaN before the first."""
        name = settings.metric or ("accuracy" if self.session.classes else "loss")
        history = self.record.history
        return Figure(history[-1][name] if history else math.nan, name)

    def reached(self, settings: Settings) -> bool:
        """Whether the chosen figure is as good as the target."""
        if settings.target_value is None:
            return False
        figure = self.figure(settings)
        higher = direction(figure.name, self.session.metrics)
        return figure >= settings.target_value if higher else figure <= settings.target_value

    def note_collapse(self, figures: dict[str, float]) -> None:
        """Record the round in which the models became useless."""
        loss = figures["loss"]
        untested = math.isnan(loss) and not self.session.tested
        if untested or loss <= COLLAPSE_LOSS:
            self.record.collapsed = 0
        elif not self.record.collapsed:
            self.record.collapsed = int(figures.get("round", self.session.rounds)) or 1

    def is_best(self) -> bool:
        """Whether the round that was just evaluated is the best so far on validation data."""
        history = self.record.history
        return best_row(history, self.settings) == len(history) - 1

    def keep_best(self, folder: Path) -> None:
        """The models as they are now, in a folder for the best round."""
        states, facts = self.session.saved()
        parts = {host_folder(i): host.save for i, host in enumerate(self.session.hosts)}
        version = self.session.rounds
        with on_disk(f"the checkpoint of the best round, {version},"):
            bound = bound_of(self.identity, self.session)
            checkpoint.save(folder, bound, version, states, facts, parts)

    def save(self, folder: RunDirectory | None, stopped: str = "") -> Path | None:
        """A checkpoint: the server's side, and every host by itself; where it was written.

        `stopped` is a stop that the figures do not tell: a callback's.
        """
        if folder is None:
            return None
        states, facts = self.session.saved()
        facts |= {
            "history": self.record.history,
            "seconds": self.record.seconds,
            "times": self.record.times,
        }
        if stopped == BY_CALLBACK:
            facts["stopped"] = stopped
        parts = {host_folder(i): host.save for i, host in enumerate(self.session.hosts)}
        version = self.session.rounds
        self.on_disk = False
        path = folder.checkpoints(self.record.seed)
        with on_disk(f"the checkpoint of round {version}"):
            facts["journal"] = self.journal.save()
            bound = bound_of(self.identity, self.session)
            final = checkpoint.save(path, bound, version, states, facts, parts)
            self.on_disk = True
        return final if self.on_disk else None

    def restore(self, path: Path, longer: bool) -> None:
        """Back to the newest sound checkpoint; `longer`: the run has more rounds than before."""
        s = self.settings
        newest = restore(self.session, path, self.identity, s, warn)
        with refusing(newest):
            metrics = [f"{m.name}{end}" for m in self.session.metrics for end in ENDS]
            more = [*metrics, *columns(s), *self.session.engine.figures()]
            self.record.history = checked_history(newest.facts, newest.round, more)
            self.journal.load(newest.facts["journal"], len(self.record.history))
            if longer and self.session.held_out_personalised:
                raise ValueError(
                    "its held-out clients were personalised at the end of the shorter run, and "
                    "cannot be again; start a new run with more rounds"
                )
        if longer:
            self._forget_last_round()
        else:
            self.record.stopped = newest.facts.get("stopped", "")
        for figures in self.record.history:
            self.note_collapse(figures)
        self.record.seconds = newest.facts["seconds"]
        self.record.times = newest.facts.get("times", [])[: len(self.record.history)]

    def _forget_last_round(self) -> None:
        """A last round that was evaluated only because it was the last is one among others now."""
        history = self.record.history
        every = self.settings.eval_every
        version = self.session.rounds
        if every and history and version % every and history[-1]["round"] == version:
            history.pop()
            self.journal.forget_last()


def checked_history(
    facts: dict[str, Any], rounds: int, more: Sequence[str] = ()
) -> list[dict[str, float]]:
    """The figures of every evaluated round in a checkpoint; ValueError where they cannot be.

    `more`: columns that not every run has.
    """
    kinds = {"server": dict, "history": list, "seconds": float, "journal": dict, "stopped": str}
    optional = {"times": list[float], "engine": dict}
    check_object(facts, {**kinds, **optional}, {"stopped", *optional})
    if facts.get("stopped", BY_CALLBACK) != BY_CALLBACK:
        raise ValueError(f"stopped: {BY_CALLBACK!r} is expected")
    if not 0 <= facts["seconds"] < math.inf:
        raise ValueError("seconds: a number >= 0 is expected")
    no_clients = Scores(*(torch.zeros(0),) * 5)
    names = {"round", *summarise(no_clients), *SENT, "gradients_per_client", *more}
    last = 0
    for figures in facts["history"]:
        check_object(figures, dict.fromkeys(names, float))
        if type(figures["round"]) is not int or not last < figures["round"] <= rounds:
            raise ValueError("history: rounds are whole numbers in their order")
        last = figures["round"]
    return facts["history"]


def client_rows(session: Session, parts: list[dict[str, Scores]]) -> list[dict[str, Any]]:
    """A row per client.

    Its samples, accuracy, loss and metrics on every split, and what it sent and spent.
    """
    columns: dict[str, list] = {}
    for split in SPLITS:
        scores = Scores.merge([part[split] for part in parts])
        accuracy, loss = scores.of_clients()
        columns[f"{split}_samples"] = scores.samples.tolist()
        columns[f"{split}_accuracy"] = accuracy.tolist()
        columns[f"{split}_loss"] = loss.tolist()
        for name, measured in scores.metrics.items():
            columns[f"{split}_{name}"] = measured.each().tolist()
    columns |= {n: t.tolist() for n, t in session.server.ledger.counts.items()}
    held_out = torch.zeros(len(session.server.roster), dtype=torch.bool)
    held_out[session.people.held_out] = True
    malicious = torch.zeros_like(held_out)
    malicious[session.people.malicious] = True
    columns = {
        "client": session.server.roster.ids,
        "held_out": held_out.tolist(),
        "malicious": malicious.tolist(),
        **columns,
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


clock = time.monotonic  # seconds


@dataclass
class Runner:
    """Everything that a run's seeds have in common."""

    method: Method
    task: Task
    federation: Federation
    settings: Settings
    identity: dict[str, Any]
    start: dict[int, Start]
    callbacks: Callbacks
    note: str = ""  # how the loss was chosen, where it was not given
    progress: RoundReport | None = None
    starts: list[dict[str, Any]] = field(default_factory=list)  # the environment of each start
    longer: bool = False  # a resumed run that has more rounds than before
    best_in: Path | None = None  # where checkpoints of best rounds lie, as in a run directory
    placement: HostPlacement | None = None  # the sites that have the data, where they are not here

    def continued(
        self, folder: RunDirectory, force: Callable[[str], None] | None
    ) -> dict[str, Any]:
        """What the directory says of the run, if this one continues it; with its rounds of now."""
        saved = read_identity(folder.path)
        check_same(saved, self.identity, folder.path, force)
        self.starts = read_starts(folder.path)
        before, now = saved["run"].get("rounds"), self.settings.rounds
        if before == now:
            return saved
        s = self.settings
        for seed in range(s.seed, s.seed + s.seeds):
            rounds_done = checkpoint.rounds_done(folder.checkpoints(seed))
            if rounds_done > now:
                raise SettingError(
                    f"rounds: {now} is not accepted; {folder.path} has done {rounds_done} "
                    f"(seed {seed}); a whole number >= {rounds_done}"
                )
        self.longer = not isinstance(before, int) or now > before
        return with_rounds(saved, now)

    def begin(self, folder: RunDirectory, identity: dict[str, Any]) -> None:
        """Write what the run is and where it is at work, or say what is other than before."""
        now = self._environment()
        for difference in differences(self.starts, now):
            warn(difference)
        for name in ("chunk", "memory") if self.starts else ():
            before, value = identity["run"].get(name), getattr(self.settings, name)
            if before != value:
                warn(
                    f"{name}: resumed with {value} (was {str(before)[:80]}): "
                    "sums may be formed in other groups and differ in the last bits"
                )
        self.starts.append(now)
        begun = bool(self.starts[1:])
        changed = begun and self.starts[-2].get("rounds") != now["rounds"]
        self.identity = identity
        try:
            if self.longer:  # the record of the shorter run, whose models are about to go
                folder.remove("record.json", "record.safetensors", "result.json")
            folder.write_json("environment.json", self.starts)
            if not begun or changed:
                folder.write_json("settings.json", identity)
        except OSError as error:
            raise SettingError(
                f"directory: cannot write to {folder.path}: {error.strerror}"
            ) from None

    def _environment(self) -> dict[str, Any]:
        """What there is to say of this start."""
        rounds = self.settings.rounds
        return environment() | {"code": self.identity["code"], "from": {}, "rounds": rounds}

    def run(self, folder: RunDirectory | None, resume: bool) -> Result:
        """All seeds, one after the other."""
        if not self.starts:
            self.starts.append(self._environment())
        record = self._blank_record()
        if folder is None and self.settings.keep_best:
            # a result without a directory keeps its best models in a folder that ends with it
            scratch = tempfile.TemporaryDirectory(prefix="idiolect-best-")
            self.best_in, keeper = Path(scratch.name), scratch
        else:
            self.best_in, keeper = folder.path if folder else None, None
        result = Result(record, self._source(folder), self.identity, self.federation, keeper)
        s = self.settings
        with finish_on_interrupt("finishing this round, then saving") as interrupted:
            for seed in range(s.seed, s.seed + s.seeds):
                session = self.session(seed, folder)
                journal = Journal(folder, seed, len(session.server.roster))
                one = Seed(session, SeedRecord(seed), self.identity, journal, s)
                record.seeds.append(one.record)
                if resume and folder:
                    self._restore(one, folder)
                journal.begin(record.rounds_table())
                last = seed + 1 == s.seed + s.seeds
                try:
                    self._train(one, folder, interrupted, last)
                    self._finish(one)
                    session.leave(keep=not one.on_disk)
                finally:
                    session.close()
                record.kernel = one.session.contract.task.kernel
                one.session.release()
                journal.close()
                if not one.on_disk:
                    result.keep(seed, one.session)
                if folder is not None:
                    with on_disk("the result"):
                        result.write(folder)
                self._call(one, "end")
        return result

    def _blank_record(self) -> Record:
        method = self.method
        s = self.settings
        eligible = len(People.of(self.federation, s, s.seed).eligible)
        clients_heard = s.sampled(eligible, method.traits.hears_all)
        bound = self.task.under(s.numerics(s.seed))
        notes = method.report(bound, eligible, clients_heard)
        if words := equal_to(method, bound):
            notes["equal_to"] = {"warning": f"{label_of(method)}: {words}"}
        if bound.statistics is not None:
            notes["statistics"] = batchnorm.described(method, bound, s.statistics)
        used = in_use(s.metrics, s.metric, self.federation.classes, self.task.criterion.name)
        figure = s.metric or ("accuracy" if self.federation.classes else "loss")
        if s.asynchronous or s.delays is not None:
            notes["timing"] = timing(method, s, eligible, clients_heard)
        for note in notes.values():
            if note.get("warning"):
                warn(note["warning"])
        if self.note:
            notes["chosen"] = {"loss": self.note}
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
            heard={"clients": clients_heard, "of": eligible},
            metrics=described(used),
            baseline=self._baseline(used, figure),
        )

    def _baseline(self, used: Sequence[Metric], figure: str) -> list[float]:
        """What each client's own constant answer reaches; [] where its data are not here."""
        if self.placement is not None:
            return []
        return per_client(self.federation, self.task.criterion, used, figure)

    def session(self, seed: int, folder: RunDirectory | None, here: bool = False) -> Session:
        """A seed's moving parts, as they are before the first round; `here`: in this process."""
        return Session(
            self.method,
            self.task,
            whole(self.federation) if here else self.federation,
            self.settings,
            seed,
            run_number(self.identity, seed),
            folder.path if folder else None,
            self.start.get(seed),
            placement=self.placement or (None if here else self._placement(seed, folder)),
        )

    def _placement(self, seed: int, folder: RunDirectory | None) -> HostPlacement | None:
        """How hosts are made in other processes, where the engine has them there."""
        if not self.settings.carrier.remote:
            return None
        return WorkerHosts(
            self.settings, self.identity["origin"], seed, folder.path if folder else None
        )

    def _source(self, folder: RunDirectory | None) -> Callable[[int, bool], Session] | None:
        """How a finished seed's models are found again: from its checkpoint."""
        path = self.best_in
        if path is None:
            return None

        def load(seed: int, best: bool) -> Session:
            session = self.session(seed, None, here=True)
            place = checkpoint_folder(path, seed, best)
            restore(session, place, self.identity, self.settings, warn)
            session.personalise_held_out(self.settings.held_out_rounds)
            return session

        return load

    # -- one seed --------------------------------------------------------------------------------
    def _restore(self, one: Seed, folder: RunDirectory) -> None:
        """Back to where the seed was when the run stopped."""
        path = folder.checkpoints(one.record.seed)
        checkpoint.recover(path)
        checkpoint.recover(folder.checkpoints(one.record.seed, best=True))
        if checkpoint.found(path):
            one.restore(path, self.longer)
        self.starts[-1]["from"][str(one.record.seed)] = one.session.rounds
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
        session = one.session
        server = session.server
        record = one.record
        began = clock() - record.seconds
        saved = clock()
        while not (stop := self._stop(one)):
            if interrupted():
                record.seconds = clock() - began
                one.save(folder)
                raise interrupted.stop(
                    f"stopped after round {session.rounds} of {s.rounds} (seed {record.seed})"
                )
            with numbers_fit(s.dtype):
                session.engine.advance(s.schedule.factors(session.rounds, s.rounds))
            one.journal.grow(len(server.roster))
            evaluated = bool(s.eval_every) and (
                session.rounds % s.eval_every == 0 or session.rounds == s.rounds
            )
            if evaluated:
                one.evaluate()
                record.times.append(clock() - began)
            one.journal.round_done(server, session.rounds, session.engine.delays_of_round)
            record.seconds = clock() - began
            if evaluated and s.keep_best and self.best_in is not None and one.is_best():
                one.keep_best(checkpoint_folder(self.best_in, record.seed, best=True))
            with self._saved_on_error(one, folder):
                if evaluated:
                    self._call(one, "evaluate")
                self._call(one, "round")
                by_rounds = s.checkpoint_every and session.rounds % s.checkpoint_every == 0
                by_time = s.checkpoint_minutes and clock() - saved >= 60 * s.checkpoint_minutes
                if by_rounds or by_time:
                    self._checkpoint(one, folder)
                    saved = clock()
            if self.progress:
                self.progress(record.seed, session.rounds, one.figure(s))
        record.stopped = stop
        self._checkpoint(one, folder)
        if interrupted() and not last:
            raise interrupted.stop(f"stopped after the last round of seed {record.seed}")

    def _checkpoint(self, one: Seed, folder: RunDirectory | None) -> None:
        """Save, and call the user's function."""
        path = one.save(folder, one.record.stopped)
        if path is not None:
            self._call(one, "checkpoint", path)

    @contextmanager
    def _saved_on_error(self, one: Seed, folder: RunDirectory | None) -> Iterator[None]:
        """What a callback raises ends the run, with a checkpoint of the round that is done."""
        try:
            yield
        except Exception as error:
            if folder is not None:
                one.save(folder, one.record.stopped)
                error.add_note(
                    f"idiolect: the run in {folder.path} stands at round "
                    f"{one.session.rounds} of seed {one.record.seed}; "
                    "resume=True continues it"
                )
            raise

    def _call(self, one: Seed, event: str, path: Path | None = None) -> None:
        """The user's function for an event, if there is one."""
        function = self.callbacks.find(event)
        if function is None:
            return
        record = one.record
        server = one.session.server
        entry = server.ledger.last
        entry_fields = vars(entry) if entry is not None else {}
        moment = Moment(
            event,
            label_of(self.method),
            record.seed,
            one.session.rounds,
            self.settings.rounds,
            record.seconds,
            dict(record.history[-1]) if record.history else {},
            record.history,
            {
                **entry_fields,
                "round": one.session.rounds,
                **{n: server.ledger.total(n) for n in SENT},
            },
            self.settings,
            record.final,
            record.clients,
            one.session.engine.delays_of_round,
            path,
            _state=lambda: server.step.method_state(server.state),
        )
        function(moment)
        if moment.stopped and event in ("round", "evaluate", "checkpoint"):
            record.stopped = BY_CALLBACK

    def _stop(self, one: Seed) -> str:
        """Why the run ends here; "" while it continues."""
        s = self.settings
        server = one.session.server
        history = one.record.history
        if one.session.rounds >= s.rounds:
            return "rounds"
        if one.record.stopped == BY_CALLBACK:
            return BY_CALLBACK
        if s.bytes and server.ledger.bytes + one.session.engine.round_bytes() > s.bytes:
            return "bytes"
        if one.reached(s):
            return "target"
        if s.patience and waited(history, s) >= s.patience:
            return "patience"
        return ""

    def _finish(self, one: Seed) -> None:
        """The final figures of a seed."""
        session = one.session
        people = session.people
        engine = session.engine
        record = one.record
        engine.check_complete()
        parts = {"honest": engine.evaluate(people.evaluated, SPLITS)}
        record.final = {split: summarise(scores) for split, scores in parts["honest"].items()}
        one.note_collapse(record.final["test"])
        ledger = session.server.ledger
        training = ledger.counts["gradients"][people.evaluated]
        gradients = training + parts["honest"]["test"].gradients
        record.gradients_per_client = float(gradients.double().mean())
        if len(people.malicious):
            parts["malicious"] = engine.evaluate(people.malicious, SPLITS)
            record.malicious = summarise(parts["malicious"]["test"])
        shared = engine.evaluate_shared(("test",), people.evaluated)
        if shared:
            record.shared_model = summarise(shared["test"])
        if len(people.held_out):
            session.personalise_held_out(self.settings.held_out_rounds)
            parts["held_out"] = engine.evaluate(people.held_out, SPLITS)
            record.held_out = summarise(parts["held_out"]["test"])
        record.rounds = session.rounds
        record.sent = {n: ledger.total(n) for n in SENT}
        record.counted = {n: ledger.total(n) for n in ledger.more}
        record.rejected = ledger.refused
        record.missing = dict(ledger.missing)
        record.clients = client_rows(session, list(parts.values()))
        if record.history:
            record.by_client = one.journal.by_client()
        if self.settings.validates and record.history:
            row = best_row(record.history, self.settings)
            record.best = dict(record.history[row]) if row >= 0 else {}
