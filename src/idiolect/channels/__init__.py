"""Channels: how messages are made smaller. `make("topk(share=0.01) + qsgd(levels=16)")`."""

from __future__ import annotations

from .. import specs
from .chain import Chain
from .feedback import Feedback
from .half import Half
from .stage import Form, Stage

CHANNELS: dict[str, type[Stage]] = {
    "feedback": Feedback,
    "half": Half,
}

__all__ = ["CHANNELS", "Chain", "Form", "Stage", "make"]


def make(text: str) -> Chain:
    """A channel from its text; "none" or "" sends numbers as they are."""
    return Chain(() if text in ("", "none") else tuple(specs.make(text, CHANNELS, "channel")))
