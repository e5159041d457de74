"""The figures: pooled over samples, spread over clients, intervals over seeds.

They equal those of a loop by hand.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import idiolect as il
from helpers import classification, regression
from idiolect.host.evaluation import Evaluator
from idiolect.host.scores import Scores, interval, majority, summarise

NAN = float("nan")


SIZES = (40, 3, 17, 9, 25, 8)
PARTS = {"test": 0.3, "valid": 0.2}


def federation(sizes=SIZES, of=classification) -> il.Federation:
    return of(sizes, features=4, **PARTS)


def scores_of(hits, loss, samples) -> Scores:
    """Scores of clients 0, 1, 2, ... that spent nothing before use."""
    clients = torch.arange(len(samples))
    counts = (torch.as_tensor(t, dtype=torch.float64) for t in (hits, loss))
    return Scores(clients, *counts, torch.as_tensor(samples), torch.zeros_like(clients))


def by_hand(federation: il.Federation, result: il.Result, split: str) -> dict[str, float]:
    hits, losses, samples = [], [], []
    for k in range(federation.clients):
        x, y = federation.part(k, split)
        if len(y):
            with torch.no_grad():
                out = result.personal(k)(x)
            hits.append(int((out.argmax(1) == y).sum()))
            losses.append(float(nn.functional.cross_entropy(out.double(), y, reduction="sum")))
            samples.append(len(y))
    h = np.array(hits)
    s = np.array(losses)
    n = np.array(samples)
    worst = math.ceil(len(n) / 10)
    return {
        "accuracy": h.sum() / n.sum(),
        "accuracy_variance": (h / n).var(),
        "accuracy_clients": (h / n).mean(),
        "accuracy_worst10": np.sort(h / n)[:worst].mean(),
        "loss": s.sum() / n.sum(),
        "loss_variance": (s / n).var(),
        "loss_clients": (s / n).mean(),
        "loss_worst10": np.sort(s / n)[::-1][:worst].mean(),
    }


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize(
    "method",
    [il.FedAvg(), il.LpProj(dim=5, p=2), il.FedProxSoft(), il.Local(init="own")],
    ids=lambda m: type(m).__name__,
)
def test_the_figures_are_those_of_a_loop_by_hand(method, split):
    data = federation()
    result = il.run(method, il.Task(nn.Linear(4, 3)), data, rounds=4, sample=3, batch=8)
    final = result.seeds[0].final[split]
    assert final == pytest.approx(by_hand(data, result, split), rel=1e-5)
    measured = (
        result.summary()["accuracy"] if split == "test" else result.summary()[split]["accuracy"]
    )
    assert (
        measured["mean"] == final["accuracy"] and measured["variance"] == final["accuracy_variance"]
    )
    assert measured["worst10"] == final["accuracy_worst10"]


def test_many_clients_of_all_sizes_are_scored_as_one_by_one():
    sizes = tuple(np.random.default_rng(1).integers(2, 200, size=60))
    data = federation(sizes)
    result = il.run(il.Local(steps=2), il.Task(nn.Linear(4, 3)), data, rounds=1)
    assert result.seeds[0].final["test"] == pytest.approx(by_hand(data, result, "test"), rel=1e-5)
    assert result.seeds[0].final["train"] == pytest.approx(by_hand(data, result, "train"), rel=1e-5)


def test_shared_and_personal_evaluation_agree():
    data = federation()
    task = il.Task(nn.Linear(4, 3)).under(dtype=torch.float64)
    evaluator = Evaluator(task, data.to("cpu", torch.float64), "test")
    shared = evaluator.shared(task.x0)
    personal = evaluator.blank()
    evaluator.personal(task.x0.repeat(data.clients, 1), torch.arange(data.clients), personal)
    torch.testing.assert_close(shared.loss, personal.loss)
    assert torch.equal(shared.hits, personal.hits)


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_chunks_do_not_change_the_figures(chunk):
    data = federation()
    task = il.Task(nn.Linear(4, 3))
    for method in (il.FedAvg(), il.LpProj(dim=5)):
        whole, parts = (
            il.run(method, task, data, rounds=3, sample=3, chunk=c, dtype="float64")
            for c in (0, chunk)
        )
        assert parts.seeds[0].final["test"] == pytest.approx(whole.seeds[0].final["test"], rel=1e-9)


def test_regression_has_a_loss_and_no_accuracy():
    data = federation(of=regression)
    result = il.run(il.Local(steps=3), il.Task(nn.Linear(4, 1), "mse"), data, rounds=2)
    summary = result.summary()
    x, y = (torch.cat([data.part(k, "test")[i] for k in range(data.clients)]) for i in (0, 1))
    out = torch.cat(
        [result.personal(k)(data.part(k, "test")[0]) for k in range(data.clients)]
    ).detach()
    assert summary["loss"]["mean"] == pytest.approx(
        float(((out[:, 0] - y) ** 2).mean()), rel=1e-5
    ) and len(x)
    assert summary["accuracy"]["mean"] is None


def test_without_test_samples_there_are_no_figures_but_a_result():
    data = il.Federation.from_arrays(np.eye(6), [0, 1] * 3, [0, 0, 0, 1, 1, 1], valid=0, test=0)
    summary = il.run(il.FedAvg(), il.Task(nn.Linear(6, 2)), data, rounds=2).summary()
    assert summary["accuracy"]["mean"] is None and summary["train"]["accuracy"]["mean"] is not None
    assert "fedavg" in str(il.run(il.FedAvg(), il.Task(nn.Linear(6, 2)), data, rounds=1))


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.floats(0, 50)), min_size=1, max_size=40
    )
)
def test_summaries_of_any_counts(rows):
    hits = torch.tensor([float(min(h, n)) for h, n, _ in rows], dtype=torch.float64)
    samples = torch.tensor([n for _, n, _ in rows])
    losses = torch.tensor([x for _, _, x in rows], dtype=torch.float64)
    out = summarise(scores_of(hits, losses, samples))
    kept = [(float(h), n) for h, n in zip(hits, samples.tolist(), strict=True) if n]
    if not kept:
        assert all(math.isnan(v) for v in out.values())
        return
    each = sorted(h / n for h, n in kept)
    assert out["accuracy"] == pytest.approx(sum(h for h, _ in kept) / sum(n for _, n in kept))
    assert out["accuracy_variance"] == pytest.approx(np.var(each), abs=1e-12)
    assert out["accuracy_worst10"] == pytest.approx(np.mean(each[: -(-len(each) // 10)]))


def test_only_the_clients_asked_for_count():
    scores = scores_of([1, 0, 4], [0, 0, 0], [2, 5, 4])
    assert summarise(scores.only(torch.tensor([0, 2])))["accuracy"] == 5 / 6


def test_scores_of_several_hosts_merge_by_wire_id():
    whole = scores_of([1, 0, 4, 2], [0.5, 1, 2, 3], [2, 5, 4, 3])
    parts = [whole.only(torch.tensor(ids)) for ids in ([1, 3], [], [0, 2])]
    merged = Scores.merge(parts)
    for field in ("wire_ids", "hits", "loss", "samples", "gradients"):
        assert torch.equal(getattr(merged, field), getattr(whole, field)), field


def test_a_client_without_samples_has_no_accuracy_and_counts_for_nothing():
    scores = scores_of([1, 0], [1, 0], [2, 0])
    assert summarise(scores)["accuracy"] == 0.5 and summarise(scores)["accuracy_variance"] == 0
    assert math.isnan(scores.of_clients()[0][1])


@pytest.mark.parametrize("n", [2, 3, 5, 10, 21, 22, 25, 31, 60, 1000])
def test_the_interval_is_students(n):
    values = np.random.default_rng(n).standard_normal(n)
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    assert interval(values.tolist()) == pytest.approx((high - low) / 2, rel=1e-3)


def test_one_seed_has_no_interval_and_equal_seeds_have_none_to_speak_of():
    assert interval([0.7]) is None and interval([]) is None and interval([0.7, NAN]) is None
    assert interval([0.7, 0.7, 0.7]) == pytest.approx(0, abs=1e-12)


def test_several_seeds_give_mean_and_interval_over_them():
    result = il.run(
        il.FedAvg(), il.Task(lambda: nn.Linear(4, 3)), federation(), rounds=2, seeds=4, seed=3
    )
    summary = result.summary()
    each = [s.final["test"]["accuracy"] for s in result.seeds]
    assert (
        summary["seeds"] == [3, 4, 5, 6]
        and summary["accuracy"]["by_seed"] == each
        and len(set(each)) > 1
    )
    assert summary["accuracy"]["mean"] == pytest.approx(np.mean(each))
    assert summary["accuracy"]["ci95"] == pytest.approx(
        stats.t.ppf(0.975, 3) * stats.sem(each), rel=1e-3
    )


def test_the_majority_baseline_answers_each_clients_commonest_training_class():
    data = federation()
    scores = majority(data)
    for k in range(data.clients):
        common = torch.bincount(data.part(k, "train")[1], minlength=3).argmax()
        assert scores.hits[k] == (data.part(k, "test")[1] == common).sum()
