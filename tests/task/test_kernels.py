"""Every kernel gives the gradients and losses of plain autograd, one model at a time."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from idiolect import Task, models
from idiolect.task.batches import Batch
from idiolect.task.kernels.rows import over_threads
from task.common import Skip, Text, a_batch, rows, same


class Own(nn.Module):
    """A user's own module: flattening by view, activations as functions."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 5)
        self.b = nn.Linear(5, 4, bias=False)
        self.c = nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.a(x.view(x.size(0), -1)))
        return self.c(torch.tanh(self.b(x)))


class Flattened(Own):
    def forward(self, x):
        return self.c(self.b(self.a(x.flatten(1)).relu()).sigmoid())


class Reshaped(Own):
    def forward(self, x):
        return self.c(F.silu(self.b(self.a(x.reshape(x.shape[0], -1)).tanh())))


class Gelu(Own):
    def forward(self, x):
        return self.c(F.gelu(self.b(F.gelu(self.a(torch.flatten(x, 1))))))


CHAINS = {
    "a bare linear layer": (nn.Linear(6, 3), (6,)),
    "a bare linear layer without bias": (nn.Linear(6, 3, bias=False), (6,)),
    "an MLP": (
        nn.Sequential(
            nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)
        ),
        (2, 3),
    ),
    "every activation": (
        nn.Sequential(
            nn.Linear(6, 5),
            nn.GELU(),
            nn.Linear(5, 5, bias=False),
            nn.SiLU(),
            nn.Sigmoid(),
            nn.Linear(5, 3),
            nn.Identity(),
        ),
        (6,),
    ),
    "nested Sequentials": (
        nn.Sequential(
            nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True)), nn.Sequential(nn.Linear(5, 3))
        ),
        (6,),
    ),
    "an activation at the end": (nn.Sequential(nn.Linear(6, 3), nn.Tanh()), (6,)),
    "view": (Own(), (2, 3)),
    "flatten and methods": (Flattened(), (2, 3)),
    "reshape by shape[0]": (Reshaped(), (2, 3)),
    "dropout of nothing": (
        nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.0), nn.ReLU(), nn.Linear(5, 3)),
        (6,),
    ),
    "the built-in mlp": (models.make("mlp", (2, 3), 3, hidden="5,4"), (2, 3)),
    "the built-in linear": (models.make("linear", (2, 3), 3), (2, 3)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_linear_layers_are_stacked_and_agree_with_autograd(name):
    module, inputs = CHAINS[name]
    assert same(module, a_batch(inputs), ("stacked", "vmap", "rows")).kernel == "stacked"


@pytest.mark.parametrize("name", ["an MLP", "every activation", "nested Sequentials", "view"])
def test_hessian_products_of_stacked_models_are_those_of_each_model_by_itself(name):
    module, inputs = CHAINS[name]
    batch = a_batch(inputs)
    task = Task(module).under(dtype=torch.float64)
    x = rows(task)
    v = torch.randn(x.shape, dtype=torch.float64)
    by_rows = task.under(kernel="rows").hvp(x, v, batch)
    torch.testing.assert_close(task.under(kernel="stacked").hvp(x, v, batch), by_rows)
    assert by_rows.abs().max() > 0


def test_a_loss_with_straight_pieces_has_no_curvature():
    batch = a_batch((6,))
    real = Batch(batch.inputs, batch.targets.double(), batch.weights, batch.tally)
    task = Task(nn.Linear(6, 1), "l1").under(dtype=torch.float64, kernel="stacked")
    x = rows(task)
    assert torch.equal(task.hvp(x, torch.ones_like(x), real), torch.zeros_like(x))


@pytest.mark.parametrize(
    ("module", "inputs", "kernel"),
    [
        (Gelu(), (2, 3), "vmap"),
        (Skip(), (6,), "vmap"),
        (models.make("lenet", (1, 16, 16), 3), (1, 16, 16), "rows"),
    ],
    ids=["functions not on the list", "a skip", "lenet"],
)
def test_other_modules_take_vmap_or_rows_and_agree_with_autograd(module, inputs, kernel):
    assert same(module, a_batch(inputs), ("vmap", "rows")).kernel == kernel


def test_resnet_small_agrees_under_vmap_and_rows():
    module = models.make("resnet-small", (1, 9, 9), 3, groups=8)
    assert same(module, a_batch((1, 9, 9)), ("vmap", "rows")).kernel == "rows"


def test_a_text_model_on_tokens_agrees_under_vmap_and_rows():
    assert same(Text(), a_batch((4,), tokens=11), ("vmap", "rows")).kernel == "vmap"


@pytest.mark.parametrize(
    "module",
    [nn.Linear(6, 3), nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))],
    ids=["linear", "mlp"],
)
def test_a_sample_with_a_sequence_of_targets_weighs_their_mean(module):
    same(module, a_batch((7, 6), targets=(7,)), ("stacked", "vmap", "rows"))


@pytest.mark.slow
def test_the_compiled_kernel_agrees_with_autograd():
    same(nn.Linear(2, 2), a_batch((2,), classes=2), ("compiled",))


