"""A reported figure is that of the module handed out, for every method and kernel."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import idiolect as il
from idiolect.methods import METHODS


class Adjusted(nn.Module):
    """Logit adjustment: training adds log-priors, use does not."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        z = self.head(torch.tanh(self.body(x)))
        return z + torch.tensor([0.0, 2.0, -3.0]) if self.training else z


MODELS = {
    "vmap": Adjusted,
    "rows": Adjusted,
    "stacked": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
}


def federation() -> il.Federation:
    rng = np.random.default_rng(0)
    sizes = np.array([7, 16, 3, 10])
    x = rng.standard_normal((3 * sizes.sum(), 6)).astype(np.float32)
    y = (x[:, :3] + rng.standard_normal((len(x), 3))).argmax(1)
    split = np.concatenate([np.repeat(["train", "valid", "test"], n) for n in sizes])
    return il.Federation.from_arrays(x, y, np.repeat(list("abcd"), 3 * sizes), split=split)


@pytest.mark.parametrize("kernel", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_the_figure_is_that_of_the_module(method, kernel):
    data = federation()
    torch.manual_seed(0)
    result = il.run(method, il.Task(MODELS[kernel]()), data, rounds=2, kernel=kernel)
    hits, losses, n = 0, 0.0, 0
    for k, client in enumerate("abcd"):
        low, high = data.offsets["test"][k : k + 2].tolist()
        x, y = data.inputs[low:high], data.targets[low:high]
        with torch.no_grad():
            outputs = result.personal(client)(x)
        hits += int((outputs.argmax(1) == y).sum())
        losses += float(F.cross_entropy(outputs, y, reduction="sum"))
        n += len(y)
        labels = result.predict(x.numpy(), client=client).labels
        assert (labels == outputs.argmax(1).numpy()).all()
    figures = result.seeds[0].final["test"]
    assert figures["accuracy"] == pytest.approx(hits / n)
    assert figures["loss"] == pytest.approx(losses / n, rel=1e-5)
