"""A server loads what a server of its contract has saved, and nothing else."""

import copy

import pytest
import torch

from engine.loopback import local_rounds
from engine.setting import contract, hosts, server
from idiolect.server.state import check_like
from idiolect.server.step import ServerStep

ADAM = ServerStep("adam", 0.01)
CHANNEL = "feedback + lbgm(threshold=0.9)"


def made(step: ServerStep | None = ADAM):
    return server(contract(channel=CHANNEL), rule="centred-clipping", step=step)


@pytest.fixture(scope="module")
def saved():
    agreed = contract(channel=CHANNEL)
    one = server(agreed, rule="centred-clipping", step=ADAM)
    engine = local_rounds(one, hosts(agreed))
    for _ in range(2):
        engine.advance()
    return one.save()


def test_what_was_saved_is_loaded(saved):
    tensors, facts = saved
    one = made()
    one.load(tensors, facts)
    again, same = one.save()
    assert same == facts and again.keys() == tensors.keys()
    assert all(torch.equal(t, again[n]) for n, t in tensors.items())
    assert any(n.startswith("state.optimizer.") for n in tensors)


def without(tensors, *prefixes):
    return {n: t for n, t in tensors.items() if not n.startswith(prefixes)}


def test_an_optimiser_that_has_not_stepped_yet_has_saved_nothing(saved):
    tensors, facts = saved
    made().load(without(tensors, "state.optimizer."), facts)


def test_state_of_an_optimiser_is_refused_where_there_is_none(saved):
    with pytest.raises(ValueError, match=r"'state.optimizer.\w+' is not expected"):
        made(step=None).load(*saved)


TENSORS = {
    "a vector more": (lambda t: {**t, "state.x": t["state.w"]}, "'state.x' is not expected"),
    "a vector less": (lambda t: without(t, "state.w"), "'state.w' is missing"),
    "a longer vector": (
        lambda t: {**t, "state.w": torch.cat([t["state.w"]] * 2)},
        r"'state.w' is float32\[78\]; float32\[39\] is expected",
    ),
    "half of an optimiser": (
        lambda t: without(t, "state.optimizer.exp_avg_sq"),
        "'state.optimizer.exp_avg_sq' is missing",
    ),
    "an optimiser of another size": (
        lambda t: {**t, "state.optimizer.exp_avg": torch.zeros(4)},
        r"'state.optimizer.exp_avg' is float32\[4\]",
    ),
    "steps of an optimiser before the first": (
        lambda t: {**t, "state.optimizer.step": torch.tensor(-1e30)},
        "more steps than there were rounds",
    ),
    "steps of an optimiser to come": (
        lambda t: {**t, "state.optimizer.step": torch.tensor(3.0)},
        "more steps than there were rounds",
    ),
    "NaN": (lambda t: {**t, "state.w": t["state.w"] * torch.nan}, "not finite"),
    "NaN in the rule": (
        lambda t: {n: v * torch.nan if n.startswith("rule.") else v for n, v in t.items()},
        "not finite",
    ),
    "another dtype": (lambda t: {**t, "state.w": t["state.w"].double()}, "float64"),
    "negative counts": (lambda t: {**t, "ledger.bytes_up": -t["ledger.bytes_up"]}, "a count is"),
    "counts without end": (
        lambda t: {**t, "ledger.bytes_up": torch.full_like(t["ledger.bytes_up"], 2**62)},
        "a count is",
    ),
    "other samples": (
        lambda t: {**t, "roster.samples": t["roster.samples"] + 1},
        "another number of training samples",
    ),
    "a memory of the future": (
        lambda t: {**t, "memory.version": t["memory.version"] + 5},
        "a round that is not done",
    ),
    "a memory of something else": (
        lambda t: {**t, "memory.rows./tmp/x": t["memory.version"]},
        "'rows./tmp/x' is not expected",
    ),
}


@pytest.mark.parametrize(("change", "says"), TENSORS.values(), ids=TENSORS.keys())
def test_other_tensors_are_refused_and_the_server_stays_as_it_was(change, says, saved):
    tensors, facts = saved
    one = made()
    before = {n: t.clone() for n, t in one.save()[0].items()}
    with pytest.raises(ValueError, match=says):
        one.load(change(dict(tensors)), facts)
    after = one.save()[0]
    assert all(torch.equal(t, after[n]) for n, t in before.items()) and one.version == 0


FACTS = {
    "a version that is a text": (("version",), "2", "version must be a whole number, got a text"),
    "a version before the first": (("version",), -1, "got -1"),
    "a version that is true": (("version",), True, "true or false"),
    "other clients": (("clients", "ids", 0), "somebody else", "these are other clients"),
    "a client twice": (("clients", "ids"), ["client 0"] * 6, "these are other clients"),
    "clients that are lists": (("clients", "ids", 0), [], "whole numbers or texts"),
    "counts that are texts": (
        ("ledger", "admitted"),
        "8",
        "ledger.admitted must be a whole number, got a text",
    ),
    "reasons that are a list": (
        ("ledger", "rejected"),
        [],
        "ledger.rejected must be an object, got a list",
    ),
    "reasons counted in texts": (
        ("ledger", "rejected"),
        {"size": "1"},
        "must be a whole number, got a te",
    ),
    "a field more": (("more",), 1, "'more' in server is not expected"),
}


@pytest.mark.parametrize(("place", "value", "says"), FACTS.values(), ids=FACTS.keys())
def test_other_facts_are_refused(place, value, says, saved):
    tensors, facts = saved
    facts = copy.deepcopy(facts)
    holder = facts
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    with pytest.raises(ValueError, match=says):
        made().load(tensors, facts)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            {"version": -1, "ids": [], "counts": {}},
            "it.version must be a whole number >= 0, got -1",
        ),
        ({"version": 0, "ids": [1, None], "counts": {}}, "it.ids must be a list of whole numbers"),
        ({"version": 0, "ids": [1.5], "counts": {}}, "it.ids must be a list of whole numbers"),
        (
            {"version": 0, "ids": [], "counts": {"size": "1"}},
            "it.counts.size must be a whole number, got a text",
        ),
        (
            {"version": 0, "ids": [], "counts": {"size": -2}},
            "it.counts.size must be a whole number >= 0, got -2",
        ),
        ({"version": 0, "ids": []}, "the key 'counts' in it is missing"),
        ([], "must be an object, got a list"),
    ],
)
def test_plain_data_are_built_as_their_pattern_to_the_last_level(value, says):
    pattern = {"version": 0, "ids": [], "counts": {}}
    check_like({"version": 0, "ids": [1, "a"], "counts": {"size": 1}}, pattern)
    with pytest.raises(ValueError, match=says):
        check_like(value, pattern)
