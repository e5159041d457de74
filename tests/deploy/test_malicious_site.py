"""One site that breaks the rules: it alone is put out, and the others train as without it."""

import time
from dataclasses import replace

import pytest
import torch

from deploy.test_server import (
    DATA,
    Changing,
    deployment,
    from_south,
    hospital_deployment,
    owners,
    quiet,
    same,
    with_tensors,
)
from engine.stand_in import StandIn, Wires, three
from idiolect.core.files import parse_json, read_document
from idiolect.deploy.server import serve
from idiolect.deploy.watch import ServerStatus
from idiolect.host.calls import Call


@pytest.fixture(autouse=True)
def retry_soon(monkeypatch):
    monkeypatch.setattr("idiolect.deploy.registry.RETRY", 0.05)


def two(sites: dict) -> dict:
    return {node: site for node, site in sites.items() if node != 102}


def the_others(result, honest) -> None:
    """East and north have the figures that they have without south."""
    rows = {str(row["client"]): row for row in result.clients_table()}
    for row in honest.clients_table():
        mine = rows[str(row["client"])]
        assert mine["test_accuracy"] == row["test_accuracy"]
        assert mine["test_loss"] == pytest.approx(row["test_loss"], rel=1e-5)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """Arrays at two sites."""
    folder = tmp_path_factory.mktemp("honest") / "run"
    return serve(Wires(two(three(DATA))), deployment(terms={"sites": 2}), folder, tell=quiet)


def attacked(wires: Wires, tmp_path, **terms):
    """A run of arrays that needs two sites, and what the server says."""
    lines: list[str] = []
    run = deployment(terms={"sites": 2, **terms})
    result = serve(wires, run, tmp_path / "run", tell=lines.append)
    return result, lines


# -- column sums -----------------------------------------------------------------------------------
def hospitals(**terms):
    run = hospital_deployment()
    return replace(run, terms=replace(run.terms, sites=2, **terms))


@pytest.fixture(scope="module")
def honest_hospitals(tmp_path_factory):
    """Tables at two sites, by the means of both."""
    folder = tmp_path_factory.mktemp("hospitals")
    return serve(Wires(two(owners(folder))), hospitals(), folder / "run", tell=quiet)


def first_pass(**changed):
    """What is said of the column `age` in the first pass, changed."""

    def change(said: bytes) -> bytes:
        call = Call.open(said)
        if "count" in call.facts["columns"]["age"]:
            call.facts["columns"]["age"] |= changed
        return call.pack()

    return change


def as_category(said: bytes) -> bytes:
    call = Call.open(said)
    call.facts["columns"]["age"] = {"kind": "category", "categories": ["old"], "missing": False}
    return call.pack()


def second_pass(squares):
    def change(said: bytes) -> bytes:
        call = Call.open(said)
        if "squares" in call.facts["columns"]["age"]:
            call.facts["columns"]["age"]["squares"] = squares
        return call.pack()

    return change


