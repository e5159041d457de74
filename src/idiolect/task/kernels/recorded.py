"""What each weight was used for in a forward pass, so that each sample's gradient can be clipped.

Weights are given to a module as tensors that record the functions they are passed to. Of functions
that are known here (linear layers, convolutions, embeddings, norms, LSTM layers, sums and products)
the inputs are kept, and in the backward pass the derivatives by the outputs; from both follow the
norm of each sample's gradient and the sum of scaled gradients, without gradients of weights. A
weight cannot be used unseen: any other function raises `Unrecorded`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .clipped import NUMBERS_AT_ONCE, by_positions, matrix_squares


class Unrecorded(Exception):
    """A weight that is used in a way that is not known here."""


class RecordedWeight(Tensor):
    """A weight without gradient that tells its record which functions it is passed to."""

    key: str
    record: Record
    rows: Tensor  # [K, ...]: of each client; what the module sees is the first of them
    place: Any  # which part of the weight it is, as an index; None = all of it
    full: torch.Size

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        rule = RULES.get(func)
        if rule is None:
            raise Unrecorded(getattr(func, "__name__", str(func)))
        return rule(*args, **kwargs)


_METADATA = {
    *(
        getattr(Tensor, name).__get__
        for name in ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "layout")
    ),
    *(Tensor.dim, Tensor.size, Tensor.numel, Tensor.__len__, Tensor.is_floating_point),
    *(Tensor.is_complex, Tensor.ndimension, torch.is_floating_point, torch.numel),
}


def plain(t: Any) -> Any:
    """A weight of one client as an ordinary tensor."""
    if not isinstance(t, RecordedWeight):
        return t
    if t.record.clients > 1:
        raise Unrecorded("a function that is not known for the weights of several clients")
    return t.rows[0]


def recorded(*tensors: Any) -> Record:
    return next(t.record for t in tensors if isinstance(t, RecordedWeight))


# -- a pass ----------------------------------------------------------------------------------------
class _Call:
    """The derivative by what a function returned, once the backward pass has come by."""

    delta: Tensor | None = None


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, anchor: Tensor, call: _Call) -> Tensor:
        ctx.call = call
        ctx.mark_dirty(z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor, None, None]:
        ctx.call.delta = delta
        return delta, None, None


class Record:
    """The uses of all weights in one pass over the samples of K clients, one client after another.

    The module sees one batch; only functions of weights treat it client by client.
    """

    def __init__(self, clients: int, samples: int, device: torch.device):
        self.clients = clients
        self.samples = samples  # n, of all clients
        self.uses: dict[str, list[Use]] = {}
        # what a backward pass goes to, as weights have no gradient
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.inputs: list[tuple[Tensor, int]] = []  # what weights met, and its version

    def activation(self, t: Any) -> Tensor:
        """What a weight meets: an ordinary tensor, which must not change until it is used."""
        if not isinstance(t, Tensor) or isinstance(t, RecordedWeight):
            raise Unrecorded("a function of weights alone")
        self.inputs.append((t, t._version))
        return t.detach()

    def weight(self, name: str, rows: Tensor, place: Any = None, full: Any = None) -> Tensor:
        """What a module is given for rows[K, ...]; `place` in weights of the shape `full`."""
        rows = rows.detach()
        w: Any = rows[0].as_subclass(RecordedWeight)
        w.key, w.record, w.rows = name, self, rows
        w.place, w.full = place, full or rows.shape[1:]
        return w

    def beside(self, w: Any, x: Tensor) -> Tensor:
        """A weight in the form that is added to x[n m, ...], or multiplied with it."""
        if not isinstance(w, RecordedWeight):
            return w
        if self.clients == 1:
            return w.rows[0]
        shape = tuple(w.shape)[1:] if w.dim() == x.dim() else tuple(w.shape)
        shape = (1,) * (x.dim() - 1 - len(shape)) + shape
        rows = w.rows.reshape(self.clients, 1, *shape)
        return rows.expand(-1, len(x) // self.clients, *shape).flatten(0, 1)

    def by_client(self, t: Tensor) -> Tensor:
        """[n, ...] -> [K, n / K, ...]"""
        return t.unflatten(0, (self.clients, -1))

    def tap(self, z: Tensor) -> tuple[Tensor, _Call]:
        """A new tensor, and where the derivative by it will be."""
        call = _Call()
        return _Tap.apply(z, self.anchor, call), call

    def add(self, w: Any, use: Use) -> None:
        if not isinstance(w, RecordedWeight):  # frozen
            return
        if w.place is not None:
            use = _PartUse(self, use.call, use, w.place, tuple(w.full))
        self.uses.setdefault(w.key, []).append(use)

    def by_sample(self, t: Tensor) -> Tensor:
        """[n m, ..., features] -> [n, T, features], where the first axis is that of the samples."""
        if t.dim() < 2 or t.shape[0] % self.samples:
            raise Unrecorded("a function whose first axis is not that of the samples")
        return t.reshape(self.samples, -1, t.shape[-1])

    def backward(self, value: Tensor) -> None:
        if value.requires_grad:
            torch.autograd.grad(value, self.anchor, allow_unused=True)
        if any(t._version != version for t, version in self.inputs):
            raise Unrecorded("an input that is changed in place")
        for name, uses in self.uses.items():  # what no derivative has come to, as under no_grad
            self.uses[name] = [use for use in uses if use.call.delta is not None]

    # -- of all uses -------------------------------------------------------------------------------
    def squares(self) -> Tensor:  # -> [n]
        """Squared norms of the gradients of single samples, over all weights."""
        parts = [squares_of(uses) for uses in self.uses.values() if uses]
        return torch.stack(parts).sum(0) if parts else self.anchor.new_zeros(self.samples)

    def sums(self, name: str, scale: Tensor) -> Tensor | None:  # -> [K, *shape]
        """Σ_s scale_s g_s of each client, of one weight; None where it has no gradient."""
        parts = [use.scaled(scale) for use in self.uses.get(name, ())]
        return sum(parts[1:], parts[0]) if parts else None

    def without(self, broken: Tensor) -> None:
        """Set to 0 what belongs to these samples (bool[n])."""
        for uses in self.uses.values():
            for use in uses:
                use.blank(broken)


# -- uses: what a function makes of a weight -------------------------------------------------------
@dataclass
class Use:
    """One use of a weight: the gradients of single samples, their norms and their scaled sum."""

    record: Record
    call: _Call

    @property
    def samples(self) -> int:
        return self.record.samples

    @property
    def delta(self) -> Tensor:
        assert self.call.delta is not None
        return self.call.delta

    def each(self) -> Tensor:  # -> [n, *shape]
        raise NotImplementedError

    def squares(self) -> Tensor:  # -> [n]
        each = self.each().reshape(self.samples, -1)
        return torch.linalg.vecdot(each, each)

    def scaled(self, scale: Tensor) -> Tensor:  # scale[n] -> [K, *shape]
        each = self.each()
        by_client = self.record.by_client(each.reshape(self.samples, -1))
        shares = self.record.by_client(scale.to(each.dtype)).unsqueeze(1)
        return torch.bmm(shares, by_client).view(-1, *each.shape[1:])

    def blank(self, broken: Tensor) -> None:
        self.call.delta = _blanked(self.delta, broken)

    def size(self) -> int:
        """How many numbers the gradients of all samples have."""
        raise NotImplementedError


def _blanked(t: Tensor, broken: Tensor) -> Tensor:
    """t[n m, ...] with 0 for these samples."""
    t = t.unflatten(0, (len(broken), -1))
    return t.masked_fill(broken.view(-1, *[1] * (t.dim() - 1)), 0).flatten(0, 1)


@dataclass
class MatrixUse(Use):
    """W a: Σ_t δ_t a_t'."""

    inputs: Tensor  # [n, T, inputs]
    shape: tuple[int, ...]
    # positions of δ: of a linear layer the axes between the first and the last
    positions: Callable[[Tensor], Tensor]  # δ -> [n, T, outputs]
    transposed: bool = False  # W is [inputs, outputs]
    _each: Tensor | None = None

    def _both(self) -> tuple[Tensor, Tensor]:
        a, delta = self.inputs, self.positions(self.delta)
        return (delta, a) if self.transposed else (a, delta)

    def size(self) -> int:
        return self.samples * prod(self.shape)

    def each(self) -> Tensor:
        if self._each is None:
            a, delta = self._both()
            self._each = torch.bmm(delta.transpose(1, 2), a).view(self.samples, *self.shape)
        return self._each

    def squares(self) -> Tensor:
        a, delta = self._both()
        form = a.shape[1], a.shape[2], delta.shape[2]
        if form[0] == 1 or by_positions(*form) or self.size() > NUMBERS_AT_ONCE:
            return matrix_squares(a, delta)
        return super().squares()  # which keeps the gradients

    def scaled(self, scale: Tensor) -> Tensor:
        if self._each is not None:
            return super().scaled(scale)
        a, delta = self._both()
        delta = delta * scale.to(delta.dtype).view(-1, 1, 1)
        delta, a = (self.record.by_client(t).flatten(1, 2) for t in (delta, a))
        return torch.bmm(delta.transpose(1, 2), a).view(-1, *self.shape)

    def blank(self, broken: Tensor) -> None:
        super().blank(broken)
        self.inputs = _blanked(self.inputs, broken)
        self._each = None


