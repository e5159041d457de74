"""A federation in a few lines."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch

from ..core.text import listed, shown
from ..core.types import leaves
from .splits import SPLITS

if TYPE_CHECKING:
    from .federation import Federation
    from .preparation import Preparation

WIDTH = 100


def describe(federation: Federation) -> str:
    """What `repr` shows: clients, samples, features, classes and what was done to a table.

    >>> from idiolect.data import Federation
    >>> Federation.from_arrays([[1.0], [2.0]], [0, 1], ["a", "b"], name="toy")
    Federation 'toy': 2 clients, 2 samples (2 train, 0 valid, 0 test)
      clients   'a', 'b'
      samples   1 per client
      features  1
      classes   2
    """
    parts = {split: int(federation.sizes(split).sum()) for split in SPLITS}
    per_client = torch.stack([federation.sizes(split) for split in SPLITS]).sum(0)
    low, high = int(per_client.min()), int(per_client.max())
    spread = f"{low:,} per client" if low == high else f"{low:,} to {high:,} per client"
    counts = ", ".join(f"{count:,} {split}" for split, count in parts.items())
    shapes = ["x".join(f"{n:,}" for n in t.shape[1:]) or "1" for t in leaves(federation.inputs)]
    lines = {
        "clients": listed(federation.ids),
        "samples": spread,
        "features": " + ".join(shapes),
    }
    if federation.classes:
        names = f" ({listed(federation.class_names)})" if federation.class_names else ""
        lines["classes"] = f"{federation.classes:,}{names}"
    else:
        lines["target"] = "real values"
    if federation.preparation is not None:
        lines |= _prepared(federation.preparation)
    title = (
        f"Federation {federation.name!r}: {federation.clients:,} clients, "
        f"{sum(parts.values()):,} samples ({counts})"
    )
    return "\n".join([shown(title, WIDTH), *(_line(*item) for item in lines.items())])


def _line(name: str, text: str) -> str:
    return shown(f"  {name:<9} {text}", WIDTH)


def _prepared(made: Preparation) -> dict[str, str]:
    kinds = Counter(column.kind for column in made.columns)
    words = ", ".join(f"{count:,} of kind {kind}" for kind, count in kinds.items())
    lines = {"columns": f"{len(made.columns):,} ({words}), giving {len(made.feature_names):,}"}
    lines["columns"] += " features"
    if set(kinds) - {"category"}:
        sent = max(made.bytes_up, default=0) + made.bytes_down
        lines["scale"] = made.scale + (f" (at most {sent:,} bytes per client)" if sent else "")
    if made.missing != "refuse":
        lines["missing"] = made.missing
    if made.dropped:
        lines["dropped"] = "; ".join(f"{name!r} ({why})" for name, why in made.dropped.items())
    return lines
