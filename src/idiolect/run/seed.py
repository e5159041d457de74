"""One seed of a run under way: evaluated, saved between rounds, restored from a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.collapse import COLLAPSE_LOSS
from ..core.files import check_object
from ..data.federation import SPLITS
from ..host.metrics import direction
from ..host.scores import ENDS, Scores, summarise
from ..report.figures import Figure
from . import checkpoint
from .best import best_row, columns, splits
from .check import warn
from .directory import RunDirectory
from .journal import Journal
from .on_disk import on_disk
from .record import SeedRecord
from .restore import bound_of, refusing, restore
from .session import Session, host_folder
from .settings import Settings

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
        found = self.session.engine.evaluate(clients, splits(self.settings))
        scores = found["test"]
        ledger = self.session.server.ledger
        figures: dict[str, float] = {"round": self.session.rounds, **summarise(scores)}
        figures |= {n: ledger.total(n) for n in SENT}
        spent = ledger.counts["gradients"][clients]
        figures["gradients_per_client"] = float(spent.double().mean())
        figures |= self.session.engine.figures()
        more = {split: summarise(found[split]) for split in splits(self.settings)[1:]}
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
        """Mark the round from which on the models are of no use."""
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
        found = restore(self.session, path, self.identity, s, warn)
        with refusing(found):
            metrics = [f"{m.name}{end}" for m in self.session.metrics for end in ENDS]
            more = [*metrics, *columns(s), *self.session.engine.figures()]
            self.record.history = checked_history(found.facts, found.round, more)
            self.journal.load(found.facts["journal"], len(self.record.history))
            if longer and self.session.held_out_personalised:
                raise ValueError(
                    "its held-out clients were personalised at the end of the shorter run, and "
                    "cannot be again; run it anew with more rounds"
                )
        if longer:
            self._forget_last_round()
        else:
            self.record.stopped = found.facts.get("stopped", "")
        for figures in self.record.history:
            self.note_collapse(figures)
        self.record.seconds = found.facts["seconds"]
        self.record.times = found.facts.get("times", [])[: len(self.record.history)]

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

    `more`: columns beside those that every run has.
    """
    kinds = {"server": dict, "history": list, "seconds": float, "journal": dict, "stopped": str}
    optional = {"times": list[float], "engine": dict}
    check_object(facts, {**kinds, **optional}, {"stopped", *optional})
    if facts.get("stopped", BY_CALLBACK) != BY_CALLBACK:
        raise ValueError(f"stopped: {BY_CALLBACK!r} is expected")
    if not 0 <= facts["seconds"] < math.inf:
        raise ValueError("seconds: a number >= 0 is expected")
    nobody = Scores(*(torch.zeros(0),) * 5)
    names = {"round", *summarise(nobody), *SENT, "gradients_per_client", *more}
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