@dataclass
class SumUse(Use):
    """Added to activations, or multiplied with them: δ, or δ times these, summed over positions."""

    shape: tuple[int, ...]
    factor: Tensor | None = None  # of the form of δ
    channels_first: bool = False  # the weight lies along the second axis, not the last ones

    def size(self) -> int:
        return self.samples * prod(self.shape)

    def each(self) -> Tensor:
        t = self.delta if self.factor is None else self.delta * self.factor
        n, shape = self.samples, self.shape
        if self.channels_first:
            return t.reshape(n, t.shape[1], -1).sum(2).view(n, *shape)
        t = t.unflatten(0, (n, -1)).sum(1) if len(t) != n else t
        form = shape[1:] if len(shape) > t.dim() - 1 else shape  # without the axis of the samples
        form = (1,) * (t.dim() - 1 - len(form)) + tuple(form)
        axes = [i + 1 for i, m in enumerate(form) if m == 1 and t.shape[i + 1] > 1]
        return (t.sum(axes, keepdim=True) if axes else t).reshape(n, *shape)

    def blank(self, broken: Tensor) -> None:
        super().blank(broken)
        if self.factor is not None:
            self.factor = _blanked(self.factor, broken)


@dataclass
class LookupUse(Use):
    """Rows of a table, by their numbers."""

    index: Tensor  # int64[n, T]
    shape: tuple[int, ...]  # rows, width
    padding: int | None = None  # the row that is not trained

    def _rows(self) -> Tensor:  # -> [n, T, width]
        rows = self.delta.reshape(self.samples, -1, self.shape[1])
        if self.padding is None:
            return rows
        return rows.masked_fill((self.index == self.padding).unsqueeze(2), 0)

    def size(self) -> int:
        return self.samples * prod(self.shape)

    def _numbers(self) -> Tensor:
        """Rows of a table for each sample, one below the other."""
        first = torch.arange(self.samples, device=self.index.device) * self.shape[0]
        return (self.index + first.unsqueeze(1)).flatten()

    def each(self) -> Tensor:
        delta = self._rows().flatten(0, 1)
        blank = delta.new_zeros(self.samples * self.shape[0], self.shape[1])
        return blank.index_add_(0, self._numbers(), delta).view(self.samples, *self.shape)

    def squares(self) -> Tensor:
        delta = self._rows().flatten(0, 1)
        numbers, place = self._numbers().unique(return_inverse=True)
        sums = delta.new_zeros(len(numbers), self.shape[1]).index_add_(0, place, delta)
        each = torch.linalg.vecdot(sums, sums)
        sample = numbers.div(self.shape[0], rounding_mode="floor")
        return each.new_zeros(self.samples).index_add_(0, sample, each)

    def scaled(self, scale: Tensor) -> Tensor:
        delta = self._rows()
        delta = (delta * scale.to(delta.dtype).view(-1, 1, 1)).flatten(0, 1)
        clients = self.record.clients
        blank = delta.new_zeros(clients * self.shape[0], self.shape[1])
        index = _of_client(self.record, self.index, self.shape[0]).flatten()
        return blank.index_add_(0, index, delta).view(clients, *self.shape)

    def times(self, matrix: MatrixUse) -> Tensor:  # -> [n]
        """The inner products of its gradients and those of a matrix that is the same weight."""
        a, delta = matrix._both()  # [n, T', width], [n, T', rows]
        picked = delta.gather(2, self.index.unsqueeze(1).expand(-1, delta.shape[1], -1))
        return (picked * torch.bmm(a, self._rows().transpose(1, 2))).sum((1, 2))


