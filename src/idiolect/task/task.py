"""A task: a model and a loss as functions of rows x[K, d], one row per client.

A model is a vector of R^d: the trainable parameters of a torch module, flattened in the order of
`named_parameters`. Frozen parameters and buffers stay constants of the module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from ..core.knobs import SettingError
from .batches import Batch
from .kernels import Rows, choose, has_dropout, one_loss
from .layout import Layout
from .losses import Loss, as_loss, spread
from .numerics import Numerics
from .split import Split, split_by


class Task:
    """A model and a loss for a cohort.

    `model` is a torch module, whose weights are then the start of every run, or a function without
    arguments that makes one, which is then called anew under each seed. `loss` is a name
    ("cross_entropy", "logistic", "mse", "half_squared"), a torch loss or a function of (outputs,
    targets) that returns one value per sample. Device, precision, kernel, clipping, weight decay
    and seed are settings of a run, not of a task: `under` gives the task as a run computes it.

    >>> task = Task(nn.Linear(3, 2))
    >>> task.d, task.kernel, task.under(dtype=torch.float64).x0.dtype
    (8, 'stacked', torch.float64)
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: str | nn.Module | Callable[..., Tensor] | Loss = "cross_entropy",
    ):
        self._prepare(model, as_loss(loss), Numerics())

    def _prepare(self, model: Any, criterion: Loss, numerics: Numerics) -> None:
        self.model = model
        self.criterion = criterion
        self.numerics = numerics
        self.device = numerics.device
        self.dtype = numerics.dtype
        self.module = self._make(numerics.seed).to(device=self.device, dtype=self.dtype)
        trained = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        if not trained:
            raise SettingError(f"model: {type(self.module).__name__} has no trainable parameter")
        names, parameters = zip(*trained, strict=True)
        starts = tuple(accumulate((p.numel() for p in parameters), initial=0))
        self.layout = Layout(names, tuple(p.shape for p in parameters), starts, self.device)
        self.d = starts[-1]
        self.x0 = torch.cat([p.detach().flatten() for p in parameters])
        self._kernel = choose(self.module, self.layout, numerics.kernel)
        self._splits: dict[str, Split] = {}
        self._hvp: Any = None

    def under(self, numerics: Numerics | None = None, **changes: Any) -> Task:
        """The same model and loss on another device, in another precision, with another seed."""
        task = object.__new__(type(self))
        task._prepare(self.model, self.criterion, replace(numerics or self.numerics, **changes))
        return task

    def __repr__(self) -> str:
        return f"Task({type(self.module).__name__}, {self.criterion.name!r}, d = {self.d:,})"

    @property
    def kernel(self) -> str:
        """The kernel in use, by name."""
        return self._kernel.name

    @property
    def seed(self) -> int:
        """The seed that initialisation and projections come from."""
        return self.numerics.seed

    # -- functions of rows -----------------------------------------------------------------------
    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """x[K, d], inputs[K, B, ...] -> [K, B, ...]."""
        with torch.no_grad():
            return self._kernel.outputs(x, inputs)

    def outputs_of_one(self, w: Tensor, inputs: Tensor) -> Tensor:
        """One model w[d] on many samples inputs[n, ...]: an ordinary forward pass."""
        if isinstance(self._kernel, Rows):
            return self._kernel.of_one(w, inputs)
        self.module.eval()
        with torch.no_grad():
            return functional_call(self.module, self.layout.unflatten(w), (inputs,))

    def loss(self, x: Tensor, batch: Batch) -> Tensor:
        """The mini-batch loss of each row's model: x[K, d] -> [K]."""
        each = self.criterion.each(self.outputs(x, batch.inputs), batch.targets)
        return (each * spread(batch.weights, batch.targets)).flatten(1).sum(1)

    def grad(self, x: Tensor, batch: Batch) -> Tensor:
        """The gradient of each row's mini-batch loss at its model, counted: x[K, d] -> [K, d]."""
        batch.tally.add_(1 if batch.active is None else batch.active.cpu())
        g = self._kernel.grad(x, batch, self.criterion)
        decay = self.numerics.weight_decay
        if decay:
            g = g + decay * x
        clip = self.numerics.clip
        if clip:
            g = g * (clip / g.norm(dim=-1, keepdim=True)).clamp(max=1)  # exactly 1 below the bound
        return g

    def hvp(self, x: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """Hessian of each row's mini-batch loss times v[K, d], exact; counts as two gradients."""
        if self._hvp is None:
            self._hvp = vmap(self._hessian_product())
        batch.tally.add_(2 if batch.active is None else 2 * batch.active.cpu())
        weights = spread(batch.weights, batch.targets)
        h = self._hvp(x.contiguous(), v.contiguous(), batch.inputs, batch.targets, weights)
        decay = self.numerics.weight_decay
        return h + decay * v if decay else h

    def _hessian_product(self) -> Callable[..., Tensor]:
        if has_dropout(self.module):
            raise SettingError(
                "model: exact second derivatives are not available for a model with dropout"
            )
        gradient = grad(one_loss(self.module, self.layout, self.criterion))

        def product(x: Tensor, v: Tensor, *sample: Tensor) -> Tensor:
            return jvp(lambda x: gradient(x, *sample), (x,), (v,))[1]

        return product

    # -- models ----------------------------------------------------------------------------------
    def draw(self, keys: np.ndarray) -> Tensor:
        """A newly initialised model for each key: uint64[K] -> x[K, d].

        Every layer is initialised as PyTorch does by default.
        """
        rows = []
        for key in keys:
            module = self._make(int(key >> np.uint64(1)), renew=True)
            trained = [p.detach().flatten() for p in module.parameters() if p.requires_grad]
            rows.append(torch.cat(trained))
        return torch.stack(rows).to(device=self.device, dtype=self.dtype)

    def module_of(self, x: Tensor) -> nn.Module:
        """A torch module with the weights x[d], ready for use (eval mode)."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            for name, value in self.layout.unflatten(x).items():
                module.get_parameter(name).copy_(value)
        return module.eval()

    def split(self, private: str) -> Split:
        """Which coordinates are private.

        "input" (the first layer), "output" (the last), "adapter" (what `models.adapt` added),
        "all", "none", or name patterns ("head.*,*.bias").

        >>> task = Task(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
        >>> task.split("output").w.tolist()
        [8, 9, 10]
        """
        if private not in self._splits:
            self._splits[private] = split_by(private, self.layout)
        return self._splits[private]

    def _make(self, seed: int, renew: bool = False) -> nn.Module:
        """The user's module as it is; or a new one under the seed.

        A new one comes from the user's function, or by resetting every layer of the module.
        """
        if isinstance(self.model, nn.Module) and not renew:
            module: Any = copy.deepcopy(self.model)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                if isinstance(self.model, nn.Module):
                    module = copy.deepcopy(self.model)
                    _reset(module)
                else:
                    module = self.model()
        if not isinstance(module, nn.Module):
            raise SettingError(
                f"model: {type(module).__name__} is not accepted; "
                "give a torch.nn.Module or a function that makes one"
            )
        _refuse(module)
        return module


def _reset(module: nn.Module) -> None:
    for layer in module.modules():
        reset = getattr(layer, "reset_parameters", None) or getattr(
            layer, "_reset_parameters", None
        )
        if callable(reset):
            reset()


def _refuse(module: nn.Module) -> None:
    """What cannot be averaged or kept apart per client: running statistics, unfinished layers."""
    for name, layer in module.named_modules():
        statistics = getattr(layer, "track_running_stats", False)
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or statistics:
            raise SettingError(
                f"model: layer {name!r} ({type(layer).__name__}) mixes the samples of a batch or "
                "keeps running statistics, which are neither a client's nor the server's; "
                "use torch.nn.GroupNorm in its place"
            )
        for p in layer.parameters(recurse=False):
            if isinstance(p, nn.parameter.UninitializedParameter):
                raise SettingError(
                    f"model: layer {name!r} is lazy; "
                    "run the module once so that its sizes are known"
                )
