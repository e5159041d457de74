"""Asynchronous training is its algorithms, arrival by arrival, and has rounds as a limit."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import idiolect as il
from engine.loopback import local_rounds
from engine.setting import (
    CLIENTS,
    EVERYONE,
    FEDERATION,
    Host,
    HostSettings,
    balanced,
    contract,
    held,
    of_hosts,
    of_server,
    server,
    with_header,
)
from engine.setting import hosts as synchronous_hosts
from idiolect.core import streams
from idiolect.engine.arrivals import Arrivals, Pace
from idiolect.engine.carriers.local import LocalHosts
from idiolect.engine.delays import parse_delays
from idiolect.methods import METHODS, make_method
from idiolect.run.prepare import why_not
from idiolect.server.asynchronous import AsyncServer, parse_staleness
from idiolect.testing import state_of
from methods.common import PARTS
from reference import asynchronous as by_hand
from reference import setting
from reference.setting import MODELS, SEED, SIZES

ROUNDS = 40
MEANWHILE = {"timing": "arrivals", "delays": "exponential(spread=0.5)"}


@pytest.fixture(scope="module")
def federation():
    return setting.make_federation()


def order_of(federation, text=MEANWHILE["delays"], count=ROUNDS * len(SIZES)):
    delays = parse_delays(text)
    keys = streams.name_keys(federation.names)

    def delay(i, n):
        return float(delays.draw(SEED, keys[[i]], np.array([n]))[0])

    return by_hand.arrivals(delay, federation.clients, count)


def run(method, federation, model="logistic", **settings):
    given = {"rounds": ROUNDS, "sample": len(SIZES), "eval_every": 0} | MEANWHILE | settings
    return setting.run(method, federation, model, **given)


# -- against NumPy ---------------------------------------------------------------------------------
@pytest.mark.parametrize("start", ["random", "common"])
def test_ffgg_is_algorithm_3(federation, start):
    private = PARTS["network", "output"]
    task = setting.task("network").under(seed=SEED, dtype=torch.float64)
    draws = setting.draws(federation)

    def starts(n, i):
        if start == "common":
            return setting.start("network")[private]
        keys = streams.keys(SEED, "private start", n, draws.keys[[i]])
        return task.draw(keys)[0].numpy()[private]

    thetas = by_hand.ffgg(
        MODELS["network"][1],
        draws.data,
        setting.start("network"),
        private,
        order_of(federation),
        draws.batches,
        starts,
        lr=0.1,
        private_lr=0.2,
        steps=4,
    )
    method = il.Ffgg(part="output", lr=0.1, solver="gd", private_lr=0.2, steps=4, start=start)
    result = run(method, federation, "network")
    found = state_of(result)["theta"].numpy()
    assert np.abs(found - thetas[0]).max() > 1e-2
    np.testing.assert_allclose(found, thetas[-1], rtol=0, atol=1e-10)
    sent = ROUNDS * len(SIZES) * (24 + 8 * len(thetas[0]))
    assert result.summary()["bytes"]["up"] == sent
    assert result.summary()["bytes"]["down"] == sent + len(SIZES) * (24 + 8 * len(thetas[0]))


CASES = {
    "changes": {},
    "FedAsync, polynomial": {"staleness": "polynomial(a=0.5)", "server_lr": 0.6},
    "FedAsync, hinge": {"staleness": "hinge(a=0.7, b=3)", "change_from": "newest"},
    "FedAsync, mixing": {"change_from": "newest", "server_lr": 0.6},
    "FedBuff": {"buffer": 4, "staleness": "polynomial(a=0.5)", "server_lr": 0.7},
    "FedBuff, everyone": {"buffer": len(SIZES)},
}


@pytest.mark.parametrize("case", CASES)
def test_models_that_arrive_are_fedasync_and_fedbuff(federation, case):
    given = CASES[case]
    draws = setting.draws(federation)
    models = by_hand.fedbuff(
        MODELS["logistic"][1],
        draws.data,
        setting.start(),
        order_of(federation),
        draws.batches,
        lr=0.1,
        steps=3,
        s=parse_staleness(given.get("staleness", "constant")),
        buffer=given.get("buffer", 1),
        rate=given.get("server_lr", 1.0),
        mixing=given.get("change_from") == "newest",
        weigh=lambda i: draws.sizes[i],
    )
    result = run(il.FedAvg(lr=0.1, steps=3), federation, **given)
    found = state_of(result)["w"].numpy()
    assert np.abs(found - models[0]).max() > 1e-2
    np.testing.assert_allclose(found, models[-1], rtol=0, atol=1e-10)


def test_staleness_weights():
    one, poly, hinge = (
        parse_staleness(t) for t in ("constant", "polynomial(a=2)", "hinge(a=10, b=4)")
    )
    assert [one(0), one(9)] == [1, 1]
    assert [poly(0), poly(1)] == [1, 0.25]
    assert [hinge(4), hinge(5)] == [1, 1 / 11]
    flat = parse_staleness("polynomial(a=0)")
    assert [flat(t) for t in range(5)] == [1.0] * 5


# -- limits ----------------------------------------------------------------------------------------
def hosts(agreed, count=2):
    return [
        Host(agreed, FEDERATION.of(w), w, HostSettings(batch=8, asynchronous=True))
        for w in EVERYONE.tensor_split(count)
    ]


def engine(agreed, delays="constant", count=2, sample=CLIENTS, rule="mean", step=None, **options):
    pace = Pace(options.pop("concurrency", 0), options.pop("next_client", "sampled"))
    one = server(agreed, sample=sample, rule=rule, step=step)
    arrivals = AsyncServer(one, **options)
    return Arrivals(one, LocalHosts(hosts(agreed, count)), arrivals, pace, parse_delays(delays))


def usable(name):
    method = make_method(name)
    return not why_not(method, contract(name).task)


@pytest.mark.parametrize("method", [m for m in METHODS if usable(m)])
def test_equal_delays_and_a_buffer_of_everyone_are_synchronous_rounds(method):
    """To the last bit: draws are keyed by how often a client has started."""
    agreed = contract(method, dtype=torch.float64)
    mine = engine(agreed, buffer=CLIENTS)
    theirs = local_rounds(server(agreed, sample=CLIENTS), synchronous_hosts(agreed, 2))
    for _ in range(3):
        mine.advance()
        theirs.advance()
    a = of_server(mine.server) | of_hosts(mine.hosts)
    b = of_server(theirs.server) | of_hosts(theirs.hosts)
    assert all(torch.equal(t, a[n]) for n, t in b.items())
    assert mine.time == mine.rounds == 3
    up, down = ("bytes_up", "bytes_down")
    assert torch.equal(mine.server.ledger.counts[up], theirs.server.ledger.counts[up])
    more = mine.server.ledger.counts[down] - theirs.server.ledger.counts[down]
    assert set(more.tolist()) == {agreed.down.length}  # those at work when it ended


def test_one_by_one_at_equal_delays_is_a_round_with_the_sum_of_all_messages():
    agreed = contract("ffgg", dtype=torch.float64)
    method = replace(agreed.method, part="output", lr=0.05)
    mine = engine(replace(agreed, method=method))
    whole = replace(agreed, method=replace(method, lr=0.05 * CLIENTS))
    theirs = local_rounds(server(whole, sample=CLIENTS), synchronous_hosts(whole, 2))
    for _ in range(4):
        mine.advance()
        theirs.advance()
    difference = mine.server.state["theta"] - theirs.server.state["theta"]
    assert float(difference.abs().max()) < 1e-12


@pytest.mark.parametrize(
    "method", [m for m in METHODS if usable(m) and make_method(m).traits.row_messages]
)
def test_clients_that_started_from_different_models_may_train_together(method, monkeypatch):
    agreed = contract(method, dtype=torch.float64)
    together = engine(agreed, "exponential")
    for _ in range(4):
        together.advance()
    monkeypatch.setattr(Host, "stacks", False)
    apart = engine(agreed, "exponential")
    for _ in range(4):
        apart.advance()
    a = of_server(together.server) | of_hosts(together.hosts)
    b = of_server(apart.server) | of_hosts(apart.hosts)
    for n, t in b.items():
        torch.testing.assert_close(a[n], t, rtol=0, atol=1e-12)
    assert together.delays_of_round == apart.delays_of_round


def test_hosts_and_their_number_change_nothing():
    agreed = contract("ditto", dtype=torch.float64)
    states = []
    for count in (1, 2, 3):
        one = engine(agreed, "lognormal", count)
        for _ in range(3):
            one.advance()
        states.append(of_server(one.server) | of_hosts(one.hosts))
    for other in states[1:]:
        for n, t in states[0].items():
            torch.testing.assert_close(other[n], t, rtol=0, atol=1e-12)


# -- what the server accepts -----------------------------------------------------------------------
class Tampered(Arrivals):
    """What arrives of a message is as `tamper` says: (number of the arrival, message) -> list."""

    tamper = None

    def _receive(self, delivery, factors):
        messages = self.tamper(self.server.version, delivery.messages[0])
        super()._receive(replace(delivery, messages=messages, values=1.0), factors)


def nan(message):
    return message[:24] + np.full((len(message) - 24) // 4, np.nan, np.float32).tobytes()


FAULTS = {
    "not finite": lambda m: [nan(m)],
    "size": lambda m: [m[:-1]],
    "round": lambda m: [with_header(m, version=99)],
    "stranger": lambda m: [with_header(m, client=77)],
    "run": lambda m: [with_header(m, run=3)],
    "weight": lambda m: [with_header(m, weight=np.nan)],
    "silent": lambda m: [],
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("channel", ["none", "feedback + lbgm(threshold=0.9) + half"])
def test_a_bad_message_leaves_server_and_client_as_they_were(fault, channel):
    agreed = contract("ditto", channel)
    one = Tampered(server(agreed, sample=1), LocalHosts(hosts(agreed)), None, Pace(3))
    before = []

    def tamper(number, message):
        if number != 5:
            return [message]
        before.append((of_server(one.server), of_hosts(one.hosts), one.arrivals.steps))
        return FAULTS[fault](message)

    one.tamper = tamper
    for number in range(8):
        one.advance()
        if number == 5:
            state, rows, steps = before[0]
            after = of_server(one.server)
            assert all(torch.equal(t, after[n]) for n, t in state.items())
            assert all(torch.equal(t, of_hosts(one.hosts)[n]) for n, t in rows.items())
            assert one.arrivals.steps == steps
            assert one.delays_of_round[0]["counted"] == 0
        balanced(one)
    ledger = one.server.ledger
    assert ledger.selected == 8 and ledger.admitted == 7
    told = {**ledger.rejected, **ledger.missing, **ledger.surplus}
    coded = {"channel"} if channel != "none" else set()  # a body may not make sense in other ways
    assert told.keys() & {fault, *coded} and one.server.version == 8


def test_a_replay_is_counted_and_changes_nothing():
    agreed = contract("fedavg")
    plain = Tampered(server(agreed, sample=CLIENTS), LocalHosts(hosts(agreed)))
    plain.tamper = lambda number, message: [message]
    twice = Tampered(server(agreed, sample=CLIENTS), LocalHosts(hosts(agreed)))
    earlier = []

    def again(number, message):
        earlier.append(message)
        return [message, message, *earlier[:1]]

    twice.tamper = again
    for _ in range(2):
        plain.advance()
        twice.advance()
    assert torch.equal(plain.server.state["w"], twice.server.state["w"])
    refused = twice.server.ledger.surplus
    assert refused["repeated"] == 2 * CLIENTS + 1 and refused["round"] > 0
    assert twice.server.ledger.total("bytes_up") == plain.server.ledger.total("bytes_up")


def test_a_message_that_overflows_the_server_is_absent():
    agreed = contract("fedavg")
    one = Tampered(server(agreed, sample=CLIENTS), LocalHosts(hosts(agreed)))
    huge = np.float32(3e38).tobytes()

    def tamper(number, message):
        return [message if number != 3 else message[:24] + huge * ((len(message) - 24) // 4)]

    one.tamper = tamper
    one.advance()
    assert bool(torch.isfinite(one.server.state["w"]).all())
    assert sum(one.server.ledger.rejected.values()) <= 1
    balanced(one)


def test_robust_rules_combine_a_buffer():
    agreed = contract("fedavg")
    one = Tampered(
        server(agreed, sample=CLIENTS, rule="median"),
        LocalHosts(hosts(agreed)),
    )
    one.arrivals = AsyncServer(one.server, buffer=CLIENTS)
    far = np.float32(1e6).tobytes()
    one.tamper = lambda number, m: [m if number != 2 else m[:24] + far * ((len(m) - 24) // 4)]
    one.advance()
    assert float(one.server.state["w"].abs().max()) < 100


# -- who is at work --------------------------------------------------------------------------------
def test_as_many_are_at_work_as_told_and_a_round_is_sample_arrivals():
    agreed = contract("fedavg")
    for next_client, met in (("same", 2), ("sampled", CLIENTS)):
        one = engine(agreed, "exponential", sample=4, concurrency=2, next_client=next_client)
        for done in range(1, 9):
            one.advance()
            assert len(one.arrivals.busy) == 2 and one.rounds == done
            assert one.server.version == 4 * done and len(one.delays_of_round) == 4
        assert int((one.arrivals.turns > 0).sum()) == met


def test_somebody_else_changes_no_delay_of_a_client():
    delays = parse_delays("lognormal(sigma=1, spread=0.7, slow=0.5)")
    keys = streams.name_keys(["a", "b", "c"])
    turns = np.array([4, 0, 2])
    whole = delays.draw(3, keys, turns)
    alone = [delays.draw(3, keys[[k]], turns[[k]])[0] for k in range(3)]
    assert whole.tolist() == alone


@pytest.mark.parametrize(
    ("text", "mean"),
    [("constant(mean=3)", 3), ("exponential(mean=2)", 2), ("lognormal(sigma=0.5)", 1)],
)
def test_delays_have_the_mean_they_are_told(text, mean):
    keys = streams.name_keys([str(k) for k in range(20_000)])
    drawn = parse_delays(text).draw(0, keys, np.zeros(20_000))
    assert drawn.min() > 0 and abs(drawn.mean() / mean - 1) < 0.03


def test_heavy_tails_and_stragglers():
    keys = streams.name_keys([str(k) for k in range(20_000)])
    none = np.zeros(20_000)
    drawn = parse_delays("pareto(shape=1.5, mean=3)").draw(0, keys, none)
    assert drawn.min() >= 1 and abs((drawn > 4).mean() - 0.25**1.5) < 0.01
    slow = parse_delays("constant(slow=0.1, slowdown=20)").draw(0, keys, none)
    assert set(slow) == {1.0, 20.0} and abs((slow == 20).mean() - 0.1) < 0.01
    unlike = parse_delays("constant(spread=0.5)").draw(0, keys, none)
    assert abs(np.log(unlike).std() - 0.5) < 0.01 and abs(unlike.mean() - 1) < 0.02


def test_a_trace_is_followed_client_by_client(tmp_path):
    file = tmp_path / "delays.csv"
    file.write_text("client,delay\na,1\nb,5\na,2\n")
    delays = parse_delays(f"trace(path={str(file)!r})")
    keys = streams.name_keys(["a", "b", "c"])
    found = [delays.draw(0, keys, np.full(3, n)).tolist() for n in range(3)]
    assert [row[:2] for row in found] == [[1, 5], [2, 5], [1, 5]]
    assert all(row[2] in (1, 2, 5) for row in found)
    for text in ("client\na\n", "delay\n-1\n", "delay\n", "delay\nx\n"):
        file.write_text(text)
        with pytest.raises(il.SettingError, match="delays"):
            parse_delays(f"trace(path={str(file)!r})")
    with pytest.raises(il.SettingError, match="No such file"):
        parse_delays("trace(path='none.csv')")


# -- checkpoints of the engine ---------------------------------------------------------------------
@pytest.mark.parametrize("channel", ["none", "feedback + lbgm(threshold=0.9) + half"])
def test_an_engine_goes_on_from_what_it_saved(channel, tmp_path):
    agreed = contract("ditto", channel)

    def build():
        return engine(agreed, "exponential", sample=4, concurrency=5, buffer=3)

    whole = build()
    for _ in range(6):
        whole.advance()
    first = build()
    for _ in range(2):
        first.advance()
    assert len(first.arrivals.held) == 2  # 8 arrivals: the server steps at every third
    tensors, facts = first.save()
    state = copy.deepcopy(first.server.save())
    for number, host in enumerate(first.hosts):
        host.save(tmp_path / str(number))
    second = build()
    second.server.load(*state)
    second.check({n: (tuple(t.shape), t.dtype) for n, t in tensors.items()}, facts)
    second.load(tensors, facts, 2)
    for number, host in enumerate(second.hosts):
        host.load(tmp_path / str(number))
    for _ in range(4):
        second.advance()
    assert not held(whole).differences(held(second))
    assert whole.time == second.time and whole.delays_of_round == second.delays_of_round


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("flights.wire_ids", lambda t: t + 50),
        ("flights.arrival", lambda t: t * torch.nan),
        ("flights.lengths", lambda t: t + 10**9),
        ("flights.version", lambda t: t + 10**6),
        ("arrivals.bases", lambda t: t + 10**6),
        ("arrivals.busy", lambda t: t - 60),
        ("arrivals.busy", lambda t: t + torch.tensor([60, 0])),
        ("arrivals.busy", lambda t: t.flip(0)),
        ("arrivals.busy", lambda t: t[:1].expand(len(t), 2)),
        ("arrivals.busy", lambda t: t + torch.tensor([0, 5])),
        ("arrivals.busy", lambda t: t - torch.tensor([0, 5])),
        ("arrivals.weights", lambda t: -t),
        ("arrivals.turns", lambda t: t - 100),
        ("arrivals.held", lambda t: t + 60),
        ("arrivals.held", lambda t: t - 60),
        ("arrivals.reference.w", lambda t: t * torch.inf),
        ("arrivals.turns", lambda t: t[:-1]),
        ("arrivals.held", lambda t: torch.arange(9)),
        ("free", lambda t: torch.tensor([99])),
        ("more", lambda t: torch.zeros(1)),
    ],
)
def test_what_no_engine_has_saved_is_refused(name, change):
    agreed = contract("ditto")
    first = engine(agreed, "exponential", sample=4, concurrency=5, buffer=3)
    first.advance()
    tensors, facts = first.save()
    tensors[name] = change(tensors.get(name))
    second = engine(agreed, "exponential", sample=4, concurrency=5, buffer=3)
    second.server.load(*copy.deepcopy(first.server.save()))
    with pytest.raises(ValueError):
        second.check({n: (tuple(t.shape), t.dtype) for n, t in tensors.items()}, facts)
        second.load(tensors, facts, 1)
