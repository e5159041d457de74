"""Who is protected from whom: the line of text that a run is given as `privacy`.

Nobody sets a sensitivity: it follows from the clipping norm C and from who adds the noise. One
message of a client is all of its parts together, each as a change of what the client was sent; its
norm is at most C.

>>> PROTECTIONS.parse("central(clip=0.5)")
Central(noise=0.0, clip=0.5, quantile=0.5, clip_rate=0.2)
>>> PROTECTIONS.parse("local").sensitivity(clip=2.0)
4.0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..core.knobs import Knobs, OtherThan, knob
from ..core.registry import PartTable


def clip_knob() -> Any:
    """C of whole messages."""
    return knob(1.0, "C, largest norm of a message, as a change of what was sent", above=0)


@dataclass(frozen=True)
class Protection(Knobs):
    """Noise on clipped messages; what it is called is who adds it."""

    title: ClassVar[str] = ""
    against: ClassVar[str] = ""  # whom it protects from, in words
    trusted: ClassVar[str] = ""  # whom it does not protect from, in words
    neighbours: ClassVar[str] = ""  # what one client may change, in words
    at_client: ClassVar[bool] = False  # messages are private before they leave their client
    in_sums: ClassVar[bool] = False  # clients share the noise of a secure sum
    unit: ClassVar[str] = "client"  # who is protected: a client with all of its data, or a sample

    noise: float = knob(
        0.0,
        "z, noise multiplier: the noise has z times the sensitivity as its standard deviation; "
        "0 = as little as epsilon allows over the planned rounds",
        low=0,
    )

    def sensitivity(self, clip: float) -> float:
        """How far one client moves what is released, in L2, at a clipping norm."""
        return clip

    @property
    def adaptive(self) -> bool:
        """Whether the clipping norm follows the norms of messages."""
        return False


@dataclass(frozen=True)
class Central(Protection):
    """The server adds noise to the sum of clipped messages: protects from whoever sees models."""

    title: ClassVar[str] = "central"
    against: ClassVar[str] = "everyone who sees the models that the server sends"
    trusted: ClassVar[str] = "the server, which sees each clipped message"
    neighbours: ClassVar[str] = "with what one client sends, or with nothing in its place"

    clip: float = clip_knob()
    quantile: float = knob(
        0.5,
        "C follows this quantile of the messages' norms, by a noisy count whose small part of the "
        "budget is accounted (Andrew et al. 2021); 0 = C stays",
        low=0,
        below=1,
    )
    clip_rate: float = knob(
        0.2,
        "η_C: C <- C exp(-η_C (share of messages within C - quantile))",
        above=0,
        acts_with={"quantile": OtherThan(0.0)},
    )

    @property
    def adaptive(self) -> bool:
        return self.quantile > 0


@dataclass(frozen=True)
class Distributed(Protection):
    """Every client adds its share of noise to a secure sum: protects from the server too.

    C is that of `secure_sums`, which clips the same messages.
    """

    title: ClassVar[str] = "distributed"
    against: ClassVar[str] = "everyone, the server included, which sees sums alone"
    trusted: ClassVar[str] = (
        "the other clients of a round, to add their shares of the noise: of those that collude "
        "with the server none counts"
    )
    neighbours: ClassVar[str] = "with a message or with none"
    in_sums: ClassVar[bool] = True


@dataclass(frozen=True)
class Local(Protection):
    """Every client adds noise to its own message: protects from everyone, the server too."""

    title: ClassVar[str] = "local"
    against: ClassVar[str] = "everyone, the server included"
    trusted: ClassVar[str] = "nobody"
    neighbours: ClassVar[str] = "any message in place of another"
    at_client: ClassVar[bool] = True

    clip: float = clip_knob()

    def sensitivity(self, clip: float) -> float:
        """Two messages of norm C are at most 2 C apart."""
        return 2 * clip


@dataclass(frozen=True)
class Samples(Protection):
    """Every client adds noise to each gradient: protects single samples, from the server too."""

    title: ClassVar[str] = "samples"
    against: ClassVar[str] = "everyone, the server included"
    trusted: ClassVar[str] = "nobody but the owner of the sample's site"
    neighbours: ClassVar[str] = "with or without one sample of a client"
    at_client: ClassVar[bool] = True
    unit: ClassVar[str] = "sample"

    clip: float = knob(1.0, "C, largest norm of the gradient of one sample", above=0)


PROTECTIONS: PartTable[Protection, Protection | None] = PartTable(
    "privacy",
    "idiolect.protections",
    {part.title: part for part in (Central, Distributed, Local, Samples)},
    Protection,
    empty=lambda: None,
)
