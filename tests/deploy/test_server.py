"""A run whose data are with their owners is the run that it would be in one process."""

import json
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch

import idiolect as il
from engine.stand_in import StandIn, Wires, three
from helpers import ONE_EXCHANGE
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError
from idiolect.data.prepare import Preparation
from idiolect.deploy.config import Deployment, Terms
from idiolect.deploy.rounds import TooFewSites
from idiolect.deploy.server import serve
from idiolect.deploy.site.agreement import Builder
from idiolect.deploy.site.data import SiteData
from idiolect.deploy.site.rules import Rules
from idiolect.deploy.site.site import Site
from idiolect.deploy.site.state import StateFolder
from idiolect.host.calls import Call
from idiolect.methods import make_method
from idiolect.run.plan import Plan
from idiolect.testing import federation

DATA = federation()
SETTINGS = {"rounds": 3, "batch": 8, "seed": 3}


def deployment(method="fedavg", terms=None, **settings) -> Deployment:
    plan = Plan(method, {}, "", model="mlp", settings={**SETTINGS, **settings})
    inputs = [str(DATA.inputs.dtype), list(DATA.shape)]
    form = {"kind": "array", "inputs": inputs, "classes": DATA.classes}
    given = {"sites": 3, "wait": 5.0, "deadline": 5.0, "insecure": True}
    return Deployment(plan, form, Terms(**{**given, **(terms or {})}))


def inprocess(method="fedavg", **settings):
    plan = Plan(method, {}, "", model="mlp", settings={**SETTINGS, **settings})
    return il.run(plan.make_method(), plan.make_task(DATA), DATA, **plan.run_settings)


def quiet(text: str) -> None:
    pass


def same(one, other) -> None:
    """Two results to float tolerance, client by client."""
    ours, theirs = one.summary(), other.summary()
    for name in ("bytes", "values", "gradients_per_client", "rejected", "missing"):
        assert ours[name] == theirs[name], name
    for mine, its in zip(one.clients_table(), other.clients_table(), strict=True):
        assert mine["client"] == its["client"]
        assert mine["test_accuracy"] == its["test_accuracy"]
        assert mine["test_loss"] == pytest.approx(its["test_loss"], rel=1e-5)


# sites have no inputs in common
OF_SITES = [name for name in ONE_EXCHANGE if not make_method(name).traits.uses_public]


@pytest.mark.parametrize("method", OF_SITES)
def test_a_deployed_run_has_the_figures_of_one_process(method, tmp_path):
    told = []
    result = serve(Wires(three(DATA)), deployment(method), tmp_path / "run", tell=told.append)
    same(result, inprocess(method))
    assert "east takes part with 2 clients" in told
    assert il.load(tmp_path / "run").summary()["accuracy"] == result.summary()["accuracy"]


def test_rounds_of_several_exchanges_are_refused_before_anybody_is_waited_for(tmp_path):
    with pytest.raises(SettingError, match=r"one exchange of messages per round .*'feddane'"):
        serve(Wires({}), deployment("feddane"), tmp_path / "run", tell=quiet)


def test_metrics_are_those_of_one_process(tmp_path):
    result = serve(Wires(three(DATA)), deployment(metrics="auc,f1"), tmp_path / "run", tell=quiet)
    alone = inprocess(metrics="auc,f1")
    assert result.seeds[0].final["test"]["auc"] == alone.seeds[0].final["test"]["auc"]
    assert result.seeds[0].final["test"]["f1"] == alone.seeds[0].final["test"]["f1"]


def test_models_and_trivial_baselines_stay_with_the_owners(tmp_path):
    result = serve(Wires(three(DATA)), deployment(), tmp_path / "run", tell=quiet)
    assert result.record.baseline == []
    with pytest.raises(SettingError, match="with the owners"):
        result.personal(DATA.ids[0])
    saved = tmp_path / "run" / "checkpoints"
    assert not list(saved.rglob("private.safetensors"))


