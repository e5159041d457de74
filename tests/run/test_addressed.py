"""Messages to single clients: who gets them, what they cost, and what they go together with."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from engine.setting import CLIENTS, EVERYONE, Network, of_server, session
from helpers import by_turns, classification, private_of
from idiolect.methods import make_method
from idiolect.testing import federation, server_rows_of, state_of
from idiolect.wire import messages as wire
from idiolect.wire.messages import HEADER

DATA = federation()
ADDRESSED = ["fedamp", "pfedhn", "cfl", "fedfomo", "pfedgraph", "fedpac"]
every_method = pytest.mark.parametrize("name", ADDRESSED)
# in `make test` the method whose messages and rows have most parts
one_in_short = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "fedfomo" else pytest.mark.slow) for n in ADDRESSED],
)


def run(name, data=DATA, module=lambda: nn.Linear(5, 3), **settings):
    usual = {"rounds": 3, "sample": 3, "batch": 8, "eval_every": 0, "dtype": "float64"}
    method = make_method(name)
    if method.traits.hears_all:
        usual["sample"] = 0
    return il.run(method, il.Task(module), data, **usual | settings)


def same_models(one, other):
    assert torch.equal(one.session().personal_rows(), other.session().personal_rows())
    for state in (state_of, server_rows_of, private_of):
        mine, its = state(one), state(other)
        assert mine.keys() == its.keys()
        assert all(torch.equal(t, its[n]) for n, t in mine.items())


# -- one client's message --------------------------------------------------------------------------
@every_method
def test_a_client_is_sent_its_own_row_and_nothing_of_others(name):
    made = session(name)
    for _ in range(2):
        made.engine.advance()
    server, contract = made.server, made.contract
    down = server.message(server.version, EVERYONE)
    rows = contract.method.address(contract.task, server.method_state(), EVERYONE)
    assert len(down.own) == CLIENTS
    for k in range(CLIENTS):
        mine = down.only(torch.tensor([k]))
        head = wire.header(mine.own)
        assert mine.wire_ids.tolist() == [k] == head["client"].tolist()
        assert mine.own.shape == (1, contract.addressed.length)
        state = wire.unpack(contract.addressed, mine.own[:, HEADER.itemsize :])
        assert all(torch.equal(t[0], rows[n][k]) for n, t in state.items())


@every_method
def test_a_host_cannot_open_the_message_of_another_ones_client(name):
    made = session(name, hosts=2)
    first, second = made.hosts
    down = made.server.message(0, first.wire_ids)
    first.evaluate(0, down, first.wire_ids, ("test",))
    with pytest.raises(ValueError, match="a client has been sent none of its own"):
        second.evaluate(0, down, second.wire_ids, ("test",))
    with pytest.raises(ValueError, match=r"client is \d+, expected \d+"):
        stolen = wire.DownMessage(down.common, second.wire_ids, down.own[: len(second.wire_ids)])
        second.evaluate(0, stolen, second.wire_ids, ("test",))


@every_method
def test_the_ledger_counts_what_each_client_was_sent(name):
    result = run(name, rounds=4)
    server = result.session().server
    contract = server.contract
    of_head = getattr(contract.method, "head_steps", 0)
    asked = server.ledger.counts["gradients"] // (contract.method.steps + of_head)
    assert asked.sum() == 4 * (CLIENTS if contract.method.traits.hears_all else 3)
    each = contract.down.length + contract.addressed.length
    sent = {row["client"]: row["bytes_down"] for row in result.clients_table()}
    assert list(sent.values()) == (each * asked).tolist()
    numbers = sum(int(np.prod(shape)) for _, shape, _ in contract.addressed.parts)
    assert contract.addressed.length == 24 + 8 * numbers


@every_method
def test_a_rejected_message_leaves_what_the_server_keeps_of_its_client(name):
    """As if the client had been absent."""

    def behind(tamper):
        made = session(name)
        made.engine.advance()
        made.engine.group.hosts[:] = [Network(h, tamper) for h in made.engine.group.hosts]
        before = made.server.rows.all()["models"][1].clone() if name == "fedamp" else None
        made.engine.advance()
        return made, before

    def broken(version, messages):
        return [spoilt(m) if client_of(m) == 1 else m for m in messages]

    def missing(version, messages):
        return [m for m in messages if client_of(m) != 1]

    rejected, before = behind(broken)
    absent, _ = behind(missing)
    assert sum(rejected.server.ledger.rejected.values()) == 1
    mine, its = of_server(rejected.server), of_server(absent.server)
    assert all(torch.equal(t, its[n]) for n, t in mine.items())
    if before is not None:
        assert torch.equal(rejected.server.rows.all()["models"][1], before)


def client_of(message: bytes) -> int:
    return int(np.frombuffer(message[:24], dtype=wire.HEADER)["client"][0])


def spoilt(message: bytes) -> bytes:
    return message[:24] + np.full((len(message) - 24) // 4, np.nan, np.float32).tobytes()


# -- runs ------------------------------------------------------------------------------------------
@one_in_short
def test_worker_processes_give_the_same_bits(name):
    module = nn.Linear(5, 3)  # a worker process can be sent it
    here, there = (
        run(name, module=module, hosts=2, engine=engine) for engine in ("local", "processes")
    )
    same_models(here, there)
    assert here.summary()["bytes"] == there.summary()["bytes"]


@every_method
def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(name, tmp_path):
    class Stopped(Exception):
        pass

    def stop(moment):
        if moment.round == 3:
            raise Stopped

    whole = run(name, rounds=5)
    saving = {"rounds": 5, "directory": tmp_path / "run", "checkpoint_every": 1}
    with pytest.raises(Stopped):
        run(name, **saving, on_round=stop)
    same_models(run(name, **saving, resume=True), whole)


@every_method
def test_new_clients_get_what_held_out_clients_get(name):
    """The same clients, held out of training, and new to a run without them: the same models."""
    everyone = classification(sizes=(20,) * 6, features=5)
    held = run(name, everyone, held_out=2, held_out_rounds=4)
    out = [row["client"] for row in held.clients_table() if row["held_out"]]
    inside = [k for k in range(6) if k not in out]
    new = run(name, everyone.of(inside)).personalise(everyone.of(out), rounds=4)
    assert [row["client"] for row in new.clients_table()] == out
    for client in out:
        torch.testing.assert_close(new.personal(client).weight, held.personal(client).weight)


@every_method
def test_held_out_clients_change_nothing_for_the_others(name):
    everyone = classification(sizes=(20,) * 6, features=5)
    held = run(name, everyone, held_out=2, held_out_rounds=2)
    out = [row["client"] for row in held.clients_table() if row["held_out"]]
    inside = [k for k in range(6) if k not in out]
    alone = run(name, everyone.of(inside))
    for client in inside:
        assert torch.equal(held.personal(client).weight, alone.personal(client).weight)


# -- channels --------------------------------------------------------------------------------------
@every_method
def test_a_channel_without_loss_changes_nothing(name):
    plain, coded = run(name), run(name, channel="topk(share=1.0)")
    torch.testing.assert_close(
        plain.session().personal_rows(), coded.session().personal_rows(), rtol=1e-12, atol=1e-12
    )


@dataclass(frozen=True)
class Echo(il.Method):
    """Each client is sent the model that it sent last, and sends one that is further by 1."""

    lr: float = il.knob(1.0, "how much further", above=0)

    traits = il.Traits(linear=False, uncombined="each client has a sum of its own")

    def server(self, task):
        return {}

    def server_rows(self, task, clients):
        return {"model": torch.full((len(clients), task.d), 1000.1, dtype=task.dtype)}

    def broadcast(self, task, server):
        return {}

    def address(self, task, server, clients):
        return {"w": server["model"][clients]}

    def update(self, task, down, private, here):
        return {"w": down["w"] + self.lr}, private

    def aggregate(self, task, server, up, rule):
        return {"model": up["w"]}

    def personal(self, task, down, private, here):
        return down["w"]


@pytest.mark.parametrize("channel", ["half", "feedback + sign"])
def test_a_channel_codes_the_difference_to_what_that_client_was_sent(channel):
    """A difference of ones is exact in few bits; the models, another for each client, are not."""
    settings = {"rounds": 3, "sample": 3, "eval_every": 0, "dtype": "float64"}
    task = il.Task(lambda: nn.Linear(5, 3))
    result = il.run(Echo(), task, DATA, channel=channel, **settings)
    rows = server_rows_of(result)["model"]
    assert len(rows.unique()) > 2
    times_heard = (rows - 1000.1).round()
    assert times_heard.sum() == 3 * 3 * rows.shape[1]
    torch.testing.assert_close(rows, 1000.1 + times_heard, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "channel"), by_turns(ADDRESSED, ["qsgd(levels=7)", "feedback + topk(share=0.3)"])
)
def test_a_method_learns_through_a_channel(name, channel):
    before = run(name, rounds=0).summary()["loss"]["mean"]
    result = run(name, rounds=10, channel=channel, sample=0)
    assert result.summary()["loss"]["mean"] < 0.8 * before
    plain = (
        10 * CLIENTS * (24 + 8 * sum(make_method(name).message(il.Task(nn.Linear(5, 3))).values()))
    )
    assert result.summary()["bytes"]["up"] < plain


# -- what is refused -------------------------------------------------------------------------------
COMBINED = ["cfl"]  # those whose server combines messages by the rule


@every_method
@pytest.mark.parametrize("rule", ["median", "krum(f=0)", "trimmed-mean(f=1)"])
def test_rules_other_than_the_mean_are_refused_where_nothing_is_combined(name, rule):
    if name in COMBINED:
        assert np.isfinite(run(name, rule=rule).summary()["loss"]["mean"])
        return
    reason = make_method(name).traits.uncombined
    with pytest.raises(il.SettingError, match=rf"rule must be 'mean' for {name}, got .*{reason}"):
        run(name, rule=rule)


@every_method
def test_asynchronous_training_is_refused_with_the_reason(name):
    with pytest.raises(
        il.SettingError, match=f"timing must be 'rounds' for {name}, got 'arrivals'"
    ):
        run(name, timing="arrivals")


@every_method
def test_a_channel_that_decodes_a_sum_is_refused(name):
    with pytest.raises(il.SettingError, match="channel must decode each message by itself"):
        run(name, channel="sketch(columns=5, rows=3, k=2)")


# -- memory ----------------------------------------------------------------------------------------
def test_fedamp_with_a_thousand_clients_needs_n_d_and_n_n_numbers_and_not_n_n_d():
    """All that is allocated for the messages to all of them at once: N² d would be 512 MB."""
    n, d = 1000, 128
    task = il.Task(lambda: nn.Linear(d - 1, 1), "mse").under(seed=0)
    server = {"models": torch.randn(n, d), "heard": torch.ones(n, 1)}
    for name in ("fedamp", "heurfedamp"):
        with torch.profiler.profile(profile_memory=True) as profile:
            make_method(name).address(task, server, torch.arange(n))
        allocated = sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())
        assert 4 * n * (n + d) < allocated < 4 * (20 * n * d + 12 * n * n)
