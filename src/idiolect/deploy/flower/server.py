"""The server's process of a deployed federation: it waits for runs, and has them carried out.

A run is wanted when server/wanted.json says so. Each is a Flower run whose ServerApp
(`deploy.flower.server_app`) is started here as `flwr-serverapp`, with the token of its task in a
file: in place of Flower's SuperExec, which would show the token in the list of processes. The order
stays until the run has ended: a server that was killed resumes it when it is back, and a ServerApp
that was killed is started again.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ...core.documents import encode
from ...core.files import read_document, write_atomic, write_document
from ...core.knobs import SettingError
from ...core.text import shown
from ...engine.carriers.flower import require
from ..certificates import public_key
from ..config import Deployment, Terms
from ..folder import DeploymentFolder, RunOrder, RunOutcome, write_app
from ..logs import RotatingLog
from .internals import Operator
from .process import NO_ANSWER, Explanations, die_with_parent, role

NAME = "server"  # of the pid file
NODES = "nodes.json"  # which node has which key
LAST = "flower-run"  # the number of the Flower run that was started last
TOKEN = "token"  # what opens the task of the run that is carried out
LOOK = 0.5  # seconds
AWAY = "the SuperLink does not answer; waiting for it: idiolect deploy superlink"
STEADY = 60.0  # seconds after which a ServerApp that ends is taken to have worked
MOST_ENDS = 5  # how often in a row it may end sooner, without an outcome


@dataclass(frozen=True)
class RegisteredNode:
    """A node that may connect."""

    node: int
    name: str  # of the file of its key
    key: str  # SHA-256 of that file


@dataclass(frozen=True)
class RegisteredNodes:
    """All of them, as the server's process has registered them; its ServerApp reads them."""

    nodes: list[RegisteredNode]


