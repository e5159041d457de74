"""The larger models have their well-known sizes.

The language model is causal, has tied weights, and is the same under every kernel.
"""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

import idiolect as il
from idiolect.core.knobs import SettingError, describe
from idiolect.models import LARGE, MODELS, Model, make
from idiolect.models.resnet import Residual, ResNet18
from idiolect.models.transformer import Tied
from idiolect.task.batches import Batch

TINY = {"blocks": 2, "heads": 2, "width": 8, "hidden": 12}  # a transformer for tests
T = 6
V = 11


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def tiny(**options) -> nn.Module:
    torch.manual_seed(0)
    return make("transformer", (T,), V, **TINY | options).double()


def selected(task: il.Task, part: str) -> list[str]:
    """The names of the parameters in the private part."""
    w = set(task.split(part).w.tolist())
    return [n for n in task.layout.names if task.layout.span(n)[0] in w]


def same_gradients(module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """vmap and rows against plain autograd, two different models, uneven weights."""
    task = il.Task(module).under(dtype=torch.float64)
    rows = len(inputs)
    x = task.x0 + 0.02 * torch.randn(rows, task.d, dtype=torch.float64)
    weights = torch.rand(inputs.shape[:2], dtype=torch.float64)
    batch = Batch(
        inputs,
        targets,
        weights / weights.sum(1, keepdim=True),
        torch.zeros(rows, dtype=torch.int64),
    )
    expected = []
    for k in range(rows):
        flat = x[k].clone().requires_grad_()
        out = functional_call(module, task.layout.unflatten(flat), (inputs[k],))
        each = (
            nn.functional.cross_entropy(out.flatten(0, -2), targets[k].flatten(), reduction="none")
            .view(len(targets[k]), -1)
            .mean(1)
        )
        expected.append(torch.autograd.grad((each * batch.weights[k]).sum(), flat)[0])
    for kernel in ("vmap", "rows"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where an operation cannot be mapped
            g = task.under(kernel=kernel).grad(x, batch)
        torch.testing.assert_close(g, torch.stack(expected), rtol=0, atol=1e-10)
    assert all(part.abs().sum() > 0 for part in task.layout.unflatten(g[0]).values())


# -- names ----------------------------------------------------------------------------------
def test_large_models_have_names_of_their_own_and_describe_themselves():
    assert set(LARGE) < set(MODELS)
    for cls in LARGE.values():
        assert issubclass(cls, Model) and "\n" not in (cls.__doc__ or "\n").partition("\n\n")[0]
        assert all(row["help"] for row in describe(cls))
    with pytest.raises(
        SettingError, match=r"model: 'resnet-18' is unknown; did you mean 'resnet18'\?"
    ):
        make("resnet-18", (3, 32, 32), 10)


@pytest.mark.parametrize(
    ("name", "inputs"), [("resnet18", (3, 9, 9)), ("resnet34", (3, 9, 9)), ("transformer", (6,))]
)
def test_a_large_model_is_one_flat_sequence_without_state_that_ends_in_head(name, inputs):
    module = make(name, inputs, 10)
    assert type(module) is nn.Sequential and not any(
        isinstance(layer, nn.Sequential) for layer in module
    )
    last, head = list(module.named_children())[-1]
    assert last == "head" and head.out_features == 10
    assert not list(module.buffers())


# -- residual networks -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "count", "convolutions"), [("resnet18", 11_689_512, 20), ("resnet34", 21_797_672, 36)]
)
def test_a_resnet_has_the_well_known_size_on_imagenet(name, count, convolutions):
    with torch.device("meta"):
        module = make(name, (3, 224, 224), 1000, stem="imagenet")
    assert size(module) == count
    found = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    assert len(found) == convolutions and all(c.bias is None for c in found)


@pytest.mark.parametrize(
    ("side", "stem", "kernel", "last"),
    [
        (224, "auto", 7, 7),
        (65, "auto", 7, 3),
        (64, "auto", 3, 8),
        (32, "auto", 3, 4),
        (64, "imagenet", 7, 2),
        (96, "small", 3, 12),
    ],
)
def test_the_stem_follows_the_image(side, stem, kernel, last):
    module = make("resnet18", (3, side, side), 10, stem=stem)
    with torch.no_grad():
        maps = module[:-3](torch.randn(1, 3, side, side))  # before average, flatten and head
        assert maps.shape == (1, 512, last, last) and module[-3:](maps).shape == (1, 10)
    assert module.conv.kernel_size == (kernel, kernel) and hasattr(module, "pool") == (kernel == 7)


def test_a_standard_residual_whose_branch_adds_nothing_is_its_normed_shortcut():
    block = Residual(8, 16, stride=2, groups=4, bias=False)
    nn.init.zeros_(block.norm2.weight)
    x = torch.randn(2, 8, 7, 7)
    torch.testing.assert_close(block(x), block.shortcut.norm(block.shortcut.conv(x)).relu())


class Short(ResNet18):
    """The first two stages, one block each: all parts of a ResNet in a fiftieth of the size."""

    blocks = (1, 1)


@pytest.mark.parametrize(("stem", "side"), [("small", 9), ("imagenet", 33)])
def test_resnet_gradients_are_those_of_one_model_at_a_time(stem, side):
    torch.manual_seed(0)
    module = Short(stem=stem).build((1, side, side), 3).double()
    assert il.Task(module).kernel == "rows"
    same_gradients(
        module, torch.randn(2, 2, 1, side, side, dtype=torch.float64), torch.randint(3, (2, 2))
    )


def test_a_whole_resnet_has_a_finite_gradient_for_every_parameter():
    torch.manual_seed(0)
    module = make("resnet18", (1, 9, 9), 3)
    nn.functional.cross_entropy(module(torch.randn(2, 1, 9, 9)), torch.tensor([0, 2])).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in module.parameters())


