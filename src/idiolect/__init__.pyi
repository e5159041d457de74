"""The public names of idiolect and the modules that define them."""

from . import data, methods, models, projections, report, solvers, study
from .attacks import Attack
from .channels import Stage
from .core import streams
from .core.allocator import keep_memory
from .core.knobs import Knobs, SettingError, knob
from .core.types import State
from .data.check import Finding, TableCheck, check
from .data.federation import Federation
from .deploy.models import load_exported
from .engine.delays import parse_delays
from .host.scores import interval, paired_difference
from .method import Combine, Exchange, Method, Traits
from .methods import (
    METHODS,
    Apfl,
    ByzVrMarina,
    Cfl,
    Dichotomy,
    Ditto,
    DualLora,
    FedAla,
    FedAlt,
    FedAmp,
    FedAvg,
    FedBabu,
    FedDane,
    FedDeper,
    FedDyn,
    FedEm,
    FedFomo,
    FedIt,
    FedMd,
    FedNova,
    FedPac,
    FedPer,
    FedProto,
    FedProx,
    FedProxSoft,
    FedRep,
    FedRod,
    FedSaLora,
    FedSim,
    FedSplit,
    FedTgp,
    FfaLora,
    Ffgg,
    Finetune,
    Fml,
    Gpfl,
    Ifca,
    KnnPer,
    L2gd,
    LgFedAvg,
    Local,
    LocalFfgg,
    LpProj,
    Moon,
    PerFedAvg,
    PFedBayes,
    PFedGraph,
    PFedHn,
    PFedMe,
    Rsa,
    Scaffnew,
    Scaffold,
    SlowMo,
    make_method,
)
from .run.callbacks import Moment
from .run.plan import Plan
from .run.predict import Prediction
from .run.record import Record
from .run.result import Result
from .run.run import Interrupted, RoundState, iterate, run
from .run.session import Start
from .run.settings import Settings
from .server import rules
from .server.rules import Rule, Wrapper
from .study.advise.advice import Advice
from .study.advise.advise import advise
from .study.compare import Comparison, compare
from .study.load import load
from .study.many import Sweep
from .study.pipeline import pipeline
from .study.splits import Splits, splits
from .study.sweep import sweep
from .study.tune import Tuned, tune
from .task.context import Here
from .task.groups import TaskGroups
from .task.layout import Split
from .task.task import Task

__all__ = [
    "METHODS",
    "Advice",
    "Apfl",
    "Attack",
    "ByzVrMarina",
    "Cfl",
    "Combine",
    "Comparison",
    "Dichotomy",
    "Ditto",
    "DualLora",
    "Exchange",
    "FedAla",
    "FedAlt",
    "FedAmp",
    "FedAvg",
    "FedBabu",
    "FedDane",
    "FedDeper",
    "FedDyn",
    "FedEm",
    "FedFomo",
    "FedIt",
    "FedMd",
    "FedNova",
    "FedPac",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedProxSoft",
    "FedRep",
    "FedRod",
    "FedSaLora",
    "FedSim",
    "FedSplit",
    "FedTgp",
    "Federation",
    "FfaLora",
    "Ffgg",
    "Finding",
    "Finetune",
    "Fml",
    "Gpfl",
    "Here",
    "Ifca",
    "Interrupted",
    "KnnPer",
    "Knobs",
    "L2gd",
    "LgFedAvg",
    "Local",
    "LocalFfgg",
    "LpProj",
    "Method",
    "Moment",
    "Moon",
    "PFedBayes",
    "PFedGraph",
    "PFedHn",
    "PFedMe",
    "PerFedAvg",
    "Plan",
    "Prediction",
    "Record",
    "Result",
    "RoundState",
    "Rsa",
    "Rule",
    "Scaffnew",
    "Scaffold",
    "SettingError",
    "Settings",
    "SlowMo",
    "Split",
    "Splits",
    "Stage",
    "Start",
    "State",
    "Sweep",
    "TableCheck",
    "Task",
    "TaskGroups",
    "Traits",
    "Tuned",
    "Wrapper",
    "advise",
    "check",
    "compare",
    "data",
    "interval",
    "iterate",
    "keep_memory",
    "knob",
    "load",
    "load_exported",
    "make_method",
    "methods",
    "models",
    "paired_difference",
    "parse_delays",
    "pipeline",
    "projections",
    "report",
    "rules",
    "run",
    "solvers",
    "splits",
    "streams",
    "study",
    "sweep",
    "tune",
]
