"""Figure 4 of the FedDeper paper: convergence on MNIST with n = 10 clients."""

from __future__ import annotations

from pathlib import Path

from .cases import SIZES
from .convergence import page


def write(folder: Path, scale: str) -> list[Path]:
    """The runs are those of Table 1."""
    return page(4, "MNIST", 10, folder, scale, SIZES[scale]).write(folder)
