"""A task: a model and a loss as functions of rows x[K, d], one row per client.

A model is a vector of R^d: the trainable parameters of a torch module, flattened in the order of `named_parameters`. Frozen
parameters and buffers stay constants of the module.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from ..core import allocator
from ..core.knobs import SettingError
from .batches import Batch
from .kernels import Rows, choose, has_dropout, one_loss
from .layout import Layout
from .losses import Loss, as_loss, spread


@dataclass(frozen=True)
class Split:
    """Coordinates of R^d in two parts: shared (theta) and private (w)."""

    theta: Tensor  # int64[d_theta]
    w: Tensor  # int64[d_w]

    def parts(
        self, x: Tensor
    ) -> tuple[Tensor, Tensor]:  # x[..., d] -> theta[..., d_theta], w[..., d_w]
        return x[..., self.theta], x[..., self.w]

    def join(self, theta: Tensor, w: Tensor) -> Tensor:
        """The inverse of `parts`; leading axes broadcast."""
        lead = torch.broadcast_shapes(theta.shape[:-1], w.shape[:-1])
        x = theta.new_empty(*lead, len(self.theta) + len(self.w))
        x[..., self.theta], x[..., self.w] = theta, w
        return x


class Task:
    """A model and a loss for a cohort.

    `model` is a torch module, whose weights are then every run's start, or a function without arguments that makes one, which
    is then called anew under each seed. `loss` is a name ("cross_entropy", "logistic", "mse", "half_squared"), a torch loss or
    a function of (outputs, targets) that returns one value a sample.

    >>> task = Task(nn.Linear(3, 2))
    >>> task.d, task.kernel
    (8, 'stacked')
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: str | nn.Module | Callable[..., Tensor] | Loss = "cross_entropy",
        *,
        kernel: str = "auto",
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        clip: float = 0.0,
        weight_decay: float = 0.0,
        seed: int = 0,
        clients: int = 0,
    ):
        allocator.keep()
        self.model, self.criterion, self.device, self.dtype = (
            model,
            as_loss(loss),
            torch.device(device),
            dtype,
        )
        self.clip, self.weight_decay, self.seed = clip, weight_decay, seed
        self.clients = clients  # how many clients may take part in the run
        self.module = self._make(seed).to(device=self.device, dtype=dtype)
        trained = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        if not trained:
            raise SettingError(f"model: {type(self.module).__name__} has no trainable parameter")
        starts = tuple(accumulate((p.numel() for _, p in trained), initial=0))
        self.layout = Layout(
            tuple(n for n, _ in trained), tuple(p.shape for _, p in trained), starts, self.device
        )
        self.d = starts[-1]
        self.x0 = torch.cat([p.detach().flatten() for _, p in trained])
        self._kernel = choose(self.module, self.layout, kernel)
        self.asked_kernel = kernel
        self._splits: dict[str, Split] = {}
        self._hvp: Any = None

    @property
    def kernel(self) -> str:
        """The kernel in use, by name."""
        return self._kernel.name

    def to(self, **changes: Any) -> Task:
        """The same task with another device, dtype, kernel, clip, weight_decay or seed."""
        now: dict[str, Any] = {
            "kernel": self.asked_kernel,
            "device": self.device,
            "dtype": self.dtype,
            "clip": self.clip,
        }
        now |= {"weight_decay": self.weight_decay, "seed": self.seed, "clients": self.clients}
        return Task(self.model, self.criterion, **(now | changes))

    # -- functions of rows ---------------------------------------------------------------------------------------------------
    def outputs(
        self, x: Tensor, inputs: Tensor
    ) -> Tensor:  # x[K, d], inputs[K, B, ...] -> [K, B, ...]
        with torch.no_grad():
            return self._kernel.outputs(x, inputs)

    def outputs_of_one(
        self, w: Tensor, inputs: Tensor
    ) -> Tensor:  # w[d], inputs[n, ...] -> [n, ...]
        """One model on many samples: an ordinary forward pass."""
        if isinstance(self._kernel, Rows):
            return self._kernel.of_one(w, inputs)
        self.module.eval()
        with torch.no_grad():
            return functional_call(self.module, self.layout.unflatten(w), (inputs,))

    def loss(self, x: Tensor, batch: Batch) -> Tensor:  # x[K, d] -> [K]
        each = self.criterion.each(self.outputs(x, batch.inputs), batch.targets)
        return (each * spread(batch.weights, batch.targets)).flatten(1).sum(1)

    def grad(self, x: Tensor, batch: Batch) -> Tensor:  # x[K, d] -> [K, d]
        """The gradient of each row's mini-batch loss at that row's model, counted."""
        batch.tally.add_(1 if batch.active is None else batch.active.cpu())
        g = self._kernel.grad(x, batch, self.criterion)
        if self.weight_decay:
            g = g + self.weight_decay * x
        if self.clip:
            g = g * (self.clip / g.norm(dim=-1, keepdim=True)).clamp(
                max=1
            )  # exactly 1 below the bound
        return g

    def hvp(self, x: Tensor, v: Tensor, batch: Batch) -> Tensor:  # x[K, d], v[K, d] -> [K, d]
        """Hessian of each row's mini-batch loss times v, exact; costs and counts as two gradients."""
        if self._hvp is None:
            if has_dropout(self.module):
                raise SettingError(
                    "model: exact second derivatives are not available for a model with dropout"
                )
            gradient = grad(one_loss(self.module, self.layout, self.criterion))

            def product(
                x: Tensor, v: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor
            ) -> Tensor:
                return jvp(lambda x: gradient(x, inputs, targets, weights), (x,), (v,))[1]

            self._hvp = vmap(product)
        batch.tally.add_(2 if batch.active is None else 2 * batch.active.cpu())
        h = self._hvp(
            x.contiguous(),
            v.contiguous(),
            batch.inputs,
            batch.targets,
            spread(batch.weights, batch.targets),
        )
        return h + self.weight_decay * v if self.weight_decay else h

    # -- models --------------------------------------------------------------------------------------------------------------
    def draw(self, keys: np.ndarray) -> Tensor:  # uint64[K] -> x[K, d]
        """A newly initialised model for each key (PyTorch's default initialisation of every layer)."""
        rows = []
        for key in keys:
            module = self._make(int(key >> np.uint64(1)), renew=True)
            rows.append(
                torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])
            )
        return torch.stack(rows).to(device=self.device, dtype=self.dtype)

    def module_of(self, x: Tensor) -> nn.Module:  # x[d]
        """A torch module with these weights, ready for use (eval mode)."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            for name, value in self.layout.unflatten(x).items():
                module.get_parameter(name).copy_(value)
        return module.eval()

    def split(self, private: str) -> Split:
        """Which coordinates are private: "input" (the first layer), "output" (the last), "adapter" (what `models.adapt` added),
        "all", "none", or name patterns ("head.*,*.bias").

        >>> Task(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))).split("output").w.tolist()
        [8, 9, 10]
        """
        if private in self._splits:
            return self._splits[private]
        names = self.layout.names
        owners = list(dict.fromkeys(n.rpartition(".")[0] for n in names))
        layers = [n for n in owners if n and not n.endswith("adapter")] or [
            ""
        ]  # a parameter of the module itself is no layer
        ends = {
            "input": f"{layers[0]}.*" if layers[0] else "*",
            "output": f"{layers[-1]}.*" if layers[-1] else "*",
        }
        words = {**ends, "adapter": "*adapter.*", "all": "*", "none": ""}
        patterns = [words.get(p.strip(), p.strip()) for p in private.split(",")]
        chosen = [any(fnmatch.fnmatchcase(n, p) for p in patterns) for n in names]
        if not any(chosen) and private != "none":
            raise SettingError(
                f"split: {private!r} matches no parameter; one of {', '.join(words)}, or names of: {', '.join(names)}"
            )
        mine = torch.cat(
            [
                torch.full((b - a,), c)
                for a, b, c in zip(self.layout.starts, self.layout.starts[1:], chosen, strict=False)
            ]
        )
        index = torch.arange(self.d)
        self._splits[private] = Split(index[~mine].to(self.device), index[mine].to(self.device))
        return self._splits[private]

    def _make(self, seed: int, renew: bool = False) -> nn.Module:
        """The user's module as it is; or a new one under the seed (from the user's function, or by resetting every layer)."""
        if isinstance(self.model, nn.Module) and not renew:
            module = copy.deepcopy(self.model)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                if isinstance(self.model, nn.Module):
                    module = copy.deepcopy(self.model)
                    for layer in module.modules():
                        reset = getattr(layer, "reset_parameters", None) or getattr(
                            layer, "_reset_parameters", None
                        )
                        if callable(reset):
                            reset()
                else:
                    module = self.model()
        if not isinstance(module, nn.Module):
            raise SettingError(
                f"model: {type(module).__name__} is not accepted; give a torch.nn.Module or a function that makes one"
            )
        _refuse(module)
        return module


def _refuse(module: nn.Module) -> None:
    """What cannot be averaged or kept apart per client: running statistics, unfinished layers."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(
            layer, "track_running_stats", False
        ):
            raise SettingError(
                f"model: layer {name!r} ({type(layer).__name__}) mixes the samples of a batch or keeps running statistics, "
                "which are neither a client's nor the server's; use torch.nn.GroupNorm in its place"
            )
        if any(
            isinstance(p, nn.parameter.UninitializedParameter)
            for p in layer.parameters(recurse=False)
        ):
            raise SettingError(
                f"model: layer {name!r} is lazy; run the module once so that its sizes are known"
            )
