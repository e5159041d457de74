"""The server's process of a deployed federation: it waits for runs to carry out.

    python -m idiolect.deploy.flower.server FOLDER

A run is wanted when server/wanted.json says so; what became of it is in server/outcome.json. The
file stays until the run has ended: a server that was killed resumes it when it is back. It
takes tasks of its own runs from the SuperLink alone, and imports no code that comes with them.
"""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.documents import encode
from ...core.files import read_document, write_atomic, write_document
from ...core.knobs import SettingError
from ...core.text import shown
from ...engine.carriers.flower import FlowerCarrier, require
from ...report.format import Figure, number
from ...run.checkpoint import CheckpointError
from ...run.interrupts import Interrupted
from ...run.result import Result
from ..certificates import public_key
from ..config import Deployment, Terms
from ..folder import DeploymentFolder, RunOrder, RunOutcome
from ..logs import RotatingLog
from ..rounds import TooFewSites
from ..server import serve
from .clients import control, look_sooner, runtime

LAST = "flower-run"  # the number of the Flower run that was started last
LOOK = 0.5  # seconds


class FlowerServer:
    """Carries out the runs of one deployment."""

    def __init__(self, folder: Path):
        require()
        look_sooner()
        self.layout = DeploymentFolder(folder)
        self.terms: Terms = Deployment.read(folder).terms
        place = self.layout.server
        self.root = None if self.terms.insecure else self.layout.authority.read_bytes()
        self.keys: dict[str, bytes] = {}  # files in keys/, by name
        self.nodes: dict[int, str] = {}  # nodes with these keys
        self.secret = (place / "secret").read_bytes()
        self.control = control(self.terms.address, self.root, (place / "key").read_bytes())

    def register(self) -> None:
        """Let the sites connect whose public keys are here, and no others."""
        from flwr.proto.control_pb2 import (
            ListNodesRequest,
            RegisterNodeRequest,
            UnregisterNodeRequest,
        )

        if self.terms.insecure:
            return
        files = self._key_files()
        earlier = {
            bytes(node.public_key): int(node.node_id)
            for node in self.control.ListNodes(ListNodesRequest()).nodes_info
            if not node.unregistered_at
        }
        nodes = {}
        for name in files:
            try:
                key = public_key(self.layout.keys / f"{name}.pub")
            except SettingError as error:
                self.say(str(error))
                continue
            if key not in earlier:
                label = re.sub(r"[^\w-]", "-", name)[:32]
                request = RegisterNodeRequest(public_key=key, name=label)
                try:
                    earlier[key] = int(self.control.RegisterNode(request).node_id)
                except Exception as error:  # of Flower: it takes a key once, ever
                    self.say(
                        f"{name}.pub is refused: a key that was removed is not taken again; "
                        f"idiolect host key --renew makes another one ({error})"
                    )
                    continue
                self.say(f"{name}.pub may connect")
            nodes[earlier[key]] = name
        for node in set(earlier.values()) - set(nodes):
            self.control.UnregisterNode(UnregisterNodeRequest(node_id=node))
            self.say(f"node {node} may not connect any more: its key is not in keys/")
        self.keys, self.nodes = files, nodes

    def _key_files(self) -> dict[str, bytes]:
        return {path.stem: path.read_bytes() for path in sorted(self.layout.keys.glob("*.pub"))}

    def registered(self) -> dict[int, str] | None:
        """Nodes by the names of their keys: keys/ as it is now, so that changes count at once."""
        if self.terms.insecure:
            return None
        files = self._key_files()
        if files != self.keys:
            try:
                self.register()
            except Exception as error:  # of Flower: the SuperLink is away for a moment
                self.say(f"keys/ has changed, and the SuperLink does not answer: {error}")
                unchanged = {name for name, key in files.items() if self.keys.get(name) == key}
                return {node: name for node, name in self.nodes.items() if name in unchanged}
        return self.nodes

    def work(self) -> None:
        """Runs, one after the other, until the process is stopped."""
        self.register()
        while True:
            if not self.layout.request.exists():
                time.sleep(LOOK)
                continue
            order = read_document(self.layout.request, RunOrder)
            self.register()
            error = ""
            try:
                self.carry_out(order)
            except (SettingError, TooFewSites, CheckpointError) as problem:
                error = str(problem)
            write_document(self.layout.outcome, encode(RunOutcome(order.order_id, error)))
            self.layout.request.unlink(missing_ok=True)

    def carry_out(self, order: RunOrder) -> Result:
        """One run, as a separate Flower run."""
        directory = Path(order.directory)
        resume = order.resume or (directory / "settings.json").exists()
        deployment = Deployment.read(self.layout.folder)
        with FlowerTask(self) as grid:
            return serve(
                FlowerCarrier(grid, registered=self.registered),
                deployment,
                directory,
                resume=resume,
                tell=self.say,
                progress=lambda seed, rounds, figure: self.say(_line(rounds, figure)),
                status=self.layout.status,
            )

    def say(self, text: str) -> None:
        """To who follows the run."""
        line = f"{time.strftime('%H:%M:%S')} {shown(text)}"
        print(line, flush=True)
        with suppress(OSError), RotatingLog(self.layout.log) as log:
            log.write(f"{line}\n".encode())


