"""Models as users write them: what each takes and what it can be trained to predict.

Inputs are named by `data.INPUTS`, targets by `data.TARGETS`. A model is as small as it can be: what
counts is the kind of module, not what it learns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from .data import FEATURES, SIDE, VOCABULARY

PLAIN = ("classes", "binary", "real", "several", "labels")  # one vector of outputs


@dataclass(frozen=True)
class ZooModel:
    """How a model is made, what it takes and what it predicts."""

    make: Callable[[int], nn.Module]  # from the number of outputs
    inputs: str = "vector"
    targets: tuple[str, ...] = PLAIN
    random: bool = False  # draws random numbers in training
    task: tuple[tuple[str, Any], ...] = ()  # further arguments of idiolect.Task
    one_argument: bool = False  # takes a dict as its one argument
    outputs: type = Tensor

    def build(self, outputs: int, seed: int = 0) -> nn.Module:
        """The module, the same for every call with this seed; torch's generator is untouched."""
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of the model itself
            torch.manual_seed(seed)
            return self.make(outputs)

    def call(self, module: nn.Module, inputs: Any) -> Any:
        """The module as its author would call it."""
        if isinstance(inputs, dict) and not self.one_argument:
            return module(**inputs)
        return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


# -- vectors ---------------------------------------------------------------------------------------
def mlp(activation: Callable[[], nn.Module], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), activation(), nn.Linear(4, outputs))


def chain(*layers: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    """A hidden layer, these layers on it, and an output layer."""

    def make(outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(FEATURES, 4), *(layer() for layer in layers), nn.Linear(4, outputs)
        )

    return make


def deep(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, outputs)
    )


class Hidden(nn.Module):
    """Base of modules with one hidden layer."""

    def __init__(self, outputs: int, width: int = 4):
        super().__init__()
        self.hidden = nn.Linear(FEATURES, width)
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.middle(self.hidden(x)))

    def middle(self, h: Tensor) -> Tensor:
        return h.relu()


class Residual(Hidden):
    def middle(self, h: Tensor) -> Tensor:
        return h + h.tanh()


class FunctionalDropout(Hidden):
    """F.dropout behind a branch on the data, which torch.fx cannot trace."""

    def middle(self, h: Tensor) -> Tensor:
        if h.shape[0] > 10**6:
            h = h.sin()
        return F.dropout(h.relu(), 0.4, self.training)


class Noise(Hidden):
    def middle(self, h: Tensor) -> Tensor:
        return h + 0.1 * torch.randn_like(h) if self.training else h


class StochasticDepth(Hidden):
    """Skips its inner layer for some samples."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.inner = nn.Linear(4, 4)

    def middle(self, h: Tensor) -> Tensor:
        inner = self.inner(h).relu()
        if not self.training:
            return h + 0.8 * inner
        return h + inner * torch.bernoulli(torch.full_like(h[..., :1], 0.8))


class LogitAdjustment(Hidden):
    """Adds the log of class frequencies in training only."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.register_buffer("prior", torch.linspace(-2, 0, outputs))

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores + self.prior if self.training else scores


class Unused(Hidden):
    """Has a layer that forward never uses."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.spare = nn.Linear(3, 3)


class Frozen(Hidden):
    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.hidden.requires_grad_(False)


class Shared(Hidden):
    """Uses one layer twice."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.inner = nn.Linear(4, 4)

    def middle(self, h: Tensor) -> Tensor:
        return self.inner(self.inner(h).relu()).relu()


class TiedLayers(Hidden):
    """Two names for one weight."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight

    def middle(self, h: Tensor) -> Tensor:
        return self.two(self.one(h).tanh())


def double(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return 2 * output


class Hooked(Hidden):
    """A forward hook changes what a layer returns."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.hidden.register_forward_hook(double)


class Branching(Hidden):
    """Control flow that depends on the data."""

    def middle(self, h: Tensor) -> Tensor:
        return h.tanh() if bool(h.sum() > 0) else h.relu()


class Looping(Hidden):
    """As many steps as a parameter says."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.inner = nn.Linear(4, 4)

    def middle(self, h: Tensor) -> Tensor:
        for _ in range(3):
            h = (self.inner(h) + h).tanh()
        return h


class Centred(Hidden):
    """A constant buffer."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.register_buffer("centre", torch.linspace(0, 1, 4))
        self.register_buffer("steps", torch.tensor(3))

    def middle(self, h: Tensor) -> Tensor:
        return (h - self.centre).relu()


