"""Messages that did not count are never hidden, and a run without any other stops and says so."""

import copy
import json
import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import idiolect as il
from helpers import linear, regression
from idiolect.run.divergence import LostRounds
from idiolect.run.record import Record
from idiolect.run.run import Interrupted
from idiolect.study.search import Criterion
from idiolect.testing import private_of, state_of
from idiolect.wire.ledger import RoundEntry

DATA = regression((20,) * 9)
MODEL = linear(outputs=1, loss="mse")
HUGE = 1e30  # a step size whose second step is not finite


def run(method, federation=DATA, **settings) -> il.Result:
    return il.run(method, MODEL, federation, **{"rounds": 20, "batch": 8, **settings})


def text_of(result) -> str:
    return " ".join(str(result).split())


@dataclass(frozen=True)
class Broken(il.FedAvg):
    """FedAvg whose messages are not finite in some rounds."""

    since: int = il.knob(0, "the first of these rounds")
    until: int = il.knob(99, "the round before which they end")

    def update(self, task, down, private, here):
        up, private = super().update(task, down, private, here)
        bad = self.since <= here.round < self.until
        return {n: t / 0 if bad else t for n, t in up.items()}, private


@dataclass(frozen=True)
class NotFinite(il.Attack):
    def forge(self, own, reference, keys):
        return own / 0


def one_bad_client() -> il.Federation:
    """The ninth client's numbers are of another scale, so that its models are not finite."""
    x = np.random.default_rng(0).standard_normal((180, 6))
    x[160:] *= 1e30
    return il.Federation.from_arrays(x, x[:, 0] % 1, np.repeat(range(9), 20))


# -- a run that diverges ---------------------------------------------------------------------------
def test_a_run_whose_messages_are_all_rejected_stops_and_says_why(capsys):
    result = run(f"fedavg:lr={HUGE}")
    summary = result.summary()
    assert (summary["rounds"], summary["stopped"], summary["collapsed"]) == (5, ["diverged"], [1])
    assert summary["messages"] == {"asked": 45, "counted": 0}
    assert summary["rejected_by_reason"] == {"not finite": 45}
    assert summary["heard"] == {"clients": 0, "of": 9}
    said = " ".join(capsys.readouterr().err.split())
    assert "seed 0: diverged; from round 1 on the server had to reject every message" in said
    text = text_of(result)
    assert "★ diverged" in text and "0 of 9 clients heard per round" in text
    assert "0 of 45 messages counted; rejected: 45 not finite; the shared model is still" in text
    for told in (said, text):
        assert "try smaller step sizes (lr=...), clip=1, or inputs and targets scaled" in told
    assert "nothing is sent" not in text and "collapsed" in repr(result)


def test_a_shorter_run_has_diverged_too():
    summary = run(f"fedavg:lr={HUGE}", rounds=2).summary()
    assert (summary["rounds"], summary["stopped"], summary["collapsed"]) == (2, ["diverged"], [1])


@pytest.mark.parametrize(
    "settings",
    [{"hosts": 3}, {"chunk": 2}, {"timing": "arrivals"}, {"channel": "half"}, {"seeds": 2}],
    ids=str,
)
def test_the_rule_is_the_same_on_every_engine(settings):
    summary = run(f"fedavg:lr={HUGE}", **settings).summary()
    seeds = settings.get("seeds", 1)
    assert summary["rounds"] == 5 and summary["stopped"] == ["diverged"] * seeds


def test_messages_that_fail_later_stop_a_run_too_and_what_counted_before_is_kept():
    result = run(Broken(since=3))
    summary = result.summary()
    assert (summary["rounds"], summary["stopped"], summary["collapsed"]) == (8, ["diverged"], [4])
    assert summary["messages"] == {"asked": 72, "counted": 27}
    assert summary["heard"]["clients"] == 27 / 8
    assert torch.equal(state_of(result)["w"], state_of(run(Broken(since=3), rounds=3))["w"])


def test_a_run_that_recovers_goes_on():
    summary = run(Broken(until=4)).summary()
    assert summary["stopped"] == ["rounds"] and summary["collapsed"] == [None]
    assert summary["messages"] == {"asked": 180, "counted": 144}


def test_few_clients_per_round_are_given_more_rounds():
    lost = LostRounds()
    for number in range(1, 50):
        lost = lost.after(RoundEntry(number, 1, 0, {"not finite": 1}), number)
        assert not lost.enough(100) and lost.enough(3) == (number >= 15)
    assert lost.after(RoundEntry(50, 1, 0, {"overflow": 1}), 50).enough(100)


def test_rounds_without_messages_and_rounds_that_are_too_small_are_no_divergence():
    lost = LostRounds().after(RoundEntry(0, 2, 0, {"not finite": 2}), 1)
    assert lost.after(RoundEntry(1, 2, 0, {}, {"timed out": 2}), 2) == lost
    assert lost.after(RoundEntry(1, 2, 0, {"not finite": 1, "too few": 1}), 2) == LostRounds()
    assert lost.after(None, 2) == lost


