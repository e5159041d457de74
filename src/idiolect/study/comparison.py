"""Results side by side: what `compare` returns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.documents import plain
from ..core.files import private_folder, resume_command, write_json
from ..core.knobs import SettingError
from ..core.text import shown, warn
from ..report.plots import write_curves
from ..report.tables import read_also, render, results_table
from ..report.targets import Curve, Goals, curve, point
from ..run.directory import on_disk
from ..run.result import Result, frame
from .collaboration import collaboration_fairness
from .manifest import COMPARE, PIPELINE

if TYPE_CHECKING:
    import pandas

LONG = 400  # characters of the reason why a row is left out


class Comparison:
    """Results side by side. Prints, saves and converts as a single result does."""

    def __init__(
        self,
        results: list[Result],
        labels: list[str],
        goals: Goals | None = None,
        majority: dict[str, Any] | None = None,
        title: str = "",
        skipped: dict[str, str] | None = None,
        note: str = "",
    ):
        self.results = results
        self.labels = labels
        self.goals = goals or Goals()
        self.majority = majority  # the trivial baseline; None where there is none
        self.title = title
        self.skipped = skipped or {}  # label of a row that could not be run -> why
        self.note = note  # how the loss was chosen, where it was not given

    @property
    def curves(self) -> list[Curve]:
        """The evaluated rounds of every row, against what was sent."""
        pairs = zip(self.labels, self.results, strict=True)
        return [curve(label, r.record.timed_rounds()) for label, r in pairs]

    def rows(self) -> list[dict[str, Any]]:
        """A summary per method, with what it made of the goals and its collaboration fairness."""
        fairness = collaboration_fairness([r.record for r in self.results], self.labels)
        return [
            result.summary()
            | {"label": label, "collaboration_fairness": fair}
            | self.goals.reached(self._points(label, result))
            for label, result, fair in zip(self.labels, self.results, fairness, strict=True)
        ]

    def _points(self, label: str, result: Result) -> Curve:
        """The evaluated rounds with the figure that the goals are about."""
        metric = self.goals.metric
        return [point(label, row) | {metric: row[metric]} for row in result.rounds_table()]

    def summary(self) -> list[dict[str, Any]]:
        """What `--json` prints: the majority class, then the methods."""
        rows = self.rows()
        if self.majority is None:
            return plain(rows)
        goal_keys = {k: None for k in rows[0] if k.startswith(("at_budget", "to_target"))}
        return plain([self.majority | goal_keys, *rows])

    def rounds_table(self) -> list[dict[str, Any]]:
        """One row per method, seed and evaluated round."""
        return self._labelled([r.rounds_table() for r in self.results])

    def clients_table(self) -> list[dict[str, Any]]:
        """One row per method, seed and client."""
        return self._labelled([r.clients_table() for r in self.results])

    def _labelled(self, tables: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        pairs = zip(self.labels, tables, strict=True)
        return [{"method": label, **row} for label, table in pairs for row in table]

    def to_pandas(self, table: str = "rounds") -> pandas.DataFrame:
        """A data frame of "rounds" or "clients", with a column for the method."""
        return frame(table, {"rounds": self.rounds_table, "clients": self.clients_table})

    def save(self, directory: str | Path) -> Path:
        """Every result in its own folder, and the comparison."""
        path = Path(directory)
        refuse_taken(path)
        private_folder(path)
        folders = []
        for number, result in enumerate(self.results):
            folders.append(f"{number}-{result.method.replace(':', '.')}")
            result.save(path / folders[-1])
        self.write(path, {"folders": folders})
        return path

    def write(self, path: Path, saved: dict[str, Any]) -> None:
        """compare.json and the curves, next to the folders of the results."""
        content = {
            **saved,
            "labels": self.labels,
            "goals": self.goals.as_dict(),
            "majority": self.majority,
            "title": self.title,
        }
        if self.skipped:
            content["skipped"] = self.skipped
        if self.note:
            content["note"] = self.note
        with on_disk(COMPARE):
            write_json(path / COMPARE, plain(content))
        try:
            write_curves(self.curves, self.goals, path)
        except OSError as error:  # the runs are worth more than their picture
            warn(f"the curves could not be written ({error.strerror})")

    def table(self, width: int = 140, also: str | Sequence[str] = ()) -> Any:
        """The table that the command line shows.

        `also`: columns on request, "best-after-20" and "collaboration".
        """
        from rich.text import Text

        rows = self.summary()
        table = results_table(rows, self.title or None, width, self.goals, read_also(also))
        lines = [f"{label} is left out: {reason}" for label, reason in self.skipped.items()]
        lines += [self.note] if self.note else []
        if isinstance(table.caption, Text):
            for line in lines:
                table.caption.append("\n" + shown(line, LONG))
        return table

    def __str__(self) -> str:
        return render(self.table())

    def __repr__(self) -> str:
        return f"Comparison({shown(', '.join(self.labels), 200)})"


def refuse_taken(path: Path) -> None:
    """Refuse a directory that holds a run, a comparison or a pipeline."""
    if any((path / name).exists() for name in (COMPARE, PIPELINE, "settings.json")):
        raise SettingError(
            f"directory: {path} already holds a run; choose another, or: {resume_command(path)}"
        )
