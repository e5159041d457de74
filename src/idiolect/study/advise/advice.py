"""What `advise` returns: the choice, the table behind it, who gains and who loses, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.columns import LONGEST, Column, fitted_table
from ...core.documents import plain
from ...core.files import private_folder, write_atomic, write_json
from ...core.knobs import SettingError
from ...core.text import shown
from ...data.read.ids import ClientId
from ...host.baselines import trivial
from ...host.scores import summarise
from ...report.format import count, number, signed, size
from ...report.plots import advice_picture
from ...task.losses import Loss
from ..manifest import refuse_taken
from .client_tests import GAINS, INCONCLUSIVE, LOSES, ClientGain
from .decide import UNDECIDED
from .estimate import Gain
from .heterogeneity import Heterogeneity
from .holdout import GIVEN, Holdout
from .training import STEP, Candidate

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

WIDTH = 80
SHOWN = 5  # clients that are named of those who gain most, and of those who lose most


@dataclass(frozen=True)
class Advice:
    """Advice for a federation. Prints; `choice`, `table`, `gains` and `as_dict()` have the rest."""

    choice: str  # the method to deploy, "local", or "undecided"
    p: float  # p-value of the deciding comparison
    words: list[str]  # what to deploy, what it costs, how sure that is
    notes: list[str]  # assumptions, and limits of what the data can show
    metric: str  # "accuracy" or "loss"
    title: str
    alternative: str = ""  # "fedavg", "local" or "too close to call"; "" without FedAvg
    tie: float = 0.0  # smallest gain worth federating for, in the units of the metric
    table: list[dict[str, Any]] = field(default_factory=list)  # a row per candidate
    clients: list[ClientGain] = field(default_factory=list)  # in the order of the federation
    gains_of: str = ""  # the candidate that they gain or lose by
    heterogeneity: Heterogeneity | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def decided(self) -> bool:
        """Whether the data decide."""
        return self.choice != UNDECIDED

    @property
    def gains(self) -> dict[str, list[ClientId]]:
        """Who gains, who loses, and whose case is inconclusive, by the clients' own ids.

        By the chosen method against learning alone; where the choice is that, or none, by the best
        one that federates.
        """
        names = {"gain": GAINS, "lose": LOSES, "untold": INCONCLUSIVE}
        return {
            key: [c.client for c in self.clients if c.verdict == verdict]
            for key, verdict in names.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data: what `--json` prints."""
        return plain(
            {
                "choice": self.choice,
                "alternative": self.alternative,
                "words": self.words,
                "notes": self.notes,
                "metric": self.metric,
                "tie": self.tie,
                "p": self.p,
                "candidates": self.table,
                "heterogeneity": self.heterogeneity and self.heterogeneity.as_dict(),
                "gains_of": self.gains_of,
                "gains": self.gains,
                "clients": [c.as_dict() for c in self.clients],
                "settings": self.settings,
                "seconds": self.seconds,
            }
        )

    def picture(self, path: str | Path) -> Path:
        """Draw the advice on one page (PNG); needs matplotlib."""
        drawn = advice_picture(self.as_dict(), self.title, Path(path))
        if drawn is None:
            raise SettingError("picture: it needs matplotlib: pip install 'idiolect[plot]'")
        return drawn

    def save(self, directory: str | Path) -> Path:
        """Write advice.json, advice.txt and, with matplotlib, advice.png into a new folder."""
        path = Path(directory)
        refuse_advice(path)
        private_folder(path)
        write_json(path / "advice.json", self.as_dict())
        write_atomic(path / "advice.txt", f"{self}\n".encode())
        advice_picture(self.as_dict(), self.title, path / "advice.png")
        return path

    # -- tables ----------------------------------------------------------------------------------
    def tables(self, width: int = WIDTH) -> list[Table]:
        """A line per candidate, and the clients who gain or lose most."""
        tables = [self._candidates(width)] if self.table else []
        return [*tables, *([self._clients(width)] if self.clients else [])]

    def _candidates(self, width: int) -> Table:
        columns = [
            Column("candidate", 0, lambda r: shown(r["label"], LONGEST), words=True, least=14),
            Column(self.metric, 0, lambda r: number(r["value"])),
            Column("gain over local", 1, lambda r: signed(r["gain"])),
            Column("95 % interval", 2, self._interval),
            Column("bytes per round", 3, lambda r: "–" if r["bytes"] is None else _sent(r)),
            Column("step size ×", 4, lambda r: f"{r['step_factor']:g}" if r["fields"] else "–"),
            Column("rounds", 5, lambda r: count(r["rounds"]) if r["rounds"] else "–"),
            Column("gradients", 6, lambda r: count(r["gradients"])),
        ]
        return fitted_table(columns, self.table, width, shown(self.title))

    def _interval(self, row: dict[str, Any]) -> str:
        if row["low"] is None or not math.isfinite(row["low"]):
            return "–"
        return f"{signed(row['low'])} to {signed(row['high'])}"

    def _clients(self, width: int) -> Table:
        clear = [c for c in self.clients if c.verdict != INCONCLUSIVE]
        rest = [c for c in self.clients if c.verdict == INCONCLUSIVE and c.gain == c.gain]
        ordered = sorted(clear or rest, key=lambda c: -c.gain)
        rows = ordered
        if len(ordered) > 2 * SHOWN:
            rows = [*ordered[:SHOWN], *ordered[-SHOWN:]]
        columns = [
            Column("client", 0, lambda c: shown(c.client, LONGEST), words=True, least=14),
            Column("samples", 2, lambda c: count(c.samples)),
            Column(f"gain by {shown(self.gains_of, 24)}", 0, lambda c: signed(c.gain)),
            Column("± 95 %", 1, lambda c: number(c.half) if c.half < 1e9 else "–"),
            Column("", 0, lambda c: c.verdict),
        ]
        what = "clients that clearly gain or lose" if clear else "clients; all are inconclusive"
        some = "" if len(rows) == len(ordered) else f", {len(rows)} of {len(ordered):,}"
        return fitted_table(columns, rows, width, f"{what}, by gain{some}")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for line in self.words:
            yield Text(shown(line))
        yield Text("")
        yield from self.tables(options.max_width)
        for note in self.notes:
            yield Text(shown(f"note: {note}"), style="dim")

    def __str__(self) -> str:
        import io

        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=WIDTH).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n"))

    def __repr__(self) -> str:
        return f"Advice({self.choice!r}, {shown(self.title, 60)!r})"


