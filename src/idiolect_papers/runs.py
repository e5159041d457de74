"""The runs of an experiment: in worker processes, with progress, resumed by the same command.

An experiment says what is run. How is the same for all of them:

    with stored_runs(folder, "golden") as runs:
        summaries = runs(settings, stock, seeds=range(3))  # key -> summaries, one per seed
        page.write_text(...)

`settings` has a `Plan` for every key: a line or a cell of the experiment's tables. Where that is
not enough, a run is a `Work` of its own: `train_all(jobs, folder, name)`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, reduce
from importlib import resources
from operator import getitem
from pathlib import Path
from typing import Any, TypeVar

import torch

from idiolect import Federation, Method, Plan, RoundState, SettingError, Task, iterate
from idiolect.study import Recorder, Stock, finish, job_progress, run_many
from idiolect.study import search_plans as search

K = TypeVar("K")
Summary = dict[str, Any]  # of one run with one seed, as `Result.summary` gives it


@dataclass(frozen=True)
class Runs:
    """Runs in worker processes, each stored in a directory as it ends."""

    directory: Path
    jobs: int = 0  # worker processes; 0: as many as cores. Results do not depend on it

    def __call__(
        self,
        settings: Mapping[K, Plan],
        stock: Stock,
        seeds: Sequence[int],
        keep: Sequence[str | type[Recorder]] = (),
    ) -> dict[K, list[Summary]]:
        """The summaries of every setting, one per seed, with progress on stderr.

        `stock` has the data and models that settings name. With `keep`, a summary has the run's
        evaluated rounds ("by_round") or its clients ("by_client") too. What was stored before is
        not run again. `mean_over_seeds` of `idiolect.study` makes one summary of all
        seeds, with its interval.
        """
        if not settings:
            return {}
        sweep = run_many(
            list(settings.values()),
            stock,
            seeds,
            jobs=self.jobs,
            directory=self.directory,
            watch=job_progress,
            keep=keep,
        )
        if sweep.failed:
            trial, why = next(iter(sweep.failed.items()))
            raise SettingError(
                f"{len(sweep.failed)} of {len(sweep.failed) + len(sweep.summaries)} runs failed; "
                f"the same command tries them again. The first, {trial.describe()}: {why}"
            )
        by_plan = sweep.by_plan()
        for plan in settings.values():
            if plan not in by_plan:
                raise ValueError(f"{plan.label}: the same setting stands there twice")
        return {key: by_plan[plan] for key, plan in settings.items()}

    def of_methods(
        self,
        methods: Mapping[str, Method],
        federation: Federation,
        task: Task,
        seeds: int,
        keep: Sequence[str | type[Recorder]] = (),
        **run: Any,
    ) -> dict[str, list[Summary]]:
        """The summaries of every method on one federation, one per seed."""
        settings = {row: Plan.of(method, settings=run, name=row) for row, method in methods.items()}
        return self(settings, Stock({"": federation}, {"": task}), range(seeds), keep)

    def chosen(
        self, candidates: Mapping[str, Sequence[Plan]], stock: Stock, *seeds: int
    ) -> tuple[dict[str, Plan], float]:
        """Of every row the candidate that validation data prefer, and the CPU seconds spent.

        Test data are taken away before the first run. A candidate without a rival is not run.
        """
        rivals = {row: several for row, several in candidates.items() if len(several) > 1}
        first = {row: several[0] for row, several in candidates.items()}
        if not rivals:
            return first, 0.0
        originals = {replace(s, name=row): s for row, several in rivals.items() for s in several}
        search_result = search(
            list(originals),
            stock,
            seeds,
            jobs=self.jobs,
            directory=self.directory,
            watch=job_progress,
        )
        best = {row: originals[search_result.best(row)] for row in rivals}
        return first | best, search_result.cost.cpu_seconds


@contextmanager
def stored_runs(folder: Path, name: str, jobs: int = 0) -> Iterator[Runs]:
    """Runs that are stored in the hidden directory `.name` of a folder until the experiment ends.

    Stopped or failed before that, they stay there, and the same command goes on with them: by the
    digest of all that a run depends on, code included. When the pages are written, at the end of
    the `with` block, the directory is removed.

    >>> import tempfile
    >>> import idiolect as il
    >>> stock = Stock({"few": il.data.load("synthetic", clients=4, samples=60)},
    ...               {"linear": il.Task(lambda: il.models.make("linear", (60,), 10))})
    >>> part = {"settings": {"rounds": 9}, "data": "few", "model": "linear", "name": "fedavg"}
    >>> rates = {lr: il.Plan.of(il.FedAvg(lr=lr), **part, varied={"lr": lr})
    ...          for lr in (0.0001, 0.1)}
    >>> with (tempfile.TemporaryDirectory() as folder,
    ...       stored_runs(Path(folder), "rates", jobs=1) as runs):
    ...     chosen, _ = runs.chosen({"fedavg": list(rates.values())}, stock, 9)
    ...     found = runs(rates, stock, seeds=range(2))
    >>> chosen["fedavg"] is rates[0.1], [summary["seeds"] for summary in found[0.1]]
    (True, [[0], [1]])
    """
    runs = Runs(folder / f".{name}", jobs)
    yield runs
    shutil.rmtree(runs.directory, ignore_errors=True)


def scaled_runs(folder: Path, name: str, scale: str, jobs: int = 0) -> Runs:
    """Runs of a page at a scale, which stay beside it: other pages are made of them too."""
    return Runs(folder / ".runs" / f"{name}-{scale}", jobs)


def column(summaries: Sequence[Summary], *path: str) -> list[Any]:
    """A figure of every summary.

    >>> column([{"accuracy": {"mean": 0.5}}, {"accuracy": {"mean": 0.7}}], "accuracy", "mean")
    [0.5, 0.7]
    """
    return [reduce(getitem, path, summary) for summary in summaries]


def cpu_seconds(by_row: Mapping[Any, Sequence[Summary]]) -> float:
    """What the runs of all rows took."""
    return sum(sum(column(summaries, "cpu_seconds")) for summaries in by_row.values())


# -- runs that are not settings of a sweep --------------------------------------------------------
@cache
def source_digest() -> str:
    """A digest of the code of idiolect and of this package."""
    digest = hashlib.sha256()
    for package in ("idiolect", __package__):
        root = Path(str(resources.files(package)))
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread, as before afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def exact_rounds(
    method: Method, task: Task, federation: Federation, **settings: Any
) -> Iterator[RoundState]:
    """A run with full gradients in double precision, on one thread, round by round."""
    with one_thread():
        yield from iterate(method, task, federation, batching="full", dtype="float64", **settings)


@dataclass(frozen=True, eq=False)
class Work:
    """One run: a frozen dataclass of plain fields whose `train` gives plain data.

    With `eq=False` a subclass may have fields that have no hash, such as a dict.
    """

    def train(self) -> dict[str, Any]:
        raise NotImplementedError

    def cost(self) -> float:
        """How long it takes, in any unit that all runs of the experiment share."""
        return 1.0

    def key(self) -> str:
        """A digest of its fields and of the code."""
        text = json.dumps([source_digest(), type(self).__name__, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def describe(self) -> str:
        return f"{type(self).__name__} {asdict(self)}"


def train_all(jobs: Any, folder: Path, name: str, workers: int = 2) -> dict[Any, dict[str, Any]]:
    """The results of all runs in nested dicts and lists, each once, with progress on stderr.

    They are stored while the experiment runs, so that the same command resumes it, and removed when
    all are there.
    """

    def leaves(tree: Any) -> Iterator[Work]:
        if isinstance(tree, Work):
            yield tree
        else:
            for child in tree.values() if isinstance(tree, dict) else tree:
                yield from leaves(child)

    several = list(dict.fromkeys(leaves(jobs)))
    path = folder / f".{name}.jsonl"
    with job_progress(several) as bar:
        results = finish(several, path, workers, bar.report)
    path.unlink(missing_ok=True)
    return results