@dataclass
class _PartUse(Use):
    """A use of a part of a weight: 0 in the rest."""

    of_part: Use
    place: Any
    full: tuple[int, ...]

    def size(self) -> int:
        return self.samples * prod(self.full)

    def each(self) -> Tensor:
        part = self.of_part.each()
        return self._into(part.new_zeros(self.samples, *self.full), part)

    def squares(self) -> Tensor:
        return self.of_part.squares()

    def scaled(self, scale: Tensor) -> Tensor:
        part = self.of_part.scaled(scale)
        return self._into(part.new_zeros(len(part), *self.full), part)

    def _into(self, whole: Tensor, part: Tensor) -> Tensor:
        every = self.place if isinstance(self.place, tuple) else (self.place,)
        whole[(slice(None), *every)] = part
        return whole

    def blank(self, broken: Tensor) -> None:
        self.of_part.blank(broken)


def squares_of(uses: list[Use]) -> Tensor:
    """Squared norms of the gradients of single samples by one weight: [n]."""
    if len(uses) == 1:
        return uses[0].squares()
    if len(uses) == 2:  # a table of embeddings that is the output layer too
        table, matrix = sorted(uses, key=lambda use: not isinstance(use, LookupUse))
        if isinstance(table, LookupUse) and isinstance(matrix, MatrixUse):
            cross = table.times(matrix)
            return (table.squares() + matrix.squares() + 2 * cross).clamp(min=0)
    if sum(use.size() for use in uses) > 4 * NUMBERS_AT_ONCE:
        raise Unrecorded("a large weight that is used several times")
    each = torch.stack([use.each() for use in uses]).sum(0).reshape(uses[0].samples, -1)
    return torch.linalg.vecdot(each, each)


