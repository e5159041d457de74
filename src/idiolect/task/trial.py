"""A trial of a model and its loss on a few samples: what they do that their code need not show.

Do they draw random numbers? Does a sample's output, or its loss, depend on the samples beside it?
The answers decide how a task is computed (`kernels.choose`) and evaluated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..core.draws import generator_positions, keyed_draws
from ..core.knobs import SettingError
from ..core.types import Tree, leaves, length, map_tree
from .buffers import mixes_samples
from .forward import forward
from .frozen import has_own_precision, shared_copy
from .kernels.graph import has_dropout, layer_chain
from .losses import Custom, Loss

SAMPLES = 8  # of one client, which go through model and loss together and one by one
_SAME = 1e-4  # relative differences of outputs that are rounding in single precision
_DOUBLE = 20_000_000  # parameters up to which a model is tried in double precision


@dataclass(frozen=True)
class Behaviour:
    """What a model and its loss do."""

    draws: bool = False  # a training pass draws random numbers
    draws_in_use: bool = False  # a pass in evaluation mode does so too
    repeats: bool = True  # the same random numbers give the same outputs
    mixes: bool = False  # in training, a sample's output depends on the samples beside it
    compares: bool = False  # a sample's loss depends on the samples beside it
    maps: bool = True  # torch.func maps model and loss over clients; tried for the kernel "auto"

    @property
    def client_by_client(self) -> bool:
        """Whether models are evaluated on the samples of one client at a time."""
        return self.compares or self.draws_in_use

    @classmethod
    def read(cls, module: nn.Module, loss: Loss) -> Behaviour:
        """What can be read without a sample; of a user's own loss the worst is assumed."""
        return cls(
            draws=has_dropout(module),
            mixes=mixes_samples(module),
            compares=isinstance(loss, Custom),
        )

    @property
    def warning(self) -> str:
        """What a user should know of random numbers; "" where there is nothing to say."""
        if not self.repeats:
            return (
                "model: two passes over the same samples differ although torch, NumPy and Python "
                "had the same seed: a generator of its own, or a state that it changes; this run "
                "cannot be reproduced, nor resumed exactly"
            )
        if self.draws_in_use:
            return (
                "model: it, or its loss, draws random numbers in evaluation mode too; figures are "
                "those of one draw, the same in every run; modules handed out draw anew"
            )
        return ""


def try_out(module: nn.Module, loss: Loss, inputs: Tree, targets: Tree) -> Behaviour:
    """Run them on a few samples of one client; what fails here is left to the checks of a run."""
    reading = Behaviour.read(module, loss)
    is_chain = not reading.draws and not reading.mixes and layer_chain(module) is not None
    if is_chain and not reading.compares:
        return reading
    model = shared_copy(module)
    is_small = sum(p.numel() for p in model.parameters()) <= _DOUBLE
    double = is_small and not has_own_precision(module)
    with keyed_draws(0):
        for p in model.parameters():  # a layer that starts at zero would hide what is behind it
            if p.requires_grad and p.is_floating_point():
                p.data.add_(0.05 * torch.randn_like(p))
    for precision in (torch.float64,) * double + (None,):
        trial = _Trial(model, loss, inputs, targets, precision)
        try:
            with keyed_draws(0):
                return trial.behaviour(reading, is_chain)
        except SettingError:
            raise
        except Exception:  # whatever a user's model does in another precision
            continue
    return reading


