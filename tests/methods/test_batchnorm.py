"""Running statistics beside any method, against plain loops over torch modules."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import idiolect as il
from helpers import with_public
from idiolect.core import streams
from idiolect.methods import METHODS, make_method
from idiolect.methods.batchnorm import with_statistics
from idiolect.task.context import Here

CLIENTS, ROUNDS, LR, STEPS, BATCH = 4, 3, 0.1, 3, 8


def a_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48, 3),
            nn.BatchNorm1d(3, momentum=None),  # a cumulative mean: it needs the count
        )


@pytest.fixture(scope="module")
def federation() -> il.Federation:
    g = torch.Generator().manual_seed(0)
    ids = [k for k in range(CLIENTS) for _ in range(20 + 7 * k)]
    x = torch.randn(len(ids), 1, 4, 4, generator=g, dtype=torch.float64)
    x = x + torch.tensor(ids).view(-1, 1, 1, 1)  # clients differ in their means
    y = torch.randint(3, (len(ids),), generator=g)
    return il.Federation.from_arrays(x, y, ids)


def batches(federation: il.Federation, k: int, round: int, batching: str) -> Here:
    """The mini-batches of one client in a round."""
    return Here(
        federation,
        torch.tensor([k]),
        clients=streams.name_keys(federation.names)[k : k + 1],
        seed=0,
        round=round,
        batch=BATCH,
        batching=batching,
        dtype=torch.float64,
    )


def train(module: nn.Module, here: Here, steps: int, pull=None) -> None:
    """SGD as anybody writes it: forward in training mode changes the statistics."""
    module.train()
    for _ in range(steps):
        batch = here.draw()
        real = batch.weights[0] > 0
        out = module(batch.inputs[0][real])
        module.zero_grad()
        F.cross_entropy(out, batch.targets[0][real]).backward()
        with torch.no_grad():
            for name, p in module.named_parameters():
                p -= LR * (p.grad + (0 if pull is None else pull(name, p)))


def mean(modules: list[nn.Module], weights: list[int], names: set[str]) -> dict:
    total = sum(weights)
    states = [m.state_dict() for m in modules]
    return {
        n: sum(w * s[n].double() for w, s in zip(weights, states, strict=True)) / total
        for n in names
    }


def assert_is(found: nn.Module, wanted: nn.Module) -> None:
    for name, value in wanted.state_dict().items():
        torch.testing.assert_close(
            found.state_dict()[name].double(), value.double(), rtol=0, atol=1e-10, msg=name
        )


def run(method, federation, how, batching="replace", **more):
    return il.run(
        method,
        il.Task(a_net()),
        federation,
        rounds=ROUNDS,
        sample=CLIENTS,
        batch=BATCH,
        batching=batching,
        dtype="float64",
        statistics=how,
        **more,
    )


@pytest.mark.parametrize("batching", ["replace", "epochs"])
def test_fedavg_averages_statistics_as_a_plain_loop_does(federation, batching):
    result = run(il.FedAvg(lr=LR, steps=STEPS), federation, "averaged", batching)
    server = a_net().double()
    counts = {"1.num_batches_tracked", "5.num_batches_tracked"}
    for round in range(ROUNDS):
        clients = []
        for k in range(CLIENTS):
            clients.append(copy.deepcopy(server))
            train(clients[-1], batches(federation, k, round, batching), STEPS)
        merged = mean(clients, federation.sizes("train").tolist(), set(server.state_dict()))
        server.load_state_dict(
            {n: v.round().long() if n in counts else v for n, v in merged.items()}
        )
    for id in federation.ids:
        assert_is(result.personal(id), server.eval())


def test_fedbn_keeps_the_statistics_of_every_client(federation):
    result = run(il.FedAvg(lr=LR, steps=STEPS), federation, "private")
    start = a_net().double()
    weights = {n for n, _ in start.named_parameters()}
    clients = [copy.deepcopy(start) for _ in range(CLIENTS)]
    for round in range(ROUNDS):
        for k, client in enumerate(clients):
            train(client, batches(federation, k, round, "replace"), STEPS)
        merged = mean(clients, federation.sizes("train").tolist(), weights)
        for client in clients:
            client.load_state_dict(merged, strict=False)
    for id, client in zip(federation.ids, clients, strict=True):
        assert_is(result.personal(id), client.eval())
    assert result.session().contract.method.shared(result.session().contract.task, {}) is None


@pytest.mark.parametrize("how", ["averaged", "private"])
def test_the_personal_model_of_ditto_has_statistics_of_its_own(federation, how):
    method = il.Ditto(lr=LR, steps=STEPS, personal_lr=LR, personal_steps=2, lam=0.5)
    result = run(method, federation, how)
    server = a_net().double()
    personal = [copy.deepcopy(server) for _ in range(CLIENTS)]
    private = [copy.deepcopy(server) for _ in range(CLIENTS)]
    weights = {n for n, _ in server.named_parameters()}
    for round in range(ROUNDS):
        w = {n: p.detach().clone() for n, p in server.named_parameters()}
        shared = []
        for k in range(CLIENTS):
            shared.append(copy.deepcopy(server))
            if how == "private":
                shared[k] = private[k]
                shared[k].load_state_dict({n: v.clone() for n, v in w.items()}, strict=False)
            here = batches(federation, k, round, "replace")
            train(shared[k], here, STEPS)
            train(personal[k], here, 2, pull=lambda n, p, w=w: 0.5 * (p.detach() - w[n]))
        names = weights if how == "private" else set(server.state_dict())
        merged = mean(shared, [1] * CLIENTS, names)
        server.load_state_dict(
            {n: v.round().long() if n.endswith("tracked") else v for n, v in merged.items()},
            strict=False,
        )
    for id, module in zip(federation.ids, personal, strict=True):
        assert_is(result.personal(id), module.eval())


# statistics of several models; one at the end of the model; several exchanges
REFUSING = {"fedem", "fedrod", "feddane"}


@pytest.mark.parametrize("name", sorted(set(METHODS) - REFUSING))
@pytest.mark.parametrize("how", ["averaged", "private"])
def test_every_method_runs_a_model_with_batch_norm(federation, name, how, tmp_path):
    method = make_method(name)
    more = {
        "rounds": 2,
        "batch": 8,
        "statistics": how,
        "sample": 0 if method.traits.hears_all else 3,
    }
    federation = with_public(method, federation)
    result = il.run(method, il.Task(a_net()), federation, directory=tmp_path / "a", **more)
    assert 0 <= result.summary()["accuracy"]["mean"] <= 1
    task = il.Task(a_net())
    again = il.load(tmp_path / "a", task=task, federation=federation)
    for id in federation.ids:
        assert_is(again.personal(id), result.personal(id))


# statistics stay at the clients where there is no mean of all
PROTOTYPES = ("fedproto", "fedtgp", "fedmd")
ADDRESSED = ("fedamp", "heurfedamp", "pfedhn", "cfl", "fedfomo", "pfedgraph")


def test_statistics_travel_only_with_a_model_that_is_sent():
    own = il.Task(a_net())
    # models at home, and posteriors that train from models drawn
    homely = ("local", "lp-proj", "rsa", "l2gd", "pfedbayes", *PROTOTYPES, *ADDRESSED)
    for name in METHODS:
        method = make_method(name)
        task = method.extended(own)
        wrapped = with_statistics(method, task, "averaged")
        sent = wrapped.message(task).get("statistics", 0)
        alone = name.startswith(homely) and name != "local-ffgg"
        assert sent == (0 if alone else task.statistics.m), name
        assert "statistics" not in with_statistics(method, task, "private").message(task)
        assert with_statistics(method, il.Task(nn.Linear(2, 2)), "averaged") is method


def test_a_robust_rule_selects_statistics_with_the_message_they_came_in(federation):
    krum = run(il.FedAvg(lr=LR, steps=STEPS), federation, "averaged", rule="krum(f=0)")
    one = run(il.FedAvg(lr=LR, steps=STEPS), federation, "averaged", rule="median")
    for result in (krum, one):
        module = result.personal(0)
        assert bool((module[1].running_var > 0).all())
    assert krum.personal(0)[1].num_batches_tracked == ROUNDS * STEPS


def test_a_negative_mean_variance_is_no_variance(federation):
    result = run(
        il.FedAvg(lr=LR, steps=STEPS),
        federation,
        "averaged",
        attack="sign-flip",
        malicious=2,
    )
    assert bool((result.personal(0)[1].running_var >= 0).all())


def test_the_result_says_what_was_done_with_statistics(federation):
    for how in ("averaged", "private"):
        result = run(il.FedAvg(), federation, how)
        assert result.record.notes["statistics"] == {"numbers": 14, "how": how}
        assert result.summary()["statistics"]["how"] == how
        assert f"running statistics: {how}" in str(result)
    assert run(il.Local(), federation, "averaged").summary()["statistics"]["how"] == "private"


@pytest.mark.parametrize("how", ["averaged", "private"])
def test_a_next_stage_starts_from_the_model_with_its_statistics(federation, how):
    results = il.pipeline(
        [(il.FedAvg(lr=LR), 2), (il.Local(steps=0), 1)],
        il.Task(a_net()),
        federation,
        sample=CLIENTS,
        batch=BATCH,
        statistics=how,
    )
    first, last = (r.personal(0).state_dict() for r in results)
    names = [n for n in first if "running" not in n and "tracked" not in n]
    assert all(torch.equal(first[n], last[n]) for n in names)
    if how == "averaged":
        torch.testing.assert_close(last["1.running_mean"], first["1.running_mean"])


def test_private_states_of_optimisers_and_statistics_go_together(federation):
    more = {"optimizer": "adam", "optimizer_state": "private"}
    result = run(il.Ditto(), federation, "private", **more)
    rows = result.session().hosts[0].store.read(torch.arange(CLIENTS))
    assert {"statistics.w", "statistics.v", "optimizer.v.exp_avg", "v"} <= set(rows)
