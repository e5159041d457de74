"""Many runs as one job: a grid of settings, several seeds, worker processes, one table.

axes      what is varied: names with values, and what they are settings of
trial     one run, with one seed
rows      the results of trials as a table
sweep     all of them
progress  how it goes, on stderr
stored    one of the past
"""

from .rows import Sweep, merged
from .sweep import sweep, sweep_plans, sweep_settings
from .trial import Setting, Stock

__all__ = [
    "Setting",
    "Stock",
    "Sweep",
    "merged",
    "sweep",
    "sweep_plans",
    "sweep_settings",
]
