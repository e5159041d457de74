"""The table of `idiolect splits`: a row per part that could be personal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.columns import Column, fitted_table
from ..core.text import shown
from .figures import count, number, size

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 140
EXPLAINED = (
    "train, valid: loss pooled over samples once the private part is fine-tuned (none: the shared "
    "model as it is; all: the whole model of each client); accuracy: on validation data. "
    "‖F‖: the gradient left in the shared part, mean over clients; ‖mean F‖: of their mean. "
    "±: standard error of the difference to the best, paired over clients; * within it. "
    "per round: bytes, both directions"
)


def splits_table(
    rows: Sequence[dict[str, Any]],
    choice: str,
    reasons: Sequence[str],
    title: str,
    width: int | None = None,
) -> Table:
    """The candidates, the recommended one marked, and why."""
    columns = [
        Column("private part", 0, lambda r: _name(r, choice), words=True),
        Column("private", 1.5, lambda r: count(r["private"])),
        Column("shared", 2, lambda r: count(r["shared"])),
        Column("‖F‖", 1, lambda r: _norm(r["gradient_left"]) if r["shared"] else "–"),
        Column("‖mean F‖", 5, lambda r: _norm(r["gradient_left_of_mean"]) if r["shared"] else "–"),
        Column("train", 3, lambda r: number(r["train_loss"])),
        Column("valid", 0, lambda r: number(r["valid_loss"]) + _mark(r)),
        Column("±", 4, lambda r: _norm(r["gap_error"]) if r["gap_error"] else "–"),
        Column("per round", 2.5, lambda r: size(r["bytes_per_round"])),
    ]
    if any(r["valid_accuracy"] == r["valid_accuracy"] for r in rows):
        columns.insert(-1, Column("accuracy", 1.2, lambda r: number(r["valid_accuracy"])))
    caption = "\n".join([EXPLAINED, *(f"→ {shown(reason, 1000)}" for reason in reasons)])
    return fitted_table(columns, rows, width or WIDTH, shown(title, 400), caption)


def _name(row: dict[str, Any], choice: str) -> str:
    also = f" = {', '.join(row['also'])}" if row["also"] else ""
    mark = "→ " if row["part"] == choice else ""
    return mark + shown(row["name"] + also)


def _mark(row: dict[str, Any]) -> str:
    return " *" if row["tied"] and row["shared"] else "  "


def _norm(value: float) -> str:
    return f"{value:.3g}"
