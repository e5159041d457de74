"""Hosts as actors on a cluster of two nodes, started here: the same runs, whatever dies."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import idiolect as il
from engine.engine_suite import EngineSuite
from engine.loopback import Loopback
from idiolect.core.knobs import SettingError
from idiolect.methods import METHODS, make_method
from idiolect.methods.predictor import predicts_by_itself
from idiolect.testing import federation, gradients_of, state_of, task

os.environ["RAY_AUTH_MODE"] = "token"  # Ray reads it when it is imported
os.environ.setdefault("RAY_AUTH_TOKEN", "0" * 64)
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray")

from engine.loopback import remote_rounds  # noqa: E402
from idiolect.cli.main import main  # noqa: E402
from idiolect.engine.carriers import Place  # noqa: E402
from idiolect.engine.carriers import ray as ray_cluster  # noqa: E402
from idiolect.engine.carriers.ray import RayCarrier  # noqa: E402
from idiolect.host.lazy_federation import LazyFederation  # noqa: E402
from idiolect.host.service import Service  # noqa: E402
from idiolect.report.tables import baseline_row  # noqa: E402
from idiolect.run.plan import Plan  # noqa: E402
from idiolect.run.worker_hosts import data_of  # noqa: E402
from idiolect.study.jobs import finish  # noqa: E402
from idiolect.study.sweep import sweep_plans  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of this machine, two CPUs each."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=node)
    made.add_node(num_cpus=2, object_store_memory=80 << 20)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def address(cluster):
    return cluster.address


def settings(**more):
    return {"rounds": 4, "batch": 8, "dtype": "float64", "eval_every": 2, "progress": False} | more


def both(method, address, directory=None, **more):
    """The same run in this process and on the cluster."""
    sample = 0 if make_method(method).traits.hears_all else 3
    given = settings(sample=sample, hosts=2, **more)
    here = il.run(method, task(), federation(), **given)
    there = il.run(
        method, task(), federation(), engine="ray", address=address, directory=directory, **given
    )
    return here, there


def same(here, there):
    """Server, private rows, gradients and figures are alike, bit for bit."""
    for name, t in state_of(here).items():
        assert torch.equal(t, state_of(there)[name]), name
    assert torch.equal(gradients_of(here), gradients_of(there))
    ours, theirs = here.session().hosts, there.session().hosts
    assert [h.digest() for h in ours] == [h.digest() for h in theirs]
    if not predicts_by_itself(make_method(here.method)):
        assert torch.equal(here.session().personal_rows(), there.session().personal_rows())
    one, other = here.summary(), there.summary()
    for name in ("accuracy", "loss", "bytes", "values", "gradients_per_client", "rejected"):
        assert one[name] == other[name], name


# -- what every engine must do ---------------------------------------------------------------------
class ThroughRay(Loopback):
    """Hosts of this process, behind frames that Ray carries to another one and back."""

    def pass_on(self, frame):
        return ray.get(self.actor.answer.remote(partial(bytes, frame)))

    def __init__(self, services, actor):
        super().__init__(services)
        self.actor = actor

    def send(self, host, frame):
        return super().send(host, self.pass_on(frame))

    def receive(self, seconds):
        return [(ticket, self.pass_on(said)) for ticket, said in super().receive(seconds)]


@pytest.fixture(scope="module")
def actor(cluster):
    ray_cluster.connect(Place(cluster.address))
    return ray.remote(ray_cluster.HostActor).options(num_cpus=0).remote()


@pytest.fixture
def through(actor):
    def build(server, hosts, **options):
        return remote_rounds(
            server, hosts, ThroughRay([Service(h) for h in hosts], actor), **options
        )

    return build


class TestRay(EngineSuite):
    test_several_hosts_are_one = None  # below: a minute

    @pytest.fixture
    def build(self, through):
        return through


@pytest.mark.slow
class TestEveryMethodThroughRay:
    test_several_hosts_are_one = EngineSuite.test_several_hosts_are_one
    _same_on_any_number_of_hosts = EngineSuite._same_on_any_number_of_hosts

    @pytest.fixture
    def build(self, through):
        return through


# -- whole runs ------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_the_same_as_in_one_process_after_20_rounds(method, address):
    same(*both(method, address, rounds=20, eval_every=10))


def unlike() -> il.TaskGroups:
    """Two groups of clients in turn, whose models have the same last layer."""
    linear, tanh = torch.nn.Linear, torch.nn.Tanh
    models = {
        "small": lambda: torch.nn.Sequential(linear(5, 4), tanh(), linear(4, 3)),
        "deep": lambda: torch.nn.Sequential(
            linear(5, 6), tanh(), linear(6, 4), tanh(), linear(4, 3)
        ),
    }
    names = {i: ("small", "deep")[k % 2] for k, i in enumerate(federation().ids)}
    return il.TaskGroups({name: il.Task(model) for name, model in models.items()}, names)


@pytest.mark.parametrize("method", ["fedproto", "lg-fedavg", "fedmd"])
def test_groups_of_unlike_models_are_the_same_as_in_one_process(method, address, tmp_path):
    """Each host has one model: two hosts for the clients of a share."""
    given = settings(sample=3, hosts=2)
    on_ray = {"engine": "ray", "address": address, "directory": tmp_path / "run"}
    here, there = (il.run(method, unlike(), federation(), **given, **more) for more in ({}, on_ray))
    assert len(there.session().hosts) == 4
    for name, t in state_of(here).items():
        assert torch.equal(t, state_of(there)[name]), name
    ours, theirs = here.session().hosts, there.session().hosts
    assert [h.digest() for h in ours] == [h.digest() for h in theirs]
    assert repr(here.clients_table()) == repr(there.clients_table())
    for i in federation().ids:
        pairs = zip(here.personal(i).parameters(), there.personal(i).parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("channel", ["none", "feedback + qsgd"])
def test_several_exchanges_per_round_are_the_same_as_in_one_process(channel, address):
    here, there = both("feddane", address, channel=channel, rule="trimmed-mean(f=1)")
    assert here.session().server.version == 2 * here.session().rounds
    same(here, there)


def test_hosts_are_on_both_nodes(address):
    place = Place(address)
    found = ray_cluster.connect(place)
    actors = ray_cluster._take(found, 2, place)
    nodes = found.get([a.node.remote() for a in actors])
    assert len(set(nodes)) == 2
    for actor in actors:
        found.kill(actor)


@pytest.mark.parametrize("hosts", [1, 3])
def test_the_number_of_hosts_changes_nothing(address, hosts):
    given = settings(sample=3)
    here = il.run("scaffold", task(), federation(), **given)
    there = il.run(
        "scaffold",
        task(),
        federation(),
        engine="ray",
        address=address,
        hosts=hosts,
        **given,
    )
    for name, t in state_of(here).items():
        assert torch.allclose(t, state_of(there)[name], rtol=0, atol=1e-12), name


@pytest.mark.parametrize(
    "more",
    [
        {"channel": "feedback + topk(share=0.3) + half"},
        {"channel": "sketch(columns=5, rows=3, k=2, exact=True)"},
        {"attack": "sign-flip", "malicious": 2, "rule": "median"},
        {"held_out": 2, "metrics": "auc,f1", "keep_best": True},
        {"optimizer": "adam", "optimizer_state": "private", "schedule": "cosine"},
    ],
    ids=["channel", "second exchange", "attack", "held out, metrics", "optimiser"],
)
def test_everything_else_of_a_run_works_there_too(address, more):
    same(*both("ditto" if "optimizer" in more else "fedavg", address, **more))


def test_models_can_be_read_from_a_run_directory(address, tmp_path):
    here, there = both("ditto", address, directory=tmp_path / "run")
    same(here, there)
    again = il.load(tmp_path / "run", task=task(), federation=federation())
    assert torch.equal(here.session().personal_rows(), again.session().personal_rows())
    assert not (tmp_path / "run" / ".hosts").exists()


def by_name(address, data="synthetic", options=None, **more):
    """The same run by name, in this process and on the cluster; both with their data."""
    options = {"clients": 6, "samples": 40} if options is None else options
    runs = []
    for engine_settings in ({}, {"engine": "ray", "address": address}):
        given = settings(**{"sample": 3, "hosts": 2, "rounds": 3} | more | engine_settings)
        given.pop("progress")
        plan = Plan("ditto", data=data, data_options=options, settings=given)
        found = data_of([plan])
        task = plan.make_task(found)
        runs.append(
            (il.run("ditto", task, found, origin=plan.as_dict(), progress=False, **given), found)
        )
    return runs


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="classes", marks=pytest.mark.slow),
        pytest.param(
            {"data": "logistic", "options": {"clients": 6}, "metrics": "auc"},
            id="metric",
            marks=pytest.mark.slow,
        ),
        pytest.param({"data": "linear", "options": {"clients": 6}}, id="regression"),
        pytest.param({"attack": "label-flip", "malicious": 2}, id="false labels"),
    ],
)
def test_data_by_name_are_with_their_hosts_alone(address, more):
    """The driver has a census of them; what a run shows of its data is the same."""
    (here, data), (there, census) = by_name(address, **more)
    assert isinstance(census, LazyFederation) and not isinstance(data, LazyFederation)
    assert census.inputs.shape == data.inputs.shape and census.inputs.stride(0) == 0
    assert census.targets.stride(0) == 0
    assert "loaded" not in vars(census)  # nothing of the run has asked for the samples
    assert here.record.data == there.record.data  # with the SHA-256 of all samples
    assert here.record.baseline == there.record.baseline and here.record.baseline
    assert repr(here.clients_table()) == repr(there.clients_table())  # there are NaNs
    criterion, s = there.session().contract.task.criterion, here.session()
    rows = [baseline_row(d, criterion, s.metrics) for d in (data, census)]
    assert repr(rows[0]) == repr(rows[1])
    assert "loaded" not in vars(census)
    same(here, there)  # models are asked for: now they are


def test_a_comparison_of_the_command_line_reads_no_data_here(
    address, tmp_path, monkeypatch, capsys
):
    words = ["compare", "fedavg", "lp-proj:dim=5", "--clients", "6", "--samples", "40", "--json"]
    words += ["--rounds", "2", "--hosts", "2", "--sample", "3"]
    main([*words, "--directory", str(tmp_path / "here")])
    here = json.loads(capsys.readouterr().out)

    def refuse(plan):
        raise AssertionError("the driver has loaded the data")

    monkeypatch.setattr(Plan, "make_data", refuse)
    on_ray = ["--engine", "ray", "--address", address]
    main([*words, *on_ray, "--directory", str(tmp_path / "there")])
    there = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in there] == [row["method"] for row in here]
    for ours, theirs in zip(here, there, strict=True):
        for name in ("accuracy", "loss", "bytes", "gradients_per_client"):
            assert ours.get(name) == theirs.get(name), name


def test_unlike_models_by_name_are_trained_where_their_data_are(address, tmp_path, capsys):
    words = ["run", "fedmd", "--model", "linear | mlp(hidden=8)", "--clients", "6", "--json"]
    words += ["--samples", "40", "--public", "12", "--rounds", "2", "--hosts", "2"]
    results = []
    for engine in ([], ["--engine", "ray", "--address", address]):
        main([*words, *engine, "--directory", str(tmp_path / str(len(engine)))])
        results.append(json.loads(capsys.readouterr().out))
    here, there = results
    for name in ("accuracy", "loss", "bytes", "gradients_per_client"):
        assert here[name] == there[name], name


def test_a_census_is_loaded_where_a_run_needs_the_samples_here(address):
    plan = Plan(
        "fedavg",
        data="synthetic",
        data_options={"clients": 4, "samples": 40},
        settings={"engine": "ray", "address": address, "hosts": 2},
    )
    census = data_of([plan])
    given = settings(rounds=2)
    results = [
        il.run("fedavg", plan.make_task(data), data, **given) for data in (census, plan.make_data())
    ]
    assert results[0].summary()["accuracy"] == results[1].summary()["accuracy"]
    assert results[0].record.data == results[1].record.data


def test_what_does_not_fit_the_data_is_refused_where_they_are(address):
    on_ray = {"engine": "ray", "address": address, "hosts": 2}
    for more, said in (
        ({"loss": "logistic"}, "loss: 'logistic' is for two classes"),
        ({"data_options": {"clients": 0}}, "clients must be a whole number >= 1, got 0"),
        ({"settings": {**on_ray, "metrics": "r2"}}, "metrics must fit these data, got 'r2'"),
    ):
        fields = {"data": "synthetic", "settings": on_ray} | more
        with pytest.raises(SettingError, match=said):
            data_of([Plan("fedavg", **fields)])


def test_a_tuning_runs_on_the_cluster(address, monkeypatch):
    made = []
    hosts = RayCarrier.__init__

    def noting(carrier, recipes, place):
        made.append(len(recipes))
        hosts(carrier, recipes, place)

    monkeypatch.setattr(RayCarrier, "__init__", noting)
    given = {"grid": {"lr": [0.0001, 0.1]}, "rounds": 3, "hosts": 2, "sample": 3, "jobs": 1}
    on_ray = {"engine": "ray", "address": address}
    there = il.tune("fedavg", task(), federation(), **given, **on_ray)
    assert made == [2] * 4  # each candidate, the final run and Local on two hosts
    here = il.tune("fedavg", task(), federation(), **given)
    assert there.rows() == here.rows()
    assert there.result.summary()["accuracy"] == here.result.summary()["accuracy"]


@dataclass(frozen=True)
class Trial:
    """A run of a sweep."""

    lr: float
    more: tuple[tuple[str, Any], ...] = ()

    def key(self):
        return f"{self.lr} {self.more}"

    def train(self):
        given = settings(rounds=2, sample=3, hosts=2, **dict(self.more))
        summary = il.run(il.Ditto(lr=self.lr), task(), federation(), **given).summary()
        return {name: summary[name] for name in ("accuracy", "bytes")}

    def cost(self):
        return 1.0

    describe = key


def test_the_runs_of_a_sweep_are_on_the_cluster(address, tmp_path):
    """In this process one after the other."""
    rates = (0.01, 0.1)
    on_ray = (("engine", "ray"), ("address", address))
    there = finish([Trial(lr, on_ray) for lr in rates], tmp_path / "there.jsonl")
    here = finish([Trial(lr) for lr in rates], tmp_path / "here.jsonl")
    assert list(there.values()) == list(here.values())


def test_a_stage_takes_over_the_rows_of_the_one_before(address):
    shared = {k: v for k, v in settings(sample=3, hosts=2).items() if k != "rounds"}
    stages = [("ditto", 2), ("ditto:lr=0.05", 2)]
    rows = []
    for more in ({}, {"engine": "ray", "address": address}):
        results = il.pipeline(stages, task(), federation(), **shared, **more)
        rows.append(results[-1].session().personal_rows())
    assert torch.equal(*rows)


# -- what dies -------------------------------------------------------------------------------------
@pytest.fixture
def pids(monkeypatch):
    """The process of the second host of every carrier that is made."""
    found: dict[RayCarrier, int] = {}
    start = RayCarrier.__init__

    def starting(carrier, recipes, place):
        start(carrier, recipes, place)
        found[carrier] = carrier.ray.get(carrier.actors[1].pid.remote())

    monkeypatch.setattr(RayCarrier, "__init__", starting)
    return found


@pytest.mark.parametrize(
    "method",
    [
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("ditto", "scaffold", "feddane")),
        "lp-proj",
    ],
)
@pytest.mark.parametrize(
    "kind", [*(pytest.param(k, marks=pytest.mark.slow) for k in ("update", "evaluate")), "conclude"]
)
def test_a_killed_host_comes_back_with_its_rows_and_repeats_the_round(
    address, pids, monkeypatch, method, kind
):
    """Nothing is lost, and nothing is counted twice."""
    struck: list[int] = []
    send = RayCarrier.send

    def striking(carrier, host, frame):
        told = b'"version": 2' in frame[8:200] or b'"version": 3' in frame[8:200]
        if host == 1 and not struck and f'"{kind}"'.encode() in frame[8:60] and told:
            os.kill(pids[carrier], signal.SIGKILL)
            struck.append(pids[carrier])
        return send(carrier, host, frame)

    monkeypatch.setattr(RayCarrier, "send", striking)
    here, there = both(method, address, eval_every=1)
    assert len(struck) == 1
    same(here, there)
    assert there.summary()["rejected"] == 0


def test_a_host_that_does_not_come_back_is_all_its_clients_absent(address, pids, monkeypatch):
    """Its clients have crashed, in every round until the end; the others go on."""
    send = RayCarrier.send
    gone: list[RayCarrier] = []

    def killing(carrier, host, frame):
        if host == 1 and b'"update"' in frame[8:60] and b'"version": 1,' in frame[8:200]:
            carrier.ray.kill(carrier.actors[1], no_restart=True)
            gone.append(carrier)
        return send(carrier, host, frame)

    monkeypatch.setattr(RayCarrier, "send", killing)
    given = settings(sample=0, hosts=2, eval_every=1, patience_for_hosts=0.5)
    rounds = []

    def note(moment):
        rounds.append(dict(moment.ledger["missing"]))

    with pytest.raises(RuntimeError, match="host 2 of 2 cannot be reached"):
        il.run(
            "ditto",
            task(),
            federation(),
            engine="ray",
            address=address,
            on_round=note,
            **given,
        )
    assert gone and rounds == [{}, {"crashed": 3}, {"crashed": 3}, {"crashed": 3}]


def test_a_host_whose_rows_are_gone_does_not_start_anew(address, pids, monkeypatch):
    send = RayCarrier.send
    struck: list[int] = []

    def striking(carrier, host, frame):
        if host == 1 and not struck and b'"version": 2,' in frame[8:200]:
            struck.append(pids[carrier])
            recipe = carrier.ray.get(carrier.recipes[1])
            for file in Path(recipe.folder).iterdir():
                if file.is_file():
                    file.unlink()
            os.kill(pids[carrier], signal.SIGKILL)
        return send(carrier, host, frame)

    monkeypatch.setattr(RayCarrier, "send", striking)
    missing = []
    given = settings(sample=0, hosts=2, eval_every=0, patience_for_hosts=5)
    with pytest.raises(RuntimeError, match="cannot be reached"):
        il.run(
            "ditto",
            task(),
            federation(),
            engine="ray",
            address=address,
            on_round=lambda moment: missing.append(dict(moment.ledger["missing"])),
            **given,
        )
    assert struck and missing == [{}, {}, {"crashed": 3}, {"crashed": 3}]


def test_a_round_goes_on_without_a_host_that_is_late(address, monkeypatch):
    carriers = []
    start = RayCarrier.__init__

    def starting(carrier, recipes, place):
        start(carrier, recipes, place)
        carriers.append(carrier)

    monkeypatch.setattr(RayCarrier, "__init__", starting)
    missing = []

    def note(moment):
        missing.append(dict(moment.ledger["missing"]))
        if len(missing) == 1:  # the second host is stopped for a while
            pid = carriers[0].ray.get(carriers[0].actors[1].pid.remote())
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(4.0, os.kill, (pid, signal.SIGCONT)).start()

    given = settings(sample=0, hosts=2, eval_every=0, deadline=1.0)
    result = il.run(
        "ditto", task(), federation(), engine="ray", address=address, on_round=note, **given
    )
    assert missing[0] == {} and missing[1] == {"timed out": 3}
    assert result.summary()["rounds"] == 4


RUN = """
import sys
import idiolect as il
from idiolect.testing import federation, task

