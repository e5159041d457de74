"""Rows stepped together are what each client's own optimiser would make of its own model."""

import itertools

import pytest
import torch
from torch import nn

import idiolect as il
from helpers import classification, private_of, run, state_of
from idiolect.core.knobs import SettingError
from idiolect.methods import make_method
from idiolect.run.schedule import Schedule
from idiolect.task.client_optimizer import (
    ELEMENTWISE,
    ClientOptimizer,
    Optimise,
    Piece,
    Steps,
    optimizers,
)
from reference.draws import Draws

OPTIONS = {
    "sgd": "momentum=0.9, dampening=0.3, weight_decay=0.01",
    "adam": "amsgrad=True, weight_decay=0.01",
    "adamw": "weight_decay=0.1",
    "rmsprop": "centered=True, momentum=0.5",
    "adagrad": "initial_accumulator_value=0.2, lr_decay=0.1",
    "nadam": "decoupled_weight_decay=True, weight_decay=0.1",
    "asgd": "t0=3, lambd=0.01",
}
SIZES = (30, 12, 50, 8, 20, 25)  # three fifths of them are for training: 18, 7, 30, 5, 12, 15


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))


def one_by_one(
    federation,
    name,
    options,
    *,
    rounds=5,
    sample=3,
    private=False,
    epochs=0,
    steps=5,
    lr=0.05,
    mu=0.0,
    personal=None,
    schedule="constant",
    groups=(("", 1.0),),
    batching="epochs",
    batch=4,
):
    """FedAvg (FedProx with mu, Ditto with personal steps) as a plain loop over modules.

    Every client has a module and an optimiser of torch; `groups` are beginnings of parameter names
    with factors on the learning rate.
    """
    rate = Schedule.parse(schedule).factors
    draws = Draws(federation, 0, batch, batching)
    task = il.Task(net).under(dtype=torch.float64)
    shared = task.module_of(task.x0)
    made: dict = {}
    copies = [task.module_of(task.x0) for _ in range(federation.clients)]
    own = [task.module_of(task.x0) for _ in range(federation.clients)]

    def optimizer(module, i, which, factor):
        """The client's own one if it keeps it, else a new one; with the round's learning rates."""
        named = list(module.named_parameters())
        parts = [
            {"params": [p for n, p in named if n.startswith(start)], "lr": lr * factor * scale}
            for start, scale in groups
        ]
        if not private or (which, i) not in made:
            made[which, i] = optimizers()[name](parts, **eval(f"dict({options})"))
        for group, part in zip(made[which, i].param_groups, parts, strict=True):
            group["lr"] = part["lr"]
        return made[which, i]

    def train(module, i, batches, count, which, factor, pulled, strength):
        X, y = federation.part(i, "train")
        chosen = optimizer(module, i, which, factor)
        module.train()
        for _ in range(count):
            index = next(batches)
            chosen.zero_grad()
            loss = nn.functional.cross_entropy(module(X.double()[index]), y[index])
            for p, q in zip(module.parameters(), pulled, strict=True):
                loss = loss + strength / 2 * (p - q).square().sum()
            loss.backward()
            chosen.step()

    for t, cohort in enumerate(draws.cohorts(rounds, sample)):
        received = [p.detach().clone() for p in shared.parameters()]
        sums = [torch.zeros_like(p) for p in received]
        weights = 0
        for i in range(federation.clients) if personal else cohort:
            batches = draws.batches(t, i)
            module = copies[i]
            for p, q in zip(module.parameters(), received, strict=True):
                p.data.copy_(q)
            count = draws.passes(epochs)[i] if epochs else steps
            factor = rate(t, rounds).get("rates", 1)
            train(module, i, batches, count, "w", factor, received, mu)
            if personal:
                train(own[i], i, batches, personal[1], "v", factor, received, personal[0])
            if i in cohort:
                n = 1 if personal else draws.sizes[i]
                weights += n
                for total, p in zip(sums, module.parameters(), strict=True):
                    total += n * p.detach()
        for p, total in zip(shared.parameters(), sums, strict=True):
            p.data.copy_(total / weights)
    flat = [torch.cat([p.detach().flatten() for p in m.parameters()]) for m in [shared, *own]]
    return flat[0], torch.stack(flat[1:])


