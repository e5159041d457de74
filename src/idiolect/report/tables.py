"""Tables of results: one line per method, as many columns as the terminal has room for.

rich is imported where a table is made: `import idiolect` does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..core.columns import LONGEST, Column, FittedTable
from ..core.knobs import nearest
from ..core.text import plural, shown
from ..data.federation import Federation
from ..host.baselines import trivial
from ..host.lazy_federation import positive_of
from ..host.metrics import Metric, in_use
from ..host.scores import Scores, majority, summarise
from ..task.losses import Loss
from .captions import (
    DIVERGED,
    Row,
    caption,
    collapsed,
    diverged,
    figures_of,
    has_accuracy,
    known,
    label_of,
    main_figure,
    metrics_of,
)
from .format import count, goal, number, short_size, size
from .targets import Goals

MAJORITY = ("majority", "majority class")  # name and label of the trivial baseline of classes


def baseline_row(
    federation: Federation,
    loss: Loss,
    metrics: Sequence[Metric] = (),
    metric: str = "",
    positive: str = "",
) -> Row | None:
    """The trivial baseline as a row: each client gives one constant answer, its own.

    Its most frequent training class or, where targets are real numbers, the mean of its training
    targets. None where neither has a meaning. `metrics`, `metric` and `positive` are settings of
    the run.
    """
    about = positive_of(federation, positive)
    used = in_use(metrics, metric, federation.classes, loss.name, about)
    scores = trivial(federation, loss, used)
    if scores is None:
        return None
    if federation.classes:
        return untrained_row(*MAJORITY, scores)
    return untrained_row("mean", "training mean", scores)


def mean_row(rows: Sequence[Row]) -> Row:
    """The mean of untrained rows of the same baseline, on the data of several repeats."""
    first = rows[0]

    def mean(name: str) -> dict[str, Any]:
        each = [figures_of(row, name) for row in rows]
        return {
            part: None if value is None else sum(one[part] for one in each) / len(each)
            for part, value in each[0].items()
        }

    figures = {name: mean(name) for name in ("accuracy", "loss")}
    if metrics := metrics_of(rows):
        figures["metrics"] = {name: mean(name) for name in metrics}
    return first | figures


def majority_row(federation: Federation) -> Row:
    """The trivial baseline of classes as a row, with accuracy and loss."""
    return untrained_row(*MAJORITY, majority(federation))


def untrained_row(method: str, label: str, counted: Scores, seconds: float = 0.0) -> Row:
    """A baseline as a row: it has figures, but no rounds, no seeds and no messages."""
    scores = summarise(counted)
    metrics = list(counted.metrics)
    figures = {
        name: {
            "mean": scores[name],
            "variance": scores[f"{name}_variance"],
            "worst10": scores[f"{name}_worst10"],
            "ci95": None,
        }
        for name in ("accuracy", "loss", *metrics)
    }
    more = {"metrics": {name: figures[name] for name in metrics}} if metrics else {}
    return {
        "method": method,
        "label": label,
        "rounds": 0,
        "seeds": [],
        **{name: figures[name] for name in ("accuracy", "loss")},
        "bytes": {"up": 0, "down": 0},
        "values": {"up": 0, "down": 0},
        "gradients_per_client": 0,
        "seconds": seconds,
        "rejected": 0,
        **more,
    }


# -- columns ------------------------------------------------------------------------------------
def _figure(what: str, which: str) -> Callable[[Row], str]:
    return lambda r: "★" if collapsed(r) else number(figures_of(r, what).get(which))


def _main(what: str) -> Callable[[Row], str]:
    """The figure that the rows are about; a word where a run has stopped without one."""
    return lambda r: f"★ {DIVERGED}" if diverged(r) else _figure(what, "mean")(r)


def _held_out(what: str) -> Callable[[Row], str]:
    """That figure of the clients that took no part in training."""

    def cell(r: Row) -> str:
        figures = r.get("held_out", {})
        if collapsed(r) or (figures and not known(figures["loss"]["mean"])):
            return "★"
        return number(figures.get(what, {}).get("mean"))

    return cell


def _malicious(r: Row) -> str:
    return str(r["malicious"]["clients"] if "malicious" in r else 0) if r["seeds"] else "–"


MALICIOUS = Column("malicious", 1, _malicious)
AFTER_GOALS = (
    Column("sent up", 5, lambda r: size(r["bytes"]["up"])),
    Column("sent down", 4, lambda r: size(r["bytes"]["down"])),
    Column("gradients", 2, lambda r: count(r["gradients_per_client"])),
    Column("seconds", 9, lambda r: f"{r['seconds']:.1f}"),
)
METHOD_WIDTH = 14  # kept for the names of the methods; longer ones are folded


def _before_goals(rows: Sequence[Row]) -> list[Column]:
    """The figure that the rows are about, with interval and fairness; then the other figures."""
    main = main_figure(rows)
    columns = [
        Column(main, 0, _main(main)),
        Column("± 95 %", 3, _figure(main, "ci95")),
        *(Column(m, 1.5, _figure(m, "mean")) for m in metrics_of(rows) if m != main),
        Column("variance", 6, _figure(main, "variance")),
        Column("worst 10 %", 7 if main == "accuracy" else 5.5, _figure(main, "worst10")),
    ]
    if any("held_out" in r for r in rows):
        columns.append(Column("held out", 1, _held_out(main)))
    if main not in ("accuracy", "loss") and has_accuracy(rows):
        columns.append(Column("accuracy", 2.5, _figure("accuracy", "mean")))
    if main != "loss":
        columns.append(Column("loss", 8, _figure("loss", "mean")))
    return columns


def _goal_columns(goals: Goals) -> list[Column]:
    """The papers' two columns, where they are asked for."""
    in_bytes = goals.count == "bytes"
    show = size if in_bytes else count
    columns = []
    if goals.budget:
        budget = short_size(goals.budget) if in_bytes else plural(goals.budget, "value")
        key = goals.key("at_budget")
        columns.append(Column(f"{goals.metric} at {budget}", 0, lambda r: goal(r.get(key), number)))
    if goals.targeted:
        figure = "" if goals.metric == "accuracy" else f"{goals.metric} "
        heading = f"{goals.count} to {figure}{goals.target:g}"
        target_key = goals.key("to_target")
        columns.append(Column(heading, 0, lambda r: goal(r.get(target_key), show)))
    return columns


