"""Progress on stderr: a bar in terminals and notebooks, elsewhere a line from time to time.

rich is imported when a bar is first drawn: `import idiolect` does not wait for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

from ..core.knobs import SettingError
from ..core.text import plural, shown
from .format import duration, number

Style = Literal["bar", "lines", "none"]
# seed, rounds done, the main figure so far (NaN before the first evaluation)
RoundReport = Callable[[int, int, float], None]
AFTER = 2.0  # seconds of work before a bar appears: short runs have none
SECONDS = 10.0  # between two lines
clock = time.monotonic


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def style_of(progress: Any = None, *, lines: bool = False) -> Style:
    """How to show progress; by default a bar where it can move, elsewhere lines or nothing."""
    if progress is None:
        if in_notebook() or (sys.stderr is not None and sys.stderr.isatty()):
            return "bar"
        return "lines" if lines else "none"
    if not isinstance(progress, bool):
        raise SettingError(
            "progress must be True, False or a function of (seed, rounds done, accuracy), "
            f"got {progress!r}"
        )
    return "bar" if progress else "none"


class Meter:
    """Work done out of a total.

    A bar appears after two seconds of work; lines are printed at each tenth and every ten seconds.
    """

    def __init__(
        self,
        total: float,
        style: Style,
        unit: str = "rounds",
        *,
        before: float | None = None,
        speed: bool = False,
        estimated: bool = False,
    ):
        self.total = total
        self.style = style if total else "none"
        self.unit = unit
        self.before = before  # done before this meter began; by default all but the first report
        self.speed = speed  # also shows units per second
        self.estimated = estimated  # the total may change
        self.began = self.last_line = clock()
        self.tenth = 0
        self._bar: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(
        self,
        count: float,
        text: str,
        *,
        total: float | None = None,
        seconds_left: float | None = None,
    ) -> None:
        """Show `count` units of the total; `seconds_left`: where the caller knows better."""
        if self.style == "none":
            return
        self.total = total or self.total
        self.before = count - 1 if self.before is None else self.before
        now = clock()
        if self.style == "bar":
            if self._bar is not None or now - self.began >= AFTER:
                self._draw(count, text, seconds_left)
            return
        tenth = int(10 * count // self.total)
        if tenth > self.tenth or now - self.last_line >= SECONDS:
            self.tenth = max(tenth, self.tenth)
            self.last_line = now
            about = "about " if self.estimated else ""
            of = plural(round(self.total), self.unit.removesuffix("s"))
            head = f"{count:,.0f} of {about}{of}"
            self.note(
                f"{head} ({int(100 * count // self.total)} %): "
                f"{text}{self._pace(count, seconds_left)}"
            )

    def note(self, text: str) -> None:
        """A line that stays, above the bar where there is one."""
        if self.style != "none":
            from .console import say

            say(text)

    def _pace(self, count: float, seconds_left: float | None) -> str:
        assert self.before is not None
        rate = (count - self.before) / max(clock() - self.began, 1e-9)
        text = f", {rate:.3g} {self.unit}/s" if self.speed else ""
        if seconds_left is None and rate > 0:
            seconds_left = (self.total - count) / rate
        return text + (
            f", about {duration(seconds_left)} left" if seconds_left and count < self.total else ""
        )

    def _draw(self, count: float, text: str, seconds_left: float | None) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, Progress, TextColumn

            from .console import ERR

            words = TextColumn("{task.description}", markup=False)
            tail = TextColumn("{task.fields[pace]}", markup=False)
            self._bar = Progress(words, BarColumn(), tail, console=ERR)
            self._bar.start()
            self._task = self._bar.add_task("", total=self.total, pace="")
        pace = f"{count:,.0f}/{self.total:,.0f}{self._pace(count, seconds_left)}"
        self._bar.update(
            self._task, completed=count, total=self.total, description=shown(text, 100), pace=pace
        )


class RoundMeter(Meter):
    """Counts the rounds of several runs; called, it makes the report function of one of them."""

    def __init__(self, total: int, style: Style):
        super().__init__(total, style, "rounds", speed=True)
        self.rounds = 0  # of all runs so far

    def __call__(self, name: str, first_seed: int, rounds: int) -> RoundReport:
        """The report function of a run of so many rounds per seed."""
        before = self.rounds

        def report(seed: int, round_number: int, figure: float) -> None:
            self.rounds = before + (seed - first_seed) * rounds + round_number
            what = getattr(figure, "name", "accuracy")
            reached = "" if figure != figure else f", {what} {number(figure)}"
            self.update(self.rounds, f"{shown(name, 40)} seed {seed}{reached}")

        return report


@contextmanager
def run_progress(
    progress: bool | RoundReport | None, name: str, first_seed: int, seeds: int, rounds: int
) -> Iterator[RoundReport]:
    """What one run reports its rounds to: the user's function, or a bar over its seeds."""
    if progress is not None and callable(progress):
        yield progress
        return
    with RoundMeter(seeds * rounds, style_of(progress)) as meter:
        yield meter(name, first_seed, rounds)
