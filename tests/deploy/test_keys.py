"""Keys are made at the sites; who may connect is changed by one command, from the next round on."""

import json
import stat

import pytest

pytest.importorskip("flwr")
from deploy.test_commands import ARRAY
from deploy.test_malicious_site import Keyed
from deploy.test_server import DATA, deployment, entries, quiet
from engine.stand_in import three
from idiolect.cli.commands import host
from idiolect.cli.main import main
from idiolect.core.files import read_document
from idiolect.core.knobs import SettingError
from idiolect.deploy.certificates import make_site_key, public_key
from idiolect.deploy.config import Deployment, Proposal, Terms
from idiolect.deploy.flower.server import FlowerServer, registered
from idiolect.deploy.folder import DeploymentFolder, create
from idiolect.deploy.server import serve
from idiolect.deploy.units import write_site_files
from idiolect.deploy.watch import ServerStatus
from idiolect.run.plan import Plan


@pytest.fixture
def layout(tmp_path) -> DeploymentFolder:
    return create(tmp_path / "fed", Deployment(Plan("fedavg", {}, ""), ARRAY, Terms(sites=2)))


@pytest.fixture
def public(tmp_path):
    """The public half of a key that a site has made."""
    assert main(["host", "key", "--state", str(tmp_path / "north")]) == 0
    return tmp_path / "north" / "node.pub"


