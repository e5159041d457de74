"""The results of a sweep: a line per run, a row per setting."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.files import resume_command, write_atomic, write_csv
from ..core.knobs import SettingError
from ..report.tables import results_table
from ..run.summary import Summary, merge
from .many import records

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from .sweep import Setting, Trial

K = TypeVar("K")
RUNS = "runs.jsonl"
SWEEP = "sweep.json"
TABLE = "table.csv"
PARQUET = "table.parquet"
FIGURES = ("mean", "variance", "worst10", "mean_of_clients")


@dataclass
class Sweep:
    """A finished sweep, or what there is of one."""

    summaries: dict[Trial, dict[str, Any]]  # of every run, in the order of the grid
    failed: dict[Trial, str] = field(default_factory=dict)  # why
    title: str = ""

    @property
    def settings(self) -> list[Setting]:
        """All settings that have a result, in the order of the grid."""
        return list(self._by_setting())

    def rows(self) -> list[dict[str, Any]]:
        """A line per run, in the order of the grid. Times are left out: they differ each time."""
        names = list(dict.fromkeys(n for t in self.summaries for n in t.setting.varied))
        rows = []
        for trial, summary in self.summaries.items():
            row: dict[str, Any] = {"method": trial.setting.name}
            row |= {name: trial.setting.varied.get(name) for name in names}
            row |= {"seed": trial.seed, **_figures(summary)}
            rows.append(row)
        return rows

    def frame(self) -> pd.DataFrame:
        """`rows` as a table of pandas."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def merged(self) -> list[dict[str, Any]]:
        """A summary per setting: means over its seeds, with the interval."""
        return [
            mean_over_seeds(setting.label, summaries)
            for setting, summaries in self._by_setting().items()
        ]

    def best(self, measure: str = "accuracy", split: str = "valid") -> Setting:
        """The setting with the highest mean (for a loss: the lowest) on validation data."""
        return best(self._by_setting(), measure, split)

    def table(self, width: int = 80) -> Table:
        """A row per setting, as wide as the terminal has room for."""
        return results_table(self.merged(), self.title or None, width)

    def write(self, directory: Path) -> list[Path]:
        """table.csv, and table.parquet where pyarrow is installed."""
        rows = self.rows()
        write_csv(
            directory / TABLE, rows, list(dict.fromkeys(name for row in rows for name in row))
        )
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            return [directory / TABLE]
        content = io.BytesIO()
        self.frame().to_parquet(content)
        write_atomic(directory / PARQUET, content.getvalue())
        return [directory / TABLE, directory / PARQUET]

    def _by_setting(self) -> dict[Setting, list[dict[str, Any]]]:
        groups: dict[Setting, list[dict[str, Any]]] = {}
        for trial, summary in self.summaries.items():
            groups.setdefault(trial.setting, []).append(summary)
        return groups


def best(
    summaries: Mapping[K, Sequence[Mapping[str, Any]]],
    measure: str = "accuracy",
    split: str = "valid",
) -> K:
    """Of several settings with the summaries of their seeds, the one with the best mean.

    That is the highest, for a loss the lowest; of equal ones the first.

    >>> summary = lambda mean: {"valid": {"accuracy": {"mean": mean}}}
    >>> best({"lr=0.1": [summary(0.7), summary(0.8)], "lr=9": [summary(0.9), summary(None)]})
    'lr=0.1'
    """
    sign = -1 if measure == "loss" else 1

    def mean(key: K) -> float:
        figures = [s[split][measure]["mean"] for s in summaries[key]]
        return sign * sum(figures) / len(figures) if None not in figures else float("-inf")

    return max(summaries, key=mean)


def _figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a line of the table says of a run."""
    names = ("accuracy", "loss", *summary.get("metrics", {}))
    tested = {"accuracy": summary["accuracy"], "loss": summary["loss"]}
    tested |= summary.get("metrics", {})
    row: dict[str, Any] = {"rounds": summary["rounds"]}
    for name in names:
        row |= {
            name if part == "mean" else f"{name}_{part}": tested[name][part] for part in FIGURES
        }
    for name in names:
        row[f"valid_{name}"] = summary["valid"][name]["mean"]
    if "global_model" in summary:
        row["global_accuracy"] = summary["global_model"]["accuracy"]["mean"]
    row |= {f"bytes_{way}": total for way, total in summary["bytes"].items()}
    row |= {name: summary[name] for name in ("gradients_per_client", "rejected", "missing")}
    row |= {"stopped": summary["stopped"][0], "collapsed": summary["collapsed"][0]}
    return row


def mean_over_seeds(label: str, summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One summary of runs that differ in their seeds alone, from the summaries of single seeds."""
    return merge([Summary.from_dict(summary) for summary in summaries], label).as_dict()


def read_sweep(directory: Path) -> list[dict[str, Any]]:
    """A summary per setting, means over the seeds that are done, in the order of their ends."""
    by_setting: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in records(directory / RUNS):
        digest, _, *extras = record["key"].split("-")
        label = str(record["job"]).rpartition(" seed=")[0]
        by_setting.setdefault((label, digest, *extras), []).append(record["result"])
    if not by_setting:
        raise SettingError(
            f"directory: no run of the sweep in {directory} has finished yet; "
            f"resume it: {resume_command(directory)}"
        )
    try:
        return [mean_over_seeds(label, summaries) for (label, *_), summaries in by_setting.items()]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise SettingError(
            f"directory: cannot use {directory / RUNS}: a run in it has no {error}"
        ) from None
