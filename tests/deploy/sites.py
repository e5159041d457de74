"""Sites as real processes, and a server's way to them: started and stopped by tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch

from deploy.consents import consent_to, contract_of
from deploy.sockets import Sockets
from engine.loopback import local_rounds, remote_rounds
from idiolect.deploy.site.sockets import exchange
from idiolect.engine.rounds import Rounds
from idiolect.host.calls import MOST_FRAME, Call
from idiolect.run.plan import Plan
from idiolect.run.prepare import prepare
from idiolect.run.session import Session

SRC = Path(__file__).parents[2] / "src"
RUN = 77


class Process:
    """`idiolect host start` as a subprocess."""

    def __init__(self, state: Path, *arguments: str):
        self.state = state
        self.arguments = [str(a) for a in arguments]
        self.process: subprocess.Popen[str] | None = None

    @property
    def socket(self) -> str:
        return str(self.state / "host.sock")

    def begin(self) -> None:
        """Start it, without waiting."""
        command = [sys.executable, "-m", "idiolect.cli", "host", "start", "--threads", "1"]
        environment = {**os.environ, "PYTHONPATH": str(SRC), "MKL_CBWR": "AUTO"}
        self.process = subprocess.Popen(
            [*command, "--state", str(self.state), *self.arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start(self, seconds: float = 60.0) -> Process:
        """Start it, if need be, and wait until it answers."""
        if self.process is None or self.process.poll() is not None:
            self.begin()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the site ended: {self.process.stdout.read()}")
            try:
                self.ask(Call("hello"))
                return self
            except (OSError, EOFError):
                time.sleep(0.05)
        self.kill()
        raise RuntimeError("the site does not answer")

    def end(self) -> tuple[int, str]:
        """Start it where it ends by itself; its exit code, and what it said."""
        self.begin()
        said, _ = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def ask(self, call: Call) -> Call:
        """A call and its reply."""
        return Call.open(exchange(self.socket, call.pack(), MOST_FRAME, 60.0))

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self.process.wait(20)
        self.process.stdout.close()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """As its owner would; its exit code, and what it said."""
        self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=30)
        return self.process.returncode, said


@contextmanager
def started(sites: Sequence[Process]):
    """Sites that end with the test, however it ends."""
    try:
        for site in sites:
            site.begin()
        for site in sites:
            site.start()
        yield sites
    finally:
        for site in sites:
            if site.process is not None and site.process.poll() is None:
                site.kill()


# -- a server --------------------------------------------------------------------------------------
@dataclass
class Told:
    """What a server knows of a site: a stand-in for its host."""

    wire_ids: torch.Tensor
    settings: SimpleNamespace


def plan_of(method: str, fields: dict | None = None, **settings) -> Plan:
    given = {"batch": 8, "dtype": "float64", "rounds": 3, **settings}
    return Plan(method, fields or {}, data="", settings=given)


def session_of(plan: Plan, federation, run: int = RUN) -> Session:
    """Server and hosts in this process."""
    settings = plan.make_settings()
    parts = prepare(plan.make_method(), plan.make_task(federation), federation, settings)
    return Session(parts, 0, run)


def agreement(plan: Plan, form: dict, run: int = RUN) -> Call:
    return Call("agree", {"plan": plan.as_dict(), "run": run, "seed": 0, "data": form})


def array_form(federation) -> dict:
    inputs = [str(federation.inputs.dtype), list(federation.inputs.shape[1:])]
    return {"kind": "array", "inputs": inputs, "classes": federation.classes}


def enrol(sites: Sequence[Process], plan: Plan, form: dict, session: Session) -> list[Told]:
    """Agree with all sites and enrol their clients, in the order of the session's roster."""
    told = []
    for site in sites:
        consent_to(site.state, plan, contract_of(form))
        census = site.ask(agreement(plan, form, session.contract.run))
        assert census.kind == "census", census.facts
        ids = [session.server.roster.wire_id(c["id"]) for c in census.facts["clients"]]
        facts = {"wire_ids": ids, "checksum": session.contract.checksum, "validation": True}
        reply = site.ask(Call("enrol", facts))
        assert reply.kind == "status", reply.facts
        told.append(Told(torch.tensor(ids), SimpleNamespace(metrics=session.metrics)))
    return told


def over_sockets(session: Session, told: Sequence[Told], sites: Sequence[Process]) -> Rounds:
    return remote_rounds(session.server, told, Sockets([site.socket for site in sites]))


def in_process(session: Session) -> Rounds:
    return local_rounds(session.server, session.hosts)
