"""`idiolect deploy`: what it writes, what it refuses, and a federation from start to stop."""

import json
import os
import shlex
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")
import idiolect as il
from deploy.flower_federation import Federation
from idiolect.cli.commands import deploy
from idiolect.cli.main import main
from idiolect.core.documents import encode
from idiolect.core.files import read_document, write_document
from idiolect.core.knobs import SettingError
from idiolect.data.read.tables import scale_knob
from idiolect.deploy.certificates import (
    check_certificate,
    make_authority,
    make_site_key,
    public_key,
)
from idiolect.deploy.config import Deployment, Proposal, Terms
from idiolect.deploy.flower import process
from idiolect.deploy.flower.node import free_port
from idiolect.deploy.folder import DeploymentFolder, RunOrder, RunOutcome, create
from idiolect.deploy.pidfile import hold, holder
from idiolect.deploy.units import write_site_files
from idiolect.methods import make_method
from idiolect.run.plan import Plan

ARRAY = {"kind": "array", "inputs": ["torch.float32", [1, 8, 8]], "classes": 10}
TABLE = {
    "kind": "table",
    "target": "outcome",
    "features": ["age", "blood pressure"],
    "classes": ["no", "yes"],
    "scale": "client",
}


def made(folder, data=ARRAY, demo=True, **terms) -> DeploymentFolder:
    plan = Plan("lp-proj", {"dim": 50}, "", model="linear", settings={"rounds": 3, "batch": 8})
    return create(folder, Deployment(plan, data, Terms(**{"sites": 2, **terms})), demo)


# -- the folder ------------------------------------------------------------------------------------
def test_a_folder_says_what_it_was_told(tmp_path):
    layout = made(tmp_path / "fed", TABLE, address="server.example:9092", deadline=30.0)
    read = Deployment.read(layout.folder)
    assert read.plan.method == "lp-proj" and read.plan.method_fields == {"dim": 50}
    assert read.plan.run_settings == {"rounds": 3, "batch": 8, "engine": "flower"}
    assert read.data == TABLE
    assert read.terms == Terms(name="fed", sites=2, address="server.example:9092", deadline=30.0)


def files_in(folder) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


SERVER_FILES = {
    "README.md",
    "Containerfile",
    "deployment.toml",
    "federation.toml",
    "app/pyproject.toml",
    "app/idiolect_app/__init__.py",
    "app/idiolect_app/client_app.py",
    "app/idiolect_app/server_app.py",
    "certificates/ca.crt",
    "certificates/server.crt",
    "certificates/server.key",
    "server/key",
    "server/secret",
    "systemd/idiolect-server.service",
    "systemd/idiolect-superlink.service",
}
SITE_FILES = {
    "README.md",
    "Containerfile",
    "federation.toml",
    "systemd/idiolect-host.service",
    "systemd/idiolect-supernode.service",
}


def test_a_servers_folder_has_what_a_server_needs_and_no_private_key_of_a_site(tmp_path):
    layout = made(tmp_path / "fed", demo=False)
    assert files_in(layout.folder) == SERVER_FILES
    assert not list(layout.folder.rglob("node.key"))
    for name in ("certificates/server.key", "server/key", "server/secret"):
        assert stat.S_IMODE((layout.folder / name).stat().st_mode) == 0o600
    readme = (layout.folder / "README.md").read_text()
    for command in ("add-site", "superlink", "server", "run", "status", "stop"):
        assert f"idiolect deploy {command} {layout.folder}" in readme
    assert "host start" not in readme and "federation.toml" in readme


def test_a_demo_has_the_state_directories_of_its_sites_too(tmp_path):
    layout = made(tmp_path / "fed")
    keys = {"keys/site-1.pub", "keys/site-2.pub"}
    sites = {
        f"sites/{n}/state/{name}" for n in (1, 2) for name in {*SITE_FILES, "node.key", "node.pub"}
    }
    assert files_in(layout.folder) == SERVER_FILES | keys | sites
    assert stat.S_IMODE((layout.site(1) / "state" / "node.key").stat().st_mode) == 0o600


