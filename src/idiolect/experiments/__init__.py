"""Stored tables and how to make them again.

Name -> function of the output folder, which returns the files it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import budget, golden, large, projections, robustness, rules

EXPERIMENTS: dict[str, Callable[[Path], list[Path]]] = {
    "budget": budget.write,
    "golden": golden.write,
    "golden-missing": golden.write_missing,
    "projections": projections.write,
    "rules": rules.write,
    "robustness": robustness.write,
    "large": large.write,
}
