"""Stored tables and how to make them again: name -> function of the output folder that returns the files it wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import golden, projections

EXPERIMENTS: dict[str, Callable[[Path], list[Path]]] = {"golden": golden.write, "projections": projections.write}
