"""Weights of samples in a run: where they are refused, and what a record and its readers are told.

A sample of weight w counts as w samples would: in its client's loss, Σ w_i l_i / Σ w_i, in the
weight of its client (Σ w_i over training samples in place of their number) and in every figure. An
interval goes by how many samples there are, not by what they weigh.
"""

from __future__ import annotations

from typing import Any

from ..core.knobs import SettingError
from ..core.text import shown
from ..data.federation import Federation
from ..data.splits import SPLITS
from ..task.task import Task


def check_sample_weights(task: Task, federation: Federation) -> None:
    """Refuse weights where a sample has no loss of its own."""
    if federation.weights is not None and task.behaviour.compares:
        raise SettingError(
            f"weight must be left out with the loss {task.criterion.name}: in it, what one sample "
            "costs depends on the samples beside it, so that none can count by itself; give a loss "
            "of single samples"
        )


def weight_facts(federation: Federation) -> dict[str, Any]:
    """What the data of a record say of weights; {} where there are none."""
    return {} if federation.weights is None else {"weight": federation.weight_name or "weight"}


def weights_note(federation: Federation) -> dict[str, dict[str, Any]]:
    """What a reader of the figures should know; {} where there is nothing to say.

    >>> data = Federation.from_arrays([[0.0], [1.0]], [0, 1], list("aa"), weight=[1, 2])
    >>> weights_note(data)["weights"]["text"]
    "weighted by 'weight': training, what a client counts, and all figures"
    """
    facts = weight_facts(federation)
    if not facts:
        return {}
    name = shown(facts["weight"], 60)
    text = f"weighted by {name!r}: training, what a client counts, and all figures"
    return {"weights": {"column": facts["weight"], "text": text}}


def effective_columns(federation: Federation) -> dict[str, list[float]]:
    """As how many samples of one weight those of each client say: columns of a record's clients."""
    if federation.weights is None:
        return {}
    return {f"{split}_effective": federation.effective_sizes(split).tolist() for split in SPLITS}
