"""Everything of Flower here that is not its public API: each name, and what it is needed for.

The rest of idiolect uses `flwr.app`, `flwr.serverapp`, `flwr.clientapp` and Flower's commands.
docs/decisions.md says what those lack. `make test` and `make test-flower` try the oldest and the
newest flwr of the range in pyproject.toml; `check` refuses a version that lacks a name.

Imports no torch, and Flower when it is needed.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ...core.knobs import SettingError

NAMES: dict[str, dict[str, str]] = {  # role -> name -> its module
    # messages and tasks of a SuperLink or SuperNode: no app of a run is installed at a site, and no
    # process is started per message
    "runtime": {
        "RuntimeHttpClient": "flwr.supercore.runtime",
        "RuntimeTokenHttpInterceptor": "flwr.supercore.interceptors",
        "RuntimeVersionHttpInterceptor": "flwr.supercore.interceptors",
        "SuperExecAuthHttpInterceptor": "flwr.supercore.interceptors",
        "make_simple_http_retry_invoker": "flwr.supercore.retry",
        "AcquireTaskRequest": "flwr.proto.runtime_pb2",
        "TaskType": "flwr.supercore.constant",
        "SubStatus": "flwr.common.constant",
    },
    "relay": {
        "HeartbeatSender": "flwr.supercore.heartbeat",
        "make_task_heartbeat_fn_http": "flwr.supercore.heartbeat",
        "pull_task_input": "flwr.supernode.runtime.run_clientapp",
        "push_message": "flwr.supernode.runtime.run_clientapp",
        "push_task_output": "flwr.supernode.runtime.run_clientapp",
    },
    # runs are started and nodes registered with the operator's key, which the command `flwr` cannot
    # send
    "server": {
        "ControlHttpClient": "flwr.supercore.control",
        "ListNodesRequest": "flwr.proto.control_pb2",
        "RegisterNodeRequest": "flwr.proto.control_pb2",
        "UnregisterNodeRequest": "flwr.proto.control_pb2",
        "NodeStatus": "flwr.supercore.constant",
        "StartRunRequest": "flwr.proto.control_pb2",
        "StopRunRequest": "flwr.proto.control_pb2",
        "PushTaskOutputRequest": "flwr.proto.runtime_pb2",
        "build_fab_from_disk": "flwr.cli.build",
        "fab_to_proto": "flwr.common.serde",
        "Fab": "flwr.supercore.fab",
    },
    # a SuperLink that starts runs and registers nodes for the operator alone, and says why it
    # refuses a site
    "link": {
        "get_middleware": "flwr.superlink.extensions",
        "flower_superlink": "flwr.superlink.cli",
        "activate_node": "flwr.superlink.servicer.fleet.fleet_handlers",
        "FlowerError": "flwr.supercore.error",
    },
    # a SuperNode that asks for messages more often than every 3 seconds
    "node": {
        "flower_supernode": "flwr.supernode.cli",
        "time": "flwr.supernode.start_client_internal",
        "_pull_and_store_message": "flwr.supernode.start_client_internal",
        "_push_messages": "flwr.supernode.start_client_internal",
    },
    "parts": {
        "pull_objects": "flwr.supercore.inflatable.inflatable_utils",
        "pull_and_inflate_object_from_tree": "flwr.supercore.inflatable.inflatable_utils",
    },
}
WHERE = {name: module for names in NAMES.values() for name, module in names.items()}
UNFIT = "idiolect cannot work with this version of flwr"

SOON = 0.05  # seconds
GIVEN_UP = 60.0  # seconds
KEY = "x-idiolect-key"  # the header that opens what `link` keeps closed
UNKNOWN_KEY = "idiolect: no node is registered with this key"
CONNECTED = "idiolect: the node with this key could not be activated"

IDLE = 3.0  # seconds between two questions of a SuperNode that has nothing to do
BUSY = (0.1, 1.0)  # the same during a run: at first, and at most
STAYS_BUSY = 120.0  # seconds after the last message during which a run counts as in progress
LOOKS = 0.1  # seconds between two looks for a message at the SuperNode
RELAY = "relay"  # the name of the relay's thread where it is in the SuperNode's process


def part(name: str) -> Any:
    """One of NAMES; SettingError where the flwr that is installed lacks it."""
    try:
        return getattr(import_module(WHERE[name]), name)
    except (ImportError, AttributeError):
        import flwr

        raise SettingError(
            f"{UNFIT}: {flwr.__version__} has no {WHERE[name]}.{name}; "
            "pip install 'idiolect[flower]' installs one that fits"
        ) from None


def check(*roles: str) -> None:
    """Refuse a flwr that lacks a name that these roles need."""
    for role in roles:
        for name in NAMES[role]:
            part(name)
    for name in NAMES["parts"] if "parts" in roles else ():
        if not {"initial_backoff", "max_time"} <= set(part(name).__kwdefaults__ or {}):
            raise SettingError(f"{UNFIT}: {WHERE[name]}.{name} has no initial_backoff and max_time")


# -- waiting times ---------------------------------------------------------------------------------
def look_sooner() -> None:
    """Parts of a message that have not arrived yet are asked for again soon.

    Flower waits a second, and a message is always announced before its parts: every exchange
    would take two seconds more. And they are given up: a server that was killed between the two
    would keep its sites waiting for minutes.
    """
    check("parts")
    for name in NAMES["parts"]:
        part(name).__kwdefaults__ |= {"initial_backoff": SOON, "max_time": GIVEN_UP}


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


# -- a SuperNode -----------------------------------------------------------------------------------
def answer_all(push: Callable[..., None]) -> Callable[..., None]:
    """Flower's step that sends replies, until every message that was taken has its reply.

    Flower takes a message, waits for a reply, and takes the next. A message whose run ended while
    it was taken is answered too; its reply would pass for the one that is waited for, and every
    later reply would lie there until another message comes.
    """

    def push_all(state: Any, **options: Any) -> None:
        push(state=state, **options)
        while _questions(state):
            push(state=state, **options)

    return push_all


def forget_incomplete(pull: Callable[..., int | None]) -> Callable[..., int | None]:
    """Flower's step that takes a message, without leftovers of one that did not arrive whole.

    Where a run ends while a message of it is on its way (its server was killed), Flower keeps what
    has come. The relay would wait for its parts, and the node for its reply: two minutes in which
    the site is away.
    """

    def pull_whole(state: Any, object_store: Any, **options: Any) -> int | None:
        before = _questions(state)
        run = pull(state=state, object_store=object_store, **options)
        for message in _questions(state) - before if run is None else ():
            state.delete_messages(message_ids=[message])
            object_store.delete(message)
        return run

    return pull_whole


def _questions(state: Any) -> set[str]:
    """The messages that a node has taken and not answered."""
    with state.lock_msg_store:
        messages = {key: entry.message.metadata for key, entry in state.msg_store.items()}
    return {key for key, metadata in messages.items() if not metadata.reply_to_message_id}


class OwnSignals:
    """Stands in for `os.kill`: Flower sends SIGINT to its own process on a reply 401.

    In the relay's thread that is about the token of one task: its message alone is given up.
    Elsewhere the key of this site was removed, and the SuperNode ends.
    """

    def __init__(self) -> None:
        self.sent = False
        self._kill = os.kill

    def kill(self, process: int, number: int) -> None:
        if process == os.getpid():
            if threading.current_thread().name == RELAY:
                raise PermissionError("the SuperNode refuses the token of this task")
            self.sent = True
        self._kill(process, number)


def supernode(arguments: list[str]) -> None:
    """`flower-supernode` with these arguments, quick while a run is in progress.

    It ends by SystemExit, with code 0 on a signal from outside and no other way.
    """
    check("node")
    look_sooner()
    loop = vars(import_module(WHERE["_push_messages"]))
    loop["time"] = Pauses()
    loop["_pull_and_store_message"] = forget_incomplete(loop["_pull_and_store_message"])
    loop["_push_messages"] = answer_all(loop["_push_messages"])
    sys.argv = ["flower-supernode", *arguments]
    signals = OwnSignals()
    vars(os)["kill"] = signals.kill
    try:
        part("flower_supernode")()
    except SystemExit as end:
        if not signals.sent:
            raise
        raise SystemExit(1) from end
    raise SystemExit(1)


# -- a SuperLink -----------------------------------------------------------------------------------
def say_why() -> None:
    """Give the reason when a node is refused; Flower itself only reports a failure."""
    activate = part("activate_node")

    def activate_node(request: Any, state: Any) -> Any:
        try:
            return activate(request=request, state=state)
        except part("FlowerError") as error:
            registered = state.get_node_id_by_public_key(request.public_key) is not None
            error.public_details = CONNECTED if registered else UNKNOWN_KEY
            raise

    vars(import_module(WHERE["activate_node"]))["activate_node"] = activate_node


def superlink(arguments: list[str], guard: Callable[[Any], Any]) -> None:
    """`flower-superlink` with these arguments, and with a guard before everything that it does."""
    from starlette.middleware import Middleware

    check("link")
    say_why()
    vars(import_module(WHERE["get_middleware"]))["get_middleware"] = lambda: (Middleware(guard),)
    sys.argv = ["flower-superlink", *arguments]
    part("flower_superlink")()


# -- tasks -----------------------------------------------------------------------------------------
def _runtime(address: str, root: bytes | None, *, token: str = "", secret: bytes = b"") -> Any:
    """The client of messages and tasks, at a SuperLink or SuperNode: for one task by its token, or
    for all that may be taken, by the secret."""
    interceptors = [part("RuntimeVersionHttpInterceptor")(component_name="SuperExec")]
    if token:
        interceptors.append(part("RuntimeTokenHttpInterceptor")(token))
    if secret:
        acquire = {"/flwr.proto.Runtime/AcquireTask"}
        interceptors.append(
            part("SuperExecAuthHttpInterceptor")(master_secret=secret, protected_methods=acquire)
        )
    return part("RuntimeHttpClient").from_server_address(
        server_address=address,
        insecure=root is None,
        root_certificates=root,
        interceptors=interceptors,
        retry_invoker=part("make_simple_http_retry_invoker")(),
    )


def _acquired(client: Any, kind: str) -> Any:
    """A task of a kind, and its token; None where there is none."""
    kinds = [part("TaskType")[kind]]
    task = client.AcquireTask(part("AcquireTaskRequest")(supported_task_types=kinds))
    return task if task.HasField("task") and task.token else None


def answer(address: str, secret: bytes, reply: Callable[[Any, Any], Any]) -> None:
    """Answer the messages of a SuperNode, one after the other, until the process is stopped.

    In place of Flower's SuperExec: the app of a run is not installed or imported, whatever it is.
    """
    check("runtime", "relay")
    look_sooner()
    client = _runtime(address, None, secret=secret)
    while True:
        task = _acquired(client, "CLIENT_APP")
        if task is not None:
            _answer(address, task.token, reply)
        else:
            time.sleep(LOOKS)


def _answer(address: str, token: str, reply: Callable[[Any, Any], Any]) -> None:
    """One message: what Flower's own ClientApp process does, without the app of the run."""
    client = _runtime(address, None, token=token)
    alive = part("HeartbeatSender")(part("make_task_heartbeat_fn_http")(client))
    alive.start()
    try:
        message, context, _, _ = part("pull_task_input")(client)
        part("push_message")(client, reply(message, context), context)
        part("push_task_output")(client, context, part("SubStatus").COMPLETED, "")
    except Exception as error:
        # of Flower. The task is left as it is: its token runs out within a minute, and the
        # SuperNode tells the server that there is no reply. Were the task ended as failed, it
        # would wait for the reply for ever, and take no other message
        print(f"a message could not be answered: {error!r}", file=sys.stderr, flush=True)
    finally:
        alive.stop()
        client.close()


