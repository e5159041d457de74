"""What a site runs between Flower and its own process: frames are passed on, nothing is executed.

A module of its own, outside the package: it imports no torch, so that it starts quickly, and it is
all of idiolect that ever touches what comes over the network before the site's process has seen it.

    python -m idiolect_relay node ...     Flower's SuperNode, which asks for messages more often
    python -m idiolect_relay work ...     takes messages from the SuperNode, in place of Flower's
                                          SuperExec: the app that comes with a run is never
                                          installed or imported
    from idiolect_relay import app        the same as a Flower ClientApp, for a plain SuperNode

The site's process listens on a Unix socket, whose path its owner gives to the SuperNode:
`--node-config 'socket="/path/host.sock"'`. A request is 8 bytes of length, little-endian, and a
frame (`idiolect.host.calls`); so is the reply.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from typing import Any

RECORD = "frame"  # the name of the one record in a message, and of the one entry in it
MOST_FRAME = 1 << 31  # bytes
SECONDS_TO_CONNECT = 10.0
IDLE = 3.0  # seconds between two questions of a SuperNode that has nothing to do
BUSY = 0.2  # the same while a run goes on
STAYS_BUSY = 120.0  # seconds after the last message in which it is taken to go on
LOOKS = 0.1  # seconds between two looks for a message at the SuperNode


class SiteDown(ConnectionError):
    """The site's process does not answer; the text says why."""


# -- frames ----------------------------------------------------------------------------------------
def pass_on(frame: bytes, path: str) -> bytes:
    """A frame to the process that listens at a socket; its reply. `SiteDown` where it gives none.

    However long it takes: a deadline is the server's business.
    """
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(SECONDS_TO_CONNECT)
            line.connect(path)
            line.settimeout(None)
            line.sendall(len(frame).to_bytes(8, "little") + frame)
            length = int.from_bytes(_exactly(line, 8), "little")
            if length > MOST_FRAME:
                raise SiteDown(f"the site's process sends {length} bytes; at most {MOST_FRAME}")
            return _exactly(line, length)
    except (FileNotFoundError, ConnectionRefusedError):
        raise SiteDown(
            f"the site's process is not running: nobody listens at {path}; idiolect host start"
        ) from None
    except SiteDown:
        raise
    except OSError as error:
        raise SiteDown(f"the site's process cannot be reached at {path}: {error}") from None


def _exactly(line: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        piece = line.recv(min(length - len(found), 1 << 20))
        if not piece:
            raise SiteDown("the site's process ended before it had answered")
        found += piece
    return bytes(found)


# -- Flower ----------------------------------------------------------------------------------------
def relay(message: Any, context: Any) -> Any:
    """The reply of the site's process to a Flower message; an error reply where it gives none."""
    from flwr.app import ConfigRecord, Error, Message, RecordDict
    from flwr.common.constant import ErrorCode

    def failed(text: str) -> Any:
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, text), reply_to=message)

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

    made = ClientApp()
    made.query()(relay)
    return made


def work(address: str, root: bytes | None = None) -> None:
    """Answer the messages of a SuperNode, one after the other, until the process is stopped."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    client = _client(address, root)
    while True:
        asked = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        got = client.AcquireTask(asked)
        if got.HasField("task") and got.token:
            _carry_out(address, root, got.token)
        else:
            time.sleep(LOOKS)


def _carry_out(address: str, root: bytes | None, token: str) -> None:
    """One message: what Flower's own ClientApp process does, without the app of the run."""
    from flwr.common.constant import SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supernode.runtime.run_clientapp import (
        pull_task_input,
        push_message,
        push_task_output,
    )

    client = _client(address, root, token)
    alive = HeartbeatSender(make_task_heartbeat_fn_http(client))
    alive.start()
    try:
        message, context, _, _ = pull_task_input(client)
        push_message(client, relay(message, context), context)
        push_task_output(client, context, SubStatus.COMPLETED, "")
    except Exception as error:  # of Flower; the next message may do better
        print(f"a message could not be answered: {error!r}", file=sys.stderr, flush=True)
        push_task_output(client, None, SubStatus.FAILED, repr(error)[:200])
    finally:
        alive.stop()
        client.close()


def _client(address: str, root: bytes | None, token: str = "") -> Any:
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")]
    if token:
        interceptors.append(RuntimeTokenHttpInterceptor(token))
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=root is None,
        root_certificates=root,
        interceptors=interceptors,
        retry_invoker=make_simple_http_retry_invoker(),
    )


class Pauses:
    """How long a SuperNode waits: Flower's own three seconds only while no run goes on.

    Stands in for the module `time` in Flower's main loop, which sleeps 3 seconds when there is no
    message and half a second while one is being answered.
    """

    def __init__(self) -> None:
        self._answered = -STAYS_BUSY

    def sleep(self, seconds: float) -> None:
        if seconds < IDLE:
            self._answered = time.monotonic()
            time.sleep(min(seconds, LOOKS))
            return
        busy = time.monotonic() - self._answered < STAYS_BUSY
        time.sleep(min(seconds, BUSY) if busy else seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def node(arguments: list[str]) -> None:
    """Flower's SuperNode with these arguments."""
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli import flower_supernode

    vars(loop)["time"] = Pauses()
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["node"]:
        node(arguments[1:])
        return
    parser = argparse.ArgumentParser(prog="python -m idiolect_relay")
    parser.add_argument("role", choices=["work"])
    parser.add_argument("--address", required=True, help="of the SuperNode on this machine")
    parser.add_argument("--root-certificates", help="that its certificate is checked by")
    given = parser.parse_args(arguments)
    root = None
    if given.root_certificates:
        with open(given.root_certificates, "rb") as file:
            root = file.read()
    work(given.address, root)


if __name__ == "__main__":
    main(sys.argv[1:])