class MovingAverage(Hidden):
    """A buffer of its own that forward changes."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.register_buffer("ema", torch.zeros(4))

    def middle(self, h: Tensor) -> Tensor:
        if self.training:
            self.ema.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h - self.ema


class Experts(Hidden):
    """A mixture of three experts; each sample goes to its best."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def middle(self, h: Tensor) -> Tensor:
        share = self.gate(h).softmax(-1)
        best, which = share.max(-1, keepdim=True)
        each = torch.stack([expert(h) for expert in self.experts], dim=-2)
        at = which.unsqueeze(-1).expand(*which.shape, h.shape[-1])
        return best * each.gather(-2, at).squeeze(-2)


class Scaled(Hidden):
    """A parameter without axes, and parameters in a list and in a dict."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.shifts = nn.ParameterList([nn.Parameter(torch.zeros(4)) for _ in range(2)])
        self.named = nn.ParameterDict({"gain": nn.Parameter(torch.ones(4))})

    def middle(self, h: Tensor) -> Tensor:
        return self.scale * (h * self.named["gain"] + self.shifts[0] - self.shifts[1])


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return (weight + weight.T) / 2


def parametrised(outputs: int) -> nn.Module:
    model = deep(outputs)
    parametrize.register_parametrization(model[2], "weight", Symmetric())
    return model


def spectral(outputs: int) -> nn.Module:
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(FEATURES, 4)), nn.ReLU(), nn.Linear(4, outputs)
    )


def weight_norm(outputs: int) -> nn.Module:
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(FEATURES, 4)), nn.ReLU(), nn.Linear(4, outputs)
    )


def scripted(outputs: int) -> nn.Module:
    return torch.jit.script(deep(outputs))


def traced(outputs: int) -> nn.Module:
    return torch.jit.trace(deep(outputs), torch.zeros(2, FEATURES))


class Square(torch.autograd.Function):
    """A derivative by hand."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.save_for_backward(h)
        return h * h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * grad


class OwnDerivative(Hidden):
    def middle(self, h: Tensor) -> Tensor:
        return Square.apply(h)


class Fourier(Hidden):
    """Complex numbers on the way."""

    def middle(self, h: Tensor) -> Tensor:
        return torch.fft.rfft(h, dim=-1).abs().repeat_interleave(2, -1)[..., :4]


class Probability(Hidden):
    """Probabilities, for nn.BCELoss."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sigmoid()


class TupleOutputs(Hidden):
    """Scores and features."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.hidden(x).relu()
        return self.out(h), h


class DictOutputs(Hidden):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.hidden(x).relu()
        return {"logits": self.out(h), "features": h}


class TwoHeads(Hidden):
    """A class and a value."""

    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.value = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.hidden(x).relu()
        return {"kind": self.out(h), "value": self.value(h).squeeze(-1)}


class Variational(nn.Module):
    """Samples its code in training: reconstruction, mean and log variance."""

    def __init__(self, outputs: int):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(FEATURES, 4), nn.Linear(2, outputs)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        code = mean
        if self.training:
            code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(code), mean, log_variance


class TiedAutoencoder(nn.Module):
    """The decoder's weight is the encoder's, transposed."""

    def __init__(self, outputs: int):
        super().__init__()
        self.encoder = nn.Linear(FEATURES, 3)
        self.shift = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.encoder(x).tanh(), self.encoder.weight.T, self.shift)