def test_a_resnet_takes_adapters_and_starts_as_the_same_function():
    torch.manual_seed(0)
    plain = make("resnet18", (1, 9, 9), 3)
    torch.manual_seed(0)
    adapted = make("resnet18", (1, 9, 9), 3, adapter_rank=1)
    x = torch.randn(2, 1, 9, 9)
    assert torch.equal(adapted(x), plain(x)) and size(adapted) > size(plain)


@pytest.mark.parametrize(
    ("inputs", "options", "says"),
    [
        (
            (3, 8, 8),
            {},
            r"images .* of 9x9 pixels .* resnet34 with stem small, got \(3, 8, 8\)",
        ),
        (
            (3, 32, 32),
            {"stem": "imagenet"},
            r"images .* of 33x33 .* for resnet34 with stem imagenet",
        ),
        ((784,), {}, r"must be images .* got \(784,\)"),
        ((3, 32, 32), {"groups": 3}, r"groups must be one of 1, 2, 4.* got 3"),
        (
            (3, 32, 32),
            {"stem": "cifar"},
            r"stem must be one of 'auto', 'imagenet', 'small', got 'cifar'",
        ),
    ],
)
def test_what_a_resnet_cannot_take_is_refused(inputs, options, says):
    with pytest.raises(SettingError, match=says):
        make("resnet34", inputs, 10, **options)


# -- the language model ----------------------------------------------------------------------------
@pytest.mark.parametrize("tied", [True, False])
def test_the_size_of_a_transformer_is_the_formula(tied):
    v, t, w, h, b = 96, 64, 256, 1024, 4  # the defaults
    count = (v + t) * w + v + b * (4 * w * w + 2 * w * h + h + 9 * w) + 2 * w
    assert size(make("transformer", (t,), v, tied=tied)) == count + (0 if tied else v * w)


def test_outputs_are_scores_of_every_token_at_every_position_and_of_shorter_texts_too():
    module = tiny()
    tokens = torch.randint(V, (3, T))
    assert module(tokens).shape == (3, T, V)
    torch.testing.assert_close(module(tokens[:, :4]), module(tokens)[:, :4])
    # A federation keeps small integers in small types.
    torch.testing.assert_close(module(tokens.to(torch.uint8)), module(tokens))


@pytest.mark.parametrize("at", range(T))
def test_a_token_changes_no_score_before_it_and_every_score_from_it_on(at):
    module = tiny()
    tokens = torch.randint(V, (1, T))
    other = tokens.clone()
    other[0, at] = (other[0, at] + 1) % V
    before = module(tokens)[0]
    after = module(other)[0]
    assert torch.equal(before[:at], after[:at])
    assert (before[at:] - after[at:]).abs().amax(-1).min() > 1e-9


