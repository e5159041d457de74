"""What many tests share: small federations by kind, a run with the usual settings, its outcome."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.core.documents import sealed, unsealed
from idiolect.methods import METHODS, make_method
from idiolect.testing import gradients_of, private_of, state_of

__all__ = [
    "ONE_EXCHANGE",
    "by_turns",
    "classification",
    "gradients_of",
    "linear",
    "numbered",
    "private_of",
    "regression",
    "rewrite",
    "run",
    "state_of",
]

FEATURES = 6
# of the table, methods whose rounds are one exchange: a version is a round
ONE_EXCHANGE = [name for name in METHODS if not make_method(name).traits.exchanges]
CLASSES = 3


# -- stored documents ------------------------------------------------------------------------------
def rewrite(path, change) -> None:
    """A stored document as somebody would forge it: changed by a function, its checksum right."""
    content = unsealed(json.loads(path.read_text()))
    path.write_text(json.dumps(sealed(change(content) or content)))


# -- products of options ---------------------------------------------------------------------------
def by_turns(names, *options) -> list:
    """(name, option, ...): every name with one combination in `make test`, the rest marked slow.

    The combinations take turns, so that every one of them is met too if there are names enough.
    """
    combinations = list(product(*options))
    return [
        pytest.param(
            name,
            *combination,
            marks=() if k % len(combinations) == j else pytest.mark.slow,
            id="-".join(map(str, (name, *combination))),
        )
        for k, name in enumerate(names)
        for j, combination in enumerate(combinations)
    ]


# -- federations: clients are called 0, 1, 2, ... --------------------------------------------------
def classification(
    sizes=(20,) * 8, features=FEATURES, classes=CLASSES, seed=0, **options
) -> il.Federation:
    """Clients of these sizes; the class of a sample shows in its features."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=sum(sizes))
    x = rng.standard_normal((len(y), features)) + y[:, None]
    return il.Federation.from_arrays(x, y, _owners(sizes), **options)


def regression(sizes=(20,) * 8, features=FEATURES, seed=0, **options) -> il.Federation:
    """Clients of these sizes with real targets, and a linear rule that all of them share."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((sum(sizes), features))
    y = x @ rng.standard_normal(features) + 0.3 * rng.standard_normal(len(x))
    return il.Federation.from_arrays(x, y.astype(np.float32), _owners(sizes), **options)


def numbered(sizes, without_data=0) -> il.Federation:
    """Sample i has input i and target i % 3, so that a batch says which samples it holds.

    All are for training. `without_data` more clients have two test samples each and nothing else.
    """
    more = np.repeat(len(sizes) + np.arange(without_data), 2)
    ids = np.concatenate([_owners(sizes), more])
    split = np.array(["train"] * sum(sizes) + ["test"] * len(more))
    inputs = torch.arange(len(ids), dtype=torch.float32).unsqueeze(1)
    return il.Federation.from_arrays(inputs, np.arange(len(ids)) % 3, ids, split=split)


def _owners(sizes) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


# -- runs ------------------------------------------------------------------------------------------
def linear(features=FEATURES, outputs=CLASSES, loss="cross_entropy") -> il.Task:
    """A linear model, made anew under each seed."""
    return il.Task(lambda: nn.Linear(features, outputs), loss)


def run(method, federation=None, task=None, **settings) -> il.Result:
    """Three rounds in double precision with three clients heard, unless told otherwise."""
    usual = {
        "rounds": 3,
        "sample": 0 if method.traits.hears_all else 3,
        "batch": 8,
        "dtype": "float64",
        "eval_every": 0,
    }
    data = with_public(method, federation or classification())
    return il.run(method, task or linear(), data, **usual | settings)


def with_public(method, federation, count=12) -> il.Federation:
    """The same federation; with public inputs where the method needs some."""
    method = il.Plan.of(method).make_method()
    if not method.traits.uses_public or federation.public is not None:
        return federation
    noise = torch.Generator().manual_seed(3)
    shape = (count, *federation.inputs.shape[1:])
    return federation.with_public(2 * torch.randn(shape, generator=noise))
