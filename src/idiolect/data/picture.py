"""Who has what: a federation as a table for the terminal or as a heat map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..core.knobs import SettingError
from ..core.text import label, shown
from .federation import SPLITS, Federation

if TYPE_CHECKING:
    from rich.table import Table

LONGEST = 120  # characters of a name that are shown


def table(federation: Federation, rows: int = 20) -> Table:
    """Training samples, clients by classes, of at most `rows` clients; the caption sums up all.

    >>> from . import load
    >>> table(load("digits", clients=30), rows=10).row_count
    11
    """
    from rich.table import Table  # `import idiolect` does not wait for it
    from rich.text import Text

    sizes = {s: federation.sizes(s) for s in SPLITS}
    counts = federation.class_counts("train") if federation.classes else None
    wide = counts is not None and federation.classes <= 16
    name = shown(federation.name, LONGEST)
    title = f"{name}: {federation.clients} clients, {federation.samples} samples"
    out = Table(
        title=Text(title, style="table.title"),
        caption=_caption(federation),
    )
    for column in (
        "client",
        "train",
        "valid",
        "test",
        *(["classes"] if counts is not None else []),
    ):
        out.add_column(column, justify="left" if column == "client" else "right")
    if counts is not None:
        for heading in (
            [str(c) for c in range(federation.classes)] if wide else ["most frequent classes"]
        ):
            out.add_column(heading, justify="right" if wide else "left")
    for k in _shown(federation.clients, rows):
        if k is None:
            out.add_row("...", *[""] * (len(out.columns) - 1))
            continue
        cells = [Text(shown(federation.ids[k], LONGEST))]
        cells += [Text(str(int(sizes[s][k]))) for s in SPLITS]
        if counts is not None:
            held = counts[k]
            cells.append(Text(str(int((held > 0).sum()))))
            if wide:
                cells += [Text(str(n)) if n else Text("·", style="dim") for n in held.tolist()]
            else:
                most = [c for c in held.argsort(descending=True)[:5].tolist() if held[c]]
                cells.append(Text(", ".join(f"{c} ({held[c]})" for c in most)))
        out.add_row(*cells)
    return out


def picture(federation: Federation, path: str | Path) -> Path:
    """A heat map of training samples, clients by classes, as PNG, SVG or PDF.

    A regression, which has no classes, gives a bar chart of sizes.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise SettingError("pictures need matplotlib: pip install 'idiolect[plot]'") from None
    path = Path(path) if Path(path).suffix else Path(f"{path}.png")
    height = min(9.0, max(3.5, 1.5 + 0.16 * federation.clients))
    figure = Figure(
        figsize=(min(12.0, 5.0 + 0.16 * federation.classes), height), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if federation.classes:
        image = axes.imshow(
            federation.class_counts("train").numpy(),
            aspect="auto",
            cmap="Blues",
            interpolation="nearest",
            vmin=0,
        )
        figure.colorbar(image, label="training samples", ax=axes)
        axes.set_xlabel("class")
        if federation.classes <= 20:
            axes.set_xticks(range(federation.classes))
    else:
        axes.barh(range(federation.clients), federation.sizes("train").numpy(), color="tab:blue")
        axes.invert_yaxis()
        axes.set_xlabel("training samples")
    if federation.clients <= 40:
        axes.set_yticks(range(federation.clients), [label(id, most=20) for id in federation.ids])
    else:  # positions, not names
        axes.yaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    axes.set_ylabel("client")
    axes.set_title(f"{label(federation.name, most=60)}: who has what", loc="left")
    try:
        figure.savefig(path, dpi=150)
    except (ValueError, OSError) as e:
        raise SettingError(f"path: {str(path)!r} cannot be written: {e}") from None
    return path


def _shown(clients: int, rows: int) -> list[int | None]:
    """All clients, or the first ones, a gap, and the last three."""
    if clients <= rows:
        return list(range(clients))
    return [*range(max(rows - 3, 1)), None, *range(clients - 3, clients)]


def _caption(federation: Federation) -> str:
    sizes = federation.sizes("train")
    median = int(sizes.to(torch.float64).median())
    text = f"training samples per client: {int(sizes.min())} to {int(sizes.max())}, median {median}"
    if federation.classes:
        held = (federation.class_counts("train") > 0).sum(1)
        text += f"; classes per client: {int(held.min())} to {int(held.max())}"
        if tests := int(federation.class_counts("test").sum()):
            share = int(federation.majority_hits("test").sum()) / tests
            text += (
                "; always guessing a client's commonest class "
                f"is right for {share:.1%} of its test samples"
            )
    return text
