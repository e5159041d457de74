"""Flower: frames between a server and sites that keep their data, by way of a SuperLink.

Flower carries bytes, authenticates nodes and survives the loss of either side; who is asked, until
when and what is accepted is decided here. A node is one site: its relay (`deploy/flower/relay.py`)
passes frames to the process of the data owner.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...core.knobs import SettingError
from . import EngineTraits, SiteCarrier

ENGINE = EngineTraits("at the sites of a deployment")

RECORD = "frame"  # of deploy/flower/relay.py: the one record in a message, and its one entry
# seconds between two looks for replies: the first, and after a while; Flower's own loop waits for 3
POLL = 0.05
SLOWEST = 0.5
MOST_SAID = 500  # characters that are kept of why a node gave no reply
UNREACHED = 60.0  # seconds without the SuperLink after which a run ends; it can be resumed


class FlowerCarrier(SiteCarrier):
    """Frames to the nodes of a Flower Grid and back.

    A frame travels as bytes in a ConfigRecord: 295 bytes around it, against 719 of an ArrayRecord.
    """

    def __init__(
        self,
        grid: Any,
        poll: float = POLL,
        registered: Callable[[], dict[int, str] | None] = lambda: None,
    ):
        super().__init__()
        require()
        self.grid = grid
        self._registered = registered
        self.poll = poll
        self._pause = poll  # until the next look
        self._waiting: dict[str, tuple[int, int]] = {}  # message id -> ticket, node
        self._refused: list[int] = []  # tickets of frames that could not even be sent
        self._tickets = 0
        self._failing = 0.0  # since when replies cannot be asked for; 0 = they can

    def registered(self) -> dict[int, str] | None:
        return self._registered()

    def online(self) -> set[int]:
        """Those that Flower takes to be connected; one that died is for another 45 seconds."""
        return {int(node) for node in self.grid.get_node_ids()}

    def send_to(self, node: int, frame: bytes) -> int:
        from flwr.app import ConfigRecord, Message, RecordDict

        self._tickets += 1
        self._pause = self.poll
        content = RecordDict({RECORD: ConfigRecord({RECORD: frame})})
        message = Message(content, dst_node_id=node, message_type="query")
        try:
            message_ids = list(self.grid.push_messages([message]))
            why = "Flower did not take the message"
        except Exception as error:  # of Flower: a part that it sent twice, a time-out
            message_ids, why = [], f"Flower did not take the message: {error}"
        if message_ids and message_ids[0]:
            self._waiting[message_ids[0]] = (self._tickets, node)
        else:
            self.why[node] = why[:MOST_SAID]
            self._refused.append(self._tickets)
        return self._tickets

    def receive(self, seconds: float) -> list[tuple[int, bytes | None]]:
        end = time.monotonic() + seconds
        while True:
            replies: list[tuple[int, bytes | None]] = [(ticket, None) for ticket in self._refused]
            self._refused = []
            for reply in self._pulled():
                # an error comes from the SuperLink, not from the node: this tells what it is about
                ticket, node = self._waiting.pop(reply.metadata.reply_to_message_id, (-1, -1))
                if ticket >= 0:
                    replies.append((ticket, self._frame(reply, node)))
            seconds_left = end - time.monotonic()
            if replies or seconds_left <= 0:
                return replies
            time.sleep(min(self._pause, seconds_left))
            self._pause = min(1.3 * self._pause, max(SLOWEST, self.poll))

    def _pulled(self) -> list[Any]:
        """Replies that have come; none while the SuperLink cannot be reached for a moment."""
        if not self._waiting:
            return []
        try:
            replies = list(self.grid.pull_messages(list(self._waiting)))
        except Exception:
            now = time.monotonic()
            self._failing = self._failing or now
            if now - self._failing > UNREACHED:
                raise
            return []
        self._failing = 0.0
        return replies

    def _frame(self, reply: Any, node: int) -> bytes | None:
        """The frame in a reply; None: there is none, and `why` says why."""
        if reply.has_error():
            self.why[node] = str(reply.error.reason)[:MOST_SAID]
            return None
        self.why.pop(node, None)
        try:
            frame = reply.content[RECORD][RECORD]
        except (KeyError, TypeError):
            frame = b""
        return frame if isinstance(frame, bytes) else b""  # of which the engine says it is no frame

    def close(self) -> None:
        self._waiting = {}
        self._refused = []


def require() -> Any:
    """The package flwr, or a message that says how to get it."""
    try:
        import flwr
    except ImportError:
        raise SettingError(
            "engine: 'flower' needs the package flwr, which is not installed; "
            "pip install 'idiolect[flower]'"
        ) from None
    return flwr
