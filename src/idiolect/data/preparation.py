"""How raw rows of a table become inputs: which columns, in which form, on which scale."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preparation:
    """What was done to the columns of a table, so that it can be done to new rows."""

    columns: tuple[str, ...]  # of features, in the order of the table
