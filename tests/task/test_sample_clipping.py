"""Clipped gradients are those of one sample at a time: by autograd, clipped, and summed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from helpers import numbered
from idiolect import Federation, SettingError, Task, models
from idiolect.core.streams import name_keys
from idiolect.core.types import map_tree
from idiolect.task.batches import Batch
from idiolect.task.context import Here
from idiolect.task.sample_clipping import SampleClipping
from idiolect.task.term import Term
from task.common import K, Skip, Text, a_batch, rows


class Tagger(nn.Module):
    """Words to a class, by LSTM layers."""

    def __init__(self, **options):
        super().__init__()
        self.words = nn.Embedding(11, 4, padding_idx=options.pop("padding", None))
        self.lstm = nn.LSTM(4, 5, batch_first=True, **options)
        self.head = nn.Linear(5 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x):
        return self.head(self.lstm(self.words(x))[0][:, -1])


class Tokens(nn.Module):
    """A class token, learned positions and scales, as in vision transformers."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.positions = nn.Parameter(torch.randn(1, 8, 6))
        self.scale = nn.Parameter(torch.randn(6))
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        x = x + torch.tanh(self.mix(x)) * self.scale
        return self.head(x[:, 0] + x.mean(1))


class TimeFirst(nn.Module):
    """Linear layers whose first axis is that of the positions."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.inner(x.transpose(0, 1)).tanh().mean(0))


class Branches(nn.Module):
    """Control flow that depends on data, which torch.func cannot map."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6))

    def forward(self, x):
        rows = [r @ self.weight.t() * (2 if r.sum().item() > 0 else 1) for r in x]
        return torch.stack(rows)


