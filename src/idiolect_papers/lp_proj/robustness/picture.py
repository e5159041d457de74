"""robustness.png: accuracy over the share of malicious clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from idiolect.core.knobs import SettingError

from .grid import ATTACKS, percent
from .tables import Row, Tables

# Colours that the colour-blind can tell apart (Okabe and Ito); dashes for the global models.
STYLES = {
    "Local": ("#000000", ":", "."),
    "Ditto": ("#E69F00", "-", "s"),
    "Global+Mean": ("#999999", "--", "v"),
    "Global+Median": ("#56B4E9", "--", "^"),
    "Global+Krum": ("#CC79A7", "--", "D"),
    "RSA": ("#009E73", "-", "P"),
    "lp-proj-1": ("#D55E00", "-", "o"),
    "lp-proj-2": ("#0072B2", "-", "X"),
}


def need_matplotlib() -> tuple[Any, Any]:
    """Matplotlib's Figure and canvas, or an error that says how to get them."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingError("pictures need matplotlib: pip install 'idiolect[plot]'") from None
    return Figure, FigureCanvasAgg


def picture(tables: Tables, path: Path) -> Path:
    """Small multiples, federations by attacks, one line per method.

    A star at the foot marks a collapse.
    """
    figure_class, canvas_class = need_matplotlib()
    federations = list(dict.fromkeys(f for f, _, _ in tables.rows))
    attacks = list(dict.fromkeys(a for _, a, _ in tables.rows))
    methods = list(dict.fromkeys(m for _, _, m in tables.rows))
    width = 1.2 + 2.7 * len(attacks)
    height = 1.1 + 2.5 * len(federations)
    figure = figure_class(figsize=(width, height), layout="constrained")
    canvas_class(figure)
    grid = figure.subplots(len(federations), len(attacks), sharey=True, squeeze=False)
    for i, federation in enumerate(federations):
        grid[i][0].set_ylabel(f"{federation}\naccuracy of benign clients")
        for j, attack in enumerate(attacks):
            shares = (0.0, *ATTACKS[attack].shares)
            here = [m for m in methods if (federation, attack, m) in tables.rows]
            for n, method in enumerate(here):
                shift = 0.095 * (
                    n - (len(methods) - 1) / 2
                )  # stars of several methods side by side
                _line(grid[i][j], tables.rows[federation, attack, method], shares, method, shift)
            _frame(grid[i][j], shares)
    for j, attack in enumerate(attacks):
        grid[0][j].set_title(attack, fontsize=11)
        grid[-1][j].set_xlabel("malicious clients")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=130)
    return path


def _line(axes: Any, row: Row, shares: tuple[float, ...], method: str, shift: float) -> None:
    colour, dash, mark = STYLES[method]
    axes.plot(
        range(len(shares)),
        [float("nan") if row[s].collapsed else row[s].accuracy for s in shares],
        color=colour,
        linestyle=dash,
        marker=mark,
        markersize=4,
        linewidth=3.0 if method == "lp-proj-1" else 1.3,  # lp-proj-2 often lies on lp-proj-1
        zorder=3 if method == "Local" else 2,  # and lp-proj-1 on Local
        label=method,
    )
    stars = [x + shift for x, s in enumerate(shares) if row[s].collapsed]
    feet = [-0.06] * len(stars)
    axes.plot(stars, feet, color=colour, linestyle="", marker="*", markersize=8)


def _frame(axes: Any, shares: tuple[float, ...]) -> None:
    axes.set_xticks(range(len(shares)), [percent(s) if s else "clean" for s in shares])
    axes.set_xlim(-0.4, len(shares) - 0.6)
    axes.set_ylim(-0.12, 1)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
