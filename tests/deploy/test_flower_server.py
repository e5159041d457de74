"""The server's process, which starts a ServerApp per run, and the ServerApp; without Flower."""

import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
from flwr.serverapp import ServerApp

from idiolect.core.documents import encode
from idiolect.core.files import read_document, write_document
from idiolect.core.knobs import SettingError
from idiolect.deploy.certificates import make_site_key
from idiolect.deploy.config import Deployment, Terms
from idiolect.deploy.flower import internals, server, server_app
from idiolect.deploy.flower.process import die_with_parent
from idiolect.deploy.folder import DeploymentFolder, RunOrder, RunOutcome, create
from idiolect.run.interrupts import Interrupted
from idiolect.run.plan import Plan

ARRAY = {"kind": "array", "inputs": ["torch.float32", [1, 8, 8]], "classes": 10}


class FakeOperator:
    """A SuperLink that starts runs 1, 2, ..., and has keys of nobody."""

    def __init__(self, *_: object):
        self.calls: list[tuple] = []
        self.runs = 0
        self.keys: dict[bytes, int | None] = {}

    def nodes(self):
        return dict(self.keys)

    def register(self, key, name):
        self.calls.append(("register", name))
        self.keys[key] = len(self.keys)

    def remove(self, node):
        self.calls.append(("remove", node))
        self.keys = {key: None if n == node else n for key, n in self.keys.items()}

    def start(self, app):
        self.runs += 1
        self.calls.append(("start", self.runs))
        return self.runs

    def stop(self, run):
        self.calls.append(("stop", run))

    def token(self, run):
        return f"token of run {run}"

    def run_calls(self):
        return [call for call in self.calls if call[0] in ("start", "stop")]


@pytest.fixture
def layout(tmp_path) -> DeploymentFolder:
    deployment = Deployment(Plan("fedavg", {}, ""), ARRAY, Terms(sites=2))
    layout = create(tmp_path / "fed", deployment, demo=True)
    write_document(layout.request, encode(RunOrder("abc", str(tmp_path / "run"), False)))
    return layout


@pytest.fixture
def made(layout, monkeypatch) -> server.FlowerServer:
    monkeypatch.setattr(server, "Operator", FakeOperator)
    monkeypatch.setattr(server, "LOOK", 0.01)
    return server.FlowerServer(layout.folder)


def app_is(monkeypatch, code: str) -> None:
    """In place of flwr-serverapp: Python code."""
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(server, "app_command", lambda layout, terms, token: command)


# -- the process -----------------------------------------------------------------------------------
def test_a_run_is_carried_out_by_a_server_app_in_the_folder(made, layout, monkeypatch):
    code = "import os; assert open('server/token').read() == 'token of run 1'"
    app_is(monkeypatch, f"{code}; os.rename('server/wanted.json', 'server/seen')")
    made.carry_out(read_document(layout.request, RunOrder))
    assert made.operator.run_calls() == [("start", 1)]
    assert not (layout.server / "token").exists()


def test_the_token_of_a_run_is_in_a_private_file_and_not_among_the_arguments(made, layout):
    seen: dict[str, object] = {}

    def popen(command, **options):
        token = layout.server / "token"
        seen["mode"] = stat.S_IMODE(token.stat().st_mode)
        seen["words"] = command
        seen["dies"] = options["preexec_fn"] is die_with_parent
        return SimpleNamespace(poll=lambda: 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.subprocess, "Popen", popen)
        made.start_app()
    assert seen["mode"] == 0o600 and seen["dies"]
    words = seen["words"]
    assert Path(words[0]).name == "flwr-serverapp" and "--root-certificates" in words
    assert not any("token of run" in word for word in words)