# -- runs ------------------------------------------------------------------------------------------
class WithKey:
    """Every request with the operator's key."""

    def __init__(self, key: bytes):
        self.key = key.hex()

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers[KEY] = self.key
        return call_next(context)


class Operator:
    """Who starts runs at a SuperLink and says which sites may connect: `flwr run`, `flwr stop`,
    `flwr supernode register` and `unregister`, with the operator's key."""

    def __init__(self, address: str, root: bytes | None, key: bytes, secret: bytes):
        check("runtime", "server")
        self.address = address
        self.root = root
        self.secret = secret
        version = part("RuntimeVersionHttpInterceptor")(component_name="flwr CLI")
        self.control = part("ControlHttpClient").from_server_address(
            server_address=address,
            insecure=root is None,
            root_certificates=root,
            interceptors=[version, WithKey(key)],
            retry_invoker=part("make_simple_http_retry_invoker")(),
        )

    def nodes(self) -> dict[bytes, int | None]:
        """Nodes that may connect, by public key; None: one that was removed, its key with it."""
        nodes = self.control.ListNodes(part("ListNodesRequest")()).nodes_info
        removed = part("NodeStatus").UNREGISTERED
        return {
            bytes(node.public_key): None if node.status == removed else int(node.node_id)
            for node in nodes
        }

    def register(self, public_key: bytes, name: str) -> None:
        """Let a node connect."""
        self.control.RegisterNode(part("RegisterNodeRequest")(public_key=public_key, name=name))

    def remove(self, node: int) -> None:
        """Let a node connect no more."""
        self.control.UnregisterNode(part("UnregisterNodeRequest")(node_id=node))

    def start(self, app: Path) -> int:
        """A new run of an app; its number."""
        content = part("build_fab_from_disk")(app)
        fab = part("Fab")(hashlib.sha256(content).hexdigest(), content, {})
        request = part("StartRunRequest")(fab=part("fab_to_proto")(fab))
        return int(self.control.StartRun(request).run_id)

    def stop(self, run: int) -> None:
        """End a run."""
        self.control.StopRun(part("StopRunRequest")(run_id=run))

    def token(self, run: int) -> str:
        """What opens the ServerApp's task of this run; tasks of others are not carried out."""
        client = _runtime(self.address, self.root, secret=self.secret)
        while True:
            task = _acquired(client, "SERVER_APP")
            if task is None:
                time.sleep(LOOKS)
                continue
            if task.task.run_id == run:
                client.close()
                return str(task.token)
            other = _runtime(self.address, self.root, token=task.token)
            status = part("SubStatus").FAILED
            other.PushTaskOutput(
                part("PushTaskOutputRequest")(sub_status=status, details="no run of this server")
            )
            other.close()
