"""Methods whose server sends each client a message of its own: against NumPy, and reductions."""

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.methods.fedfomo import affinities
from idiolect_papers.own.memory import Live
from methods.common import Case, N, assert_equals, assert_leaves, every_batching, every_model
from reference import setting
from reference.cfl import cfl
from reference.fedamp import fedamp
from reference.fedfomo import fedfomo
from reference.pfedgraph import pfedgraph
from reference.pfedhn import pfedhn
from reference.setting import outcome, run


# -- FedAMP ----------------------------------------------------------------------------------------
@every_model
@pytest.mark.parametrize(("attention", "sigma"), [("distance", 0.4), ("cosine", 5.0)])
def test_fedamp_is_algorithm_1_of_the_models_heard_so_far(federation, model, attention, sigma):
    fields = {"lr": 0.2, "steps": 4, "lam": 0.7, "share": 0.8, "sigma": sigma}
    expected = fedamp(*Case(federation, model).first, **fields, attention=attention)
    result = run(il.FedAmp(**fields, attention=attention), federation, model)
    assert_equals(result, expected, federation, model)


@every_batching
def test_fedamp_is_algorithm_1_with_every_batching(federation, batching):
    fields = {"lr": 0.2, "steps": 4, "lam": 0.7, "share": 0.8, "sigma": 0.4}
    case = Case(federation, batching=batching, sample=5)
    expected = fedamp(*case.first, **fields, attention="distance")
    result = run(il.FedAmp(**fields), federation, batching=batching, sample=5)
    assert_equals(result, expected, federation)


def test_fedamp_with_lambda_zero_is_local_bit_for_bit(federation):
    alone = outcome(run(il.Local(lr=0.2, steps=4), federation))
    untied = outcome(run(il.FedAmp(lr=0.2, steps=4, lam=0), federation, sample=N))
    np.testing.assert_array_equal(untied["personal"], alone["personal"])


@every_model
@pytest.mark.parametrize("attention", ["distance", "cosine"])
def test_fedamp_with_equal_weights_is_averaging(federation, model, attention):
    """1/N each, with everyone heard: the models are pulled to their plain mean, as FedProxSoft's.

    By distance with σ beyond all of them, by cosine with σ at zero.
    """
    sigma = 1e15 if attention == "distance" else 1e-15
    equal = il.FedAmp(lr=0.2, steps=4, lam=0.7, share=(N - 1) / N, attention=attention, sigma=sigma)
    averaging = il.FedProxSoft(lr=0.2, steps=4, lam=0.7, final_steps=0, weighting="equal")
    mixed, averaged = (
        outcome(run(method, federation, model, sample=N)) for method in (equal, averaging)
    )
    np.testing.assert_allclose(mixed["personal"], averaged["personal"], rtol=0, atol=1e-12)


def test_fedamp_without_share_learns_nothing_from_others(federation):
    """Whoever else is there, a model is pulled to where it was itself."""
    method = il.FedAmp(share=0, lam=0.7)
    among_all = outcome(run(method, federation, sample=N))["personal"]
    pair = outcome(run(method, setting.arrange(federation, [3, 5]), sample=2))["personal"]
    np.testing.assert_array_equal(among_all[[3, 5]], pair)


def test_a_mixture_is_never_beyond_the_models_it_is_made_of():
    """A client that was never heard has one more other than those that were."""
    task = setting.task().under(seed=0)
    method = il.FedAmp(share=1, sigma=1e15)
    server = {"models": torch.eye(3, task.d), "heard": torch.tensor([[1.0], [1.0], [0.0]])}
    u = method.address(task, server, torch.arange(3))["w"]
    expected = torch.tensor([[0, 1, 0], [1, 0, 0], [0.5, 0.5, 0]])
    torch.testing.assert_close(u[:, :3], expected)


def test_fedamp_of_a_thousand_clients_holds_a_few_times_their_models():
    """No array of N² d numbers, which would be 8 GB here; the models of all are 8 MB."""
    n, features = 1000, 200
    data = il.Federation.from_arrays(
        np.ones((2 * n, features), dtype=np.float32),
        np.arange(2 * n) % 10,
        np.repeat(np.arange(n), 2),
        split=np.resize(["train", "test"], 2 * n),
    )
    task = il.Task(lambda: torch.nn.Linear(features, 10))
    settings = {"rounds": 2, "sample": n, "batch": 1, "eval_every": 0}
    with Live() as live:
        il.run(il.FedAmp(steps=1), task, data, **settings)
    assert live.peak < 15 * n * task.d * 4  # bytes