@pytest.mark.parametrize("stop", [2, 4])
def test_an_interrupted_run_stops_where_it_would_have(tmp_path, stop):
    def progress(seed, round, figure):
        if round == stop:
            os.kill(os.getpid(), signal.SIGINT)

    method = Broken(since=1)
    with pytest.raises(Interrupted):
        run(method, directory=tmp_path / "a", progress=progress)
    result = run(method, directory=tmp_path / "a", resume=True)
    straight = run(method)
    for part in (state_of, private_of):
        mine, theirs = part(result), part(straight)
        assert all(torch.equal(mine[n], theirs[n]) for n in theirs)
    one, other = result.summary(), straight.summary()
    assert one["rounds"] == 6 and {**one, "seconds": 0} == {**other, "seconds": 0}
    again = run(method, directory=tmp_path / "a", resume=True, rounds=30).summary()
    assert again["rounds"] == 6 and again["stopped"] == ["diverged"]


def test_a_saved_run_shows_the_same_and_one_of_an_older_version_is_read(tmp_path):
    result = run(f"fedavg:lr={HUGE}", directory=tmp_path / "a")
    assert text_of(il.load(tmp_path / "a")) == text_of(result)
    saved = json.loads(json.dumps(result.record.as_dict()))
    older = copy.deepcopy(saved)
    for seed in older["seeds"]:
        del seed["messages"]
    summary = Record.from_dict(older).summary()
    assert "messages" not in summary and summary["heard"] == {"clients": 9, "of": 9}


# -- messages that do not count in a run that goes on ----------------------------------------------
def test_rejected_messages_are_in_the_table_and_not_among_those_heard():
    result = run("fedavg:lr=0.01", one_bad_client(), rounds=4)
    summary = result.summary()
    assert summary["messages"] == {"asked": 36, "counted": 32} and summary["stopped"] == ["rounds"]
    text = text_of(result)
    assert "8 of 9 clients heard per round" in text
    assert "32 of 36 messages counted; rejected: 4 not finite" in text


def test_nothing_is_said_where_every_message_counted():
    text = text_of(run("fedavg:lr=0.01", rounds=2))
    assert "9 of 9 clients heard per round" in text
    assert not any(word in text for word in ("messages counted", "rejected", "missing", "★"))


def test_a_model_that_no_round_has_updated_is_called_untrained():
    attacked = {"attack": NotFinite(), "malicious": 0.1, "quorum": 9}
    result = run("fedavg:lr=0.01", rounds=3, **attacked)
    assert result.summary()["stopped"] == ["rounds"]
    said = "0 of 27 messages counted; rejected: 24 too few, 3 not finite; the figures are those of"
    assert f"{said} the untrained model" in text_of(result)
    loss = result.summary()["loss"]["mean"]
    assert loss == run("fedavg", rounds=0, **attacked).summary()["loss"]["mean"]


def test_malicious_messages_that_are_rejected_stop_no_run():
    result = run("fedavg:lr=0.01", attack=NotFinite(), malicious=0.9, sample=1, rounds=60)
    summary = result.summary()
    assert summary["rounds"] == 60 and summary["stopped"] == ["rounds"]
    assert summary["rejected"] > 40 and "60 messages counted; rejected" in text_of(result)
    hopeless = run(f"fedavg:lr={HUGE}", attack=NotFinite(), malicious=0.2, rounds=8).summary()
    assert hopeless["rounds"] == 8 and hopeless["stopped"] == ["diverged"]


# -- models that are not finite --------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "federation", "clients"),
    [
        (f"local:lr={HUGE}", DATA, 9),
        ("local:lr=0.01", one_bad_client(), 1),
        ("ditto:lr=0.01,lam=1e30", DATA, 9),
    ],
    ids=["local", "one client", "ditto"],
)
def test_clients_whose_models_are_not_finite_are_counted(method, federation, clients):
    result = run(method, federation, rounds=2)
    summary = result.summary()
    assert summary["clients_not_finite"] == {"by_seed": [clients], "of": 9}
    text = text_of(result)
    assert f"the loss of {clients} of 9 clients is not finite" in text
    assert "loss" in text.split("±")[0] and "accuracy" not in text  # it is a regression


def test_models_without_test_data_collapse_by_their_training_loss():
    alone = il.Federation.from_arrays(
        DATA.inputs.numpy(), DATA.targets.numpy(), np.repeat(range(9), 20), split=["train"] * 180
    )
    summary = run(f"local:lr={HUGE}", alone, rounds=2, eval_every=0).summary()
    assert summary["collapsed"] == [2] and summary["clients_not_finite"]["by_seed"] == [9]
    assert run("local:lr=0.01", alone, rounds=2).summary()["collapsed"] == [None]


# -- several runs ----------------------------------------------------------------------------------
def test_a_comparison_keeps_its_other_rows_and_gives_the_diverged_one_no_figure():
    comparison = il.compare(
        [f"fedavg:lr={HUGE}", "fedavg:lr=0.01"], MODEL, DATA, rounds=8, batch=8, metric="loss",
        target_value=1e5, baselines=False, eval_every=1,
    )  # fmt: skip
    bad, good = comparison.rows()
    assert bad["stopped"] == ["diverged"] and good["stopped"] == ["rounds"]
    assert bad["to_target"]["mean"] is None and good["to_target"]["mean"] is not None
    assert "★ diverged" in text_of(comparison)


def test_a_diverged_run_is_never_the_best_of_a_search():
    summary = run(f"fedavg:lr={HUGE}", eval_every=0).summary()
    assert summary["valid"]["loss"]["mean"] is not None
    assert Criterion("pooled", "loss", False).figure(summary) is None
