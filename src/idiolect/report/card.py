"""The model card of a run, in Markdown: what was trained on what, and for whom it works.

Everything in it is read from the record of the run; nothing is trained or evaluated.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.text import plural, shown
from ..host.scores import wilson
from .captions import class_note, known
from .clients import ClientsView, clients_view
from .format import count, number, signed, size
from .subgroup_tables import SubgroupsView, interval_text, subgroups_view
from .subgroups import PERSONAL, WORSE
from .verdicts import CANNOT_TELL, GAINS, LOSES, ClientGain

MOST_CLIENTS = 50  # rows of the table of clients; of more, those that are served worst
FEW_SAMPLES = 30  # test samples below which a client's figures say little
Cells = Sequence[Sequence[object]]


@dataclass(frozen=True)
class ClientVerdict:
    """A client's accuracy with its interval, against its own constant answer."""

    client: str
    samples: int
    accuracy: float
    low: float
    high: float
    constant: float  # what its majority class reaches; NaN where that is unknown

    @property
    def verdict(self) -> str:
        """Whether the model serves it better than its majority class does."""
        if math.isnan(self.constant) or not self.samples:
            return "unknown"
        if self.low > self.constant:
            return "better"
        return "worse" if self.high < self.constant else "cannot tell"


def model_card(result: Any, local: Any = None, defaults: Mapping[str, Any] | None = None) -> str:
    """The card of a result; `local` is a result of Local on the same data.

    `defaults` are run settings that need no mention.

    >>> import idiolect as il
    >>> import torch
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> result = il.run(il.FedAvg(), il.Task(torch.nn.Linear(60, 10)), federation, rounds=2)
    >>> model_card(result).splitlines()[0]
    '# Model card: fedavg on synthetic(0, 0)'
    """
    record = result.record
    summary = record.summary()
    view = clients_view(result, local)
    sections = [
        _heading(record, summary),
        _section("Data", _data(record)),
        _section("Model and method", _model(record, summary, defaults or {})),
        _section("Figures", _figures(record, summary)),
        _section(
            "For whom it works, and for whom not",
            "\n\n".join([_clients(record, view, local), *_subgroups(subgroups_view(result))]),
        ),
        _section("Limits", _limits(record, summary, local)),
        _section("What it took", _cost(record, summary)),
        _section("Software", _software(record)),
    ]
    return "\n\n".join(sections) + "\n"


def _heading(record: Any, summary: dict[str, Any]) -> str:
    when = str(record.environment.get("when", ""))[:10] or "unknown"
    seeds = ", ".join(map(str, summary["seeds"]))
    return (
        f"# Model card: {_text(record.label)} on {_text(record.data.get('name', ''))}\n\n"
        f"Trained on {_text(when)}; seeds {seeds}; written by idiolect from the record of the run. "
        "Nothing was trained or evaluated for this card."
    )


# -- what was trained on what ----------------------------------------------------------------------
def _data(record: Any) -> str:
    data = record.data
    rows = record.seeds[0].clients
    samples = {
        split: sum(int(row[f"{split}_samples"]) for row in rows)
        for split in ("train", "valid", "test")
    }
    options = record.origin.get("data_options", {}) if record.origin else {}
    labels = data.get("class_names") or range(data.get("classes") or 0)
    facts: list[tuple[str, object]] = [
        ("name", data.get("name", "")),
        ("clients", f"{len(rows):,}"),
        ("samples", ", ".join(f"{n:,} {split}" for split, n in samples.items())),
        ("target", options.get("target", "")),
        ("client column", options.get("client", "")),
        ("weighted by", data.get("weight", "")),
        ("classes", _listed(labels) if labels else "none: real targets"),
        ("columns used", _listed(_columns(data))),
        ("columns left out", _listed(data.get("preparation", {}).get("dropped", {}))),
        ("SHA-256", data.get("sha256", "")),
    ]
    return _bullets(facts)


def _columns(data: dict[str, Any]) -> list[str]:
    preparation = data.get("preparation") or {}
    return [str(column.get("name")) for column in preparation.get("columns", ())]


