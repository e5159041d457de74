"""Chats by user."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...core.knobs import knob
from ..entries import register
from .text import Text


@register("chitchat")
@dataclass(frozen=True)
class Chitchat(Text):
    """Open-ended chats in pairs (BYU Chit-Chat Challenge, 2018), by user: next-word prediction."""

    minimum: int = knob(1_000, "least tokens of a client; others are left out", low=0)
    cap: int = knob(10_000, "most tokens of a client, its earliest; 0: no limit", low=0)

    name: ClassVar[str] = "chitchat"
    file: ClassVar[str] = "chitchat.json"

    def read(self, path: Path) -> dict[str, list[str]]:
        chats: dict[str, Any] = json.loads(path.read_bytes())
        messages = [
            message for chat in chats.values() for turn in chat["messages"] for message in turn
        ]
        texts = defaultdict(list)
        for message in sorted(messages, key=lambda m: m["timestamp"]):  # ISO 8601 in UTC; stable
            texts[message["sender"]].append(message["text"])
        return texts
