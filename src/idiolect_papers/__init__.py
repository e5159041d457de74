"""Stored tables and figures, and how to make them again: `idiolect reproduce NAME`."""

from .experiments import EXPERIMENTS, GROUPS, Experiment

__all__ = ["EXPERIMENTS", "GRIDS", "GROUPS", "Experiment"]

GRIDS = ("lp-proj", "ffgg", "feddeper")  # papers with grids/PAPER.toml, for `tune --grid paper`