def test_masked_samples_do_not_matter():
    task = Task(Own()).under(dtype=torch.float64)
    batch = a_batch((2, 3))
    other = batch.inputs.clone()
    other[0, 3:] = 1e6
    other[1, 1:] = -1e6
    moved = Batch(other, batch.targets, batch.weights, batch.tally)
    for kernel in ("stacked", "vmap", "rows"):
        t = task.under(kernel=kernel)
        assert torch.equal(t.grad(rows(task), batch), t.grad(rows(task), moved)), kernel


LAYERS = st.lists(
    st.sampled_from(
        ["relu", "tanh", "sigmoid", "gelu", "silu", "linear", "linear without bias", "nothing"]
    ),
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(LAYERS, st.integers(1, 5), st.booleans())
def test_any_chain_stacked_equals_vmap(kinds, width, square):
    made = {
        "relu": nn.ReLU,
        "tanh": nn.Tanh,
        "sigmoid": nn.Sigmoid,
        "gelu": nn.GELU,
        "silu": nn.SiLU,
        "nothing": nn.Identity,
    }
    now = 4
    layers = [nn.Flatten()]
    for kind in kinds:
        if kind.startswith("linear"):
            layers.append(nn.Linear(now, width, bias=kind == "linear"))
            now = width
        else:
            layers.append(made[kind]())
    module = nn.Sequential(*layers, nn.Linear(now, 1 if square else 3))
    loss = "mse" if square else "cross_entropy"
    assert (
        same(module, a_batch((2, 2), classes=0 if square else 3), ("stacked", "vmap"), loss).kernel
        == "stacked"
    )


def test_a_layer_used_twice_has_the_sum_of_both_gradients():
    layer = nn.Linear(6, 6)
    same(
        nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3)),
        a_batch((6,)),
        ("auto", "vmap", "rows"),
    )


def test_tied_weights_have_one_gradient_in_every_kernel():
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    module[2].weight = module[0].weight
    assert same(module, a_batch((6,)), ("auto", "vmap", "rows")).d == 6 * 6 + 6 + 6


def test_frozen_layers_are_constants_in_every_kernel():
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    assert same(module, a_batch((6,)), ("auto", "vmap", "rows")).d == 15


def test_a_layer_with_frozen_bias_agrees_in_every_kernel():
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    module[0].bias.requires_grad_(False)
    same(module, a_batch((6,)), ("auto", "vmap", "rows"))


def test_flattening_after_a_linear_layer_agrees_with_autograd():
    same(
        nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 3)),
        a_batch((2, 3)),
        ("auto", "vmap", "rows"),
    )


def test_a_layer_that_is_never_used_has_a_zero_gradient_in_every_kernel():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 3)
            self.spare = nn.Linear(40, 40)

        def forward(self, x):
            return self.a(x)

    task = Task(Spare()).under(dtype=torch.float64)
    batch = a_batch((6,))
    for kernel in ("auto", "vmap", "rows"):
        assert not task.under(kernel=kernel).grad(rows(task), batch)[:, 21:].any(), kernel


def test_rows_on_two_threads_are_the_rows_on_one():
    task = Task(lambda: models.make("lenet", (3, 32, 32), 10))
    rng = torch.Generator().manual_seed(0)
    x = task.x0 + 0.01 * torch.randn(5, task.d, generator=rng)
    inputs = torch.rand(5, 8, 3, 32, 32, generator=rng)
    targets = torch.randint(10, (5, 8), generator=rng)
    batch = Batch(inputs, targets, torch.full((5, 8), 1 / 8), torch.zeros(5, dtype=torch.int64))
    before = torch.get_num_threads()
    one = task.grad(x, batch), task.outputs(x, inputs)
    try:
        torch.set_num_threads(2)
        two = task.grad(x, batch), task.outputs(x, inputs)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert task.kernel == "rows"
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_an_error_on_another_thread_is_not_lost():
    def work(i):
        if i:
            raise ValueError("thread 1")

    with pytest.raises(ValueError, match="thread 1"):
        over_threads(work, 2)


def test_rows_that_are_all_at_rest_have_no_gradient():
    task = Task(lambda: models.make("lenet", (3, 32, 32), 10))
    batch = Batch(
        torch.rand(2, 4, 3, 32, 32),
        torch.zeros(2, 4, dtype=torch.int64),
        torch.zeros(2, 4),
        torch.zeros(2, dtype=torch.int64),
    )
    assert not task.grad(task.x0.repeat(2, 1), batch).any()
    assert task.outputs_of_one(task.x0, torch.rand(0, 3, 32, 32)).shape == (0, 10)


def test_a_task_with_a_mapped_kernel_goes_to_another_process_even_after_use():
    batch = a_batch((6,))
    task = Task(Own()).under(dtype=torch.float64, kernel="vmap")
    x = rows(task)
    before = task.grad(x, batch)
    again = pickle.loads(pickle.dumps(task))
    assert again.kernel == "vmap" and torch.equal(again.grad(x, batch), before)
