"""What a rule is: the rows that clients sent, in; one row, out. And how many liars among them it can bear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...core.knobs import Knobs, SettingError, knob


class TooFew(SettingError):
    """Fewer clients than the rule needs: refused when a run is made; in a round, the server stays as it is."""


@dataclass(frozen=True)
class Part(Knobs):
    """A rule or a wrapper: it has a name and knows for how many clients it makes sense."""

    title: ClassVar[str] = ""

    def check(self, n: int) -> None:
        """Refuse n clients where they are too few."""
        if n < 1:
            raise TooFew(f"rule: {self.title} needs at least 1 client, not {n}")


@dataclass(frozen=True)
class Rule(Part):
    """rows[S, m], weights[S] -> [m]: a pure function. `key` names the random numbers of a rule that draws some (see bucketing)."""

    def __call__(self, rows: Tensor, weights: Tensor, *, key: int = 0) -> Tensor:
        self.check(len(rows))
        return self.combine(rows, weights)

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """The rule itself; the number of rows has been checked."""
        raise NotImplementedError


@dataclass(frozen=True)
class Wrapper(Part):
    """rows[S, m], weights[S] -> fewer or milder rows and their weights, for the rule that follows."""

    def __call__(self, rows: Tensor, weights: Tensor, *, key: int = 0) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def after(self, n: int) -> int:
        """How many rows are left of n."""
        return n


@dataclass(frozen=True)
class Withstands(Part):
    """A part that is told, or works out, how many liars f there may be: n >= slope f + offset."""

    slope: ClassVar[int] = 2
    offset: ClassVar[int] = 1

    f: int = knob(-1, "liars withstood; -1 = as many as the rule can bear", low=-1)

    def check(self, n: int) -> None:
        most, need = (n - self.offset) // self.slope, f"n >= {self.slope} f + {self.offset}"
        if most < 0:
            raise TooFew(
                f"rule: {self.title} needs at least {self.slope * max(self.f, 0) + self.offset} clients ({need}), not {n}"
            )
        if self.f > most:
            raise TooFew(
                f"f: {self.f} is not accepted for {self.title} with {n} clients; at most {most} ({need})"
            )

    def liars(self, n: int) -> int:
        """f for n clients."""
        return (n - self.offset) // self.slope if self.f == -1 else self.f
