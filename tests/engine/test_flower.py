"""Frames over Flower: a carrier against a Grid, a relay against a socket. No Flower is started."""

import asyncio
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from engine.engine_suite import EngineSuite
from engine.loopback import remote_rounds
from idiolect.core.knobs import SettingError
from idiolect.deploy.flower import internals, link, node, process
from idiolect.deploy.flower.internals import (
    CONNECTED,
    KEY,
    UNKNOWN_KEY,
    look_sooner,
    say_why,
)
from idiolect.deploy.flower.link import Guard
from idiolect.deploy.flower.process import Explanations
from idiolect.deploy.flower.relay import RECORD, SiteDown, pass_on, relay
from idiolect.deploy.pidfile import hold
from idiolect.engine.carriers.flower import FlowerCarrier
from idiolect.engine.rounds import Rounds
from idiolect.host.service import Service


@pytest.fixture(autouse=True)
def in_a_run():
    """Messages are made inside a run of Flower."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    yield
    TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None


class FakeGrid:
    """Takes messages; gives the replies that a test has prepared."""

    def __init__(self):
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.takes = True

    def get_node_ids(self):
        return [11, 12]

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{len(self.sent)}"
            self.sent.append(message)
        return [m.metadata.message_id if self.takes else None for m in messages]

    def pull_messages(self, ids):
        found = [r for r in self.replies if r.metadata.reply_to_message_id in ids]
        self.replies = [r for r in self.replies if r not in found]
        return found

    def reply(self, number: int, content) -> None:
        self.replies.append(Message(content, reply_to=self.sent[number]))


def framed(frame) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({RECORD: frame})})


@pytest.fixture
def grid():
    return FakeGrid()


@pytest.fixture
def carrier(grid):
    made = FlowerCarrier(grid, poll=0.001)
    made.nodes = [11, 12]
    return made


# -- what every engine must do ---------------------------------------------------------------------
class SiteGrid:
    """A Grid whose nodes are hosts: messages are answered by their services, as sites do."""

    def __init__(self, services):
        self.services = services
        self.waiting: dict[str, Message] = {}
        self.count = 0

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = f"m{self.count}"
            self.waiting[f"m{self.count}"] = message
            ids.append(f"m{self.count}")
        return ids

    def pull_messages(self, ids):
        found = []
        for id in ids:
            message = self.waiting.pop(id)
            frame = message.content[RECORD][RECORD]
            reply = self.services[message.metadata.dst_node_id].handle(frame)
            found.append(Message(framed(reply), reply_to=message))
        return found


def over_flower(server, hosts, **options) -> Rounds:
    """An engine whose hosts are nodes of a Grid."""
    carrier = FlowerCarrier(SiteGrid({11 + k: Service(h) for k, h in enumerate(hosts)}))
    carrier.nodes = [11 + k for k in range(len(hosts))]
    return remote_rounds(server, hosts, carrier, **options)


class TestFlower(EngineSuite):
    test_several_hosts_are_one = None  # below: a minute

    @pytest.fixture
    def build(self):
        return over_flower


@pytest.mark.slow
class TestEveryMethodOverFlower:
    test_several_hosts_are_one = EngineSuite.test_several_hosts_are_one
    _same_on_any_number_of_hosts = EngineSuite._same_on_any_number_of_hosts

    @pytest.fixture
    def build(self):
        return over_flower


# -- a node's own order ----------------------------------------------------------------------------
class NodeState:
    """Of a SuperNode: what `answer_all` looks at, and Flower's step takes away."""

    def __init__(self, **messages):
        self.lock_msg_store = threading.RLock()
        self.msg_store = {
            id: SimpleNamespace(
                message=SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=to))
            )
            for id, to in messages.items()
        }


def test_a_node_answers_all_that_it_has_taken_before_the_next():
    state = NodeState(old="", new="", reply="old")
    steps = [("old", "reply"), ("new",)]

    def push(state, send):
        assert send == "line"
        for id in steps.pop(0):
            del state.msg_store[id]

    internals.answer_all(push)(state=state, send="line")
    assert not steps and not state.msg_store