# -- pFedHN ----------------------------------------------------------------------------------------
@every_model
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_pfedhn_is_algorithm_1_with_the_mean_over_those_heard(federation, model, layers):
    fields = {"lr": 0.3, "steps": 4, "hyper_lr": 0.4}
    method = il.PFedHn(**fields, embedding=3, hidden=5, layers=layers)
    task = setting.task(model).under(seed=setting.SEED, dtype=torch.float64)
    case = Case(federation, model)
    start = method.server(task)["phi"].numpy()
    v = method.server_rows(task, case.draws.keys)["v"].numpy()
    sizes = [3, *[5] * (layers + 1), task.d]
    cohorts, batches = case.cohorts, case.batches
    expected = pfedhn(case.model, case.data, start, v, sizes, cohorts, batches, **fields)
    assert_equals(run(method, federation, model), expected, federation, model)


def test_before_the_first_round_the_hypernetwork_makes_the_common_start_for_everyone(federation):
    models = outcome(run(il.PFedHn(), federation, rounds=0))["personal"]
    np.testing.assert_array_equal(models, np.tile(setting.start(), (N, 1)))


def test_a_server_optimiser_may_step_on_the_hypernetwork(federation):
    plain = outcome(run(il.PFedHn(), federation))
    stepped = outcome(run(il.PFedHn(), federation, server_options="momentum=0.0"))
    pushed = outcome(run(il.PFedHn(), federation, server_options="momentum=0.9"))
    np.testing.assert_allclose(stepped["server phi"], plain["server phi"], atol=1e-12)
    assert np.abs(pushed["server phi"] - plain["server phi"]).max() > 1e-6


# -- CFL -------------------------------------------------------------------------------------------
def check_cfl(federation, model="logistic", **fields):
    """Groups of the run and of the reference are the same; how many there are."""
    fields = {"eps1": 0.9, "eps2": 0.1, "gamma": 0.0, "clusters": 4, "weighting": "equal"} | fields
    by_hand = {"most" if name == "clusters" else name: value for name, value in fields.items()}
    case = Case(federation, model, sample=N)
    expected = cfl(*case.first, lr=0.3, steps=4, **by_hand)
    result = run(il.Cfl(lr=0.3, steps=4, **fields), federation, model)
    assert_equals(result, expected, federation, model)
    return len(np.unique(expected["rows group"]))


@every_model
@pytest.mark.parametrize("weighting", ["equal", "samples"])
def test_cfl_is_algorithm_2_with_the_best_division_of_all(federation, model, weighting):
    assert check_cfl(federation, model, weighting=weighting) > 1


def test_cfl_divides_again_and_no_more_than_it_may(federation):
    assert check_cfl(federation, clusters=4, eps1=1.1) == 4
    assert check_cfl(federation, clusters=2, eps1=1.1) == 2


def test_cfl_divides_only_what_stands_still_and_disagrees(federation):
    assert check_cfl(federation, eps1=0.01) == 1
    assert check_cfl(federation, eps1=1.1, eps2=50) == 1
    assert check_cfl(federation, eps1=1.1, gamma=0.99) == 1


@every_model
def test_cfl_that_never_divides_is_fedavg(federation, model):
    average = outcome(
        run(il.FedAvg(lr=0.3, steps=4, weighting="equal"), federation, model, sample=N)
    )
    for fields in ({"eps1": 0}, {"clusters": 1, "eps1": 1.1}):
        whole = outcome(run(il.Cfl(lr=0.3, steps=4, **fields), federation, model))
        np.testing.assert_array_equal(whole["personal"], average["personal"])


