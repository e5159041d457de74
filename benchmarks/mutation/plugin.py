"""A pytest plugin in whose place of running the tests stands: run them against every mutant."""

from __future__ import annotations

import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from .mutants import Mutant, Source, functions

MEMORY = 12 << 30  # bytes of address space of a mutant


@dataclass
class Tested:
    """What a test does when nothing is changed."""

    item: pytest.Item
    seconds: float
    lines: set[int]  # of the module


class Mutation:
    """Collected once; every mutant in a fork."""

    def __init__(self, module: str, sample: int, seed: int, workers: int, budget: float):
        self.module = importlib.import_module(module)
        self.path = str(self.module.__file__)
        self.sample = sample
        self.seed = seed
        self.workers = workers
        self.budget = budget  # seconds of tests per mutant
        self.found = 0
        self.seconds = 0.0
        self.failed = False
        self.results: list[dict] = []
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        mutants = list(Source(Path(self.path).read_text(), self.path).mutants())
        known = functions(self.module)
        mutants = [m for m in mutants if m.function in known]
        self.found = len(mutants)
        if 0 < self.sample < len(mutants):
            mutants = random.Random(self.seed).sample(mutants, self.sample)
        began = time.monotonic()
        tests = self._measure(session.items)
        took = time.monotonic() - began
        print(f"  {len(mutants)} mutants; {len(tests)} tests in {took:.0f} s", file=sys.__stderr__)
        running: dict[int, tuple[Mutant, float, Path]] = {}
        for mutant in mutants:
            while len(running) >= self.workers:
                self._collect(running)
            self._begin(session, mutant, tests, running)
        while running:
            self._collect(running)
        self.seconds = time.monotonic() - began
        return True

    # -- without a change ------------------------------------------------------------------------
    def _measure(self, items: list[pytest.Item]) -> list[Tested]:
        """Each test by itself: how long it takes and which lines of the module it runs.

        In a fork, as a mutant is tested. Tests that fail there are left out.
        """
        with tempfile.NamedTemporaryFile("r") as file:
            child = self._fork(items[0], lambda: self._trace(items, file.name), 3600)
            os.waitpid(child[0], 0)
            measured = json.loads(file.read() or "[]")
            shutil.rmtree(child[1], ignore_errors=True)
        tests = [
            Tested(item, seconds, set(lines))
            for item, (seconds, lines, passed) in zip(items, measured, strict=True)
            if passed
        ]
        self.skipped = [
            item.nodeid for item, (_, _, ok) in zip(items, measured, strict=True) if not ok
        ]
        return sorted(tests, key=lambda test: test.seconds)

    def _trace(self, items: list[pytest.Item], file: str) -> None:
        measured = []
        for item in items:
            lines: set[int] = set()

            def local(frame, event, arg, lines=lines):
                lines.add(frame.f_lineno)
                return local

            def trace(frame, event, arg, local=local, lines=lines):
                if frame.f_code.co_filename != self.path:
                    return None
                lines.add(frame.f_lineno)
                return local

            self.failed = False
            began = time.perf_counter()
            sys.settrace(trace)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            sys.settrace(None)
            measured.append((time.perf_counter() - began, sorted(lines), not self.failed))
        Path(file).write_text(json.dumps(measured))

    # -- with one --------------------------------------------------------------------------------
    def _begin(
        self,
        session: pytest.Session,
        mutant: Mutant,
        tests: list[Tested],
        running: dict[int, tuple[Mutant, float, Path]],
    ) -> None:
        first, last = mutant.lines
        chosen = [t for t in tests if any(first <= line <= last for line in t.lines)]
        if not chosen:
            self._note(mutant, "no test", 0.0)
            return
        usual = 0.0
        for number, test in enumerate(chosen):  # the fastest first, and one at least
            usual += test.seconds
            if usual > self.budget and number:
                chosen = chosen[:number]
                break

        def work() -> None:
            functions(self.module)[mutant.function].__code__ = mutant.code
            for test in chosen:
                test.item.config.hook.pytest_runtest_protocol(item=test.item, nextitem=None)
                if self.failed:
                    os._exit(1)

        self.failed = False
        pid, folder = self._fork(session.items[0], work, int(20 + 4 * usual))
        running[pid] = (mutant, time.monotonic(), folder)

    def _fork(self, item: pytest.Item, work: Callable[[], None], timeout: int) -> tuple[int, Path]:
        """Do some work in a process of its own, with a folder of its own: (process, folder)."""
        folder = Path(tempfile.mkdtemp(prefix="idiolect-mutant-"))
        child = os.fork()
        if child:
            return child, folder
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(timeout)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            quiet = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(quiet, stream)
            item.config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)

    def _collect(self, running: dict[int, tuple[Mutant, float, Path]]) -> None:
        """Wait for one of the forks to end."""
        pid, status = os.wait()
        mutant, began, folder = running.pop(pid)
        shutil.rmtree(folder, ignore_errors=True)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
            fate = "timeout"
        else:
            fate = "killed" if status else "survived"
        self._note(mutant, fate, time.monotonic() - began)

    def _note(self, mutant: Mutant, fate: str, seconds: float) -> None:
        self.results.append(
            {
                "fate": fate,
                "operator": mutant.operator,
                "line": mutant.line,
                "function": mutant.function,
                "diff": mutant.diff,
                "seconds": round(seconds, 2),
            }
        )
        done = len(self.results)
        if done % 20 == 0:
            alive = sum(r["fate"] in ("survived", "no test") for r in self.results)
            print(f"  {done} mutants, {alive} alive", file=sys.__stderr__, flush=True)