def close(a, b):
    return torch.allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("state", ["reset", "private"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_fedavg_is_a_loop_over_clients_with_an_optimiser_each(name, state):
    """Sampled clients come back after different numbers of steps, and passes differ in length."""
    federation = classification(SIZES)
    options = OPTIONS.get(name, "")
    expected, _ = one_by_one(
        federation,
        name,
        options,
        private=state == "private",
        epochs=1,
        schedule="cosine",
    )
    result = run(
        il.FedAvg(lr=0.05, epochs=1),
        federation,
        il.Task(net),
        rounds=5,
        batch=4,
        batching="epochs",
        schedule="cosine",
        optimizer=name,
        optimizer_options=options,
        optimizer_state=state,
    )
    assert close(state_of(result)["w"], expected)


@pytest.mark.parametrize("state", ["reset", "private"])
def test_the_proximal_gradient_goes_through_the_optimiser(state):
    federation = classification(SIZES)
    settings = {"optimizer": "adam", "optimizer_options": "eps=1e-6", "optimizer_state": state}
    private = state == "private"
    expected, _ = one_by_one(federation, "adam", "eps=1e-6", private=private, mu=0.7)
    method = il.FedProx(lr=0.05, mu=0.7)
    usual = {"rounds": 5, "batch": 4, "batching": "epochs"}
    result = run(method, federation, il.Task(net), **usual, **settings)
    assert close(state_of(result)["w"], expected)


@pytest.mark.parametrize("state", ["reset", "private"])
def test_the_shared_and_the_personal_model_of_ditto_have_an_optimiser_each(state):
    federation = classification(SIZES)
    expected, personal = one_by_one(
        federation, "adamw", "", private=state == "private", personal=(0.3, 4)
    )
    method = il.Ditto(lr=0.05, steps=5, personal_lr=0.05, personal_steps=4, lam=0.3)
    usual = {"rounds": 5, "batch": 4, "batching": "epochs"}
    result = run(
        method, federation, il.Task(net), **usual, optimizer="adamw", optimizer_state=state
    )
    assert close(state_of(result)["w"], expected)
    assert close(private_of(result)["v"], personal)


@pytest.mark.parametrize("state", ["reset", "private"])
@pytest.mark.parametrize("name", ["fedalt", "fedsim"])
def test_either_part_of_a_split_model_has_an_optimiser(name, state):
    """FedAlt steps the head, then the rest; FedSim both at once, each at its own rate."""
    federation = classification(SIZES)
    draws = Draws(federation, 0, 4, "epochs")
    task = il.Task(net).under(dtype=torch.float64)
    modules = [task.module_of(task.x0) for _ in SIZES]
    parts = [(list(m[2].parameters()), list(m[0].parameters())) for m in modules]
    shared = [p.detach().clone() for p in modules[0][0].parameters()]
    made: dict = {}
    for t, cohort in enumerate(draws.cohorts(5, 3)):
        received = shared
        shared = [torch.zeros_like(p) for p in received]
        for i in cohort:
            X, y = federation.part(i, "train")
            batches = draws.batches(t, i)
            for p, q in zip(parts[i][1], received, strict=True):
                p.data.copy_(q)
            if state == "reset" or i not in made:
                rates = (0.05, 0.02)
                pairs = zip(parts[i], rates, strict=True)
                made[i] = [torch.optim.Adam(group, lr=lr) for group, lr in pairs]
            both = name == "fedsim"
            for which in (made[i],) if both else ([made[i][0]], [made[i][1]]):
                for _ in range(4 if both or which[0] is made[i][0] else 3):
                    index = next(batches)
                    modules[i].zero_grad()
                    loss = nn.functional.cross_entropy(modules[i](X.double()[index]), y[index])
                    loss.backward()
                    for optimizer in which:
                        optimizer.step()
            for total, p in zip(shared, parts[i][1], strict=True):
                total += draws.sizes[i] / sum(draws.sizes[k] for k in cohort) * p.detach()
    fields = {"steps": 4} if name == "fedsim" else {"steps": 3, "private_steps": 4}
    method = make_method(name, lr=0.02, private_lr=0.05, **fields)
    usual = {"rounds": 5, "batch": 4, "batching": "epochs"}
    result = run(method, federation, il.Task(net), **usual, optimizer="adam", optimizer_state=state)
    assert close(state_of(result)["theta"], torch.cat([p.flatten() for p in shared]))
    heads = torch.stack([torch.cat([p.detach().flatten() for p in head]) for head, _ in parts])
    assert close(private_of(result)["w"], heads)


@pytest.mark.parametrize(
    ("name", "state"),
    [("sgd", "reset"), ("adam", "reset"), ("adam", "private"), ("asgd", "private")],
)
def test_a_scale_is_the_learning_rate_of_a_parameter_group(name, state):
    federation = classification(SIZES)
    expected, _ = one_by_one(
        federation,
        name,
        "",
        private=state == "private",
        epochs=1,
        groups=(("0.", 0.5), ("2.weight", 3.0), ("2.bias", 0.0)),
    )
    result = run(
        il.FedAvg(lr=0.05, epochs=1),
        federation,
        il.Task(net),
        rounds=5,
        batch=4,
        batching="epochs",
        optimizer=name,
        optimizer_state=state,
        lr_scale="0.*=0.5, 2.*=3, 2.bias=0",
    )
    assert close(state_of(result)["w"], expected)


def test_fused_steps_are_the_same_steps():
    x = torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pieces = [Piece(0, 3, 2.0), Piece(3, 7, 0.5)]
    plain = Steps(ClientOptimizer("adam"), pieces, x, 0.1)
    fused = Steps(ClientOptimizer("adam", "fused=True"), pieces, x, 0.1)
    for k in range(4):
        active = torch.tensor([True, k < 2, True, k < 1])
        assert close(plain(x + k, active), fused(x + k, active))


def test_a_row_that_is_done_stays_where_it_is_with_its_state():
    fitted = ClientOptimizer("adam", "", "private").fit(
        il.Task(nn.Linear(2, 1)).layout, {"w": None}
    )
    optimise = Optimise(fitted)
    optimise.adopt(fitted.blank(2, torch.zeros(3)))
    steps = optimise.begin("w", torch.zeros(2, 3), 0.1)
    both = torch.ones(2, 3)
    after_one = steps(both).clone()
    for _ in range(3):
        after = steps(both, torch.tensor([False, True]))
    kept = optimise.kept()
    assert torch.equal(after[0], after_one[0]) and not torch.equal(after[1], after_one[1])
    assert kept["w.count"].flatten().tolist() == [1, 4]
    assert kept["w.step"].flatten().tolist() == [1.0, 4.0]
    assert torch.allclose(kept["w.exp_avg"][0], torch.full((3,), 0.1))


def test_the_rows_given_are_left_as_they_are():
    x = torch.zeros(2, 3)
    rows = {"count": torch.ones(2, 1, dtype=torch.int64), "momentum_buffer": torch.ones(2, 3)}
    steps = Steps(ClientOptimizer("sgd", "momentum=0.9"), [Piece(0, 3, 1.0)], x, 0.1, rows)
    steps(torch.ones(2, 3))
    assert not x.any() and bool((rows["momentum_buffer"] == 1).all())
    assert bool((steps.state()["momentum_buffer"] == 1.9).all())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": "lbfgs"}, "optimizer cannot be 'lbfgs' at the clients: it searches"),
        ({"optimizer": "muon"}, "makes whole matrices orthogonal"),
        ({"optimizer": "adafactor"}, "means over the rows and columns"),
        ({"optimizer": "sparseadam"}, "sparse gradients"),
        ({"optimizer": "adm"}, "did you mean 'adam'"),
        ({"optimizer": "adam", "optimizer_options": "lr=1"}, "does not fit adam"),
        ({"optimizer": "adam", "optimizer_options": "beta=1"}, "does not fit adam"),
        ({"optimizer": "adam", "optimizer_options": "0.9"}, "optimizer_options must be name=value"),
        ({"optimizer": "adam", "optimizer_options": "differentiable=True"}, "differentiable"),
        ({"optimizer_state": "private"}, "sgd, which has no state to keep"),
        ({"optimizer_state": "kept"}, "one of 'reset', 'private'"),
        ({"lr_scale": "head"}, "must be pattern=factor pairs"),
        ({"lr_scale": "head=-1"}, "must be pattern=factor pairs"),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings, words):
    with pytest.raises(SettingError) as error:
        il.Settings(**settings)
    assert words in str(error.value)


def test_every_optimiser_of_torch_is_offered_or_refused_for_a_reason():
    known = {
        n.lower()
        for n, found in vars(torch.optim).items()
        if isinstance(found, type) and issubclass(found, torch.optim.Optimizer)
    } - {"optimizer"}
    for name in known - set(ELEMENTWISE):
        with pytest.raises(SettingError, match=r"cannot be .* at the clients: it "):
            ClientOptimizer(name)


def test_plain_steps_make_no_optimiser():
    """torch takes seconds over the first one of a process: plain runs do without."""
    calls = itertools.count()
    before = torch.optim.Optimizer.__init__

    def counted(*args, **named):
        next(calls)
        before(*args, **named)

    torch.optim.Optimizer.__init__ = counted
    try:
        run(il.Ditto(), rounds=1)
    finally:
        torch.optim.Optimizer.__init__ = before
    assert next(calls) == 0
