"""A term that a method adds to the loss is differentiated as plain autograd differentiates it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from idiolect import SettingError, Task
from idiolect.core.types import map_tree
from idiolect.task import Pass, Term
from task.common import K, Skip, a_batch, rows

KERNELS = ("stacked", "vmap", "rows")
CHAIN = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
HIDDEN = {"0": 5, "1": 5, "2": 4, "3": 4, "4": 3, "head": 4}  # layer -> its features
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def by_autograd(task, x, batch, term):
    """The gradient of loss and term, one model at a time, on the real samples alone."""
    sizes = (batch.weights > 0).sum(1).tolist()
    return torch.stack([of_client(task, x[k], batch, term, k, n) for k, n in enumerate(sizes)])


def of_client(task, x, batch, term, k, n):
    flat = x.clone().requires_grad_()
    features = []
    hook = None
    if term.layer:
        layer = task.module.get_submodule({"head": "3"}.get(term.layer, term.layer))
        hook = layer.register_forward_hook(lambda module, args, output: features.append(output))
    parameters = task.layout.unflatten(flat)
    outputs = functional_call(task.module, parameters, (batch.inputs[k, :n],))
    if hook:
        hook.remove()
    weights, targets = batch.weights[k, :n], batch.targets[k, :n]
    scores = outputs["logits"] if isinstance(outputs, dict) else outputs
    loss = (F.cross_entropy(scores, targets, reduction="none") * weights).sum()
    one = map_tree(lambda t: t[None], outputs)
    run = Pass(one, targets[None], weights[None], features[0][None] if features else None)
    added = {name: t[k : k + 1] for name, t in term.rows.items()}
    added |= {name: t[k : k + 1, :n] for name, t in term.samples.items()}
    value = term.function(run, added)[0]
    value = (value * weights).sum() if value.dim() else value
    total = term.loss * loss + value
    return torch.autograd.grad(total, flat, allow_unused=True, materialize_grads=True)[0]


def check(term, kernel, module=CHAIN):
    task = Task(module).under(dtype=torch.float64, kernel=kernel)
    batch = a_batch((6,))
    x = rows(task)
    got = task.grad(x, batch, extra=term)
    torch.testing.assert_close(got, by_autograd(task, x, batch, term), rtol=0, atol=1e-12)
    assert batch.tally.tolist() == [1] * K  # one gradient, whatever is added to the loss


def some(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


# -- what a term may look at -----------------------------------------------------------------------
@every_kernel
@pytest.mark.parametrize("layer", HIDDEN)
def test_a_term_of_the_features_of_any_layer(kernel, layer):
    """Each layer, by its name, with a row for each client and a target for each sample."""
    size = HIDDEN[layer]

    def away(run, given):
        gap = run.features - given["centre"].unsqueeze(1) - given["shift"]
        return gap.square().mean(-1)

    shift = some(K, 5, size)
    check(Term(away, layer, rows={"centre": some(K, size)}, samples={"shift": shift}), kernel)


@every_kernel
@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_loss_beside_a_term_weighs_what_it_is_told(kernel, weight):
    def teacher(run, given):
        return F.kl_div(
            run.outputs.log_softmax(-1), given["answers"].softmax(-1), reduction="none"
        ).sum(-1)

    check(Term(teacher, samples={"answers": some(K, 5, 3)}, loss=weight), kernel)


@every_kernel
def test_a_term_may_have_one_value_for_each_client(kernel):
    def class_means(run, given):
        shares = F.one_hot(run.targets, 3).to(run.weights) * run.weights.unsqueeze(-1)
        sums = shares.transpose(1, 2) @ run.features
        return (sums - given["centre"]).square().sum((1, 2))

    check(Term(class_means, "head", rows={"centre": some(K, 3, 4)}), kernel)


@every_kernel
def test_a_term_by_client_sees_the_real_samples_of_one_client_at_a_time(kernel):
    sizes = []

    def contrast(run, given):
        z = F.normalize(run.features, dim=-1)
        sizes.append(tuple(z.shape[:2]))
        alike = (z @ z.transpose(1, 2) / 0.5).logsumexp(-1)
        return alike - (z * given["anchor"]).sum(-1)

    term = Term(contrast, "head", samples={"anchor": some(K, 5, 4)}, by_client=True)
    check(term, kernel)
    assert sizes[:K] == [(1, 3), (1, 1), (1, 5)]  # as the weights of the batch say


@pytest.mark.parametrize("kernel", ["vmap", "rows"])
def test_a_term_of_outputs_that_are_a_dict(kernel):
    class Two(Skip):
        def forward(self, x):
            z = torch.relu(self.a(x))
            return {"logits": self.b(z), "aux": z.tanh()}

    def second(run, given):
        return (run.outputs["aux"] - given["near"]).abs().sum(-1)

    check(Term(second, samples={"near": some(K, 5, 6)}), kernel, Two())
    check(Term(second, samples={"near": some(K, 5, 6)}, loss=0.0), kernel, Two())


@pytest.mark.parametrize("kernel", ["vmap", "rows"])
def test_a_layer_that_skips_is_differentiated_through_all_its_paths(kernel):
    check(Term(lambda run, given: run.features.square().sum(-1), "a"), kernel, Skip())


@every_kernel
def test_rows_that_have_stopped_are_not_counted(kernel):
    task = Task(CHAIN).under(dtype=torch.float64, kernel=kernel)
    batch = a_batch((6,)).only(torch.tensor([True, False, True]))
    task.grad(rows(task), batch, Term(lambda run, given: run.outputs.sum(-1)))
    assert batch.tally.tolist() == [1, 0, 1]


# -- features --------------------------------------------------------------------------------------
@every_kernel
@pytest.mark.parametrize("layer", HIDDEN)
def test_features_are_what_the_layer_returns(kernel, layer):
    task = Task(CHAIN).under(dtype=torch.float64, kernel=kernel)
    x = rows(task)
    inputs = a_batch((6,)).inputs
    end = {"head": 3}.get(layer) or int(layer)
    for k, features in enumerate(task.features(x, inputs, layer)):
        model = task.module_of(x[k])
        torch.testing.assert_close(features, model[: end + 1](inputs[k]), rtol=0, atol=1e-12)


# -- errors ----------------------------------------------------------------------------------------
def refused(term, match, module=CHAIN, kernel="auto"):
    task = Task(module).under(dtype=torch.float64, kernel=kernel)
    with pytest.raises(SettingError, match=match):
        task.grad(rows(task), a_batch((6,)), extra=term)


@every_kernel
def test_a_layer_that_is_not_there_is_refused_by_name(kernel):
    refused(Term(lambda run, given: run.features.sum(-1), "body"), "layer.*'body'", kernel=kernel)


@pytest.mark.parametrize("kernel", ["vmap", "rows"])
def test_a_layer_that_the_model_never_calls_is_refused_by_name(kernel):
    class Idle(Skip):
        def __init__(self):
            super().__init__()
            self.idle = nn.Identity()

    term = Term(lambda run, given: run.features.sum(-1), "idle")
    refused(term, "layer must be one that the model calls.*'idle'", Idle(), kernel)


@every_kernel
def test_a_term_of_another_shape_is_refused_with_the_shape_that_it_has(kernel):
    refused(
        Term(lambda run, given: run.outputs), r"extra: .* must return a value per", kernel=kernel
    )
