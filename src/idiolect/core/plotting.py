"""The one set-up of all pictures: figure, colours, axes, file.

matplotlib is imported when a picture is drawn: `import idiolect` does not wait for it.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import write_atomic
from .knobs import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_MATPLOTLIB = "picture: matplotlib cannot be imported: pip install matplotlib"
INK = "#333333"
GREY = "#6e6e6e"
GRID = "#e4e4e4"
# of Okabe and Ito, which people with any colour vision can tell apart; its yellow is too light
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
# seven colours and four styles in turn: 28 lines that differ, and of two equal lines both are seen
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))


def can_plot() -> bool:
    """Whether matplotlib can be imported: it may be left out of an installation, or broken."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def new_figure(width: float, height: float, layout: Any = "constrained") -> Figure:
    """An empty figure of this size in inches, without a window."""
    if not can_plot():
        raise SettingError(NO_MATPLOTLIB)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Any, grid: str = GRID) -> None:
    """No box, and a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(color=grid, linewidth=0.6)


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write the picture in the format of its suffix; the same bytes each time."""
    kind = path.suffix.lstrip(".") or "png"
    metadata: Any = {"Software": None} if kind == "png" else None
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, dpi=dpi, format=kind, metadata=metadata)
        write_atomic(path, drawn.getvalue())
    except ValueError as error:  # an unknown format
        raise SettingError(f"path: {str(path)!r} cannot be written: {error}") from None
    return path
