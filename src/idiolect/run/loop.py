"""The seeds of a run, one after the other: trained, evaluated, saved between rounds, resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..core.documents import decode, expect_fields
from ..core.files import on_disk, write_document
from ..core.knobs import SettingError
from ..core.scratch import ScratchFolder
from ..core.text import plural, warn
from ..data.federation import SPLITS
from ..host.baselines import per_client, trivial
from ..host.lazy_federation import test_groups, whole
from ..host.metrics import described, direction, in_use
from ..host.scores import COLLAPSE_LOSS, ENDS, Scores, summarise
from ..methods import label_of, name_of
from ..privacy.plan import Mechanism
from ..report.captions import DIVERGED, TO_TRY
from ..report.format import Figure
from ..report.progress import RoundReport
from ..report.subgroups import PERSONAL, SHARED, subgroup_figures
from . import checkpoint
from .callbacks import Callbacks, Moment
from .directory import (
    RunDirectory,
    checkpoint_folder,
    differences,
    environment,
    read_starts,
)
from .divergence import TIMES, GrownLosses, LostRounds
from .history import History
from .identity import RunIdentity, check_same, run_number
from .interrupts import Interruption, finish_on_interrupt
from .prepare import RunParts
from .privacy_log import PrivacyLog
from .record import Record, SeedRecord, client_rows, reliability_rows
from .repeats import Repeats
from .result import Result
from .round_log import Journal
from .sample_weights import effective_columns
from .session import HostPlacement, Session, Start
from .settings import Settings
from .target_units import unit_of_loss
from .worker_hosts import WorkerHosts

BUDGET_SPENT = "epsilon"  # why a seed stopped that has no more privacy to spend
BY_CALLBACK = "callback"  # why a seed stopped that a callback ended
EPSILON = "epsilon"  # what has been spent, in tables: of a round by the client that spent most
SENT = ("bytes_up", "bytes_down", "values_up", "values_down")
clock = time.monotonic  # seconds
T = TypeVar("T")


@dataclass
class Runner:
    """Everything that a run's seeds have in common."""

    repeats: Repeats
    identity: RunIdentity
    start: dict[int, Start]
    callbacks: Callbacks
    note: str = ""  # how the loss was chosen, where it was not given
    progress: RoundReport | None = None
    starts: list[dict[str, Any]] = field(default_factory=list)  # the environment of each start
    longer: bool = False  # a resumed run that has more rounds than before
    best_in: Path | None = None  # where checkpoints of best rounds lie, as in a run directory
    placement: HostPlacement | None = None  # the sites that have the data, where they are not here

    @property
    def parts(self) -> RunParts:
        """What the first repeat is made of."""
        return next(iter(self.repeats.values()))

    @property
    def settings(self) -> Settings:
        return self.parts.settings

    @property
    def seeds(self) -> range:
        return range(self.settings.seed, self.settings.seed + self.settings.seeds)

    def continued(self, folder: RunDirectory, force: Callable[[str], None] | None) -> RunIdentity:
        """The run in the directory, if this one continues it, with the rounds that it has now."""
        saved = RunIdentity.read(folder.path)
        check_same(saved, self.identity, folder.path, force)
        self.starts = read_starts(folder.path)
        before, now = saved.run.get("rounds"), self.settings.rounds
        if before == now:
            return saved
        for seed in self.seeds:
            rounds_done = checkpoint.rounds_done(folder.checkpoints(seed))
            if rounds_done > now:
                raise SettingError(
                    f"rounds must be a whole number >= {rounds_done}, which {folder.path} has done "
                    f"(seed {seed}), got {now}"
                )
        self.longer = not isinstance(before, int) or now > before
        return saved.with_rounds(now)

    def begin(self, folder: RunDirectory, identity: RunIdentity) -> None:
        """Write what the run is and where it runs, or warn of what has changed since."""
        now = self._environment()
        for difference in differences(self.starts, now):
            warn(difference)
        for name in ("chunk", "memory") if self.starts else ():
            before, value = identity.run.get(name), getattr(self.settings, name)
            if before != value:
                warn(
                    f"{name}: resumed with {value} (was {str(before)[:80]}): "
                    "sums may be formed in other groups and differ in the last bits"
                )
        self.starts.append(now)
        begun = bool(self.starts[1:])
        changed = begun and self.starts[-2].get("rounds") != now["rounds"]
        self.identity = identity
        if not begun:  # before settings.json: from then on none of them may be missing
            self._create_privacy_logs(folder)
        try:
            if self.longer:  # the record of the shorter run, whose models are about to go
                for name in ("record.json", "record.safetensors", "result.json"):
                    (folder.path / name).unlink(missing_ok=True)
            write_document(folder.path / "environment.json", {"starts": self.starts})
            if not begun or changed:
                write_document(folder.path / "settings.json", identity.as_dict())
        except OSError as error:
            raise SettingError(
                f"directory: cannot write to {folder.path}: {error.strerror}"
            ) from None

    def _create_privacy_logs(self, folder: RunDirectory) -> None:
        """What each seed begins with, where clients are protected."""
        for seed in self.seeds:
            plan = self.repeats[seed].privacy_plan(seed)
            if plan is not None:
                PrivacyLog.of(folder.path, seed).create(plan.mechanism)

    def _mechanism(self, seed: int, path: Path | None) -> Mechanism | None:
        """The noise that a seed has begun with; None where it is to be chosen, or there is none."""
        if path is None or not self.repeats[seed].protected:
            return None
        log = PrivacyLog.of(path, seed)
        if not log.path.exists() and not (path / "settings.json").exists():
            return None  # a folder of best models, without a run in it
        return _privacy_log(log.mechanism)

    def _environment(self) -> dict[str, Any]:
        """The environment of this start."""
        rounds = self.settings.rounds
        return environment() | {"code": self.identity.code, "from": {}, "rounds": rounds}

    def run(self, folder: RunDirectory | None, resume: bool) -> Result:
        """All seeds, one after the other."""
        if not self.starts:
            self.starts.append(self._environment())
        record = self._blank_record()
        if folder is None and self.settings.keep_best:
            # a result without a directory keeps its best models in a folder that ends with it
            scratch = ScratchFolder()
            self.best_in, keeper = Path(scratch.name), scratch
        else:
            self.best_in, keeper = folder.path if folder else None, None
        source = self._load if self.best_in else None
        result = Result(record, source, self.identity, self.parts.federation, keeper)
        with finish_on_interrupt("finishing this round, then saving") as interrupted:
            for seed in self.seeds:
                session = self.session(seed, folder)
                journal = Journal(folder, seed, len(session.server.roster))
                one = SeedRun(self, session, self._blank_seed(seed), journal, folder)
                record.seeds.append(one.record)
                if resume and folder:
                    one.resume(folder)
                one.log_rounds()
                journal.begin(record.rounds_table())
                try:
                    one.train(interrupted, last=seed == self.seeds[-1])
                    one.finish()
                    session.leave(keep=not one.on_disk)
                finally:
                    session.close()
                kernels = dict.fromkeys(contract.task.kernel for contract in session.contracts)
                record.kernel = ", ".join(kernels)
                session.release()
                journal.close()
                if not one.on_disk:
                    result.keep(seed, session)
                if folder is not None:
                    with on_disk("the result", folder.path / "record.json"):
                        result.write(folder)
                one.call("end")
        return result

    def _blank_record(self) -> Record:
        parts, s = self.parts, self.settings
        method, federation = parts.method, parts.federation
        criterion = parts.first_task.criterion
        used = in_use(s.metrics, s.metric, federation.classes, criterion.name, parts.positive)
        notes = parts.notes()
        for note in notes.values():
            if note.get("warning"):
                warn(note["warning"])
        if self.note:
            notes["chosen"] = {"loss": self.note}
        baseline: list[float] = []  # what each client's own constant answer reaches
        if self.placement is None and s.data_seeds.count < 2:
            figure = s.figure(federation.classes)
            baseline = per_client(federation, criterion, used, figure)
        return Record(
            method=name_of(method),
            label=label_of(method),
            fields=method.as_dict(),
            settings=s.as_dict(),
            data=self.identity.data,
            model=self.identity.model,
            origin=self.identity.origin,
            notes=notes,
            environment=self.starts[-1],
            starts=self.starts,
            heard={"clients": parts.clients_heard, "of": parts.eligible},
            metrics=described(used, federation.classes),
            baseline=baseline,
        )

    def _blank_seed(self, seed: int) -> SeedRecord:
        s = self.settings
        data_seeds = s.data_seeds.values
        return SeedRecord(seed, data_seed=data_seeds[seed - s.seed] if data_seeds else None)

    def session(self, seed: int, folder: RunDirectory | None, here: bool = False) -> Session:
        """A seed's moving parts, as they are before the first round; `here`: in this process."""
        path = folder.path if folder else None
        placement = self.placement
        if placement is None and not here and self.settings.carrier.remote:
            placement = WorkerHosts(self.settings, self.identity.origin, seed, path)
        parts = self.repeats[seed]
        if here:
            parts = replace(parts, federation=whole(parts.federation))
        run = run_number(self.identity.id, seed)
        start = self.start.get(seed)
        mechanism = self._mechanism(seed, path or self.best_in)
        return Session(parts, seed, run, path, start, placement=placement, mechanism=mechanism)

    def _load(self, seed: int, best: bool) -> Session:
        """A finished seed's models, from its checkpoint."""
        assert self.best_in is not None
        session = self.session(seed, None, here=True)
        place = checkpoint_folder(self.best_in, seed, best)
        session.restore(place, self.identity, self.settings, warn)
        session.personalise_held_out(self.settings.held_out_rounds)
        return session