def test_the_order_of_earlier_tokens_matters():
    module = tiny()
    a, b = (module(torch.tensor([t]))[0, -1] for t in ([1, 2, 3], [2, 1, 3]))
    assert not torch.allclose(a, b, rtol=0, atol=1e-9)


def test_tied_weights_are_one_parameter_that_learns_from_both_ends():
    module = tiny()
    assert module.head.weight is module.embed.tokens.weight
    assert [n for n, _ in module.named_parameters() if n.startswith("head")] == ["head.bias"]
    assert size(tiny(tied=False)) == size(module) + V * TINY["width"]
    # Only token 0 goes in: the other tokens have a gradient as output weights alone.
    tokens = torch.zeros(1, T, dtype=torch.int64)
    module(tokens).logsumexp(-1).sum().backward()
    assert (module.embed.tokens.weight.grad.abs().sum(1) > 0).all()


@pytest.mark.parametrize("kernel", ["vmap", "rows"])
def test_tied_weights_stay_tied_in_every_row_of_a_cohort(kernel):
    task = il.Task(tiny()).under(dtype=torch.float64, kernel=kernel)
    x = task.x0.repeat(2, 1)
    low, high = task.layout.span("embed.tokens.weight")
    x[1, low:high] = 0  # the outputs are then the bias
    x[1, task.split("head.bias").w] = torch.arange(V, dtype=torch.float64)
    out = task.outputs(x, torch.randint(V, (2, 3, T)))
    torch.testing.assert_close(out[1], torch.arange(V, dtype=torch.float64).expand(3, T, V))
    assert out[0].std() > 0
    alone = task.module_of(x[0])
    assert alone.head.weight is alone.embed.tokens.weight


@pytest.mark.parametrize("options", [{}, {"tied": False}, {"adapter_rank": 2}], ids=str)
def test_transformer_gradients_are_those_of_one_model_at_a_time(options):
    module = tiny(**options)
    assert il.Task(module).kernel == "vmap"
    same_gradients(module, torch.randint(V, (2, 3, T)), torch.randint(V, (2, 3, T)))


def test_a_transformer_has_exact_second_derivatives():
    task = il.Task(tiny(blocks=1)).under(dtype=torch.float64)
    x = task.x0.repeat(2, 1)
    v = torch.randn(2, task.d, dtype=torch.float64)
    batch = Batch(
        inputs=torch.randint(V, (2, 3, T)),
        targets=torch.randint(V, (2, 3, T)),
        weights=torch.full((2, 3), 1 / 3, dtype=torch.float64),
        tally=torch.zeros(2, dtype=torch.int64),
    )
    products = task.hvp(x, v, batch)
    for k in range(2):  # autograd twice
        flat = x[k].clone().requires_grad_()
        out = functional_call(task.module, task.layout.unflatten(flat), (batch.inputs[k],))
        loss = nn.functional.cross_entropy(out.flatten(0, 1), batch.targets[k].flatten())
        (g,) = torch.autograd.grad(loss, flat, create_graph=True)
        torch.testing.assert_close(
            products[k], torch.autograd.grad(g @ v[k], flat)[0], rtol=1e-8, atol=1e-8
        )


def test_input_and_output_are_the_first_and_the_last_block():
    """FFGG: "the initial transformer layer is personalized instead of the embedding layer"."""
    for tied in (True, False):
        task = il.Task(tiny(tied=tied))
        names = task.layout.names
        last = f"block{TINY['blocks']}."
        assert selected(task, "input") == [n for n in names if n.startswith("block1.")]
        assert selected(task, "output") == [n for n in names if n.startswith(last)]
        assert selected(task, "embedding") == ["embed.tokens.weight", "embed.positions.weight"]
        weight = [] if tied else ["head.weight"]
        assert selected(task, "head") == ["norm.weight", "norm.bias", *weight, "head.bias"]