# -- commands --------------------------------------------------------------------------------------
def test_a_site_makes_its_own_key(tmp_path, capsys):
    state = tmp_path / "state"
    assert main(["host", "key", "--state", str(state), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["key"].startswith("ecdsa-sha2-nistp384 ")
    assert (state / "node.pub").read_text() == facts["key"]
    assert stat.S_IMODE((state / "node.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    private = (state / "node.key").read_bytes()
    assert main(["host", "key", "--state", str(state)]) == 2
    said = capsys.readouterr().err
    assert "is there already" in said and (state / "node.key").read_bytes() == private
    assert main(["host", "key", "--state", str(state), "--renew"]) == 0
    out, said = capsys.readouterr()
    assert "rotate-key" in said and "PRIVATE" not in out + said
    assert (state / "node.key").read_bytes() != private
    assert stat.S_IMODE((state / "node.key").stat().st_mode) == 0o600


def test_init_makes_no_private_key_of_a_site(tmp_path, capsys):
    words = ["--data", "digits", "--sites", "2"]
    assert main(["deploy", "init", str(tmp_path / "fed"), *words]) == 0
    assert "no site may connect yet: idiolect deploy add-site" in capsys.readouterr().err
    assert not list((tmp_path / "fed").rglob("node.key"))
    assert not list((tmp_path / "fed" / "keys").iterdir())
    assert main(["deploy", "init", str(tmp_path / "demo"), *words, "--demo"]) == 0
    assert len(list((tmp_path / "demo").rglob("node.key"))) == 2


def test_a_site_is_added_rotated_and_removed(layout, public, tmp_path, capsys):
    folder = str(layout.folder)
    assert main(["deploy", "add-site", folder, "north", str(public)]) == 0
    registered = layout.keys / "north.pub"
    assert public_key(registered) == public_key(public)
    assert main(["deploy", "add-site", folder, "north", str(public)]) == 2
    assert "'north' is registered already; idiolect deploy rotate-key" in capsys.readouterr().err
    assert main(["deploy", "add-site", folder, "south", str(public)]) == 2
    assert "it is the key of 'north' already" in capsys.readouterr().err
    other = tmp_path / "other.pub"
    other.write_bytes(make_site_key(tmp_path / "other.key"))
    assert main(["deploy", "rotate-key", folder, "north", str(other)]) == 0
    assert public_key(registered) == public_key(other)
    assert main(["deploy", "rotate-key", folder, "south", str(public)]) == 2
    assert main(["deploy", "remove-site", folder, "north"]) == 0
    assert not registered.exists()
    assert main(["deploy", "remove-site", folder, "north"]) == 2
    assert "'north' is not registered; there are: none" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "site-3", "x" * 65, "a\nb"])
def test_names_that_are_none(name, layout, public, capsys):
    assert main(["deploy", "add-site", str(layout.folder), name, str(public)]) == 2
    assert "name must" in capsys.readouterr().err
    assert not list(layout.keys.iterdir())


def test_a_private_key_is_no_public_key(layout, public, capsys):
    private = public.with_name("node.key")
    assert main(["deploy", "add-site", str(layout.folder), "north", str(private)]) == 2
    assert "is no public key of a site" in capsys.readouterr().err


def test_a_site_connects_with_its_federation_and_the_key_it_has_made(
    layout, tmp_path, monkeypatch, capsys
):
    state = tmp_path / "state"
    connect = ["host", "connect", "--state", str(state)]

    def said() -> str:
        return " ".join(capsys.readouterr().err.split())

    assert main(connect) == 2
    assert "federation.toml is missing; idiolect host agree federation.toml" in said()
    write_site_files(state, Proposal.read(layout.folder / "federation.toml"))
    assert main(connect) == 2
    assert f"node.key is missing; idiolect host key --state {state} makes it" in said()
    assert main(["host", "key", "--state", str(state)]) == 0
    started = []
    monkeypatch.setattr(host, "become", lambda *words: started.append(words))
    assert main(connect) == 0
    assert started == [("idiolect.deploy.flower.node", state)]


# -- a running server ------------------------------------------------------------------------------
class Operator:
    """Flower's register of nodes."""

    def __init__(self):
        self.keys = {}  # public key -> node; None where it was removed
        self.away = False

    def nodes(self):
        if self.away:
            raise ConnectionError("the SuperLink is away")
        return dict(self.keys)

    def register(self, key, name):
        self.keys[key] = 100 + len(self.keys)

    def remove(self, node):
        self.keys = {key: None if n == node else n for key, n in self.keys.items()}


@pytest.fixture
def server(layout):
    made = FlowerServer.__new__(FlowerServer)
    made.layout, made.terms, made.operator, made.files = layout, Terms(), Operator(), None
    return made


def test_the_register_follows_the_folder(server, layout, public, tmp_path):
    def nodes():
        server._register_changes()
        return registered(layout)

    assert nodes() == {}
    layout.add_site("north", public)
    assert nodes() == {100: "north"}
    other = tmp_path / "other.pub"
    other.write_bytes(make_site_key(tmp_path / "other.key"))
    layout.add_site("north", other, replace=True)
    assert registered(layout) == {}  # the old key counts no more
    assert nodes() == {101: "north"} and list(server.operator.keys.values()) == [None, 101]
    server.operator.away = True
    layout.remove_site("north")
    assert nodes() == {}  # although the SuperLink cannot be told yet
    server.operator.away = False
    assert nodes() == {} and set(server.operator.keys.values()) == {None}
    layout.add_site("north", public)  # a key that was removed
    assert nodes() == {}
    assert "a key that was removed is not taken again" in layout.log.read_text()


def test_a_broken_file_among_the_keys_ends_nothing(server, layout, public):
    layout.add_site("north", public)
    (layout.keys / "broken.pub").write_text("nonsense")
    server._register_changes()
    assert registered(layout) == {100: "north"}
    assert "broken.pub is no public key" in layout.log.read_text()


NAMES = {100: "east", 101: "north", 102: "south"}


def test_a_site_that_is_removed_is_not_asked_in_the_next_round(tmp_path):
    sites = three(DATA)
    wires = Keyed(sites, dict(NAMES), {2: lambda: wires.names.pop(102)})
    lines: list[str] = []
    run = deployment(terms={"insecure": False}, rounds=4)
    serve(wires, run, tmp_path / "run", tell=lines.append)
    assert [e["selected"] for e in entries(tmp_path)] == [6, 6, 4, 4]
    assert sites[102].calls.count("update") == 2
    assert "south takes no part: its key is not registered any more" in lines


def test_a_site_that_is_added_takes_part_in_the_next_round(tmp_path):
    names = {100: "east", 101: "north"}
    wires = Keyed(three(DATA), names, {2: lambda: wires.names.update(NAMES)})
    run = deployment(terms={"sites": 2, "insecure": False}, rounds=4)
    serve(wires, run, tmp_path / "run", tell=quiet)
    assert [e["selected"] for e in entries(tmp_path)] == [4, 4, 6, 6]


def test_a_site_with_a_new_key_keeps_its_clients(tmp_path):
    sites = three(DATA)

    def rotate():
        wires.names = {100: "east", 101: "north", 103: "south"}
        wires.sites[103] = wires.sites[102]  # the old key is still connected, too

    wires = Keyed(sites, dict(NAMES), {2: rotate})
    run = deployment("scaffold", terms={"insecure": False}, rounds=4)
    file = tmp_path / "status.json"
    result = serve(wires, run, tmp_path / "run", tell=quiet, status=file)
    sites = read_document(file, ServerStatus).sites
    assert [(site.site, site.rounds, site.here) for site in sites] == [
        ("east", 4, True),
        ("north", 4, True),
        ("south", 4, True),
    ]
    assert [row["client"] for row in result.clients_table()] == list(DATA.ids)
    assert [e["selected"] for e in entries(tmp_path)] == [6, 6, 6, 6]
    assert result.summary()["missing"] == 0


# -- the data contract -----------------------------------------------------------------------------
def test_init_writes_what_columns_hold(tmp_path, capsys):
    table = tmp_path / "like.csv"
    rows = [f"{40 + k},{'fm'[k % 2]},{k % 3 == 0},{'ny'[k % 2]}" for k in range(30)]
    table.write_text("age,sex,smoker,outcome\n" + "\n".join(rows))
    words = ["--like", str(table), "--target", "outcome"]
    assert main(["deploy", "init", str(tmp_path / "a"), *words]) == 0
    data = Deployment.read(tmp_path / "a").data
    kinds = dict(zip(data["features"], data["kinds"], strict=True))
    assert kinds == {"age": "number", "sex": "text", "smoker": "code"}
    words = ["--target", "outcome", "--features", "age,sex", "--classes", "n,y"]
    assert main(["deploy", "init", str(tmp_path / "b"), *words, "--categories", "sex"]) == 0
    assert Deployment.read(tmp_path / "b").data["kinds"] == ["number", "text"]
    assert main(["deploy", "init", str(tmp_path / "c"), *words, "--categories", "ward"]) == 2
    assert "categories must be among the features, got 'ward'" in capsys.readouterr().err


@pytest.mark.parametrize("kinds", [["number"], ["number", "date"], "number", [1, 2]])
def test_kinds_that_are_none_are_refused(kinds):
    form = {"kind": "table", "target": "y", "features": ["a", "b"], "classes": [0, 1]}
    with pytest.raises(SettingError, match="kinds must be one of number, text, code per feature"):
        Deployment(Plan("fedavg", {}, ""), {**form, "scale": "client", "kinds": kinds})
