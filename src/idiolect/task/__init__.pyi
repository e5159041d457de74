"""The public names of tasks and the modules that define them."""

from .batches import Batch
from .kernels import Stacked
from .kernels.graph import Layer
from .layout import Layout
from .losses import Loss, logits, shaped_as
from .task import Numerics, Task
from .term import Pass, Term

__all__ = [
    "Batch",
    "Layer",
    "Layout",
    "Loss",
    "Numerics",
    "Pass",
    "Stacked",
    "Task",
    "Term",
    "logits",
    "shaped_as",
]