# -- what gets lost on the way ---------------------------------------------------------------------
def once(node, kind, version=None, times=1):
    """Whether a call to a node gets lost: the first of its kind."""
    left = [times]

    def lost(to, call):
        if to != node or call.kind != kind or version not in (None, call.facts.get("version")):
            return False
        left[0] -= 1
        return left[0] >= 0

    return lost


@pytest.mark.parametrize("kind", ["update", "conclude", "evaluate"])
@pytest.mark.parametrize("method", ["scaffold", "ditto"])
def test_a_question_that_is_lost_is_asked_again(method, kind, tmp_path, monkeypatch):
    monkeypatch.setattr("idiolect.deploy.rounds.SILENCE", 0.1)
    sites = three(DATA)
    wires = Wires(sites)
    wires.swallow = once(101, kind, version=None if kind == "evaluate" else 1)
    result = serve(wires, deployment(method), tmp_path / "run", tell=quiet)
    same(result, inprocess(method))
    assert "status" in sites[101].calls and "status" not in sites[100].calls


@pytest.mark.parametrize("kind", ["update", "conclude", "evaluate"])
@pytest.mark.parametrize("method", ["scaffold", "ditto"])
def test_a_reply_that_is_lost_is_asked_for_again(method, kind, tmp_path, monkeypatch):
    monkeypatch.setattr("idiolect.deploy.rounds.SILENCE", 0.1)
    lost = once(101, kind, version=None if kind == "evaluate" else 1)

    class Deaf(Wires):
        def receive(self, seconds):
            kinds = {ticket: (node, Call.open(frame)) for ticket, node, frame in self.sent}
            return [(t, said) for t, said in super().receive(seconds) if not lost(*kinds[t])]

    result = serve(Deaf(three(DATA)), deployment(method), tmp_path / "run", tell=quiet)
    same(result, inprocess(method))


@pytest.mark.parametrize("method", ["scaffold", "ditto", "lp-proj"])
def test_a_site_that_did_not_hear_the_end_of_a_round_is_told_before_the_next(method, tmp_path):
    sites = three(DATA)
    wires = Wires(sites)
    wires.swallow = once(101, "conclude", version=1)
    given = deployment(method, {"deadline": 0.5})
    told = []
    result = serve(wires, given, tmp_path / "run", tell=told.append)
    assert "north gives no message (timed out)" in told
    same(result, inprocess(method))
    calls = [c for c in sites[101].calls if c in ("status", "update", "conclude")]
    # the second round as a whole again, for it may have been killed since, then the third
    whole = ["update", "conclude"]
    assert calls == [*whole, "update", "status", *whole, *whole]


def test_the_last_figures_are_asked_for_again(tmp_path):
    wires = Wires(three(DATA))
    lost = [once(node, "conclude", version=2) for node in wires.sites]
    wires.swallow = lambda node, call: any(one(node, call) for one in lost)
    told = []
    given = deployment("ditto", {"deadline": 0.5})
    result = serve(wires, given, tmp_path / "run", tell=told.append)
    assert "north gives no message (timed out)" in told
    same(result, inprocess("ditto"))


