"""Stored tables and figures, and how to make them again: `idiolect reproduce NAME`."""

from .experiment import Experiment
from .names import EXPERIMENTS, GROUPS

__all__ = ["EXPERIMENTS", "GROUPS", "Experiment"]
