"""Many independent runs, in worker processes: stored as they finish, continued at a restart.

A job is one run. The results of a grid are lines of a JSONL file, found again by the key of their
job: started a second time, a grid runs only the jobs that are not stored yet.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from ..core.plain import plain
from .interrupts import finish_on_interrupt
from .run import Interrupted

Outcome = dict[str, Any]  # the result of a job, as JSON holds it


class Job(Protocol):
    """One run of a grid: hashable, and picklable where more than one worker runs it."""

    def key(self) -> str:
        """A digest of everything that the result depends on: another setting is another key."""

    def train(self) -> Outcome:
        """The run itself. Its result is plain data: what JSON can hold."""

    def cost(self) -> float:
        """How long it takes, in any unit that all jobs of the grid share."""

    def describe(self) -> str:
        """A few words for people who read the stored lines."""


J = TypeVar("J", bound=Job)
Report = Callable[[Mapping[J, Outcome], J | None], None]


def stored(path: Path) -> dict[str, Outcome]:
    """The finished jobs of a file, by key. A line that was cut off counts as not run.

    >>> stored(Path("no-such-file.jsonl"))
    {}
    """
    found: dict[str, Outcome] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
            found[record["key"]] = record["result"]
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    return found


def finish(
    jobs: Sequence[J], path: Path, workers: int = 1, report: Report[J] | None = None
) -> dict[J, Outcome]:
    """The results of all jobs, in their order: stored at `path`, or run now and appended there.

    `report(results, job)` is called with all results so far: once at the start with job None, and
    after every job with the one that has just finished. With one worker the jobs run in this
    process. On Ctrl-C the jobs at work are finished and stored, then `Interrupted` is raised; a
    second Ctrl-C stops at once.
    """
    before = stored(path)
    keys = {job: job.key() for job in jobs}
    results = {job: before[key] for job, key in keys.items() if key in before}
    left = [job for job in keys if job not in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    _end_last_line(path)
    if report:
        report(results, None)
    for job, result in _each(left, workers):
        record = {"key": keys[job], "job": job.describe(), "result": plain(result)}
        line = json.dumps(record, allow_nan=False)
        with path.open("a") as file:
            file.write(line + "\n")
        results[job] = json.loads(line)["result"]  # the same whether run now or read again
        if report:
            report(results, job)
    return {job: results[job] for job in keys}


def _end_last_line(path: Path) -> None:
    """A line that was cut off must not run into the next one."""
    if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        with path.open("a") as file:
            file.write("\n")


# -- running ------------------------------------------------------------------------------------
def _each(jobs: Sequence[J], workers: int) -> Iterator[tuple[J, Outcome]]:
    """The jobs with their results, in the order in which they finish."""
    with finish_on_interrupt("finishing the jobs at work, then stopping") as interrupted:
        if workers < 2 or len(jobs) < 2:
            yield from _in_this_process(jobs, interrupted)
        else:
            yield from _in_workers(jobs, workers, interrupted)
        if interrupted():
            raise Interrupted("the finished jobs are stored; the same command goes on from there")


def _in_this_process(
    jobs: Sequence[J], interrupted: Callable[[], bool]
) -> Iterator[tuple[J, Outcome]]:
    for job in jobs:
        if interrupted():
            return
        yield job, _train_in_thread(job)


def _in_workers(
    jobs: Sequence[J], workers: int, interrupted: Callable[[], bool]
) -> Iterator[tuple[J, Outcome]]:
    queue = list(reversed(jobs))
    running: dict[Future[Outcome], J] = {}
    others = set(multiprocessing.active_children())
    with _pool(workers) as pool:
        try:
            while queue or running:
                while queue and len(running) <= workers:  # one ahead, so that no worker waits
                    job = queue.pop()
                    running[pool.submit(_train_in_thread, job)] = job
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield running.pop(future), future.result()
                if interrupted():
                    queue.clear()
                    running = {f: job for f, job in running.items() if not f.cancel()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            raise


def _pool(workers: int) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")  # a forked process may hang in torch's threads
    return ProcessPoolExecutor(workers, mp_context=spawn, initializer=_prepare_worker)


def _prepare_worker() -> None:
    """One thread per worker, and Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _train_in_thread(job: Job) -> Outcome:
    """Train outside the main thread, where a run leaves Ctrl-C to the grid.

    The thread is a daemon, so that a second Ctrl-C does not wait for it.
    """
    result: Future[Outcome] = Future()

    def train() -> None:
        try:
            result.set_result(job.train())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=train, daemon=True).start()
    return result.result()
