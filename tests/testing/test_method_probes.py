"""A newcomer's mistakes that no run shows are caught by name; methods that are right are not."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

from idiolect import FedAvg, Method, Scaffold, Traits, solvers, testing
from idiolect.testing import combined, counted, meaning, through_gradients

SETTINGS = {"rounds": 3, "sample": 3, "batch": 8, "dtype": "float64", "eval_every": 1}
NONLINEAR = replace(FedAvg.traits, linear=False)


def caught(check, method, *words):
    with pytest.raises(AssertionError) as error:
        check(method, SETTINGS)
    for word in words:
        assert word in str(error.value)


# -- aggregate without the rule --------------------------------------------------------------------
def mean_of_rows(self, task, server, up, rule):
    return {"w": up["w"].mean(0)}


def own_weights(self, task, server, up, rule):
    share = rule.samples / rule.samples.sum()
    return {"w": share @ up["w"]}


def half_and_half(self, task, server, up, rule):
    return {"w": (rule(up)["w"] + up["w"].mean(0)) / 2}


def own_median(self, task, server, up, rule):
    return {"w": up["w"].median(0).values}


def the_nearest(self, task, server, up, rule):
    return {"w": up["w"][(up["w"] - server["w"]).norm(dim=1).argmin()]}


def signs_counted(self, task, server, up, rule):
    votes = (up["w"] > server["w"]).sum(0) - (up["w"] < server["w"]).sum(0)
    return {"w": server["w"] + 0.01 * votes}


def scaled_by_the_spread(self, task, server, up, rule):
    return {"w": rule(up)["w"] * (1 - 0.01 * up["w"].std(0))}


BYPASSES = (
    *(mean_of_rows, own_weights, half_and_half, own_median, the_nearest),
    *(signs_counted, scaled_by_the_spread),
)


@pytest.mark.parametrize("aggregate", BYPASSES)
def test_messages_that_pass_by_the_rule_are_caught(aggregate):
    wrong = type("Wrong", (FedAvg,), {"aggregate": aggregate, "traits": NONLINEAR})
    caught(combined, wrong(), "server 'w' depends on the messages in another way than", "robust")


def test_one_part_that_passes_by_the_rule_is_caught():
    @dataclass(frozen=True)
    class Wrong(Scaffold):
        def aggregate(self, task, server, up, rule):
            after = super().aggregate(task, server, up, rule)
            return after | {"c": server["c"] + up["c"].mean(0)}

    caught(combined, Wrong(), "server 'c' depends on the messages")


def test_rows_that_are_averaged_before_the_rule_are_caught():
    @dataclass(frozen=True)
    class Wrong(FedAvg):
        def aggregate(self, task, server, up, rule):
            return rule({"w": up["w"].mean(0, keepdim=True)}, rule.samples[:1])

    caught(combined, Wrong(), "given 1 rows 'w' of 6 clients")


@pytest.mark.parametrize(
    "mix",
    [
        lambda rows: rows.mean(0).expand_as(rows),
        lambda rows: rows - 0.1 * rows.mean(0),
        lambda rows: rows.sort(0).values,
        lambda rows: rows.cumsum(0),
    ],
    ids=["mean", "centred", "sorted", "sums"],
)
def test_rows_that_are_mixed_before_the_rule_are_caught(mix):
    @dataclass(frozen=True)
    class Wrong(FedAvg):
        traits = NONLINEAR

        def aggregate(self, task, server, up, rule):
            return rule({"w": mix(up["w"])})

    caught(combined, Wrong(), "mix the messages of several clients")


def test_the_whole_suite_finds_it():
    wrong = type("Wrong", (FedAvg,), {"aggregate": mean_of_rows, "traits": FedAvg.traits})
    with pytest.raises(AssertionError, match=r"Wrong: .*`rule`"):
        testing.check_method(wrong(weighting="equal"))


# -- gradients that nobody counts ------------------------------------------------------------------
def with_steps(step):
    """FedAvg whose two local steps are by this gradient."""

    @dataclass(frozen=True)
    class Own(FedAvg):
        def update(self, task, down, private, here):
            x = down["w"].expand(here.rows, -1).clone()
            for _ in range(2):
                x = x - self.lr * step(task, x, here.draw())
            return {"w": x}, private

    return Own()


def value(task, x, inputs, targets):
    """The loss of one model on one mini-batch, by the module itself."""
    outputs = functional_call(task.module, task.layout.unflatten(x), inputs)
    return F.cross_entropy(outputs, targets)


def by_module_and_autograd(task, x, batch):
    rows = []
    for k in range(len(x)):
        leaf = x[k].clone().requires_grad_()
        loss = value(task, leaf, batch.inputs[k], batch.targets[k])
        rows.append(torch.autograd.grad(loss, leaf)[0])
    return torch.stack(rows)


def by_backward(task, x, batch):
    rows = []
    for k in range(len(x)):
        module = task.module_of(x[k])
        F.cross_entropy(module(batch.inputs[k]), batch.targets[k]).backward()
        rows.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    return torch.stack(rows)


def by_torch_func(task, x, batch):
    return vmap(grad(lambda x, *sample: value(task, x, *sample)))(x, batch.inputs, batch.targets)


def by_own_layers(task, x, batch):
    """The model written again: no module is called."""
    leaf = x.clone().requires_grad_()
    p = task.layout.unflatten(leaf)
    names = list(p)
    h = torch.tanh(torch.einsum("kbi,koi->kbo", batch.inputs, p[names[0]]) + p[names[1]][:, None])
    out = torch.einsum("kbi,koi->kbo", h, p[names[2]]) + p[names[3]][:, None]
    loss = F.cross_entropy(out.flatten(0, 1), batch.targets.flatten(), reduction="none")
    return torch.autograd.grad((loss * batch.weights.flatten()).sum(), leaf)[0]


def by_kernel(task, x, batch):
    return task._kernel.grad(x, batch, task.criterion)


def also_by_the_task(task, x, batch):
    """One counted gradient, and a second one that is not."""
    return (task.grad(x, batch) + by_torch_func(task, x, batch)) / 2


def with_another_tally(task, x, batch):
    return task.grad(x, replace(batch, tally=torch.zeros_like(batch.tally)))


UNCOUNTED = (
    *(by_module_and_autograd, by_backward, by_torch_func, by_own_layers),
    *(by_kernel, also_by_the_task, with_another_tally),
)


@pytest.mark.parametrize("step", UNCOUNTED)
def test_gradients_that_are_not_counted_are_caught(step):
    word = "tally" if step is with_another_tally else "outside of task.grad"
    caught(counted, with_steps(step), word)


def test_uncounted_gradients_before_use_are_caught():
    @dataclass(frozen=True)
    class Wrong(FedAvg):
        def personal(self, task, down, private, here):
            x = down["w"].expand(here.rows, -1)
            return x - 0.1 * by_backward(task, x, here.draw())

    caught(counted, Wrong(), "autograd and the model used on training data")


# -- changes and models ----------------------------------------------------------------------------
@dataclass(frozen=True)
class SendsChange(FedAvg):
    """Right but for what it declares: a change under the name of the model."""

    def update(self, task, down, private, here):
        up, private = super().update(task, down, private, here)
        return {"w": up["w"] - down["w"]}, private

    def aggregate(self, task, server, up, rule):
        return {"w": server["w"] + rule(up)["w"]}


@dataclass(frozen=True)
class SendsGradient(Method):
    lr: float = 0.1

    def update(self, task, down, private, here):
        x = down["w"].expand(here.rows, -1)
        return {"w": task.grad(x, here.draw())}, private

    def aggregate(self, task, server, up, rule):
        return {"w": server["w"] - self.lr * rule(up)["w"]}


@dataclass(frozen=True)
class SendsDelta(Method):
    """A change with a name of its own."""

    lr: float = 0.1

    def message(self, task):
        return {"delta": task.d}

    def update(self, task, down, private, here):
        x = solvers.sgd(task, down["w"].expand(here.rows, -1), here, self.lr, 3)
        return {"delta": x - down["w"]}, private

    def aggregate(self, task, server, up, rule):
        return {"w": server["w"] + rule(up)["delta"]}


def declaring(method, *changes):
    traits = replace(type(method).traits, changes=changes)
    cls = dataclass(frozen=True)(type("Declared", (type(method),), {"traits": traits}))
    return cls()


@pytest.mark.parametrize(
    ("method", "name"),
    [(SendsChange(), "w"), (SendsGradient(), "w"), (SendsDelta(), "delta")],
    ids=["change", "gradient", "delta"],
)
def test_a_change_that_is_not_declared_is_caught_and_passes_where_it_is(method, name):
    caught(meaning, method, f"the part {name!r} of the message is a change", "must name")
    meaning(declaring(method, name), SETTINGS)


def test_models_that_are_declared_as_changes_are_caught():
    @dataclass(frozen=True)
    class Relaxed(FedAvg):
        def aggregate(self, task, server, up, rule):
            return {"w": 0.5 * server["w"] + 0.5 * rule(up)["w"]}

    for method in (FedAvg(), Relaxed()):
        meaning(method, SETTINGS)
        caught(meaning, declaring(method, "w"), "'w' of the message is a model", "must not name")


@pytest.mark.parametrize(
    ("changes", "wrong"), [((), "w"), (("w",), "c"), (("c",), "w")], ids=["none", "w", "c"]
)
def test_one_wrong_part_of_two_is_named(changes, wrong):
    """SCAFFOLD sends two changes: of the model w, and of its control variate c."""
    meaning(Scaffold(), SETTINGS)
    caught(meaning, declaring(Scaffold(), *changes), f"the part {wrong!r} of the message is a ch")


# -- right methods ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Momentum(FedAvg):
    """A server that keeps what it moved by."""

    traits = replace(FedAvg.traits, linear=False)

    def server(self, task):
        return {"w": task.x0.clone(), "v": torch.zeros_like(task.x0)}

    def aggregate(self, task, server, up, rule):
        v = 0.9 * server["v"] + rule({"w": up["w"] - server["w"]})["w"]
        return {"w": server["w"] + v, "v": v}


@dataclass(frozen=True)
class TwoPasses(FedAvg):
    """Rows are cut to a ball around a first aggregate."""

    traits = NONLINEAR

    def aggregate(self, task, server, up, rule):
        centre = rule(up)["w"]
        change = up["w"] - centre
        cut = (1 / change.norm(dim=-1, keepdim=True)).clamp(max=1)
        return {"w": centre + rule({"w": change * cut})["w"]}


@dataclass(frozen=True)
class Penalised(FedAvg):
    """The gradient of a penalty on the model, by autograd: no gradient of the loss."""

    def update(self, task, down, private, here):
        x = down["w"].expand(here.rows, -1).clone()
        for _ in range(3):
            leaf = x.clone().requires_grad_()
            penalty = torch.autograd.grad(leaf.abs().pow(1.5).sum(), leaf)[0]
            x = x - self.lr * (task.grad(x, here.draw()) + 0.01 * penalty)
        return {"w": x}, private


@dataclass(frozen=True)
class ClassMeans(Method):
    """Statistics of the data beside a model, and no gradient for them."""

    traits = Traits(uncompressed=("means",))
    lr: float = 0.3

    def message(self, task):
        return {"w": task.d, "means": 5}

    def server(self, task):
        return {"w": task.x0.clone(), "means": task.x0.new_zeros(5)}

    def update(self, task, down, private, here):
        x = solvers.sgd(task, down["w"].expand(here.rows, -1), here, self.lr, 5)
        batch = here.draw()
        means = (batch.inputs * batch.weights.unsqueeze(-1)).sum(1)
        return {"w": x, "means": means}, private


@dataclass(frozen=True)
class Choosy(FedAvg):
    """Predictions of the task's own functions need no gradient, and none is counted."""

    def update(self, task, down, private, here):
        up, private = super().update(task, down, private, here)
        batch = here.draw()
        trained, received = (task.loss(x, batch) for x in (up["w"], down["w"].expand_as(up["w"])))
        task.outputs(up["w"], batch.inputs)
        better = (trained < received).unsqueeze(-1)
        return {"w": torch.where(better, up["w"], down["w"])}, private


