"""A federation without its test data: a search cannot look at what it does not have."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...core.knobs import SettingError
from ...core.types import map_tree
from ...data.federation import Federation


def without_test(federation: Federation) -> Federation:
    """The training and validation data of all clients. Not a sample of the test data is in it.

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> left = without_test(federation)
    >>> left.sizes("test").tolist(), federation.samples - left.samples
    ([0, 0, 0, 0], 48)
    """
    end = int(federation.offsets["test"][0])  # rows are ordered by split, test data come last
    nobody = torch.full_like(federation.offsets["test"], end)
    return replace(
        federation,
        inputs=map_tree(lambda t: t[:end], federation.inputs),
        targets=map_tree(lambda t: t[:end], federation.targets),
        sequences=federation.sequences and federation.sequences.of(torch.arange(end)),
        offsets={**federation.offsets, "test": nobody},
    )


def check_validation_data(federation: Federation) -> None:
    """Refuse to choose where there is nothing to choose by."""
    if not bool(federation.sizes("valid").any()):
        raise SettingError(
            f"tune: no client of {federation.name} has validation data, and settings are chosen by "
            "nothing else; make the federation with a share for validation, such as valid=0.2"
        )
