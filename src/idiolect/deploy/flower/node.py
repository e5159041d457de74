"""What connects a site: Flower's SuperNode, and the relay that answers its messages.

python -m idiolect.deploy.flower.node connect ...   Flower's SuperNode, which asks for messages more
                                             often while a run is in progress
python -m idiolect.deploy.flower.node answer ...    takes messages from it, in place of Flower's
                                             SuperExec: the code that comes with a run is never
                                             installed or imported, whatever it is
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .clients import look_sooner, read, runtime
from .relay import relay

IDLE = 3.0  # seconds between two questions of a SuperNode that has nothing to do
BUSY = (0.1, 1.0)  # the same during a run: at first, and at most
STAYS_BUSY = 120.0  # seconds after the last message during which a run counts as in progress
LOOKS = 0.1  # seconds between two looks for a message at the SuperNode


def answer(address: str, root: bytes | None, secret: bytes) -> None:
    """Answer the messages of a SuperNode, one after the other, until the process is stopped."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    look_sooner()
    client = runtime(address, root, secret=secret)
    while True:
        request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        task = client.AcquireTask(request)
        if task.HasField("task") and task.token:
            _carry_out(address, root, task.token)
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

    client = runtime(address, root, token=token)
    alive = HeartbeatSender(make_task_heartbeat_fn_http(client))
    alive.start()
    try:
        message, context, _, _ = pull_task_input(client)
        push_message(client, relay(message, context), context)
        push_task_output(client, context, SubStatus.COMPLETED, "")
    except Exception as error:
        # of Flower. The task is left as it is: its token runs out within a minute, and the
        # SuperNode tells the server that there is no reply. Were the task ended as failed, it
        # would wait for the reply for ever, and take no other message
        print(f"a message could not be answered: {error!r}", file=sys.stderr, flush=True)
    finally:
        alive.stop()
        client.close()


class Pauses:
    """How long a SuperNode waits: Flower's own three seconds only between runs.

    Stands in for the module `time` in Flower's main loop, which sleeps 3 seconds when there is no
    message and half a second while one is being answered.
    """

    def __init__(self) -> None:
        self._answered = -STAYS_BUSY
        self._pause = BUSY[0]

    def sleep(self, seconds: float) -> None:
        if seconds < IDLE:
            self._answered = time.monotonic()
            self._pause = BUSY[0]
            time.sleep(min(seconds, LOOKS))
            return
        busy = time.monotonic() - self._answered < STAYS_BUSY
        time.sleep(min(seconds, self._pause) if busy else seconds)
        self._pause = min(1.5 * self._pause, BUSY[1])

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def answer_all(push: Callable[..., None]) -> Callable[..., None]:
    """Flower's step that sends replies, until every message that was taken has its reply.

    Flower takes a message, waits for a reply, and takes the next. A message whose run ended while
    it was taken is answered too; its reply would pass for the one that is waited for, and every
    later reply would lie there until another message comes.
    """

    def push_all(state: Any, **options: Any) -> None:
        push(state=state, **options)
        while _unanswered(state):
            push(state=state, **options)

    return push_all


def _unanswered(state: Any) -> bool:
    with state.lock_msg_store:
        entries = list(state.msg_store.values())
    return any(not entry.message.metadata.reply_to_message_id for entry in entries)


def connect(arguments: list[str]) -> None:
    """Flower's SuperNode with these arguments."""
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli import flower_supernode

    look_sooner()
    vars(loop)["time"] = Pauses()
    vars(loop)["_push_messages"] = answer_all(loop._push_messages)
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def commands(
    superlink: str, port: int, place: Path, line: Path, authority: Path | None, key: Path
) -> dict[str, list[str]]:
    """How both are started, with a secret in a folder; without an authority: without TLS."""
    connecting = [sys.executable, "-m", __name__, "connect"]
    connecting += ["--superlink", superlink, "--isolation", "process"]
    connecting += ["--host", "127.0.0.1", "--port", str(port)]
    connecting += ["--superexec-auth-secret-file", f"{place / 'secret'}"]
    connecting += ["--node-config", f'socket="{line}"']
    if authority is None:
        connecting += ["--insecure"]
    else:
        connecting += ["--root-certificates", f"{authority}"]
        connecting += ["--auth-supernode-private-key", f"{key}"]
    answering = [sys.executable, "-m", __name__, "answer"]
    answering += ["--address", f"127.0.0.1:{port}", "--secret", f"{place / 'secret'}"]
    return {"supernode": connecting, "relay": answering}


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["connect"]:
        connect(arguments[1:])
        return
    parser = argparse.ArgumentParser(prog="python -m idiolect.deploy.flower.node")
    parser.add_argument("role", choices=["connect", "answer"])
    parser.add_argument("--address", required=True, help="of the SuperNode on this machine")
    parser.add_argument("--secret", required=True, help="file: what opens it")
    options = parser.parse_args(arguments)
    answer(options.address, None, read(options.secret) or b"")


if __name__ == "__main__":
    main(sys.argv[1:])