class Transposed(nn.Module):
    """The linear layers of GPT-2 in transformers: weight[inputs, outputs]."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, 6), self.weight).view(*x.shape[:-1], 3).mean(1)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 4)
        self.head = nn.Linear(4 + 6, 3)

    def forward(self, tokens, numbers):
        return self.head(torch.cat([self.words(tokens).mean(1), numbers], 1))


def transformer(**options):
    sizes = {"blocks": 2, "heads": 2, "width": 8, "hidden": 16}
    return models.make("transformer", (6,), 11, **sizes, **options)


def lora():
    module = models.adapt(transformer(), rank=2)
    for name, p in module.named_parameters():
        p.requires_grad_("adapter" in name)
    return module


def frozen_body():
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    module[0].requires_grad_(False)
    return module


TEXT = {"inputs": (6,), "targets": (6,), "classes": 11, "tokens": 11}
WORDS = {"inputs": (6,), "tokens": 11}
PICTURES = {"inputs": (1, 8, 8)}
CASES = {  # module, the batch, the way that the kernels "rows" and "vmap" take
    "linear": (nn.Linear(6, 3), {"inputs": (6,)}, "recorded"),
    "mlp": (models.make("mlp", (2, 3), 3, hidden="5,4"), {"inputs": (2, 3)}, "recorded"),
    "no bias": (
        nn.Sequential(nn.Linear(6, 5, bias=False), nn.GELU(), nn.Linear(5, 3)),
        {"inputs": (6,)},
        "recorded",
    ),
    "positions": (
        nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3)),
        {"inputs": (2, 6), "targets": (2,)},
        "recorded",
    ),
    "lenet": (models.make("lenet", (1, 16, 16), 3), {"inputs": (1, 16, 16)}, "recorded"),
    "convolutions": (
        nn.Sequential(
            nn.Conv2d(1, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
            nn.GroupNorm(2, 4),
            nn.ReLU(inplace=True),
            nn.Flatten(2),
            nn.Conv1d(4, 2, 3, padding=1, bias=False),
            nn.LayerNorm(40),
            nn.Flatten(),
            nn.Linear(80, 3),
        ),
        PICTURES,
        "recorded",
    ),
    "convolutions in groups": (
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Tanh()
        ).append(nn.Linear(64, 3)),
        PICTURES,
        "mapped",
    ),
    "skip": (Skip(), {"inputs": (6,)}, "recorded"),
    "text": (Text(), WORDS, "recorded"),
    "lstm": (Tagger(), WORDS, "recorded"),
    "deep lstm": (Tagger(num_layers=2, bidirectional=True, padding=3), WORDS, "recorded"),
    "transformer": (transformer(), TEXT, "recorded"),
    "untied transformer": (transformer(tied=False), TEXT, "recorded"),
    "lora": (lora(), TEXT, "recorded"),
    "torch's transformer": (
        nn.Sequential(
            nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), nn.Flatten()
        ).append(nn.Linear(42, 3)),
        {"inputs": (7, 6)},
        "mapped",
    ),
    "tokens of the model": (Tokens(), {"inputs": (7, 6)}, "recorded"),
    "transposed weights": (Transposed(), {"inputs": (7, 6)}, "recorded"),
    "time first": (TimeFirst(), {"inputs": (7, 6)}, "mapped"),
    "as many positions as samples": (TimeFirst(), {"inputs": (3, 6)}, "mapped"),
    "branches": (Branches(), {"inputs": (6,)}, "single"),
    "frozen body": (frozen_body(), {"inputs": (6,)}, "recorded"),
}


BY_CLIENT = ("lenet", "convolutions", "lstm", "deep lstm")  # one client after the other


def obvious(task: Task, x: torch.Tensor, batch: Batch, norm: float) -> torch.Tensor:
    """One sample at a time by autograd, clipped, summed; over the number of samples expected."""
    g = torch.zeros_like(x)
    for k in range(len(x)):
        for s in range(batch.weights.shape[1]):
            if batch.weights[k, s] == 0:
                continue
            flat = x[k].clone().requires_grad_()
            one = map_tree(lambda t, k=k, s=s: t[k, s : s + 1], batch.inputs)
            args = one if isinstance(one, tuple) else (one,)
            outputs = functional_call(task.module, task.layout.unflatten(flat), args)
            value = task.criterion.each(outputs, batch.targets[k, s : s + 1]).mean()
            (gradient,) = torch.autograd.grad(value, flat)
            g[k] += gradient * min(1.0, norm / float(gradient.norm()))
    return g / batch.expected_samples().unsqueeze(1)


def kernels_of(task: Task, **changes):
    for kernel in ("stacked", "vmap", "rows"):
        try:
            other = task.under(kernel=kernel, **changes)
        except SettingError:  # no chain of linear layers
            continue
        yield other


def same(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_every_kernel_gives_what_a_loop_over_samples_gives(name):
    module, form, way = CASES[name]
    batch = a_batch(**form)  # of 5, 3 and 1 samples
    task = Task(module).under(dtype=torch.float64)
    x = rows(task)
    expected = obvious(task, x, batch, 0.7)
    plain = obvious(task, x, batch, math.inf)
    assert (expected - plain).abs().max() > 1e-3  # it clips
    for clipped in kernels_of(task, sample_clipping=SampleClipping(0.7)):
        same(clipped.grad(x, batch), expected)
        if clipped.kernel != "stacked":
            assert clipped._sample_sums.way == way
        if (clipped.kernel, way) == ("vmap", "recorded"):  # all clients in one pass
            assert clipped._sample_sums.together == (name not in BY_CLIENT)
    assert batch.tally.tolist() == [len(list(kernels_of(task)))] * K  # counted as other gradients


@pytest.mark.parametrize("name", ["mlp", "lenet", "lstm", "lora", "skip", "branches"])
def test_a_row_is_the_same_alone_and_among_others(name):
    module, form, _ = CASES[name]
    batch = a_batch(**form)
    task = Task(module).under(dtype=torch.float64)
    x = rows(task)
    for clipped in kernels_of(task, sample_clipping=SampleClipping(0.7)):
        together = clipped.grad(x, batch)
        for k in range(K):
            n = int((batch.weights[k] > 0).sum())
            alone = Batch(
                batch.inputs[k : k + 1, :n],
                batch.targets[k : k + 1, :n],
                batch.weights[k : k + 1, :n],
                torch.zeros(1, dtype=torch.int64),
            )
            same(clipped.grad(x[k : k + 1], alone)[0], together[k], 1e-12)


def test_large_cohorts_are_rows_of_small_ones():
    task = Task(models.make("mlp", (6,), 3, hidden="5")).under(dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(5, 4, 6, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (5, 4), generator=generator)
    weights = torch.full((5, 4), 0.25, dtype=torch.float64)
    batch = Batch(inputs, targets, weights, torch.zeros(5, dtype=torch.int64))
    x = task.x0 + 0.3 * torch.randn(5, task.d, generator=generator, dtype=torch.float64)
    for clipped in kernels_of(task, sample_clipping=SampleClipping(0.3)):
        same(clipped.grad(x, batch), obvious(task, x, batch, 0.3))


@pytest.mark.parametrize("name", ["mlp", "lenet", "lstm", "transformer", "branches"])
def test_without_a_bound_it_is_the_plain_gradient(name):
    module, form, _ = CASES[name]
    batch = a_batch(**form)
    share = (batch.weights > 0).double()
    batch = replace(batch, weights=share / share.sum(1, keepdim=True))
    task = Task(module).under(dtype=torch.float64)
    x = rows(task)
    plain = task.grad(x, batch)
    for clipped in kernels_of(task, sample_clipping=SampleClipping(math.inf)):
        same(clipped.grad(x, batch), plain)


def test_single_precision_clips_as_double_does():
    for name in ("mlp", "lenet", "lstm", "transformer"):
        module, form, _ = CASES[name]
        batch = a_batch(**form)
        task = Task(module).under(dtype=torch.float64)
        x = rows(task)
        expected = obvious(task, x, batch, 0.7)
        single = map_tree(
            lambda t: t.float() if t.is_floating_point() else t, (batch.inputs, batch.weights)
        )
        batch = replace(batch, inputs=single[0], weights=single[1])
        clipped = task.under(dtype=torch.float32, sample_clipping=SampleClipping(0.7))
        same(clipped.grad(x.float(), batch).double(), expected, 1e-5)


def test_several_inputs():
    words = a_batch((6,), tokens=11)
    numbers = a_batch((6,))
    batch = replace(words, inputs=(words.inputs, numbers.inputs))
    task = Task(TwoInputs()).under(dtype=torch.float64)
    x = rows(task)
    for clipped in kernels_of(task, sample_clipping=SampleClipping(0.7)):
        same(clipped.grad(x, batch), obvious(task, x, batch, 0.7))


# -- losses ----------------------------------------------------------------------------------------
LOSSES = {
    "mse": ("mse", None),
    "huber": (nn.HuberLoss(delta=0.3), None),
    "quantile": ("quantile(q=0.9)", None),
    "a function": (lambda out, y: (out.squeeze(-1) - y).abs() ** 1.5, None),
    "logistic": ("logistic", 2),
    "bce": (nn.BCEWithLogitsLoss(), 2),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    loss, classes = LOSSES[name]
    batch = a_batch((6,), classes=classes or 0)
    if classes:
        batch = replace(batch, targets=batch.targets.double())
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    task = Task(module, loss).under(dtype=torch.float64)
    task.loss(rows(task), batch)  # a function is tried on samples
    x = rows(task)
    for clipped in kernels_of(task, sample_clipping=SampleClipping(0.2)):
        same(clipped.grad(x, batch), obvious(task, x, batch, 0.2))


def test_words_that_do_not_count_are_left_out_of_their_own_sample_alone():
    batch = a_batch(**TEXT)
    targets = batch.targets.clone()
    targets[:, ::2, 2:] = -100
    targets[1, 0] = -100  # none counts
    batch = replace(batch, targets=targets)
    task = Task(transformer()).under(dtype=torch.float64)
    x = rows(task)
    for clipped in kernels_of(task, sample_clipping=SampleClipping(math.inf)):
        g = clipped.grad(x, batch)
        assert not bool(g[1].any())
        outputs = task.outputs(x[:1], batch.inputs[:1, :1])
        short = replace(
            batch,
            inputs=batch.inputs[:1, :1],
            targets=batch.targets[:1, :1],
            weights=torch.ones(1, 1, dtype=torch.float64),
        )
        flat = x[0].clone().requires_grad_()
        outputs = functional_call(task.module, task.layout.unflatten(flat), (short.inputs[0],))
        value = F.cross_entropy(outputs[0, :2], short.targets[0, 0, :2])
        same(clipped.grad(x[:1], short)[0], torch.autograd.grad(value, flat)[0])


def test_class_weights_are_factors_and_no_shares_of_the_mini_batch():
    weights = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    batch = a_batch((6,))
    task = Task(nn.Linear(6, 3), nn.CrossEntropyLoss(weights)).under(dtype=torch.float64)
    x = rows(task)
    expected = torch.zeros_like(x)
    for k in range(K):
        for s, y in enumerate(batch.targets[k]):
            if batch.weights[k, s]:
                flat = x[k].clone().requires_grad_()
                out = functional_call(
                    task.module, task.layout.unflatten(flat), (batch.inputs[k, s : s + 1],)
                )
                value = weights[y] * F.cross_entropy(out, y.view(1))
                g = torch.autograd.grad(value, flat)[0]
                expected[k] += g * min(1.0, 0.7 / float(g.norm()))
    expected /= batch.expected_samples().unsqueeze(1)
    for clipped in kernels_of(task, sample_clipping=SampleClipping(0.7)):
        same(clipped.grad(x, batch), expected)


# -- what a bound must withstand -------------------------------------------------------------------
@pytest.mark.parametrize("name", ["mlp", "positions", "lenet", "skip", "branches"])
@pytest.mark.parametrize("value", [math.inf, math.nan, 1e200])
def test_a_sample_that_overflows_adds_nothing_and_spoils_no_other(name, value):
    module, form, _ = CASES[name]
    batch = a_batch(**form)
    task = Task(module).under(dtype=torch.float64)
    x = rows(task)
    without = replace(batch, weights=batch.weights.clone())
    without.weights[0, 1] = 0
    inputs = batch.inputs.clone()
    inputs[0, 1] = value
    batch = replace(batch, inputs=inputs)
    for clipped in kernels_of(task, sample_clipping=SampleClipping(0.7)):
        g = clipped.grad(x, batch)
        assert bool(g.isfinite().all())
        ours = g * batch.expected_samples().unsqueeze(1)
        theirs = clipped.grad(x, Batch(**_compact(without))) * without.expected_samples()[:, None]
        if value != 1e200:
            same(ours, theirs)
        assert (ours - theirs).norm(dim=1).max() <= 0.7 * (1 + 1e-9)


def _compact(batch: Batch) -> dict:
    """The same with the samples of weight 0 at the end of each row."""
    order = torch.argsort((batch.weights == 0).long(), dim=1, stable=True)

    def sort(t):
        return torch.stack([row[i] for row, i in zip(t, order, strict=True)])

    return {
        "inputs": sort(batch.inputs),
        "targets": sort(batch.targets),
        "weights": sort(batch.weights),
        "tally": batch.tally,
    }


@pytest.mark.parametrize("name", CASES)
def test_no_sample_moves_the_sum_by_more_than_the_bound(name):
    module, form, _ = CASES[name]
    batch = a_batch(**form)
    task = Task(module).under(dtype=torch.float64, sample_clipping=SampleClipping(0.05))
    x = 4 * rows(task)
    less = replace(batch, weights=batch.weights.clone())
    less.weights[0, 2] = 0  # the last of three
    sums, others = (task.grad(x, b) * b.expected_samples().unsqueeze(1) for b in (batch, less))
    assert (sums - others)[0].norm() <= 0.05 * (1 + 1e-9)
    same(sums[1:], others[1:], 1e-15)


def test_an_empty_mini_batch_has_gradient_zero_and_noise():
    batch = replace(a_batch((6,)), weights=torch.zeros(K, 5, dtype=torch.float64))
    batch = replace(batch, expected=torch.tensor([4.0, 2.0, 0.0], dtype=torch.float64))
    task = Task(nn.Linear(6, 3)).under(dtype=torch.float64)
    x = rows(task)
    ones = SampleClipping(1.0, lambda sums, batch: sums + 1)
    for clipped in kernels_of(task, sample_clipping=SampleClipping(1.0)):
        assert not bool(clipped.grad(x, batch).any())
        g = clipped.under(sample_clipping=ones).grad(x, batch)
        same(g[:, 0], torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64))


def test_noise_is_that_of_the_sum_before_it_is_divided_by_the_expected_number():
    batch = replace(a_batch((6,)), expected=torch.full((K,), 10.0, dtype=torch.float64))
    task = Task(nn.Linear(6, 3)).under(dtype=torch.float64)
    x = rows(task)
    shapes = []

    def noise(sums, batch):
        shapes.append(tuple(sums.shape))
        return sums + 5

    quiet = task.under(sample_clipping=SampleClipping(0.7)).grad(x, batch)
    loud = task.under(sample_clipping=SampleClipping(0.7, noise)).grad(x, batch)
    same(loud - quiet, torch.full_like(x, 0.5))
    assert shapes == [(K, task.d)]


def test_rows_that_are_not_active_have_gradient_zero():
    for name in ("mlp", "lenet", "skip"):
        module, form, _ = CASES[name]
        batch = a_batch(**form)
        task = Task(module).under(dtype=torch.float64)
        x = rows(task)
        for clipped in kernels_of(task, sample_clipping=SampleClipping(0.7)):
            g = clipped.grad(x, batch)
            some = clipped.grad(x, batch.only(torch.tensor([True, False, True])))
            assert not bool(some[1].any())
            same(some[[0, 2]], g[[0, 2]], 1e-15)


def test_weight_decay_comes_after_the_clipping():
    batch = a_batch((6,))
    task = Task(nn.Linear(6, 3)).under(dtype=torch.float64, sample_clipping=SampleClipping(0.1))
    x = rows(task)
    same(task.under(weight_decay=0.5).grad(x, batch), task.grad(x, batch) + 0.5 * x)


@pytest.mark.parametrize("functional", [False, True])
def test_dropout_is_drawn_from_the_clients_own_streams(functional):
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 20)
            self.b = nn.Linear(20, 3)
            self.extra = nn.Parameter(torch.ones(3, 3)) if functional else None

        def forward(self, x):
            out = self.b(F.dropout(self.a(x), 0.5, self.training))
            return out @ self.extra.T if functional else out

    data = numbered((9, 5))
    data = replace(data, inputs=data.inputs.expand(-1, 6).double() / 10)
    task = Task(Dropped()).under(dtype=torch.float64, sample_clipping=SampleClipping(0.1))
    x = task.x0.expand(2, -1)

    def gradient(clients):
        rows = torch.tensor(clients)
        batch = here_of(data, clients, "poisson", 4).draw()
        return task.grad(x[: len(rows)], batch)

    g = gradient([0, 1])
    same(g, gradient([0, 1]), 0)
    same(g[1:], gradient([1]), 1e-15)
    assert (g.norm(dim=1) <= 0.1 * 9 / 4).all() and bool(g.any())
    assert task._sample_sums.way == ("mapped" if functional else "recorded")


# -- refusals --------------------------------------------------------------------------------------
def refused(*words):
    return pytest.raises(SettingError, match=".*".join(words))


def test_models_and_losses_that_take_samples_together_are_refused():
    clipping = SampleClipping(1.0)
    norm = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    task = Task(norm).under(sample_clipping=clipping, dtype=torch.float64)
    with refused("layer '1' \\(BatchNorm1d\\)", "use GroupNorm"):
        task.grad(task.x0.expand(K, -1), a_batch((6,)))

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 3)

        def forward(self, x):
            return self.a(x - x.mean(0) if self.training else x)

    task = Task(Centred()).under(sample_clipping=clipping, dtype=torch.float64)
    with refused("output for a sample depends on the samples beside it"):
        task.grad(rows(task), a_batch((6,)))

    def ranking(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none") * outputs.mean()

    task = Task(nn.Linear(6, 3), ranking).under(sample_clipping=clipping, dtype=torch.float64)
    with refused("loss of a sample depends on the samples beside it"):
        task.grad(rows(task), a_batch((6,)))

    counting = nn.Sequential(nn.Embedding(11, 4, scale_grad_by_freq=True), nn.Flatten())
    task = Task(counting.append(nn.Linear(24, 3))).under(sample_clipping=clipping)
    with refused("layer '0'", "scale_grad_by_freq"):
        task.grad(rows(task).float(), a_batch(**WORDS))


def test_what_reads_data_otherwise_is_refused():
    task = Task(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)))
    task = task.under(dtype=torch.float64, sample_clipping=SampleClipping(1.0))
    x = rows(task)
    batch = a_batch((6,))
    term = Term(lambda run, rows: run.outputs.sum(-1))
    with refused("a term that the method adds to the loss cannot be used"):
        task.grad(x, batch, term)
    with refused("a product with the Hessian cannot be used"):
        task.hvp(x, x, batch)
    with refused("features cannot be used"):
        task.features(x, batch.inputs)
    with refused("the loss of a mini-batch cannot be used"):
        task.loss(x, batch)
    with refused("a look at the curvature cannot be used"):
        task.steepness(batch.inputs[0], batch.targets[0], x[0], 2)
    here = here_of(numbered((5,)), [0], "poisson", 2, gradients_only=True)
    for use in (
        here.training_samples,
        lambda: here.of_training_samples(lambda k, samples: {}),
        lambda: here.validate(x),
    ):
        with refused("cannot be used while it is on"):
            use()


def test_a_mini_batch_is_for_as_many_gradients_as_are_accounted():
    data = numbered((9, 5))
    task = Task(nn.Linear(1, 3)).under(sample_clipping=SampleClipping(1.0))
    x = task.x0.expand(2, -1)
    here = here_of(data, [0, 1], "poisson", 4)
    batch = here.draw()
    task.grad(x, batch)
    with refused("a mini-batch is for 1 gradient", "draw another"):
        task.grad(x, batch.of("v"))
    task.grad(x, here.draw())
    assert here.draws == 2
    twice = task.under(sample_clipping=SampleClipping(1.0, uses=2))
    batch = here.draw()
    twice.grad(x, batch)
    twice.grad(x, batch)
    with refused("a mini-batch is for 2 gradient"):
        twice.grad(x, batch)


def test_weights_of_samples_are_refused():
    data = numbered((9, 5))
    data = data.with_weights(torch.arange(14) % 3 + 1.0) if hasattr(data, "with_weights") else data
    here = here_of(data, [0, 1], "poisson", 4)
    batch = replace(here.draw(), uneven=True)
    task = Task(nn.Linear(1, 3)).under(sample_clipping=SampleClipping(1.0))
    with refused("samples must count alike", "mean weight of the client"):
        task.grad(task.x0.expand(2, -1), batch)


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, -math.inf])
def test_a_bound_is_a_positive_number(norm):
    with refused("norm must be a number > 0"):
        SampleClipping(norm)


def test_noise_without_a_bound_is_refused():
    with refused("norm must be finite with noise, got inf"):
        SampleClipping(math.inf, lambda sums, batch: sums)


# -- Poisson sampling ------------------------------------------------------------------------------
def here_of(data: Federation, clients, batching, batch, **options) -> Here:
    return Here(
        data,
        torch.tensor(clients),
        clients=name_keys(data.names)[clients],
        seed=options.pop("seed", 0),
        round=2,
        batch=batch,
        batching=batching,
        dtype=data.inputs.dtype,
        **options,
    )


def test_every_sample_joins_by_itself_at_the_rate_of_its_client():
    sizes = (200, 40, 3, 1)
    here = here_of(numbered(sizes), [0, 1, 2, 3], "poisson", 10)
    steps = 2000
    counts = np.zeros((4, 200))
    numbers = np.zeros((4, steps))
    together = 0
    starts = np.cumsum((0, *sizes))
    for step in range(steps):
        batch = here.draw()
        for k in range(4):
            real = batch.weights[k] > 0
            samples = batch.inputs[k, real, 0].long().numpy() - starts[k]
            assert len(set(samples)) == len(samples)  # without replacement
            assert (samples >= 0).all() and (samples < sizes[k]).all()
            counts[k, samples] += 1
            numbers[k, step] = len(samples)
            together += {5, 6} <= set(samples) if k == 0 else 0
        same(batch.expected, torch.tensor([10.0, 10.0, 3.0, 1.0]))
    rates = counts / steps
    for k, q in enumerate((0.05, 0.25)):
        deviation = math.sqrt(q * (1 - q) / steps)
        assert abs(rates[k, : sizes[k]] - q).max() < 4.5 * deviation
        spread = numbers[k].var() / (sizes[k] * q * (1 - q))  # binomial
        assert 0.85 < spread < 1.15
    assert (rates[2, :3] == 1).all() and rates[3, 0] == 1  # as many as there are: all of them
    assert abs(together / steps - 0.05**2) < 4.5 * 0.05 / math.sqrt(steps)


def test_weights_of_a_poisson_mini_batch_are_those_of_an_unbiased_mean():
    here = here_of(numbered((50, 3)), [0, 1], "poisson", 10)
    sums = torch.stack([here.draw().weights.sum(1) for _ in range(500)])
    assert abs(sums[:, 0].mean() - 1) < 0.06 and sums[:, 0].var() > 0.01
    same(sums[:, 1], torch.ones(500))


def test_poisson_mini_batches_may_be_empty():
    here = here_of(numbered((50, 0), without_data=1), [0, 1], "poisson", 1)
    task = Task(nn.Linear(1, 3)).under(sample_clipping=SampleClipping(1.0))
    x = task.x0.expand(2, -1)
    empty = 0
    for _ in range(40):
        batch = here.draw()
        g = task.grad(x, batch)
        none = not bool((batch.weights[0] > 0).any())
        empty += none
        assert none != bool(g[0].any())
        assert not bool(g[1].any())
    assert 5 < empty < 30  # (1 - 1/50)^50 = 0.36 of them


def test_a_full_poisson_mini_batch_with_no_bound_has_the_plain_gradient():
    data = numbered((9, 5))
    task = Task(nn.Linear(1, 3)).under(dtype=torch.float64)
    x = task.x0.expand(2, -1)
    data = replace(data, inputs=data.inputs.double())
    full = here_of(data, [0, 1], "full", 1).draw()
    drawn = here_of(data, [0, 1], "poisson", 9).draw()
    clipped = task.under(sample_clipping=SampleClipping(math.inf))
    same(clipped.grad(x, drawn), task.grad(x, full))
