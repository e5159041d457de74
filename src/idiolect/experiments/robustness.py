"""Who withstands liars? The robustness tables of the lp-proj paper (Tables 6 to 9) on its two synthetic federations.

`idiolect reproduce robustness` writes robustness.md, robustness.json and robustness.png. Every finished run is a line of
robustness-runs.jsonl in the same folder: started again, the grid goes on where it was, and runs under other settings are left alone.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import data, models
from ..core.knobs import SettingError
from ..data.federation import Federation
from ..host.scores import interval
from ..methods import make
from ..run.interrupts import polite
from ..run.run import run
from ..run.settings import Settings
from ..task.task import Task
from .published import read_published

FORMAT = 1  # of the stored runs: a change in what a run means makes the old ones void
ROUNDS, SEEDS, CLIENTS, EVERY = (
    200,
    2,
    100,
    20,
)  # EVERY: rounds between looks at whether the models are still sound
RUNS = "robustness-runs.jsonl"

_LP_PROJ = {
    "dim": 21,
    "lam": 0.1,
    "lr": 0.1,
    "personal_lr": 0.1,
    "alternations": 1,
    "steps": 20,
    "nu": 1e-10,
}
_FEDAVG = {"lr": 0.5, "steps": 1}
METHODS: dict[
    str, tuple[str, dict[str, Any], str]
] = {  # title -> method, its fields, the server's rule
    "Ditto": (
        "ditto",
        {"lam": 0.1, "lr": 0.1, "personal_lr": 0.1, "steps": 5, "personal_steps": 20},
        "mean",
    ),
    "Global+Mean": ("fedavg", _FEDAVG, "mean"),
    "Global+Median": ("fedavg", _FEDAVG, "median"),
    "Global+Krum": ("fedavg", _FEDAVG, "krum(f={f})"),
    "RSA": ("rsa", {"lam": 0.1, "lr": 0.1, "personal_lr": 0.1, "steps": 20}, "mean"),
    "lp-proj-1": ("lp-proj-1", _LP_PROJ, "mean"),
    "lp-proj-2": ("lp-proj-2", _LP_PROJ, "mean"),
}
_SHARES = (0.1, 0.2, 0.5, 0.8)
ATTACKS: dict[
    str, tuple[str, tuple[float, ...]]
] = {  # title -> attack, shares of malicious clients
    "same-value": ("same-value(std=100)", _SHARES),
    "sign-flip": ("sign-flip(std=10)", _SHARES),
    "gaussian": ("gaussian(std=100)", _SHARES),
    "data-poison": ("data-poison(std=20)", (0.02, 0.05, 0.1, 0.2)),
}
FEDERATIONS: dict[str, dict[str, float]] = {
    "Synthetic(0, 0)": {"alpha": 0.0, "beta": 0.0},
    "Synthetic(1, 1)": {"alpha": 1.0, "beta": 1.0},
}


# -- one run -----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Job:
    """One run: a cell of the grid and a seed. A cell without malicious clients has attack "none" and serves every attack's table."""

    federation: str
    method: str
    attack: str
    share: float
    seed: int
    rounds: int = ROUNDS
    clients: int = CLIENTS

    @property
    def cell(self) -> tuple[str, str, str, float]:
        return self.federation, self.method, self.attack, self.share

    def settings(self) -> dict[str, Any]:
        heard = max(1, round(0.1 * self.clients))
        f = min(
            int(heard * self.share + 1e-9), max(0, (heard - 3) // 2)
        )  # as many as are expected, or as Krum bears
        rule = METHODS[self.method][2].format(f=f)
        attack = ATTACKS[self.attack][0] if self.share else "none"
        every = min(EVERY, self.rounds)
        return Settings(
            rounds=self.rounds,
            sample=heard,
            seed=self.seed,
            eval_every=every,
            rule=rule,
            attack=attack,
            malicious=self.share,
            threads=1,
        ).as_dict()

    def key(self) -> str:
        """A digest of all that the run depends on: with any other setting, or another default, it is another run."""
        name, fields, _ = METHODS[self.method]
        options = {**FEDERATIONS[self.federation], "clients": self.clients}
        parts = [FORMAT, options, name, make(name, **fields).as_dict(), self.settings()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def train(self) -> dict[str, Any]:
        """The run itself: the final test accuracy of the benign clients."""
        name, fields, _ = METHODS[self.method]
        began = time.process_time()
        one = run(
            make(name, **fields), _task(), _data(self.federation, self.clients), **self.settings()
        ).seeds[0]
        final, each = one.final(), one.scores["test"].of_clients()[0].tolist()
        out = {
            "accuracy": round(final["accuracy"], 6),
            "variance": round(final["accuracy_variance"], 6),
            "collapsed": one.collapsed,
            "cpu": round(time.process_time() - began, 2),
            "liars": one.liars.tolist(),
        }
        if not self.share:  # to ask later how these clients do without liars
            out["by_client"] = [round(each[k], 4) for k in range(self.clients)]
        return out


@lru_cache(maxsize=4)
def _data(title: str, clients: int) -> Federation:
    return data.load("synthetic", **FEDERATIONS[title], clients=clients)


@lru_cache(maxsize=1)
def _task() -> Task:
    return Task(partial(models.make, "linear", (60,), 10))


def jobs(
    federations: Iterable[str],
    methods: Iterable[str],
    attacks: Iterable[str],
    seeds: int,
    rounds: int,
    clients: int,
) -> Iterator[Job]:
    """Every run of the grid, the clean ones once."""
    attacks = list(attacks)
    for federation in federations:
        for method in methods:
            cells = [("none", 0.0)] + [(a, share) for a in attacks for share in ATTACKS[a][1]]
            for attack, share in cells:
                for seed in range(seeds):
                    yield Job(federation, method, attack, share, seed, rounds, clients)


# -- many runs ---------------------------------------------------------------------------------------------------------------
def stored(path: Path) -> dict[str, dict[str, Any]]:
    """The finished runs by key. A last line that was cut off counts as not run."""
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
            found[record["key"]] = record["result"]
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    return found


def finish(todo: Sequence[Job], path: Path, workers: int) -> dict[Job, dict[str, Any]]:
    """The results of all jobs: those stored at `path`, and the others, run now and appended there one by one."""
    done = stored(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.read_bytes().endswith(b"\n"):
        with path.open("a") as out:  # end a line that was cut off
            out.write("\n")
    keys = {job: job.key() for job in todo}
    found = {job: done[key] for job, key in keys.items() if key in done}
    left = [job for job in todo if job not in found]
    with Bar(todo, found) as report:
        for job, result in _each(left, workers):
            record = {"key": keys[job], **vars(job), "result": result}
            with path.open("a") as out:
                out.write(json.dumps(record) + "\n")
            found[job] = result
            report(job, found)
    return found


def _each(left: Sequence[Job], workers: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    """The jobs with their results as they are finished. On Ctrl-C those at work end and are handed out first."""
    if workers < 2 or len(left) < 2:
        yield from ((job, job.train()) for job in left)
        return
    queue, waiting = list(reversed(left)), dict[Future, Job]()
    spawn = multiprocessing.get_context("spawn")
    processes = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_quiet)
    with processes as pool, polite("finishing the runs at work, then stopping") as interrupted:
        try:
            while queue or waiting:
                while queue and len(waiting) <= workers:  # one ahead, so that no worker waits
                    job = queue.pop()
                    waiting[pool.submit(_apart, job)] = job
                ended, _ = wait(waiting, return_when=FIRST_COMPLETED)
                yield from ((waiting.pop(future), future.result()) for future in ended)
                if interrupted():
                    queue.clear()
                    waiting = {
                        future: job for future, job in waiting.items() if not future.cancel()
                    }
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if interrupted():
        raise KeyboardInterrupt("the finished runs are stored; the same command goes on from there")


def _quiet() -> None:
    """A worker: one thread, and Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _apart(job: Job) -> dict[str, Any]:
    """In a thread of its own, where a run leaves signals alone."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(job.train).result()


class Bar:
    """Progress over runs, weighted by what they cost, and a line for each cell that is complete."""

    def __init__(self, todo: Sequence[Job], found: dict[Job, Any]):
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
        ]
        self.progress = Progress(*columns, console=Console(stderr=True), speed_estimate_period=600)
        self.seeds: dict[tuple, list[Job]] = {}
        for job in todo:
            self.seeds.setdefault(job.cell, []).append(job)
        self.task = self.progress.add_task(
            "robustness", total=sum(map(_cost, todo)), completed=sum(map(_cost, found))
        )

    def __enter__(self) -> Callable[[Job, dict[Job, Any]], None]:
        self.progress.start()
        return self.report

    def __exit__(self, *_: Any) -> None:
        self.progress.stop()

    def report(self, job: Job, found: dict[Job, Any]) -> None:
        self.progress.update(
            self.task,
            advance=_cost(job),
            description=f"{job.method}, {job.attack} {_percent(job.share)}",
        )
        mine = self.seeds[job.cell]
        if all(j in found for j in mine):
            text = Cell.of([found[j] for j in mine]).text()
            self.progress.console.print(
                f"{job.federation}: {job.method}, {job.attack} {_percent(job.share)}: {text}",
                highlight=False,
            )


def _cost(job: Job) -> int:
    """In FedAvg's runs: a method that trains everyone takes about as long as eight of them."""
    return 8 if make(METHODS[job.method][0]).trains == "everyone" else 1


# -- cells -------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Cell:
    """One number of a table, over seeds."""

    accuracy: float  # mean over seeds
    variance: float  # population variance over benign clients, mean over seeds
    ci95: float | None = None  # half the 95 % interval of the accuracy over seeds
    collapsed: tuple[
        int, ...
    ] = ()  # the rounds from which on the models were of no use, of the seeds where they were
    by_seed: tuple[float, ...] = ()
    same_clients: float | None = None  # the clean accuracy of the clients that are benign here

    @classmethod
    def of(cls, results: Sequence[dict[str, Any]], clean: Sequence[dict[str, Any]] = ()) -> Cell:
        accuracy = [r["accuracy"] for r in results]
        same = None
        if clean:
            benign = [
                [a for k, a in enumerate(c["by_client"]) if k not in set(r["liars"])]
                for r, c in zip(results, clean, strict=True)
            ]
            same = _mean([_mean(b) for b in benign])
        rounds = tuple(r["collapsed"] for r in results if r["collapsed"])
        return cls(
            _mean(accuracy),
            _mean([r["variance"] for r in results]),
            interval(accuracy),
            rounds,
            tuple(accuracy),
            same,
        )

    def text(self) -> str:
        """As in the tables.

        >>> Cell(0.9, 0.01).text(), Cell(0.9, 0.01, 0.002).text()
        ('0.900 (0.010)', '0.900 ± 0.002 (0.010)')
        >>> Cell(0.1, 0.01, collapsed=(40, 60), by_seed=(0.1, 0.1)).text()
        '★ round 40'
        >>> Cell(0.1, 0.01, collapsed=(40,), by_seed=(0.1, 0.1, 0.1)).text()
        '★ round 40 (1 of 3 seeds)'
        """
        if self.collapsed:
            some = (
                ""
                if len(self.collapsed) == len(self.by_seed)
                else f" ({len(self.collapsed)} of {len(self.by_seed)} seeds)"
            )
            return f"★ round {min(self.collapsed)}{some}"
        spread = "" if self.ci95 is None else f" ± {self.ci95:.3f}"
        return f"{self.accuracy:.3f}{spread} ({self.variance:.3f})"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


Row = dict[float, Cell]  # share of malicious clients (0 = clean) -> cell


@dataclass
class Tables:
    """rows[federation, attack, method]: the cells of one row of one table."""

    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)

    @classmethod
    def of(cls, found: dict[Job, dict[str, Any]], attacks: Iterable[str]) -> Tables:
        cells: dict[tuple[str, str, str, float], list[dict[str, Any]]] = {}
        for job in sorted(found, key=lambda j: j.seed):
            cells.setdefault(job.cell, []).append(found[job])
        out = cls()
        for federation, method in dict.fromkeys((j.federation, j.method) for j in found):
            clean = cells[federation, method, "none", 0.0]
            for attack in attacks:
                row = {0.0: Cell.of(clean)}
                row |= {
                    share: Cell.of(cells[federation, method, attack, share], clean)
                    for share in ATTACKS[attack][1]
                }
                out.rows[federation, attack, method] = row
        return out

    def of_method(self, method: str) -> Iterator[tuple[str, str, Row]]:
        yield from ((f, a, row) for (f, a, m), row in self.rows.items() if m == method)

    def as_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for (federation, attack, method), row in self.rows.items():
            out.setdefault(federation, {}).setdefault(attack, {})[method] = {
                f"{share:g}": vars(cell) for share, cell in row.items()
            }
        return out


# -- findings ----------------------------------------------------------------------------------------------------------------
NEAR, USEFUL, FAR = 0.03, 0.6, 0.1


def unmoved(tables: Tables, method: str = "lp-proj-1") -> str:
    """Is the method within NEAR of its clean accuracy wherever it is attacked? And of the same clients' clean accuracy?"""
    cells = [
        (f, a, share, row[0.0].accuracy, c)
        for f, a, row in tables.of_method(method)
        for share, c in row.items()
        if share
    ]
    same = [
        (f, a, share, c.same_clients or clean, c) for f, a, share, clean, c in cells
    ]  # the benign at 80 % are other clients
    told = []
    for these in (cells, same):
        off = [
            (f, a, share, clean, c)
            for f, a, share, clean, c in these
            if c.collapsed or abs(c.accuracy - clean) > NEAR
        ]
        told.append(
            f"{len(these) - len(off)} of {len(these)}" + (f" (not {_list(off)})" if off else "")
        )
    text = f"**{method} stays within {NEAR:g} of its clean accuracy** in {told[0]} attacked cells"
    return f"{text}; of the clean accuracy of the same benign clients in {told[1]}."


def _list(cells: Sequence[tuple[str, str, float, float, Cell]]) -> str:
    told = (
        f"{f}, {a} {_percent(s)}: {'★' if c.collapsed else f'{c.accuracy:.3f}'} against {clean:.3f}"
        for f, a, s, clean, c in cells
    )
    return "; ".join(told)


def useless(
    tables: Tables, method: str = "Global+Mean", attack: str = "sign-flip", share: float = 0.1
) -> str:
    """Is the method below USEFUL there?"""
    told = []
    for federation, a, row in tables.of_method(method):
        if a == attack and share in row:
            cell = row[share]
            told.append(
                f"{federation}: {'yes' if cell.collapsed or cell.accuracy < USEFUL else 'no'}, {cell.text()}"
            )
    return f"**{method} falls below {USEFUL:g} at {_percent(share)} {attack}**: {'; '.join(told) or 'not run'}."


def breaks(
    tables: Tables, method: str = "lp-proj-2", attack: str = "sign-flip", share: float = 0.5
) -> str:
    """Does the method collapse there?"""
    told = []
    for federation, a, row in tables.of_method(method):
        if a == attack and share in row:
            told.append(
                f"{federation}: {'yes' if row[share].collapsed else 'no'}, {row[share].text()}"
            )
    return f"**{method} collapses at {_percent(share)} {attack}**: {'; '.join(told) or 'not run'}."


def differences(
    tables: Tables, published: dict[tuple[str, str, str], list[tuple[float, float] | None]]
) -> list[str]:
    """A line a federation and method: the cells that lie more than FAR from the paper's, ours first; clean ones once."""
    out: dict[tuple[str, str], dict[str, None]] = {}
    for (federation, attack, method), row in tables.rows.items():
        for (share, cell), theirs in zip(
            row.items(), published.get((federation, attack, method), ()), strict=False
        ):
            ours = None if cell.collapsed else cell.accuracy
            if (ours is None) != (theirs is None) or (
                ours is not None and theirs is not None and abs(ours - theirs[0]) > FAR
            ):
                where = f"{attack} {_percent(share)}" if share else "clean"
                told = f"{where} {'★' if ours is None else f'{ours:.3f}'} / {'★' if theirs is None else f'{theirs[0]:.3f}'}"
                out.setdefault((federation, method), {})[told] = None
    return [
        f"{federation}, {method}: {', '.join(cells)}" for (federation, method), cells in out.items()
    ]


# -- page and picture --------------------------------------------------------------------------------------------------------
def write(
    folder: Path,
    rounds: int = ROUNDS,
    seeds: int = SEEDS,
    federations: Sequence[str] = tuple(FEDERATIONS),
    methods: Sequence[str] = tuple(METHODS),
    attacks: Sequence[str] = tuple(ATTACKS),
    clients: int = CLIENTS,
    workers: int = 2,
) -> list[Path]:
    """Run what is not stored yet (all: some 15 to 20 minutes on two cores) and write the page, its figures and its picture."""
    _matplotlib()
    folder = Path(folder)
    todo = list(jobs(federations, methods, attacks, seeds, rounds, clients))
    found = finish(todo, folder / RUNS, workers)
    tables = Tables.of({job: found[job] for job in todo}, attacks)
    paths = [folder / f"robustness.{kind}" for kind in ("md", "json", "png")]
    paths[0].write_text(page(tables, rounds, seeds, clients))
    settings: dict[str, Any] = {
        "format": FORMAT,
        "rounds": rounds,
        "seeds": seeds,
        "clients": clients,
    }
    settings["methods"] = {
        m: {"name": METHODS[m][0], **METHODS[m][1], "rule": METHODS[m][2]} for m in methods
    }
    paths[1].write_text(
        json.dumps({"settings": settings, "tables": tables.as_dict()}, indent=1) + "\n"
    )
    picture(tables, paths[2])
    return paths


def page(tables: Tables, rounds: int, seeds: int, clients: int) -> str:
    told = {
        "rounds": rounds,
        "seeds": _counted(seeds, "seed"),
        "clients": clients,
        "heard": max(1, round(0.1 * clients)),
        "every": EVERY,
    }
    lines = [line.format(**told) for line in HEAD]
    lines += ["", "## What it shows", ""]
    lines += [f"- {text}" for text in (unmoved(tables), useless(tables), breaks(tables))]
    published = read_published()
    lines += ["", "## Settings", "", *SETTINGS, ""]
    for federation, attack in dict.fromkeys((f, a) for f, a, _ in tables.rows):
        shares = [0.0, *ATTACKS[attack][1]]
        lines += [
            f"## {federation}, {attack}",
            "",
            "| method | " + " | ".join(_percent(s) if s else "clean" for s in shares) + " |",
        ]
        lines.append("|---" * (len(shares) + 1) + "|")
        for (f, a, method), row in tables.rows.items():
            if (f, a) == (federation, attack):
                theirs = published.get((f, a, method), [None] * len(shares))
                cells = [
                    f"{row[s].text()}<br><sub>{_paper(t)}</sub>"
                    for s, t in zip(shares, theirs, strict=True)
                ]
                lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines.append("")
    far = differences(tables, published)
    lines += ["## Where the paper's numbers are others", ""]
    lines += [
        f"Cells more than {FAR:g} apart, or of which one is a ★; ours / the paper's.",
        "",
        *(f"- {text}" for text in far),
        "",
    ]
    return "\n".join([*lines, *WHY]) + "\n"


def _paper(cell: tuple[float, float] | None) -> str:
    return "★" if cell is None else f"{cell[0]:.3f} ({cell[1]:.3f})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingError("pictures need matplotlib: pip install 'idiolect[plot]'") from None
    return Figure, FigureCanvasAgg


_STYLES = {  # colours that the colour-blind can tell apart (Okabe and Ito), and dashes for the global models
    "Ditto": ("#E69F00", "-", "s"),
    "Global+Mean": ("#999999", "--", "v"),
    "Global+Median": ("#56B4E9", "--", "^"),
    "Global+Krum": ("#CC79A7", "--", "D"),
    "RSA": ("#009E73", "-", "P"),
    "lp-proj-1": ("#D55E00", "-", "o"),
    "lp-proj-2": ("#0072B2", "-", "X"),
}


def picture(tables: Tables, path: Path) -> Path:
    """Small multiples, attacks by federations: accuracy over the share of liars, a line a method; a star at the foot = collapsed."""
    figure_of, canvas = _matplotlib()
    federations, attacks = (list(dict.fromkeys(key[i] for key in tables.rows)) for i in (0, 1))
    methods = list(dict.fromkeys(m for _, _, m in tables.rows))
    figure = figure_of(
        figsize=(1.2 + 2.7 * len(attacks), 1.1 + 2.5 * len(federations)), layout="constrained"
    )
    canvas(figure)
    grid = figure.subplots(len(federations), len(attacks), sharey=True, squeeze=False)
    for i, federation in enumerate(federations):
        for j, attack in enumerate(attacks):
            axes, shares = grid[i][j], [0.0, *ATTACKS[attack][1]]
            for n, method in enumerate(
                m for m in methods if (federation, attack, m) in tables.rows
            ):
                row, (colour, dash, mark) = tables.rows[federation, attack, method], _STYLES[method]
                height = [float("nan") if row[s].collapsed else row[s].accuracy for s in shares]
                width = 3.0 if method == "lp-proj-1" else 1.3  # lp-proj-2 often lies on it
                axes.plot(
                    range(len(shares)),
                    height,
                    color=colour,
                    linestyle=dash,
                    marker=mark,
                    markersize=4,
                    linewidth=width,
                    label=method,
                )
                fallen = [
                    x + 0.11 * (n - (len(methods) - 1) / 2)
                    for x, s in enumerate(shares)
                    if row[s].collapsed
                ]
                axes.plot(
                    fallen,
                    [-0.06] * len(fallen),
                    color=colour,
                    linestyle="",
                    marker="*",
                    markersize=8,
                )
            axes.set_xticks(range(len(shares)), [_percent(s) if s else "clean" for s in shares])
            axes.set_xlim(-0.4, len(shares) - 0.6)
            axes.set_ylim(-0.12, 1)
            axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
            axes.grid(axis="y", color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            if i == 0:
                axes.set_title(attack, fontsize=11)
            if j == 0:
                axes.set_ylabel(f"{federation}\naccuracy of benign clients")
            if i == len(federations) - 1:
                axes.set_xlabel("malicious clients")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=130)
    return path


# -- texts -------------------------------------------------------------------------------------------------------------------
HEAD = (
    "# Who withstands liars?",
    "",
    "The robustness tables of the lp-proj paper (Tables 6 to 9) on its two synthetic federations: {clients} clients of whom {heard}",
    "are heard a round, a logistic model (d = 610), {rounds} rounds, {seeds}. Written by `idiolect reproduce robustness`.",
    "",
    "A cell is the mean test accuracy of the **benign** clients' own models after the last round ± half the 95 % interval over seeds",
    "(Student's t: wide for so few), and in parentheses the population variance over those clients, averaged over seeds. Below it, in",
    "small print, stands the paper's own number (10 repetitions). ★ marks a collapse: a mean test loss that is not finite or above a",
    "million, looked at every {every} rounds, with the first such round; the paper's ★ is a run that returned no solution. Seeds",
    "change initial models, P, who is heard, mini-batches and who lies, not the data.",
    "",
    "![Accuracy over the share of malicious clients, for each attack and federation](robustness.png)",
)
SETTINGS = (
    "- Attacks as published: same-value c·1 with c ~ N(0, 100²); sign-flip −|c| × message with c ~ N(0, 10²); gaussian N(0, 100²) an",
    "  entry; data-poison false training labels and the message times c ~ N(0, 20²). They act on what is sent: 21 numbers for",
    "  lp-proj, a model of 610 for the others. Who lies is drawn once a seed; a larger share holds the smaller ones.",
    "- The paper tunes every method on validation data over a small grid and does not say what came out. lp-proj: dim 21, batch 64, ν",
    "  = 1e-10 and one mini-batch an inner problem as stated; λ = 0.1, both step sizes 0.1 and R = 1 are of the grid (and our",
    "  defaults); at most 20 inner steps, as in the public code. Ditto: λ = 0.1, both step sizes 0.1, R = 5, of the grid, and 20",
    "  personal steps. RSA: the server's step of its own paper (a sum of signs), λ = 0.1, the smallest of the grid; our default,",
    "  0.01, is outside it and better (clean, Synthetic(0, 0), seed 0: 0.899 against 0.833), so these rows show the paper's RSA, not",
    "  the best one. FedAvg (Global+…): step size 0.5 and one step a round, of the grid's six the best on validation data of clean",
    "  runs with the mean (seed 0, both federations together). No other method was tuned.",
    "- Rounds are not stated in the paper; 200 is the default of its public code. No gradient clipping and no weight decay, which",
    "  that code has.",
    "- Krum is the original, told f = the share of liars × heard clients, rounded down, and at most what it bears: 3 of 10.",
    "- The clean column does not depend on the attack; the paper's Krum row has two values for it.",
)
WHY = (
    "Likely reasons, none of them tested. The public code of the paper draws the heard clients from the round number alone, so that the",
    "same rounds hear liars in every run; it clips gradients, trains Global+… on full batches and uses distances without squares in",
    "Krum; its data have no seed, and what its tuning chose is not known. Data poisoning differs most. A liar's message is multiplied",
    "by c ~ N(0, 20²), so a mean of ten with one liar among them multiplies the shared model by about (9 + c)/10: by more than 2 in a",
    "third of such rounds, and it grows on average. Over 200 rounds that has to overflow wherever the shared model is not bounded, and",
    "here it does; the paper's tables show no sign of it. A median of ten bears one gaussian liar here (0.64 and 0.56 at 10 %), where",
    "the paper has 0.12 and 0.13; we know of no reason why it should not. A message that overflows is refused by our server and counts",
    "as an absent client: where the paper's code breaks off, a run here may go on with the honest rest, and part of lp-proj-1's calm",
    "under sign-flipping is that refusal. A global model under Krum is one client's model, so it depends on who is heard last.",
)