SUMS = {
    "a sum beyond 64 bits": first_pass(sum=10**400),
    "a sum that makes squares infinite": first_pass(sum=1e300),
    "NaN": first_pass(sum=float("nan")),
    "a negative count": first_pass(count=-1),
    "a count beyond 64 bits": first_pass(count=10**400),
    "another kind of column": as_category,
    "squares beyond 64 bits": second_pass(10**400),
    "infinite squares": second_pass(float("inf")),
    "squares beyond its values": second_pass(1e300),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_no_site_can_have_cost_their_sender_alone(name, tmp_path, honest_hospitals):
    wires = Wires(owners(tmp_path))
    spoil_sums, spoil_census = from_south("sums", SUMS[name]), from_south("agree", flood)
    wires.tamper = lambda *frames: spoil_census(*frames[:2], spoil_sums(*frames))
    lines: list[str] = []
    result = serve(wires, hospitals(), tmp_path / "run", tell=lines.append)
    the_others(result, honest_hospitals)
    assert [line for line in lines if line.startswith("south is left out: sums")]
    assert not [line for line in lines if " out" in line and not line.startswith("south")]


def test_a_site_that_is_gone_between_two_passes_has_no_part_in_the_means(
    tmp_path, honest_hospitals, monkeypatch
):
    monkeypatch.setattr("idiolect.deploy.rounds.GREETING", 0.1)
    wires = Wires(owners(tmp_path))
    passes = []

    def gone(node, call):
        passes.append(call.facts.get("pass"))
        return node == 102 and 2 in passes

    wires.swallow = gone
    lines: list[str] = []
    result = serve(wires, hospitals(deadline=0.5), tmp_path / "run", tell=lines.append)
    the_others(result, honest_hospitals)
    assert "south has no part in the means: its second sums did not come" in lines


# -- sizes -----------------------------------------------------------------------------------------
def flood(said: bytes) -> bytes:
    call = Call.open(said)
    tensors = {**call.tensors, "more": torch.zeros(3 << 20, dtype=torch.uint8)}
    return Call(call.kind, call.facts, tensors).pack()


@pytest.mark.parametrize("kind", ["hello", "agree", "update"])
def test_a_reply_beyond_what_was_asked_for_puts_its_site_out(kind, tmp_path, honest, monkeypatch):
    wires = Wires(three(DATA))
    wires.tamper = from_south(kind, flood)
    opened = []
    safetensors_load = Call.open.__globals__["load"]

    def load(content):
        opened.append(len(content))
        return safetensors_load(content)

    monkeypatch.setitem(Call.open.__globals__, "load", load)
    wires.tamper = lambda node, asked, said: (
        oversized if node == 102 and Call.open(asked).kind == kind else said
    )
    oversized = flood(Call("hello").pack())
    opened.clear()
    result, lines = attacked(wires, tmp_path)
    assert max(opened) < 1 << 20  # it was not read
    the_others(result, honest)
    (line,) = [line for line in lines if "is put out of this run" in line]
    assert line.startswith("node 102" if kind == "hello" else "south") and "bytes" in line
    assert wires.sites[102].calls.count(kind) == 1  # nor is it asked again


@pytest.mark.parametrize("kind", ["conclude", "evaluate"])
def test_a_reply_beyond_its_size_later_in_a_round(kind, tmp_path):
    wires = Wires(three(DATA))
    wires.tamper = from_south(kind, flood)
    result, lines = attacked(wires, tmp_path)
    assert [line for line in lines if line.startswith("south is put out of this run: a frame")]
    assert wires.sites[102].calls.count(kind) == 1
    assert result.summary()["accuracy"]["mean"] > 0


# -- the census ------------------------------------------------------------------------------------
def census(**changed):
    def change(said: bytes) -> bytes:
        call = Call.open(said)
        return Call(call.kind, {**call.facts, **changed}).pack()

    return change


def client(id="x", train=20, valid=0, test=5) -> dict:
    return {"id": id, "train": train, "valid": valid, "test": test}


CENSUSES = {
    "2**40 samples": census(clients=[client(train=2**40)]),
    "2**40 samples to be tested": census(clients=[client(test=2**40)]),
    "samples beyond 64 bits": census(clients=[client(train=10**400)]),
    "clients beyond number": census(clients=[client(id=k) for k in range(10_001)]),
    "another shape": census(inputs=[["torch.float32", [3]]]),
    "a shape beyond memory": census(inputs=[["torch.float32", [1 << 30, 1 << 30]]]),
    "other classes": census(classes=1 << 24),
    "the name of another site": census(clients=[client(id="north")]),
    "a client of another site": census(clients=[client(id="north/1")]),
}


@pytest.mark.parametrize("name", CENSUSES)
def test_a_census_that_the_contract_does_not_allow_costs_its_sender_alone(name, tmp_path, honest):
    wires = Wires(three(DATA))
    wires.tamper = from_south("agree", CENSUSES[name])
    begin = time.process_time()
    result, lines = attacked(wires, tmp_path)
    assert time.process_time() - begin < 20
    the_others(result, honest)
    assert [line for line in lines if line.startswith("south is left out")]


def test_the_contract_says_what_a_sample_is_and_not_the_first_site(tmp_path, honest):
    sites = three(DATA)
    sites[1] = sites.pop(102)  # greeted first
    sites[1].data = replace(sites[1].data, inputs=sites[1].data.inputs[:, 1:])
    result, lines = attacked(Wires(sites), tmp_path)
    the_others(result, honest)
    (line,) = [line for line in lines if "left out" in line]
    assert line.startswith("south is left out: its samples are")


def test_a_claim_to_a_client_does_not_exclude_its_owner(tmp_path):
    sites = three(DATA)
    evil = sites.pop(102)
    evil.data = replace(evil.data, ids=(DATA.ids[0], DATA.ids[2]))  # of east, and of north
    result, lines = attacked(Wires({1: evil, **sites}), tmp_path, sites=3)
    names = [row["client"] for row in result.clients_table()]
    assert len(names) == 6 and f"east/{DATA.ids[0]}" in names and f"north/{DATA.ids[2]}" in names
    assert [line for line in lines if "and so has south" in line]


# -- names -----------------------------------------------------------------------------------------
class Keyed(Changing):
    """Nodes with keys, registered under names."""

    def __init__(self, sites, names, changes=None):
        super().__init__(sites, changes or {})
        self.names = names

    def registered(self):
        return dict(self.names)


NAMES = {100: "east", 101: "north", 102: "south"}


def test_a_site_that_calls_itself_by_the_name_of_another_takes_no_part(tmp_path, honest):
    sites = three(DATA)
    sites[102].name = "north"
    sites[1] = sites.pop(102)  # greeted first
    wires = Keyed(sites, {100: "east", 101: "north", 1: "south"})
    result, lines = attacked(wires, tmp_path, insecure=False)
    the_others(result, honest)
    assert "south is left out: its key is registered as 'south', and it says 'north'" in lines
    assert "north takes part with 2 clients" in lines


def test_a_node_without_a_registered_key_is_not_asked(tmp_path, honest):
    wires = Keyed(three(DATA), {100: "east", 101: "north"})
    result, _ = attacked(wires, tmp_path, insecure=False)
    the_others(result, honest)
    assert wires.sites[102].calls == []


def test_a_site_that_joins_a_hundred_times_has_joined_once(tmp_path):
    sites = three(DATA)
    evil = sites[102]
    copies = iter(range(100))

    def again():
        number = next(copies)
        part = replace(evil.data, ids=(f"a{number}", f"b{number}"))
        wires.sites[102] = StandIn(f"south-{number}", part)

    changes = {1: lambda: wires.sites.pop(102), **dict.fromkeys(range(2, 8), again)}
    names = {100: "site-1", 101: "site-2", 102: "site-3"}  # keys of sites that name themselves
    wires = Keyed(sites, names, changes)
    run = deployment(terms={"sites": 3, "insecure": False}, rounds=9)
    lines: list[str] = []
    result = serve(wires, run, tmp_path / "run", tell=lines.append)
    assert [row["client"] for row in result.clients_table()] == list(DATA.ids)
    assert "south is left out: it was 'south' before, and now says 'south-0'" in lines


# -- rounds ----------------------------------------------------------------------------------------
def test_replies_a_hundred_times_and_to_nothing_change_nothing(tmp_path):
    class Flooding(Wires):
        def receive(self, seconds):
            replies = super().receive(seconds)
            rubbish = [(10**6 + k, b"rubbish") for k in range(100)]
            return [*rubbish, *(reply for reply in replies for _ in range(100)), *rubbish]

    once = serve(Wires(three(DATA)), deployment(), tmp_path / "once", tell=quiet)
    same(serve(Flooding(three(DATA)), deployment(), tmp_path / "run", tell=quiet), once)


def test_rubbish_in_every_round_puts_a_site_out(tmp_path, monkeypatch):
    monkeypatch.setattr("idiolect.deploy.rounds.MOST_FAULTS", 2)
    wires = Wires(three(DATA))
    wires.tamper = from_south("update", lambda said: b"rubbish")
    result, lines = attacked(wires, tmp_path)
    assert wires.sites[102].calls.count("update") == 2
    (line,) = [line for line in lines if "put out" in line]
    assert line.startswith("south is put out of this run: ") and "2 rounds in a row" in line
    assert result.summary()["missing"] == 4


def test_a_site_that_was_put_out_is_out_under_another_node_too(tmp_path):
    sites = three(DATA)
    evil = sites[102]

    def again():
        wires.sites.pop(102)
        wires.sites[103] = evil

    wires = Changing(sites, {2: again})
    wires.tamper = lambda node, asked, said: (
        flood(said) if node == 102 and Call.open(asked).kind == "update" else said
    )
    run = deployment(terms={"sites": 2}, rounds=5)  # without keys
    serve(wires, run, tmp_path / "run", tell=quiet)
    assert evil.calls.count("update") == 1


def test_a_frame_without_a_message_is_a_missing_message(tmp_path):
    def change(said: bytes) -> bytes:
        call = Call.open(said)
        empty = {name: t[:0] for name, t in call.tensors.items()}
        empty["matrix"] = torch.zeros((0, 2**50), dtype=torch.uint8)  # of no byte
        return Call(call.kind, call.facts, empty).pack()

    wires = Wires(three(DATA))
    wires.tamper = from_south("update", change)
    file = tmp_path / "status.json"
    serve(wires, deployment(), tmp_path / "run", tell=quiet, status=file)
    *_, south = read_document(file, ServerStatus).sites
    assert (south.site, south.rejected, south.missing) == ("south", 0, 6)


def test_hits_that_are_no_number_are_no_figures(tmp_path):
    def change(said: bytes) -> bytes:
        hits = Call.open(said).tensors["test.hits"]
        return with_tensors(said, **{"test.hits": torch.full_like(hits, float("nan"))})

    wires = Wires(three(DATA))
    wires.tamper = from_south("evaluate", change)
    result, _ = attacked(wires, tmp_path)
    assert result.summary()["accuracy"]["mean"] > 0
    assert [row["test_samples"] > 0 for row in result.clients_table()] == [True] * 4 + [False] * 2


def test_nobody_is_put_out_because_training_diverges(tmp_path, monkeypatch):
    monkeypatch.setattr("idiolect.deploy.rounds.MOST_FAULTS", 1)
    from deploy.test_server import not_a_number

    wires = Wires(three(DATA))
    wires.tamper = lambda node, asked, said: (
        not_a_number(said) if Call.open(asked).kind == "update" else said
    )
    _, lines = attacked(wires, tmp_path)
    assert not [line for line in lines if "put out" in line]


def test_a_site_whose_messages_make_the_others_diverge_does_not_have_them_put_out(
    tmp_path, monkeypatch
):
    """Its own are finite, and count; theirs are not finite, from a model that it has spoilt."""
    monkeypatch.setattr("idiolect.deploy.rounds.MOST_FAULTS", 1)
    from deploy.test_server import not_a_number

    wires = Wires(three(DATA))
    wires.tamper = lambda node, asked, said: (
        not_a_number(said) if node != 102 and Call.open(asked).kind == "update" else said
    )
    _, lines = attacked(wires, tmp_path, sites=3)
    assert not [line for line in lines if "put out" in line]
    assert wires.sites[100].calls.count("update") == 3


# -- time ------------------------------------------------------------------------------------------
def test_a_key_that_is_there_twice_among_many_is_noticed_in_linear_time():
    keys = ",".join(f'"{k}":0' for k in range(200_000))
    begin = time.process_time()
    with pytest.raises(ValueError, match="the key '199999' is there twice"):
        parse_json(f'{{{keys},"199999":0}}'.encode())
    assert time.process_time() - begin < 2


def test_a_census_of_many_samples_takes_no_time():
    from idiolect.data.federation import Census
    from idiolect.run.plan import Plan
    from idiolect.run.prepare import prepare

    sizes = {"train": [2**40], "valid": [0], "test": [2**40]}
    blank = Census.of_sizes(["x"], sizes, DATA.classes, DATA.shape)
    plan = Plan("fedavg", {}, "", model="mlp", settings={"batch": 8})
    begin = time.process_time()
    prepare(plan.make_method(), plan.make_task(blank), blank, plan.make_settings())
    assert time.process_time() - begin < 5