def test_cfl_finds_clients_that_label_the_other_way():
    """Two groups with opposite labels: no single model serves both, and two do."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((8, 40, 5))
    y = (X[..., 0] > 0).astype(int)
    y[[1, 4, 6]] = 1 - y[[1, 4, 6]]
    data = il.Federation.from_arrays(X.reshape(-1, 5), y.ravel(), np.repeat(np.arange(8), 40))
    settings = {"rounds": 40, "eval_every": 0}
    together = il.run(il.FedAvg(), lambda: torch.nn.Linear(5, 2), data, **settings)
    grouped = il.run(il.Cfl(eps1=0.1), lambda: torch.nn.Linear(5, 2), data, **settings)
    groups = grouped.session().server.rows.all()["group"][:, 0]
    assert groups.tolist() == [0, 1, 0, 0, 1, 0, 1, 0]
    assert (
        together.summary()["accuracy"]["mean"] < 0.7 < 0.9 < grouped.summary()["accuracy"]["mean"]
    )


# -- FedFomo ---------------------------------------------------------------------------------------
def check_fedfomo(federation, model="logistic", rounds=5, remembered=N, **fields):
    """The run is the reference; how many entries of P there are."""
    fields = {"explore": 0.5, "decay": 0.1, "models": 2} | fields
    method = il.FedFomo(lr=0.3, steps=4, remembered=remembered, **fields)
    case = Case(federation, model)
    task = setting.task(model).under(seed=setting.SEED, dtype=torch.float64)
    everyone = torch.arange(N)
    rows = method.server_rows(task, case.draws.keys)

    def drawn(t, what):
        server = rows | {"round": torch.tensor([t])}
        return method.draws(task, server, everyone)[what].numpy()

    valid = [
        (X.double().numpy(), y.numpy()) for X, y in (federation.part(i, "valid") for i in range(N))
    ]
    expected = fedfomo(
        *(case.model, case.data, valid, case.start),
        cohorts=case.draws.cohorts(rounds, setting.SAMPLE),
        batches=case.batches,
        luck=lambda t, i: drawn(t, 0)[i],
        coins=lambda t, i: drawn(t, 1)[i],
        **{"lr": 0.3, "steps": 4, "M": fields.pop("models"), **fields},
    )
    P = expected.pop("rows P")
    result = run(method, federation, model, rounds=rounds)
    np.testing.assert_allclose(affinities(result.session().server.rows.all(), everyone), P)
    expected["accuracy"] = setting.pooled_accuracy(case.model, expected["personal"], federation)
    assert_leaves(result, expected)
    return P


@every_model
@pytest.mark.parametrize("explore", [0, 0.5, 1])
def test_fedfomo_is_equations_3_and_4_with_epsilon_greedy_sampling(federation, model, explore):
    P = check_fedfomo(federation, model, explore=explore)
    assert (P > 0).any() and (P < 0).any()


def test_fedfomo_with_more_models_than_there_are_takes_all_of_them(federation):
    check_fedfomo(federation, models=9)


def test_fedfomo_remembers_the_strongest_affinities_where_it_cannot_remember_all(federation):
    method = il.FedFomo(models=4, remembered=2)
    server = run(method, federation, rounds=6).session().server
    rows = server.rows.all()
    assert rows["known"].shape == rows["affinity"].shape == (N, 2)
    assert (affinities(rows, torch.arange(N)) != 0).sum(1).max() == 2


def test_fedfomo_of_a_client_alone_is_local_bit_for_bit():
    alone = setting.make_federation(sizes=(20,))
    local = outcome(run(il.Local(lr=0.2, steps=4), alone, sample=1))
    mixed = outcome(run(il.FedFomo(lr=0.2, steps=4), alone, sample=1))
    np.testing.assert_array_equal(mixed["personal"], local["personal"])


def test_fedfomo_needs_validation_data(federation):
    X, y = federation.part(0, "train")
    data = il.Federation.from_arrays(X, y.numpy(), np.arange(len(y)) % 2)
    with pytest.raises(il.SettingError, match="decides by validation data, and no client has any"):
        run(il.FedFomo(), data, sample=2)


# -- pFedGraph -------------------------------------------------------------------------------------
@every_model
@pytest.mark.parametrize(("alpha", "lam"), [(0.8, 0.3), (0.2, -0.3), (3.0, 0)])
def test_pfedgraph_is_its_alternation_of_graph_and_models(federation, model, alpha, lam):
    fields = {"lr": 0.3, "steps": 4, "alpha": alpha, "lam": lam}
    expected = pfedgraph(*Case(federation, model).first, **fields)
    assert_equals(run(il.PFedGraph(**fields), federation, model), expected, federation, model)


@every_model
def test_pfedgraph_tied_to_shares_of_samples_is_fedavg(federation, model):
    method = il.PFedGraph(lr=0.3, steps=4, alpha=1e15, lam=0)
    graph = outcome(run(method, federation, model, sample=N))
    average = outcome(run(il.FedAvg(lr=0.3, steps=4), federation, model, sample=N))
    shares = graph["rows samples"] / graph["rows samples"].sum()
    np.testing.assert_allclose((shares * graph["rows models"]).sum(0), average["server w"])


def test_pfedgraph_with_hardly_any_tie_starts_each_client_from_its_own_model(federation):
    method = il.PFedGraph(lr=0.3, steps=4, alpha=1e-6, lam=0)
    result = run(method, federation, sample=N)
    server, task = result.session().server, result.session().contract.task
    own = server.rows.all()["models"]
    torch.testing.assert_close(
        method.address(task, server.rows.all(), torch.arange(N))["w"], own, rtol=0, atol=1e-12
    )


def test_pfedgraph_gives_who_never_trained_the_mean_of_all(federation):
    result = run(il.PFedGraph(), federation, rounds=1)
    after = outcome(result)
    shares = after["rows samples"] / after["rows samples"].sum()
    mean = (shares * after["rows models"]).sum(0)
    untrained = after["private trained"][:, 0] == 0
    assert untrained.sum() == N - setting.SAMPLE
    np.testing.assert_allclose(after["personal"][untrained], np.tile(mean, (4, 1)))
