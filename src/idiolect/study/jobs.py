"""Independent jobs in worker processes: stored as they finish, continued at a restart.

A job is one run. The results of a grid are lines of a JSONL file, found again by the key of their
job: started a second time, a grid runs only the jobs that are not stored yet.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from ..core.documents import expect_fields, plain, sealed, unsealed
from ..core.files import check_regular, on_disk, parse_json, private_folder, private_opener
from ..core.knobs import SettingError
from ..core.text import plural, shown, warn
from ..report.progress import Meter, style_of
from ..run.interrupts import SIGNALS, Interruption, finish_on_interrupt
from ..run.plan import Plan

Outcome = dict[str, Any]  # the result of a job, as JSON holds it
RECORD = {"key": str, "job": str, "result": dict[str, Any]}  # of a line


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
Failed = Callable[[J, Exception], None]


class WorkerLost(RuntimeError):
    """A worker process ended in a job: it was killed, or memory ran out."""


class WorkerStartError(SettingError):
    """Worker processes cannot do any job: they end at once, or cannot import what a job needs."""

    def __str__(self) -> str:  # of the reason
        return (
            f"jobs: worker processes cannot do these runs ({self.args[0]}); what they need must be "
            "importable from this folder or installed, and a script that starts them has its calls "
            "under if __name__ == '__main__'; or take jobs=1"
        )


def stored(path: Path) -> dict[str, Outcome]:
    """The finished jobs of a file, by key. A line that is damaged or cut off counts as not run.

    >>> stored(Path("no-such-file.jsonl"))
    {}
    """
    return {record["key"]: record["result"] for record in records(path)}


def records(path: Path) -> list[dict[str, Any]]:
    """The sound lines of such a file: key, job and result. Others are said to be left out."""
    if not path.exists():
        return []
    check_regular(path)
    parsed = [_record(line) for line in path.read_bytes().split(b"\n") if line]
    sound = [record for record in parsed if record is not None]
    if damaged := len(parsed) - len(sound):
        warn(
            f"{path}: {damaged} line{'s' * (damaged > 1)} left out that do not match their SHA-256 "
            "(damaged, cut off or of an earlier version): such a run counts as not done"
        )
    return sound


def _record(line: bytes) -> dict[str, Any] | None:
    """A line as it was stored; None where it is damaged."""
    try:
        return expect_fields(unsealed(parse_json(line)), RECORD)
    except ValueError:
        return None


def finish(
    jobs: Sequence[J],
    path: Path,
    workers: int = 1,
    report: Report[J] | None = None,
    share: Any = None,
    failed: Failed[J] | None = None,
) -> dict[J, Outcome]:
    """The results of all jobs, in their order: stored at `path`, or run now and appended there.

    `report(results, job)` is called with all results so far: once at the start with job None, and
    after every job with the one that has just finished. With one worker the jobs run in this
    process. On Ctrl-C, SIGTERM or SIGHUP running jobs are finished and stored, then
    `Interrupted` is raised; a second signal stops at once. Workers end with this process, however
    it ends. What a full disk does not take is tried again with the next job.

    A worker that is killed is replaced, and its job is run again. A job that raises ends the grid;
    with `failed`, the error goes there instead and the other jobs continue. Workers that cannot
    start, or cannot import what a job needs, end the grid with a `WorkerStartError`. Every job
    finds `share` in `common()`; workers receive it once.
    """
    before = stored(path)
    keys = {job: job.key() for job in jobs}
    results = {job: before[key] for job, key in keys.items() if key in before}
    remaining = [job for job in keys if job not in results]
    private_folder(path.parent)
    if report:
        report(results, None)
    waiting: list[str] = []  # lines that are not stored yet
    with closing(_each(remaining, workers, share)) as finished:
        for job, result in finished:
            if isinstance(result, Exception):
                if failed is None or isinstance(result, WorkerStartError):
                    raise result
                failed(job, result)
                continue
            record = {"key": keys[job], "job": job.describe(), "result": plain(result)}
            waiting.append(json.dumps(sealed(record), allow_nan=False))
            results[job] = json.loads(waiting[-1])["result"]  # the same as when read again
            with on_disk(f"the result of {job.describe()}", path):
                store(path, waiting)
            if report:
                report(results, job)
    if waiting:
        with on_disk(f"{len(waiting)} of {len(results)} results", path):
            store(path, waiting)
    return {job: results[job] for job in keys if job in results}


def store(path: Path, lines: list[str]) -> None:
    """Append lines and forget them; one that was cut off there must not run into the next one."""
    while lines:
        with open(path, "ab+", buffering=0, opener=private_opener) as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            whole = file.read(1) in (b"", b"\n")
            unwritten = memoryview(f"{'' if whole else chr(10)}{lines[0]}\n".encode())
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
        del lines[0]


# -- running ------------------------------------------------------------------------------------
Ended = tuple[J, Outcome | Exception]
_shared: Any = None


def common() -> Any:
    """What the jobs of a grid have in common."""
    return _shared


@contextmanager
def _sharing(share: Any) -> Iterator[None]:
    global _shared
    before, _shared = _shared, share
    try:
        yield
    finally:
        _shared = before


def _each(jobs: Sequence[J], workers: int, share: Any) -> Generator[Ended[J], None, None]:
    """The jobs with their results or errors, in the order in which they finish."""
    with finish_on_interrupt("finishing the jobs at work, then stopping") as interrupted:
        if workers < 2 or len(jobs) < 2:
            with _sharing(share):
                yield from _in_this_process(jobs, interrupted)
        else:
            yield from _in_workers(jobs, workers, share, interrupted)
        if interrupted():
            raise interrupted.stop("finished jobs are stored; the same command resumes from there")


def _in_this_process(jobs: Sequence[J], interrupted: Interruption) -> Iterator[Ended[J]]:
    for job in jobs:
        if interrupted():
            return
        try:
            outcome: Outcome | Exception = _train_in_thread(job)
        except Exception as error:
            outcome = error
        yield job, outcome


def _in_workers(
    jobs: Sequence[J], workers: int, share: Any, interrupted: Interruption
) -> Iterator[Ended[J]]:
    """Jobs in a pool. When a worker dies, all running jobs are suspects and run again; those that
    were running twice when one died are run one by one."""
    queue = deque(jobs)
    suspects: deque[J] = deque()
    lost: Counter[J] = Counter()
    while (queue or suspects) and not interrupted():
        alone = not queue
        some = deque([suspects.popleft()]) if alone else queue
        for job, outcome in _in_pool(some, 1 if alone else workers, share, interrupted):
            if not isinstance(outcome, BrokenProcessPool):
                yield job, outcome
            elif alone:
                yield job, WorkerLost("its worker process was killed, or ran out of memory")
            else:
                lost[job] += 1
                (suspects if lost[job] > 1 else queue).append(job)


def _in_pool(
    queue: deque[J], workers: int, share: Any, interrupted: Interruption
) -> Iterator[Ended[J]]:
    """The jobs of a queue, until it is empty or a worker is lost."""
    running: dict[Future[Outcome], J] = {}
    others = set(multiprocessing.active_children())
    broken = False
    begun = _SPAWN.Event()  # by any worker
    with _pool(workers, (begun, pickle.dumps(share))) as pool:
        try:
            while (queue and not broken) or running:
                while (
                    queue and not broken and len(running) <= workers
                ):  # one ahead: no worker idles
                    job = queue.popleft()
                    try:
                        running[pool.submit(_train_pickled, pickle.dumps(job))] = job
                    except BrokenProcessPool as lost:
                        broken = True
                        yield job, lost
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    error = future.exception()
                    if error is not None and not isinstance(error, Exception):
                        raise error
                    broken |= isinstance(error, BrokenProcessPool)
                    if broken and not begun.is_set():
                        raise WorkerStartError("they ended as they started: see above")
                    yield running.pop(future), error if error is not None else future.result()
                if interrupted():
                    queue.clear()
                    running = {f: job for f, job in running.items() if not f.cancel()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()
            raise


_SPAWN = multiprocessing.get_context("spawn")  # a forked process may hang in torch's threads


def _pool(workers: int, initial: tuple[Any, bytes]) -> Executor:
    return ProcessPoolExecutor(workers, _SPAWN, _prepare_worker, initial)


def _prepare_worker(begun: Any, share: bytes) -> None:
    """One thread per worker; ignore signals; exit with the parent."""
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    global _shared
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    torch.set_num_threads(1)
    threadpool_limits(1)  # NumPy's BLAS: threads of several workers would wait for each other
    begun.set()
    try:
        _shared = pickle.loads(share)  # of the process that started this
    except Exception as error:  # whatever the user's own modules raise: the first job says so
        _shared = WorkerStartError(f"{type(error).__name__}: {error}")


def _train_pickled(content: bytes) -> Outcome:
    """Train a job in a worker process."""
    if isinstance(_shared, WorkerStartError):
        raise _shared
    try:
        job = pickle.loads(content)  # of the process that started this
    except Exception as error:
        raise WorkerStartError(f"{type(error).__name__}: {error}") from None
    return _train_in_thread(job)


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


# -- exit worker processes when their parent dies --------------------------------------------------

POLL = 0.5  # seconds


def end_with_parent(pid: int | None = None) -> None:
    """Watch the parent of this process in a thread: a process of multiprocessing knows it.

    Any other process is given the parent's `pid`, and polls (on Unix).
    """
    threading.Thread(target=_watch, args=(pid,), daemon=True).start()


def _watch(pid: int | None) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # a pipe that is closed with the parent, however it ends
    elif pid is not None:
        while os.getppid() == pid:
            time.sleep(POLL)
    os._exit(1)


# -- progress on stderr, with an estimate of the time left ----------------------------------------
Kind = tuple[str, ...]  # what a run has in common with others: data and method


class JobProgress:
    """Counts jobs, and estimates the time left from finished jobs of the same kind.

    Rounds on one data set or of one method may take a hundred times as long as those of another: a
    kind of which no job has finished is taken to be as fast as the others on its data, or as all.
    """

    def __init__(self, jobs: Sequence[Job], meter: Meter):
        self.meter = meter
        self.costs = {job: job.cost() for job in jobs}
        self.began = time.monotonic()
        self.finished = 0
        self.failures = 0
        self.work_left: dict[Kind, float] = {}  # cost
        self.measured: dict[Kind, tuple[float, float]] = {}  # cost and seconds of finished jobs
        for job, cost in self.costs.items():
            self.work_left[_kind(job)] = self.work_left.get(_kind(job), 0.0) + cost

    def report(self, results: Mapping[Any, Any], job: Job | None) -> None:
        """All results so far, and the job that has just finished; None at the start."""
        self.finished = len(results)
        if job is None:
            for stored in results:
                self._count(stored, None)
            self.meter.before = float(self.finished)
            if self.finished:
                self.meter.note(
                    f"{self.finished} of {plural(len(self.costs), 'run')} are stored already"
                )
            return
        outcome = results[job]
        self._count(job, outcome.get("seconds") if isinstance(outcome, Mapping) else None)
        self._show(shown(job.describe()))

    def failed(self, job: Job, reason: str) -> None:
        self.failures += 1
        self._count(job, None)
        self.meter.note(shown(f"{job.describe()} failed: {reason}"))
        self._show("")

    def seconds_left(self) -> float | None:
        """Until the end, at the pace so far; None where no job has been timed."""
        if () not in self.measured:
            return None
        elapsed = max(time.monotonic() - self.began, 1e-9)
        busy_workers = max(1.0, self.measured[()][1] / elapsed)
        return sum(cost * self._rate(kind) for kind, cost in self.work_left.items()) / busy_workers

    def _count(self, job: Job, seconds: float | None) -> None:
        kind, cost = _kind(job), self.costs[job]
        self.work_left[kind] -= cost
        if seconds is None or not cost:
            return
        for depth in range(len(kind) + 1):
            before = self.measured.get(kind[:depth], (0.0, 0.0))
            self.measured[kind[:depth]] = (before[0] + cost, before[1] + seconds)

    def _rate(self, kind: Kind) -> float:
        """Seconds per unit of cost."""
        depths = range(len(kind), -1, -1)
        cost, seconds = next(self.measured[kind[:n]] for n in depths if kind[:n] in self.measured)
        return seconds / cost

    def _show(self, text: str) -> None:
        if self.failures:
            text = f"{self.failures} failed{', ' if text else ''}{text}"
        self.meter.update(self.finished + self.failures, text, seconds_left=self.seconds_left())


def _kind(job: Job) -> Kind:
    plan = getattr(job, "plan", None)
    return (plan.data, plan.name) if isinstance(plan, Plan) else ()


@contextmanager
def job_progress(jobs: Sequence[Job]) -> Iterator[JobProgress]:
    """What `sweep` and `finish` report their runs to."""
    with Meter(len(jobs), style_of(lines=True), "runs") as meter:
        yield JobProgress(jobs, meter)