RIGHT = (Momentum(), TwoPasses(), Penalised(), ClassMeans(), Choosy())


@pytest.mark.parametrize("method", RIGHT, ids=lambda method: type(method).__name__)
def test_right_methods_pass(method):
    for check in (combined, meaning, counted):
        check(method, SETTINGS)


# -- data by another way than gradients ------------------------------------------------------------
PRIVATE = replace(FedAvg.traits, data_through_gradients=True)


@dataclass(frozen=True)
class SendsLabels(FedAvg):
    """How often each class occurs goes up in the last numbers of the model."""

    traits = PRIVATE

    def update(self, task, down, private, here):
        up, rows = super().update(task, down, private, here)
        share = (here.draw().targets == 0).double().mean(1)
        return {"w": torch.cat([up["w"][:, :-1], share.unsqueeze(1)], 1)}, rows


@dataclass(frozen=True)
class KeepsAMean(FedAvg):
    """The mean input stays with the client, where a later message may depend on it."""

    traits = PRIVATE

    def private(self, task, clients):
        return {"mean": task.x0.new_zeros(len(clients), 1)}

    def update(self, task, down, private, here):
        up, _ = super().update(task, down, {}, here)
        return up, {"mean": here.draw().inputs.mean((1, 2)).unsqueeze(1)}