class FlowerTask:
    """A Flower run and its task, as a Grid while it lasts."""

    def __init__(self, server: FlowerServer):
        self.server = server

    def __enter__(self) -> Any:
        from flwr.common.serde import run_from_proto
        from flwr.proto.runtime_pb2 import PullTaskInputRequest
        from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
        from flwr.supercore.task_identity import TaskIdentity
        from flwr.superlink.grid import HttpGrid

        server = self.server
        token = self._token(self._start())
        self.grid = HttpGrid(server.terms.address, server.root is None, server.root, token=token)
        client = self.grid._runtime_client
        self.alive = HeartbeatSender(make_task_heartbeat_fn_http(client))
        self.alive.start()
        task = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id = task.task_id
        TaskIdentity.run_id = task.run.run_id
        TaskIdentity.node_id = task.context.node_id
        self.grid.set_run(run_from_proto(task.run))
        return self.grid

    def _start(self) -> int:
        """A new Flower run."""
        import hashlib

        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        self._stop_last()
        content = build_fab_from_disk(self.server.layout.app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        run = int(self.server.control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)
        write_atomic(self.server.layout.server / LAST, str(run).encode())
        return run

    def _stop_last(self) -> None:
        """The Flower run of a server that was killed: sites may wait for a message of it whose
        parts never came, and take no other one before they learn that it is over."""
        from flwr.proto.control_pb2 import StopRunRequest

        with suppress(Exception):  # there was none, or it is over
            last = int((self.server.layout.server / LAST).read_text())
            self.server.control.StopRun(StopRunRequest(run_id=last))

    def _token(self, run: int) -> str:
        """What opens the task of this run; tasks of others are not carried out."""
        from flwr.common.constant import SubStatus
        from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest
        from flwr.supercore.constant import TaskType

        server = self.server
        client = runtime(server.terms.address, server.root, secret=server.secret)
        while True:
            task = client.AcquireTask(
                AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            )
            if not (task.HasField("task") and task.token):
                time.sleep(LOOK / 5)
                continue
            if task.task.run_id == run:
                client.close()
                return str(task.token)
            other = runtime(server.terms.address, server.root, token=task.token)
            other.PushTaskOutput(
                PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="no run of this server")
            )
            other.close()

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        from flwr.common.constant import SubStatus
        from flwr.proto.runtime_pb2 import PushTaskOutputRequest

        self.grid._retry_invoker.max_tries = 1
        status = SubStatus.COMPLETED if error is None else SubStatus.FAILED
        with suppress(Exception):  # of Flower: the run is over all the same
            self.grid._runtime_client.PushTaskOutput(
                PushTaskOutputRequest(sub_status=status, details=str(error or "")[:200])
            )
        self.alive.stop()
        self.grid.close()


def _line(rounds: int, figure: float) -> str:
    name = figure.name if isinstance(figure, Figure) else "accuracy"
    result = f"{name} {number(figure)}" if figure == figure else f"no site reported {name}"
    return f"round {rounds} is done: {result}"


def main(arguments: list[str]) -> int:
    try:
        FlowerServer(Path(arguments[0])).work()
    except SettingError as error:
        print(f"error: {shown(error)}", file=sys.stderr, flush=True)
        return 2
    except Interrupted as stop:
        print(f"interrupted: {shown(stop)}", file=sys.stderr, flush=True)
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
