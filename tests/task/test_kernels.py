"""Every kernel gives the gradients and losses of plain autograd, one model at a time; and the fixed rule that chooses among them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from idiolect import Federation, Task, models
from idiolect.core.knobs import SettingError
from idiolect.core.streams import name_keys
from idiolect.task.batches import Batch, Batches
from idiolect.task.kernels import layer_chain
from idiolect.task.kernels.threads import over_threads

K, B = 3, 5


class Own(nn.Module):
    """A user's own module: flattening by view, activations as functions."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 5), nn.Linear(5, 4, bias=False), nn.Linear(4, 3)

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


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.b(x + torch.relu(self.a(x)))


class Text(nn.Module):
    """Tokens [B, T] to class scores."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.words(x).mean(1))


def plain(task: Task, x: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(losses, gradients) with nothing but autograd, a model at a time: sum_i weight_i * mean over the targets of sample i."""
    losses, gradients = [], []
    for k in range(len(x)):
        flat = x[k].clone().requires_grad_()
        each = task.criterion.each(
            functional_call(task.module, task.layout.unflatten(flat), (batch.inputs[k],)),
            batch.targets[k],
        )
        loss = (each.reshape(len(each), -1).mean(1) * batch.weights[k]).sum()
        losses.append(loss.detach())
        gradients.append(torch.autograd.grad(loss, flat)[0])
    return torch.stack(losses), torch.stack(gradients)


def a_batch(
    inputs: tuple[int, ...], targets: tuple[int, ...] = (), classes: int = 3, tokens: int = 0
) -> Batch:
    """Uneven weights, some rows masked."""
    g = torch.Generator().manual_seed(1)
    x = (
        torch.randint(tokens, (K, B, *inputs), generator=g)
        if tokens
        else torch.randn(K, B, *inputs, generator=g, dtype=torch.float64)
    )
    if classes:
        y = torch.randint(classes, (K, B, *targets), generator=g)
    else:
        y = torch.randn(K, B, *targets, generator=g, dtype=torch.float64)
    weights = torch.rand(K, B, generator=g, dtype=torch.float64)
    weights[0, 3:], weights[1, 1:] = 0, 0
    return Batch(x, y, weights / weights.sum(1, keepdim=True), torch.zeros(K, dtype=torch.int64))


def rows(task: Task) -> torch.Tensor:
    """Different models, so that a mixed-up row shows."""
    return task.x0 + 0.3 * torch.randn(
        K, task.d, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )


def same(module: nn.Module, batch: Batch, kernels: tuple[str, ...], loss="cross_entropy") -> Task:
    task = Task(module, loss, dtype=torch.float64)
    x = rows(task)
    losses, gradients = plain(task, x, batch)
    for kernel in kernels:
        t = task.to(kernel=kernel)
        torch.testing.assert_close(t.loss(x, batch), losses, rtol=0, atol=1e-10)
        torch.testing.assert_close(t.grad(x, batch), gradients, rtol=0, atol=1e-10)
    return task


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
    "the catalogue's mlp": (models.make("mlp", (2, 3), 3, hidden="5,4"), (2, 3)),
    "the catalogue's linear": (models.make("linear", (2, 3), 3), (2, 3)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_linear_layers_are_stacked_and_agree_with_autograd(name):
    module, inputs = CHAINS[name]
    assert same(module, a_batch(inputs), ("stacked", "vmap", "rows")).kernel == "stacked"


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
    assert (
        same(
            models.make("resnet-small", (1, 9, 9), 3, groups=8),
            a_batch((1, 9, 9)),
            ("vmap", "rows"),
        ).kernel
        == "rows"
    )


def test_a_text_model_on_tokens_agrees_under_vmap_and_rows():
    assert same(Text(), a_batch((4,), tokens=11), ("vmap", "rows")).kernel == "vmap"


@pytest.mark.parametrize(
    "module",
    [nn.Linear(6, 3), nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))],
    ids=["linear", "mlp"],
)
def test_a_sample_with_a_sequence_of_targets_weighs_their_mean(module):
    same(module, a_batch((7, 6), targets=(7,)), ("stacked", "vmap", "rows"))


def squared_margin(outputs, targets):
    """A user's loss: one value per sample."""
    return (1 - outputs.gather(1, targets.unsqueeze(1)).squeeze(1)) ** 2


LOSSES = {
    "cross_entropy": ("cross_entropy", 3, 3),
    "logistic": ("logistic", 1, 2),
    "mse": ("mse", 1, 0),
    "half_squared": ("half_squared", 1, 0),
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), 3, 3),
    "class weights": (
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)),
        3,
        3,
    ),
    "huber": (nn.HuberLoss(), 1, 0),
    "a function": (squared_margin, 3, 3),
    "torch's function": (F.smooth_l1_loss, 1, 0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_the_same_gradient_in_every_kernel(name):
    loss, outputs, classes = LOSSES[name]
    same(
        nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs)),
        a_batch((6,), classes=classes),
        ("stacked", "vmap", "rows"),
        loss,
    )