class _Trial:
    """A copy of the model, its loss and samples, in one precision."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: Tree,
        targets: Tree,
        precision: torch.dtype | None,
    ):
        def cast(t: Tensor) -> Tensor:
            return t.to(precision) if precision and t.is_floating_point() else t

        self.model = copy.deepcopy(model).to(precision) if precision else shared_copy(model)
        self.loss = loss
        self.inputs = map_tree(cast, inputs)
        self.targets = map_tree(cast, targets)
        self.tolerance = 1e-6 if precision else _SAME
        # relative differences of outputs that are rounding, of the coarsest numbers in use
        self.rounding = max(_SAME, 8 * max(map(_spacing, self.model.parameters())))

    def behaviour(self, reading: Behaviour, known: bool) -> Behaviour:
        result = reading
        if not known:
            result = self._of_model(reading)
        if reading.compares:
            result = self._of_loss(result)
        return result

    # -- the model -------------------------------------------------------------------------------
    def _of_model(self, reading: Behaviour) -> Behaviour:
        some = _cut(self.inputs, slice(SAMPLES))
        in_use, repeats_in_use = self._draws(lambda: self._outputs(some, training=False))
        if not in_use and repeats_in_use:
            one_by_one = self._one_by_one(some, training=False)
            if _differ(self._outputs(some, training=False), one_by_one, self.rounding):
                raise SettingError(
                    "model: in evaluation mode, what it gives for a sample depends on the samples "
                    "beside it, so that a prediction depends on which others are asked for with it"
                )
        draws, repeats = self._draws(lambda: self._outputs(some, training=True))
        mixes = reading.mixes
        if not (draws or mixes) and repeats:
            try:
                one_by_one = self._one_by_one(some, training=True)
            except Exception:  # it needs others beside it
                mixes = True
            else:
                mixes = _differ(self._outputs(some, training=True), one_by_one, self.rounding)
        return replace(
            reading,
            draws=reading.draws or draws,
            draws_in_use=in_use,
            mixes=mixes,
            repeats=repeats and repeats_in_use,
        )

    def _draws(self, run: Callable[[], Tree]) -> tuple[bool, bool]:
        """Whether a pass moves a generator; whether two that begin alike end alike."""
        before = generator_positions()
        run()
        draws = generator_positions() != before
        with keyed_draws(1):
            first = run()
        with keyed_draws(1):
            return draws, not _differ(first, run(), self.rounding)

    def _outputs(self, inputs: Tree, training: bool) -> Tree:
        model = shared_copy(self.model) if training else self.model  # statistics stay as they are
        with torch.no_grad():
            return forward(model.train(training), inputs)

    def _one_by_one(self, inputs: Tree, training: bool) -> Tree:
        singles = [
            self._outputs(_cut(inputs, slice(i, i + 1)), training) for i in range(length(inputs))
        ]
        return map_tree(lambda *parts: torch.cat(parts), *singles)

    # -- the loss --------------------------------------------------------------------------------
    def _of_loss(self, result: Behaviour) -> Behaviour:
        with keyed_draws(2):
            outputs = self._outputs(self.inputs, training=False)
        targets = self.targets
        before = generator_positions()
        try:
            together = self.loss.each(outputs, targets)
        except SettingError:  # of a form that the check of the model names
            return result
        if generator_positions() != before:  # it draws random numbers
            return replace(result, draws=True, draws_in_use=True, compares=True)
        try:
            singles = [
                self.loss.each(_cut(outputs, slice(i, i + 1)), _cut(targets, slice(i, i + 1)))
                for i in range(length(targets))
            ]
        except Exception:  # it needs others beside it
            return result
        return replace(result, compares=_differ(together, torch.cat(singles), self.tolerance))


def _spacing(t: Tensor) -> float:
    """How far numbers near 1 are apart."""
    return torch.finfo(t.dtype).eps if t.is_floating_point() else 0.0


def _cut(tree: Tree, some: slice) -> Tree:
    return map_tree(lambda t: t[some], tree)


def _differ(a: Tree, b: Tree, tolerance: float) -> bool:
    for one, other in zip(leaves(a), leaves(b), strict=True):
        if one.shape != other.shape:
            return True
        scale = one[one.isfinite()].abs().max().item() if bool(one.isfinite().any()) else 0.0
        bound = tolerance * (scale + tolerance)
        if not torch.allclose(one.double(), other.double(), 0, bound, equal_nan=True):
            return True
    return False
