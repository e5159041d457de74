"""Figure 6 of the FedDeper paper: convergence on CIFAR-10 with n = 100 clients."""

from __future__ import annotations

from pathlib import Path

from .cases import SIZES
from .convergence import page


def write(folder: Path, scale: str) -> list[Path]:
    """The runs are those of Table 1."""
    return page(6, "CIFAR-10", 100, folder, scale, SIZES[scale]).write(folder)