@pytest.mark.parametrize("kind", ["hello", "agree", "enrol"])
def test_a_site_that_was_not_reached_is_greeted_again(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("idiolect.deploy.registry.LOST", 0.2)
    sites = three(DATA)
    wires = Wires(sites)
    wires.swallow = once(101, kind)
    result = serve(wires, deployment(), tmp_path / "run", tell=quiet)
    same(result, inprocess())


# -- sites come and go -----------------------------------------------------------------------------
class Changing(Wires):
    """Does something before the order of a round goes out."""

    def __init__(self, sites, changes):
        super().__init__(sites)
        self.changes = changes  # version -> what is done then
        self.looks = 0

    def online(self):
        if self.looks in self.changes:
            self.changes.pop(self.looks)()
        return super().online()

    def send_to(self, node, frame):
        call = Call.open(frame)
        if call.kind == "update":
            self.looks = call.facts["version"] + 1
        return super().send_to(node, frame)


def test_a_site_that_comes_later_takes_part_from_then_on(tmp_path):
    sites = three(DATA)
    late = sites.pop(102)
    wires = Changing(sites, {1: lambda: wires.sites.update({102: late})})
    result = serve(wires, deployment(terms={"sites": 2}), tmp_path / "run", tell=quiet)
    assert late.calls.count("update") == 2
    ids = [row["client"] for row in result.clients_table()]
    assert ids == list(DATA.ids)
    assert result.seeds[0].by_client.shape == (3, 6)
    assert result.seeds[0].by_client[0, 4:].tolist() == pytest.approx(
        [float("nan")] * 2, nan_ok=True
    )
    saved = json.loads((tmp_path / "run" / "sites.json").read_text())["sites"]
    assert [(s["site"], s["joined"], s["wire_ids"]) for s in saved] == [
        ("east", 0, [0, 1]),
        ("north", 0, [2, 3]),
        ("south", 1, [4, 5]),
    ]


def test_a_site_that_leaves_and_returns_keeps_its_wire_ids(tmp_path):
    sites = three(DATA)
    gone = sites[102]
    changes = {
        1: lambda: wires.sites.pop(102),
        2: lambda: wires.sites.update({103: gone}),  # under a new node, as without keys
    }
    wires = Changing(sites, changes)
    result = serve(wires, deployment(), tmp_path / "run", tell=quiet)
    assert gone.calls.count("update") == 2 and gone.calls.count("enrol") == 1
    assert result.summary()["missing"] == 0
    assert [e["selected"] for e in entries(tmp_path)] == [6, 4, 6]


def test_with_keys_a_name_belongs_to_its_node(tmp_path):
    sites = three(DATA)
    gone = sites[102]
    changes = {1: lambda: wires.sites.pop(102), 2: lambda: wires.sites.update({103: gone})}
    wires = Changing(sites, changes)
    told = []
    terms = {"insecure": False}
    serve(wires, deployment(terms=terms), tmp_path / "run", tell=told.append)
    assert gone.calls.count("update") == 1
    assert any("'south' is the name of another site" in text for text in told)


def test_a_site_that_restarts_is_told_everything_again(tmp_path):
    sites = three(DATA, tmp_path / "rows")
    old = sites[102]

    def restart():
        wires.sites[102] = StandIn("south", old.data, tmp_path / "rows" / "south")
        wires.sites[102].calls = old.calls

    wires = Changing(sites, {2: restart})
    result = serve(wires, deployment("ditto"), tmp_path / "run", tell=quiet)
    # the order of the third round was refused by a process that knows of nothing: it is greeted
    # before the next one, which here is the last evaluation
    assert old.calls.count("update") == 3
    assert result.summary()["missing"] == 2
    assert entries(tmp_path)[2]["reasons"] == "missing: refused 2"


def test_without_enough_sites_the_run_stops_and_can_be_resumed(tmp_path):
    sites = three(DATA, tmp_path / "rows")
    everyone = dict(sites)
    wires = Changing(sites, {2: lambda: wires.sites.clear()})
    terms = {"wait": 1.0}
    with pytest.raises(TooFewSites, match="0 of the 1 that a round needs"):
        serve(wires, deployment("scaffold", terms), tmp_path / "run", tell=quiet)
    again = Wires(everyone)
    result = serve(again, deployment("scaffold", terms), tmp_path / "run", resume=True, tell=quiet)
    same(result, inprocess("scaffold"))


def test_a_resumed_run_knows_who_had_joined(tmp_path):
    sites = three(DATA, tmp_path / "rows")
    late = sites.pop(102)
    everyone = {**sites, 102: late}
    changes = {1: lambda: wires.sites.update({102: late}), 2: lambda: wires.sites.clear()}
    wires = Changing(sites, changes)
    terms = {"sites": 2, "wait": 1.0}
    with pytest.raises(TooFewSites):
        serve(wires, deployment(terms=terms), tmp_path / "run", tell=quiet)
    result = serve(
        Wires(everyone), deployment(terms=terms), tmp_path / "run", resume=True, tell=quiet
    )
    assert [row["client"] for row in result.clients_table()] == list(DATA.ids)
    assert [e["selected"] for e in entries(tmp_path)] == [4, 6, 6]


def test_too_few_sites_at_the_start(tmp_path):
    wires = Wires(dict(list(three(DATA).items())[:2]))
    with pytest.raises(SettingError, match=r"2 of 3 have agreed within 1 seconds \(east, north\)"):
        serve(wires, deployment(terms={"wait": 1.0}), tmp_path / "run", tell=quiet)


def test_a_site_with_other_data_is_left_out_with_a_word(tmp_path):
    sites = three(DATA)
    sites[102].data = replace(sites[102].data, inputs=sites[102].data.inputs[:, 1:])
    told = []
    terms = {"sites": 2}
    result = serve(Wires(sites), deployment(terms=terms), tmp_path / "run", tell=told.append)
    assert len(result.clients_table()) == 4
    assert any("south is left out: its samples are" in text for text in told)


def test_a_client_id_at_two_sites_is_told_apart_by_the_name_of_the_site(tmp_path):
    sites = three(DATA)
    sites[102].data = sites[101].data
    told = []
    result = serve(Wires(sites), deployment(), tmp_path / "run", tell=told.append)
    ids = [str(row["client"]) for row in result.clients_table()]
    assert ids == [*map(str, DATA.ids[:4]), f"south/{DATA.ids[2]}", f"south/{DATA.ids[3]}"]
    assert any("and so has north; here it is 'south/" in text for text in told)


# -- what sites may send ---------------------------------------------------------------------------
def entries(tmp_path) -> list[dict]:
    """The ledger of the rounds."""
    path = tmp_path / "run" / "ledger-seed-3.csv"
    return pandas.read_csv(path, keep_default_na=False).to_dict("records")


def from_south(kind: str, change):
    """What node 102 replies to calls of a kind, changed."""

    def tamper(node, asked, said):
        return change(said) if node == 102 and Call.open(asked).kind == kind else said

    return tamper


def with_tensors(said: bytes, **tensors) -> bytes:
    call = Call.open(said)
    return Call(call.kind, call.facts, {**call.tensors, **tensors}).pack()


def not_a_number(said: bytes) -> bytes:
    matrix = Call.open(said).tensors["matrix"].clone()
    matrix[:, -4:] = torch.tensor([0, 0, 192, 127], dtype=torch.uint8)  # NaN as float32
    return with_tensors(said, matrix=matrix)


def in_the_name_of_others(said: bytes) -> bytes:
    matrix = Call.open(said).tensors["matrix"].clone()
    matrix[:, 16] -= 4  # the client's number in the header
    return with_tensors(said, matrix=matrix)


def foreign(said: bytes) -> bytes:
    return with_tensors(said, trained=Call.open(said).tensors["trained"] - 4)


RUBBISH = {
    "no frame": (lambda said: b"rubbish", "missing: malformed 2"),
    "nothing": (lambda said: b"", "missing: malformed 2"),
    "cut": (lambda said: said[:-7], "missing: malformed 2"),
    "another reply": (lambda said: Call("scores").pack(), "missing: malformed 2"),
    "an error": (lambda said: Call("failed", {"text": "x"}).pack(), "missing: failed 2"),
    "a refusal": (lambda said: Call("refused", {"reason": "x"}).pack(), "missing: refused 2"),
    "foreign clients": (foreign, "missing: malformed 2"),
    "too many gradients": (
        lambda said: with_tensors(said, gradients=torch.full((2,), 1 << 60)),
        "missing: malformed 2",
    ),
    "NaN": (not_a_number, "rejected: not finite 2"),
    "in the name of others": (in_the_name_of_others, "missing: silent 2; surplus: stranger 2"),
}


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_rubbish_costs_a_site_its_own_messages_only(rubbish, tmp_path):
    change, reasons = RUBBISH[rubbish]
    wires = Wires(three(DATA))
    wires.tamper = from_south("update", change)
    result = serve(wires, deployment(), tmp_path / "run", tell=quiet)
    rounds = 2 if rubbish == "a refusal" else 3  # who refuses twice is not asked for a while
    assert [e["reasons"] for e in entries(tmp_path)][:rounds] == [reasons] * rounds
    assert [e["admitted"] for e in entries(tmp_path)] == [4] * 3
    honest = serve(
        Wires({n: s for n, s in three(DATA).items() if n != 102}),
        deployment(terms={"sites": 2}),
        tmp_path / "honest",
        tell=quiet,
    )
    for mine, its in zip(result.clients_table()[:4], honest.clients_table(), strict=True):
        assert mine["test_accuracy"] == its["test_accuracy"]


def more_samples(said: bytes) -> bytes:
    found = Call.open(said).tensors
    return with_tensors(said, **{"test.samples": found["test.samples"] + 1})


@pytest.mark.parametrize("change", [lambda said: b"rubbish", more_samples])
def test_scores_that_cannot_be_are_no_scores(change, tmp_path):
    wires = Wires(three(DATA))
    wires.tamper = from_south("evaluate", change)
    told = []
    result = serve(wires, deployment(metrics="auc"), tmp_path / "run", tell=told.append)
    rows = result.clients_table()
    assert [row["test_samples"] > 0 for row in rows] == [True] * 4 + [False] * 2
    assert result.summary()["missing"] == 0
    assert any(text.startswith("south gives no message (malformed)") for text in told)


def test_a_site_that_is_late_is_not_waited_for_again(tmp_path):
    sites = three(DATA)
    wires = Changing(sites, {1: lambda: wires.silent.add(102)})
    terms = {"deadline": 0.5}
    result = serve(wires, deployment(terms=terms), tmp_path / "run", tell=quiet)
    assert [e["reasons"] for e in entries(tmp_path)] == ["", "missing: timed out 2", ""]
    assert [e["selected"] for e in entries(tmp_path)] == [6, 6, 4]
    assert result.summary()["missing_by_reason"] == {"timed out": 2}


# -- tables, at sites with their owners' rules -----------------------------------------------------
def owners(tmp_path, columns=("age", "pressure")) -> dict[int, Site]:
    """Three hospitals with a table each, whose patients differ."""
    sites = {}
    for k, name in enumerate(("east", "north", "south")):
        draw = np.random.default_rng(k)
        values = {c: draw.normal(50 + 10 * k, 5, 60).round(2) for c in columns}
        table = pandas.DataFrame(values)
        table["outcome"] = np.where(
            table.iloc[:, 0] + draw.normal(0, 3, 60) > 50 + 10 * k, "y", "n"
        )
        path = tmp_path / f"{name}.csv"
        table.to_csv(path, index=False)
        folder = StateFolder(tmp_path / name)
        folder.open()
        owned = SiteData(name, "table", {"path": str(path)})
        sites[100 + k] = Site(owned, folder, Rules(), Builder(), quiet)
    return sites


def hospital_deployment(scale="federated", **terms) -> Deployment:
    plan = Plan("ditto", {}, "", settings=SETTINGS)
    form = {"kind": "table", "target": "outcome", "classes": ["n", "y"], "scale": scale}
    form["features"] = ["age", "pressure"]
    return Deployment(plan, form, Terms(sites=3, wait=5.0, deadline=20.0, **terms))


def test_hospitals_scale_by_the_means_of_all_of_them(tmp_path):
    result = serve(Wires(owners(tmp_path)), hospital_deployment(), tmp_path / "run", tell=quiet)
    assert [row["client"] for row in result.clients_table()] == ["east", "north", "south"]
    assert result.summary()["accuracy"]["mean"] > 0.6
    agreed = json.loads((tmp_path / "run" / "agreement.json").read_text())
    age = Preparation.from_dict(agreed["preparation"]).columns[0]
    assert 55 < age.centre[0] < 65  # of all three, whose own are near 50, 60 and 70
    assert age.spread[0] > 7  # wider than the 5 of each


def test_a_site_cannot_spoil_the_means_by_words_that_are_no_sums(tmp_path):
    wires = Wires(owners(tmp_path))
    bad = {"columns": {"age": {"kind": "number", "count": -1, "sum": 0.0, "missing": False}}}
    wires.tamper = from_south("sums", lambda said: Call("sums", bad).pack())
    told = []
    with pytest.raises(SettingError, match=r"2 of 3 have agreed.*\(east, north\)"):
        chosen = hospital_deployment()
        chosen = replace(chosen, terms=replace(chosen.terms, wait=1.0))
        serve(wires, chosen, tmp_path / "run", tell=told.append)
    assert any("south is left out: sums: of other columns" in text for text in told)


def test_a_resumed_run_of_tables_is_agreed_as_before(tmp_path):
    everyone = owners(tmp_path)
    wires = Changing(dict(everyone), {2: lambda: wires.sites.clear()})
    chosen = hospital_deployment()
    chosen = replace(chosen, terms=replace(chosen.terms, wait=1.0))
    with pytest.raises(TooFewSites):
        serve(wires, chosen, tmp_path / "run", tell=quiet)
    result = serve(Wires(everyone), chosen, tmp_path / "run", resume=True, tell=quiet)
    others = Wires(owners(_new(tmp_path / "again")))
    again = serve(others, chosen, tmp_path / "other", tell=quiet)
    for mine, its in zip(result.clients_table(), again.clients_table(), strict=True):
        assert mine["test_loss"] == pytest.approx(its["test_loss"], rel=1e-6)


def test_a_hospital_without_a_column_is_left_out_and_says_which(tmp_path):
    sites = owners(tmp_path)
    sites[102] = owners(_new(tmp_path / "less"), columns=("age", "weight"))[102]
    told = []
    chosen = hospital_deployment("client")
    chosen = replace(chosen, terms=replace(chosen.terms, sites=2))
    result = serve(Wires(sites), chosen, tmp_path / "run", tell=told.append)
    assert len(result.clients_table()) == 2
    assert any("column 'pressure' is not in this site's table" in text for text in told)


def _new(folder):
    folder.mkdir()
    return folder


def test_a_deployed_run_is_resumed_with_its_sites_only(tmp_path, capsys):
    serve(Wires(three(DATA)), deployment(), tmp_path / "run", tell=quiet)
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert "idiolect deploy run FOLDER --resume" in capsys.readouterr().err


# -- sites that refuse to train --------------------------------------------------------------------
def refusing(*nodes):
    """Orders to these nodes are refused."""

    def tamper(node, asked, said):
        if node in nodes and Call.open(asked).kind == "update":
            return Call("refused", {"reason": "max_rounds: they are done"}).pack()
        return said

    return tamper


def test_a_site_that_refuses_to_train_agrees_anew_and_is_asked_later_each_time(tmp_path):
    wires = Wires(three(DATA))
    wires.tamper = refusing(102)
    serve(wires, deployment(rounds=5), tmp_path / "run", tell=quiet)
    calls = wires.sites[102].calls
    assert (calls.count("update"), calls.count("agree")) == (2, 2)
    assert [entry["admitted"] for entry in entries(tmp_path)] == [4] * 5
    assert [entry["selected"] for entry in entries(tmp_path)] == [6, 6, 4, 4, 4]


def test_rounds_are_not_used_up_while_no_site_trains(tmp_path):
    wires = Wires(three(DATA))
    wires.tamper = refusing(100, 101, 102)
    with pytest.raises(TooFewSites, match="0 of the 1 that a round needs"):
        serve(wires, deployment(terms={"wait": 1.0}, rounds=9), tmp_path / "run", tell=quiet)
    assert len(entries(tmp_path)) == 2