# -- functions -------------------------------------------------------------------------------------
RULES: dict[Any, Callable[..., Any]] = {}


def rule(*functions: Any) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        RULES.update(dict.fromkeys(functions, function))
        return function

    return register


@rule(F.linear)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _product(x, weight, bias, transposed=False)


@rule(torch.addmm)
def addmm(bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """The linear layer of some language models: weight[inputs, outputs]."""
    if (beta, alpha) != (1, 1) or bias.dim() != 1:
        raise Unrecorded("addmm with factors")
    return _product(x, weight, bias, transposed=True)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    """W x + b."""
    record = recorded(weight, bias)
    a = record.by_sample(record.activation(x))
    if record.clients == 1:
        matrix = plain(weight)
        z = F.linear(x, matrix.T if transposed else matrix, plain(bias))
    else:
        z = _of_clients(record, x, weight, transposed)
        z = z if bias is None else z.add_(record.beside(bias, z))
    out, call = record.tap(z)
    shape = tuple(weight.shape)
    record.add(weight, MatrixUse(record, call, a, shape, record.by_sample, transposed))
    if bias is not None:
        record.add(bias, SumUse(record, call, tuple(bias.shape)))
    return out


def _of_clients(record: Record, x: Tensor, weight: Tensor, transposed: bool) -> Tensor:
    """x[n m, ..., inputs] by the matrix of each client."""
    if not isinstance(weight, RecordedWeight):
        return F.linear(x, weight.T if transposed else weight)
    matrices = weight.rows if transposed else weight.rows.transpose(1, 2)
    z = torch.bmm(x.reshape(record.clients, -1, x.shape[-1]), matrices)
    return z.view(*x.shape[:-1], z.shape[2])


@rule(torch.conv1d, torch.conv2d)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    record = recorded(weight, bias)
    axes = weight.dim() - 2
    if groups != 1 or isinstance(padding, str) or x.dim() != weight.dim():
        raise Unrecorded("a convolution in groups, with padding in words or without samples")
    if x.shape[0] % record.samples:
        raise Unrecorded("a convolution whose first axis is not that of the samples")
    function = torch.conv1d if axes == 1 else torch.conv2d
    z = function(x, plain(weight), plain(bias), stride, padding, dilation)
    out, call = record.tap(z)
    n, shape = record.samples, tuple(weight.shape)

    if isinstance(weight, RecordedWeight):
        options = (stride, padding, dilation)
        patches = _patches(record.activation(x), shape[2:], *(_each(v, axes) for v in options))

        def positions(t: Tensor) -> Tensor:
            t = t.flatten(2).transpose(1, 2)
            return t if len(t) == n else t.reshape(n, -1, t.shape[2])

        record.add(weight, MatrixUse(record, call, positions(patches), shape, positions))
    if bias is not None:
        record.add(bias, SumUse(record, call, tuple(bias.shape), channels_first=len(x) == n))
        if len(x) != n:
            raise Unrecorded("a convolution over parts of samples")
    return out


def _each(value: Any, axes: int) -> tuple[int, ...]:
    value = (value,) if isinstance(value, int) else tuple(value)
    return value * axes if len(value) == 1 else value


def _patches(
    x: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """What each position of a convolution sees: x[n, C, ...] -> [n, C k.., positions].

    As F.unfold, in half its time on a CPU, and for one axis or two.
    """
    if any(padding):
        x = F.pad(x, [p for size in reversed(padding) for p in (size, size)])
    axes = len(kernel)
    for axis in range(axes):
        reach = (kernel[axis] - 1) * dilation[axis] + 1
        x = x.unfold(axis + 2, reach, stride[axis])[..., :: dilation[axis]]
    x = x.permute(0, 1, *range(axes + 2, 2 * axes + 2), *range(2, axes + 2))
    return x.flatten(1, axes + 1).flatten(2)


@rule(F.embedding)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if max_norm is not None or scale_grad_by_freq:
        raise Unrecorded("an embedding with a norm, or that counts")
    if padding_idx is not None and padding_idx < 0:
        padding_idx += len(weight)
    return lookup(weight, input, padding_idx)


def lookup(weight: Any, index: Tensor, padding: int | None = None) -> Tensor:
    record = recorded(weight)
    if not index.dim() or index.shape[0] % record.samples or weight.dim() != 2:
        raise Unrecorded("an embedding of other things than samples")
    if record.clients == 1:
        z = plain(weight)[index]
    else:
        if bool(((index >= len(weight)) | (index < -len(weight))).any()):
            raise IndexError("index out of range")  # it would be a row of another client
        z = weight.rows.flatten(0, 1)[_of_client(record, index % len(weight), len(weight))]
    out, call = record.tap(z)
    rows = torch.where(index < 0, index + len(weight), index).reshape(record.samples, -1)
    record.add(weight, LookupUse(record, call, rows, tuple(weight.shape), padding))
    return out


def _of_client(record: Record, index: Tensor, rows: int) -> Tensor:
    """Places in the tables of all clients, one below the other, of index[n m, ...] in its own."""
    if record.clients == 1:
        return index
    first = torch.arange(record.clients, device=index.device) * rows
    return index + first.repeat_interleave(len(index) // record.clients).view(
        -1, *[1] * (index.dim() - 1)
    )


@rule(Tensor.__getitem__)
def item(weight: Tensor, index: Any) -> Tensor:
    """Rows by their numbers, or a part that is recorded as the whole is."""
    if not isinstance(weight, RecordedWeight):
        raise Unrecorded("a weight as an index")
    if isinstance(index, Tensor):
        if index.dtype != torch.int64:
            raise Unrecorded("an index of another kind than whole numbers")
        return lookup(weight, index)
    every = index if isinstance(index, tuple) else (index,)
    if weight.place is not None or not all(isinstance(i, (slice, int)) for i in every):
        raise Unrecorded("a part of a part of a weight")
    part = weight.rows[(slice(None), *every)]
    return weight.record.weight(weight.key, part, index, weight.shape)


@rule(F.layer_norm)
def layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return _normed(F.layer_norm(input, normalized_shape, eps=eps), weight, bias, False)


@rule(F.group_norm)
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return _normed(F.group_norm(input, num_groups, eps=eps), weight, bias, True)


@rule(F.rms_norm)
def rms_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    return _normed(F.rms_norm(input, normalized_shape, eps=eps), weight, None, False)


def _normed(x: Tensor, weight: Tensor | None, bias: Tensor | None, by_channel: bool) -> Tensor:
    """x * weight + bias, of a weight along the last axes or along the channels."""
    record = recorded(weight, bias)
    n = record.samples
    if x.shape[0] % n or (by_channel and len(x) != n):
        raise Unrecorded("a norm whose first axis is not that of the samples")

    def along(t: Any) -> Tensor:
        t = record.beside(t, x.flatten(2).transpose(1, 2)) if by_channel else record.beside(t, x)
        if not by_channel:
            return t
        return t.view(-1, x.shape[1], *[1] * (x.dim() - 2))

    z = x * along(weight) if weight is not None else x.clone()
    out, call = record.tap(z if bias is None else z.add_(along(bias)))
    if weight is not None:
        record.add(weight, SumUse(record, call, tuple(weight.shape), x.detach(), by_channel))
    if bias is not None:
        record.add(bias, SumUse(record, call, tuple(bias.shape), None, by_channel))
    return out


@rule(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
def add(one: Any, other: Any) -> Tensor:
    return _pointwise(torch.add, one, other)


@rule(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
def multiply(one: Any, other: Any) -> Tensor:
    return _pointwise(torch.mul, one, other)


def _pointwise(function: Callable, one: Any, other: Any) -> Tensor:
    weight, x = (one, other) if isinstance(one, RecordedWeight) else (other, one)
    record = recorded(weight)
    values = record.activation(x)
    if x.dim() < 2 or x.shape[0] % record.samples or weight.dim() > x.dim():
        raise Unrecorded("a sum or product that is not over samples")
    z = function(x, record.beside(weight, x))
    same_axis = weight.dim() == x.dim() and weight.shape[0] != 1
    if z.shape != x.shape or same_axis:
        raise Unrecorded("a sum or product that is not over samples")
    if weight.dim() > 0 and weight.dim() == x.dim() and len(x) != record.samples:
        raise Unrecorded("a sum or product over parts of samples")
    out, call = record.tap(z)
    factor = values if function is torch.mul else None
    record.add(weight, SumUse(record, call, tuple(weight.shape), factor))
    return out


@rule(Tensor.expand)
def expand(weight: Any, *sizes: Any) -> Tensor:
    """A token of the model's own, once for each sample."""
    record = recorded(weight)
    sizes = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    same = len(sizes) == weight.dim() and all(
        s in (-1, m) for s, m in zip(sizes[1:], weight.shape[1:], strict=True)
    )
    if not same or weight.shape[0] != 1 or sizes[0] != record.samples:
        raise Unrecorded("a weight that is repeated otherwise than for each sample")
    rows = weight.rows.expand(-1, sizes[0] // record.clients, *sizes[1:])  # [K, 1, ...]
    out, call = record.tap(rows.flatten(0, 1).clone())
    record.add(weight, SumUse(record, call, tuple(weight.shape)))
    return out
