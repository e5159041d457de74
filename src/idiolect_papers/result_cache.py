"""Results of a long command that survive its end: started again, it goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from idiolect.run.directory import on_disk
from idiolect.run.identity import package_source
from idiolect.run.interrupts import Interruption, finish_on_interrupt
from idiolect.study.many import store, stored


class Kept:
    """Plain data by key, a line of a file each."""

    def __init__(self, path: Path, interrupted: Interruption):
        self.path = path
        self.interrupted = interrupted
        self.found = stored(path)
        self.code = package_source()
        self._waiting: list[str] = []

    def __call__(self, make: Callable[[], Any], *parts: Any) -> Any:
        """What `make` gives, or gave before with these parts (JSON) under the same code."""
        if self.interrupted():
            raise self.interrupted.stop(
                f"what is done is in {self.path}; the same command goes on from there"
            )
        text = json.dumps([self.code, *parts], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:24]
        if key not in self.found:
            self._waiting.append(json.dumps({"key": key, "job": str(parts), "result": make()}))
            self.found[key] = json.loads(self._waiting[-1])["result"]
            with on_disk(f"the result of {parts}"):
                store(self.path, self._waiting)
        return self.found[key]


@contextmanager
def kept(path: Path) -> Iterator[Kept]:
    """A file of results that is removed when the command is done.

    Changed code finds nothing in it. Ctrl-C, SIGTERM and SIGHUP stop the command after the result
    at work.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / ".golden.jsonl"
    ...     with kept(path) as keep:
    ...         keep(lambda: {"accuracy": 0.5}, "fedavg"), path.exists()
    ...     path.exists()
    ({'accuracy': 0.5}, True)
    False
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with finish_on_interrupt("finishing the run at work, then stopping") as interrupted:
        yield Kept(path, interrupted)
        path.unlink(missing_ok=True)
