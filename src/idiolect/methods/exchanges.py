"""A method in one of the several exchanges of its round (Traits.exchanges)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..core.knobs import SettingError
from ..core.types import State
from ..method import NOBODY, Exchange, Method
from ..task.context import Here
from ..task.task import Task
from .wrapped import Wrapped


@dataclass(frozen=True)
class OneExchange(Wrapped):
    """What of a method takes part in one exchange: the parts that travel, and its name in `here`.

    Parts that no exchange names, such as those of a wrapper, travel in the last one.
    """

    number: int

    @property
    def exchange(self) -> Exchange:
        return self.traits.exchanges[self.number]

    @property
    def last(self) -> bool:
        return self.number == len(self.traits.exchanges) - 1

    def message(self, task: Task) -> dict[str, int]:
        named = {n for e in self.traits.exchanges for n in e.up}
        parts = self.inner.message(task)
        own = {*self.exchange.up, *(parts.keys() - named if self.last else ())}
        return {n: m for n, m in parts.items() if n in own}

    def broadcast(self, task: Task, server: State) -> State:
        down = self.inner.broadcast(task, server)
        names = self.exchange.down
        return down if names is None else {n: t for n, t in down.items() if n in names}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        here.exchange = self.exchange.name
        return self.inner.update(task, down, private, here)


def exchanges_of(method: Method) -> tuple[Method, ...]:
    """The method in each exchange of its round: itself where there is one."""
    count = len(method.traits.exchanges)
    if not count or isinstance(method, OneExchange):
        return (method,)
    return tuple(OneExchange(method, k) for k in range(count))


def check_exchanges(method: Method, task: Task) -> None:
    """Refuse exchanges that do not fit the method's messages, for who has written it."""
    exchanges = method.traits.exchanges
    if not exchanges:
        return
    parts = method.message(task)
    down = method.broadcast(task, method.server(task) | method.server_rows(task, NOBODY))
    times_up = Counter(n for e in exchanges for n in e.up)
    unknown = [n for n in times_up if n not in parts]
    unknown += [n for e in exchanges for n in e.down or () if n not in down]
    named = [e.name for e in exchanges]
    reason = ""
    if len(exchanges) < 2 or len(set(named)) < len(named) or not all(named):
        reason = f"two or more, with a name each, got {named}"
    elif unknown:
        reason = f"about parts of message and broadcast, got {unknown[0]!r}"
    elif twice := [n for n, count in times_up.items() if count > 1]:
        reason = f"such that each part travels up once, got {twice[0]!r} twice"
    elif not all(any(parts.get(n) for n in e.up) for e in exchanges):
        reason = "such that each sends a part with numbers up"
    if reason:
        raise SettingError(f"{type(method).__name__}.traits.exchanges must be {reason}")
