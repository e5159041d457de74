"""Signals that ask a run to stop: it finishes the round it is in, and saves nothing half-done."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

# Ctrl-C, `kill` (also of a scheduler or a shutdown), and a terminal that is closed
NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


class Interrupted(KeyboardInterrupt):
    """A signal: the run stopped between two rounds; what was done is in its directory."""

    def __init__(self, text: str = "", number: int = signal.SIGINT):
        super().__init__(text)
        self.number = number  # of the signal


def exit_code(stop: KeyboardInterrupt) -> int:
    """What a shell expects of a process that a signal stopped: 130 for Ctrl-C, 143 for SIGTERM.

    >>> exit_code(KeyboardInterrupt()), exit_code(Interrupted("stopped", signal.SIGTERM))
    (130, 143)
    """
    return 128 + getattr(stop, "number", signal.SIGINT)


@dataclass
class Interruption:
    """Whether a signal came, and which; true from then on."""

    what: str = ""  # what is still done after the first signal
    numbers: list[int] = field(default_factory=list)

    def __call__(self) -> bool:
        return bool(self.numbers)

    def stop(self, text: str) -> Interrupted:
        """The error that ends the run."""
        return Interrupted(text, self.numbers[0])

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals."""
        if self.numbers:
            # a plain Ctrl-C stays what it is everywhere in Python
            raise (
                KeyboardInterrupt
                if number == signal.SIGINT
                else Interrupted("stopped at once", number)
            )
        self.numbers.append(number)
        again = "Ctrl-C again" if number == signal.SIGINT else "a second signal"
        with suppress(OSError, RuntimeError):  # the terminal is gone, or being written to
            print(f"\n{self.what} ({again} stops at once)", file=sys.stderr)


_current: Interruption | None = None


@contextmanager
def finish_on_interrupt(what: str) -> Iterator[Interruption]:
    """Whether Ctrl-C, SIGTERM or SIGHUP came, as a function; `what` is what is still done then.

    A second signal stops at once. Inside another one the two are one, so that a signal between
    the runs of a comparison stops the comparison. Handlers are put back at the end; outside the
    main thread nothing is watched. A signal that is ignored (as `nohup` does) stays ignored.

    >>> with finish_on_interrupt("finishing this round") as interrupted:
    ...     interrupted()
    False
    """
    global _current
    if threading.current_thread() is not threading.main_thread():
        yield Interruption()
        return
    if _current is not None:
        before = _current.what
        _current.what = what
        try:
            yield _current
        finally:
            _current.what = before
        return
    _current = Interruption(what)
    handlers: dict[int, Callable | int | None] = {}
    try:
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                handlers[number] = signal.signal(number, _current.note)
        yield _current
    finally:
        _current = None
        for number, handler in handlers.items():
            # None: a handler that was not installed from Python cannot be put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
