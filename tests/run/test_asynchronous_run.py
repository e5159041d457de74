"""Asynchronous runs: resumed exactly, timed, recorded; refused where they make no sense."""

import csv
import json
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

import helpers
import idiolect as il
from helpers import with_public
from idiolect.host.host import Host
from idiolect.methods import METHODS, make_method
from idiolect.report.plots import delay_picture
from idiolect.run.prepare import why_not
from idiolect.testing import private_of, state_of
from idiolect_papers.closed_forms.quadratic import Quadratic
from idiolect_papers.ffgg import figure3
from idiolect_papers.own.stragglers import SYNC, StragglerSize
from idiolect_papers.own.stragglers import write as write_stragglers

FEDERATION = helpers.classification((20, 9, 14, 30, 11, 17, 8, 25))
MODEL = partial(nn.Linear, helpers.FEATURES, helpers.CLASSES)
ASYNC = {"timing": "arrivals", "delays": "exponential(mean=1, spread=0.5)"}


class Stop(Exception):
    pass


def run(method="fedavg", **settings):
    given = {"rounds": 6, "sample": 4, "batch": 8, "progress": False} | ASYNC | settings
    return il.run(method, MODEL, with_public(method, FEDERATION), **given)


# -- exact resume ----------------------------------------------------------------------------------
RESUMED = {
    "one by one": ("fedavg", {}),
    "private rows, channel and buffer": (
        "ditto",
        {"channel": "feedback + lbgm(threshold=0.9) + half", "buffer": 3},
    ),
    "server optimiser and schedule": (
        "lg-fedavg:shared_part=weight",
        {"server_optimizer": "adam", "schedule": "cosine", "staleness": "polynomial"},
    ),
    "kept start, more at work than a round has": (
        "ffgg:part=weight,start=kept,solver=gd",
        {"sample": 3, "concurrency": 7, "delays": "constant(slow=0.4, slowdown=3)"},
    ),
    "a synchronous run with a clock": ("fedavg", {"timing": "rounds"}),
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(case, tmp_path):
    method, settings = RESUMED[case]
    whole = run(method, directory=tmp_path / "whole", **settings)

    def stop(moment):
        if moment.round == 3:
            raise Stop

    with pytest.raises(Stop):
        run(method, directory=tmp_path / "parts", on_round=stop, **settings)
    parts = run(method, directory=tmp_path / "parts", resume=True, **settings)
    for a, b in ((state_of(whole), state_of(parts)), (private_of(whole), private_of(parts))):
        assert all(torch.equal(t, b[n]) for n, t in a.items())
    assert whole.record.seeds[0].history == parts.record.seeds[0].history
    assert whole.session().server.ledger.save()[1] == parts.session().server.ledger.save()[1]
    for name in ("delays-seed-0.csv", "metrics.csv", "ledger-seed-0.csv", "clients.csv"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_a_longer_run_begins_as_the_shorter_one(tmp_path):
    run(directory=tmp_path / "r", rounds=3)
    longer = run(directory=tmp_path / "r", rounds=6, resume=True)
    assert longer.record.seeds[0].history == run().record.seeds[0].history


def test_models_are_found_again_in_the_directory(tmp_path):
    result = run("ditto", directory=tmp_path / "r")
    again = il.load(tmp_path / "r", task=MODEL)
    for id in FEDERATION.ids[:3]:
        for a, b in zip(
            result.personal(id).parameters(), again.personal(id).parameters(), strict=True
        ):
            assert torch.equal(a, b)


# -- what is told ----------------------------------------------------------------------------------
def test_rounds_bytes_and_gradients_are_counted_as_in_rounds():
    meanwhile, rounds = run(), run(timing="rounds")
    for result in (meanwhile, rounds):
        assert result.summary()["rounds"] == 6
        assert result.record.seeds[0].clients and len(result.record.seeds[0].history) == 6
    a, b = meanwhile.summary(), rounds.summary()
    assert a["bytes"]["up"] == b["bytes"]["up"]
    length = a["bytes"]["up"] // 24
    assert a["bytes"]["down"] == b["bytes"]["down"] + 4 * length  # 4 are at work when it ends
    assert a["gradients_per_client"] == b["gradients_per_client"]
    assert "a round is 4 arrivals" in a["timing"]["text"] and a["timing"]["concurrency"] == 4
    assert a["time"] < b["time"] and b["staleness"] == 0 < a["staleness"]


def test_a_synchronous_round_takes_as_long_as_the_slowest_client(tmp_path):
    lines = []
    result = run(
        timing="rounds", directory=tmp_path / "r", on_round=lambda m: lines.append(m.delays)
    )
    total = 0.0
    for of_round, figures in zip(lines, result.record.seeds[0].history, strict=True):
        assert len(of_round) == 4
        total += max(line["delay"] for line in of_round)
        assert figures["time"] == pytest.approx(total) and figures["staleness"] == 0
    with (tmp_path / "r" / "delays-seed-0.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 24


def test_without_delays_there_is_no_time(tmp_path):
    result = run(timing="rounds", delays=None, directory=tmp_path / "r")
    assert not {"time", "staleness"} & result.record.seeds[0].history[0].keys()
    assert "time" not in result.summary() and not list((tmp_path / "r").glob("delays*"))


def test_delays_are_written_and_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    run(directory=tmp_path / "r", seeds=2)
    with (tmp_path / "r" / "delays-seed-1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    assert list(rows[0]) == [
        "seed", "round", "client", "started", "staleness", "start", "time", "delay", "counted"
    ]  # fmt: skip
    times = [float(row["time"]) for row in rows]
    assert times == sorted(times)
    assert delay_picture(tmp_path / "r", tmp_path / "d.png") and (tmp_path / "d.png").exists()
    assert not delay_picture(tmp_path, tmp_path / "none.png")


def test_local_at_equal_compute_stands_beside_asynchronous_methods():
    rows = ["fedavg", "fedavg:buffer=2", "local:steps=1"]
    found = il.compare(rows, MODEL, FEDERATION, rounds=2, sample=4, progress=False, **ASYNC)
    labels = [row["label"] for row in found.summary()]
    assert any("as many gradients" in label for label in labels) and "local steps=1" not in labels
    assert found.skipped


def test_a_budget_of_bytes_is_kept():
    for budget in (1, 3000, 10_000):
        sent = run(bytes=budget, rounds=100).summary()["bytes"]
        assert sent["up"] + sent["down"] <= budget
    assert sent["up"] > 0


def test_composition_and_hosts_do_not_matter():
    one, two = run("ditto"), run("ditto", hosts=3)
    for n, t in state_of(one).items():
        torch.testing.assert_close(t, state_of(two)[n], rtol=0, atol=1e-6)


class Normed(nn.Sequential):
    def __init__(self):
        layers = nn.Linear(helpers.FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, helpers.CLASSES)
        super().__init__(*layers)


@pytest.mark.parametrize("statistics", ["averaged", "private"])
def test_running_statistics_and_momentum_travel_or_stay(statistics, monkeypatch):
    more = {"statistics": statistics, "optimizer_options": "momentum=0.9"}
    more |= {"optimizer_state": "private", "dtype": "float64"}
    given = {"rounds": 4, "sample": 4, "batch": 8, "progress": False} | ASYNC | more
    found = []
    for together in (True, False):
        monkeypatch.setattr(Host, "stacks", together)
        found.append(il.run("fedavg", Normed, FEDERATION, **given))
    for a, b in zip(*((state_of(r), private_of(r)) for r in found), strict=True):
        assert a
        for n, t in a.items():
            torch.testing.assert_close(t, b[n], rtol=0, atol=1e-9)


def test_held_out_clients_are_personalised_at_the_end(tmp_path):
    result = run("ditto", held_out=2, held_out_rounds=2, directory=tmp_path / "r")
    assert result.record.seeds[0].held_out["accuracy"] > 0
    again = il.load(tmp_path / "r", task=MODEL, federation=FEDERATION)
    assert again.personal(FEDERATION.ids[0]) is not None


# -- what makes no sense ---------------------------------------------------------------------------
REFUSED = {
    "local": "sends nothing",
    "scaffold": "control variates",
    "scaffnew": "every client is heard",
    "l2gd": "coin",
    "rsa": "adds up",
    "dichotomy": "votes",
    "fedproto": "means over the clients of a round",
    "fedtgp": "means over the clients of a round",
    "fedmd": "a mean over the clients of a round",
    "cfl": "every client is heard",
    **dict.fromkeys(
        ("fedamp", "heurfedamp", "pfedhn", "fedfomo", "pfedgraph", "fedpac"),
        "sends each client a message of its own",
    ),
    # of a model with one layer all of which is private
    **dict.fromkeys(
        ("ffgg", "local-ffgg", "fedalt", "fedsim", "fedper", "fedrep", "fedbabu"),
        "sends nothing; all 21 .* private",
    ),
    "ifca": "the part choice of its message",
    "feddane": "several exchanges",
    "feddyn": "adds up the changes",
    "fednova": "as long as the mean client's",
    "fedsplit": "every client is heard",
    "byz-vr-marina": "every client is heard",
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_or_says_why_not(name):
    method = make_method(name)
    reason = why_not(method, method.extended(il.Task(MODEL)))
    assert bool(reason) == (name in REFUSED)
    if reason:
        with pytest.raises(il.SettingError, match=REFUSED[name]):
            run(name, sample=0)


@pytest.mark.parametrize(
    "name", ["ffgg", "local-ffgg", "fedalt", "fedsim", "fedper", "fedrep", "fedbabu"]
)
def test_methods_with_a_private_part_run_where_another_part_is_shared(name):
    assert not why_not(make_method(name, part="bias"), il.Task(MODEL))


class Marked(il.FedAvg):
    """A message with a part that is neither a change nor what was sent."""

    def message(self, task):
        return {"w": task.d, "mark": 1}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"channel": "sketch(columns=5, rows=3, k=4)"}, "channel"),
        ({"attack": "alie", "malicious": 2}, "attack"),
        ({"rule": "krum(f=1)", "buffer": 3}, "krum"),
        ({"quorum": 3, "buffer": 2}, "quorum"),
        ({"concurrency": 9}, "concurrency"),
        ({"method": "ditto", "concurrency": 3}, "everyone trains"),
        ({"method": "feddeper", "change_from": "newest"}, "sends changes"),
        ({"timing": "rounds", "buffer": 2}, "buffer: 2"),
        ({"workers": 3}, "workers: it is now written engine='processes', hosts=N"),
        ({"clock": "real"}, "clock: it is now written"),
        ({"engine": "asynchronous"}, "engine must be one of .*; use timing='arrivals'"),
        ({"engine": "inprocess"}, "use engine='local'"),
        ({"engine": "processes"}, "delays"),
        ({"method": Marked()}, "mark"),
        ({"delays": "exponential + constant"}, "delays"),
        ({"staleness": "linear"}, "staleness"),
        ({"engine": "ray"}, "delays"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_run(settings, words):
    with pytest.raises(il.SettingError, match=words):
        run(settings.pop("method", "fedavg"), **settings)


def test_attacks_by_single_messages_and_robust_rules_work():
    result = run(attack="sign-flip", malicious=2, buffer=4, rule="median", sample=8)
    assert result.record.seeds[0].malicious


# -- the real clock --------------------------------------------------------------------------------
@pytest.mark.slow
def test_worker_processes_train_and_a_resumed_run_counts_nothing_twice(tmp_path):
    real = {"engine": "processes", "hosts": 2, "delays": None, "directory": tmp_path / "r"}

    def stop(moment):
        if moment.round == 3:
            raise Stop

    with pytest.raises(Stop):
        run("ditto", on_round=stop, checkpoint_every=1, **real)
    result = run("ditto", resume=True, **real)
    ledger = result.session().server.ledger
    assert ledger.admitted == ledger.selected == 24
    (length,) = {len(FEDERATION.ids) and result.session().contract.up.length}
    assert ledger.total("bytes_up") == 24 * length
    history = result.record.seeds[0].history
    assert [row["round"] for row in history] == [1, 2, 3, 4, 5, 6]
    assert all(a["time"] < b["time"] for a, b in pairwise(history))
    assert history[-1]["loss"] < history[0]["loss"]
    with (tmp_path / "r" / "delays-seed-0.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 24


def test_a_model_that_no_other_process_finds_is_refused():
    with pytest.raises(il.SettingError, match="engine: a worker process cannot receive this run"):
        il.run(
            "fedavg",
            lambda: nn.Linear(helpers.FEATURES, helpers.CLASSES),
            FEDERATION,
            rounds=1,
            timing="arrivals",
            engine="processes",
            progress=False,
        )


# -- experiments, small ----------------------------------------------------------------------------
def test_figure_3_of_ffgg_in_small(tmp_path):
    drawn = Quadratic(clients=5, samples=40, shared=8, private=4, zeta=10.0, truth="common")
    size = figure3.Figure3Size(drawn, (5, 50), (12, 12), real_rounds=0, workers=1)
    figure3.write(tmp_path, size)
    stored = json.loads((tmp_path / "ffgg-figure3.json").read_text())
    assert len(stored["claims"]) == 4
    first = stored["figures"]["τ = 50, synchronous"]
    assert first[-1] < 0.1 * first[0]


def test_the_closed_form_that_chooses_step_sizes_is_the_method(tmp_path):
    """The last θ of a run equals the affine updates with the same starts of w."""
    drawn = Quadratic(clients=4, samples=40, shared=6, private=3, zeta=5.0, truth="common")
    problem = drawn.draw()
    lr, private_lr = figure3.theoretical(problem, figure3.SHARE, 10)
    order = figure3.order_of(problem, "exponential(mean=1)", 20)
    update = figure3.Affine.of(problem, 7, private_lr)
    theta = torch.zeros(6, dtype=torch.float64)
    started = [theta] * 4
    for m, _ in order:
        theta = theta - lr * (update.A[m] @ started[m] - update.c[m])  # w_0 = 0
        started[m] = theta
    method = il.Ffgg(part="w.*", lr=lr, solver="gd", private_lr=private_lr, steps=7, start="common")
    settings = {"batching": "full", "dtype": "float64", "rounds": 5, "sample": 4, "eval_every": 0}
    settings |= {"timing": "arrivals", "delays": "exponential(mean=1)", "progress": False}
    result = il.run(method, problem.task(), problem.federation(), **settings)
    torch.testing.assert_close(state_of(result)["theta"], theta, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_stragglers_in_small(tmp_path):
    size = StragglerSize(seeds=2, clients=10, sample=4, buffer=2, rounds=12, accuracy=0.3, norm=0.3,
                         quadratic=(30, 6, 3), rates=(1.0, 0.5), workers=1)  # fmt: skip
    write_stragglers(tmp_path, size)
    stored = json.loads((tmp_path / "async-stragglers.json").read_text())
    assert len(stored["figures"]) == 24 and SYNC in "".join(stored["figures"])