@dataclass(frozen=True)
class StepsByTheError(FedAvg):
    traits = PRIVATE

    def update(self, task, down, private, here):
        error = here.validate(down["w"].expand(here.rows, -1))
        up, rows = super().update(task, down, private, here)
        return {"w": up["w"] * (1 + error.unsqueeze(1))}, rows


@dataclass(frozen=True)
class StopsByTheLoss(FedAvg):
    traits = PRIVATE

    def update(self, task, down, private, here):
        up, rows = super().update(task, down, private, here)
        return {"w": up["w"] + task.loss(up["w"], here.draw()).unsqueeze(1)}, rows


@dataclass(frozen=True)
class OverridesUpdate(FedAvg):
    """It has the traits of its parent, and other equations."""

    def update(self, task, down, private, here):
        return super().update(task, down, private, here)


@pytest.mark.parametrize(
    ("method", "word"),
    [
        (SendsLabels, "up.w depends on training data"),
        (KeepsAMean, "private.mean depends on training data"),
        (StepsByTheError, "validation data cannot be used"),
        (StopsByTheLoss, "the loss of a mini-batch cannot be used"),
    ],
)
def test_data_that_leave_by_another_way_than_gradients_are_caught(method, word):
    caught(through_gradients, method(), "data_through_gradients", word)


def test_a_subclass_with_equations_of_its_own_declares_them_again():
    assert FedAvg().traits.data_through_gradients
    assert not OverridesUpdate().traits.data_through_gradients
    assert SendsLabels().traits.data_through_gradients
