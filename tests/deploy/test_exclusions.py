"""A site that was put out stays out when the server is started again, until it is readmitted."""

import json
import os

import pytest

pytest.importorskip("flwr")
from deploy.test_commands import made
from deploy.test_malicious_site import Keyed, flood
from deploy.test_server import DATA, Changing, deployment, quiet
from engine.stand_in import Wires, three
from idiolect.cli.main import main
from idiolect.core.files import private_folder, read_document
from idiolect.core.knobs import SettingError
from idiolect.deploy.exclusions import Exclusion, Exclusions, readmit
from idiolect.deploy.rounds import TooFewSites
from idiolect.deploy.server import serve
from idiolect.deploy.watch import ServerStatus
from idiolect.host.calls import Call

NAMES = {100: "east", 101: "north", 102: "south"}
TERMS = {"sites": 2, "wait": 1.0}


def flooded(kind: str, version: int = 0):
    """South's replies to calls of a kind are too large, in the round of a version."""

    def tamper(node, asked, said):
        call = Call.open(asked)
        late = call.facts.get("version", version) != version
        return said if node != 102 or call.kind != kind or late else flood(said)

    return tamper


def stopped(sites, directory, kind="update", wires=None, terms=None) -> None:
    """A run in which south is put out in the first round, and everyone leaves before the third."""
    wires = wires or Changing(sites, {})
    wires.changes[2] = lambda: wires.sites.clear()
    wires.tamper = flooded(kind)
    run = deployment(terms={**TERMS, **(terms or {})}, rounds=4)
    with pytest.raises(TooFewSites):
        serve(wires, run, directory, tell=quiet)


def resumed(wires, directory, terms=None, **options):
    """The same run, by a new process of the server; what it says."""
    lines: list[str] = []
    run = deployment(terms={**TERMS, **(terms or {})}, rounds=4)
    result = serve(wires, run, directory, resume=True, tell=lines.append, **options)
    return result, lines


def updates(site) -> int:
    return site.calls.count("update")


def test_a_site_that_was_put_out_is_out_of_the_resumed_run(tmp_path):
    sites = three(DATA, tmp_path / "rows")
    everyone = dict(sites)
    stopped(sites, tmp_path / "run")
    (exclusion,) = Exclusions(tmp_path / "run").read()
    assert (exclusion.site, exclusion.node) == ("south", "102") and "bytes" in exclusion.reason
    south = everyone[102]
    south.calls.clear()
    file = tmp_path / "status.json"
    _, lines = resumed(Wires(everyone), tmp_path / "run", status=file)
    assert south.calls == []  # not even greeted
    assert [updates(everyone[node]) for node in (100, 101)] == [4, 4]  # the others go on
    assert f"south is put out of this run: {exclusion.reason}" in lines
    east, north, out = read_document(file, ServerStatus).sites
    assert out.put_out and out.reason == exclusion.reason and out.put_out_at == exclusion.time
    assert not east.put_out and not north.put_out and east.here and north.here


def test_a_site_that_was_put_out_before_the_first_round_is_out_after_a_restart(tmp_path):
    """The server is killed while it waits for sites: the same order is carried out again."""
    sites = three(DATA)
    wires = Wires(sites)
    wires.tamper = flooded("agree")
    terms = {"sites": 3, "wait": 0.5}
    with pytest.raises(SettingError, match="2 of 3 have agreed"):
        serve(wires, deployment(terms=terms), tmp_path / "run", tell=quiet)
    sites[102].calls.clear()
    serve(Wires(sites), deployment(terms={"sites": 2}), tmp_path / "run", tell=quiet)
    assert sites[102].calls == []


def test_without_keys_a_site_is_out_under_another_node_after_a_restart(tmp_path):
    sites = three(DATA, tmp_path / "rows")
    everyone = dict(sites)
    stopped(sites, tmp_path / "run")
    moved = {**everyone, 205: everyone.pop(102)}
    del moved[102]
    before = updates(moved[205])
    resumed(Wires(moved), tmp_path / "run")
    assert updates(moved[205]) == before
    assert [e.node for e in Exclusions(tmp_path / "run").read()] == ["205"]


def test_it_is_on_disk_before_the_next_order_goes_out(tmp_path):
    seen = []

    class Watched(Wires):
        def send_to(self, node, frame):
            call = Call.open(frame)
            if call.kind == "update" and call.facts["version"] == 1:
                seen.append([e.site for e in Exclusions(tmp_path / "run").read()])
            return super().send_to(node, frame)

    wires = Watched(three(DATA))
    wires.tamper = flooded("update")
    serve(wires, deployment(terms=TERMS), tmp_path / "run", tell=quiet)
    assert seen == [["south"], ["south"]]


