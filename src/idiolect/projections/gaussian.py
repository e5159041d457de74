"""The dense Gaussian projection (the paper's default, for small d), and the same with orthonormal rows (its Appendix C.7.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.knobs import SettingError
from .dense import orthonormal, rows
from .spec import Spec

LIMIT = 2 << 30  # bytes of a dense P; beyond it another kind costs a thousandth of that


class Gaussian:
    """Rows of i.i.d. N(0, 1) entries, each scaled to unit length (lp-proj, section 3). Costs dim * d numbers and products."""

    def __init__(
        self,
        spec: Spec,
        starts: tuple[int, ...],
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.dim, d = spec.dim, starts[-1]
        size = spec.dim * d * dtype.itemsize
        if size > LIMIT:
            raise SettingError(
                f"projection: a dense {spec.kind!r} P of {spec.dim} x {d} takes {size / 2**30:.1f} GiB, more than {LIMIT / 2**30:g}; "
                "use 'sparse', 'contiguous', 'block' or 'layers', which cost a few passes over the model"
            )
        made = rows(spec.dim, d, seed, "projection", dtype)
        self.rows = (orthonormal(made) if spec.kind == "orthogonal" else made).to(device)

    def down(self, x: Tensor) -> Tensor:
        return (self.rows @ x.T).T  # a third faster than x @ rows.T, for few rows

    def up(self, u: Tensor) -> Tensor:
        return u @ self.rows

    def add_up(self, g: Tensor, u: Tensor) -> Tensor:
        return g.addmm_(u, self.rows)

    def memory(self) -> int:
        return self.rows.numel() * self.rows.element_size()