def test_a_site_gets_one_file_and_its_own_say_nothing_of_the_servers_machine(tmp_path):
    layout = made(tmp_path / "fed", TABLE, demo=False)
    text = (layout.folder / "federation.toml").read_text()
    assert str(tmp_path) not in text and "PRIVATE" not in text
    assert layout.authority.read_text().splitlines()[1] in text
    state = tmp_path / "hospital" / "state"
    write_site_files(state, Proposal.read(layout.folder / "federation.toml"), tmp_path / "v.csv")
    assert files_in(state) == SITE_FILES
    for name in SITE_FILES:
        assert str(layout.folder) not in (state / name).read_text(), name
    assert (state / "federation.toml").read_text() == text
    readme = (state / "README.md").read_text()
    agree = (
        f"idiolect host agree federation.toml --data visits.csv --target outcome --state {state}"
    )
    for command in (agree, f"idiolect host start --state {state}", "--network none"):
        assert command in readme
    assert f"idiolect host connect --state {state}" in readme
    assert f"-v {tmp_path / 'v.csv'}:{tmp_path / 'v.csv'}:ro" in readme


def units(folder) -> dict[str, dict[str, str]]:
    """The settings of units by their names."""
    settings = {}
    for path in sorted(folder.rglob("*.service")):
        pairs = [line.split("=", 1) for line in path.read_text().splitlines() if "=" in line]
        settings[path.stem] = dict(pairs)
    return settings


def test_units_start_what_is_there_and_start_it_again(tmp_path):
    layout = made(tmp_path / "50% of my fed")
    every = units(layout.folder)
    commands = {
        "idiolect-superlink": ["deploy", "superlink", str(layout.folder)],
        "idiolect-server": ["deploy", "server", str(layout.folder)],
        "idiolect-host": ["host", "start", "--state", str(layout.site(2) / "state")],
        "idiolect-supernode": ["host", "connect", "--state", str(layout.site(2) / "state")],
    }
    assert set(every) == set(commands)
    for name, unit in every.items():
        words = shlex.split(unit["ExecStart"].replace("%%", "%"))
        assert os.access(words[0], os.X_OK) and words[-len(commands[name]) :] == commands[name]
        assert unit["Restart"] == "always" and unit["User"] == str(os.getuid())
        assert unit["NoNewPrivileges"] == "true" and unit["UMask"] == "0077"
    assert every["idiolect-host"]["PrivateNetwork"] == "true"


def test_a_federations_name_is_in_no_unit(tmp_path):
    proposal = made(tmp_path / "fed").proposal(Deployment.read(tmp_path / "fed"))
    hostile = replace(proposal, name="x\nExecStartPre=/bin/false\n", address="a\n```\n:1")
    write_site_files(tmp_path / "state", hostile)
    assert "ExecStartPre" not in str(units(tmp_path / "state"))
    assert "\nExecStartPre" not in (tmp_path / "state" / "README.md").read_text()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd")
def test_systemd_takes_the_units(tmp_path):
    layout = made(tmp_path / "my fed")
    files = [str(path) for path in layout.folder.rglob("*.service")]
    command = ["systemd-analyze", "verify", "--man=no", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if "idiolect-" in line]
    assert not lines, done.stderr


def test_the_app_that_flower_carries_holds_no_code_of_a_run(tmp_path):
    from flwr.cli.build import build_fab_from_disk

    layout = made(tmp_path / "fed")
    assert len(build_fab_from_disk(layout.app)) < 4000
    settings = tomllib.loads((layout.app / "pyproject.toml").read_text())
    assert settings["project"]["dependencies"] == ["idiolect[flower]"]
    client = (layout.app / "idiolect_app" / "client_app.py").read_text()
    assert "from idiolect.deploy.flower.relay import app" in client


def test_an_insecure_folder_has_no_keys(tmp_path):
    layout = made(tmp_path / "fed", insecure=True)
    assert not layout.certificates.exists() and not layout.keys.exists()
    assert "**without TLS" in (layout.folder / "README.md").read_text()


def test_a_second_deployment_in_a_folder_is_refused(tmp_path):
    made(tmp_path / "fed")
    with pytest.raises(SettingError, match="holds a deployment already"):
        made(tmp_path / "fed")


