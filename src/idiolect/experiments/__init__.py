"""Stored tables and figures, and how to make them again: `idiolect reproduce NAME`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError, nearest


@dataclass(frozen=True)
class Experiment:
    """A stored experiment: its function writes a page and figures into a folder."""

    function: str  # module:function of this folder; it takes the folder, gives the files it wrote
    text: str  # what it shows
    folder: str = ""  # below the output folder
    scales: bool = False  # it has a quick and a full scale, and takes which

    def __call__(self, output: Path, scale: str = "", only: Sequence[str] = ()) -> list[Path]:
        if scale and not self.scales:
            raise SettingError(f"scale: {scale!r} is not accepted; this experiment has one only")
        if scale and scale not in SCALES:
            raise nearest(scale, SCALES, "scale")
        module, _, name = self.function.partition(":")
        write = getattr(importlib.import_module(f"{__package__}.{module}"), name)
        folder = output / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        given: dict[str, Any] = {"scale": scale or SCALES[0]} if self.scales else {}
        if only:
            if "only" not in inspect.signature(write).parameters:
                raise SettingError("only: it is not accepted; this experiment is run as a whole")
            given["only"] = only
        return write(folder, **given)


SCALES = ("quick", "full")
REPRODUCED = "reproduced"  # the folder of published tables, and of figures of trained models
THEORY = "theory"  # the folder of what the papers prove or show on constructed problems
REPRODUCED = "reproduced"  # the folder of published tables and figures of trained models


def _scaled(function: str, text: str) -> Experiment:
    return Experiment(function, text, REPRODUCED, scales=True)


EXPERIMENTS: dict[str, Experiment] = {
    "budget": Experiment("lpproj.budget:write", "accuracy at a byte budget (lp-proj, Table 5)"),
    "defaults": Experiment("defaults:write", "the rule that chooses every method's defaults"),
    "chen-alternative": Experiment(
        "chen.alternative:write", "FedAvg or Local? AER and IER against R (Chen et al.)", THEORY
    ),
    "golden": Experiment("golden:write", "every method at its defaults on four federations"),
    "golden-missing": Experiment("golden:write_missing", "the same, for methods not stored yet"),
    "projections": Experiment("projections:write", "lp-proj with every kind of projection"),
    "rules": Experiment("rules:write", "aggregation rules against attacks"),
    "robustness": Experiment(
        "lpproj.robustness:write", "methods under attack (lp-proj, Tables 6 to 9)"
    ),
    "robustness-missing": Experiment(
        "lpproj.robustness:write_missing", "the same, for methods not stored yet"
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
    "lp-proj-table4": _scaled("lpproj.personal:write_table4", "ten methods on six data sets"),
    "lp-proj-table10": _scaled("lpproj.personal:write_table10", "the same, volumes by a power law"),
    "lp-proj-table2": _scaled("lpproj.table2:write", "in form: ResNet-34, 50 blocks"),
    "lp-proj-table1": _scaled("lpproj.budget.compared:write_table1", "accuracy at a budget"),
    "lp-proj-table5": _scaled("lpproj.budget.compared:write_table5", "the same, all data sets"),
    "lp-proj-table11": _scaled(
        "lpproj.budget.compared:write_table11", "the same, volumes by a power law"
    ),
    "lp-proj-table6": _scaled("lpproj.robustness.compared:write_table6", "same-value attacks"),
    "lp-proj-table7": _scaled("lpproj.robustness.compared:write_table7", "sign-flip attacks"),
    "lp-proj-table8": _scaled("lpproj.robustness.compared:write_table8", "gaussian attacks"),
    "lp-proj-table9": _scaled("lpproj.robustness.compared:write_table9", "data-poison attacks"),
    "lp-proj-table12": _scaled(
        "lpproj.robustness.compared:write_table12", "same-value attacks, volumes by a power law"
    ),
    "lp-proj-table13": _scaled(
        "lpproj.robustness.compared:write_table13", "sign-flip attacks, volumes by a power law"
    ),
    "lp-proj-table14": _scaled(
        "lpproj.robustness.compared:write_table14", "gaussian attacks, volumes by a power law"
    ),
    "lp-proj-table15": _scaled(
        "lpproj.robustness.compared:write_table15", "data-poison attacks, volumes by a power law"
    ),
    "lp-proj-figure4": _scaled("lpproj.robustness.compared:write_figure4", "robustness"),
    "lp-proj-table16": _scaled("lpproj.subspace:write_table16", "is P to be orthogonal?"),
    "lp-proj-table17": _scaled("lpproj.subspace:write_table17", "which d_sub?"),
    "lp-proj-figure2": _scaled(
        "lpproj.personal:write_figure2", "accuracy against its variance, two data sets"
    ),
    "lp-proj-figure3": _scaled(
        "lpproj.personal:write_figure3", "curves of training, two data sets"
    ),
    "lp-proj-figure5": _scaled(
        "lpproj.personal:write_figure5", "curves of training, all data sets"
    ),
    "lp-proj-figure6": _scaled(
        "lpproj.personal:write_figure6", "accuracy against its variance, all data sets"
    ),
    "lp-proj-figure7": _scaled("lpproj.personal:write_figure7", "test loss against its variance"),
    "lp-proj-figure8": _scaled(
        "lpproj.personal:write_figure8", "curves of training, volumes by a power law"
    ),
    "lp-proj-figure9": _scaled("lpproj.personal:write_figure9", "collaboration fairness"),
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
    "feddeper-table1": Experiment(
        "feddeper.table1:write", "accuracy beside four methods (FedDeper)", REPRODUCED, scales=True
    ),
    "feddeper-figure3": Experiment(
        "feddeper.figure3:write", "the effect of ϱ, λ, τ and K (FedDeper)", REPRODUCED, scales=True
    ),
    "feddeper-figure4": Experiment(
        "feddeper.figure4:write",
        "loss by rounds, MNIST, n = 10 (FedDeper)",
        REPRODUCED,
        scales=True,
    ),
    "feddeper-figure5": Experiment(
        "feddeper.figure5:write", "the same for MNIST, n = 100", REPRODUCED, scales=True
    ),
    "feddeper-figure6": Experiment(
        "feddeper.figure6:write", "the same for CIFAR-10, n = 100", REPRODUCED, scales=True
    ),
    "feddeper-figure7": Experiment(
        "feddeper.figure7:write", "global and personal models (FedDeper)", REPRODUCED, scales=True
    ),
}
