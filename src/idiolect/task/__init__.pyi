"""The public names of tasks and the modules that define them."""

from .batches import Batch
from .layout import Layout
from .losses import Loss, logits, shaped_as
from .task import Numerics, Task

__all__ = ["Batch", "Layout", "Loss", "Numerics", "Task", "logits", "shaped_as"]
