"""Transforms of torchvision and its like that are random by their name.

One that acts on few samples (RandomErasing(p=0.02)) may leave those that are read twice alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WITHOUT_THE_WORD = ("AugMix", "AutoAugment", "ColorJitter", "RandAugment", "TrivialAugmentWide")
WHERE = ("transform", "transforms", "target_transform", "dataset")  # attributes that hold them
DEEPEST = 8  # data sets in data sets, transforms in transforms


def random_transform(dataset: Any) -> str:
    """The class of a random transform that a data set has; "" where none is known by its name.

    >>> class RandomFlip: ...
    >>> class Compose:
    ...     transforms = [RandomFlip()]
    >>> class Photographs:
    ...     transform = Compose()
    >>> random_transform(Photographs())
    'RandomFlip'
    """
    return next(filter(_is_random, _names(dataset, DEEPEST)), "")


def _is_random(name: str) -> bool:
    return name.startswith("Random") or name in WITHOUT_THE_WORD


def _names(holder: Any, depth: int) -> Iterator[str]:
    """The classes of all transforms inside."""
    for attribute in WHERE if depth else ():
        inner = getattr(holder, attribute, None)
        for one in inner if isinstance(inner, list | tuple) else (inner,):
            if one is not None:
                if attribute != "dataset":
                    yield type(one).__name__
                yield from _names(one, depth - 1)
