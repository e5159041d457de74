"""Models by name, as ordinary torch modules: those of the papers, larger ones, and a user's own.

Each built-in model is one flat `nn.Sequential` whose last layer is called `head`. The shape of one
sample says what the input is: 784 flat features are not an image, (1, 28, 28) is; to a transformer,
(T,) is T tokens. None has BatchNorm, so a model is its parameter vector and nothing else. Each
takes `adapter_rank`; `adapt` gives adapters to any other module.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..core.callables import read_options
from ..core.knobs import Knobs
from ..core.registry import Table
from .adapters import adapt
from .base import Builder, Model, accept, call_builder, options_of, title
from .feedforward import MLP, FedDeperCNN, LeNet, Linear, smallest_side
from .resnet import ResNet18, ResNet34, ResNetSmall
from .transformer import Transformer

__all__ = ["LARGE", "MODELS", "PAPERS", "Model", "adapt", "default", "make", "options_of"]

PAPERS: dict[str, type[Model]] = {
    "linear": Linear,
    "mlp": MLP,
    "lenet": LeNet,
    "resnet-small": ResNetSmall,
    "feddeper-cnn": FedDeperCNN,
}
LARGE: dict[str, type[Model]] = {
    "resnet18": ResNet18,
    "resnet34": ResNet34,
    "transformer": Transformer,
}
MODELS: Table[type[Knobs]] = Table("model", "idiolect.models", PAPERS | LARGE, accept)


def make(
    model: str | type[Model] | Builder,
    /,
    inputs: tuple[int, ...],
    outputs: int,
    **options: Any,
) -> nn.Module:
    """A new model for samples of shape `inputs`.

    `model` is a name (built in, of an installed package, or `module:Name`), a subclass of `Model`,
    or a callable `(inputs, outputs, **options)` that makes a module: an `nn.Module` class or a
    function. `outputs` is the number of classes, 1 for regression, or the size of the vocabulary
    for a transformer.

    >>> sum(p.numel() for p in make("mlp", (784,), 62, hidden="100,100").parameters())
    94862
    >>> def bilinear(inputs, outputs, rank=3):
    ...     return nn.Sequential(nn.Linear(inputs[0], rank), nn.Linear(rank, outputs))
    >>> sum(p.numel() for p in make(bilinear, (10,), 2, rank=4).parameters())
    54
    >>> make("lenett", (3, 32, 32), 10)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: model: 'lenett' is unknown; did you mean 'lenet'? known: ...
    """
    name = model if isinstance(model, str) else title(model)
    entry = MODELS.find(model) if isinstance(model, str) else accept(name, model)
    settings, extra = read_options(entry, options, name)
    if isinstance(settings, Model):
        return settings.build(inputs, outputs)
    return call_builder(settings, inputs, outputs, extra)


def default(inputs: tuple[int, ...], outputs: int) -> str:
    """The name of the model to start with.

    Linear for flat samples, lenet for colour images that are large enough for it, mlp for
    everything else. `outputs` does not change the choice; it is there so that `default` and `make`
    take the same arguments.

    >>> default((60,), 10), default((1, 28, 28), 10), default((3, 32, 32), 10)
    ('linear', 'mlp', 'lenet')
    """
    if len(inputs) == 1:
        return "linear"
    if len(inputs) == 3 and inputs[0] == 3 and min(inputs[1:]) >= smallest_side(5):
        return "lenet"
    return "mlp"