REFUSED = {
    "seeds": ({"seeds": 3}, {}, "seeds must be left out in a deployment, got 3"),
    "engine": ({"engine": "ray"}, {}, "engine must be left out in a deployment, got 'ray'"),
    "timing": (
        {"timing": "arrivals"},
        {},
        "timing must be left out .*, got 'arrivals'",
    ),
    "attack": ({"attack": "sign-flip", "malicious": 1}, {}, "got 'sign-flip'"),
    "selection": (
        {"selection": "power-of-choice"},
        {},
        "selection must be left out .*, got 'power-of-choice': candidates would be asked",
    ),
    "least": (
        {},
        {"sites": 2, "least": 3},
        r"least must be at most the number of sites \(2\), got 3",
    ),
    "address": ({}, {"address": "nowhere"}, "address must be host:port, got 'nowhere'"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_what_makes_no_sense_with_real_sites_is_refused(field):
    settings, terms, message = REFUSED[field]
    with pytest.raises(SettingError, match=message):
        Deployment(Plan("fedavg", {}, "", settings=settings), ARRAY, Terms(**terms))


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (Plan("local", {}, "", model="linear | mlp"), "model must be one for all sites"),
        (Plan("fedmd", {}, ""), "method must need no public inputs in a deployment, got 'fedmd'"),
    ],
)
def test_sites_have_one_model_and_no_public_inputs(plan, match):
    with pytest.raises(SettingError, match=match):
        Deployment(plan, ARRAY)


