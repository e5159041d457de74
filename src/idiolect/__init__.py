"""idiolect: personalised federated learning. Every client keeps a model of its own.

The public names are those below and `idiolect.testing`; docs/api.md lists them. Everything else may
change.
"""

from . import data, models, solvers
from .core.allocator import keep as keep_memory
from .core.knobs import SettingError, knob
from .data.federation import Federation
from .method import Method
from .methods import (
    METHODS,
    Dichotomy,
    Ditto,
    FedAlt,
    FedAvg,
    FedDeper,
    FedProx,
    FedProxSoft,
    FedSim,
    Ffgg,
    Finetune,
    L2gd,
    LgFedAvg,
    Local,
    LocalFfgg,
    LpProj,
    PerFedAvg,
    PFedMe,
    Rsa,
    Scaffnew,
    Scaffold,
)
from .run.compare import Comparison, compare
from .run.load import load
from .run.pipeline import pipeline
from .run.result import Result
from .run.run import Interrupted, run
from .run.settings import Settings
from .task.split import Split
from .task.task import Task

__all__ = [
    "METHODS",
    "Comparison",
    "Dichotomy",
    "Ditto",
    "FedAlt",
    "FedAvg",
    "FedDeper",
    "FedProx",
    "FedProxSoft",
    "FedSim",
    "Federation",
    "Ffgg",
    "Finetune",
    "Interrupted",
    "L2gd",
    "LgFedAvg",
    "Local",
    "LocalFfgg",
    "LpProj",
    "Method",
    "PFedMe",
    "PerFedAvg",
    "Result",
    "Rsa",
    "Scaffnew",
    "Scaffold",
    "SettingError",
    "Settings",
    "Split",
    "Task",
    "compare",
    "data",
    "keep_memory",
    "knob",
    "load",
    "models",
    "pipeline",
    "run",
    "solvers",
]
