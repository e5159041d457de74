"""Which projection: everything both sides must agree on beside the seed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    kind: str
    dim: int
    blocks: int = 0  # block, layers: how many (in each layer); 0 = one per row
    reuse: bool = False  # block: one block for all
    dims: str = ""  # layers: rows of each layer, "20,5,..."; "" = shared out by size
    per_column: int = 1  # sparse: entries in a column


def shares(total: int, sizes: list[int]) -> list[int]:
    """`total` shared out in proportion to `sizes` (largest remainders).

    At least 1 each where there is enough.

    >>> shares(10, [600, 10])
    [9, 1]
    """
    least = 1 if total >= len(sizes) else 0
    rest = total - least * len(sizes)
    weight = sum(sizes)
    exact = [rest * s / weight for s in sizes]
    out = [least + int(e) for e in exact]
    for i in sorted(range(len(sizes)), key=lambda i: int(exact[i]) - exact[i])[: total - sum(out)]:
        out[i] += 1
    return out