def test_the_state_of_a_node_is_as_it_is_read():
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supernode.nodestate import NodeStateFactory

    state = NodeStateFactory(ObjectStoreFactory(":flwr-in-memory:")).state()
    assert not internals._questions(state)
    asked = Message(framed(b"question"), dst_node_id=1, message_type="query")
    asked.metadata.__dict__["_message_id"] = "m1"
    state.store_message(asked)
    assert internals._questions(state) == {"m1"}
    said = Message(framed(b"answer"), reply_to=asked)
    said.metadata.__dict__["_message_id"] = "m2"
    state.store_message(said)
    state.delete_messages(message_ids=["m1"])
    assert not internals._questions(state)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_message_whose_run_ends_on_its_way_leaves_nothing_behind(forgets):
    """Flower by itself leaves it: this test fails when that is no longer so."""
    from flwr.supercore.inflatable.inflatable_object import get_object_tree
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.run import Run, RunNotRunningException
    from flwr.supernode.nodestate import NodeStateFactory

    stores = ObjectStoreFactory(":flwr-in-memory:")
    state = NodeStateFactory(stores).state()
    state.set_node_id(1)
    run = Run.create_empty(1)
    state.store_run(run)
    asked = Message(framed(b"question"), dst_node_id=1, message_type="query")
    asked.metadata.__dict__["_message_id"] = asked.object_id
    asked.metadata.__dict__["_run_id"] = 1

    def ended(run_id, object_id):
        raise RunNotRunningException

    pull = internals.part("_pull_and_store_message")
    step = internals.forget_incomplete(pull) if forgets else pull
    assert (
        step(
            state=state,
            object_store=stores.store(),
            node_config={},
            receive=lambda: (asked, get_object_tree(asked)),
            get_run=None,
            get_fab=None,
            pull_object=ended,
            confirm_message_received=None,
            trusted_entities=None,
        )
        is None
    )
    assert internals._questions(state) == (set() if forgets else {asked.object_id})
    assert (stores.store().get(asked.object_id) is None) == forgets


# -- the carrier -----------------------------------------------------------------------------------
def test_a_frame_goes_to_the_node_of_its_host_and_its_reply_comes_back(grid, carrier):
    ticket = carrier.send(1, b"question")
    (sent,) = grid.sent
    assert sent.metadata.dst_node_id == 12
    assert sent.content[RECORD][RECORD] == b"question"
    assert carrier.receive(0.0) == []
    grid.reply(0, framed(b"answer"))
    assert carrier.receive(1.0) == [(ticket, b"answer")]
    assert carrier.receive(0.0) == []


def test_replies_are_known_by_their_messages_in_whichever_order(grid, carrier):
    first, second = carrier.send(0, b"a"), carrier.send(0, b"b")
    grid.reply(1, framed(b"B"))
    grid.reply(0, framed(b"A"))
    assert dict(carrier.receive(0.0)) == {second: b"B", first: b"A"}


def test_an_error_reply_is_a_lost_host_and_says_why(grid, carrier):
    ticket = carrier.send(0, b"question")
    grid.reply(0, Error(5, "Node Unavailable"))
    assert carrier.receive(0.0) == [(ticket, None)]
    assert carrier.why[11] == "Node Unavailable"
    carrier.send(0, b"again")
    grid.reply(1, framed(b"here"))
    carrier.receive(0.0)
    assert 11 not in carrier.why


def test_an_error_of_flower_at_sending_is_a_lost_host(grid, carrier):
    def fails(messages):
        raise RuntimeError("the push session may have expired")

    grid.push_messages = fails
    ticket = carrier.send(0, b"question")
    assert carrier.receive(0.0) == [(ticket, None)]
    assert "the push session may have expired" in carrier.why[11]


def test_a_superlink_that_is_away_for_a_moment_costs_nothing(grid, carrier, monkeypatch):
    ticket = carrier.send(0, b"question")
    pull, left = grid.pull_messages, [2]

    def fails(ids):
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionError("nobody there")
        return pull(ids)

    grid.pull_messages = fails
    grid.reply(0, framed(b"answer"))
    assert carrier.receive(0.0) == []
    assert carrier.receive(5.0) == [(ticket, b"answer")]
    monkeypatch.setattr("idiolect.engine.carriers.flower.UNREACHED", -1.0)
    carrier.send(0, b"another")
    left[0] = 9
    with pytest.raises(ConnectionError):
        carrier.receive(5.0)


def test_a_message_that_flower_does_not_take_is_a_lost_host(grid, carrier):
    grid.takes = False
    ticket = carrier.send(0, b"question")
    assert carrier.receive(0.0) == [(ticket, None)]


@pytest.mark.parametrize(
    "content",
    [RecordDict(), RecordDict({"other": ConfigRecord({"x": 1})}), framed("text"), framed(3)],
)
def test_a_reply_without_a_frame_is_no_frame(grid, carrier, content):
    ticket = carrier.send(0, b"question")
    grid.reply(0, content)
    assert carrier.receive(0.0) == [(ticket, b"")]


