"""A Flower message to the site's process and its reply back: passed on, and nothing executed.

The site's process listens on a Unix socket, whose path its owner gives to the SuperNode:
`--node-config 'socket="/path/host.sock"'`. A request is 8 bytes of length, little-endian, and a
frame (`idiolect.host.calls`); so is the reply.

    python -m idiolect.deploy.flower.relay ADDRESS SECRET_FILE

answers the messages of a `flower-supernode --isolation process` with this Runtime API.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..site.sockets import TooLarge, exchange

RECORD = "frame"  # the name of the one record in a message, and of the one entry in it
MOST_FRAME = 1 << 31  # bytes
RAISED = 2  # the code by which Flower reports a ClientApp that raised an exception


class SiteDown(ConnectionError):
    """The site's process does not answer; the text says why."""


def pass_on(frame: bytes, path: str) -> bytes:
    """A frame to the process that listens at a socket; its reply. `SiteDown` where it gives none.

    However long it takes: a deadline is the server's business.
    """
    try:
        return exchange(path, frame, MOST_FRAME)
    except (FileNotFoundError, ConnectionRefusedError):
        raise SiteDown(
            f"the site's process is not running: nothing listens at {path}; idiolect host start"
        ) from None
    except TooLarge as error:
        raise SiteDown(f"the site's process sends too much: {error}") from None
    except EOFError:
        raise SiteDown("the site's process ended before it had answered") from None
    except OSError as error:
        raise SiteDown(f"the site's process cannot be reached at {path}: {error}") from None


def relay(message: Any, context: Any) -> Any:
    """The reply of the site's process to a Flower message; an error reply where it gives none."""
    from flwr.app import ConfigRecord, Error, Message, RecordDict

    def failed(text: str) -> Any:
        return Message(Error(RAISED, text), reply_to=message)

    path = context.node_config.get("socket")
    if not isinstance(path, str) or not path:
        return failed("the SuperNode has no --node-config 'socket=\"...\"' of the site's process")
    try:
        frame = message.content[RECORD][RECORD]
    except (KeyError, TypeError, AttributeError, ValueError):
        frame = None
    if not isinstance(frame, bytes):
        return failed("the message holds no frame")
    try:
        reply = pass_on(frame, path)
    except SiteDown as down:
        return failed(str(down))
    return Message(RecordDict({RECORD: ConfigRecord({RECORD: reply})}), reply_to=message)


def __getattr__(name: str) -> Any:
    """`app`: the relay as a Flower ClientApp, made when it is asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flwr.clientapp import ClientApp

    app = ClientApp()
    app.query()(relay)
    return app


if __name__ == "__main__":
    from .internals import answer

    answer(sys.argv[1], Path(sys.argv[2]).read_bytes(), relay)
