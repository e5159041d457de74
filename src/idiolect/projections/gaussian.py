"""The dense Gaussian projection, the lp-proj paper's default, for small d.

And the same with orthonormal rows (its Appendix C.7.4).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.knobs import SettingError
from . import dense
from .spec import Spec

LIMIT = 2 << 30  # bytes of a dense P; beyond it another kind costs a thousandth of that


class Gaussian:
    """Rows of i.i.d. N(0, 1) entries, each scaled to unit length (lp-proj, section 3).

    Costs dim * d numbers, and as many multiplications per product with one vector.
    """

    def __init__(
        self,
        spec: Spec,
        starts: tuple[int, ...],
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.dim = spec.dim
        d = starts[-1]
        size = spec.dim * d * dtype.itemsize
        if size > LIMIT:
            raise SettingError(
                f"projection: a dense {spec.kind!r} P of {spec.dim} x {d} takes "
                f"{size / 2**30:.1f} GiB, more than {LIMIT / 2**30:g}; use 'sparse', "
                "'contiguous', 'block' or 'layers', which cost a few passes over the model"
            )
        made = dense.rows(spec.dim, d, seed, "projection", dtype)
        self.rows = (dense.orthonormal(made) if spec.kind == "orthogonal" else made).to(device)

    def down(self, x: Tensor) -> Tensor:
        return dense.down(self.rows, x)

    def up(self, u: Tensor) -> Tensor:
        return dense.up(self.rows, u)

    def add_up(self, g: Tensor, u: Tensor) -> Tensor:
        return dense.add_up(g, self.rows, u)

    def memory(self) -> int:
        return self.rows.numel() * self.rows.element_size()
