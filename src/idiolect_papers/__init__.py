"""Stored tables and figures, and how to make them again: `idiolect reproduce NAME`."""

from .names import EXPERIMENTS, GROUPS
from .reproduce import Experiment

__all__ = ["EXPERIMENTS", "GROUPS", "Experiment"]