FORMS = {
    "kind": ({"kind": "pictures"}, "kind must be one of table, array, got 'pictures'"),
    "twice": ({**TABLE, "features": ["age", "age"]}, "each named once"),
    "target among features": ({**TABLE, "features": ["outcome"]}, "is the target; leave it out"),
    "scale": ({**TABLE, "scale": "all"}, "scale must be .*, got 'all'"),
    "one class": ({**TABLE, "classes": ["no"]}, "classes must be two or more"),
    "more": ({**ARRAY, "path": "/etc"}, "'path'.*is not expected"),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_data_contract_that_no_site_could_keep_is_refused(name):
    form, message = FORMS[name]
    with pytest.raises(SettingError, match=message):
        Deployment(Plan("fedavg", {}, ""), form)


def test_a_folder_without_a_deployment(tmp_path):
    with pytest.raises(SettingError, match=r"deployment.toml is missing.*idiolect deploy init"):
        Deployment.read(tmp_path)
    (tmp_path / "deployment.toml").write_text("[deployment\n")
    with pytest.raises(SettingError, match="cannot use"):
        Deployment.read(tmp_path)


# -- init on the command line ----------------------------------------------------------------------
def test_init_takes_the_form_of_the_data_from_a_table(tmp_path, capsys):
    table = tmp_path / "like.csv"
    table.write_text("id,age,pressure,outcome\n1,40,120,yes\n2,50,130,no\n")
    words = ["--method", "lp-proj:p=1", "--dim", "7", "--rounds", "4", "--sites", "3"]
    words += ["--like", str(table), "--target", "outcome", "--drop", "id"]
    assert main(["deploy", "init", str(tmp_path / "fed"), *words]) == 0
    read = Deployment.read(tmp_path / "fed")
    # scaled by the means of all sites, as in any other run
    assert read.data == {**TABLE, "features": ["age", "pressure"], "scale": "federated"}
    assert read.data["scale"] == scale_knob().default
    assert read.plan.method_fields == {"p": 1, "dim": 7}
    assert read.plan.run_settings == {"rounds": 4, "engine": "flower"}
    assert read.terms.sites == 3
    text = "".join(p.read_text() for p in (tmp_path / "fed").rglob("*.toml"))
    assert "120" not in text  # no row of the table


def test_init_without_tls_warns(tmp_path, capsys):
    words = ["--data", "digits", "--insecure"]
    assert main(["deploy", "init", str(tmp_path / "fed"), *words]) == 0
    assert "warning: without TLS and keys" in capsys.readouterr().err
    assert Deployment.read(tmp_path / "fed").data == ARRAY


def test_init_asks_for_what_it_needs(tmp_path, capsys):
    assert main(["deploy", "init", str(tmp_path / "fed")]) == 2
    assert "target: name the column" in capsys.readouterr().err
    assert main(["deploy", "init", str(tmp_path / "fed"), "--target", "y"]) == 2
    assert "--like FILE" in capsys.readouterr().err
    assert main(["deploy", "serve", "x"]) == 2
    assert "did you mean 'server'" in capsys.readouterr().err


# -- the engine of a run ---------------------------------------------------------------------------
def test_a_run_by_flower_says_how_to_have_sites_and_the_command_does(tmp_path, capsys):
    table = tmp_path / "visits.csv"
    table.write_text("site,age,outcome\na,40,yes\nb,50,no\n")
    words = ["run", "lp-proj:p=1", "--dim", "7", "--rounds", "4", "--channel", "qsgd(levels=4)"]
    words += [
        "--keep-best",
        "false",
        "--server-optimizer",
        "sgd",
        "--server-options",
        "momentum=0.9",
        "--engine",
        "flower",
        "--model",
        "mlp",
    ]
    words += ["--data", "table", "--path", str(table), "--client", "site", "--target", "outcome"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "engine must not be 'flower' here: it trains with real sites" in said
    command = shlex.split(said[said.index("idiolect deploy init") :])
    assert command[:6] == ["idiolect", "deploy", "init", "FOLDER", "--sites", "N"]
    command[3], command[5] = str(tmp_path / "fed"), "3"
    assert main(command[1:]) == 0
    read = Deployment.read(tmp_path / "fed")
    assert read.plan.make_method() == make_method("lp-proj", p=1, dim=7)
    settings = read.plan.make_settings()
    assert settings.engine == "flower" and settings.rounds == 4
    assert settings.server_options == "momentum=0.9"
    assert str(settings.as_dict()["channel"]) == "qsgd(levels=4)"
    assert read.plan.model == "mlp" and read.data["features"] == ["site", "age"]


def test_in_python_too(capsys):
    whole = il.data.load("synthetic", clients=3, samples=20)
    with pytest.raises(SettingError, match=r"deploy init FOLDER .*--method ditto --rounds 7"):
        il.run("ditto", il.models.make("linear", (60,), 10), whole, engine="flower", rounds=7)


# -- certificates and keys -------------------------------------------------------------------------
def handshake(folder, name: str) -> str:
    """The error of a client that trusts the authority and connects under a name; "" = none."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    ours, theirs = socket.socketpair()

    def answer():
        with theirs:
            try:
                with server.wrap_socket(theirs, server_side=True) as line:
                    line.recv(1)
            except OSError:
                pass

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with ours, client.wrap_socket(ours, server_hostname=name):
            return ""
    except ssl.SSLError as error:
        return str(error)
    finally:
        thread.join(5)


def test_a_certificate_is_accepted_under_its_names_only(tmp_path):
    make_authority(tmp_path, ["server.example", "127.0.0.1"])
    assert handshake(tmp_path, "server.example") == ""
    assert handshake(tmp_path, "127.0.0.1") == ""
    assert "CERTIFICATE_VERIFY_FAILED" in handshake(tmp_path, "other.example")
    check_certificate(tmp_path / "server.crt", tmp_path / "ca.crt", "server.example")
    with pytest.raises(SettingError, match=r"is for server.example, 127.0.0.1.*other.example"):
        check_certificate(tmp_path / "server.crt", tmp_path / "ca.crt", "other.example")


def test_an_expired_certificate_is_named_with_its_dates(tmp_path):
    began = datetime.now(UTC) - timedelta(days=9)
    make_authority(tmp_path, ["127.0.0.1"], days=2, since=began)
    day = f"{began + timedelta(days=2):%Y-%m-%d}"
    with pytest.raises(SettingError, match=rf"is valid from .* to {day}, and today is"):
        check_certificate(tmp_path / "server.crt", tmp_path / "ca.crt", "127.0.0.1")


def test_a_certificate_of_another_authority_is_refused(tmp_path):
    make_authority(tmp_path / "a", ["127.0.0.1"])
    make_authority(tmp_path / "b", ["127.0.0.1"])
    with pytest.raises(SettingError, match="was not made by the authority"):
        check_certificate(tmp_path / "a/server.crt", tmp_path / "b/ca.crt", "127.0.0.1")


def test_keys_are_as_flower_wants_them(tmp_path):
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key

    (tmp_path / "site.pub").write_bytes(make_site_key(tmp_path / "node.key"))
    assert bytes_to_public_key(public_key(tmp_path / "site.pub")).curve.name == "secp384r1"
    (tmp_path / "bad.pub").write_text("ssh-rsa nonsense")
    with pytest.raises(SettingError, match=r"bad.pub is no public key of a site"):
        public_key(tmp_path / "bad.pub")


# -- starting --------------------------------------------------------------------------------------
def test_a_port_in_use_is_said_before_anything_starts(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        made(tmp_path / "fed", address=f"127.0.0.1:{port}")
        assert main(["deploy", "superlink", str(tmp_path / "fed")]) == 2
    assert f"address: cannot listen at 127.0.0.1:{port}" in capsys.readouterr().err


def test_expired_certificates_are_said_before_anything_starts(tmp_path, capsys):
    layout = made(tmp_path / "fed")
    began = datetime.now(UTC) - timedelta(days=9)
    make_authority(layout.certificates, ["127.0.0.1"], days=2, since=began)
    assert main(["deploy", "superlink", str(layout.folder)]) == 2
    said = capsys.readouterr().err
    assert "is valid from" in said and "idiolect deploy certificates" in said
    earlier = Proposal.read(layout.folder / "federation.toml")
    assert main(["deploy", "certificates", str(layout.folder)]) == 0
    layout.superlink_arguments(Terms(address=f"127.0.0.1:{free_port()}"))
    renewed = Proposal.read(layout.folder / "federation.toml")
    assert renewed.authority == layout.authority.read_text() != earlier.authority


def test_a_run_without_a_server_is_told_so(tmp_path, capsys):
    layout = made(tmp_path / "fed")
    assert main(["deploy", "run", str(layout.folder)]) == 2
    assert "server: it is not running; idiolect deploy server" in capsys.readouterr().err
    assert main(["deploy", "stop", str(layout.folder)]) == 0
    assert "nothing was running" in capsys.readouterr().err


def test_a_run_writes_federation_toml_anew_where_the_deployment_has_changed(tmp_path, capsys):
    layout = made(tmp_path / "fed")
    changed = replace(Deployment.read(layout.folder), terms=Terms(sites=2, address="b.example:1"))
    changed.write(layout.folder)
    with hold(layout.pid("server")) as server:
        stop = threading.Timer(3.0, lambda: (layout.pid("server").unlink(), server.close()))
        stop.start()
        assert main(["deploy", "run", str(layout.folder)]) == 2
        stop.join()
    said = capsys.readouterr().err
    assert "federation.toml has changed: every site needs the new one" in " ".join(said.split())
    assert Proposal.read(layout.folder / "federation.toml").address == "b.example:1"
    assert "server: it has been stopped" in said


def test_a_run_waits_for_a_server_that_was_killed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(deploy, "AWAY", 3.0)
    layout = made(tmp_path / "fed")
    server = hold(layout.pid("server"))
    threading.Timer(1.0, server.close).start()  # its file is left

    def back() -> None:
        with hold(layout.pid("server")):
            order = read_document(layout.request, RunOrder)
            write_document(layout.outcome, encode(RunOutcome(order.order_id, "it is back")))
            time.sleep(2.0)

    threading.Timer(2.5, back).start()
    assert main(["deploy", "run", str(layout.folder)]) == 2
    assert "it is back" in capsys.readouterr().err


def test_a_superlink_is_started_with_tls_and_keys(tmp_path):
    layout = made(tmp_path / "fed")
    words = layout.superlink_arguments(Terms(address=f"127.0.0.1:{free_port()}"))
    assert "--enable-supernode-auth" in words and "--ssl-certfile" in words
    assert "--isolation process --disable-runtime-dependency" in " ".join(words)
    assert "--insecure" not in words


def test_a_process_calls_nobody_but_its_server(tmp_path, monkeypatch):
    for name in (*process.QUIET, "FLWR_HOME"):
        monkeypatch.setenv(name, "")
    handlers = {number: signal.getsignal(number) for number in process.SIGNALS}
    try:
        with process.role(tmp_path, "server"):
            assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
            assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
            assert os.environ["FLWR_HOME"] == str(tmp_path / "flower")
            assert holder(tmp_path / "server.pid") == os.getpid()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert not (tmp_path / "server.pid").exists()


def test_without_flower_it_is_said_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "from idiolect.cli.main import main\n"
        f"sys.exit(main(['deploy', 'init', {str(tmp_path / 'fed')!r}, '--data', 'digits']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "pip install 'idiolect[flower]'" in done.stderr


# -- a whole federation ----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Three sites and a server, with TLS and keys."""
    made = Federation(tmp_path_factory.mktemp("f") / "fed")
    made.start()
    yield made
    made.stop()
    assert not made.left()
    with socket.socket() as free:  # the port is free again
        host, _, port = made.address.rpartition(":")
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind((host, int(port)))


SLOW = [pytest.param(m, marks=pytest.mark.slow) for m in ("fedavg", "ditto", "scaffold", "ffgg")]


@pytest.mark.parametrize("method", ["lp-proj", *SLOW])
def test_real_sites_reach_what_one_process_reaches(federation, tmp_path, method):
    done = federation.run(method, tmp_path / "run")
    assert done.returncode == 0, f"{done.stderr}\n{federation.words()}"
    ours = json.loads(done.stdout)
    assert "gives no message" not in done.stderr, f"{done.stderr}\n{federation.words()}"
    chosen = federation.deployment(method).plan
    alone = il.run(
        chosen.make_method(),
        chosen.make_task(federation.whole),
        federation.whole,
        **chosen.run_settings,
    )
    theirs = alone.summary()
    for name in ("bytes", "values", "gradients_per_client", "rejected", "missing"):
        assert ours[name] == theirs[name], name
    assert ours["accuracy"]["mean"] == pytest.approx(theirs["accuracy"]["mean"], abs=0.005)
    rows = il.load(tmp_path / "run").clients_table()
    for mine, its in zip(rows, alone.clients_table(), strict=True):
        assert mine["client"] == its["client"]
        assert mine["test_loss"] == pytest.approx(its["test_loss"], rel=1e-4)


@pytest.mark.slow
def test_real_sites_open_sums_only(federation, tmp_path):
    """Over TLS, by SecAgg+: the figures and the bytes of one process."""
    sums = {"secure_sums": "secagg(clip=50.0)"}
    done = federation.run("lp-proj", tmp_path / "run", **sums)
    assert done.returncode == 0, f"{done.stderr}\n{federation.words()}"
    assert "does not count" not in done.stderr
    chosen = federation.deployment("lp-proj", **sums).plan
    alone = il.run(
        chosen.make_method(),
        chosen.make_task(federation.whole),
        federation.whole,
        **chosen.run_settings,
    )
    ours, theirs = json.loads(done.stdout), alone.summary()
    for name in ("bytes", "values", "gradients_per_client", "rejected", "missing"):
        assert ours[name] == theirs[name], name
    assert ours["accuracy"]["mean"] == pytest.approx(theirs["accuracy"]["mean"], abs=0.005)


def test_the_columns_of_a_deployment_are_those_that_load_takes(tmp_path, capsys):
    n = 240
    frame = pd.DataFrame({"age": np.arange(n) % 71, "pressure": 100.5 + np.arange(n) % 37})
    frame["patient_id"] = 5000 + np.arange(n)
    frame["device"] = [f"device {i // 4}" for i in range(n)]
    frame["unit"] = "mmHg"
    frame["sex"] = np.where(np.arange(n) % 3, "f", "m")
    frame["outcome"] = np.where(np.arange(n) % 2, "yes", "no")
    frame["hospital"] = np.repeat(["a", "b"], n // 2)
    path = tmp_path / "like.csv"
    frame.to_csv(path, index=False)
    columns = {"client": "hospital", "target": "outcome", "group": "device"}
    flags = [word for name, value in columns.items() for word in (f"--{name}", value)]
    assert main(["deploy", "init", str(tmp_path / "fed"), "--like", str(path), *flags]) == 0
    assert "'patient_id' (an identifier" in " ".join(capsys.readouterr().err.split())
    loaded = il.data.load("table", path=str(path), **columns)
    names = [column.name for column in loaded.preparation.columns]
    assert Deployment.read(tmp_path / "fed").data["features"] == names == ["age", "pressure", "sex"]
