"""Data poisoning: malicious clients' training labels, before the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError, knob
from ..core.streams import Keys
from ..data.federation import Federation
from ..data.read.sequences import IGNORED
from ..task.losses import Loss
from .attack import Attack
from .single_client import scalars

KINDS = ("random", "flip")
LABELS = ("wrong", "uniform")


def poison(
    federation: Federation,
    malicious: Tensor,
    classes: int,
    kind: str,
    seed: int,
    labels: str = "wrong",
    loss: Loss | None = None,
) -> Federation:
    """The federation with false training targets at the `malicious` clients (their positions).

    Inputs are shared; validation and test targets stay true.

    - "random": each label is redrawn once: uniform over the other classes (labels = "wrong";
      with two classes that flips it) or over all (labels = "uniform"). The text of the lp-proj
      paper says "flipped (if binary) or uniformly random noisy labels" (C.7.2), its public code
      draws from all classes. Real targets (classes = 0) change places within the client.
    - "flip": y -> classes - 1 - y; real targets y -> -y, or 1 - y where they say yes or no (all of
      them 0 or 1, or the loss a binary cross-entropy).

    Targets of any shape are taken entry by entry, so every next word of a text is false. Those that
    do not count (-100, or the `ignore_index` of the loss) stay as they are, and no label becomes
    one of them. What a client's labels become depends on its name, its data and the seed alone.

    >>> f = Federation.from_arrays(np.eye(4), [0, 1, 2, 0], ["a", "a", "b", "b"], valid=0, test=0)
    >>> poison(f, torch.tensor([1]), f.classes, "flip", seed=0).targets.tolist()
    [0, 1, 0, 2]
    """
    ignored = getattr(loss, "ignore", IGNORED)
    names = torch.tensor([c for c in range(classes) if c != ignored])
    _check(federation, malicious, classes, kind, labels, names)
    targets = federation.targets.clone()
    yes_no = not classes and _says_yes_or_no(targets, loss)
    offsets = federation.offsets["train"].tolist()
    for k in sorted(set(malicious.tolist())):
        key = streams.keys(seed, "poison", 0, streams.name_keys([federation.names[k]]))
        part = targets[offsets[k] : offsets[k + 1]]  # a view
        if classes:
            counted = (part >= 0) & (part != ignored)
            place = torch.searchsorted(names.to(part), part)  # among the classes that count
            if kind == "flip":
                place = len(names) - 1 - place
            else:
                place = _random(place, len(names), key, labels)
            part.copy_(torch.where(counted, names.to(part)[place % len(names)], part))
        elif kind == "flip":
            part.copy_(1 - part if yes_no else -part)
        else:
            order = np.argsort(streams.bits(key, 0, len(part))[0], kind="stable")
            part.copy_(part[torch.from_numpy(order).to(part.device)])
    return replace(federation, targets=targets)


def _says_yes_or_no(targets: Tensor, loss: Loss | None) -> bool:
    """Whether real targets are probabilities of yes, not values of any size."""
    binary = loss is not None and loss.name.startswith(("bce", "binary_cross_entropy"))
    return binary or bool(((targets == 0) | (targets == 1)).all())


def _random(y: Tensor, classes: int, key: streams.Keys, labels: str) -> Tensor:
    words = streams.bits(key, 0, y.numel())[0]
    wrong = labels == "wrong"
    numbers = streams.below(words, np.array(classes - wrong))
    draw = torch.from_numpy(numbers).view(y.shape).to(y.device)
    return (y + 1 + draw) % classes if wrong else draw


def _check(
    federation: Federation, malicious: Tensor, classes: int, kind: str, labels: str, names: Tensor
) -> None:
    for name, value, choices in (("kind", kind, KINDS), ("labels", labels, LABELS)):
        if value not in choices:
            raise SettingError(
                f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}"
            )
    if (
        malicious.numel()
        and not 0 <= int(malicious.min()) <= int(malicious.max()) < federation.clients
    ):
        raise SettingError(
            f"malicious: {malicious.tolist()} are not all clients; "
            f"accepted: 0 to {federation.clients - 1}"
        )
    if not isinstance(federation.targets, Tensor):
        raise SettingError(
            "attack: false targets are made of one tensor of targets; these data have several"
        )
    real = federation.targets.is_floating_point()
    if real and classes:
        raise SettingError(
            f"classes must be 0 for the real targets of {federation.name!r}, got {classes}"
        )
    if not real and (classes < 2 or classes < federation.classes):
        raise SettingError(
            f"classes must be at least {max(2, federation.classes)} for false labels, got {classes}"
        )
    if not real and len(names) < 2:
        raise SettingError(
            f"attack: false labels need two classes that the loss counts, got {len(names)}"
        )


@dataclass(frozen=True)
class DataPoison(Attack):
    """Random labels, and the message times c ~ N(0, std^2), to outweigh the others.

    One c, of either sign, per client and round. Sections 5.4 and C.7.2 of the lp-proj paper, with
    standard deviation 20. labels = "wrong": uniform over the other classes, so flipped if there are
    two, as C.7.2 says; "uniform": over all classes, as the paper's public code draws them.

    >>> malicious = torch.tensor([False, True])
    >>> keys = np.array([1, 2], dtype=np.uint64)
    >>> sent = DataPoison()(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), malicious, None, keys)
    >>> bool(sent[1, 1] == 2 * sent[1, 0])
    True
    """

    poisons: ClassVar[str] = "random"
    std: float = knob(20.0, "standard deviation of the factor", above=0)
    labels: str = knob(
        "wrong", "what random labels are drawn from: the other classes, or all", choices=LABELS
    )

    def forge(self, own: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        return scalars(keys, self.std, own) * own

    def poison(
        self, federation: Federation, malicious: Tensor, seed: int, loss: Loss | None = None
    ) -> Federation:
        classes = federation.classes
        return poison(federation, malicious, classes, self.poisons, seed, self.labels, loss)


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Labels y -> C - 1 - y, honest training on them and an honest message.

    Real targets y -> -y, or 1 - y where they say yes or no; targets that do not count stay.
    Tolpegin et al. 2020; Fang et al. 2020.

    >>> LabelFlip.poisons
    'flip'
    """

    poisons: ClassVar[str] = "flip"

    def forge(self, own: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        return own
