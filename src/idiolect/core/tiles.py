"""Products of which a row has the same bits, whatever rows come with it.

BLAS takes the rows of a matrix some at a time. Rows left over go through other kernels, which add
in another order: their bits would depend on who else trains, on chunks and on hosts. So rows are
given to it in whole tiles, the last one filled up. Tiles of 4 rows were seen on Intel processors,
of 4 and 12 on AMD's.
"""

from __future__ import annotations

TILE = 12


def tiles(rows: int) -> list[slice]:
    """All whole tiles, and what is left: that alone is filled up, so that little is copied.

    >>> tiles(30), tiles(24), tiles(5)
    ([slice(0, 24, None), slice(24, 30, None)], [slice(0, 24, None)], [slice(0, 5, None)])
    """
    whole = rows - rows % TILE
    return [part for part in (slice(0, whole), slice(whole, rows)) if part.start < part.stop]