def _model(record: Any, summary: dict[str, Any], defaults: Mapping[str, Any]) -> str:
    shared = any(s.shared_model for s in record.seeds)
    clients_heard = summary.get("heard")
    facts: list[tuple[str, object]] = [
        ("model", f"{record.model.get('module', '')}, {record.sizes_text} numbers"),
        ("loss", record.model.get("loss", "")),
        ("method", record.method),
        ("its settings", _pairs(record.fields)),
        ("models", "one per client" + (", and one shared model" if shared else "")),
        ("rounds", f"{summary['rounds']:,} ({', '.join(sorted(set(summary['stopped'])))})"),
        (
            "clients heard per round",
            f"{round(clients_heard['clients'], 2):,} of {clients_heard['of']:,}"
            if clients_heard
            else "",
        ),
        ("run settings that differ from the defaults", _pairs(_changed(record.settings, defaults))),
    ]
    return _bullets(facts)


def _changed(settings: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Run settings other than their defaults; rounds and seeds stand elsewhere."""
    known_elsewhere = ("rounds", "seeds", "seed")
    return {
        name: value
        for name, value in settings.items()
        if name not in known_elsewhere and value != defaults.get(name)
    }


# -- how well --------------------------------------------------------------------------------------
def _figures(record: Any, summary: dict[str, Any]) -> str:
    measures = {name: summary[name] for name in ("accuracy", "loss")} | summary.get("metrics", {})
    rows = []
    for name, m in measures.items():
        if not known(m["mean"]):
            continue
        spread = number(m["ci95"]) if known(m["ci95"]) else "–"
        what = class_note(m)
        cells = (number(m["mean"]), spread, number(m["mean_of_clients"]), number(m["worst10"]))
        rows.append((f"{name} ({what})" if what else name, *cells))
    heading = ("figure", "pooled", "± 95 % over seeds", "mean of clients", "worst 10 % of clients")
    text = "On the test data of the clients, after the last round.\n\n" + _table(heading, rows)
    if summary.get("held_out"):
        held_out = summary["held_out"]
        figure = "accuracy" if known(held_out["accuracy"]["mean"]) else "loss"
        text += (
            f"\n\n{plural(held_out['clients'], 'client')} took no part in training; after "
            "personalisation "
            f"their {figure} is {number(held_out[figure]['mean'])}."
        )
    return text


def verdicts(record: Any, view: ClientsView) -> list[ClientVerdict]:
    """Every client's accuracy with its 95 % interval (Wilson), the worst first.

    Where samples have weights, by as many samples as they are worth (`Federation.effective_sizes`).
    """
    constants = dict(
        zip((str(row["client"]) for row in record.seeds[0].clients), record.baseline, strict=False)
    )
    effective = {
        str(row["client"]): float(row["test_effective"])
        for row in record.seeds[0].clients
        if "test_effective" in row
    }
    rows = []
    for client, accuracy in view.served[0].values.items():
        samples = view.samples[client]
        # what groups, or samples that weigh unlike, are worth at least
        evidence = min(effective.get(client, samples), view.groups.get(client, samples))
        low, high = wilson(accuracy * evidence, evidence)
        constant = constants.get(client)
        floor = math.nan if constant is None else float(constant)
        rows.append(ClientVerdict(client, samples, accuracy, low, high, floor))
    return sorted(rows, key=lambda row: row.accuracy)


def _clients(record: Any, view: ClientsView, local: Any) -> str:
    if view.figure != "accuracy":
        return _clients_by_figure(record, view, local)
    rows = verdicts(record, view)
    gains = view.served[0].gains
    heading = ["client", "test samples", "accuracy", "95 % interval"]
    heading += ["majority class", "against it"]
    cells = [
        [
            r.client,
            f"{r.samples:,}",
            number(r.accuracy),
            f"{number(r.low)} to {number(r.high)}",
            number(r.constant),
            r.verdict,
        ]
        for r in rows[:MOST_CLIENTS]
    ]
    if gains:
        heading.append("gain over Local")
        for row, r in zip(cells, rows, strict=False):
            row.append(_gain(gains.get(r.client)))
    words = []
    tallies = {v: sum(r.verdict == v for r in rows) for v in ("better", "worse", "cannot tell")}
    if any(tallies.values()):
        words.append(
            f"Against always answering the client's most frequent class, the model is better for "
            f"{plural(tallies['better'], 'client')}, worse for {tallies['worse']:,}, and for "
            f"{tallies['cannot tell']:,} the test samples cannot tell."
        )
    if gains:
        words.append(_against_local(gains, record, local))
    units = "groups of test samples" if view.groups else "test samples"
    words.append(
        f"Intervals are those of a proportion over the client's own {units} (Wilson), of the "
        "mean over seeds; the client is called better or worse where the interval does not hold "
        "what its majority class reaches on the same samples."
    )
    if record.data.get("weight"):
        words.append(
            "Samples have weights: an interval goes by as many samples of one weight as they are "
            "worth (Kish 1965)."
        )
    if len(rows) > MOST_CLIENTS:
        words.append(f"The {MOST_CLIENTS} clients that are served worst, of {len(rows):,}:")
    return " ".join(words) + "\n\n" + _table(heading, cells)


def _gain(gain: ClientGain | None) -> str:
    return "–" if gain is None else f"{signed(gain.gain)} ({gain.verdict})"


def _against_local(gains: Mapping[str, ClientGain], record: Any, local: Any) -> str:
    """How many clients gain and lose against training alone, and what that cost."""
    verdicts = Counter(gain.verdict for gain in gains.values())
    own, alone = (r.seeds[0].gradients_per_client for r in (record, local.record))
    return (
        f"Against training alone (Local, {count(alone)} gradients per client; this run "
        f"{count(own)}), {verdicts[GAINS]:,} of {plural(len(gains), 'client')} clearly gain, "
        f"{verdicts[LOSES]:,} clearly lose, and of {verdicts[CANNOT_TELL]:,} the test samples "
        "cannot tell."
    )


def _clients_by_figure(record: Any, view: ClientsView, local: Any) -> str:
    """Clients by a figure that is no proportion: the record has no interval for it."""
    first = view.served[0]
    worst_first = view.ordered[::-1][:MOST_CLIENTS]
    heading = ["client", "test samples", view.figure]
    cells = [
        [client, f"{view.samples[client]:,}", number(first.values[client])]
        for client in worst_first
    ]
    if first.over_constant:
        heading.append("over its constant answer")
        for row in cells:
            row.append(signed(first.over_constant.get(row[0])))
    if first.gains:
        heading.append("gain over Local")
        for row in cells:
            row.append(_gain(first.gains.get(row[0])))
    text = (
        f"Clients by their {view.figure}, worst first; the record has no interval for it. "
        "Differences are positive where the model is better."
    )
    if first.gains:
        text += " " + _against_local(first.gains, record, local)
    return text + "\n\n" + _table(heading, cells)


def _subgroups(view: SubgroupsView) -> list[str]:
    """A part for every column of subgroups: the figure of each, over all clients."""
    parts = []
    heading = ["subgroup", "test samples", view.figure, "95 % interval"]
    heading += ["difference from the others", "95 % interval", "against them"]
    for column in view.columns:
        rows = [r for r in view.main_rows(column) if r["model"] == PERSONAL]
        grouped = any("groups" in row for row in rows)
        cells = [
            [
                r["subgroup"],
                f"{r['samples']:,}" + (f" of {plural(r['groups'], 'group')}" if grouped else ""),
                number(r["value"]),
                interval_text(r["low"], r["high"], number),
                signed(r["difference"]),
                interval_text(r["difference_low"], r["difference_high"], signed),
                r["verdict"],
            ]
            for r in rows
        ]
        words = [_subgroup_words(view, column), *view.remarks(column, rows)]
        sentences = ". ".join(_text(word[0].upper() + word[1:]) for word in words)
        parts.append(f"### By {_text(column)}\n\n{sentences}.\n\n{_table(heading, cells)}")
    return parts


def _subgroup_words(view: SubgroupsView, column: str) -> str:
    """Which subgroups are served clearly worse."""
    rows = [r for r in view.main_rows(column) if r["model"] == PERSONAL]
    worse = [str(row["subgroup"]) for row in rows if row["verdict"] == WORSE]
    if worse:
        return f"clearly worse than for the other test samples: {', '.join(worse)}"
    return "for no subgroup the model is clearly worse than for the other test samples"


def _limits(record: Any, summary: dict[str, Any], local: Any) -> str:
    seed = record.seeds[0]
    honest = [row for row in seed.clients if not (row["malicious"] or row["held_out"])]
    tested = [int(row["test_samples"]) for row in honest]
    lines = [
        "Every client was tested on its own test data: the figures say nothing about other "
        "clients, or about data that change after training."
    ]
    if untested := tested.count(0):
        have = "has" if untested == 1 else "have"
        clients = plural(untested, "client")
        lines.append(f"{clients} {have} no test data: nothing is known for such a client.")
    if few := sum(0 < n < FEW_SAMPLES for n in tested):
        have = "has" if few == 1 else "have"
        lines.append(f"{plural(few, 'client')} {have} fewer than {FEW_SAMPLES} test samples.")
    if len(record.seeds) == 1:
        lines.append("One seed: how much figures vary with the seed was not measured.")
    if local is None:
        lines.append(
            "There is no run of Local beside this one: whether clients would do as well by "
            "training alone is not known."
        )
    if not record.baseline:
        lines.append("What a constant answer reaches is not in the record.")
    if seed.count("malicious"):
        malicious = plural(seed.count("malicious"), "malicious client")
        lines.append(f"{malicious} took part in this simulation.")
    if any(summary["collapsed"]):
        lines.append("Models of some seed collapsed: they must not be used.")
    for fate in ("rejected", "missing"):
        if summary[fate]:
            lines.append(f"{count(summary[fate])} messages were {fate}.")
    notes = [note.get("warning") or note.get("text") for note in record.notes.values()]
    lines += [str(text) for text in notes if text]
    return "\n".join(f"- {_text(line)}" for line in lines)


def _cost(record: Any, summary: dict[str, Any]) -> str:
    volume = ", ".join(f"{size(summary['bytes'][way])} {way}" for way in ("up", "down"))
    facts: list[tuple[str, object]] = [
        ("sent by all clients, per seed", volume),
        ("gradients per client", count(summary["gradients_per_client"])),
        ("seconds, all seeds", f"{summary['seconds']:.1f}"),
        ("seeds", ", ".join(map(str, summary["seeds"]))),
    ]
    return _bullets(facts)


def _software(record: Any) -> str:
    environment = record.environment
    code = environment.get("code", {})
    facts: list[tuple[str, object]] = [
        *sorted(environment.get("packages", {}).items()),
        ("python", environment.get("python", "")),
        ("platform", environment.get("platform", "")),
        ("source of idiolect, SHA-256", code.get("source", "")),
        ("source of the method, SHA-256", code.get("method", "")),
    ]
    return _bullets(facts)


# -- Markdown --------------------------------------------------------------------------------------
MOST_LISTED = 40


def _text(value: object) -> str:
    """Text of anyone as text: nothing in it is Markdown or HTML.

    >>> _text("a|b <i>"), _text("[x](y)\\n")
    ('a\\\\|b \\\\<i\\\\>', '\\\\[x\\\\](y)\\\\\\\\n')
    """
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", shown(value, 400))


def _listed(values: Iterable[object]) -> str:
    texts = [str(value) for value in values]
    more = f" and {len(texts) - MOST_LISTED:,} more" if len(texts) > MOST_LISTED else ""
    return ", ".join(texts[:MOST_LISTED]) + more


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or "none"


def _bullets(facts: Iterable[tuple[str, object]]) -> str:
    return "\n".join(f"- {_text(name)}: {_text(value)}" for name, value in facts if str(value))


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}"


def _table(heading: Sequence[str], rows: Cells) -> str:
    lines = [heading, ["---"] * len(heading), *([_text(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
