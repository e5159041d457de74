"""Nothing private leaves a host: only declared messages, and no data that must not matter in them.

`check_method` makes the same checks without a channel; here are channels, attacks and second
exchanges, what of a private row shows in a message, and hosts and methods that leak and are caught.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from host.leaks import CheckedHost, Undeclared, checked_hosts
from idiolect import FedAvg
from idiolect.core.knobs import build
from idiolect.data.federation import SPLITS
from idiolect.engine.carriers.local import LocalHosts
from idiolect.host.host import Host
from idiolect.methods import METHODS, make_method
from idiolect.run.prepare import prepare
from idiolect.run.session import Session
from idiolect.run.settings import Settings
from idiolect.testing import check_method, federation, task
from idiolect.testing.twins import other_rows
from idiolect.wire.ragged import Ragged

FEDERATION = federation()
EVERYONE = torch.arange(FEDERATION.clients)
EXACT = "sketch(columns=5, rows=3, k=2, exact=True)"  # has a second exchange
CHANNELS = (
    "half",
    "qsgd(levels=4, bucket=10, coding=elias)",
    "feedback + topk(share=0.2)",
    "feedback + lbgm(threshold=0.9) + half",
    "dgc(sparsity=0.8)",
    "sketch(columns=5, rows=3, k=4)",
    EXACT,
)
SMALL = {name: {"dim": 6} for name in ("lp-proj", "lp-proj-1", "lp-proj-2")}
SMALL |= {"gpfl": {"steps": 3}}
# The parts of a private row that shape its client's messages. What is not named stays where it is.
SHOWN = {
    "fedprox-soft": {"x"},
    "lp-proj": {"x"},
    "lp-proj-1": {"x"},
    "lp-proj-2": {"x"},
    "pfedme": {"x"},
    "lg-fedavg": {"w"},
    "rsa": {"x"},
    "l2gd": {"x"},
    "scaffold": {"c"},
    "scaffnew": {"h", "x", "rate"},
    "feddeper": {"v"},
    "fedamp": {"w"},
    "heurfedamp": {"w"},
    "fedfomo": {"w"},
    "feddeper*": {"v"},
    "fedalt": {"w"},
    "fedsim": {"w"},
    "fedper": {"w"},
    "fedrep": {"w"},
    "fedala": {"top", "weights", "trainings"},
    "feddyn": {"g"},
    "fedsplit": {"z"},
    "moon": {"last"},
    "fedproto": {"w"},
    "fedtgp": {"w"},
    "fedmd": {"w"},
    "fml": {"v"},
    "fedem": {"pi"},
    "gpfl": {"head"},
    "pfedbayes": {"q"},
}


def session(name, **settings):
    method = make_method(name, **SMALL.get(name, {})) if isinstance(name, str) else name
    usual = {"sample": 0 if method.traits.hears_all else 4, "batch": 8, "hosts": 2, "chunk": 1}
    all_settings = build(Settings, usual | settings, "run")
    return Session(prepare(method, task(), FEDERATION, all_settings), 0, 7)


def train(made, hosts, rounds=2):
    """Rounds and evaluations with nothing between server and hosts; all bytes are counted."""
    made.engine.group = LocalHosts(hosts)
    for _ in range(rounds):
        made.engine.advance()
        made.engine.evaluate(EVERYONE, SPLITS)
        made.engine.evaluate_shared(SPLITS)
    sent = sum(len(message) for host in hosts for message in host.sent)
    assert sent == made.server.ledger.total("bytes_up")


# -- sound ones ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", METHODS)
def test_only_declared_messages_leave_the_hosts_of_a_method_under_attack(name):
    """Through a second exchange, where there is a sum of messages to ask about."""
    plain = session(name)
    channel = "none" if plain.contract.addresses else EXACT
    made = session(name, channel=channel, attack="alie", malicious=2)
    train(made, checked_hosts(made, FEDERATION))


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_only_declared_messages_leave_hosts_through_a_channel(name, channel):
    attack = {"attack": "gaussian", "malicious": 2} if name == "scaffold" else {}
    made = session(name, channel=channel, **attack)
    train(made, checked_hosts(made, FEDERATION))


def test_only_losses_leave_hosts_whose_clients_are_asked_for_them():
    made = session("scaffold", sample=2, selection="power-of-choice(candidates=4)")
    train(made, checked_hosts(made, FEDERATION))


@pytest.mark.parametrize("name", METHODS)
def test_the_parts_of_a_private_row_that_shape_messages_are_known(name):
    made = session(name, hosts=1)
    (host,) = made.hosts
    parts = list(made.contract.method.private(made.contract.task, host.keys))
    shown = set()
    for _ in range(2):
        order = made.server.open().order
        sent = [messages_of(made, host, order, changed) for changed in [None, *parts]]
        shown |= {
            part for part, messages in zip(parts, sent[1:], strict=True) if messages != sent[0]
        }
        made.engine.advance()
    assert shown == SHOWN.get(name, set())


def messages_of(made, host, order, changed: str | None) -> bytes:
    """What clients with these private rows send, where one part of them is another."""
    host.store.read(EVERYONE)
    twin = Host(made.contract, FEDERATION, host.wire_ids, host.settings)
    twin.store.load({name: t.clone() for name, t in host.store.save().items()})
    other_rows(twin.store, EVERYONE, [changed] if changed else [])
    return twin.update(order).messages.matrix.tobytes()


# -- leaks -----------------------------------------------------------------------------------------
def test_a_method_whose_messages_depend_on_test_data_is_caught():
    @dataclass(frozen=True)
    class Testing(FedAvg):
        def update(self, task, down, private, here):
            up, private = super().update(task, down, private, here)
            everything = here._batches.inputs  # of all clients and splits of the host
            return {"w": up["w"] + 1e-6 * everything[-1].sum()}, private  # test data come last

    caught_in_a_run(Testing(), "depend on test data")


def test_a_method_that_hides_a_private_row_of_another_client_in_the_last_bits_is_caught():
    @dataclass(frozen=True)
    class Hiding(FedAvg):
        def update(self, task, down, private, here):
            up, private = super().update(task, down, private, here)
            sample = here._batches.inputs[0]  # the first client's
            w = up["w"].clone()
            bits = w.view(torch.int32 if w.dtype == torch.float32 else torch.int64)
            bits[:, : len(sample)] = (bits[:, : len(sample)] & ~1) | (sample > 0.5)
            return {"w": w}, private

    caught_in_a_run(Hiding(), "depend on what is another client's")


def caught_in_a_run(method, words):
    with pytest.raises(AssertionError):
        check_method(method)
    made = session(method)
    with pytest.raises(AssertionError, match=f"messages {words}"):
        train(made, checked_hosts(made, FEDERATION))


def longer(sent):
    matrix = np.pad(sent.messages.matrix, ((0, 0), (0, 4)), constant_values=7)
    return replace(sent, messages=Ragged.even(matrix))


def padded(sent):
    """A private value behind the end of the messages, where nobody looks."""
    return replace(sent, messages=Ragged(longer(sent).messages.matrix, sent.messages.lengths))


def behind_one(sent):
    """The same in the room that a longer message leaves."""
    lengths = sent.messages.lengths - np.eye(len(sent.messages), dtype=np.int64)[0]
    return replace(sent, messages=Ragged(sent.messages.matrix, lengths))


def beside(sent):
    object.__setattr__(sent, "rows", torch.ones(3))
    return sent


def behind(sent):
    """A tensor that is a slice of a larger one: whoever pickles it sends all of it."""
    return replace(sent, gradients=torch.cat([sent.gradients, torch.ones(9).long()])[:-9])


def weighty(sent):
    """The weight of a header says something else than the number of samples."""
    matrix = sent.messages.matrix.copy()
    matrix[:, 20:24] = np.frombuffer(np.float32(3.25).tobytes(), dtype=np.uint8)
    return replace(sent, messages=Ragged.even(matrix))


def counted(sent):
    return replace(sent, values=sent.values + 2.0**-40)


LEAKS = {
    longer: "more than 180 bytes",
    padded: "an array of other form",
    behind_one: "behind the end",
    beside: "HostUpdate with",
    behind: "part of a larger",
    weighty: "a header",
    counted: "a number of values",
}


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.__name__)
def test_a_host_that_sends_more_than_the_declared_messages_is_caught(leak):
    class Leaking(Host):
        def update(self, order):
            return leak(super().update(order))

    made = session("fedavg", hosts=1)
    host = Leaking(made.contract, FEDERATION, EVERYONE, made.hosts[0].settings)
    order = made.server.open().order
    with pytest.raises(Undeclared, match=LEAKS[leak]):
        CheckedHost(host).update(order)


def test_a_host_that_hands_out_rows_at_the_end_of_a_round_is_caught():
    class Talkative(Host):
        def conclude(self, verdict):
            super().conclude(verdict)
            return self.store.read(EVERYONE)

    made = session("ditto", hosts=1)
    host = Talkative(made.contract, FEDERATION, EVERYONE, made.hosts[0].settings)
    with pytest.raises(Undeclared, match="end of a round"):
        train(made, [CheckedHost(host)])


def test_a_host_whose_scores_hold_more_than_counts_is_caught():
    class Scoring(Host):
        def evaluate(self, version, message, wire_ids, splits):
            found = super().evaluate(version, message, wire_ids, splits)
            return {s: replace(one, hits=one.hits + 0.125) for s, one in found.items()}

    made = session("ditto", hosts=1)
    host = Scoring(made.contract, FEDERATION, EVERYONE, made.hosts[0].settings)
    with pytest.raises(Undeclared, match="no whole numbers"):
        train(made, [CheckedHost(host)])


def test_a_host_that_hides_a_private_row_in_the_last_bits_is_caught():
    """Its twin is an honest host with the same rows."""

    class Hiding(Host):
        def leaving(self, exchange, rows, up, reference):
            secret = self.store.read(rows)["v"].sign()
            return {"w": up["w"] * (1 + torch.finfo(torch.float32).eps * secret)}

    made = session("ditto", hosts=1)
    made.hosts = [Hiding(made.contract, FEDERATION, EVERYONE, made.hosts[0].settings)]
    with pytest.raises(AssertionError, match="messages depend on"):
        train(made, checked_hosts(made, FEDERATION))
