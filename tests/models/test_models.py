"""Models have the sizes of the papers, take the shapes they say, and train as rows of a cohort."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from idiolect import models
from idiolect.core.knobs import SettingError, describe
from idiolect.models import MODELS, Model, default, make

# name, options, shape of a sample, classes, parameters
PAPERS = [
    ("linear", {}, (60,), 10, 610),  # lp-proj, Synthetic
    ("mlp", {"hidden": "100"}, (784,), 10, 79_510),  # lp-proj, MNIST
    ("mlp", {"hidden": "100,100"}, (1, 28, 28), 62, 94_862),  # lp-proj, EMNIST
    ("lenet", {}, (3, 32, 32), 10, 62_006),  # lp-proj, CIFAR
    ("resnet-small", {}, (1, 28, 28), 10, 678_794),  # lp-proj, FashionMNIST
    ("mlp", {"hidden": "512,256"}, (784,), 10, 535_818),  # FedDeper, MNIST
    (
        "feddeper-cnn",
        {},
        (1, 28, 28),
        10,
        320 + 18_496 + (1600 * 1024 + 1024) + (1024 * 512 + 512) + 5_130,
    ),
    (
        "feddeper-cnn",
        {},
        (3, 32, 32),
        10,
        4_864 + 204_928 + (3200 * 1024 + 1024) + (1024 * 512 + 512) + (512 * 256 + 256) + 2_570,
    ),
]
# One small case per model and variant, for what need not be done at full size.
SMALL = [
    ("linear", {}, (6,), 3),
    ("linear", {"bias": False}, (6,), 1),
    ("mlp", {"hidden": "8,5"}, (2, 3), 3),
    ("lenet", {}, (3, 16, 16), 4),
    ("lenet", {}, (1, 28, 28), 10),
    ("resnet-small", {}, (1, 28, 28), 10),
    ("resnet-small", {"groups": 8}, (3, 9, 9), 4),
    ("feddeper-cnn", {}, (1, 10, 10), 4),
    ("feddeper-cnn", {}, (3, 16, 17), 4),
    ("feddeper-cnn", {"variant": "mnist"}, (3, 12, 10), 4),
]


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("name", "options", "inputs", "outputs", "count"), PAPERS)
def test_parameter_count_is_the_papers(name, options, inputs, outputs, count):
    assert size(make(name, inputs, outputs, **options)) == count


def test_every_model_is_in_the_small_cases():
    assert {name for name, *_ in SMALL} == set(models.PAPERS)


@pytest.mark.parametrize(("name", "options", "inputs", "outputs"), SMALL)
def test_a_batch_gives_one_row_of_outputs_per_sample(name, options, inputs, outputs):
    assert make(name, inputs, outputs, **options)(torch.randn(5, *inputs)).shape == (5, outputs)


@pytest.mark.parametrize(("name", "options", "inputs", "outputs"), SMALL)
def test_cohort_gradient_is_finite_and_equals_one_model_at_a_time(name, options, inputs, outputs):
    torch.manual_seed(0)
    modules = [make(name, inputs, outputs, **options).double() for _ in range(2)]
    x = torch.randn(2, 3, *inputs, dtype=torch.float64)
    y = torch.randint(outputs, (2, 3))

    def loss(params, x, y):
        out = functional_call(modules[0], params, (x,))
        return (
            nn.functional.cross_entropy(out, y) if outputs > 1 else (out[:, 0] - y).square().mean()
        )

    rows = {
        key: torch.stack([dict(m.named_parameters())[key].detach() for m in modules])
        for key, _ in modules[0].named_parameters()
    }
    together = vmap(grad(loss))(rows, x, y)
    assert all(torch.isfinite(g).all() for g in together.values())
    assert all(g.abs().sum() > 0 for g in together.values())
    for i in range(2):
        alone = grad(loss)({key: row[i] for key, row in rows.items()}, x[i], y[i])
        for key, g in alone.items():
            torch.testing.assert_close(together[key][i], g)


@pytest.mark.parametrize(("name", "options", "inputs", "outputs"), SMALL)
def test_a_model_is_its_parameters_and_a_sample_is_alone_in_its_batch(
    name, options, inputs, outputs
):
    module = make(name, inputs, outputs, **options).double()
    x = torch.randn(4, *inputs, dtype=torch.float64)
    assert not list(module.buffers())  # no running statistics
    torch.testing.assert_close(module(x)[:1], module(x[:1]))
    module.eval()
    evaluated = module(x)
    module.train()
    torch.testing.assert_close(module(x), evaluated)


@pytest.mark.parametrize(("name", "options", "inputs", "outputs"), SMALL)
def test_a_model_is_one_flat_sequence_that_ends_in_head(name, options, inputs, outputs):
    module = make(name, inputs, outputs, **options)
    assert type(module) is nn.Sequential
    assert not any(isinstance(layer, nn.Sequential) for layer in module)
    last, head = list(module.named_children())[-1]
    assert last == "head" and head.out_features == outputs


def test_models_without_residuals_hold_only_plain_layers():
    plain = (nn.Flatten, nn.Linear, nn.ReLU, nn.Conv2d, nn.MaxPool2d)
    for name, options, inputs, outputs in SMALL:
        if name != "resnet-small":
            assert all(type(layer) in plain for layer in make(name, inputs, outputs, **options))


def test_a_residual_whose_branch_adds_nothing_is_its_shortcut():
    block = make("resnet-small", (1, 28, 28), 10).block2a
    nn.init.zeros_(block.norm2.weight)  # the branch now adds nothing
    x = torch.randn(2, 64, 7, 7)
    torch.testing.assert_close(block(x), block.shortcut(x).relu())


def test_every_resnet_convolution_has_a_bias():
    convolutions = [
        m for m in make("resnet-small", (1, 28, 28), 10).modules() if isinstance(m, nn.Conv2d)
    ]
    assert len(convolutions) == 1 + 8 + 1
    assert all(c.bias is not None for c in convolutions)


def test_group_count_does_not_change_the_size():
    assert {size(make("resnet-small", (1, 28, 28), 10, groups=g)) for g in (1, 8, 64)} == {678_794}


def test_feddeper_variant_can_be_forced():
    assert make("feddeper-cnn", (3, 32, 32), 10, variant="mnist").conv1.out_channels == 32
    assert make("feddeper-cnn", (1, 28, 28), 10, variant="cifar").conv1.out_channels == 64


def test_linear_without_bias():
    assert size(make("linear", (60,), 10, bias=False)) == 600


def test_spaces_between_widths_are_the_same_setting():
    assert MODELS["mlp"](hidden="512, 256") == MODELS["mlp"](hidden="512,256")


@pytest.mark.parametrize(
    "hidden", ["x", "", "100,", ",", "0", "-5", "1.5", "100;100", "²", "9" * 5000, 100]
)
def test_bad_widths_name_the_field_and_what_is_accepted(hidden):
    with pytest.raises(SettingError, match=r"^hidden must be .*, got .*'100' or '512,256'"):
        make("mlp", (784,), 10, hidden=hidden)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("linear", {"bias": "maybe"}, r"bias must be true or false, got 'maybe'"),
        ("resnet-small", {"groups": 3}, r"groups must be one of 1, 2, 4.* got 3"),
        (
            "feddeper-cnn",
            {"variant": "svhn"},
            r"variant must be one of 'auto', 'mnist', 'cifar', got 'svhn'",
        ),
        ("mlp", {"hiden": "100"}, r"mlp setting: 'hiden' is unknown; did you mean 'hidden'"),
    ],
)
def test_bad_knobs_say_what_is_accepted(name, options, says):
    with pytest.raises(SettingError, match=says):
        make(name, (1, 28, 28), 10, **options)


def test_unknown_model_suggests_the_nearest():
    with pytest.raises(
        SettingError, match=r"model: 'resnet_small' is unknown; did you mean 'resnet-small'\?"
    ):
        make("resnet_small", (1, 28, 28), 10)


@pytest.mark.parametrize(
    ("name", "inputs", "side"),
    [
        ("lenet", (3, 15, 32), 16),
        ("lenet", (784,), 16),
        ("lenet", (28, 28), 16),
        ("lenet", (32, 32, 3), 16),  # channels last
        ("resnet-small", (1, 8, 8), 9),
        ("feddeper-cnn", (1, 9, 9), 10),
        ("feddeper-cnn", (3, 15, 15), 16),
    ],
)
def test_a_shape_the_network_cannot_take_is_refused(name, inputs, side):
    with pytest.raises(
        SettingError,
        match=rf"^inputs must be images .* of {side}x{side} pixels or more for {name}",
    ):
        make(name, inputs, 10)


@pytest.mark.parametrize(
    ("inputs", "outputs", "field"),
    [((), 10, "inputs"), ((0,), 10, "inputs"), ((60,), 0, "outputs")],
)
def test_empty_shapes_are_refused(inputs, outputs, field):
    with pytest.raises(SettingError, match=f"^{field}.* must be "):
        make("linear", inputs, outputs)


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        ((60,), "linear"),
        ((28, 28), "mlp"),
        ((1, 28, 28), "mlp"),
        ((3, 32, 32), "lenet"),
        ((3, 8, 8), "mlp"),
        ((1, 8, 8), "mlp"),
    ],
)
def test_default_can_always_be_built(inputs, name):
    assert default(inputs, 10) == name
    make(name, inputs, 10)


@pytest.mark.parametrize("cls", models.PAPERS.values())
def test_every_model_describes_itself(cls):
    assert issubclass(cls, Model)
    assert cls.__doc__ and "\n" not in cls.__doc__.partition("\n\n")[0]
    assert all(row["help"] for row in describe(cls))


def test_same_seed_same_weights():
    def first(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(make("lenet", (3, 32, 32), 10).parameters())

    assert torch.equal(first(1), first(1)) and not torch.equal(first(1), first(2))