def test_a_reply_that_nobody_waits_for_is_dropped(grid, carrier):
    carrier.send(0, b"question")
    carrier.close()
    grid.reply(0, framed(b"late"))
    assert carrier.receive(0.0) == []


def test_the_nodes_of_the_grid_are_online(carrier):
    assert carrier.online() == {11, 12}


# -- the relay -------------------------------------------------------------------------------------
@pytest.fixture
def site(tmp_path):
    """A process that listens at a socket: it answers with the request backwards."""
    path = str(tmp_path / "host.sock")
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(path)
        line.listen()

        def serve():
            while True:
                try:
                    peer, _ = line.accept()
                except OSError:
                    return
                with peer:
                    length = int.from_bytes(peer.recv(8, socket.MSG_WAITALL), "little")
                    frame = peer.recv(length, socket.MSG_WAITALL)
                    if frame != b"die":
                        peer.sendall(length.to_bytes(8, "little") + frame[::-1])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path
        line.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def asked(frame, path):
    message = Message(framed(frame), dst_node_id=1, message_type="query")
    message.metadata.__dict__["_message_id"] = "m"
    return relay(message, SimpleNamespace(node_config={} if path is None else {"socket": path}))


def test_the_relay_passes_a_frame_on_and_its_reply_back(site):
    assert asked(b"abc", site).content[RECORD][RECORD] == b"cba"
    large = bytes(range(256)) * 10_000
    assert pass_on(large, site) == large[::-1]


def test_a_site_that_is_not_running_is_said_to_be_so(tmp_path):
    reply = asked(b"abc", str(tmp_path / "nobody.sock"))
    assert reply.has_error()
    assert "the site's process is not running" in reply.error.reason
    assert "idiolect host start" in reply.error.reason


def test_a_site_that_ends_before_it_answers(site):
    with pytest.raises(SiteDown, match="ended before it had answered"):
        pass_on(b"die", site)


def test_messages_that_hold_no_frame_are_not_passed_on(site):
    assert "holds no frame" in asked("text", site).error.reason
    assert "node-config" in asked(b"abc", None).error.reason


def test_the_relay_is_a_client_app_too():
    from flwr.clientapp import ClientApp

    from idiolect.deploy.flower.relay import app

    assert isinstance(app, ClientApp)


@pytest.mark.parametrize("module", ["relay", "node", "link", "internals", "process"])
def test_what_runs_beside_a_site_imports_no_torch(module):
    code = f"import idiolect.deploy.flower.{module}, sys; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


# -- Flower's processes ----------------------------------------------------------------------------
def test_a_node_that_is_busy_asks_more_often(monkeypatch):
    slept = []
    monkeypatch.setattr(internals.time, "sleep", slept.append)
    pauses = internals.Pauses()
    pauses.sleep(3)
    assert slept == [3]  # nothing has happened yet
    pauses.sleep(0.5)  # a message is being answered
    for _ in range(20):
        pauses.sleep(3)
    assert slept[1:4] == [internals.LOOKS, pytest.approx(0.1), pytest.approx(0.15)]
    assert slept[-1] == internals.BUSY[1]
    assert pauses.monotonic() > 0


def test_parts_of_messages_are_asked_for_again_soon():
    from flwr.supercore.inflatable.inflatable_utils import pull_objects

    look_sooner()
    assert pull_objects.__kwdefaults__["initial_backoff"] < 0.1
    assert pull_objects.__kwdefaults__["max_time"] <= 60


def _call(guard, path, headers=()):
    said = []

    async def send(message):
        said.append(message)

    scope = {"type": "http", "path": path, "headers": list(headers)}
    asyncio.run(guard(scope, None, send))
    return said


def test_only_the_operator_starts_runs_and_registers_nodes():
    reached = []

    async def app(scope, receive, send):
        reached.append(scope["path"])

    guard = Guard(app, key=b"secret")
    right = [(KEY.encode(), b"secret".hex().encode())]
    for path in ("/v1/control/start-run", "/v1/control/register-node", "/docs"):
        assert _call(guard, path)[0]["status"] == 403
        assert _call(guard, path, [(KEY.encode(), b"guess")])[0]["status"] == 403
    assert not reached
    _call(guard, "/v1/control/start-run", right)
    _call(guard, "/v1/fleet/pull-messages")
    _call(guard, "/v1/runtime/pull-messages")
    assert len(reached) == 3


