"""Channels: how messages are made smaller.

>>> parse_channel("topk(share=0.01) + qsgd(levels=16)").stages[0].share
0.01
"""

from __future__ import annotations

from ..core.registry import PartTable
from .channel import Channel
from .dense import Clip, Feedback, Half, Int8, Sign
from .dgc import DGC
from .lbgm import LBGM
from .qsgd import QSGD
from .sketch import Sketch
from .sparse import RandomK, TopK
from .stage import Form, Stage

CHANNELS: PartTable[Stage, Channel] = PartTable(
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
    Stage,
    whole=Channel,
    join=lambda stages: Channel(tuple(stages)),
    split=lambda channel: channel.stages,
    empty=Channel,
)

# a channel from its text, a stage or a channel; "none" or "" sends numbers as they are
parse_channel = CHANNELS.parse
channel_text = CHANNELS.text

__all__ = ["CHANNELS", "Channel", "Form", "Stage", "channel_text", "parse_channel"]