def test_a_server_app_that_was_killed_is_started_again_in_a_new_run(made, layout, monkeypatch):
    app_is(
        monkeypatch,
        "import os; from pathlib import Path; once = Path('server/once')\n"
        "if once.exists(): os.remove('server/wanted.json')\n"
        "else: once.touch(); os.kill(os.getpid(), 9)",
    )
    made.carry_out(read_document(layout.request, RunOrder))
    assert made.operator.run_calls() == [("start", 1), ("stop", 1), ("start", 2)]
    assert "the run's process has ended (-9); it is started again" in layout.log.read_text()


def test_a_run_that_only_ends_is_given_up(made, layout, monkeypatch):
    app_is(monkeypatch, "raise SystemExit(7)")
    made.carry_out(read_document(layout.request, RunOrder))
    assert made.operator.runs == server.MOST_ENDS
    outcome = read_document(layout.outcome, RunOutcome)
    assert outcome.order_id == "abc"
    assert "the run has ended 5 times without a result (7); what" in outcome.error
    assert not layout.request.exists()


def test_a_signal_lets_the_server_app_finish_its_round(made, layout, monkeypatch):
    app_is(
        monkeypatch,
        "import signal, time; from pathlib import Path\n"
        "signal.signal(signal.SIGTERM, lambda *_: Path('server/finished').touch() or exit(0))\n"
        "Path('server/ready').touch(); time.sleep(30)",
    )

    def ask() -> None:
        end = time.monotonic() + 20
        while not (layout.server / "ready").exists() and time.monotonic() < end:
            time.sleep(0.01)
        made.stop(signal.SIGTERM, None)

    asking = threading.Thread(target=ask)
    asking.start()
    made.carry_out(read_document(layout.request, RunOrder))
    asking.join()
    assert (layout.server / "finished").exists()
    assert layout.request.exists()  # resumed by the next start
    assert not layout.outcome.exists()


def test_a_signal_between_two_runs_ends_the_process(made):
    with pytest.raises(SystemExit) as stopped:
        made.stop(signal.SIGTERM, None)
    assert stopped.value.code == 0 and made.stopping


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_no_server_app_outlives_a_server_that_was_killed(layout):
    """Two would write to one run directory."""
    code = (
        "import subprocess, sys, time\n"
        "from idiolect.deploy.flower.process import die_with_parent\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " preexec_fn=die_with_parent)\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = Path(f"/proc/{int(parent.stdout.readline())}")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 10
    while child.exists() and "Z" not in (child / "stat").read_text().split()[2]:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_app_of_an_older_folder_is_renewed(made, layout):
    app = layout.app / "idiolect_app" / "server_app.py"
    app.write_text("raise RuntimeError")
    made._new_run()
    assert "from idiolect.deploy.flower.server_app import app" in app.read_text()


# -- who may connect -------------------------------------------------------------------------------
def test_sites_connect_whose_keys_are_there_and_no_others(made, layout):
    made.register()
    assert made.operator.calls == [("register", "site-1"), ("register", "site-2")]
    made.operator.calls.clear()
    made.register()
    assert made.operator.calls == []
    key = layout.keys / "site-2.pub"
    public = key.read_bytes()
    key.unlink()
    made.register()
    assert made.operator.calls == [("remove", 1)]
    key.write_bytes(public)  # Flower takes no key twice
    made.operator.calls.clear()
    made.register()
    assert made.operator.calls == []
    assert "site-2.pub is refused: a key that was removed is not taken" in layout.log.read_text()


def test_a_site_is_removed_while_a_run_is_in_progress(made, layout, monkeypatch):
    made.register()
    made.operator.calls.clear()
    app_is(
        monkeypatch,
        "import os, time; from pathlib import Path\n"
        "os.remove('keys/site-1.pub')\n"
        "while not Path('server/removed').exists(): time.sleep(0.01)\n"
        "os.remove('server/wanted.json')",
    )
    remove = made.operator.remove
    made.operator.remove = lambda node: (remove(node), (layout.server / "removed").touch())
    made.carry_out(read_document(layout.request, RunOrder))
    assert ("remove", 0) in made.operator.calls


