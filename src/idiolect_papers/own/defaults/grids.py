"""The settings among which defaults are chosen: a small grid for each method.

The first candidate of a grid is the setting of the method's paper, or the nearest to it. Where a
method has two step sizes for models of the same client, they are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

Fields = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """The candidates of one method."""

    method: str
    candidates: tuple[Fields, ...]
    variants: tuple[Fields, ...] = ({},)  # the default must serve all of them

    def given(self, candidate: Fields, variant: Fields) -> Fields:
        """The fields of a run, without those that have no effect."""
        fields = {**candidate, **variant}
        if fields.get("p") == 1:
            fields.pop("share", None)  # of lp-proj with p = 2 only
        return fields


def every(*first: Fields, **values: tuple) -> tuple[Fields, ...]:
    """`first`, then all combinations of values.

    >>> every({"lr": 2}, lr=(1, 3), steps=(5,))
    ({'lr': 2}, {'lr': 1, 'steps': 5}, {'lr': 3, 'steps': 5})
    """
    return (*first, *(dict(zip(values, found, strict=True)) for found in product(*values.values())))


def same(candidates: tuple[Fields, ...], **names: str) -> tuple[Fields, ...]:
    """Fields that are as large as others: same(candidates, personal_lr="lr")."""
    return tuple({**c, **{new: c[old] for new, old in names.items()}} for c in candidates)


def times(left: tuple[Fields, ...], right: tuple[Fields, ...]) -> tuple[Fields, ...]:
    """Every candidate of the left with every one of the right."""
    return tuple({**a, **b} for a in left for b in right)


RATES = (0.1, 0.3, 1.0)
FEW = (0.1, 0.3)
STEPS = (5, 20)
SHORT = {"lr": 0.3, "steps": 5}
SOLVES = (  # FFGG's line 4
    {"private_lr": 0.1, "steps": 20},
    {"private_lr": 0.5, "steps": 20},
    {"private_lr": 0.5, "steps": 100},
)

GRIDS = {
    grid.method: grid
    for grid in (
        Grid("local", every(lr=(0.1, 0.03, 0.3, 1.0), steps=(20, 5))),
        Grid(
            "fedavg",
            (
                *every(lr=RATES, steps=(5, 1, 20), epochs=(0,)),
                *every(lr=FEW, steps=(5,), epochs=(5,)),
            ),
        ),
        Grid("fedprox", every(mu=(0.1, 1.0), lr=FEW, steps=STEPS)),
        Grid("fedprox-soft", every(lr=FEW, lam=(0.1, 0.03, 0.3, 1.0))),
        Grid(
            "lp-proj",
            (
                {"lam": 0.1, "lr": 0.1, "share": 1.0, "personal_lr": 0.1},
                *every(lam=(0.1, 1.0), lr=(0.0,), share=(1.0, 0.5), personal_lr=(0.1,)),
                {"lam": 0.1, "lr": 0.0, "share": 1.0, "personal_lr": 0.3},
            ),
            (  # few directions tied, as by default, and a good part of the model
                {"p": 1.0},
                {"p": 2.0},
                {"p": 1.0, "dim": 600, "projection": "contiguous"},
                {"p": 2.0, "dim": 600, "projection": "contiguous"},
            ),
        ),
        Grid(
            "ditto",
            same(
                times(every(lam=(0.1, 1.0)), (*every(lr=(0.1,), steps=STEPS), SHORT)),
                personal_lr="lr",
            ),
        ),
        Grid(
            "pfedme",
            every(
                {"lam": 0.1, "lr": 0.1, "share": 1.0, "personal_lr": 0.1},
                lam=(0.1, 0.5, 2.0),
                lr=(0.0,),
                share=(1.0, 0.5),
                personal_lr=FEW,
            ),
        ),
        Grid("per-fedavg", every(lr=FEW, personal_lr=FEW, steps=STEPS)),
        Grid("lg-fedavg", every(lr=RATES, steps=STEPS)),
        Grid(
            "rsa",
            (
                *every(lam=(0.01, 0.003, 0.03), lr=(0.1,), personal_lr=(0.1,)),
                {"lam": 0.01, "lr": 0.3, "personal_lr": 0.1},
                {"lam": 0.01, "lr": 0.1, "personal_lr": 0.3},
            ),
        ),
        Grid(
            "l2gd",
            (  # the models move by lr lam / p of the way to their mean: 5, 25, 100 %
                *every(lr=(0.05,), lam=(0.1, 0.5, 2.0)),
                *every(lr=(0.2,), lam=(0.025, 0.125, 0.5)),
            ),
        ),
        Grid("scaffold", every(lr=RATES, steps=(5, 1, 20))),
        Grid("scaffnew", (*every(lr=(0.05, 0.1, 0.3, 1.0), p=(0.2,)), {"lr": 0.1, "p": 0.1})),
        Grid("feddeper", every(lr=(0.05, 0.1, 0.3), rho=(0.003, 0.0003, 0.03), steps=(10,))),
        Grid("ffgg", times(every(lr=(0.5, 1.0, 2.0)), SOLVES)),
        Grid(
            "local-ffgg",
            (
                *times(every(lr=FEW, local_steps=(5,)), SOLVES),
                *times(every(lr=FEW, local_steps=(20,)), SOLVES[1:2]),
            ),
        ),
        Grid(
            "fedalt",
            (
                *same(every(lr=RATES, steps=(5,), private_steps=(5,)), private_lr="lr"),
                *same(every(lr=RATES, steps=(20,), private_steps=(20,)), private_lr="lr"),
                *same(every(lr=FEW, steps=(20,), private_steps=(5,)), private_lr="lr"),
            ),
        ),
        Grid("fedsim", same(every(lr=RATES, steps=STEPS), private_lr="lr")),
        Grid("finetune", every(lr=FEW, steps=STEPS, personal_lr=FEW)),
        Grid("dichotomy", every(lr=FEW, steps=STEPS, personal_lr=(0.1,))),
    )
}
