"""A deployed federation on this machine: its demo, and the figures of docs/deploy.md.

    python -m benchmarks.deploy demo        three hospitals and a server (make deploy-demo)
    python -m benchmarks.deploy bytes       on the wire per site and round, by a counting proxy
    python -m benchmarks.deploy seconds --sites 10      and --plain: with flower-supernode as it is
    python -m benchmarks.deploy faults      kills, and what becomes of the run
    python -m benchmarks.deploy nan         one of three sites sends NaN in every round

Everything that is started is stopped.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from idiolect.cli.main import main as main_command
from idiolect.core.knobs import SettingError
from idiolect.data.sets.heart import SPARSE, Heart
from idiolect.deploy.config import FEDERATION, Deployment, Terms
from idiolect.deploy.flower import node
from idiolect.deploy.flower.node import free_port
from idiolect.deploy.flower.process import QUIET
from idiolect.deploy.folder import DeploymentFolder, create
from idiolect.deploy.site.consent import CONSENT
from idiolect.run.plan import Plan
from idiolect.study.load import load

COMMAND = [sys.executable, "-m", "idiolect_command"]
HOSTILE = [sys.executable, "-m", "benchmarks.hostile_site"]
SUPERLINK = "idiolect.deploy.flower.link"
DIGITS = {"kind": "array", "inputs": ["torch.float32", [1, 8, 8]], "classes": 10}


class Proxy:
    """Passes bytes between sites and a server, and counts them."""

    def __init__(self, port: int):
        self.up = self.down = 0
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self.listener.accept()
            except OSError:
                return
            try:
                there = socket.create_connection(("127.0.0.1", self.target))
            except OSError:  # the server is not there yet
                here.close()
                continue
            for name, a, b in (("up", here, there), ("down", there, here)):
                threading.Thread(target=self._pump, args=(name, a, b), daemon=True).start()

    def _pump(self, name: str, a: socket.socket, b: socket.socket) -> None:
        try:
            while piece := a.recv(1 << 16):
                setattr(self, name, getattr(self, name) + len(piece))
                b.sendall(piece)
        except OSError:
            pass
        for line in (a, b):
            line.close()

    def close(self) -> None:
        self.listener.close()


class RestartAlways:
    """What systemd does with a unit of `Restart=always`: a process that ends is started again."""

    PAUSE = 2.0  # seconds: RestartSec of our units

    def __init__(self, command: Sequence[str], log: Path):
        self.command = command
        self.log = log
        self.stopping = threading.Event()
        self.child = self._start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _start(self) -> subprocess.Popen:
        with open(self.log, "ab") as log:
            environment = {**os.environ, **QUIET}
            return subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)

    def _watch(self) -> None:
        while True:
            self.child.wait()
            if self.stopping.wait(self.PAUSE):
                return
            self.child = self._start()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """`systemctl stop`, or `kill` of a process that nobody starts again."""
        self.stopping.set()
        self.child.send_signal(number)

    def wait(self) -> None:
        self.child.wait()


class Federation:
    """A server and sites, as their owners start them."""

    plain = False  # sites connect by flower-supernode as it is

    def __init__(self, folder: Path, deployment: Deployment, proxies: bool = False):
        self.terms = deployment.terms
        self.layout: DeploymentFolder = create(folder, deployment, demo=True)
        deployment = Deployment.read(self.layout.folder)
        self.running: dict[str, RestartAlways] = {}
        self.hosts: dict[int, subprocess.Popen] = {}
        self.proxies = [Proxy(self.terms.port) for _ in range(self.terms.sites if proxies else 0)]
        for n, proxy in enumerate(self.proxies, 1):
            proposal = self.layout.proposal(deployment)
            replace(proposal, address=f"127.0.0.1:{proxy.port}").write(self.state(n) / FEDERATION)

    def __enter__(self) -> Federation:
        for role in ("superlink", "server"):
            self.begin(role, *COMMAND, "deploy", role, str(self.layout.folder))
        self.wait(lambda: self.layout.pid("server").exists())
        return self

    def __exit__(self, *_: object) -> None:
        for unit in self.running.values():
            unit.stop()
        for child in self.hosts.values():
            child.terminate()
        for process in (*self.running.values(), *self.hosts.values()):
            process.wait()
        for proxy in self.proxies:
            proxy.close()

    def state(self, n: int) -> Path:
        return self.layout.site(n) / "state"

    def site(self, n: int, *words: str) -> None:
        """A site with its data."""
        self.start_host(n, *words)
        self.connect(n)

    def agree(self, n: int, *words: str) -> None:
        """The owner of a site reads the terms, and agrees to them by their code."""
        state = self.state(n)
        agreeing = ["host", "agree", str(state / FEDERATION), *words, "--state", str(state)]
        screen = io.StringIO()
        with redirect_stdout(screen), redirect_stderr(io.StringIO()), suppress(SystemExit):
            main_command([*agreeing, "--json"])
        code = json.loads(screen.getvalue())["code"]
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            main_command([*agreeing, "--terms", code])

    def start_host(self, n: int, *words: str, command: Sequence[str] = COMMAND) -> None:
        if not (self.state(n) / CONSENT).exists():
            self.agree(n, *words)
        words = (*command, "host", "start", "--state", str(self.state(n)))
        with open(self.layout.folder / f"host-{n}.txt", "ab") as log:
            self.hosts[n] = subprocess.Popen(words, stdout=log, stderr=log)

    def connect(self, n: int) -> None:
        if not self.plain:
            command = ["host", "connect", "--state", str(self.state(n))]
            self.begin(f"connect-{n}", *COMMAND, *command)
            return
        port = free_port()
        program = str(Path(sysconfig.get_path("scripts")) / "flower-supernode")
        self.begin(f"connect-{n}", program, *node.arguments(self.state(n), port))
        relay = [sys.executable, "-m", "idiolect.deploy.flower.relay", f"127.0.0.1:{port}"]
        self.begin(f"relay-{n}", *relay, str(self.state(n) / "secret"))

    def begin(self, name: str, *command: str) -> None:
        self.running[name] = RestartAlways(command, self.layout.folder / f"{name}.txt")

    def train(
        self, directory: Path, *words: str, watch: Callable[[int], None] | None = None
    ) -> None:
        """`idiolect deploy run`; `watch` is called after each round."""
        command = [*COMMAND, "deploy", "run", str(self.layout.folder)]
        child = subprocess.Popen(
            [*command, "--directory", str(directory), *words], stderr=subprocess.PIPE, text=True
        )
        assert child.stderr is not None
        for line in child.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            if watch and (match := re.search(r"round (\d+) is done", line)):
                watch(int(match[1]))
        if child.wait():
            raise SystemExit(f"the run has failed; see {self.layout.folder}")

    def wait(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise SystemExit(f"it takes too long; see {self.layout.folder}")
            time.sleep(0.2)

    def hold(self, pattern: str, seconds: float) -> None:
        """kill -STOP, and -CONT after a while, of the processes whose commands have a word."""
        self.kill(pattern, signal.SIGSTOP)
        threading.Timer(seconds, lambda: self.kill(pattern, signal.SIGCONT)).start()

    def kill(self, pattern: str, number: signal.Signals = signal.SIGKILL) -> None:
        """A signal to the processes of this federation whose commands have a word."""
        mark = str(self.layout.folder).encode()
        processes = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes()
            except OSError:
                continue
            if mark in command and pattern.encode() in command:
                os.kill(int(path.parent.name), number)
                processes.append(path)
        if not processes:
            raise SystemExit(f"no process of this federation has {pattern!r} in its command")


def deployment(
    method: str, sites: int, rounds: int, deadline: float = 120.0, **fields
) -> Deployment:
    """An MLP on the digits: d = 7,510."""
    settings = {"rounds": rounds, "threads": 1}
    plan = Plan(method, fields, "", model="mlp", settings=settings)
    address = f"127.0.0.1:{free_port()}"
    terms = Terms(sites=sites, least=1, wait=300.0, deadline=deadline, address=address)
    return Deployment(plan, DIGITS, terms)


def digits(n: int, sites: int) -> list[str]:
    words = ["--data", "digits", "--clients", str(sites), "--share", f"{n}/{sites}"]
    return [*words, "--site", f"site-{n}", "--threads", "1"]


# -- what is measured ------------------------------------------------------------------------------
def bytes_on_the_wire(folder: Path, rounds: int = 8) -> None:
    """Per site and round, evaluation among it."""
    for method, fields in (("lp-proj", {"dim": 50}), ("fedavg", {})):
        chosen = deployment(method, 2, rounds, **fields)
        with Federation(folder / method, chosen, proxies=True) as made:
            for n in (1, 2):
                made.site(n, *digits(n, 2))
            seen: dict[int, tuple[int, int]] = {}

            def note(round: int, made: Federation = made, seen: dict = seen) -> None:
                seen[round] = (sum(p.up for p in made.proxies), sum(p.down for p in made.proxies))

            made.train(folder / f"run-{method}", watch=note)
            result = load(folder / f"run-{method}")
        first, last = min(seen), max(seen)
        per = [(b - a) / (last - first) / 2 for a, b in zip(seen[first], seen[last], strict=True)]
        sent = result.summary()["bytes"]
        ours = {way: sent[way] / rounds / 2 for way in ("up", "down")}
        figures = {"method": method, "ours": ours, "wire": {"up": per[0], "down": per[1]}}
        print(json.dumps(figures), flush=True)


def seconds_per_round(folder: Path, sites: int, rounds: int = 5) -> None:
    """Time of rounds with evaluation, from the second on."""
    with Federation(folder / "fed", deployment("lp-proj", sites, rounds, dim=50)) as made:
        for n in range(1, sites + 1):
            made.site(n, *digits(n, sites))
        began = time.monotonic()
        times: list[float] = []
        made.train(folder / "run", watch=lambda round: times.append(time.monotonic()))
    steps = [b - a for a, b in pairwise(times)]
    figures = {"sites": sites, "first_round_after": times[0] - began, "rounds": steps}
    print(json.dumps({**figures, "load": os.getloadavg()}), flush=True)


def faults(folder: Path) -> None:
    """Kills in the middle of a run, one after the other."""
    chosen = deployment("scaffold", 3, 23, deadline=20.0)
    with Federation(folder / "fed", chosen) as made:
        for n in (1, 2, 3):
            made.site(n, *digits(n, 3))

        events: dict[int, tuple[str, Callable[[], None]]] = {
            2: ("kill -9 of the process of site 3", lambda: made.hosts[3].kill()),
            4: ("it is started again", lambda: made.start_host(3, *digits(3, 3))),
            6: (
                "kill -9 of what connects site 2",
                lambda: made.running["connect-2"].stop(signal.SIGKILL),
            ),
            9: ("it is started again", lambda: made.connect(2)),
            12: ("kill -9 of the SuperLink", lambda: made.kill(SUPERLINK)),
            14: ("kill -9 of the server's ServerApp", lambda: made.kill("flwr-serverapp")),
            16: ("kill -9 of the server's process", lambda: made.running["server"].child.kill()),
            18: ("the SuperLink stands still", lambda: made.hold(SUPERLINK, 30.0)),
            20: ("the ServerApp stands still", lambda: made.hold("flwr-serverapp", 30.0)),
        }
        began = time.monotonic()

        def act(round: int) -> None:
            print(f"-- {time.monotonic() - began:.1f} s", flush=True)
            if round in events:
                text, action = events.pop(round)
                print(f"-- after round {round}: {text}", flush=True)
                action()

        made.train(folder / "run", watch=act)
        print((folder / "run" / "ledger-seed-0.csv").read_text())


def nan(folder: Path) -> None:
    """A site that sends NaN: what the server counts, and how long the run takes."""
    with Federation(folder / "fed", deployment("scaffold", 3, 5, deadline=60.0)) as made:
        for n in (1, 2, 3):
            made.start_host(n, *digits(n, 3), command=HOSTILE if n == 3 else COMMAND)
            made.connect(n)
        began = time.monotonic()
        made.train(folder / "run")
        print(f"{time.monotonic() - began:.1f} s")
        print((folder / "run" / "ledger-seed-0.csv").read_text())
        summary = load(folder / "run").summary()
        print(json.dumps({name: summary[name] for name in ("accuracy", "rejected", "missing")}))


# -- the demo --------------------------------------------------------------------------------------
# Not Switzerland: of its 123 patients 8 are without the disease, none with a measured cholesterol
HOSPITALS = ("Cleveland", "Hungary", "VA")


TEXTS = ("cp", "restecg")  # features that are categories


def hospitals(folder: Path) -> list[Path]:
    """The table of each hospital, in a file of its own, as a hospital would have it."""
    paths = []
    for name in HOSPITALS:
        frame = Heart(hospitals=(name,)).frame()
        paths.append(folder / f"{name}.csv")
        frame.drop(columns=["hospital", *SPARSE]).to_csv(paths[-1], index=False)
    return paths


def demo(folder: Path) -> None:
    """Three hospitals and a server with TLS: train, show the table, stop everything."""
    try:
        tables = hospitals(folder)
    except SettingError as error:
        raise SystemExit(f"the demo needs the data set heart (docs/data.md): {error}") from None
    features = tables[0].read_text().splitlines()[0].split(",")[:-1]
    form = {"kind": "table", "target": "disease", "features": features, "scale": "federated"}
    form["classes"] = ["no", "yes"]
    form["kinds"] = ["text" if name in TEXTS else "number" for name in features]
    plan = Plan("ditto", {}, "", settings={"rounds": 10, "batch": 32, "threads": 1})
    terms = Terms(sites=3, wait=300.0, deadline=120.0, address=f"127.0.0.1:{free_port()}")
    with Federation(folder / "fed", Deployment(plan, form, terms)) as made:
        for n, table in enumerate(tables, 1):
            words = ["--data", str(table), "--target", "disease", "--site", table.stem]
            made.site(n, *words, "--threads", "1")
        states = [made.state(n) for n in (1, 2, 3)]
        made.wait(lambda: all((state / "host.sock").exists() for state in states))
        made.train(folder / "run")
        for state in states:
            subprocess.run([*COMMAND, "host", "status", "--state", str(state)], check=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deploy")
    parser.add_argument("what", choices=["demo", "bytes", "seconds", "faults", "nan"])
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--plain", action="store_true", help="flower-supernode as it is")
    given = parser.parse_args()
    Federation.plain = given.plain
    with tempfile.TemporaryDirectory(prefix="idiolect-") as place:
        folder = Path(place)
        if given.what == "seconds":
            seconds_per_round(folder, given.sites)
        else:
            named = {"demo": demo, "bytes": bytes_on_the_wire, "faults": faults, "nan": nan}
            named[given.what](folder)


if __name__ == "__main__":
    main()
