"""Our 2x2 max pooling has the values and gradients of torch's, also for ties."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect.task.kernels.rows import FastPool, with_fast_pooling

CASES = {
    "numbers": lambda g: torch.randn(3, 4, 6, 8, generator=g, dtype=torch.float64),
    "many ties": lambda g: torch.randint(3, (3, 4, 6, 8), generator=g).double(),
    "all equal": lambda g: torch.ones(2, 1, 4, 4, dtype=torch.float64),
    "odd sizes": lambda g: torch.randn(2, 3, 7, 5, generator=g, dtype=torch.float64),
    "negative": lambda g: -torch.rand(2, 3, 4, 4, generator=g, dtype=torch.float64),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_torch(name):
    z = CASES[name](torch.Generator().manual_seed(0)).requires_grad_()
    ours = FastPool()(z)
    theirs = F.max_pool2d(z, 2)
    delta = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.equal(ours, theirs)
    assert torch.equal(
        torch.autograd.grad(ours, z, delta)[0], torch.autograd.grad(theirs, z, delta)[0]
    )


@pytest.mark.parametrize("name", CASES)
def test_pooling_before_the_relu_changes_nothing(name):
    z = CASES[name](torch.Generator().manual_seed(2)).requires_grad_()
    plain = nn.Sequential(nn.Identity(), nn.ReLU(), nn.MaxPool2d(2))
    fast = with_fast_pooling(plain)
    assert [type(m) for m in fast] == [nn.Identity, FastPool, nn.ReLU]
    assert [type(m) for m in plain] == [nn.Identity, nn.ReLU, nn.MaxPool2d]
    assert torch.equal(fast(z), plain(z))
    assert torch.equal(
        torch.autograd.grad(fast(z).sum(), z)[0], torch.autograd.grad(plain(z).sum(), z)[0]
    )


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, ceil_mode=True),
    ],
)
def test_other_poolings_are_left_alone(layer):
    assert type(with_fast_pooling(nn.Sequential(layer))[0]) is nn.MaxPool2d
