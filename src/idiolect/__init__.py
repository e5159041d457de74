"""idiolect: personalised federated learning. Every client keeps a model of its own; messages are small."""

from . import data, models
from .data.federation import Federation
from .fields import SettingError
from .method import Method
from .methods import METHODS, FedAvg, FedProx, FedProxSoft, Local, LpProj
from .result import Result
from .run import Interrupted, run
from .settings import Settings
from .task import Split, Task

__all__ = [
    "METHODS",
    "FedAvg",
    "FedProx",
    "FedProxSoft",
    "Federation",
    "Interrupted",
    "Local",
    "LpProj",
    "Method",
    "Result",
    "SettingError",
    "Settings",
    "Split",
    "Task",
    "data",
    "models",
    "run",
]
