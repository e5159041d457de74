"""A task: a model and a loss as functions of rows x[K, d], one row per client.

A model is a vector of R^d: the trainable parameters of a torch module, flattened in the order of
`named_parameters`. Frozen parameters and buffers stay constants of the module, except for buffers
that training changes (running statistics): these follow the parameters, a row of R^(d + m).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

from ..core.draws import keyed_torch
from ..core.knobs import SettingError
from ..core.types import Tree, length, map_tree
from .batches import Batch
from .buffers import Statistics
from .forward import forward
from .frozen import placed, shared_copy
from .initial import Initial
from .kernels import Kernel, Rows, SampleSums, Stacked, Unmappable, Vmapped, choose, one_loss
from .layout import Layout, Split, split_by
from .losses import Given, Loss, Standardised, as_loss, spread, total
from .output_units import in_user_units
from .sample_clipping import SampleClipping, check_task, refuse
from .target_scale import TargetScale
from .term import HEAD, Term
from .trial import SAMPLES, Behaviour, try_out

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Numerics:
    """How a task is computed: the run's device, precision, kernel, clipping, decay and seed.

    With a `target_scale` the model is trained on standardised targets, and all that a task gives
    out is in the user's units.
    """

    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    kernel: str = "auto"
    clip: float = 0.0  # largest norm of a gradient; 0 = no clipping
    weight_decay: float = 0.0
    seed: int = 0  # of the initialisation and of projections
    target_scale: TargetScale | None = None  # of real targets; None = as they are
    # each sample's part of a gradient is bounded, and noise added: DP-SGD; None = plain gradients
    sample_clipping: SampleClipping | None = None


class Task:
    """A model and a loss for a cohort.

    `model` is a torch module, whose weights are then the start of every run, or a function without
    arguments that makes one, which is then called for each seed. `loss` is a name
    ("cross_entropy", "logistic", "mse", "half_squared", "l1", "huber(delta=1)",
    "smooth_l1(beta=1)", "quantile(q=0.9)"), a torch loss or a function of (outputs, targets) that
    returns one value per sample. `weights` is a safetensors file, or a folder with
    model.safetensors, that the model starts at; `weights_missing="keep"` keeps what the file lacks,
    or has in another shape, as it is initialised. `frozen` names parameters (a word or patterns of
    `split`) that are constants: neither trained nor sent. `buffers` names the buffers that a module
    of your own changes in training (patterns, "ema,*.count"); those of torch's layers are known.
    Device, precision, kernel, clipping, weight decay and seed are settings of a run, not of a task:
    `under` gives the task as a run computes it.

    >>> task = Task(nn.Linear(3, 2))
    >>> task.d, task.kernel, task.under(dtype=torch.float64).x0.dtype
    (8, 'stacked', torch.float64)
    >>> Task(nn.Linear(3, 2), frozen="weight").d
    2
    """

    _public: Tree | None = None  # as they were given: see `with_public`
    _sample_sums: Stacked | SampleSums | None = None  # of clipped samples: made when asked for

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: Given = "cross_entropy",
        *,
        frozen: str = "",
        weights: str | os.PathLike[str] = "",
        weights_missing: str = "refuse",
        buffers: str = "",
    ):
        self.initial = Initial(frozen, os.fspath(weights), weights_missing)
        self.buffers = buffers
        self._trial: Behaviour | None = None
        self._extend: Callable[[nn.Module], nn.Module] | None = None
        self._prepare(model, as_loss(loss), Numerics())

    def _prepare(self, model: Any, criterion: Loss, numerics: Numerics) -> None:
        self.model = model
        # figures are by the criterion, in the user's units; gradients are those of the objective
        self._loss = self.criterion = self.objective = criterion
        scale = numerics.target_scale
        if scale is not None:
            self.criterion = criterion.in_units(scale)
            self.objective = Standardised(criterion, scale)
        self.numerics = numerics
        self.device = numerics.device
        self.dtype = numerics.dtype
        self.module = placed(self._make(numerics.seed), self.device, self.dtype)
        trained = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        if not trained:
            raise SettingError(f"model: {type(self.module).__name__} has no trainable parameter")
        names, parameters = zip(*trained, strict=True)
        starts = tuple(accumulate((p.numel() for p in parameters), initial=0))
        shapes = tuple(p.shape for p in parameters)
        self.layout = Layout(names, shapes, starts, self.device, self.module)
        self.d = starts[-1]
        self.x0 = torch.cat([p.detach().flatten() for p in parameters])
        self.statistics = Statistics.of(self.module, self.buffers, self.x0)
        self._reading = Behaviour.read(self.module, criterion)
        # a user's own loss is tried before a gradient is taken of it: see `try_on`
        self._fit_kernel(self._trial or replace(self._reading, compares=False))
        self._splits: dict[str, Split] = {}
        self._hvp: Any = None

    def under(self, numerics: Numerics | None = None, **changes: Any) -> Task:
        """The same model and loss on another device, in another precision, with another seed."""
        task = object.__new__(type(self))
        task.initial = self.initial
        task.buffers = self.buffers
        task._trial = self._trial
        task._extend = self._extend
        task._public = self._public
        task._prepare(self.model, self._loss, replace(numerics or self.numerics, **changes))
        return task

    def with_clipped_samples(self, clipping: SampleClipping) -> Task:
        """The same, start and all, with the gradients of DP-SGD."""
        task = copy.copy(self)
        task.numerics = replace(self.numerics, sample_clipping=clipping)
        task._sample_sums = None
        return task

    def extended(self, extend: Callable[[nn.Module], nn.Module]) -> Task:
        """The same with what `extend` adds to the module: named parts that a method needs.

        >>> def deeper(module: nn.Module) -> nn.Module:
        ...     return nn.Sequential(module, nn.Linear(2, 2))
        >>> Task(nn.Linear(3, 2)).extended(deeper).d
        14
        """
        task = object.__new__(type(self))
        task.initial = self.initial
        task.buffers = self.buffers
        task._trial = None
        task._extend = extend
        task._public = self._public
        task._prepare(self.model, self._loss, self.numerics)
        return task

    @cached_property
    def public(self) -> Tree | None:
        """Inputs [n, ...] that the server and all clients have; None where there are none."""
        if self._public is None:
            return None
        kind = self.dtype
        return map_tree(
            lambda t: t.to(self.device, kind if t.is_floating_point() else None), self._public
        )

    def with_public(self, inputs: Tree | None) -> Task:
        """The same with public inputs [n, ...]: those of the run's federation (`publish`)."""
        if inputs is None and self._public is None:
            return self
        task = copy.copy(self)
        task.__dict__.pop("public", None)
        task._public = inputs
        return task

    def with_module(self, module: nn.Module) -> Task:
        """The same loss, computed in the same way, for another module."""
        return Task(module, self._loss, buffers=self.buffers).under(self.numerics)

    def __repr__(self) -> str:
        return f"Task({type(self.module).__name__}, {self.criterion.name!r}, d = {self.d:,})"

    def start(self) -> Tensor:
        """Where every run starts: x0, with running statistics behind it where there are any."""
        return self.x0 if self.statistics is None else torch.cat([self.x0, self.statistics.start])

    def begin_at(self, start: Tensor) -> None:
        """Another start, as `start` gives one."""
        self.x0 = start[: self.d].to(self.x0)
        if self.statistics is not None:
            new = start[self.d :].to(self.x0)
            self.statistics = replace(self.statistics, start=new)

    @property
    def kernel(self) -> str:
        """The kernel in use, by name."""
        return self._kernel.name

    @property
    def seed(self) -> int:
        """The seed that initialisation and projections come from."""
        return self.numerics.seed

    @property
    def behaviour(self) -> Behaviour:
        """What model and loss do, by a trial on samples; before it, by what can be read."""
        return self._trial or self._reading

    def try_on(self, inputs: Tree, targets: Tree) -> Behaviour:
        """A trial on samples [n, ...] of one client, which decides how the task is computed."""
        self.behave(try_out(self.module, self.objective, inputs, targets))
        kernel = self._kernel
        if self.numerics.kernel == "auto" and isinstance(kernel, Vmapped):
            maps = kernel.maps(self.x0, inputs, targets, self.objective)
            self.behave(replace(self.behaviour, maps=maps))
        return self.behaviour

    def behave(self, behaviour: Behaviour) -> None:
        """Compute the task as a trial elsewhere has shown."""
        self._trial = behaviour
        if behaviour != self._fitted:
            self._fit_kernel(behaviour)

    def _fit_kernel(self, behaviour: Behaviour, kernel: str = "") -> None:
        self._fitted = behaviour
        self._sample_sums = None
        name = kernel or self.numerics.kernel
        self._kernel = choose(self.module, self.layout, behaviour, name, self.statistics)

    def _try_batch(self, batch: Batch) -> None:
        """A task that is used without a run is tried on the first batch it sees."""
        sizes = batch.real_samples()
        k = max(range(len(sizes)), key=sizes.__getitem__, default=0)
        if sizes and sizes[k]:
            some = slice(min(sizes[k], SAMPLES))
            inputs, targets = (
                map_tree(lambda t: t[k][some], t) for t in (batch.inputs, batch.targets)
            )
            self.try_on(inputs, targets)

    # -- functions of rows -----------------------------------------------------------------------
    def outputs(self, x: Tensor, inputs: Tree, as_trained: bool = False) -> Tree:
        """x[K, d] (or with running statistics [K, d + m]), inputs[K, B, ...] -> [K, B, ...].

        `as_trained`: of standardised targets in their units, as a `Term` sees them.
        """
        outputs = self._outputs(x, inputs)
        return outputs if as_trained else self._in_units(outputs, lead=2)

    def features(self, x: Tensor, inputs: Tree, layer: str = HEAD) -> Tensor:
        """What a layer gives for inputs[K, B, ...]: [K, B, ...].

        "head" is what the last layers (`Task.split("head")`) are given; any other name is that of a
        module, and means what it returns.

        >>> task = Task(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
        >>> task.features(task.x0.repeat(4, 1), torch.ones(4, 5, 3)).shape
        torch.Size([4, 5, 2])
        """
        refuse(self, "features")
        with torch.no_grad():
            return self._by_kernel(lambda kernel: kernel.features(x, inputs, layer))

    def _outputs(self, x: Tensor, inputs: Tree) -> Tree:
        """The same as the objective takes them."""
        with torch.no_grad():
            return self._by_kernel(lambda kernel: kernel.outputs(x, inputs))

    def _in_units(self, outputs: Tree, lead: int) -> Tree:
        scale = self.numerics.target_scale
        return outputs if scale is None else scale.in_units(outputs, lead)

    def outputs_of_one(self, w: Tensor, inputs: Tree) -> Tree:
        """One model w[d] on many samples inputs[n, ...]: an ordinary forward pass."""
        if isinstance(self._kernel, Rows):
            return self._in_units(self._kernel.of_one(w, inputs), lead=1)
        self.module.eval()
        with torch.no_grad():
            outputs = forward(self.module, inputs, self.layout.unflatten(w))
            return self._in_units(outputs, lead=1)

    def loss(self, x: Tensor, batch: Batch) -> Tensor:
        """The mini-batch loss of each row's model: x[K, d] -> [K]."""
        refuse(self, "the loss of a mini-batch")
        if self._trial is None:
            self._try_batch(batch)
        outputs = self._outputs(x, batch.inputs)
        weights = self.objective.weigh(batch.weights, batch.targets)
        if self.behaviour.compares:
            rows = batch.rows_of(outputs, batch.targets, weights)
            return torch.stack([total(self.objective.each(o, t), w) for o, t, w in rows])
        each = self.objective.of_rows(outputs, batch.targets)
        return (each * spread(weights, each)).flatten(1).sum(1)

    def grad(self, x: Tensor, batch: Batch, extra: Term | None = None) -> Tensor:
        """The gradient of each row's mini-batch loss at its model, counted: x[K, d] -> [K, d].

        `extra`: what a method adds to the loss.
        """
        if x.dim() != 2:
            raise SettingError(
                "x must be rows [K, d], a model for each client, got one tensor of shape "
                f"{tuple(x.shape)}; w.expand(here.rows, -1) is w for each"
            )
        if self._trial is None:
            self._try_batch(batch)
        batch.tally.add_(1 if batch.active is None else batch.active.cpu())
        if self.numerics.sample_clipping is None:
            g = self._by_kernel(lambda kernel: kernel.grad(x, batch, self.objective, extra))
        else:
            g = self._clipped(x, batch, extra, self.numerics.sample_clipping)
        decay = self.numerics.weight_decay
        if decay:
            g = g + decay * x
        clip = self.numerics.clip
        if clip:
            g = g * (clip / g.norm(dim=-1, keepdim=True)).clamp(max=1)  # exactly 1 below the bound
        return g

    def _clipped(
        self, x: Tensor, batch: Batch, extra: Term | None, clipping: SampleClipping
    ) -> Tensor:
        """(Σ_s ∇ℓ_s min(1, C / ||∇ℓ_s||) + noise) / B, of each row."""
        if extra is not None:
            refuse(self, "a term that the method adds to the loss")
        if self._sample_sums is None:
            check_task(self)
            kernel = self._kernel
            one_by_one = SampleSums(self.module, self.layout, self.behaviour, kernel.name)
            self._sample_sums = kernel if isinstance(kernel, Stacked) else one_by_one
        clipping.use(batch)
        sums = self._sample_sums.clipped_sums(x, batch, self.objective, clipping.norm)
        if clipping.noise is not None:
            sums = clipping.noise(sums, batch)
        return sums / batch.expected_samples().to(sums).unsqueeze(1)

    def _by_kernel(self, work: Callable[[Kernel], Any]) -> Any:
        """`work`; by the kernel "rows" from now on where torch cannot map the module."""
        try:
            return work(self._kernel)
        except Unmappable:
            if self.numerics.kernel != "auto":
                raise
            self._fit_kernel(self._fitted, "rows")
            return work(self._kernel)

    def hvp(self, x: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """Hessian of each row's mini-batch loss times v[K, d], exact; counts as two gradients."""
        refuse(self, "a product with the Hessian")
        if self._trial is None:
            self._try_batch(batch)
        batch.tally.add_(2 if batch.active is None else 2 * batch.active.cpu())
        h = self._hessian_times(x, v, batch)
        decay = self.numerics.weight_decay
        return h + decay * v if decay else h

    def _hessian_times(self, x: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """The same of the objective alone, not counted."""
        if isinstance(self._kernel, Stacked):
            return self._kernel.hvp(x, v, batch, self.objective)
        if self._hvp is None:  # by torch.func, which takes a second to load
            self._hvp = self._hessian_product()
        weights = self.objective.weigh(batch.weights, batch.targets)
        self.module.train()
        if not isinstance(self._kernel, Rows):
            return vmap(self._hvp)(
                x.contiguous(), v.contiguous(), batch.inputs, batch.targets, weights
            )
        h = torch.zeros_like(x)
        for k, sample in enumerate(batch.rows_of(batch.inputs, batch.targets, weights)):
            if len(sample[2]):
                h[k] = self._hvp(x[k], v[k], *sample)
        return h

    def _hessian_product(self) -> Callable[..., Tensor]:
        if self.behaviour.draws or self.statistics:
            what = "running statistics" if self.statistics else "random numbers, such as dropout"
            raise SettingError(
                f"model: exact second derivatives are not available for a model with {what}"
            )
        gradient = grad(one_loss(self.module, self.layout, self.objective))

        def product(x: Tensor, v: Tensor, *sample: Tree) -> Tensor:
            try:
                return jvp(lambda x: gradient(x, *sample), (x,), (v,))[1]
            except NotImplementedError:  # torch has no forward mode for the model or loss (Huber)
                return grad(lambda x: (gradient(x, *sample) * v).sum())(x)

        return product

    def steepness(
        self,
        inputs: Tree,
        targets: Tree,
        direction: Tensor,
        iterations: int,
        shares: Tensor | None = None,
    ) -> tuple[float, float]:
        """Curvature and gradient norm of the loss of samples [n, ...] at the start.

        `shares` [n] are weights of the samples, 1 in the mean; None: all alike.
        Its largest second derivative in absolute value, by the power method from a direction[d].
        """
        refuse(self, "a look at the curvature")
        weights = torch.full((length(targets),), 1 / length(targets)).to(self.x0)
        if shares is not None:
            weights = weights * shares.to(weights)
        inputs, targets = (map_tree(lambda t: t.unsqueeze(0), tree) for tree in (inputs, targets))
        batch = Batch(inputs, targets, weights.unsqueeze(0), torch.zeros(1, dtype=torch.int64))
        x, v = self.x0.unsqueeze(0), direction.unsqueeze(0)
        size = 0.0
        for _ in range(iterations):
            v = self._hessian_times(x, v / v.norm(), batch)
            size = float(v.norm())
            if not size:
                break
        g = self._by_kernel(lambda kernel: kernel.grad(x, batch, self.objective))
        return size, float(g.norm())

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
        """A torch module with the weights x[d] or x[d + m], ready for use (eval mode).

        Frozen parameters are those of all such modules: copy.deepcopy makes one of its own.
        """
        module = shared_copy(self.module)
        parts = self.tensors_of(x)
        with torch.no_grad():
            for name in self.layout.names:
                module.get_parameter(name).copy_(parts.pop(name))
            for name, value in parts.items():
                module.get_buffer(name).copy_(value)
        scale = self.numerics.target_scale
        return (module if scale is None else in_user_units(module, scale)).eval()

    def tensors_of(self, x: Tensor) -> dict[str, Tensor]:
        """Parameters, and running statistics where x has them, by name; as they are trained."""
        parts = self.layout.unflatten(x[..., : self.d])
        if self.statistics is not None and x.shape[-1] > self.d:
            parts |= self.statistics.layout.unflatten(x[..., self.d :])
        return parts

    def split(self, private: str) -> Split:
        """Which coordinates are private.

        "input" and "output": of a transformer its first and last block, of other models the first
        and last layer. "embedding" and "head": what comes before and after the blocks. "block:K"
        and "layer:K" by number, "norms", "biases", "adapter" (what `models.adapt` added), "all",
        "none", or name patterns ("head.*,*.bias"). Several with commas.

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
            # a file of weights is read into the module, frozen parameters too
            module: Any = (copy.deepcopy if self.initial.weights else shared_copy)(self.model)
        else:
            with keyed_torch(seed):
                if isinstance(self.model, nn.Module):
                    module = copy.deepcopy(self.model)
                    _reset(module)
                else:
                    module = self.model()
        if not isinstance(module, nn.Module):
            raise SettingError(
                f"model must be a torch.nn.Module or a function that makes one, "
                f"got {type(module).__name__}"
            )
        _refuse(module)
        self.initial.apply(module)
        if self._extend is not None:
            with keyed_torch(seed):
                module = self._extend(module)
        return module


def _reset(module: nn.Module) -> None:
    for layer in module.modules():
        reset = getattr(layer, "reset_parameters", None) or getattr(
            layer, "_reset_parameters", None
        )
        if callable(reset):
            reset()
    for layer in module.modules():
        lora: Any = layer if hasattr(layer, "reset_lora_parameters") else None
        if lora is not None:  # of peft, whose layers inside are no adapter by themselves
            for name in (*lora.lora_A, *lora.lora_embedding_A):
                lora.reset_lora_parameters(name, True)


def _refuse(module: nn.Module) -> None:
    """What cannot be evaluated sample by sample, scripted modules and unfinished layers."""
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            where = f"layer {name!r}" if name else type(module).__name__
            raise SettingError(
                f"model: {where} is a module of torch.jit, whose weights cannot be exchanged for "
                "each client; give the module that it was made from"
            )
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            if layer.running_mean is None:
                raise SettingError(
                    f"model: layer {name!r} ({type(layer).__name__}) has no running statistics, so "
                    "that a prediction depends on which samples come with it; "
                    "use track_running_stats=True, or torch.nn.GroupNorm in its place"
                )
            if isinstance(layer, nn.SyncBatchNorm):
                raise SettingError(
                    f"model: layer {name!r} is SyncBatchNorm, which is for one model on many "
                    "devices; use torch.nn.BatchNorm2d in its place"
                )
        for p in layer.parameters(recurse=False):
            if isinstance(p, nn.parameter.UninitializedParameter):
                raise SettingError(
                    f"model: layer {name!r} is lazy; "
                    "run the module once so that its sizes are known"
                )
