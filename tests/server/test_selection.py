"""Who is heard: uniform samples as ever, and the candidates with the largest losses."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import helpers
import idiolect as il
from engine.loopback import Loopback, local_rounds, remote_rounds
from engine.setting import CLIENTS, contract, held, hosts, server
from idiolect.core import streams
from idiolect.host.service import Service
from idiolect.methods.fedavg import FedAvg
from idiolect.run.settings import Settings
from idiolect.server.selection import (
    ANSWER,
    CandidateLosses,
    ClientSelection,
    Pool,
    PowerOfChoice,
    Uniform,
    parse_selection,
    select,
    selection_text,
)
from methods.common import assert_leaves
from reference import setting
from reference.fedavg import fedavg
from reference.selection import chances, power_of_choice
from reference.setting import MODELS, ROUNDS, SAMPLE, SEED, SIZES

N = len(SIZES)


@pytest.fixture(scope="module")
def federation():
    return setting.make_federation()


def pool(data, sample, number=0, seed=0) -> Pool:
    data = torch.as_tensor(data).double()
    keys = streams.name_keys([f"client {k}" for k in range(len(data))])
    return Pool(seed, number, keys, torch.arange(len(data)), data, sample)


# -- uniform ---------------------------------------------------------------------------------------
def test_selection_depends_on_nobody_who_is_not_there():
    """Who is chosen among the others is the same with and without a client that has left."""
    keys = streams.name_keys([f"client {k}" for k in range(9)])
    everyone = torch.arange(9)
    for round in range(20):
        three = select(0, round, keys, everyone, 3).tolist()
        four = select(0, round, keys, everyone, 4).tolist()
        assert set(three) < set(four) and three == sorted(three)
        without = everyone[everyone != three[0]]
        assert set(select(0, round, keys, without, 3).tolist()) == set(four) - {three[0]}


def test_selection_takes_all_where_there_are_fewer():
    keys = streams.name_keys(["a", "b", "c"])
    assert select(0, 0, keys, torch.tensor([0, 2]), 5).tolist() == [0, 2]
    assert select(0, 0, keys, torch.arange(0), 5).tolist() == []


def test_uniform_is_the_sample_it_always_was():
    drawn = pool([5, 1, 9, 4], 2, number=3)
    assert torch.equal(Uniform().draw(drawn), select(0, 3, drawn.keys, drawn.eligible, 2))
    assert Settings().selection == Uniform()


def test_texts():
    assert selection_text(parse_selection("power-of-choice(candidates=7)")) == (
        "power-of-choice(candidates=7)"
    )
    assert selection_text(Uniform()) == "uniform"


# -- power of choice: candidates -------------------------------------------------------------------
def test_candidates_are_drawn_by_their_data_without_replacement():
    p = np.array([0.5, 0.2, 0.2, 0.1])
    drawn = PowerOfChoice(candidates=2)
    rounds = 4000
    sets = [tuple(drawn.draw(pool(100 * p, 1, t)).tolist()) for t in range(rounds)]
    for who, chance in chances(p, 2).items():
        share = sets.count(who) / rounds
        assert abs(share - chance) < 4 * np.sqrt(chance / rounds), (who, share, chance)


def test_a_client_that_is_not_there_changes_nothing_for_the_other_candidates():
    everyone = pool([5, 9, 2, 7, 4, 6], 1)
    drawn = PowerOfChoice(candidates=3).draw(everyone).tolist()
    absent = next(k for k in range(6) if k not in drawn)
    eligible = everyone.eligible[everyone.eligible != absent]
    others = Pool(0, 0, everyone.keys, eligible, everyone.data, 1)
    assert PowerOfChoice(candidates=3).draw(others).tolist() == drawn


def test_by_default_there_are_twice_as_many_candidates_as_are_heard():
    assert PowerOfChoice().number(10, 100) == 20 and PowerOfChoice().number(10, 15) == 15


# -- power of choice: who of them ------------------------------------------------------------------
def test_the_largest_losses_take_part():
    answers = CandidateLosses(torch.arange(5), torch.tensor([0.1, 3.0, 2.0, 0.5, 4.0]).double())
    assert PowerOfChoice(5).choose(pool([1] * 5, 2), answers).tolist() == [1, 4]


def test_a_loss_that_is_not_finite_comes_last():
    losses = torch.tensor([np.nan, 1.0, np.inf]).double()
    answers = CandidateLosses(torch.arange(3), losses)
    assert PowerOfChoice(3).choose(pool([1] * 3, 1), answers).tolist() == [1]
    assert len(PowerOfChoice(3).choose(pool([1] * 3, 2), answers)) == 2


def test_equal_losses_are_broken_at_random():
    answers = CandidateLosses(torch.arange(4), torch.ones(4).double())
    drawn = {
        tuple(PowerOfChoice(4).choose(pool([1] * 4, 2, t), answers).tolist()) for t in range(99)
    }
    assert len(drawn) == 6


# -- in runs ---------------------------------------------------------------------------------------
def clocks(t):
    words = streams.keys(SEED, "candidates", t, streams.name_keys([f"c{k}" for k in range(N)]))
    return -np.log1p(-streams.uniform(words, 1)[:, 0])


@pytest.mark.parametrize("D", [SAMPLE, 5, N])
@pytest.mark.parametrize("model", MODELS)
def test_a_run_hears_whom_the_reference_hears(federation, model, D):
    draws, by_hand = setting.draws(federation), MODELS[model][1]
    w = setting.start(model)
    for t in range(ROUNDS):
        cohort = power_of_choice(by_hand, draws.data, w, clocks(t), D, SAMPLE)
        step = (by_hand, draws.data, w, [cohort], lambda _, i, t=t: draws.batches(t, i))
        w = fedavg(*step, [0.3], [4] * N, "samples")["server w"]
    result = setting.run(
        FedAvg(lr=0.3, steps=4), federation, model, selection=f"power-of-choice(candidates={D})"
    )
    assert_leaves(result, {"server w": w})


def small(clients=8, **options):
    return lambda: torch.nn.Linear(helpers.FEATURES, helpers.CLASSES), helpers.classification(
        range(10, 10 + 3 * clients, 3), **options
    )


def trained(selection="power-of-choice(candidates=5)", method="fedavg", **options):
    settings = {"rounds": 4, "sample": 2, "batch": 8, "progress": False} | options
    return il.run(method, *small(), selection=selection, **settings)


def same(one, other):
    w, v = (r.session().server.state["w"] for r in (one, other))
    ledgers = [r.session().server.ledger.counts for r in (one, other)]
    assert torch.equal(w, v)
    for name, counts in ledgers[0].items():
        assert torch.equal(counts, ledgers[1][name]), name


def test_question_and_answer_are_counted_in_bytes_and_not_in_gradients():
    alone = trained("power-of-choice(candidates=2)")  # D = m: nobody is asked
    asked = trained()
    down = alone.session().server.contract.down.length
    rounds, candidates = 4, 5
    one, other = (r.summary() for r in (alone, asked))
    assert other["bytes"]["up"] - one["bytes"]["up"] == rounds * candidates * ANSWER.length
    assert other["bytes"]["down"] - one["bytes"]["down"] == rounds * candidates * down
    assert ANSWER.length == 24 + 8 + 8
    assert other["gradients_per_client"] == one["gradients_per_client"]
    assert one["bytes"] == trained("uniform").summary()["bytes"]


def test_a_budget_of_bytes_knows_what_questions_cost():
    whole = trained()
    spent = sum(whole.summary()["bytes"].values())
    assert sum(trained(bytes=spent).summary()["bytes"].values()) == spent
    assert trained(bytes=spent - 1).summary()["rounds"] == 3


def test_hosts_do_not_matter():
    one, three = trained(chunk=1), trained(chunk=1, hosts=3)
    same(one, three)


def test_a_resumed_run_selects_the_same(tmp_path):
    whole = trained(directory=tmp_path / "whole")
    trained(rounds=2, directory=tmp_path / "part")
    again = trained(directory=tmp_path / "part", resume=True)
    same(whole, again)


def test_malicious_and_held_out_clients():
    result = trained(attack="sign-flip", malicious=2, held_out=2)
    session = result.session()
    held_out = session.people.held_out
    down = session.contract.down.length
    # personalisation before use is not counted: no byte went to those that were held out
    assert not session.server.ledger.counts["bytes_down"][held_out].any()
    assert int(session.server.ledger.counts["bytes_down"].sum()) == 4 * (2 + 5) * down


def test_it_selects_for_personalised_methods_with_a_shared_model():
    assert trained(method="ditto").summary()["rounds"] == 4
    assert trained(method="scaffold").summary()["rounds"] == 4


# -- engines ---------------------------------------------------------------------------------------
def choosy(agreed):
    made = server(agreed, sample=3)
    made.selection = PowerOfChoice(candidates=CLIENTS)
    return made


def test_hosts_behind_frames_answer_as_hosts_of_this_process():
    agreed = contract()
    here = local_rounds(choosy(agreed), hosts(agreed, 2))
    there_hosts = hosts(agreed, 2)
    there = remote_rounds(choosy(agreed), there_hosts, Loopback([Service(h) for h in there_hosts]))
    for engine in (here, there):
        for _ in range(3):
            engine.advance()
    assert held(here) == held(there)


def test_a_candidate_that_does_not_answer_is_not_selected():
    agreed = contract()
    made = hosts(agreed, 2)
    carrier = Loopback([Service(h) for h in made], lambda host, frame: host == 1)
    engine = remote_rounds(choosy(agreed), made, carrier)
    engine.group.calls.patience = 0.0
    engine.advance()
    ledger = engine.server.ledger
    away = made[1].wire_ids
    assert ledger.selected == ledger.admitted == 3 and not ledger.missing
    assert not ledger.counts["bytes_up"][away].any() and ledger.counts["bytes_down"][away].all()


def test_nobody_answers():
    agreed = contract()
    made = hosts(agreed, 2)
    carrier = Loopback([Service(h) for h in made], lambda host, frame: True)
    engine = remote_rounds(choosy(agreed), made, carrier)
    engine.group.calls.patience = 0.0
    before = engine.server.state["w"].clone()
    engine.advance()
    assert engine.rounds == 1 and torch.equal(engine.server.state["w"], before)


# -- what is refused, and what is said -------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("scaffnew", {"sample": 0}, "every client is heard in every round"),
        ("fedamp", {}, "candidates are asked for the loss of the shared model, and it has none"),
        ("fedavg", {"timing": "arrivals"}, "with timing='arrivals' whoever is idle starts next"),
    ],
)
def test_it_is_refused_with_the_reason(method, options, reason):
    with pytest.raises(
        il.SettingError, match=f"selection must be 'uniform' for {method}.*{reason}"
    ):
        trained(method=method, **options)


@pytest.mark.parametrize("candidates", [1, 9])
def test_candidates_are_from_those_heard_to_all(candidates):
    with pytest.raises(il.SettingError, match="candidates must be from the 2 clients heard"):
        trained(f"power-of-choice(candidates={candidates})")


def test_an_unknown_selection_suggests_the_nearest():
    with pytest.raises(il.SettingError, match="did you mean 'power-of-choice'"):
        trained("power-of-choise")


def test_where_all_are_heard_it_is_said_to_have_no_effect(capsys):
    trained("power-of-choice", sample=0, rounds=1)
    assert (
        "selection: 'power-of-choice' has no effect where all 8 clients" in capsys.readouterr().err
    )


# -- of one's own ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Poisson(ClientSelection):
    """Every client with the same probability, by itself: how many are heard differs by round."""

    def draw(self, pool):
        u = streams.uniform(pool.words("poisson", pool.eligible), 1)[:, 0]
        return pool.eligible[torch.from_numpy(u < pool.sample / len(pool.eligible))]


def test_a_selection_of_ones_own_may_hear_another_number_in_each_round():
    result = trained(Poisson(), rounds=12)
    ledger = result.session().server.ledger
    assert 0 < ledger.selected == ledger.admitted != 12 * 2
    assert (
        trained("server.test_selection:Poisson", rounds=12).summary()["bytes"]
        == (result.summary()["bytes"])
    )