# -- several inputs --------------------------------------------------------------------------------
class TwoInputs(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(3, 4)
        self.out = nn.Linear(4, outputs)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.out((self.left(left) + self.right(right)).relu())


class OneDict(TwoInputs):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(batch["left"], batch["right"])


class Bilinear(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.both = nn.Bilinear(4, 3, outputs)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.both(left, right)


class Recommender(nn.Module):
    """Embeddings of a user and an item."""

    def __init__(self, outputs: int, sparse: bool = False):
        super().__init__()
        self.user = nn.Embedding(VOCABULARY, 3, sparse=sparse)
        self.item = nn.Embedding(VOCABULARY, 3, sparse=sparse)
        self.out = nn.Linear(3, outputs)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return self.out(self.user(user) * self.item(item))


# -- pictures --------------------------------------------------------------------------------------
def convolution(*layers: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    """A convolution, these layers, and an output layer."""

    def make(outputs: int) -> nn.Module:
        body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *(layer() for layer in layers))
        with torch.no_grad():
            width = body.eval()(torch.zeros(1, 2, SIDE, SIDE)).flatten(1).shape[1]
        return nn.Sequential(*body.train(), nn.Flatten(), nn.Linear(width, outputs))

    return make


def picture(*layers: Callable[[], nn.Module], random: bool = False) -> ZooModel:
    return ZooModel(convolution(*layers), "picture", ("classes", "labels", "real"), random)


class Segmentation(nn.Module):
    """A small U-Net: classes for every pixel."""

    def __init__(self, outputs: int):
        super().__init__()
        self.down = nn.Conv2d(2, 4, 2, stride=2)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.out = nn.Conv2d(4, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([x, self.up(self.down(x).relu())], dim=1))


class ResidualBlock(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.first = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(2)
        self.out = nn.Linear(2, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((x + self.norm(self.first(x)).relu()).mean((-2, -1)))


# -- sequences -------------------------------------------------------------------------------------
class Recurrent(nn.Module):
    """The last state of a recurrent layer; with `words`, an output for every word."""

    def __init__(self, outputs: int, kind: type[nn.RNNBase] = nn.LSTM, words: bool = False):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 3)
        self.layer = kind(3, 4, batch_first=True)
        self.out = nn.Linear(4, outputs)
        self.words = words

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.layer(self.embedding(tokens))
        return self.out(states if self.words else states[:, -1])


class BothWays(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 3, padding_idx=0)
        self.layer = nn.GRU(3, 2, num_layers=2, bidirectional=True, batch_first=True)
        self.out = nn.Linear(4, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layer(self.embedding(tokens))[0].mean(1))


class Transformer(nn.Module):
    """torch's encoder, which takes another way in eval mode."""

    def __init__(self, outputs: int, dropout: float = 0.0, words: bool = False):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(4, outputs)
        self.words = words

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.encoder(self.embedding(tokens))
        return self.out(states if self.words else states.mean(1))


class TiedLanguageModel(nn.Module):
    """Scores of words by the embedding itself."""

    def __init__(self, outputs: int):
        super().__init__()
        self.embedding = nn.Embedding(outputs, 4)
        self.inner = nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.inner(self.embedding(tokens)).tanh(), self.embedding.weight)


class BagOfWords(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.embedding = nn.EmbeddingBag(VOCABULARY, 4)
        self.out = nn.Linear(4, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.embedding(tokens))


class Temporal(nn.Module):
    """Convolutions over time."""

    def __init__(self, outputs: int):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 3)
        self.layer = nn.Conv1d(3, 4, 3, padding=1)
        self.out = nn.Linear(4, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layer(self.embedding(tokens).transpose(-1, -2)).amax(-1))


class MaskedMean(nn.Module):
    """Sequences of different lengths, with their mask."""

    def __init__(self, outputs: int):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.out = nn.Linear(4, outputs)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        shares = mask / mask.sum(-1, keepdim=True)
        return self.out((self.embedding(tokens) * shares.unsqueeze(-1)).sum(-2))


class MaskedAttention(MaskedMean):
    def __init__(self, outputs: int):
        super().__init__(outputs)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        words = self.embedding(tokens)
        words, _ = self.attention(words, words, words, key_padding_mask=mask == 0)
        shares = mask / mask.sum(-1, keepdim=True)
        return self.out((words * shares.unsqueeze(-1)).sum(-2))


ACTIVATIONS = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "leaky": nn.LeakyReLU,
    "softplus": nn.Softplus,
    "hardswish": nn.Hardswish,
    "prelu": nn.PReLU,
    "mish": nn.Mish,
    "softsign": nn.Softsign,
    "glu": partial(nn.Sequential, nn.Linear(4, 8), nn.GLU()),
}

ONE_OF_CLASSES = ("classes", "binary")

ZOO: dict[str, ZooModel] = {
    "linear": ZooModel(partial(nn.Linear, FEATURES)),
    "linear-no-bias": ZooModel(partial(nn.Linear, FEATURES, bias=False)),
    **{f"mlp-{name}": ZooModel(partial(mlp, layer)) for name, layer in ACTIVATIONS.items()},
    "mlp-rrelu": ZooModel(partial(mlp, nn.RReLU), random=True),
    "deep": ZooModel(deep),
    "residual": ZooModel(Residual),
    "dropout": ZooModel(chain(nn.ReLU, nn.Dropout), random=True),
    "alpha-dropout": ZooModel(chain(nn.SELU, nn.AlphaDropout), random=True),
    "functional-dropout": ZooModel(FunctionalDropout, random=True),
    "noise": ZooModel(Noise, random=True),
    "stochastic-depth": ZooModel(StochasticDepth, random=True),
    "logit-adjustment": ZooModel(LogitAdjustment, targets=("classes",)),
    "batch-norm": ZooModel(chain(partial(nn.BatchNorm1d, 4), nn.ReLU)),
    "batch-norm-cumulative": ZooModel(chain(partial(nn.BatchNorm1d, 4, momentum=None))),
    "batch-norm-untracked": ZooModel(chain(partial(nn.BatchNorm1d, 4, track_running_stats=False))),
    "layer-norm": ZooModel(chain(partial(nn.LayerNorm, 4), nn.GELU)),
    "rms-norm": ZooModel(chain(partial(nn.RMSNorm, 4))),
    "spectral-norm": ZooModel(spectral),
    "weight-norm": ZooModel(weight_norm),
    "parametrised": ZooModel(parametrised),
    "unused": ZooModel(Unused),
    "frozen": ZooModel(Frozen),
    "shared": ZooModel(Shared),
    "tied": ZooModel(TiedLayers),
    "hooked": ZooModel(Hooked),
    "branching": ZooModel(Branching),
    "looping": ZooModel(Looping),
    "centred": ZooModel(Centred),
    "moving-average": ZooModel(MovingAverage, task=(("buffers", "ema"),)),
    "undeclared-buffer": ZooModel(MovingAverage),
    "experts": ZooModel(Experts),
    "scaled": ZooModel(Scaled),
    "scripted": ZooModel(scripted),
    "traced": ZooModel(traced),
    "own-derivative": ZooModel(OwnDerivative),
    "fourier": ZooModel(Fourier),
    "probability": ZooModel(Probability, targets=("binary", "labels")),
    "tuple-outputs": ZooModel(TupleOutputs, targets=("classes",), outputs=tuple),
    "dict-outputs": ZooModel(DictOutputs, targets=("classes", "real"), outputs=dict),
    "two-heads": ZooModel(TwoHeads, targets=("class and value",), outputs=dict),
    "variational": ZooModel(Variational, targets=("itself",), random=True, outputs=tuple),
    "tied-autoencoder": ZooModel(TiedAutoencoder, targets=("itself",)),
    "two-inputs": ZooModel(TwoInputs, "tuple"),
    "named-inputs": ZooModel(TwoInputs, "dict"),
    "one-dict": ZooModel(OneDict, "dict", one_argument=True),
    "bilinear": ZooModel(Bilinear, "tuple"),
    "recommender": ZooModel(Recommender, "ids", ("real", *ONE_OF_CLASSES)),
    "sparse-embedding": ZooModel(partial(Recommender, sparse=True), "ids", ("real", "binary")),
    "cnn": picture(nn.ReLU),
    "cnn-max-pool": picture(nn.ReLU, partial(nn.MaxPool2d, 2)),
    "cnn-mean-pool": picture(nn.Tanh, partial(nn.AdaptiveAvgPool2d, 1)),
    "cnn-dropout": picture(nn.ReLU, nn.Dropout2d, random=True),
    "cnn-batch-norm": picture(partial(nn.BatchNorm2d, 4), nn.ReLU),
    "cnn-group-norm": picture(partial(nn.GroupNorm, 2, 4), nn.ReLU),
    "cnn-instance-norm": picture(partial(nn.InstanceNorm2d, 4), nn.ReLU),
    "cnn-instance-norm-tracked": picture(
        partial(nn.InstanceNorm2d, 4, affine=True, track_running_stats=True), nn.ReLU
    ),
    "cnn-depthwise": picture(partial(nn.Conv2d, 4, 4, 3, groups=4), nn.ReLU),
    "residual-block": ZooModel(ResidualBlock, "picture", ("classes", "real")),
    "segmentation": ZooModel(Segmentation, "picture", ("mask",)),
    "pixel-linear": ZooModel(partial(nn.Conv2d, 2, kernel_size=1), "picture", ("mask",)),
    "rnn": ZooModel(partial(Recurrent, kind=nn.RNN), "tokens", ONE_OF_CLASSES),
    "lstm": ZooModel(Recurrent, "tokens", ("classes", "real")),
    "gru": ZooModel(BothWays, "tokens", ONE_OF_CLASSES),
    "lstm-words": ZooModel(partial(Recurrent, words=True), "tokens", ("words",)),
    "transformer": ZooModel(Transformer, "tokens", ONE_OF_CLASSES),
    "transformer-dropout": ZooModel(
        partial(Transformer, dropout=0.3), "tokens", ONE_OF_CLASSES, random=True
    ),
    "transformer-words": ZooModel(partial(Transformer, words=True), "tokens", ("words",)),
    "tied-language-model": ZooModel(TiedLanguageModel, "tokens", ("words",)),
    "bag-of-words": ZooModel(BagOfWords, "tokens", ONE_OF_CLASSES),
    "temporal": ZooModel(Temporal, "tokens", ("classes", "real")),
    "masked-mean": ZooModel(MaskedMean, "ragged", ("classes", "real")),
    "masked-attention": ZooModel(MaskedAttention, "ragged", ("classes", "real")),
}
