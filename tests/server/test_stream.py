"""Messages that are summed as they arrive give what messages that are held give."""

import signal
from importlib import import_module

import numpy as np
import pytest
import torch

import idiolect as il
from engine.setting import CLIENTS, EXACT, contract, hosts, of_server, server
from helpers import by_turns
from idiolect.channels import parse_channel
from idiolect.methods import METHODS, make_method
from idiolect.server.protocol import Contract
from idiolect.server.rules import parse_rule
from idiolect.server.server import Server
from idiolect.server.step import ServerStep
from idiolect.server.streaming_mean import StreamingPlan, largest_number
from idiolect.testing import federation, task

CHANNELS = ("none", "qsgd(levels=8)", "feedback + topk(share=0.5)", "sketch(columns=5, rows=3)")
ADAM = ServerStep("adam", 0.01)
MOMENTUM = ServerStep("sgd", 1.0, "momentum=0.9")


def small(at: Server) -> Server:
    """With so little memory that messages are summed as they arrive."""
    at.plan = StreamingPlan.of(at.contract, at.rule, at.sample, 0)
    assert at.plan.streams, at.plan.reason
    return at


def advance(at: Server, host, batches: int = 3, tamper=lambda k, m: m) -> None:
    round = at.open(factors={"rates": 0.5})
    sent = host.update(round.order)
    messages = [tamper(k, sent.messages.row(k)) for k in range(len(sent.messages))]
    for some in np.array_split(np.arange(len(messages))[::-1], batches):
        at.receive(round, [messages[k] for k in some], sent.values[some])
    while queries := at.ask(round):
        for query in queries:
            at.receive_answer(round, query.part, host.answer(query))
    host.conclude(at.close(round))


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for n, t in a.items():
        torch.testing.assert_close(t, b[n], rtol=1e-9, atol=1e-12, msg=lambda m, n=n: f"{n}: {m}")


def streaming(name: str) -> bool:
    method = make_method(name)
    return method.traits.can_stream and bool(method.message(method.extended(task())))


@pytest.mark.parametrize(
    ("name", "channel"), by_turns([n for n in METHODS if streaming(n)], [*CHANNELS, EXACT])
)
def test_a_summed_round_is_a_held_round(name, channel):
    agreed = contract(name, channel=channel, dtype=torch.float64)
    plan = StreamingPlan.of(agreed, parse_rule("mean"), CLIENTS, 0)
    if not plan.streams:  # votes go around a sketch
        assert "goes around" in plan.reason
        return
    one, other = (hosts(agreed, 1)[0] for _ in range(2))
    held = server(agreed, sample=CLIENTS, step=MOMENTUM)
    summed = small(server(agreed, sample=CLIENTS, step=MOMENTUM))
    for _ in range(3):
        advance(held, one)
        advance(summed, other)
        close(of_server(held), of_server(summed))
    assert held.ledger.last == summed.ledger.last


@pytest.mark.parametrize("weighting", ["samples", "equal", "unbiased"])
@pytest.mark.parametrize("rule", ["mean", "mean(weighted=False)"])
def test_sums_are_weighed_as_the_mean_is(weighting, rule):
    bound = task().under(dtype=torch.float64)
    agreed = Contract(il.FedAvg(weighting=weighting), bound, parse_channel("none"), 7)
    one, other = (hosts(agreed, 1)[0] for _ in range(2))
    held = server(agreed, sample=CLIENTS, rule=rule)
    summed = small(server(agreed, sample=CLIENTS, rule=rule))
    advance(held, one)
    advance(summed, other)
    close(of_server(held), of_server(summed))


def test_a_rejected_message_is_not_in_the_sum():
    agreed = contract("fedavg", dtype=torch.float64)
    one, other = (hosts(agreed, 1)[0] for _ in range(2))
    bad = small(server(agreed, sample=CLIENTS))
    absent = small(server(agreed, sample=CLIENTS))

    def spoil(k, message):
        return message[:24] + np.float64("nan").tobytes() + message[32:] if k == 2 else message

    advance(bad, one, 1, spoil)
    advance(absent, other, 1, lambda k, message: b"" if k == 2 else message)
    assert bad.ledger.last.rejected == {"not finite": 1}
    ours, theirs = of_server(bad), of_server(absent)
    assert all(torch.equal(t, theirs[n]) for n, t in ours.items())


def test_a_number_that_would_overflow_is_refused_on_arrival():
    """1e200 squared is no number of float64; from a sum nobody could tell who sent it."""
    agreed = contract("fedavg", dtype=torch.float64)
    (host,) = hosts(agreed, 1)
    at = small(server(agreed, sample=CLIENTS, step=ADAM))

    def spoil(k, message):
        return message[:24] + np.float64(1e200).tobytes() + message[32:] if k == 2 else message

    advance(at, host, 2, spoil)
    assert at.ledger.last.rejected == {"overflow": 1} and at.ledger.last.admitted == CLIENTS - 1
    assert all(torch.isfinite(t).all() for t in at.state.values())


def test_nobody_heard_leaves_the_server_as_it_is():
    agreed = contract("fedavg")
    (host,) = hosts(agreed, 1)
    at = small(server(agreed, sample=CLIENTS))
    before = of_server(at)
    advance(at, host, 1, lambda k, message: b"")
    after = of_server(at)
    assert all(torch.equal(t, after[n]) for n, t in before.items())