def refuse_advice(path: Path) -> None:
    """Refuse a directory that holds an advice or a run."""
    refuse_taken(path)
    if (path / "advice.json").exists():
        raise SettingError(f"directory: {path} already holds an advice; choose another")


def _sent(row: dict[str, Any]) -> str:
    return size(row["bytes"]["up"] + row["bytes"]["down"])


# -- The rows of the table: a line per candidate, and one for each client's constant answer --

Line = dict[str, Any]


def candidate_line(c: Candidate, value: float, gain: Gain | None) -> Line:
    """A candidate: its figure, its gain over Local, what it costs, how it was trained."""
    return {
        "label": c.label,
        "method": c.name,
        "value": value,
        "gain": gain and gain.mean,
        "low": gain and gain.low,
        "high": gain and gain.high,
        "bytes": {"up": c.bytes_up, "down": c.bytes_down},
        "rounds": c.rounds,
        "gradients": c.gradients,
        "step_factor": STEP**c.power,  # times the step sizes of its defaults
        "step_factors": [STEP**power for power in c.tried],  # that were tried
        "fields": c.method(c.power).as_dict(),
        "trainings": len(c.found),
    }


def constant_line(holdout: Holdout, seeds: int, loss: Loss, metric: str) -> Line | None:
    """Each client's one constant answer, on the same held-out samples; None without a meaning."""
    total, samples = 0.0, 0
    for seed in range(1 if holdout.kind == GIVEN else seeds):
        federation, held_out = holdout.under(seed)
        scores = trivial(federation, loss, split="valid")
        value = math.nan if scores is None else summarise(scores)[metric]
        if math.isnan(value):
            return None
        total += value * len(held_out)
        samples += len(held_out)
    blank = dict.fromkeys(("gain", "low", "high", "bytes"))
    return {
        "label": "majority class" if holdout.data.classes else "training mean",
        "method": "constant",
        "value": total / samples,
        **blank,
        "rounds": 0,
        "gradients": 0,
        "step_factor": None,
        "step_factors": [],
        "fields": {},
        "trainings": 0,
    }


def beaten_by_constant(table: list[Line], constant: Line, choice: str, metric: str) -> str:
    """A remark where no candidate, or not the chosen one, does better than a constant answer."""
    sign = 1 if metric == "accuracy" else -1
    better = [r["label"] for r in table if sign * (r["value"] - constant["value"]) > 0]
    answer = f"one constant answer per client ({constant['label']})"
    if not better:
        return f"no candidate does better than {answer}: models learn nothing more from these data"
    if choice not in (UNDECIDED, *better):
        return f"{choice} does no better than {answer}"
    return ""