@pytest.mark.parametrize("tied", [True, False])
def test_a_transformer_takes_adapters_and_starts_as_the_same_function(tied):
    plain = tiny(tied=tied)
    tokens = torch.randint(V, (2, T))
    adapted = tiny(tied=tied, adapter_rank=2)
    assert torch.equal(adapted(tokens), plain(tokens))
    w = TINY["width"]
    h = TINY["hidden"]
    count = 2 * (TINY["blocks"] * (4 * w + 2 * w + 2 * (w + h)) + w + V)
    assert size(adapted) == size(plain) + count
    assert len(il.Task(adapted).split("adapter").w) == count
    assert isinstance(adapted.head.layer, Tied) == tied
    assert (adapted.head.layer.weight is adapted.embed.tokens.weight) == tied
    assert selected(il.Task(adapted), "head") == (
        ["norm.weight", "norm.bias", *([] if tied else ["head.layer.weight"]), "head.layer.bias"]
    )


def test_a_transformer_drawn_anew_starts_at_the_scale_of_a_new_one():
    task = il.Task(tiny(width=64)).under(dtype=torch.float64)
    x = task.draw(np.array([3, 4], dtype=np.uint64))
    assert not torch.equal(x[0], x[1])
    drawn = task.layout.unflatten(x[0])
    built = task.layout.unflatten(task.x0)
    assert all(
        0.8 * built[n].std() < drawn[n].std() < 1.25 * built[n].std()
        for n in drawn
        if n.startswith("embed")
    )
    assert not drawn["head.bias"].any()


def counting(clients: int = 4, samples: int = 30) -> il.Federation:
    """Texts that count upwards from a random start; client k counts in steps of k + 1.

    Only the step is left to learn.
    """
    g = torch.Generator().manual_seed(0)
    who = torch.arange(clients).repeat_interleave(samples)
    start = torch.randint(V, (len(who), 1), generator=g)
    texts = (start + torch.arange(T + 1) * (who.unsqueeze(1) + 1)) % V
    return il.Federation.from_arrays(texts[:, :-1], texts[:, 1:], who, classes=V)


def test_fedavg_trains_a_transformer_on_a_federation_of_tokens():
    federation = counting()
    assert federation.inputs.dtype == torch.int64 and federation.targets.shape[1:] == (T,)
    task = il.Task(
        lambda: make("transformer", (T,), federation.classes, **TINY | {"width": 16, "hidden": 32})
    )
    losses, accuracies = [], []
    for rounds in (0, 15):
        result = il.run(
            il.FedAvg(lr=0.5, steps=10), task, federation, rounds=rounds, sample=4, batch=16
        )
        assert result.record.kernel == "vmap"
        summary = result.summary()
        losses.append(summary["loss"]["mean"])
        accuracies.append(summary["accuracy"]["mean"])
    assert abs(losses[0] - np.log(V)) < 0.2  # a new model knows nothing
    assert losses[1] < 0.7 * losses[0] and accuracies[1] > accuracies[0] + 0.2


@pytest.mark.parametrize(
    ("inputs", "outputs", "options", "says"),
    [
        (
            (T,),
            V,
            {"width": 10, "heads": 4},
            r"^heads must divide the width, 10, got 4",
        ),
        ((T,), V, {"blocks": 0}, r"^blocks must be a whole number >= 1, got 0"),
        ((T,), V, {"tied": "maybe"}, r"^tied must be true or false, got 'maybe'"),
        (
            (1, 28, 28),
            10,
            {},
            r"^inputs must be samples \(T,\).* got \(1, 28, 28\)",
        ),
        ((T,), 1, {}, r"^outputs must be the size of the vocabulary.* got 1"),
    ],
)
def test_what_a_transformer_cannot_take_is_refused(inputs, outputs, options, says):
    with pytest.raises(SettingError, match=says):
        make("transformer", inputs, outputs, **options)


@pytest.mark.parametrize("kernel", ["vmap", "rows"])
def test_inputs_that_are_no_tokens_are_refused_at_the_first_batch(kernel):
    task = il.Task(tiny()).under(dtype=torch.float64, kernel=kernel)
    x = task.x0.repeat(2, 1)
    with pytest.raises(SettingError, match=r"^inputs must be tokens.* got torch.float64"):
        task.outputs(x, torch.randn(2, 3, T, dtype=torch.float64))
    with pytest.raises(SettingError, match=rf"^inputs must be at most {T} tokens.* got {T + 1}"):
        task.outputs(x, torch.zeros(2, 3, T + 1, dtype=torch.int64))
    for token in (V, -1):  # outside the vocabulary: not another client's row, not the last token
        with pytest.raises(IndexError, match="out of bounds"):
            task.outputs(x, torch.full((2, 3, T), token))
