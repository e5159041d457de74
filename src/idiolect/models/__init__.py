"""The models of the papers (`PAPERS`) and larger ones (`LARGE`), by name, as ordinary torch modules.

Each is one flat `nn.Sequential` whose last layer is called `head`. The shape of one sample says what the input is: 784 flat
features are not an image, (1, 28, 28) is; to a transformer, (T,) is T tokens. None has BatchNorm, so a model is its parameter
vector and nothing else. Each takes `adapter_rank`; `adapt` gives adapters to any other module.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..core.knobs import build, nearest
from .adapters import adapt
from .base import Model
from .cnn import FedDeperCNN, LeNet, smallest_side
from .linear import Linear
from .mlp import MLP
from .resnet import ResNet18, ResNet34, ResNetSmall
from .transformer import Transformer

__all__ = ["LARGE", "MODELS", "PAPERS", "Model", "adapt", "default", "make"]

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
MODELS = PAPERS | LARGE


def make(name: str, inputs: tuple[int, ...], outputs: int, **options: Any) -> nn.Module:
    """The model called `name` for samples of shape `inputs`; `outputs` is the number of classes, or 1 for regression.

    For a transformer, `outputs` is the size of its vocabulary.

    >>> sum(p.numel() for p in make("mlp", (784,), 62, hidden="100,100").parameters())
    94862
    >>> make("lenett", (3, 32, 32), 10)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: model: 'lenett' is unknown; did you mean 'lenet'? known: feddeper-cnn, lenet, linear, mlp, ...
    """
    if name not in MODELS:
        raise nearest(name, MODELS, "model")
    model: Model = build(MODELS[name], options, name)
    return model.build(inputs, outputs)


def default(inputs: tuple[int, ...], outputs: int) -> str:
    """The model to start with: linear for flat samples, lenet for colour images it can take, mlp for everything else.

    `outputs` does not change the choice; it is there so that `default` and `build` are called alike.

    >>> default((60,), 10), default((1, 28, 28), 10), default((3, 32, 32), 10)
    ('linear', 'mlp', 'lenet')
    """
    if len(inputs) == 1:
        return "linear"
    if len(inputs) == 3 and inputs[0] == 3 and min(inputs[1:]) >= smallest_side(5):
        return "lenet"
    return "mlp"
