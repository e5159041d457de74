"""How a table is read: one declaration for `from_frame`, flags and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.knobs import Knobs, knob
from .preparation.check import MISSING, SCALES
from .preparation.choose import read_names, write_names


def missing_knob(default: str) -> Any:
    """The setting for missing values, of everything that reads a table."""
    return knob(
        default,
        "missing values: refuse them, drop the sample, or fill in mean, median or zero "
        "(+flag: and a feature that says so)",
        choices=MISSING,
    )


def scale_knob() -> Any:
    """The setting for the scale of numbers, likewise."""
    return knob(
        "federated",
        "numbers are scaled by mean and variance of the training rows: of all clients (federated, "
        "by sums that clients send), of each client, or not at all (none)",
        choices=SCALES,
    )


@dataclass(frozen=True)
class Reading(Knobs):
    """How a table is read: what its columns are, and what is done to them."""

    client: str = knob("client", "column of client ids")
    target: str = knob("target", "column to predict")
    split: str = knob("", "column of train, valid or test; empty: drawn at random")
    kind: str = knob(
        "auto",
        "what the target is: classes, values (regression), or auto: text, two distinct numbers "
        "and few whole numbers are classes",
        choices=("auto", "classes", "values"),
    )
    features: tuple[str, ...] = knob(
        (),
        "columns to learn from, with commas; empty: all but identifiers and constants",
        parse=read_names,
        write=write_names,
    )
    drop: tuple[str, ...] = knob(
        (), "columns to leave out, with commas", parse=read_names, write=write_names
    )
    missing: str = missing_knob("refuse")
    scale: str = scale_knob()
    max_categories: int = knob(50, "most categories of a column", low=1)
    dates: str = knob(
        "refuse",
        "columns of dates: refuse them, drop them, or days since 1970-01-01 as a number",
        choices=("refuse", "drop", "days"),
    )
    valid: float = knob(0.2, "share of the training samples kept for validation", low=0, below=1)
    test: float = knob(0.2, "share of each client's samples kept for testing", low=0, below=1)
    seed: int = knob(0, "seed of the split", low=0)