@pytest.mark.parametrize(
    ("loss", "each"),
    [
        ("cross_entropy", lambda out, y: F.cross_entropy(out, y, reduction="none")),
        (
            nn.CrossEntropyLoss(label_smoothing=0.1),
            lambda out, y: F.cross_entropy(out, y, reduction="none", label_smoothing=0.1),
        ),
        (
            "logistic",
            lambda out, y: F.binary_cross_entropy_with_logits(
                out[:, 0], y.double(), reduction="none"
            ),
        ),
        ("mse", lambda out, y: (out[:, 0] - y) ** 2),
        ("half_squared", lambda out, y: (out[:, 0] - y) ** 2 / 2),
    ],
)
def test_losses_are_torchs(loss, each):
    task = Task(nn.Linear(6, 1), loss)
    outputs = torch.randn(
        8, 1 if isinstance(loss, str) and loss != "cross_entropy" else 3, dtype=torch.float64
    )
    targets = (
        torch.randn(8, dtype=torch.float64)
        if loss in ("mse", "half_squared")
        else torch.randint(2, (8,))
    )
    torch.testing.assert_close(task.criterion.each(outputs, targets), each(outputs, targets))


def test_a_loss_that_returns_one_number_is_refused():
    task = Task(nn.Linear(6, 3), lambda out, y: F.cross_entropy(out, y), dtype=torch.float64)
    with pytest.raises(SettingError, match="one value per sample"):
        task.loss(rows(task), a_batch((6,)))


def test_several_real_targets_per_sample_agree_in_every_kernel():
    same(
        nn.Linear(6, 4), a_batch((6,), targets=(4,), classes=0), ("vmap", "rows", "stacked"), "mse"
    )


@pytest.mark.slow
def test_the_compiled_kernel_agrees_with_autograd():
    same(nn.Linear(2, 2), a_batch((2,), classes=2), ("compiled",))


def test_masked_samples_do_not_matter():
    task, batch = Task(Own(), dtype=torch.float64), a_batch((2, 3))
    other = batch.inputs.clone()
    other[0, 3:], other[1, 1:] = 1e6, -1e6
    moved = Batch(other, batch.targets, batch.weights, batch.tally)
    for kernel in ("stacked", "vmap", "rows"):
        t = task.to(kernel=kernel)
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
    now, layers = 4, [nn.Flatten()]
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


# -- the rule of choice ------------------------------------------------------------------------------------------------------
class Looks(nn.Module):
    """Data-dependent control flow: cannot be traced."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x):
        return self.a(x) if x.shape[0] > 0 else x


class Twice(nn.Module):
    """Two uses of one value: looks like a chain from the end."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.a(x) * self.b(x)


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 3))
    module[0].register_forward_hook(lambda m, i, o: 2 * o)
    return module


@pytest.mark.parametrize(
    "module",
    [
        Skip(),
        Twice(),
        Text(),
        Scaled(6, 3),
        nn.Sequential(Scaled(6, 3)),
        hooked(),
        nn.Sequential(nn.Linear(6, 4), nn.GELU(approximate="tanh"), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
        nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)),
        nn.Sequential(nn.ReLU()),
        models.make("resnet-small", (1, 9, 9), 3),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_is_not_a_chain_is_not_taken_for_one(module):
    assert layer_chain(module) is None


def test_the_rule_is_fixed():
    mlp = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    assert Task(mlp).kernel == "stacked"
    assert Task(models.make("lenet", (1, 16, 16), 3)).kernel == "rows"
    assert Task(nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 3))).kernel == "rows"
    assert Task(nn.TransformerEncoderLayer(8, 2, 8, dropout=0.1)).kernel == "rows"
    assert Task(Skip()).kernel == "vmap"
    assert Task(Looks()).kernel == "vmap"
    for kernel in ("vmap", "rows", "compiled"):
        assert Task(mlp, kernel=kernel).kernel == kernel


def test_convolutions_away_from_the_cpu_take_vmap():
    assert Task(models.make("lenet", (1, 16, 16), 3), device="meta").kernel == "vmap"


@pytest.mark.parametrize(
    ("module", "kernel", "says"),
    [
        (Skip(), "stacked", "'vmap', 'rows' or 'compiled'"),
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), "vmap", "'rows'"),
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), "stacked", "'rows'"),
        (nn.Linear(6, 3), "vmapped", "auto, stacked, vmap, rows, compiled"),
    ],
)
def test_forcing_an_impossible_kernel_says_what_would_do(module, kernel, says):
    with pytest.raises(SettingError, match=says):
        Task(module, kernel=kernel)


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


