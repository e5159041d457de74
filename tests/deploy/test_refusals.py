"""What is said where a site and a server do not fit: by the server, and to the site's owner."""

import builtins
import csv
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr")
from deploy.flower_federation import COMMAND, Federation
from engine.stand_in import Wires
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError
from idiolect.deploy.certificates import make_authority, make_site_key
from idiolect.deploy.config import Deployment, Proposal, Terms
from idiolect.deploy.flower.node import free_port
from idiolect.deploy.folder import DeploymentFolder, create
from idiolect.deploy.server import serve
from idiolect.deploy.site.agreement import Builder
from idiolect.deploy.site.data import SiteData
from idiolect.deploy.site.rules import Rules
from idiolect.deploy.site.site import Site
from idiolect.deploy.site.state import StateFolder
from idiolect.run.plan import Plan

ARRAY = {"kind": "array", "inputs": ["torch.float32", [1, 8, 8]], "classes": 10}
FORM = {"kind": "table", "target": "outcome", "features": ["age"], "classes": ["n", "y"]}


# -- data that do not fit --------------------------------------------------------------------------
TABLES = {
    "a column that is not there": (
        {"years": list(range(40)), "outcome": ["n", "y"] * 20},
        "data: column 'age' is not in this site's table",
    ),
    "another class": (
        {"age": list(range(40)), "outcome": ["n", "maybe"] * 20},
        "the data of this site do not fit the contract",
    ),
    "text in place of numbers": (
        {"age": ["young", "old"] * 20, "outcome": ["n", "y"] * 20},
        "the data of this site do not fit the contract",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_server_says_what_does_not_fit_at_a_site_and_goes_on_waiting(name, tmp_path):
    columns, reason = TABLES[name]
    path = tmp_path / "visits.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    folder = StateFolder(tmp_path / "state")
    folder.open()
    owned = SiteData("north", "table", {"path": str(path)})
    site = Site(owned, folder, Rules(), Builder(), lambda text: None)
    terms = Terms(sites=1, wait=0.5)
    chosen = Deployment(Plan("fedavg", {}, ""), {**FORM, "scale": "client"}, terms)
    told: list[str] = []
    with pytest.raises(SettingError, match=r"sites: 0 of 1 have agreed within 0.5 seconds"):
        serve(Wires({1: site}), chosen, tmp_path / "run", tell=told.append)
    assert any("north is left out: it refused: " in text and reason in text for text in told)


# -- data that cannot be read ----------------------------------------------------------------------
def start(tmp_path, *words: str) -> int:
    return main(["host", "start", *words, "--state", str(tmp_path / "s"), "--site", "north"])


def test_a_table_that_may_not_be_read_is_named(tmp_path, monkeypatch, capsys):
    path = tmp_path / "visits.csv"
    path.write_text("age,outcome\n1,n\n")
    real = builtins.open

    def denied(file, *more, **options):
        if str(file) == str(path):
            raise PermissionError(13, "Permission denied", str(file))
        return real(file, *more, **options)

    monkeypatch.setattr(builtins, "open", denied)
    assert start(tmp_path, "--data", str(path)) == 2
    said = capsys.readouterr().err
    assert f"path: {str(path)!r} cannot be read: [Errno 13] Permission denied" in said
    assert start(tmp_path, "--data", str(tmp_path / "none.csv")) == 2
    assert "there is no file" in capsys.readouterr().err


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "photos" / "a").mkdir(parents=True)
    real = os.scandir

    def denied(path):
        if str(path).endswith("a"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert start(tmp_path, "--data", "folder", "--path", str(tmp_path / "photos")) == 2
    assert "photos/a' cannot be read: Permission denied" in capsys.readouterr().err


# -- a SuperLink that refuses ----------------------------------------------------------------------
def folder(path: Path) -> DeploymentFolder:
    terms = Terms(sites=2, address=f"127.0.0.1:{free_port()}")
    return create(path, Deployment(Plan("fedavg", {}, ""), ARRAY, terms), demo=True)


class Running:
    """Processes and what they say; all of them end with the test."""

    def __init__(self, place: Path):
        self.place = place
        self.children: list[subprocess.Popen] = []

    def begin(self, name: str, *words: str, command: list[str] = COMMAND) -> None:
        with open(self.place / f"{name}.txt", "w") as said:
            self.children.append(subprocess.Popen([*command, *words], stdout=said, stderr=said))

    def connect(self, layout: DeploymentFolder, number: int, name: str, **proposal) -> None:
        """A site with a copy of what a demo's has, and with what differs in its federation.toml."""
        state = self.place / name
        shutil.copytree(layout.site(number) / "state", state)
        chosen = Proposal.read(state / "federation.toml")
        replace(chosen, **proposal).write(state / "federation.toml")
        if name == "unknown":
            make_site_key(state / "node.key")
        self.begin(name, "host", "connect", "--state", str(state))

    def wait(self, name: str, words: str) -> None:
        """Until a process, or the log of a path, has said something."""
        path = self.place / name
        end = time.monotonic() + 90
        while not path.exists() or words not in path.read_text():
            assert time.monotonic() < end, path.read_text() if path.exists() else name
            time.sleep(0.2)

    def stop(self) -> None:
        for child in reversed(self.children):
            child.terminate()
        codes = [child.wait(60) for child in self.children]
        assert set(codes) == {0}


@pytest.fixture
def running(tmp_path):
    made = Running(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_a_site_that_is_not_let_in_is_told_why_and_the_server_goes_on(running, tmp_path):
    layout = folder(tmp_path / "fed")
    running.begin("server", "deploy", "server", str(layout.folder))
    running.wait("fed/server/said.txt", "the SuperLink does not answer; waiting for it")
    running.begin("superlink", "deploy", "superlink", str(layout.folder))
    running.wait("superlink.txt", "Created node_id")

    other = folder(tmp_path / "other").authority.read_text()
    running.connect(layout, 1, "stranger", authority=other)
    running.connect(layout, 1, "unknown")
    running.connect(layout, 1, "away", address=f"127.0.0.1:{free_port()}")
    running.wait("stranger.txt", "was not made by the authority in federation.toml")
    running.wait("unknown.txt", "its key is not registered there")
    running.wait("superlink.txt", "registered: idiolect deploy add-site")
    running.wait("away.txt", "the server does not answer at its address")

    running.connect(layout, 2, "known")
    running.wait("superlink.txt", "Activated node_id")
    running.connect(layout, 2, "twice")
    running.wait("twice.txt", "a connection with its key is there already")

    (layout.keys / "site-2.pub").unlink()
    running.wait("fed/server/said.txt", "may not connect any more: its key is not in keys/")
    running.wait("known.txt", "its key is not registered there")
    assert [child.poll() for child in running.children] == [None] * len(running.children)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "days", "words"),
    [
        (["127.0.0.1"], 2, "the server's certificate has expired"),
        (["server.example"], 30, "is for another name than the address in federation.toml"),
    ],
)
def test_a_certificate_that_does_not_do_is_said_at_the_site(running, tmp_path, names, days, words):
    layout = folder(tmp_path / "fed")
    # which refuses such a certificate: it came later
    arguments = layout.superlink_arguments(Deployment.read(layout.folder).terms)
    make_authority(layout.certificates, names, days=days, since=datetime.now(UTC) - timedelta(9))
    link = [sys.executable, "-m", "idiolect.deploy.flower.link"]
    running.begin("superlink", *arguments, command=link)
    running.wait("superlink.txt", "Uvicorn running")
    running.connect(layout, 1, "site", authority=layout.authority.read_text())
    running.wait("site.txt", words)


# -- a site that sends rubbish ---------------------------------------------------------------------
class HalfHostile(Federation):
    """The last site sends NaN in every round."""

    def start_host(self, n: int, command: list[str] = COMMAND) -> None:
        hostile = [sys.executable, "-m", "benchmarks.hostile_site"]
        super().start_host(n, hostile if n == self.sites else command)


@pytest.mark.slow
def test_a_site_that_sends_nan_is_rejected_message_by_message_and_the_run_ends(tmp_path):
    made = HalfHostile(tmp_path / "fed", sites=2)
    try:
        made.start()
        done = made.run("scaffold", tmp_path / "run")
        assert done.returncode == 0, f"{done.stderr}\n{made.words()}"
    finally:
        made.stop()
    summary = json.loads(done.stdout)
    assert summary["rounds"] == 3 and summary["rejected"] == 6 and summary["missing"] == 0
    rows = list(csv.DictReader((tmp_path / "run" / "ledger-seed-5.csv").read_text().splitlines()))
    assert [row["reasons"] for row in rows] == ["rejected: not finite 2"] * 3
    assert [row["admitted"] for row in rows] == ["2"] * 3
    assert not made.left()