@dataclass(frozen=True)
class CheckpointFacts:
    """What a seed's checkpoint says beside its tensors."""

    server: dict[str, Any]
    history: dict[str, str]  # see `History.packed`
    seconds: float
    journal: dict[str, Any]
    engine: dict[str, Any] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    stopped: str = ""  # where a callback stopped it, which the figures do not show
    lost: LostRounds = LostRounds()
    grown: GrownLosses = GrownLosses()

    @classmethod
    def read(cls, facts: dict[str, Any], rounds: int, columns: Sequence[str]) -> CheckpointFacts:
        """As it was saved after `rounds`; ValueError where it cannot be. `columns`: of history."""
        saved: CheckpointFacts = decode(facts, cls)
        if saved.stopped not in ("", BY_CALLBACK):
            raise ValueError(f"stopped must be {BY_CALLBACK!r}")
        if not 0 <= saved.seconds < math.inf:
            raise ValueError("seconds must be a number >= 0")
        if not 0 <= saved.lost.rounds <= rounds or min(saved.lost.messages, saved.lost.first) < 0:
            raise ValueError("lost must be of rounds that were run")
        if not 0 <= saved.grown.rounds <= rounds or not 0 <= saved.grown.loss < math.inf:
            raise ValueError("grown must be of rounds that were run")
        last = 0
        for figures in History.unpacked(saved.history):
            expect_fields(figures, dict.fromkeys(columns, float), place="history")
            if type(figures["round"]) is not int or not last < figures["round"] <= rounds:
                raise ValueError("history must have rounds that are whole numbers in their order")
            last = figures["round"]
        return saved


