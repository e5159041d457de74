"""Channels: how messages are made smaller. `make("topk(share=0.01) + qsgd(levels=16)")`."""

from __future__ import annotations

from ..core import text as specs
from .channel import Chain
from .clip import Clip
from .dgc import DGC
from .feedback import Feedback
from .half import Half
from .int8 import Int8
from .lbgm import LBGM
from .qsgd import QSGD
from .randomk import RandomK
from .sign import Sign
from .sketch import Sketch
from .stage import Form, Stage
from .topk import TopK

CHANNELS: dict[str, type[Stage]] = {
    "clip": Clip,
    "dgc": DGC,
    "feedback": Feedback,
    "half": Half,
    "int8": Int8,
    "lbgm": LBGM,
    "qsgd": QSGD,
    "randomk": RandomK,
    "sign": Sign,
    "sketch": Sketch,
    "topk": TopK,
}

__all__ = ["CHANNELS", "Chain", "Form", "Stage", "make"]


def make(text: str) -> Chain:
    """A channel from its text; "none" or "" sends numbers as they are."""
    return Chain(() if text in ("", "none") else tuple(specs.make(text, CHANNELS, "channel")))