# -- and back --------------------------------------------------------------------------------------
def test_a_readmitted_site_takes_part_in_the_resumed_run(tmp_path):
    sites = three(DATA, tmp_path / "rows")
    everyone = dict(sites)
    stopped(sites, tmp_path / "run")
    readmit(tmp_path / "run", "south")
    before = updates(everyone[102])
    _, lines = resumed(Wires(everyone), tmp_path / "run")
    assert updates(everyone[102]) == before + 2
    assert "south takes part with 2 clients" in lines


def test_a_readmitted_site_takes_part_in_the_next_round_of_a_run_in_progress(tmp_path):
    sites = three(DATA)
    wires = Changing(sites, {2: lambda: readmit(tmp_path / "run", "south")})
    wires.tamper = flooded("update")
    lines: list[str] = []
    run = deployment(terms=TERMS, rounds=4)
    serve(wires, run, tmp_path / "run", tell=lines.append)
    assert [updates(sites[node]) for node in (100, 101, 102)] == [4, 4, 3]  # not in the second
    assert "south is readmitted by the operator" in lines
    assert Exclusions(tmp_path / "run").read() == []


def test_a_readmitted_site_that_does_it_again_is_out_again(tmp_path):
    sites = three(DATA)
    wires = Changing(sites, {2: lambda: readmit(tmp_path / "run", "south")})
    wires.tamper = lambda node, asked, said: (
        flood(said) if node == 102 and Call.open(asked).kind == "update" else said
    )
    serve(wires, deployment(terms=TERMS, rounds=5), tmp_path / "run", tell=quiet)
    assert updates(sites[102]) == 2
    assert [e.site for e in Exclusions(tmp_path / "run").read()] == ["south"]


@pytest.mark.parametrize("kind", ["update", "agree"])
def test_a_new_key_of_the_operator_pardons_after_a_restart(kind, tmp_path):
    sites = three(DATA, tmp_path / "rows")
    everyone = dict(sites)
    terms = {"insecure": False}
    stopped(sites, tmp_path / "run", kind, Keyed(sites, dict(NAMES), {}), terms)
    names = {100: "east", 101: "north", 103: "south"}
    wires = Keyed({**everyone, 103: everyone[102]}, names)
    before = updates(everyone[102])
    resumed(wires, tmp_path / "run", terms)
    assert updates(everyone[102]) == before + 2
    assert Exclusions(tmp_path / "run").read() == []


def test_a_full_disk_does_not_take_a_site_back_in(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("idiolect.deploy.exclusions.write_document", full)
    sites = three(DATA)
    wires = Wires(sites)
    wires.tamper = flooded("update")
    serve(wires, deployment(terms=TERMS), tmp_path / "run", tell=quiet)
    assert updates(sites[102]) == 1 and updates(sites[100]) == 3


@pytest.mark.parametrize("content", ["nonsense", "{}", "another node"])
def test_a_damaged_file_is_named_and_takes_nobody_back_in(content, tmp_path):
    exclusions = Exclusions(tmp_path)
    exclusions.add("south", 102, "too large")
    path = exclusions.folder / "102.json"
    if content == "another node":
        os.rename(path, exclusions.folder / "103.json")
    else:
        path.write_text(content)
    with pytest.raises(SettingError, match=r"directory: cannot (use|read) .*put-out"):
        exclusions.read()


# -- the command -----------------------------------------------------------------------------------
@pytest.fixture
def layout(tmp_path):
    folder = made(tmp_path / "fed")
    private_folder(folder.server)
    wires = Wires(three(DATA))
    wires.tamper = flooded("update")
    run = deployment(terms={"sites": 2})
    serve(wires, run, folder.runs / "first", tell=quiet, status=folder.status)
    return folder


def test_the_operator_readmits_a_site_by_one_command(layout, capsys):
    folder = str(layout.folder)
    assert main(["deploy", "readmit", folder, "east"]) == 2
    said = capsys.readouterr().err
    assert "name must be that of a site that is put out (south), got 'east'" in said
    assert main(["deploy", "readmit", folder, "south"]) == 0
    assert "south is readmitted" in capsys.readouterr().err
    assert main(["deploy", "status", folder, "--json"]) == 0
    *_, south = json.loads(capsys.readouterr().out)["run"]["sites"]
    assert not south["put_out"] and south["reason"].startswith("readmitted")
    assert main(["deploy", "readmit", folder, "south"]) == 2
    assert "put out (nobody), got 'south'" in capsys.readouterr().err


def test_there_is_nobody_to_readmit_before_a_run(tmp_path, capsys):
    folder = made(tmp_path / "fed")
    assert main(["deploy", "readmit", str(folder.folder), "south"]) == 2
    assert "no run has been started" in capsys.readouterr().err


def test_status_says_since_when_a_site_is_out(layout, capsys):
    assert main(["deploy", "status", str(layout.folder)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "south: put out: a frame must have" in text and "s ago)" in text
    assert isinstance(Exclusions(layout.runs / "first").read()[0], Exclusion)
