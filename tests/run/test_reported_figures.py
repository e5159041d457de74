"""A reported figure is that of the module handed out, for every method and kernel."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import idiolect as il
from helpers import with_public
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
    data = with_public(method, federation())
    torch.manual_seed(0)
    extends = type(il.make_method(method)).extend is not il.Method.extend  # it is a chain no more
    chosen = "auto" if extends and kernel == "stacked" else kernel
    result = il.run(method, il.Task(MODELS[kernel]()), data, rounds=2, kernel=chosen)
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


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 3)

    def forward(self, x):
        return self.table(x).transpose(1, 2)


@pytest.mark.parametrize("method", ["fedavg", "ditto"])  # one model for all, and one for each
@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 0.5])),
        nn.CrossEntropyLoss(ignore_index=2),
    ],
    ids=["class weights", "ignored"],
)
def test_a_clients_loss_is_what_torch_says_of_all_its_samples(method, loss):
    data = federation()
    torch.manual_seed(0)
    result = il.run(method, il.Task(Adjusted(), loss), data, rounds=2)
    for row in result.clients_table():
        x, y = data.part(data.position(row["client"]), "test")
        with torch.no_grad():
            expected = float(loss(result.personal(row["client"])(x), y))
        assert row["test_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_words_that_do_not_count_do_not_count_in_figures(method):
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 9, (60, 5)), rng.integers(0, 3, (60, 5))
    y[np.arange(5) >= rng.integers(1, 6, 60)[:, None]] = -100  # sentences of unequal length
    data = il.Federation.from_arrays(x, y, np.repeat(list("abc"), 20))
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 0.5]))
    torch.manual_seed(0)
    result = il.run(method, il.Task(Tokens(), loss), data, rounds=2)
    for row in result.clients_table():
        x, y = data.part(data.position(row["client"]), "test")
        with torch.no_grad():
            outputs = result.personal(row["client"])(x)
        hits = (outputs.argmax(1) == y)[y >= 0].double().mean()
        assert row["test_accuracy"] == pytest.approx(float(hits))
        assert row["test_loss"] == pytest.approx(float(loss(outputs, y)), rel=1e-5)
