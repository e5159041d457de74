"""idiolect: personalised federated learning. Every client keeps a model of its own; messages are small."""

from . import data, models
from .data.federation import Federation
from .fields import SettingError
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
from .pipeline import pipeline
from .result import Result
from .run import Interrupted, run
from .settings import Settings
from .task import Split, Task

__all__ = [
    "METHODS",
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
    "data",
    "models",
    "pipeline",
    "run",
]