def test_a_request_beyond_the_size_of_a_message_is_not_read():
    taken = []

    async def app(scope, receive, send):
        while (event := await receive())["type"] == "http.request":
            taken.append(len(event["body"]))
            if not event["more_body"]:
                break

    guard = Guard(app, key=b"secret", most=1000)
    for length in (b"1001", b"9" * 30, b"-5", b"x"):
        reply = _call(guard, "/v1/fleet/push-object", [(b"content-length", length)])
        assert reply[0]["status"] == 413
    assert not taken

    async def endless():
        return {"type": "http.request", "body": bytes(300), "more_body": True}

    scope = {"type": "http", "path": "/v1/fleet/push-object", "headers": []}
    asyncio.run(guard(scope, endless, None))
    assert taken == [300] * 3


# -- processes -------------------------------------------------------------------------------------
SSL = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
LINES = {  # as Flower writes them
    SSL + "certificate has expired (_ssl.c:1006)": "the server's certificate has expired",
    SSL + "unable to get local issuer certificate (_ssl.c:1006)": "was not made by the authority",
    SSL + "IP address mismatch, certificate is not valid for '127.0.0.2'. (_ssl.c:1006)": (
        "is for another name than the address"
    ),
    SSL + "something new (_ssl.c:1006)": "the server's certificate is refused",
    UNKNOWN_KEY: "its key is not registered there",
    CONNECTED: "a connection with its key is there already",
    "[code: 1001] Flower version is incompatible.": "another version of flwr",
    "WARNING : Connection attempt failed, retrying in 0.82 seconds": "does not answer",
    "The SuperNode could not establish a connection to the SuperLink.": "the lines above say why",
}


def explained(meanings: dict[str, str], *lines: str) -> list[str]:
    """What is said of lines that Flower logs."""
    said: list[str] = []
    explanations = Explanations(meanings, said.append)
    for line in lines:
        explanations.handle(logging.LogRecord("flwr", logging.ERROR, "", 0, line, None, None))
    return said


@pytest.mark.parametrize("line", LINES)
def test_what_flower_says_is_put_in_plain_words(line):
    exit_message = f"{line}\nThe SuperNode could not establish a connection to the SuperLink."
    (said,) = explained(node.MEANINGS, *[exit_message] * 3)  # once a minute
    assert LINES[line] in said


def test_a_superlink_says_that_a_site_was_refused():
    line = "[ApiError:2004] ..., exception: No SuperNode found with the given public key."
    (said,) = explained(link.MEANINGS, "something else", line)
    assert "registered: idiolect deploy add-site" in said


def test_flower_logs_where_explanations_listen():
    from flwr.common.logger import LOGGER_NAME

    assert LOGGER_NAME == "flwr"


def test_a_reply_401_ends_the_supernode_but_not_on_behalf_of_one_task(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append(number))
    signals = internals.OwnSignals()
    refused = []

    def task():
        try:
            signals.kill(os.getpid(), signal.SIGINT)
        except PermissionError as error:
            refused.append(str(error))

    thread = threading.Thread(target=task, name=internals.RELAY)
    thread.start()
    thread.join()
    assert "token of this task" in refused[0] and not sent and not signals.sent
    signals.kill(os.getpid(), signal.SIGINT)
    assert sent == [signal.SIGINT] and signals.sent


def test_a_node_that_is_not_let_in_is_told_why(monkeypatch):
    from flwr.supercore.error import FlowerError
    from flwr.superlink.servicer.fleet import fleet_handlers

    monkeypatch.setattr(fleet_handlers, "activate_node", fleet_handlers.activate_node)
    say_why()
    request = SimpleNamespace(public_key=b"key", heartbeat_interval=30.0)
    for found, reason in ((None, UNKNOWN_KEY), (7, CONNECTED)):
        state = SimpleNamespace(
            get_node_id_by_public_key=lambda key, found=found: found,
            activate_node=lambda node, seconds: False,
        )
        with pytest.raises(FlowerError) as refused:
            fleet_handlers.activate_node(request=request, state=state)
        assert refused.value.to_json("Failed")["extra"] == reason
    state.activate_node = lambda node, seconds: True
    assert fleet_handlers.activate_node(request=request, state=state).node_id == 7


# -- what connects a site --------------------------------------------------------------------------
FEDERATION = """[federation]
name = "heart"
address = "127.0.0.1:1"
insecure = %s
authority = "PEM"
"""