# -- tables -------------------------------------------------------------------------------------
def results_table(
    rows: list[Row],
    title: str | None = None,
    width: int = 0,
    goals: Goals | None = None,
    also: Sequence[str] = (),
) -> FittedTable:
    """One line per method: accuracy with its interval, fairness, loss, bytes and compute.

    For a regression, loss and metrics in place of accuracy. A narrow terminal shows fewer columns,
    and says which are left out. `also`: further columns, see `report.also`.
    """
    goals = goals or Goals()
    malicious = [MALICIOUS] if any("malicious" in r for r in rows) else []
    columns = [
        Column("method", 0, lambda r: shown(label_of(r), LONGEST), words=True, least=METHOD_WIDTH),
        *_before_goals(rows),
        *malicious,
        *_goal_columns(goals),
        *also_columns(also, rows),
        *AFTER_GOALS,
    ]
    heading = shown(title, LONGEST) if title else ""
    notes = [caption(rows, goals), *map(shown, also_notes(also, rows))]
    text = "\n".join(filter(None, notes))
    return FittedTable(columns, rows, heading, text, width=width)


# -- The table of `idiolect sweep`: a row per setting, by figures that a setting may be chosen by --
CHOOSE = (
    "choose a setting by these figures; those on test data are shown on request (--show-test; in "
    "Python show_test=True)"
)
BIASED = "a setting chosen by these figures is biased: it looks better than it will be on new data"
INSTEAD = "; choose by validation figures, or by `idiolect tune`"
NO_VALIDATION = "no validation samples (the option valid of the data): figures on test data"


def settings_table(
    rows: Sequence[Row],
    title: str | None = None,
    width: int = 0,
    show_test: bool = False,
    goals: Goals | None = None,
    also: Sequence[str] = (),
) -> FittedTable:
    """One line per setting, on validation data; on test data on request.

    Where no row has validation figures, those on test data are shown; the caption says so. `goals`
    and `also` are reached on test data.
    """
    validated = [r for r in rows if "valid" in r and known(r["valid"]["loss"]["mean"])]
    if validated and not show_test:
        table = results_table(list(map(on_validation_data, rows)), title, width)
        without = [label_of(r) for r in rows if r not in validated and not collapsed(r)]
        notes = [CHOOSE, *([f"no validation samples: {', '.join(without)}"] if without else [])]
    else:
        table = results_table(list(rows), title, width, goals, also)
        notes = [f"{BIASED}{INSTEAD}"] if validated else [f"{NO_VALIDATION}; {BIASED}"]
    return replace(table, caption="\n".join([table.caption, *map(shown, notes)]))


def on_validation_data(row: Row) -> Row:
    """A summary whose figures are those on validation data; what else is on test data is left out.

    >>> figures = {"accuracy": {"mean": 0.8}, "loss": {"mean": 0.5}}
    >>> on_validation_data({**figures, "valid": {"accuracy": {"mean": 0.7}, "loss": {"mean": 0.6}}})
    {'valid': ..., 'measured_on': 'validation', 'accuracy': {'mean': 0.7}, 'loss': {'mean': 0.6}}
    """
    on_test_data = ("accuracy", "loss", "metrics", "held_out", "best_by_validation")
    others = {name: value for name, value in row.items() if name not in on_test_data}
    valid = row["valid"]
    view = others | {"measured_on": "validation"}
    view |= {name: valid[name] for name in ("accuracy", "loss")}
    if metrics := row.get("metrics"):
        # for how many clients a metric is not defined is stored of test data alone
        view["metrics"] = {
            name: facts | valid[name] | {"clients_undefined": 0} for name, facts in metrics.items()
        }
    return view


# -- Columns that a table of results has on request alone, and the notes that they need --