# -- randomness inside a model -----------------------------------------------------------------------------------------------
FEDERATION = Federation.from_arrays(
    np.random.default_rng(0).standard_normal((30, 6)),
    np.arange(30) % 3,
    np.repeat(np.arange(K), 10),
)


def drawn(clients: list[int], round: int = 0) -> Batch:
    """A batch with the keys of these clients' own randomness."""
    data = FEDERATION.to("cpu", torch.float64)
    batches = Batches(
        data,
        torch.tensor(clients),
        seed=0,
        round=round,
        names=name_keys(data.names),
        batch=B,
        batching="replace",
        dtype=torch.float64,
    )
    return batches.draw()


class DropsInForward(nn.Module):
    """As in torch's MNIST example: dropout as a function, which no list of layers shows."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv1d(1, 4, 3), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(F.dropout(self.conv(x.unsqueeze(1)).flatten(1), 0.5, self.training))


DROPOUT = {
    "a layer": nn.Sequential(nn.Linear(6, 20), nn.Dropout(0.5), nn.Linear(20, 3)),
    "a function": DropsInForward(),
}


@pytest.mark.parametrize("kind", DROPOUT)
def test_a_clients_dropout_does_not_depend_on_the_cohort(kind):
    task = Task(DROPOUT[kind], dtype=torch.float64)
    x = rows(task)
    together = task.grad(x, drawn([0, 1, 2]))
    torch.manual_seed(123)
    for k in (2, 0, 1):
        assert torch.equal(task.grad(x[k : k + 1], drawn([k]))[0], together[k])


@pytest.mark.parametrize("kind", DROPOUT)
def test_dropout_is_new_in_every_step_and_round(kind):
    task = Task(DROPOUT[kind], dtype=torch.float64)
    x, first, later = rows(task), drawn([0, 1, 2]), drawn([0, 1, 2], round=1)
    on_the_same_data = replace(later, inputs=first.inputs, targets=first.targets)
    assert not torch.equal(task.grad(x, first), task.grad(x, on_the_same_data))


@pytest.mark.parametrize("kind", DROPOUT)
def test_dropout_leaves_the_global_generator_alone(kind):
    task = Task(DROPOUT[kind], dtype=torch.float64)
    before = torch.get_rng_state()
    task.grad(rows(task), drawn([0, 1, 2]))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", DROPOUT)
def test_dropout_is_off_when_a_model_is_used(kind):
    task = Task(DROPOUT[kind], dtype=torch.float64)
    batch, x = drawn([0, 1, 2]), rows(task)
    task.grad(x, batch)
    together = task.outputs(x, batch.inputs)
    for k in range(K):
        with torch.no_grad():
            alone = task.module_of(x[k])(batch.inputs[k])
        torch.testing.assert_close(together[k], alone)
        torch.testing.assert_close(task.outputs_of_one(x[k], batch.inputs[k]), alone)


def test_dropout_in_the_forward_of_linear_layers_is_refused_or_trains():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 20), nn.Linear(20, 3)

        def forward(self, x):
            return self.b(F.dropout(torch.relu(self.a(x)), 0.5, self.training))

    try:
        task = Task(Net(), dtype=torch.float64)
        assert torch.equal(
            task.grad(rows(task), drawn([0, 1, 2])), task.grad(rows(task), drawn([0, 1, 2]))
        )
    except SettingError as error:
        assert "'rows'" in str(error)
    task = Task(Net(), kernel="rows", dtype=torch.float64)
    assert torch.equal(
        task.grad(rows(task), drawn([0, 1, 2])), task.grad(rows(task), drawn([0, 1, 2]))
    )


def test_a_layer_that_is_never_used_has_a_zero_gradient_in_every_kernel():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.spare = nn.Linear(6, 3), nn.Linear(40, 40)

        def forward(self, x):
            return self.a(x)

    task, batch = Task(Spare(), dtype=torch.float64), a_batch((6,))
    for kernel in ("auto", "vmap", "rows"):
        assert not task.to(kernel=kernel).grad(rows(task), batch)[:, 21:].any(), kernel


def test_rows_on_two_threads_are_the_rows_on_one():
    task = Task(lambda: models.make("lenet", (3, 32, 32), 10))
    rng = torch.Generator().manual_seed(0)
    x = task.x0 + 0.01 * torch.randn(5, task.d, generator=rng)
    inputs, targets = (
        torch.rand(5, 8, 3, 32, 32, generator=rng),
        torch.randint(10, (5, 8), generator=rng),
    )
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
