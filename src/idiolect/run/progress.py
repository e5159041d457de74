"""A progress bar for runs in Python: in a terminal and in notebooks.

rich is imported when a bar is first drawn: `import idiolect` does not wait for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from ..core.knobs import SettingError
from ..core.text import shown

# seed, rounds done, accuracy so far (NaN before the first evaluation)
Progress = Callable[[int, int, float], None]
AFTER = 2.0  # seconds of work before a bar appears: short runs have none
clock = time.monotonic


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    shell = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def wanted(given: Any) -> bool:
    """Whether to draw a bar: as told, or by default where somebody can see it move."""
    if given is None:
        return in_notebook() or bool(sys.stderr is not None and sys.stderr.isatty())
    if not isinstance(given, bool):
        raise SettingError(
            f"progress: {given!r} is not accepted; True, False or a function of "
            "(seed, rounds done, accuracy)"
        )
    return given


@contextmanager
def reporting(
    given: bool | Progress | None, name: str, first_seed: int, seeds: int, rounds: int
) -> Iterator[Progress | None]:
    """What a run reports its rounds to: the user's function, a bar, or nothing."""
    if given is not None and callable(given):
        yield given
        return
    with Bar(name, first_seed, seeds * rounds, rounds) if wanted(given) else nullcontext() as bar:
        yield bar


class Bar:
    """A bar over all rounds of all seeds; it appears after two seconds of work."""

    def __init__(self, name: str, first_seed: int, total: int, rounds: int):
        self.name = name
        self.first_seed = first_seed
        self.total = total
        self.rounds = rounds
        self.began = clock()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, seed: int, round: int, accuracy: float) -> None:
        """A round of a seed is done."""
        spent = clock() - self.began
        if self._bar is None:
            if spent < AFTER:
                return
            self._begin()
        done = (seed - self.first_seed) * self.rounds + round
        reached = "" if accuracy != accuracy else f", accuracy {accuracy:.4f}"
        text = f"{shown(self.name, 40)} seed {seed}{reached}"
        rate = f"{done / spent:.1f} rounds/s" if spent else ""
        self._bar.update(self._task, completed=done, description=text, rate=rate)

    def _begin(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._bar.start()
        self._task = self._bar.add_task(shown(self.name, 40), total=self.total, rate="")
