"""Channels: how messages are made smaller.

>>> parse_channel("topk(share=0.01) + qsgd(levels=16)").stages[0].share
0.01
"""

from __future__ import annotations

from ..core import text
from ..core.knobs import SettingError
from ..core.registry import Table, subclass_of
from .channel import Channel
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

CHANNELS: Table[type[Stage]] = Table(
    "channel",
    "idiolect.channels",
    {
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
    },
    subclass_of(Stage),
)

__all__ = ["CHANNELS", "Channel", "Form", "Stage", "channel_text", "parse_channel"]


def parse_channel(spec: str | Stage | Channel) -> Channel:
    """A channel from its text, a stage or a channel; "none" or "" sends numbers as they are."""
    if isinstance(spec, Channel):
        return spec
    if isinstance(spec, Stage):
        return Channel((spec,))
    if not isinstance(spec, str):
        raise SettingError(f"channel: {spec!r} is not accepted; text, a Stage or a Channel")
    if spec.strip() in ("", "none"):
        return Channel()
    return Channel(tuple(text.build_parts(spec, CHANNELS, "channel")))


def channel_text(channel: Channel) -> str:
    """The text that `parse_channel` makes this channel of.

    >>> channel_text(parse_channel("feedback+topk( share = 0.5 )"))
    'feedback + topk(share=0.5)'
    """
    return " + ".join(CHANNELS.text(stage) for stage in channel.stages) or "none"