def key_digests(layout: DeploymentFolder) -> dict[str, str]:
    """SHA-256 of the files in keys/, by name."""
    paths = sorted(layout.keys.glob("*.pub"))
    return {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def registered(layout: DeploymentFolder) -> dict[int, str]:
    """Nodes by the names of their keys: keys/ as it is now, so that removals count at once."""
    path = layout.server / NODES
    nodes = read_document(path, RegisteredNodes).nodes if path.exists() else []
    digests = key_digests(layout)
    return {n.node: n.name for n in nodes if digests.get(n.name) == n.key}


class FlowerServer:
    """Starts the runs of one deployment."""

    def __init__(self, folder: Path):
        require()
        self.layout = DeploymentFolder(folder.absolute())
        self.terms: Terms = Deployment.read(folder).terms
        place = self.layout.server
        root = None if self.terms.insecure else self.layout.authority.read_bytes()
        key, secret = ((place / name).read_bytes() for name in ("key", "secret"))
        self.operator = Operator(self.terms.address, root, key, secret)
        self.child: subprocess.Popen[bytes] | None = None
        self.stopping = False
        self.files: dict[str, str] | None = None  # digests of keys/; None: to be registered

    def register(self) -> None:
        """Let the sites connect whose public keys are here, and no others."""
        if self.terms.insecure:
            return
        files = key_digests(self.layout)
        keys: dict[bytes, str] = {}
        for name in files:
            try:
                keys[public_key(self.layout.keys / f"{name}.pub")] = name
            except SettingError as error:
                say(self.layout, str(error))
        nodes = self.operator.nodes()
        for key, name in keys.items():
            if key not in nodes:
                self.operator.register(key, re.sub(r"[^\w-]", "-", name)[:32])
                say(self.layout, f"{name}.pub may connect")
            elif nodes[key] is None:
                say(
                    self.layout,
                    f"{name}.pub is refused: a key that was removed is not taken again; "
                    "idiolect host key --renew makes another one",
                )
        for key, node in nodes.items():
            if node is not None and key not in keys:
                self.operator.remove(node)
                say(self.layout, f"node {node} may not connect any more: its key is not in keys/")
        nodes_by_key = {
            key: node for key, node in self.operator.nodes().items() if node is not None
        }
        registered = [
            RegisteredNode(nodes_by_key[key], name, files[name])
            for key, name in keys.items()
            if key in nodes_by_key
        ]
        write_document(self.layout.server / NODES, encode(RegisteredNodes(registered)))
        self.files = files

    def _register_changes(self) -> None:
        """The same where keys/ has changed; the server goes on whatever is in it."""
        try:
            if not self.terms.insecure and key_digests(self.layout) != self.files:
                self.register()
        except Exception as error:  # of Flower, or a file that is just being replaced
            self.files = None  # look again
            print(f"keys/ could not be registered: {error!r}", file=sys.stderr, flush=True)

    def work(self) -> None:
        """Runs, one after the other, until the process is stopped."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.stop)
        while not self.stopping:
            if self.layout.request.exists():
                self.files = None
            self._register_changes()
            if self.layout.request.exists():
                self.carry_out(read_document(self.layout.request, RunOrder))
            else:
                time.sleep(LOOK)

    def carry_out(self, order: RunOrder) -> None:
        """One run: its ServerApp, started again where it ends without an outcome."""
        ends = 0
        while not self.stopping and self.layout.request.exists():
            began = time.monotonic()
            code = self.start_app()
            ends = ends + 1 if time.monotonic() - began < STEADY else 1
            if self.stopping or not self.layout.request.exists():
                return
            if ends >= MOST_ENDS:
                error = f"server: the run has ended {ends} times without a result ({code}); what "
                error += "idiolect deploy server prints says why"
                write_document(self.layout.outcome, encode(RunOutcome(order.order_id, error)))
                self.layout.request.unlink(missing_ok=True)
                return
            say(self.layout, f"the run's process has ended ({code}); it is started again")
            time.sleep(LOOK)

    def start_app(self) -> int:
        """A new Flower run and its ServerApp, until it ends; its exit code."""
        run = self._new_run()
        token = self.layout.server / TOKEN
        write_atomic(token, self.operator.token(run).encode())
        try:
            self.child = subprocess.Popen(
                app_command(self.layout, self.terms, token),
                cwd=self.layout.folder,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )
            while (code := self.child.poll()) is None:
                self._register_changes()
                time.sleep(LOOK)
            return code
        finally:
            self.child = None
            token.unlink(missing_ok=True)

    def _new_run(self) -> int:
        """A new Flower run. One of a server that was killed is ended: sites may wait for a message
        of it whose parts never came, and take no other one before they learn that it is over."""
        last = self.layout.server / LAST
        with suppress(Exception):  # there was none, or it is over
            self.operator.stop(int(last.read_text()))
        write_app(self.layout)  # the folder may be of an earlier version
        run = self.operator.start(self.layout.app)
        write_atomic(last, str(run).encode())
        return run

    def stop(self, number: int, frame: FrameType | None) -> None:
        """On a signal: the round in progress is finished, if there is one."""
        self.stopping = True
        if self.child is None:
            raise SystemExit(0)
        self.child.send_signal(signal.SIGTERM)


def app_command(layout: DeploymentFolder, terms: Terms, token: Path) -> Sequence[str]:
    """How Flower starts a ServerApp."""
    name = "flwr-serverapp"
    script = Path(sysconfig.get_path("scripts")) / name
    program = str(script) if script.exists() else shutil.which(name)
    if program is None:
        raise SettingError(f"flwr: its command {name} is not installed beside {sys.executable}")
    words = [program, "--runtime-api-address", terms.address, "--token-file", str(token)]
    trust = ["--insecure"] if terms.insecure else ["--root-certificates", str(layout.authority)]
    return [*words, *trust]


def say(layout: DeploymentFolder, text: str) -> None:
    """To who follows the run."""
    line = f"{time.strftime('%H:%M:%S')} {shown(text)}"
    print(line, flush=True)
    with suppress(OSError), RotatingLog(layout.log) as log:
        log.write(f"{line}\n".encode())


def run_server(layout: DeploymentFolder) -> None:
    """The server of a folder, until it is stopped."""
    with role(layout.server, NAME):
        Explanations({NO_ANSWER: AWAY}, lambda text: say(layout, text)).listen()
        FlowerServer(layout.folder).work()
