"""Runs on weighted samples: a sample of weight w is w samples, in training, servers and figures."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.host.scores import wilson
from idiolect.report.clients import clients_view
from idiolect.report.verdicts import CANNOT_TELL, judged_clients, weighed_terms
from idiolect.server.roster import Roster
from idiolect.task.batches import Batches
from idiolect.task.context import Here

rng = np.random.default_rng(1)
N = 96
X = rng.normal(size=(N, 3))
LABELS = (X[:, 0] + rng.normal(size=N) > 0).astype(int)
VALUES = 40 + 7 * X[:, 0] + rng.normal(size=N)
CLIENTS = np.arange(N) % 4
SPLIT = np.array(["train", "train", "valid", "test"])[rng.integers(0, 4, N)]
TIMES = rng.integers(1, 4, N)
AGAIN = np.repeat(np.arange(N), TIMES)
METHODS = ("fedavg", "local", "ditto", "fedalt")


def federation(y=LABELS, weight=None, rows=None, **options):
    rows = np.arange(N) if rows is None else rows
    weight = None if weight is None else weight[rows]
    split = options.pop("split", SPLIT)[rows]
    return il.Federation.from_arrays(
        X[rows], y[rows], CLIENTS[rows], split=split, weight=weight, **options
    )


def network(outputs=2):
    model = partial(_layers, outputs)
    return il.Task(model) if outputs > 1 else il.Task(model, loss="mse")


def _layers(outputs):
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


def trained(method, data, task=None, **settings):
    settings = {"rounds": 3, "progress": False, "dtype": "float64", "batching": "full"} | settings
    return il.run(method, task or network(), data, **settings)


def models(result):
    """The personal models of all clients, [N, d]."""
    session = result.session()
    return torch.stack([session.personal(client) for client in session.server.roster.ids])


# -- integer weights are repeated rows -------------------------------------------------------------
@pytest.mark.parametrize("kernel", ["stacked", "rows", "vmap"])
@pytest.mark.parametrize("method", METHODS)
def test_a_sample_of_weight_three_trains_as_three_samples(method, kernel):
    pair = federation(weight=TIMES), federation(rows=AGAIN)
    one, other = (trained(method, data, kernel=kernel) for data in pair)
    torch.testing.assert_close(models(one), models(other), rtol=0, atol=1e-12)


@pytest.mark.parametrize("task", [network(), network(1)], ids=["classes", "values"])
def test_figures_are_those_of_repeated_rows(task):
    classes = task.module[-1].out_features > 1
    y, metrics = (LABELS, "auc,f1,brier") if classes else (VALUES, "rmse,mae,r2")
    pair = federation(y, weight=TIMES), federation(y, rows=AGAIN)
    one, other = (
        trained("fedavg", data, task, metrics=metrics).record.seeds[0].final for data in pair
    )
    for split in ("train", "valid", "test"):
        numbers = {name: value for name, value in one[split].items() if value == value}
        assert numbers == pytest.approx({n: other[split][n] for n in numbers}, rel=1e-9, abs=1e-12)
    assert one["test"]["accuracy"] > 0.5 if classes else one["test"]["rmse"] < 100


def test_class_weights_multiply_with_weights_of_samples():
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))
    task = il.Task(lambda: nn.Linear(3, 2), loss=loss)
    pair = federation(weight=TIMES), federation(rows=AGAIN)
    one, other = (trained("fedavg", data, task) for data in pair)
    torch.testing.assert_close(models(one), models(other), rtol=0, atol=1e-12)
    one, other = (r.record.seeds[0].final["test"]["loss"] for r in (one, other))
    assert one == pytest.approx(other, abs=1e-12)


def test_an_asynchronous_server_goes_by_weights_too():
    settings = {"timing": "arrivals", "buffer": 2, "sample": 2}
    pair = federation(weight=TIMES), federation(rows=AGAIN)
    one, other = (trained("fedavg", data, **settings) for data in pair)
    torch.testing.assert_close(models(one), models(other), rtol=0, atol=1e-12)


# -- what a client counts --------------------------------------------------------------------------
def test_a_client_counts_by_what_its_training_samples_weigh():
    data = federation(weight=TIMES * 0.5)
    roster = trained("fedavg", data).session().server.roster
    assert torch.equal(roster.weights, data.weight_totals("train"))
    assert not roster.own_weights
    assert torch.equal(roster.samples, data.sizes("train"))


def test_a_method_that_weighs_all_clients_alike_still_does():
    heavy = np.where(CLIENTS == 0, 100.0, 1.0)  # alike within every client
    pair = federation(weight=heavy), federation()
    alike = [models(trained(il.FedAvg(weighting="equal"), data)) for data in pair]
    assert torch.equal(*alike)
    by_samples = [models(trained("fedavg", data)) for data in pair]
    assert not torch.allclose(*by_samples)


def test_client_weights_of_the_user_stand_above_those_of_samples():
    weights = {"0": 1, "1": 2, "2": 3, "3": 4}
    heavy = np.where(CLIENTS == 0, 100.0, 1.0)
    pair = federation(weight=heavy), federation()
    runs = [trained("fedavg", data, client_weights=weights) for data in pair]
    assert torch.equal(*(models(r) for r in runs))
    assert runs[0].session().server.roster.own_weights


def test_a_roster_says_whose_its_weights_are():
    roster = Roster()
    roster.enrol(["a"], [3], weights=[7.5], own_weights=False)
    assert roster.mean_samples() == 7.5 and not roster.own_weights
    tensors, facts = roster.save()
    assert not Roster.loaded(tensors, facts, own_weights=False).own_weights


# -- mini-batches ----------------------------------------------------------------------------------
def weights_drawn(batching, steps, batch=4):
    """The mean over mini-batches of what each training sample of client 0 weighs in one."""
    data = federation(weight=TIMES)
    n = int(data.sizes("train")[0])
    numbered = torch.arange(data.samples, dtype=torch.float64)
    batches = Batches(
        numbered,
        numbered,
        np.array([0]),
        np.array([n]),
        keys=np.array([5], dtype=np.uint64),
        noise_keys=np.array([6], dtype=np.uint64),
        batch=batch,
        batching=batching,
        dtype=torch.float64,
        shares=data.training_shares,
    )
    total = torch.zeros(n, dtype=torch.float64)
    for _ in range(steps):
        drawn = batches.draw()
        total.index_add_(0, drawn.inputs[0].long(), drawn.weights[0])
    own = data.weights_of("train")[:n]
    return total / steps, own / own.sum()


def test_a_full_batch_weighs_each_sample_by_its_share():
    drawn, due = weights_drawn("full", steps=1)
    torch.testing.assert_close(drawn, due)


def test_mini_batches_weigh_each_sample_by_its_share_in_the_mean():
    drawn, due = weights_drawn("replace", steps=8000)
    torch.testing.assert_close(drawn, due, rtol=0.1, atol=0)


def test_a_pass_over_the_data_weighs_each_sample_by_its_share():
    n = int(federation().sizes("train")[0])
    batch = max(b for b in range(1, n) if n % b == 0)  # no smaller one at the end of a pass
    drawn, due = weights_drawn("epochs", steps=n // batch, batch=batch)
    torch.testing.assert_close(drawn, due)


def test_the_mean_gradient_of_mini_batches_is_that_of_the_full_batch():
    data = federation(weight=TIMES).to("cpu", torch.float64)
    task = il.Task(lambda: nn.Linear(3, 2)).under(dtype=torch.float64)

    def gradient(batching, draws):
        names = np.array([3], dtype=np.uint64)
        options = {"clients": names, "seed": 0, "round": 0, "batch": 1, "dtype": torch.float64}
        here = Here(data, torch.tensor([0]), batching=batching, **options)
        x = task.x0.unsqueeze(0)
        return torch.stack([task.grad(x, here.draw())[0] for _ in range(draws)]).mean(0)

    n = int(data.sizes("train")[0])
    # one pass over single samples enumerates every mini-batch of one
    torch.testing.assert_close(gradient("epochs", n), gradient("full", 1), rtol=0, atol=1e-12)


# -- weights of one change nothing -----------------------------------------------------------------
def test_weights_of_one_change_no_bit():
    settings = {"batching": "replace", "batch": 8, "metrics": "auc,calibration_error"}
    one, other = (
        trained("ditto", data, **settings) for data in (federation(weight=np.ones(N)), federation())
    )
    assert torch.equal(models(one), models(other))
    assert one.record.seeds[0].final == other.record.seeds[0].final
    assert one.record.baseline == other.record.baseline


def test_a_comparison_with_weights_of_one_has_the_same_figures():
    rows = []
    for weight in (np.ones(N), None):
        compared = il.compare(
            ["fedavg", "local"], network(), federation(weight=weight), rounds=2, trees=True
        )
        view = clients_view(compared).as_dict()
        rows.append(([row["accuracy"] for row in compared.rows()], view))
    assert rows[0] == rows[1]


def test_an_advice_with_weights_of_one_is_the_same():
    task = il.Task(lambda: nn.Linear(3, 2))
    options = {"gradients": 20, "seeds": 3, "metric": "accuracy", "methods": ["fedavg"]}
    texts = []
    for weight in (np.ones(N), None):
        advice = il.advise(federation(weight=weight), task, **options).as_dict()
        advice["notes"] = [note for note in advice["notes"] if "weighted by" not in note]
        advice.pop("seconds")
        texts.append(repr(advice))
    assert texts[0] == texts[1]


def test_an_advice_goes_by_weights():
    task = il.Task(lambda: nn.Linear(3, 2))
    options = {"gradients": 10, "seeds": 3, "methods": ["fedavg"], "quick": True}
    pair = [il.advise(federation(weight=w), task, **options) for w in (TIMES * 2.5, None)]
    one, other = (advice.as_dict()["candidates"][0]["figures"] for advice in pair)
    for name in ("loss", "accuracy", "auc"):
        assert one[name] != other[name] and one[name] == pytest.approx(other[name], abs=0.3)
    assert any("weighted by 'weight'" in note for note in pair[0].notes)


# -- records, checkpoints, other processes ---------------------------------------------------------
def test_a_record_says_that_there_were_weights(tmp_path):
    result = trained("fedavg", federation(weight=TIMES * 0.5), directory=tmp_path / "run")
    assert result.record.data["weight"] == "weight"
    row = result.record.seeds[0].clients[0]
    data = federation(weight=TIMES * 0.5)
    assert row["test_weight"] == float(data.weight_totals("test")[0])
    assert row["test_effective"] == float(data.effective_sizes("test")[0])
    assert "weighted by 'weight'" in str(result)
    loaded = il.load(tmp_path / "run", task=network())  # without the data
    torch.testing.assert_close(models(loaded), models(result), rtol=0, atol=0)


def test_a_resumed_run_has_the_same_bits_and_refuses_other_weights(tmp_path):
    settings = {"batching": "replace", "batch": 8}
    data = federation(weight=TIMES * 0.5)
    whole = trained("ditto", data, rounds=4, **settings)
    folder = {"directory": tmp_path / "run", "checkpoint_every": 1}
    trained("ditto", data, rounds=2, **settings, **folder)
    resumed = trained("ditto", data, rounds=4, **settings, **folder, resume=True)
    assert torch.equal(models(resumed), models(whole))
    with pytest.raises(SettingError, match="data"):
        other = federation(weight=TIMES * 0.7)
        trained("ditto", other, rounds=5, **settings, **folder, resume=True)


def test_hosts_in_other_processes_have_the_same_bits():
    data = federation(weight=TIMES * 0.5)
    one, other = (
        trained("fedavg", data, rounds=2, metrics="log_loss,auc", hosts=2, engine=engine)
        for engine in ("local", "processes")
    )
    assert one.record.seeds[0].final == other.record.seeds[0].final


def test_new_clients_are_personalised_by_their_weights():
    task = network()
    result = trained("ditto", federation(weight=TIMES * 0.5), task)
    new = federation(weight=TIMES * 1.0)
    new = il.Federation.from_arrays(
        X, LABELS, [f"new {c}" for c in CLIENTS], split=SPLIT, weight=TIMES
    )
    personalised = result.personalise(new, rounds=1)
    assert personalised.record.seeds[0].clients[0]["test_weight"] == float(
        new.weight_totals("test")[0]
    )


# -- what is refused -------------------------------------------------------------------------------
def centred(outputs, targets):
    """Compares the samples of a batch."""
    each = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return (each - each.mean()) ** 2


def test_a_loss_that_compares_samples_refuses_weights():
    task = il.Task(lambda: nn.Linear(3, 2), loss=centred)
    with pytest.raises(SettingError, match="weight must be left out with the loss centred: in it"):
        trained("fedavg", federation(weight=TIMES), task)


# -- evidence --------------------------------------------------------------------------------------
def test_terms_of_a_weighed_mean_have_its_mean_and_its_jackknife_variance():
    values, weights = rng.normal(size=40), rng.uniform(0.1, 9, 40)
    owner = np.arange(40) % 2
    terms = weighed_terms(values, weights, owner)
    for k in (0, 1):
        x, w = values[owner == k], weights[owner == k]
        n = len(x)
        without = [np.average(np.delete(x, i), weights=np.delete(w, i)) for i in range(n)]
        assert terms[owner == k].mean() == pytest.approx(np.average(x, weights=w))
        variance = terms[owner == k].var(ddof=1) / n
        assert variance == pytest.approx((n - 1) * np.var(without))
    alike = weighed_terms(values, np.full(40, 3.0), owner)
    np.testing.assert_allclose(alike, values, atol=1e-14)


def test_intervals_of_weighted_differences_hold_the_truth_95_times_in_100():
    """Samples weigh unlike, and heavy ones have the higher values."""
    draws, n, spread = 300, 40, 0.5
    owner, held = np.zeros(n, dtype=np.int64), 0
    for _ in range(draws):
        weights = rng.lognormal(0, spread, n)
        values = rng.normal(size=n) + np.log(weights)
        truth = spread**2  # E[w log w] / E[w]
        effective = np.array([weights.sum() ** 2 / (weights**2).sum()])
        terms = weighed_terms(values, weights)
        (gain,) = judged_clients(terms, owner, ["a"], counted=False, effective=effective)
        held += gain.low <= truth <= gain.high
    assert 0.91 < held / draws < 0.98


def test_heavy_samples_are_no_more_evidence_than_they_are():
    one_heavy = np.where(np.arange(N) == np.flatnonzero(SPLIT == "test")[0], 1000.0, 1.0)
    data = federation(weight=one_heavy)
    client = int(CLIENTS[np.flatnonzero(SPLIT == "test")[0]])
    assert float(data.effective_sizes("test")[client]) < 1.1
    low, high = wilson(1.0, float(data.effective_sizes("test")[client]))
    assert high - low > 0.7


def test_a_client_of_one_heavy_sample_is_not_judged():
    weights = np.array([1e6] + [1.0] * 29)
    terms = weighed_terms(np.full(30, 0.5) + 0.01 * rng.normal(size=30), weights)
    owner = np.zeros(30, dtype=np.int64)
    effective = np.array([1.0])
    (gain,) = judged_clients(terms, owner, ["a"], counted=False, effective=effective)
    assert gain.verdict == CANNOT_TELL and gain.high == np.inf