BEST_AFTER_20 = "best-after-20"
COLLABORATION = "collaboration"
ALSO = {
    BEST_AFTER_20: "the best round from the 20th on, chosen on test data, with its variance",
    COLLABORATION: "correlation over clients of their figures with those of Local (compare)",
}


def read_also(value: str | Iterable[str]) -> tuple[str, ...]:
    """The columns that were asked for.

    >>> read_also("best-after-20, collaboration"), read_also("")
    (('best-after-20', 'collaboration'), ())
    """
    return read_names(value, ALSO, "also")


def read_names(value: str | Iterable[str], known: Iterable[str], field: str) -> tuple[str, ...]:
    """Names with commas, each of them known."""
    parts = value.split(",") if isinstance(value, str) else value
    names = tuple(name.strip() for name in parts if name.strip())
    for name in names:
        if name not in known:
            raise nearest(name, known, field)
    return names


def also_columns(names: Sequence[str], rows: Sequence[Row]) -> list[Column]:
    """The columns of these names."""
    columns: list[Column] = []
    if BEST_AFTER_20 in names:
        figure = "accuracy" if any(known(_best(r).get("accuracy")) for r in rows) else "loss"
        spread = "variance" if figure == "accuracy" else "loss_variance"
        columns += [
            Column("best on test", 0, lambda r: number(_best(r).get(figure))),
            Column("round", 0, lambda r: _rounds(_best(r).get("rounds"))),
            Column("its variance", 0, lambda r: number(_best(r).get(spread))),
        ]
    if COLLABORATION in names:
        columns.append(Column("collaboration", 0, _collaboration))
    return columns


def also_notes(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """What these columns are."""
    notes = []
    if BEST_AFTER_20 in names:
        note = next((_best(r)["note"] for r in rows if _best(r)), "")
        notes.append(f"best on test: {note}; its variance is that of the same round")
    if COLLABORATION in names:
        fairness = next((r["collaboration_fairness"] for r in rows if _fairness(r)), None)
        what = (
            f"Pearson's correlation over clients of their {fairness['figure']} with that of "
            f"{fairness['alone']}; – where one of the two is the same for all clients in some seed"
            if fairness
            else "it needs a row of Local in the comparison"
        )
        notes.append(f"collaboration (lp-proj, C.7.3): {what}")
    return notes


def _best(row: Row) -> Row:
    return row.get("best_after_20") or {}


def _fairness(row: Row) -> Row:
    return row.get("collaboration_fairness") or {}


def _rounds(rounds: Sequence[int | None] | None) -> str:
    return ", ".join("–" if r is None else str(r) for r in rounds) if rounds else "–"


def _collaboration(row: Row) -> str:
    fairness = _fairness(row)
    if not known(fairness.get("mean")):
        return "–"
    half = fairness.get("ci95")
    return number(fairness["mean"]) + (f" ± {number(half)}" if known(half) else "")


# -- The table of `idiolect splits`: a row per part that could be personal --
EXPLAINED = (
    "train, valid: loss pooled over samples once the private part is fine-tuned (none: the shared "
    "model as it is; all: the whole model of each client); accuracy: on validation data. "
    "‖F‖: the gradient left in the shared part, mean over clients; ‖mean F‖: of their mean. "
    "±: standard error of the difference to the best, paired over clients; * within it. "
    "per round: bytes, both directions"
)


def splits_table(
    rows: Sequence[dict[str, Any]],
    choice: str,
    reasons: Sequence[str],
    title: str,
    width: int = 0,
) -> FittedTable:
    """The candidates, the recommended one marked, and why."""
    columns = [
        Column("private part", 0, lambda r: _split_name(r, choice), words=True),
        Column("private", 1.5, lambda r: count(r["private"])),
        Column("shared", 2, lambda r: count(r["shared"])),
        Column("‖F‖", 1, lambda r: _norm(r["gradient_left"]) if r["shared"] else "–"),
        Column("‖mean F‖", 5, lambda r: _norm(r["gradient_left_of_mean"]) if r["shared"] else "–"),
        Column("train", 3, lambda r: number(r["train_loss"])),
        Column("valid", 0, lambda r: number(r["valid_loss"]) + _mark(r)),
        Column("±", 4, lambda r: _norm(r["gap_error"]) if r["gap_error"] else "–"),
        Column("per round", 2.5, lambda r: size(r["bytes_per_round"])),
    ]
    if any(r["valid_accuracy"] == r["valid_accuracy"] for r in rows):
        columns.insert(-1, Column("accuracy", 1.2, lambda r: number(r["valid_accuracy"])))
    caption = "\n".join([EXPLAINED, *(f"→ {shown(reason, 1000)}" for reason in reasons)])
    return FittedTable(columns, rows, shown(title, 400), caption, width=width)


def _split_name(row: dict[str, Any], choice: str) -> str:
    also = f" = {', '.join(row['also'])}" if row["also"] else ""
    mark = "→ " if row["part"] == choice else ""
    return mark + shown(row["name"] + also)


def _mark(row: dict[str, Any]) -> str:
    return " *" if row["tied"] and row["shared"] else "  "


def _norm(value: float) -> str:
    return f"{value:.3g}"
