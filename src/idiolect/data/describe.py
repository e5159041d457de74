"""A federation in words, as a table for the terminal (who has what), or as a heat map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ..core.columns import Column, FittedTable, fitting
from ..core.knobs import SettingError
from ..core.plotting import new_figure, save_figure
from ..core.text import label, listed, plural, shown
from ..core.types import leaves
from .federation import SPLITS, Federation
from .prepare import Preparation

WIDTH = 100  # characters of a line of the text
LONGEST = 120  # characters of a name that are shown


def describe(federation: Federation) -> str:
    """What `print` shows: clients, samples, features, classes and what was done to a table.

    >>> from idiolect.data import Federation
    >>> print(Federation.from_arrays([[1.0], [2.0]], [0, 1], ["a", "b"], name="toy"))
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
    if federation.weights is not None:
        lines["weights"] = _describe_weights(federation)
    if federation.public is not None:
        origin = ", taken from the training data" if federation.published else ""
        lines["public"] = f"{federation.public_samples:,} inputs{origin}"
    if federation.preparation is not None:
        lines |= _describe_preparation(federation.preparation)
    title = (
        f"Federation {federation.name!r}: {plural(federation.clients, 'client')}, "
        f"{plural(sum(parts.values()), 'sample')} ({counts})"
    )
    texts = (f"  {name:<9} {text}" for name, text in lines.items())
    return "\n".join(shown(text, WIDTH) for text in (title, *texts))


def _describe_weights(federation: Federation) -> str:
    """How far weights differ, and what that costs: the effective number of samples (Kish 1965).

    >>> from idiolect.data import Federation
    >>> data = Federation.from_arrays([[1.0], [2.0]], [0, 1], ["a", "b"], weight=[1, 3])
    >>> _describe_weights(data)
    "'weight', 1 to 3 per sample; 2 samples say as much as 1.6 of one weight"
    """
    weights = federation.weights
    assert weights is not None
    effective = float(weights.sum().square() / weights.square().sum())
    name = shown(federation.weight_name or "weight", LONGEST)
    return (
        f"{name!r}, {float(weights.min()):.4g} to {float(weights.max()):.4g} per sample; "
        f"{len(weights):,} samples say as much as {effective:,.4g} of one weight"
    )


def _describe_preparation(preparation: Preparation) -> dict[str, str]:
    kinds = Counter(column.kind for column in preparation.columns)
    words = ", ".join(f"{count:,} of kind {kind}" for kind, count in kinds.items())
    lines = {
        "columns": f"{len(preparation.columns):,} ({words}), "
        f"giving {len(preparation.feature_names):,}"
    }
    lines["columns"] += " features"
    if set(kinds) - {"category"}:
        most_bytes = max(preparation.bytes_up, default=0) + preparation.bytes_down
        lines["scale"] = preparation.scale + (
            f" (at most {most_bytes:,} bytes per client)" if most_bytes else ""
        )
    if preparation.missing != "refuse":
        lines["missing"] = preparation.missing
    if preparation.dropped:
        lines["dropped"] = "; ".join(
            f"{name!r} ({why})" for name, why in preparation.dropped.items()
        )
    return lines


def table(federation: Federation, rows: int = 20, width: int = 140) -> FittedTable:
    """Training samples, clients by classes, of at most `rows` clients; the caption sums up all.

    Where a column per class has no room, the most frequent classes of each client are named.

    >>> from . import load
    >>> len(table(load("digits", clients=30), rows=10).rows)
    11
    """
    counts = federation.class_counts("train") if federation.classes else None
    columns = [Column("client", 0, _cell(lambda k: shown(federation.ids[k], LONGEST), "..."), True)]
    columns += [_sizes(federation, split) for split in SPLITS]
    places = _shown(federation.clients, rows)
    if counts is not None:
        class_count = (counts > 0).sum(1)
        columns.append(Column("classes", 2, _cell(lambda k: f"{int(class_count[k]):,}")))
        by_class = [*columns, *(_class_column(federation, counts, c) for c in _few(federation))]
        _, without_room = fitting(by_class, places, width)
        most = Column("most frequent classes", 0, _cell(_frequent(federation, counts)), True)
        fits = bool(_few(federation)) and not without_room
        columns = by_class if fits else [*columns, most]
    name = shown(federation.name, LONGEST)
    title = (
        f"{name}: {plural(federation.clients, 'client')}, {plural(federation.samples, 'sample')}"
    )
    return FittedTable(columns, places, title, _caption(federation), width=width)


