"""Table 1 of the FedDeper paper, as published: test accuracy of the global model in per cent."""

from __future__ import annotations

from .cases import COLUMNS, HEARD, Case


def read_published() -> dict[tuple[Case, str], float]:
    """The table as data. No cell is garbled in the text.

    >>> read_published()[Case("CIFAR-10", 100, "CNN", 5), "Deper"]
    68.19
    """
    found: dict[tuple[Case, str], float] = {}
    for heard, text in zip(HEARD, (FIVE, TEN), strict=True):
        for line in text.strip().splitlines():
            method, *cells = line.split()
            for column, cell in zip(COLUMNS, cells, strict=True):
                found[Case(*column, heard), method] = float(cell)
    return found


# columns: (a) MNIST MLP, CNN; (b) MNIST MLP, CNN; (b) CIFAR-10 MLP, CNN
FIVE = """
Deper  94.92 95.84 91.88 96.13 48.84 68.19
Deper* 94.67 95.00 92.08 91.03 47.23 67.19
Avg    89.19 90.34 87.64 89.86 45.22 56.28
Prox   86.19 86.83 82.94 87.17 44.36 49.20
SCAF   94.52 94.20 93.05 69.93 49.63 51.58
"""
TEN = """
Deper  95.28 96.55 93.70 96.88 50.66 71.27
Deper* 95.23 95.11 93.42 96.58 51.05 71.27
Avg    89.86 93.73 87.88 91.14 49.95 60.84
Prox   88.77 91.11 84.02 87.36 48.53 54.80
SCAF   95.32 95.64 92.02 67.11 52.72 49.00
"""
