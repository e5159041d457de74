"""Stored tables and figures, and how to make them again: `idiolect reproduce NAME`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from ..core.knobs import SettingError, nearest


@dataclass(frozen=True)
class Experiment:
    """A stored experiment: its function writes a page and figures into a folder."""

    function: str  # module:function of this folder; it takes the folder, gives the files it wrote
    text: str  # what it shows
    folder: str = ""  # below the output folder
    scales: bool = False  # it has a quick and a full scale, and takes which

    def __call__(self, output: Path, scale: str = "") -> list[Path]:
        if scale and not self.scales:
            raise SettingError(f"scale: {scale!r} is not accepted; this experiment has one only")
        if scale and scale not in SCALES:
            raise nearest(scale, SCALES, "scale")
        module, _, name = self.function.partition(":")
        write = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        folder = output / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        return write(folder, scale or SCALES[0]) if self.scales else write(folder)


SCALES = ("quick", "full")
THEORY = "theory"  # the folder of what the papers prove or show on constructed problems
REPRODUCED = "reproduced"  # the folder of published tables and figures of trained models

EXPERIMENTS: dict[str, Experiment] = {
    "budget": Experiment("budget:write", "accuracy at a byte budget (lp-proj, Table 5)"),
    "defaults": Experiment("defaults:write", "the rule that chooses every method's defaults"),
    "chen-alternative": Experiment(
        "chen.alternative:write", "FedAvg or Local? AER and IER against R (Chen et al.)", THEORY
    ),
    "golden": Experiment("golden:write", "every method at its defaults on four federations"),
    "golden-missing": Experiment("golden:write_missing", "the same, for methods not stored yet"),
    "projections": Experiment("projections:write", "lp-proj with every kind of projection"),
    "rules": Experiment("rules:write", "aggregation rules against attacks"),
    "robustness": Experiment("robustness:write", "methods under attack (lp-proj, Tables 6 to 9)"),
    "robustness-missing": Experiment(
        "robustness:write_missing", "the same, for methods not stored yet"
    ),
    "splits": Experiment("splits:write", "the split that is recommended, and FFGG with each split"),
    "advise-accuracy": Experiment("advise:write", "how often `idiolect advise` is right", THEORY),
    "where-it-helps": Experiment(
        "where_it_helps:write", "where federation helps: real clients, few samples", scales=True
    ),
    "ffgg-table2": Experiment(
        "ffgg.table2:write", "FFGG's splits against FedAvg, FedAlt, FedSim", REPRODUCED, scales=True
    ),
    "large": Experiment("large:write", "time and memory of large models"),
    "lp-proj-theorem9": Experiment(
        "lpproj.theorem9:write", "constant steps, averaged iterate: rates 1/T and 1/T²", THEORY
    ),
    "lp-proj-theorem13": Experiment(
        "lpproj.theorem13:write", "smooth, constant steps: rates 1/√T and 1/T^(2/3)", THEORY
    ),
    "lp-proj-theorem14": Experiment(
        "lpproj.theorem14:write", "schedules of η, ν, D: rates 1/T and 1/(βT)²; d_sub", THEORY
    ),
    "lp-proj-theorem15": Experiment(
        "lpproj.theorem15:write", "smooth, schedules of η, ν, D: ln T/√T and T^(-2/3)", THEORY
    ),
    "lp-proj-figure1": Experiment(
        "lpproj.figure1:write", "test loss against λ under attack (lp-proj, Figure 1)", THEORY
    ),
    "lp-proj-theorem32": Experiment(
        "lpproj.theorem32:write", "variance of losses over clients (lp-proj, Theorem 32)", THEORY
    ),
    "lp-proj-remark17": Experiment(
        "lpproj.remark17:write", "the role of d_sub under attack (lp-proj, Remark 17)", THEORY
    ),
    "ffgg-figure1a": Experiment(
        "ffgg.figure1a:write", "FFGG with few steps of conjugate gradients", THEORY
    ),
    "ffgg-figure1b": Experiment(
        "ffgg.figure1b:write", "FFGG against SCAFFOLD, Local GD and L2GD (Figure 1 b-d)", THEORY
    ),
    "ffgg-figure2": Experiment("ffgg.figure2:write", "FFGG as heterogeneity grows", THEORY),
    "ffgg-figure3": Experiment(
        "ffgg.figure3:write", "asynchronous against synchronous FFGG", THEORY
    ),
    "async-stragglers": Experiment(
        "stragglers:write", "time to a target when some clients are slow", THEORY
    ),
    "ffgg-figure4": Experiment("ffgg.figure4:write", "FFGG with Byzantine clients", THEORY),
    "feddeper-figure1": Experiment(
        "feddeper.figure1:write", "heterogeneity against local steps (Remark 1)", THEORY
    ),
    "feddeper-theorem2": Experiment(
        "feddeper.theorem2:write", "personal models around the global one", THEORY
    ),
}