def kill(moment):
    if moment.round == 3 and sys.argv[3] == "die":
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)

il.run("ditto", task(), federation(), engine="ray", address=sys.argv[1],
       directory=sys.argv[2], rounds=5, sample=3, hosts=2, batch=8, dtype="float64", eval_every=1,
       checkpoint_every=2, resume=sys.argv[3] == "resume", progress=False, on_round=kill)
"""


def test_a_run_resumes_after_its_driver_was_killed(address, tmp_path):
    ray_cluster.dismiss()  # idle actors of this process hold CPUs
    for turn, expected in (("die", -signal.SIGKILL), ("resume", 0)):
        done = subprocess.run(
            [sys.executable, "-c", RUN, address, tmp_path / "run", turn],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == expected, done.stderr[-3000:]
    there = il.load(tmp_path / "run", task=task(), federation=federation())
    here = il.run(
        "ditto",
        task(),
        federation(),
        **settings(rounds=5, sample=3, hosts=2, eval_every=1),
    )
    assert torch.equal(here.session().personal_rows(), there.session().personal_rows())
    assert here.summary()["bytes"] == there.summary()["bytes"]


# -- asynchronous ----------------------------------------------------------------------------------
def test_messages_are_used_as_they_come(address):
    lines = []
    result = il.run(
        "fedavg",
        task(),
        federation(),
        engine="ray",
        timing="arrivals",
        address=address,
        on_round=lambda moment: lines.extend(moment.delays),
        **settings(sample=3, hosts=2, rounds=6, eval_every=3),
    )
    assert len(lines) == 18 and all(line["counted"] for line in lines)
    assert all(line["delay"] > 0 for line in lines)
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert result.summary()["accuracy"]["mean"] > 0.5


# -- bad input -------------------------------------------------------------------------------------
def refusal(match, **more):
    with pytest.raises(SettingError, match=match):
        il.run("fedavg", task(), federation(), **settings(**more))


def test_a_sweep_runs_there_too(address):
    given = settings(rounds=2, seeds=2, eval_every=0)
    del given["progress"]
    options = {"data": "synthetic", "data_options": {"clients": 4, "samples": 40}}
    here = sweep_plans([Plan("ditto", **options, settings=given)], ["lam=0.1,1"], jobs=1)
    given |= {"engine": "ray", "address": address, "hosts": 2}
    there = sweep_plans([Plan("ditto", **options, settings=given)], ["lam=0.1,1"])
    assert not there.failed
    for mine, its in zip(there.rows(), here.rows(), strict=True):
        for name in ("lam", "seed", "accuracy", "bytes_up", "gradients_per_client"):
            assert mine[name] == its[name], name
    with pytest.raises(SettingError, match="jobs must be 1 with hosts on Ray"):
        plan = Plan("ditto", **options, settings={**given, "address": ""})
        sweep_plans([plan], ["lam=0.1,1"], jobs=2)


def test_more_hosts_than_the_cluster_has_room_for(address):
    refusal(
        r"hosts: 3 with 2 CPUs each need 6, and the Ray cluster has 4; "
        r"take a smaller `hosts` or cpus_per_host of at most 1",
        engine="ray",
        address=address,
        hosts=3,
        cpus_per_host=2.0,
    )


def test_the_host_of_malicious_clients_needs_room_too(address):
    refusal(
        r"hosts: 5 with 1 CPUs each need 5, .* has 4; 1 of them is for malicious clients; "
        r"take a smaller `hosts` or cpus_per_host of at most 0\.8",
        engine="ray",
        address=address,
        hosts=4,
        attack="sign-flip",
        malicious=1,
    )


def test_hosts_of_unlike_models_need_room_too(address):
    what = r"; a host has clients of one of the 2 groups with unlike models; take "
    given = settings(sample=3, engine="ray", address=address)
    for hosts, cpus, change in (
        (3, 1.0, "a smaller `hosts` or fewer groups"),
        (1, 3.0, "fewer groups"),
    ):
        with pytest.raises(SettingError, match=rf"has 4{what}{change} or cpus_per_host of at most"):
            il.run("fedproto", unlike(), federation(), hosts=hosts, cpus_per_host=cpus, **given)


def test_a_colluding_attack_is_refused():
    refusal("attack: 'alie'", engine="ray", attack="alie", malicious=2)


def test_settings_of_ray_without_ray():
    refusal("deadline: 3.0 requires engine='ray'", deadline=3.0)
    refusal("address: 'auto' requires engine='ray'", address="auto")


def test_machines_with_another_version_are_refused(address, monkeypatch):
    monkeypatch.setattr(
        ray_cluster, "about", lambda: {"idiolect": "0.0.1", "torch": "1", "numpy": "1"}
    )
    refusal(
        "host 1 has idiolect .*, and this process 0.0.1", engine="ray", address=address, hosts=2
    )


@pytest.mark.parametrize("code", ["no cluster", "no package"])
def test_what_is_missing_is_named(tmp_path, code):
    """In a process of its own: Ray is connected to once per process."""
    hide = "sys.modules['ray'] = None\n" if code == "no package" else ""
    script = f"""
import sys
{hide}
import idiolect as il, torch
from idiolect.testing import federation
try:
    il.run("fedavg", torch.nn.Linear(5, 3), federation(), engine="ray", address="127.0.0.1:1",
           rounds=1, progress=False)
except il.SettingError as error:
    print(error)
"""
    environment = {**os.environ, "RAY_raylet_start_wait_time_s": "5"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
    )
    expected = "pip install 'idiolect[ray]'" if hide else "no Ray cluster answers at '127.0.0.1:1'"
    assert expected in done.stdout, done.stdout + done.stderr


# -- privacy ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("privacy", ["central(noise=2)", "local(noise=2)"])
def test_privacy_on_a_cluster_gives_the_same_bits_and_account(privacy, address):
    here, there = both("fedavg", address, privacy=privacy, noise_source="seed")
    same(here, there)
    assert here.seeds[0].privacy == there.seeds[0].privacy
    assert there.seeds[0].privacy["rounds"] == 4
