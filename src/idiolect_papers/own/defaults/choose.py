"""The grids, run: what each candidate has reached, and which one the rule takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from idiolect.study.many import Outcome

from .grids import Fields, Grid
from .jobs import Run
from .progress import Runs
from .rule import Cell, chosen, regrets

Row = dict[str, Any]


def run_of(
    grid: Grid, candidate: Fields, variant: Fields, title: str, seed: int, **more: Any
) -> Run:
    """The run behind a cell."""
    fields = grid.given(candidate, variant)
    return Run(title, grid.method, tuple(sorted(fields.items())), seed, **more)


def choose(
    runs: Runs, grids: Sequence[Grid], federations: Sequence[str], seeds: int, rounds: int
) -> dict[str, Row]:
    """Every cell of every grid, and the rule's choice, as plain data by method."""
    todo = [
        run_of(grid, candidate, variant, title, seed, rounds=rounds)
        for grid in grids
        for candidate in grid.candidates
        for variant in grid.variants
        for title in federations
        for seed in range(seeds)
    ]
    results = runs(todo, "grids")
    return {g.method: _stored(g, results, federations, seeds, rounds) for g in grids}


def _stored(
    grid: Grid, results: Mapping[Run, Outcome], federations: Sequence[str], seeds: int, rounds: int
) -> Row:
    cells: dict[str, list[Row]] = {}
    for variant in grid.variants:
        for title in federations:
            column = []
            for candidate in grid.candidates:
                found = [
                    results[run_of(grid, candidate, variant, title, seed, rounds=rounds)]
                    for seed in range(seeds)
                ]
                column.append(
                    {
                        "accuracy": [f["accuracy"] for f in found],
                        "gradients": _mean([f["gradients"] for f in found]),
                        "bytes": _mean([f["bytes"] for f in found]),
                    }
                )
            cells[cell_name(title, variant)] = column
    rows = rows_of(cells)
    return {
        "candidates": list(grid.candidates),
        "variants": list(grid.variants),
        "cells": cells,
        "regrets": [round(r, 4) for r in regrets(rows)],
        "chosen": chosen(rows),
    }


def cell_name(title: str, variant: Fields) -> str:
    """A column of a grid: a federation, and the variant of the method where it has several."""
    shown = {k: f"{v:g}" if isinstance(v, float | int) else v for k, v in variant.items()}
    return ", ".join([title, *(f"{name} {value}" for name, value in shown.items())])


def rows_of(cells: Mapping[str, Sequence[Row]]) -> list[list[Cell]]:
    """The stored cells as the rule takes them: rows[candidate][federation]."""
    columns = [
        [Cell(_mean(c["accuracy"]), c["gradients"], c["bytes"]) for c in column]
        for column in cells.values()
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