def test_a_supernode_is_started_with_tls_its_key_and_files_of_the_state_directory(tmp_path):
    (tmp_path / "federation.toml").write_text(FEDERATION % "false")
    words = node.arguments(tmp_path, 5000)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--superlink"] == "127.0.0.1:1" and options["--isolation"] == "process"
    assert options["--auth-supernode-private-key"] == str(tmp_path / "node.key")
    assert (tmp_path / "ca.crt").read_text() == "PEM"
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    (tmp_path / "federation.toml").write_text(FEDERATION % "true")
    assert node.arguments(tmp_path, 5000)[-1] == "--insecure"


@pytest.mark.parametrize("text", ["", "[federation]", "[federation", "federation = 1"])
def test_a_file_of_a_federation_that_is_none_is_named(tmp_path, text):
    (tmp_path / "federation.toml").write_text(text)
    with pytest.raises(SettingError, match=r"cannot use .*federation.toml"):
        node.arguments(tmp_path, 5000)


class Ended(BaseException):
    """The process has become another one, or has ended."""


@pytest.fixture
def connecting(tmp_path, monkeypatch):
    """`node.main` with a `connect` of the test's; how it went on: a code, or the next try."""
    monkeypatch.setenv("FLWR_HOME", "")
    kept = {number: signal.getsignal(number) for number in process.SIGNALS}

    def ended(*outcome):
        raise Ended(*outcome)

    def call(connect, tries=0):
        monkeypatch.setattr(node, "connect", connect)
        monkeypatch.setattr(node, "become", lambda module, state, tries: ended("again", tries))
        monkeypatch.setattr(node, "_exit", lambda code: ended("exit", code))
        slept = []
        monkeypatch.setattr(node.time, "sleep", slept.append)
        with pytest.raises(Ended) as outcome:
            node.main(tmp_path, tries)
        return outcome.value.args, slept

    yield call
    for number, handler in kept.items():
        signal.signal(number, handler)


def raising(error):
    def connect(state):
        raise error

    return connect


def test_a_site_that_is_refused_tries_again_after_longer_each_time(connecting):
    refused = raising(SystemExit(1))
    assert connecting(refused) == (("again", 1), [0.0])
    assert [connecting(refused, tries)[1] for tries in (1, 2, 3, 4, 9)] == [
        [1],
        [2],
        [5],
        [10],
        [10],
    ]
    assert connecting(raising(RuntimeError("of Flower")), 3)[0] == ("again", 4)
    assert connecting(lambda state: None)[0] == ("again", 1)


def test_a_connection_that_worked_is_tried_again_soon(connecting, monkeypatch):
    monkeypatch.setattr(node, "STEADY", -1.0)
    assert connecting(raising(SystemExit(1)), 7)[0] == ("again", 1)


def test_a_signal_or_a_file_that_does_not_do_ends_it(connecting, tmp_path, capsys):
    assert connecting(raising(SystemExit(0)))[0] == ("exit", 0)
    assert not (tmp_path / "connect.pid").exists()
    assert connecting(raising(SettingError("state: no")))[0] == ("exit", 2)
    assert "error: state: no" in capsys.readouterr().err
    with hold(tmp_path / "connect.pid"):
        assert connecting(raising(AssertionError))[0] == ("exit", 2)
    assert f"it is running already (process {os.getpid()})" in capsys.readouterr().err


MOMENTS = {
    "as it starts": (signal.SIGTERM, 0, 0.1),
    "in a pause": (signal.SIGTERM, 4, 2.0),
    "with Flower, SIGTERM": (signal.SIGTERM, 0, 5.0),
    "with Flower, Ctrl-C": (signal.SIGINT, 0, 5.0),
    "with Flower, SIGHUP": (signal.SIGHUP, 0, 5.0),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_ends_it_promptly_at_any_moment(tmp_path, moment):
    number, tries, seconds = MOMENTS[moment]
    (tmp_path / "federation.toml").write_text(FEDERATION % "true")
    child = subprocess.Popen(
        [sys.executable, "-m", "idiolect.deploy.flower.node", str(tmp_path), str(tries)],
        stderr=subprocess.PIPE,
        # as `become` leaves it
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, process.SIGNALS),
    )
    time.sleep(seconds)
    child.send_signal(number)
    began = time.monotonic()
    _, said = child.communicate(timeout=30)
    assert child.returncode == 0, said.decode()
    assert time.monotonic() - began < 10