# -- which runs do ---------------------------------------------------------------------------------
RULES = ("mean", "median", "krum(f=1)", "trimmed-mean(f=1)", "norm-bound + mean", "nnm + mean")


@pytest.mark.parametrize("rule", RULES)
def test_only_the_mean_can_be_summed(rule):
    plan = StreamingPlan.of(contract("fedavg"), parse_rule(rule), CLIENTS, 0)
    assert plan.streams == (rule == "mean") and bool(plan.reason) == (rule != "mean")


def test_a_cohort_that_fits_is_held():
    agreed = contract("fedavg")
    bytes = CLIENTS * agreed.task.d * 4
    assert StreamingPlan.of(agreed, parse_rule("mean"), CLIENTS, bytes) == StreamingPlan(bytes)
    assert StreamingPlan.of(agreed, parse_rule("mean"), CLIENTS, bytes - 1) == StreamingPlan(
        bytes, True
    )


@pytest.mark.parametrize(
    ("method", "channel", "reason"),
    [
        ("rsa", "none", "needs all messages"),
        ("fedavg", "lbgm(threshold=0.5)", "remembers the last message"),
    ],
)
def test_what_cannot_be_summed_says_why(method, channel, reason):
    plan = StreamingPlan.of(contract(method, channel=channel), parse_rule("mean"), CLIENTS, 0)
    assert not plan.streams and reason in plan.reason


def test_a_run_with_little_memory_gives_the_result_of_one_with_much():
    results = [
        il.run(
            il.FedAvg(), task(), federation(), rounds=4, sample=5, dtype="float64", memory=memory
        )
        for memory in (1.0, 1e-7)
    ]
    servers = [r.session().server for r in results]
    assert [s.plan.streams for s in servers] == [False, True]
    torch.testing.assert_close(servers[0].state["w"], servers[1].state["w"], rtol=1e-9, atol=1e-12)


def test_a_rule_that_needs_more_memory_than_there_is_says_so_before_the_run(capsys):
    il.run(il.FedAvg(), task(), federation(), rounds=1, rule="median", memory=1e-7)
    warning = capsys.readouterr().err
    assert "memory: the messages of a round take" in warning and "'median'" in warning


def test_a_rule_that_needs_more_memory_than_the_machine_has_is_refused(monkeypatch):
    monkeypatch.setattr(import_module("idiolect.run.prepare"), "physical_memory", lambda: 100)
    with pytest.raises(il.SettingError, match=r"memory: the messages of a round take .* machine"):
        il.run(il.FedAvg(), task(), federation(), rounds=1, rule="median", memory=1e-7)
    il.run(il.FedAvg(), task(), federation(), rounds=1, memory=1e-7)  # the mean needs less


def test_a_resumed_run_sums_its_messages_if_it_was_begun_so(tmp_path):
    """With the same memory to the same bits; with another, sums have other groups."""
    given = {"rounds": 4, "sample": 5, "dtype": "float64"}

    def stop(seed, rounds, accuracy):
        if rounds == 2:
            signal.raise_signal(signal.SIGINT)

    def run(memory, **more):
        return il.run(il.FedAvg(), task(), federation(), memory=memory, **given, **more)

    for begun, resumed in ((1e-7, 1e-7), (1e-7, 1.0), (1.0, 1e-7)):
        folder = tmp_path / f"{begun}-{resumed}"
        with pytest.raises(KeyboardInterrupt):
            run(begun, directory=folder, progress=stop)
        result = run(resumed, directory=folder, resume=True)
        assert result.session().server.plan.streams == (begun < 1)
        whole = run(begun).session().server.state["w"]
        ours = result.session().server.state["w"]
        assert torch.equal(ours, whole) if begun == resumed else torch.allclose(ours, whole, 1e-9)


def test_sums_are_not_loaded_where_the_rule_needs_all_messages():
    agreed = contract("fedavg")
    at = server(agreed, sample=CLIENTS, rule="median")
    tensors, facts = at.save()
    with pytest.raises(ValueError, match="cannot have been summed"):
        at.load(tensors, facts | {"sums": True})


def test_a_method_may_call_the_rule_more_than_once():
    class Twice(il.FedAvg):
        def aggregate(self, task, server, up, rule):
            first = rule({"w": 2 * up["w"]})["w"]
            equal = rule(up, torch.ones_like(rule.samples))["w"]
            return {"w": first - equal + rule.heard}

    bound = task().under(dtype=torch.float64)
    agreed = Contract(Twice(), bound, parse_channel("none"), 7)
    one, other = (hosts(agreed, 1)[0] for _ in range(2))
    held = server(agreed, sample=CLIENTS)
    summed = small(server(agreed, sample=CLIENTS))
    advance(held, one)
    advance(summed, other)
    close(of_server(held), of_server(summed))


def test_the_largest_number_that_may_be_summed_leaves_the_server_finite():
    agreed = contract("fedavg")
    most = np.float32(largest_number(torch.float32))
    for value, fate in ((most, {}), (np.nextafter(most, np.float32(np.inf)), {"overflow": 1})):
        (host,) = hosts(agreed, 1)
        at = small(server(agreed, sample=CLIENTS, step=ADAM))

        def spoil(k, message, value=value):
            return message[:24] + value.tobytes() + message[28:] if k == 2 else message

        advance(at, host, 1, spoil)
        assert at.ledger.last.rejected == fate
        assert all(torch.isfinite(t).all() for t in at.state.values())
