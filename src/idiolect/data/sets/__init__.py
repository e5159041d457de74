"""The table of data sets. Each file holds a set, or several of one kind, and `@register`s them.

To add one: a file here, with a dataclass of settings and its `load`. If it is to be fetched, its
files with size and SHA-256 and the ways to get them go into registry.toml.
"""

from __future__ import annotations

import importlib
import pkgutil

from ...core.knobs import Knobs
from ...core.registry import Table
from ..entries import BUILT_IN, data_set

_files = [f".{module.name}" for module in pkgutil.iter_modules(__path__)]
for _module in (*_files, "..read.folders", "..read.tables"):
    importlib.import_module(_module, __name__)

DATASETS: Table[type[Knobs]] = Table(
    "data set", "idiolect.data", dict(sorted(BUILT_IN.items())), data_set
)
