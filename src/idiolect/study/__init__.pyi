"""The public names of studies and the modules that define them."""

from .grids import GridPoint, grid_of
from .many import end_with_parent, finish
from .progress import job_progress
from .results import mean_over_seeds
from .search import search_settings
from .splits import SplitCandidate
from .sweep import Setting, Stock, sweep_settings

__all__ = [
    "GridPoint",
    "Setting",
    "SplitCandidate",
    "Stock",
    "end_with_parent",
    "finish",
    "grid_of",
    "job_progress",
    "mean_over_seeds",
    "search_settings",
    "sweep_settings",
]
