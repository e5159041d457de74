"""Whoever watches a server sees who is there, how far it is and who was put out; and no secret."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("flwr")
from deploy.test_commands import made
from deploy.test_malicious_site import flood
from deploy.test_server import DATA, deployment, from_south
from engine.stand_in import Wires, three
from idiolect.cli.main import main
from idiolect.core.documents import encode
from idiolect.core.files import private_folder, write_document
from idiolect.deploy.certificates import make_authority
from idiolect.deploy.config import Terms
from idiolect.deploy.flower.node import arguments, free_port
from idiolect.deploy.folder import DeploymentFolder
from idiolect.deploy.logs import RotatingLog
from idiolect.deploy.pidfile import hold
from idiolect.deploy.server import serve
from idiolect.deploy.watch import HealthServer, ServerStatus, SiteStatus, health, in_words, status


@pytest.fixture
def layout(tmp_path) -> DeploymentFolder:
    made_folder = made(tmp_path / "fed")
    private_folder(made_folder.server)
    return made_folder


# -- which process ---------------------------------------------------------------------------------
def test_stop_leaves_a_process_alone_that_has_the_number_of_an_earlier_one(layout, capsys):
    with subprocess.Popen(["sleep", "60"]) as other:
        layout.pid("server").write_text(str(other.pid))
        try:
            assert main(["deploy", "stop", str(layout.folder)]) == 0
            assert "nothing was running" in capsys.readouterr().err
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize("role", ["superlink", "server"])
def test_stop_ends_the_process_that_holds_the_folder(layout, role, capsys):
    code = (
        "import sys, time; from pathlib import Path; from idiolect.deploy.pidfile import hold\n"
        "file = hold(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(layout.pid(role))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        assert main(["deploy", role, str(layout.folder)]) == 2
        assert f"its {role} is running already (process {process.pid})" in capsys.readouterr().err
        assert status(layout.folder)[role] == process.pid
        assert main(["deploy", "stop", str(layout.folder)]) == 0
        assert process.wait(10) == -15
    assert f"stopped: {role}" in capsys.readouterr().err


# -- status ----------------------------------------------------------------------------------------
def test_a_run_tells_how_far_it_is_and_with_whom(layout, capsys):
    wires = Wires(three(DATA))
    wires.tamper = from_south("conclude", flood)
    serve(
        wires,
        deployment(terms={"sites": 2}),
        layout.runs / "first",
        tell=lambda text: None,
        status=layout.status,
    )
    assert main(["deploy", "status", str(layout.folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    run = facts["run"]
    assert (run["state"], run["rounds_done"], run["rounds"]) == ("ended", 3, 3)
    east, north, south = run["sites"]
    assert east["site"] == "east" and east["here"] and east["rounds"] == 3
    assert east["bytes_up"] == north["bytes_up"] > 2 * south["bytes_up"] > 0
    assert south["put_out"] and not south["here"] and "bytes" in south["reason"]
    assert facts["superlink"] is facts["server"] is None and facts["keys"] == ["site-1", "site-2"]
    assert main(["deploy", "status", str(layout.folder)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "ended, 3 of 3 rounds done" in text
    assert "Certificate server.crt: valid until" in text
    assert "south: put out: a frame must have" in text


def test_a_run_that_waits_says_so_and_a_stopped_one_too(layout):
    seen = []

    class Watched(Wires):
        def online(self):
            if layout.status.exists():
                seen.append(status(layout.folder)["run"]["state"])
            return super().online()

    with pytest.raises(ValueError, match="0 of 3 have agreed"):
        run = deployment(terms={"wait": 0.2})
        serve(Watched({}), run, layout.runs / "first", tell=lambda text: None, status=layout.status)
    assert set(seen) == {"waiting"}
    assert status(layout.folder)["run"]["state"] == "stopped"


def test_rejected_and_missing_messages_are_counted_by_site(layout):
    wires = Wires(three(DATA))
    wires.tamper = from_south("update", lambda said: b"rubbish")
    serve(wires, deployment(), layout.runs / "a", tell=lambda text: None, status=layout.status)
    east, _, south = status(layout.folder)["run"]["sites"]
    assert (east["missing"], south["missing"], south["rounds"]) == (0, 6, 0)
    assert "8 to" in south["reason"]


def test_a_certificate_that_expires_soon_is_said_to(layout):
    began = datetime.now(UTC) - timedelta(days=1)
    make_authority(layout.certificates, ["127.0.0.1"], days=10, since=began)
    text = " ".join(in_words(status(layout.folder)))
    assert "(8 days); renew it soon" in text or "(9 days); renew it soon" in text
    later = time.time() + 30 * 86400
    assert "server.crt: expired on" in " ".join(in_words(status(layout.folder), later))


def test_names_of_sites_cannot_write_over_the_terminal(layout):
    site = SiteStatus("a\x1b[2Jb" * 20, False, 1, 0.0, 0, 0, 0, 0, 0, True, "x\x1b[2J " * 50)
    write_document(layout.status, encode(_status(sites=[site])))
    lines = in_words(status(layout.folder))
    assert "\x1b" not in "".join(lines) and max(map(len, lines)) <= 80


def _status(**fields) -> ServerStatus:
    now = time.time()
    common = {"state": "training", "directory": "runs/first", "method": "ditto"}
    times = {"started": now - 50, "last_round": now - 5, "updated": now}
    terms = {"wait": 60.0, "deadline": 20.0}
    numbers = {"rounds_done": 4, "rounds": 10}
    return ServerStatus(**{**common, **times, **terms, **numbers, **fields})


# -- health ----------------------------------------------------------------------------------------
def asked(port: int, path: str = "/health") -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_monitor_is_told_whether_rounds_are_made(layout):
    with HealthServer(0, lambda: health(layout)) as server:
        down = {"superlink": False, "server": False}
        assert asked(server.port) == (503, {**down, "state": "idle"})
        with hold(layout.pid("server")):
            assert asked(server.port) == (503, {**down, "server": True, "state": "idle"})
        with hold(layout.pid("server")), hold(layout.pid("superlink")):
            up = dict.fromkeys(down, True)
            assert asked(server.port) == (200, {**up, "state": "idle"})
            site = SiteStatus("secret name", True, 1, 0.0, 0, 0, 0, 0, 0, False, "")
            write_document(layout.status, encode(_status(sites=[site])))
            code, facts = asked(server.port)
            assert code == 200 and facts.pop("seconds_since_round") > 4
            run = {"state": "training", "round": 4, "rounds": 10, "sites": 1}
            assert facts == {**up, **run}
            for stopped in (
                {"last_round": time.time() - 21},
                {"last_round": 0.0, "started": time.time() - 81},
                {"state": "stopped"},
            ):
                write_document(layout.status, encode(_status(**stopped)))
                assert asked(server.port)[0] == 503
            write_document(layout.status, encode(_status(state="ended", last_round=1.0)))
            assert asked(server.port)[0] == 200
        assert asked(server.port)[0] == 503  # the server is gone
        assert asked(server.port, "/status.json")[0] == 404


def test_a_port_for_health_that_is_in_use_is_said(layout, capsys):
    with HealthServer(0, lambda: health(layout)) as server:
        command = ["deploy", "server", str(layout.folder), "--health-port", str(server.port)]
        assert main(command) == 2
    assert f"--health-port: cannot listen at 127.0.0.1:{server.port}" in capsys.readouterr().err


# -- logs ------------------------------------------------------------------------------------------
def test_logs_keep_a_bounded_number_of_bytes(tmp_path):
    with RotatingLog(tmp_path / "log.txt", most=1000, earlier=2) as log:
        for number in range(500):
            log.write(f"line {number}\n".encode())
        log.write(b"x" * 5000)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["log.txt", "log.txt.1", "log.txt.2"]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)


@pytest.mark.parametrize("level", ["", "INFO"])
def test_only_warnings_of_flower_are_printed_unless_more_is_asked_for(tmp_path, level):
    lines = "with role(Path(sys.argv[1]), 'x'): print(os.environ['FLWR_LOG_LEVEL'])"
    imports = "import os, sys; from pathlib import Path"
    program = f"{imports}; from idiolect.deploy.flower.process import role\n{lines}"
    environment = {n: v for n, v in os.environ.items() if n != "FLWR_LOG_LEVEL"}
    environment |= {"FLWR_LOG_LEVEL": level} if level else {}
    command = [sys.executable, "-c", program, str(tmp_path)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == (level or "WARNING")


def test_no_key_or_secret_is_an_argument_of_a_process(layout):
    terms = Terms(address=f"127.0.0.1:{free_port()}")
    state = layout.site(1) / "state"
    text = " ".join([*layout.superlink_arguments(terms), *arguments(state, 5000)])
    for path in (layout.server / "key", layout.server / "secret", state / "secret"):
        content = path.read_bytes()
        assert content.hex() not in text and repr(content)[2:-1] not in text
    for path in (state / "node.key", layout.certificates / "server.key"):
        assert not any(line in text for line in path.read_text().split("\n")[1:-2])
