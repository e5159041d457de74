"""Default step sizes that a regression can take.

The defaults of methods were chosen on classifications, where the slope of the loss is bounded. That
of a squared error is not: gradient steps of size lr grow without bound where lr times the curvature
of the loss is above 2. It is measured before a run, at its first model:

- on mini-batches of some clients: a default step size that most of them do not allow is lowered to
  one over their curvature;
- on a mini-batch with the largest input row of all, which may lie far from the others: where it
  alone is too steep, gradients are clipped at twice the largest of the other mini-batches.

Both are said, and recorded as the settings of the run. A step size that was given is taken as it
is, and so is a clip.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.types import Tree, leaves, map_tree
from ..data.federation import Census, Federation
from ..host.lazy_federation import LazyFederation
from ..method import Method
from ..methods import name_of
from ..task.task import Task
from .settings import Settings

STABLE = 2.0  # lr times the curvature, up to which gradient steps on squares do not grow
BATCHES = 10  # that are looked at
LARGE = 10**5  # parameters of a model that takes long: then fewer
ITERATIONS = 8  # of the power method
STEEP = 1e3  # a curvature that no inputs of about 1 have


@dataclass(frozen=True)
class Steepness:
    """The training loss at the first model."""

    curvature: float  # of most mini-batches: their upper quartile
    largest: float  # of the one with the largest row
    gradient: float  # the largest norm, of the mini-batches without that row


def stable_steps(
    method: Method, task: Task, federation: Federation, settings: Settings, clients: Tensor
) -> tuple[Method, Settings, list[str]]:
    """Method and settings with which this regression does not diverge at once, and what changed.

    `task` is as the first seed computes it.
    """
    # of the rates those that gradients are multiplied with, not a share of a gap
    rates = {n: getattr(method, n) for n in method.traits.rates if n.endswith("lr")}
    if not rates or not settings.client_optimizer.plain:
        return method, settings, []
    steepness = steepness_of(task, federation, settings, clients)
    if steepness is None:
        return method, settings, []
    words = []
    curvature = steepness.curvature
    own = set(rates) - method.explicit  # those that were not given
    large = [name for name in rates if name in own and rates[name] * curvature > STABLE]
    if large:
        limit = float(f"{1 / curvature:.2g}")
        before = ", ".join(f"{name} {rates[name]:g}" for name in large)
        rates |= dict.fromkeys(large, limit)
        method = replace(method, **dict.fromkeys(large, limit))
        hint = "; inputs scaled to about 1 allow larger ones" if curvature > STEEP else ""
        words.append(
            f"{name_of(method)}: {limit:g} in place of the default {before}, with which this "
            f"regression diverges (the curvature of its loss is {curvature:.3g}){hint}"
        )
    if not settings.clip and any(rates[name] * steepness.largest > STABLE for name in own):
        settings = replace(settings, clip=float(f"{2 * steepness.gradient:.2g}"))
        words.append(
            f"{name_of(method)}: gradients are clipped at {settings.clip:g} (clip), as single "
            "input rows lie so far from the others that steps on them diverge"
        )
    return method, settings, words


def steepness_of(
    task: Task, federation: Federation, settings: Settings, clients: Tensor
) -> Steepness | None:
    """Measured here, or where the samples are; None for other tasks than regressions."""
    if federation.classes or not task.criterion.degree:
        return None
    if isinstance(federation, LazyFederation):
        return Steepness(*federation.steepness) if federation.steepness else None
    if isinstance(federation, Census):
        return None
    return measured(task, federation, settings, clients)


def measured(
    task: Task, federation: Federation, settings: Settings, clients: Tensor
) -> Steepness | None:
    """By mini-batches of some clients; None where torch cannot compute second derivatives."""
    data = federation.to(task.device, task.dtype)
    noise = torch.Generator().manual_seed(0)
    count = BATCHES if task.d <= LARGE else 2
    places = torch.linspace(0, len(clients) - 1, count).long()

    def look(client: int, row: int | None = None) -> tuple[float, float]:
        low, high = data.offsets["train"][client : client + 2].tolist()
        rows = torch.randint(low, high, (settings.batch,), generator=noise)
        if settings.batching == "full":
            rows = torch.arange(low, high)[: 10 * settings.batch]
        if row is not None:
            rows[0] = row
        inputs, targets = (map_tree(lambda t: t[rows], p) for p in (data.inputs, data.targets))
        direction = torch.randn(task.d, generator=noise).to(task.x0)
        shares = None if data.training_shares is None else data.training_shares[rows]
        return task.steepness(inputs, targets, direction, ITERATIONS, shares)

    client, row = _largest_row(data.inputs, data, clients)
    try:
        looks = torch.tensor([look(k) for k in clients[places].tolist()])
        worst, _ = look(client, row)
    except Exception:  # whatever a user's module does under torch.func
        return None
    curvature, gradient = looks.T
    if not bool(looks.isfinite().all()):
        return None
    return Steepness(float(curvature.quantile(0.75)), worst, float(gradient.max()))


def _largest_row(inputs: Tree, data: Federation, clients: Tensor) -> tuple[int, int]:
    """The training row that counts most in a curvature, and whose it is: (client, row).

    By its squared norm, times what it weighs beside the other rows of its client.
    """
    low, high = data.offsets["train"][[0, -1]].tolist()
    norms = torch.zeros(high - low, dtype=torch.float64)
    for t in leaves(inputs):
        if t.is_floating_point():
            norms += t[low:high].flatten(1).double().norm(dim=1).cpu() ** 2
    if data.training_shares is not None:
        norms *= data.training_shares[low:high].cpu()
    owner = torch.repeat_interleave(torch.arange(data.clients), data.sizes("train"))
    norms[~torch.isin(owner, clients)] = -1
    at = int(norms.argmax())
    return int(owner[at]), low + at