def test_a_site_is_added_between_two_runs(made, layout, monkeypatch):
    layout.request.unlink()
    monkeypatch.setattr(server.signal, "signal", lambda number, handler: None)

    def pause(seconds: float) -> None:
        if (layout.keys / "north.pub").exists():
            made.stopping = ("register", "north") in made.operator.calls
        else:
            (layout.keys / "north.pub").write_bytes(make_site_key(layout.folder / "north.key"))

    monkeypatch.setattr(server.time, "sleep", pause)
    made.work()
    assert ("register", "north") in made.operator.calls


def test_a_file_in_keys_that_is_none_does_not_end_a_run(made, layout, capsys):
    made.register()
    (layout.keys / "site-3.pub").write_text("rubbish")
    made._register_changes()
    made._register_changes()
    said = layout.log.read_text()
    assert said.count("site-3.pub is no public key of a site") == 1
    (layout.keys / "site-3.pub").unlink()
    made.operator.nodes = lambda: 1 / 0  # the SuperLink is away
    made._register_changes()
    assert "keys/ could not be registered" in capsys.readouterr().err
    del made.operator.nodes
    made._register_changes()
    assert made.files == server.key_digests(layout)


# -- the ServerApp ---------------------------------------------------------------------------------
@pytest.fixture
def carried(layout, monkeypatch):
    """Call the ServerApp with a `serve` of the test's."""
    monkeypatch.chdir(layout.folder)

    def call(serve):
        monkeypatch.setattr(server_app, "serve", serve)
        assert isinstance(server_app.app, ServerApp)
        server_app.app(grid=SimpleNamespace(), context=SimpleNamespace())

    return call


def test_the_server_app_says_what_became_of_the_run(carried, layout, capsys):
    def serve(carrier, deployment, directory, *, resume, tell, progress, status):
        assert deployment.plan.method == "fedavg" and not resume and status == layout.status
        tell("waiting")
        progress(0, 3, 0.5)

    carried(serve)
    assert read_document(layout.outcome, RunOutcome) == RunOutcome("abc", "")
    assert not layout.request.exists()
    said = layout.log.read_text()
    assert "waiting" in said and "round 3 is done: accuracy 0.5" in said


def test_a_run_that_is_refused_says_why(carried, layout):
    def serve(*_, **__):
        raise SettingError("sites: 0 of 2 have agreed")

    carried(serve)
    assert read_document(layout.outcome, RunOutcome).error == "sites: 0 of 2 have agreed"
    assert not layout.request.exists()


def test_a_run_that_was_interrupted_stays_wanted(carried, layout):
    def serve(*_, **__):
        raise Interrupted("stopped after round 2")

    carried(serve)
    assert layout.request.exists() and not layout.outcome.exists()


# -- a site ----------------------------------------------------------------------------------------
class Untouched:
    """The app that comes with a run: whoever looks into it fails."""

    def __getattribute__(self, name):
        raise AssertionError(f"a site has looked at the app of a run: {name}")


def test_a_site_answers_without_a_look_at_the_app_of_the_run(monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    replies: list[object] = []
    fakes = {
        "HeartbeatSender": lambda beat: SimpleNamespace(start=lambda: None, stop=lambda: None),
        "make_task_heartbeat_fn_http": lambda client: None,
        "pull_task_input": lambda client: ("message", "context", Untouched(), Untouched()),
        "push_message": lambda client, reply, context: replies.append((reply, context)),
        "push_task_output": lambda client, context, status, details: replies.append(status),
        "SubStatus": SimpleNamespace(COMPLETED="completed"),
    }
    monkeypatch.setattr(internals, "part", fakes.__getitem__)
    monkeypatch.setattr(internals, "_runtime", lambda *_, **__: SimpleNamespace(close=lambda: None))
    internals._answer("127.0.0.1:1", "token", lambda message, context: f"reply to {message}")
    assert replies == [("reply to message", "context"), "completed"]
    assert not list(tmp_path.iterdir())
