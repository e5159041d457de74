"""A whole federation on this machine, as its owners would start it: with TLS and keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from deploy.consents import consent_to
from idiolect import data
from idiolect.deploy.config import Deployment, Terms
from idiolect.deploy.flower.node import free_port
from idiolect.deploy.folder import DeploymentFolder, create
from idiolect.run.plan import Plan

COMMAND = [sys.executable, "-m", "idiolect_command"]
SETTINGS = {"rounds": 3, "batch": 16, "seed": 5, "threads": 1}


def plan(method: str, **settings) -> Plan:
    fields = {"part": "output"} if method == "ffgg" else {}
    return Plan(method, fields, "", model="mlp", settings={**SETTINGS, **settings})


class Federation:
    """Sites with two clients each of the digits, and a server."""

    def __init__(self, folder: Path, sites: int = 3):
        self.sites = self.least = sites
        self.address = f"127.0.0.1:{free_port()}"
        self.whole = data.load("digits", clients=2 * sites)
        names = [f"site-{n // 2 + 1}/{n % 2 + 1}" for n in range(2 * sites)]
        self.whole = replace(self.whole, ids=tuple(names))
        self.layout: DeploymentFolder = create(folder, self.deployment("fedavg"), demo=True)
        self.running: dict[str, subprocess.Popen] = {}

    def deployment(self, method: str, **settings) -> Deployment:
        inputs = [str(self.whole.inputs.dtype), list(self.whole.shape)]
        form = {"kind": "array", "inputs": inputs, "classes": self.whole.classes}
        terms = Terms(
            sites=self.sites, least=self.least, wait=240.0, deadline=120.0, address=self.address
        )
        return Deployment(plan(method, **settings), form, terms)

    def start(self) -> None:
        for role in ("superlink", "server"):
            self.begin(role, "deploy", role, str(self.layout.folder))
        for n in range(1, self.sites + 1):
            self.start_host(n)
            self.connect(n)

    def start_host(self, n: int, command: list[str] = COMMAND) -> None:
        given = ["--data", "digits", "--clients", str(2 * self.sites), "--threads", "1"]
        given += ["--share", f"{n}/{self.sites}", "--min-samples", "1", "--site", f"site-{n}"]
        self.begin(f"host-{n}", "host", "start", *given, "--state", self.state(n), command=command)

    def connect(self, n: int) -> None:
        self.begin(f"connect-{n}", "host", "connect", "--state", self.state(n))

    def state(self, n: int) -> str:
        return str(self.layout.site(n) / "state")

    def begin(self, name: str, *words: str, command: list[str] = COMMAND) -> None:
        log = open(self.layout.folder / f"{name}.txt", "ab")  # noqa: SIM115
        self.running[name] = subprocess.Popen([*command, *words], stdout=log, stderr=log)
        log.close()

    def run(self, method: str, directory: Path, *words: str, **settings):
        """Train, as `idiolect deploy run` does."""
        deployment = self.deployment(method, **settings)
        deployment.write(self.layout.folder)
        command = [*COMMAND, "deploy", "run", str(self.layout.folder), "--json", *words]
        self.ready()
        for n in range(1, self.sites + 1):
            consent_to(Path(self.state(n)), deployment.run_plan, deployment.data)
        return subprocess.run(
            [*command, "--directory", str(directory)], capture_output=True, text=True, timeout=600
        )

    def ready(self) -> None:
        """The server's process is at work, and those of the sites have begun."""
        end = time.monotonic() + 240  # eight programs that load torch, on a busy machine
        sites = [Path(self.state(n), "site.json") for n in range(1, self.sites + 1)]
        while not all(path.exists() for path in (self.layout.pid("server"), *sites)):
            assert time.monotonic() < end, self.words()
            time.sleep(0.2)

    def words(self) -> str:
        """What all processes have said, for a test that fails."""
        files = self.layout.folder.glob("*.txt")
        return "\n".join(f"== {f.name}\n{f.read_text()[-2000:]}" for f in files)

    def stop(self) -> None:
        """Everything ends."""
        for child in self.running.values():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        for child in self.running.values():
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def left(self) -> list[str]:
        """Processes that still belong to this federation, by their commands."""
        found = []
        mark = os.fsencode(self.layout.folder)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes()
            except OSError:
                continue
            if mark in command and int(path.parent.name) != os.getpid():
                found.append(command.replace(b"\0", b" ").decode())
        return found