@dataclass
class SeedRun:
    """One seed while it runs: its moving parts, and its record."""

    runner: Runner
    session: Session
    record: SeedRecord
    journal: Journal
    folder: RunDirectory | None
    on_disk: bool = False  # whether the last checkpoint was written
    lost: LostRounds = LostRounds()  # rounds in a row without a usable message
    grown: GrownLosses = GrownLosses()  # evaluated rounds in a row whose losses are beyond hope
    history: History = field(default_factory=History)  # the record's, while it grows

    @property
    def settings(self) -> Settings:
        return self.runner.settings

    @property
    def parts(self) -> RunParts:
        """What this repeat is made of."""
        return self.runner.repeats[self.record.seed]

    @cached_property
    def constant_loss(self) -> float:
        """The loss of each client's own constant answer to a regression; NaN where none is known.

        It is what the losses of a regression are measured by, whatever the unit of its targets.
        """
        federation = self.parts.federation
        if federation.classes or self.runner.placement is not None:
            return math.nan
        scores = trivial(federation, self.parts.first_task.criterion)
        return math.nan if scores is None else summarise(scores)["loss"]

    @cached_property
    def collapse_loss(self) -> float:
        """Models with a mean test loss above this have collapsed."""
        parts = self.parts
        unit = unit_of_loss(parts.task.criterion, parts.target_scale)
        constant = 0.0 if math.isnan(self.constant_loss) else self.constant_loss
        return COLLAPSE_LOSS * max(1.0, unit, constant)

    # -- rounds ----------------------------------------------------------------------------------
    def train(self, interrupted: Interruption, last: bool) -> None:
        """Rounds until one of the stops; state is saved between rounds, where it is complete."""
        s = self.settings
        session, server, record = self.session, self.session.server, self.record
        began = clock() - record.seconds
        saved = clock()
        while not (stop := self._stop()):
            if interrupted():
                record.seconds = clock() - began
                self.save()
                raise interrupted.stop(
                    f"stopped after round {session.rounds} of {s.rounds} (seed {record.seed})"
                )
            session.advance()
            self.lost = self.lost.after(server.ledger.last, session.rounds)
            self.journal.grow(len(server.roster))
            evaluated = bool(s.eval_every) and (
                session.rounds % s.eval_every == 0 or session.rounds == s.rounds
            )
            if evaluated:
                self.evaluate()
                record.times.append(clock() - began)
            self.journal.round_done(server, session.rounds, session.engine.delays_of_round)
            record.seconds = clock() - began
            if evaluated and s.keep_best and best_row(self.history, s) == len(self.history) - 1:
                self._keep_best()
            with self._saved_on_error():
                if evaluated:
                    self.call("evaluate")
                self.call("round")
                by_rounds = s.checkpoint_every and session.rounds % s.checkpoint_every == 0
                by_time = s.checkpoint_minutes and clock() - saved >= 60 * s.checkpoint_minutes
                if by_rounds or by_time:
                    self._checkpoint()
                    saved = clock()
            if self.runner.progress:
                self.runner.progress(record.seed, session.rounds, self._figure())
        record.stopped = stop
        if stop == DIVERGED:
            label = label_of(self.parts.method)
            warn(f"{label}, seed {record.seed}: diverged; {self._symptom()}; {TO_TRY}")
        self._checkpoint()
        if interrupted() and not last:
            raise interrupted.stop(f"stopped after the last round of seed {record.seed}")

    def _stop(self) -> str:
        """Why the run ends here; "" while it continues."""
        s = self.settings
        history = self.history
        complete = self.session.rounds >= s.rounds
        if self._diverged(complete):
            return DIVERGED
        if complete:
            return "rounds"
        if self.record.stopped == BY_CALLBACK:
            return BY_CALLBACK
        if not self.session.server.affords_round():
            return BUDGET_SPENT
        traffic = self.session.server.ledger.bytes
        if s.bytes and traffic + self.session.engine.round_bytes() > s.bytes:
            return "bytes"
        if s.target_value is not None:
            figure = self._figure()
            higher = direction(figure.name, self.session.metrics)
            if figure >= s.target_value if higher else figure <= s.target_value:
                return "target"
        if s.patience and history and len(history) - 1 - best_row(history, s) >= s.patience:
            return "patience"
        return ""

    def _diverged(self, done: bool) -> bool:
        """Whether messages are beyond hope; `done`: there are no more rounds. See `divergence`."""
        server = self.session.server
        if server.privacy is not None:  # a stop would tell of figures that have no noise
            return False
        if done and self.lost.rounds and not server.ledger.admitted:
            return True
        if server.privacy is not None:  # when a run stops would depend on figures without noise
            return False
        clients = int(server.roster.eligible.sum())
        return self.settings.attack is None and (self.lost.enough(clients) or self.grown.enough)

    def _symptom(self) -> str:
        """How a run that has diverged shows it."""
        lost, rounds = self.lost, self.session.rounds
        if self.grown.enough:
            return (
                f"from round {self.grown.first} on the loss of most clients was more than "
                f"{TIMES:,.0f} times that of a constant answer, and did not fall"
            )
        return (
            f"from round {lost.first} on the server had to reject every message, "
            f"{lost.messages:,} up to round {rounds}"
        )

    def _figure(self) -> Figure:
        """The chosen figure of the last evaluated round; NaN before the first."""
        name = self.settings.figure(self.session.classes)
        history = self.history
        return Figure(history[-1][name] if history else math.nan, name)

    def evaluate(self) -> None:
        """Figures of this round: of test data, and of others where the settings want them."""
        session, s = self.session, self.settings
        clients = session.people.evaluated
        by_split = session.engine.evaluate(clients, s.evaluated_splits)
        scores = by_split["test"]
        ledger = session.server.ledger
        figures: dict[str, float] = {"round": session.rounds, **summarise(scores)}
        figures |= {n: ledger.total(n) for n in SENT}
        gradients = ledger.counts["gradients"][clients]
        figures["gradients_per_client"] = float(gradients.double().mean())
        figures |= session.engine.figures()
        if session.server.privacy is not None:
            figures[EPSILON] = session.server.privacy.worst_quickly()
        more = {split: summarise(by_split[split]) for split in s.evaluated_splits[1:]}
        for name in s.split_columns:
            split, _, figure = name.partition("_")
            figures[name] = more[split][figure]
        self.history.append(figures)
        accuracy = torch.full((len(session.server.roster),), torch.nan)
        accuracy[scores.wire_ids] = scores.of_clients()[0].float()
        self.journal.evaluated(figures, accuracy.numpy())
        if not session.classes:
            losses = scores.of_clients()[1]
            self.grown = self.grown.after(losses, self.constant_loss, session.rounds)
        self._note_collapse(figures)

    def _note_collapse(self, figures: dict[str, float], tested: bool = False) -> None:
        """Record the round in which the models became useless."""
        loss = figures["loss"]
        untested = math.isnan(loss) and not (tested or self.session.tested)
        if untested or loss <= self.collapse_loss:
            self.record.collapsed = 0
        elif not self.record.collapsed:
            self.record.collapsed = int(figures.get("round", self.session.rounds)) or 1

    def finish(self) -> None:
        """The final figures."""
        session, record = self.session, self.record
        record.history = list(self.history)
        people, engine = session.people, session.engine
        engine.check_complete()
        parts = {"honest": engine.evaluate(people.evaluated, SPLITS)}
        record.final = {split: summarise(scores) for split, scores in parts["honest"].items()}
        self._note_collapse(record.final["test"])
        if not session.tested and parts["honest"]["train"].samples.any():
            self._note_collapse(record.final["train"], tested=True)
        if record.stopped == DIVERGED:
            record.collapsed = record.collapsed or self.lost.first or self.grown.first
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
        record.subgroups = self._by_subgroup(bool(shared))
        if len(people.held_out):
            session.personalise_held_out(self.settings.held_out_rounds)
            parts["held_out"] = engine.evaluate(people.held_out, SPLITS)
            record.held_out = summarise(parts["held_out"]["test"])
        record.rounds = session.rounds
        record.sent = {n: ledger.total(n) for n in SENT}
        record.counted = {n: ledger.total(n) for n in ledger.more}
        record.messages = {"asked": ledger.selected, "counted": ledger.admitted}
        record.rejected = ledger.refused
        record.missing = dict(ledger.missing)
        scores = {split: Scores.merge([part[split] for part in parts.values()]) for split in SPLITS}
        counts = {name: count.tolist() for name, count in ledger.counts.items()}
        if session.server.privacy is not None:
            counts[EPSILON] = session.server.privacy.epsilons().tolist()
        counts |= effective_columns(self.parts.federation)
        if self.parts.groups is not None:
            names = self.parts.groups.names
            models = [names[k] for k in self.parts.group_numbers.tolist()]
            counts = {"model": models, **counts}
        if (groups := test_groups(self.parts.federation)) is not None:
            counts = {"test_groups": groups, **counts}
        everyone = torch.arange(len(session.server.roster))
        record.clients = client_rows(
            session.server.roster.ids,
            scores,
            counts,
            held_out=torch.isin(everyone, people.held_out).tolist(),
            malicious=torch.isin(everyone, people.malicious).tolist(),
        )
        record.reliability = reliability_rows(session.server.roster.ids, scores["test"])
        if record.history:
            record.by_client = self.journal.by_client()
        if session.server.privacy is not None:
            record.privacy = session.server.privacy.figures()
        if self.settings.validates and record.history:
            row = best_row(self.history, self.settings)
            record.best = dict(record.history[row]) if row >= 0 else {}

    def _by_subgroup(self, shared: bool) -> list[dict[str, Any]]:
        """Figures by subgroup on test data: of personal models, and of the shared one."""
        session, federation = self.session, self.parts.federation
        if not federation.subgroups:
            return []
        grouped = test_groups(federation) is not None
        clients = session.people.evaluated
        models = {PERSONAL: False, SHARED: True} if shared else {PERSONAL: False}
        return [
            figure.as_dict()
            for model, is_shared in models.items()
            for figure in subgroup_figures(
                session.engine.evaluate_subgroups(clients, is_shared),
                federation.subgroups,
                session.metrics,
                session.server.roster.ids,
                grouped,
                model,
                federation.weights is not None,
            )
        ]

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self) -> Path | None:
        """A checkpoint; where it was written."""
        self.on_disk = False
        if self.folder is None:
            return None
        history = self.history.packed()
        facts = {**self.record.progress(), "history": history, "lost": asdict(self.lost)}
        if self.grown.rounds:
            facts["grown"] = asdict(self.grown)
        if self.record.stopped == BY_CALLBACK:
            facts["stopped"] = BY_CALLBACK
        place = self.folder.checkpoints(self.record.seed)
        with on_disk(f"the checkpoint of round {self.session.rounds}", place):
            facts["journal"] = self.journal.save()
            path = self.session.save(place, self.runner.identity, facts)
            self.on_disk = True
        return path if self.on_disk else None

    def _checkpoint(self) -> None:
        """Save, and call the user's function."""
        path = self.save()
        if path is not None:
            self.call("checkpoint", path)

    def _keep_best(self) -> None:
        """The models as they are now, in a folder for the best round."""
        assert self.runner.best_in is not None
        place = checkpoint_folder(self.runner.best_in, self.record.seed, best=True)
        with on_disk(f"the checkpoint of the best round, {self.session.rounds},", place):
            self.session.save(place, self.runner.identity)

    @contextmanager
    def _saved_on_error(self) -> Iterator[None]:
        """What a callback raises ends the run, with a checkpoint of the round that is done."""
        try:
            yield
        except Exception as error:
            if self.folder is not None:
                self.save()
                error.add_note(
                    f"idiolect: the run in {self.folder.path} stands at round "
                    f"{self.session.rounds} of seed {self.record.seed}; resume=True continues it"
                )
            raise

    def log_rounds(self) -> None:
        """Privacy that was spent in rounds after the checkpoint counts; later ones are logged."""
        privacy = self.session.server.privacy
        if privacy is None or self.folder is None:
            return
        log = PrivacyLog.of(self.folder.path, self.record.seed)
        killed = _privacy_log(partial(log.after, privacy.begun))
        # sites may have come and gone since
        self.session.server.count_killed(killed, known=self.runner.placement is None)
        privacy.log = log.append
        planned = privacy.plan.exposure.rounds
        if self.runner.longer and privacy.plan.epsilon and not privacy.plan.protection.noise:
            warn(
                f"rounds: the noise was chosen for clients heard {plural(planned, 'time')} at most "
                f"and stays; the run ends before more than epsilon {privacy.plan.epsilon:g} is "
                "spent"
            )

    def resume(self, folder: RunDirectory) -> None:
        """Back to where the seed was when the run stopped."""
        path = folder.checkpoints(self.record.seed)
        checkpoint.recover(path)
        checkpoint.recover(folder.checkpoints(self.record.seed, best=True))
        if checkpoint.newest_first(path):
            self._restore(path)
        starts = self.runner.starts
        starts[-1]["from"][str(self.record.seed)] = self.session.rounds
        file = folder.path / "environment.json"
        with on_disk("the environment", file):
            write_document(file, {"starts": starts})

    def _restore(self, path: Path) -> None:
        """Back to the newest sound checkpoint."""
        s, session, record = self.settings, self.session, self.record
        newest = session.restore(path, self.runner.identity, s, warn)
        longer = self.runner.longer
        with newest.refused_on_error():
            no_clients = Scores(*(torch.zeros(0),) * 5)
            metrics = [f"{m.name}{end}" for m in session.metrics for end in ENDS]
            own = ("round", *summarise(no_clients), *SENT, "gradients_per_client")
            columns = [*own, *metrics, *s.split_columns, *session.engine.figures()]
            columns += [EPSILON] if session.server.privacy is not None else []
            facts = CheckpointFacts.read(newest.facts, newest.round, columns)
            self.history = History.unpacked(facts.history)
            self.journal.load(facts.journal, len(self.history))
            if longer and session.held_out_personalised:
                raise ValueError(
                    "its held-out clients were personalised at the end of the shorter run, and "
                    "cannot be again; start a new run with more rounds"
                )
        last = self.history[-1]["round"] if self.history else 0
        if longer and s.eval_every and last == session.rounds and last % s.eval_every:
            # evaluated only because it was the last round: now it is one among others
            self.history.pop()
            self.journal.forget_last()
        record.history = list(self.history)
        if not longer:
            record.stopped = facts.stopped
        for figures in record.history:
            self._note_collapse(figures)
        self.lost = facts.lost
        self.grown = facts.grown
        record.seconds = facts.seconds
        record.times = facts.times[: len(record.history)]

    # -- callbacks -------------------------------------------------------------------------------
    def call(self, event: str, path: Path | None = None) -> None:
        """The user's function for an event, if there is one."""
        function = self.runner.callbacks.find(event)
        if function is None:
            return
        record, server = self.record, self.session.server
        entry = server.ledger.last
        ledger = {
            **(vars(entry) if entry is not None else {}),
            "round": self.session.rounds,
            **{n: server.ledger.total(n) for n in SENT},
        }
        moment = Moment(
            event,
            label_of(self.parts.method),
            record.seed,
            self.session.rounds,
            self.settings.rounds,
            record.seconds,
            self.history[-1] if self.history else {},
            self.history,
            ledger,
            self.settings,
            record.final,
            record.clients,
            self.session.engine.delays_of_round,
            path,
            _state=lambda: server.step.method_state(server.state),
        )
        function(moment)
        if moment.stopped and event in ("round", "evaluate", "checkpoint"):
            record.stopped = BY_CALLBACK


def _privacy_log(read: Callable[[], T]) -> T:
    """What is read of a log of rounds begun."""
    try:
        return read()
    except ValueError as error:
        raise SettingError(f"directory: {error}") from None


def best_row(history: History, settings: Settings) -> int:
    """The evaluated round with the best validation figure, the first of equals; -1 without one.

    >>> rounds = [{"valid_loss": 0.9}, {"valid_loss": 0.5}, {"valid_loss": 0.5}]
    >>> best_row(History(rounds), Settings())
    1
    """
    sign = -1 if direction(settings.watched, settings.metrics) else 1
    best, at = math.inf, -1
    for number, value in enumerate(history.column(f"valid_{settings.watched}") if history else ()):
        if sign * value < best:
            best, at = sign * value, number
    return at
