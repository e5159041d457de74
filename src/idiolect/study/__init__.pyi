"""The public names of studies and the modules that define them."""

from .advise.estimate import MANY_CLIENTS, Compared, HeldOutSamples, alternative, decide
from .advise.training import Holdout
from .jobs import end_with_parent, finish, job_progress
from .many import Recorder, Stock, mean_over_seeds, run_many
from .search import search_plans
from .space import grid_of
from .splits import SplitCandidate

__all__ = [
    "MANY_CLIENTS",
    "Compared",
    "HeldOutSamples",
    "Holdout",
    "Recorder",
    "SplitCandidate",
    "Stock",
    "alternative",
    "decide",
    "end_with_parent",
    "finish",
    "grid_of",
    "job_progress",
    "mean_over_seeds",
    "run_many",
    "search_plans",
]
