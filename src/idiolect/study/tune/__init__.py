"""Which settings? A search on validation data, and a final run on seeds and data it never saw.

withheld     a federation without its test data: all that a search gets
criterion    what settings are chosen by, and how uncertain it is
search       settings that are made already, each with every seed of the search
grids        the grids of papers
space        ranges and choices, given or derived from a method's fields
study        trials in a space, by Optuna
tune         all of it: contenders, how they are searched, the final run
"""

from .search import Search, search
from .tune import tune, tune_plans
from .tuned import Tuned

__all__ = ["Search", "Tuned", "search", "tune", "tune_plans"]