def _few(federation: Federation) -> range:
    """The classes, where a column of each can be shown."""
    return range(federation.classes if federation.classes <= 16 else 0)


def _cell(text: Callable[[int], str], gap: str = "") -> Callable[[int | None], str]:
    """A cell of the client at a position; `gap` in the line that stands for those left out."""
    return lambda k: gap if k is None else text(k)


def _sizes(federation: Federation, split: str) -> Column:
    sizes = federation.sizes(split)
    return Column(split, 1 * (split != "train"), _cell(lambda k: f"{int(sizes[k]):,}"))


def _class_column(federation: Federation, counts: Tensor, c: int) -> Column:
    def cell(k: int) -> str:
        return f"{int(counts[k, c]):,}" if counts[k, c] else "·"

    return Column(_class_labels(federation)[c], 3, _cell(cell))


def _frequent(federation: Federation, counts: Tensor) -> Callable[[int], str]:
    """The five most frequent classes of a client, with their samples."""
    names = _class_labels(federation)

    def cell(k: int) -> str:
        own_counts = counts[k]
        most = [c for c in own_counts.argsort(descending=True)[:5].tolist() if own_counts[c]]
        return ", ".join(f"{names[c]} ({int(own_counts[c]):,})" for c in most)

    return cell


def picture(federation: Federation, path: str | Path) -> Path:
    """A heat map of training samples, clients by classes, as PNG, SVG or PDF.

    A regression, which has no classes, gives a bar chart of sizes.
    """
    path = Path(path) if Path(path).suffix else Path(f"{path}.png")
    height = min(9.0, max(3.5, 1.5 + 0.16 * federation.clients))
    figure = new_figure(min(12.0, 5.0 + 0.16 * federation.classes), height)
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
            names = [label(name, most=20) for name in _class_labels(federation)]
            steep = max(map(len, names)) > 4
            axes.set_xticks(range(federation.classes), names, rotation=90 if steep else 0)
    else:
        axes.barh(range(federation.clients), federation.sizes("train").numpy(), color="tab:blue")
        axes.invert_yaxis()
        axes.set_xlabel("training samples")
    if federation.clients <= 40:
        axes.set_yticks(
            range(federation.clients), [label(client_id, most=20) for client_id in federation.ids]
        )
    else:  # positions, not names
        from matplotlib.ticker import MaxNLocator

        axes.yaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    axes.set_ylabel("client")
    axes.set_title(f"{label(federation.name, most=60)}: who has what", loc="left")
    try:
        return save_figure(figure, path)
    except OSError as error:
        raise SettingError(f"path: {str(path)!r} cannot be written: {error}") from None


def _class_labels(federation: Federation) -> list[str]:
    """The user's label of each class; its number where it has none."""
    names = federation.class_names or range(federation.classes)
    return [shown(name, LONGEST) for name in names]


def _shown(clients: int, rows: int) -> list[int | None]:
    """All clients, or the first ones, a gap, and the last three."""
    if clients <= rows:
        return list(range(clients))
    return [*range(max(rows - 3, 1)), None, *range(clients - 3, clients)]


def _caption(federation: Federation) -> str:
    sizes = federation.sizes("train")
    median = int(sizes.to(torch.float64).median())
    text = (
        f"training samples per client: {int(sizes.min()):,} to {int(sizes.max()):,}, "
        f"median {median:,}"
    )
    if federation.classes:
        class_count = (federation.class_counts("train") > 0).sum(1)
        text += f"; classes per client: {int(class_count.min())} to {int(class_count.max())}"
        if tests := float(federation.class_totals("test").sum()):
            share = float(federation.majority_hits("test").sum()) / tests
            text += (
                "; always guessing a client's commonest class "
                f"is right for {share:.1%} of its test samples"
            )
    if federation.weights is not None:
        text += f"; weights: {_describe_weights(federation)}"
    return text
