"""The text under a table of results: what was measured, and what the signs in it mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..core.text import shown
from ..task.client_optimizer import in_words
from .format import size
from .targets import Goals

Rows = Sequence[dict[str, Any]]  # summaries of results


def caption(rows: Rows, goals: Goals) -> str:
    """All notes that these rows need; "" where nothing was trained."""
    trained = [r for r in rows if r["seeds"]]
    if not trained:
        return ""
    notes = [
        _measured(trained),
        *_heard_notes(trained),
        *_timing_notes(trained),
        *_metric_notes(trained),
        *_goal_notes(trained, goals),
        *_malicious_notes(rows, trained),
        *_collapse_notes(trained),
        *_best_notes(trained),
        *_degenerate_notes(trained),
        *_projection_notes(trained),
        *_statistics_notes(trained),
        *_step_notes(trained),
        *_start_notes(trained),
        *_inner_notes(trained),
    ]
    return "\n".join(map(shown, notes))


def _measured(trained: Rows) -> str:
    rounds = ", ".join(map(str, sorted({r["rounds"] for r in trained})))
    seeds = trained[0]["seeds"]
    many = "s" if len(seeds) > 1 else ""
    return (
        f"test data of each client, last round ({rounds}), "
        f"mean over {len(seeds)} seed{many} ({', '.join(map(str, seeds))}); "
        f"{_listed(_pooled(trained))} pooled over samples, variance over clients; "
        "bytes of all clients and gradients per client, per seed"
    )


def main_figure(rows: Rows) -> str:
    """What the rows are about: the metric that was chosen, accuracy, or the loss."""
    metrics = {r["metric"] for r in rows if "metric" in r}
    if len(metrics) == 1:
        return str(metrics.pop())
    return "accuracy" if has_accuracy(rows) else "loss"


def has_accuracy(rows: Rows) -> bool:
    """Whether accuracy has a meaning here: some row has one, or none has a loss either."""
    has_value = [_known(r["accuracy"]["mean"]) for r in rows]
    return any(has_value) or not any(_known(r["loss"]["mean"]) for r in rows)


def _known(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def metrics_of(rows: Rows) -> list[str]:
    """The metrics of these rows, each once."""
    return list(dict.fromkeys(name for r in rows for name in r.get("metrics", {})))


def _pooled(trained: Rows) -> list[str]:
    """The figures of the table that are pooled over samples."""
    by_clients = {
        name
        for r in trained
        for name, m in r.get("metrics", {}).items()
        if m.get("pooled_over") == "clients"
    }
    first = ["accuracy", "loss"] if has_accuracy(trained) else ["loss"]
    return first + [name for name in metrics_of(trained) if name not in by_clients]


def _listed(words: list[str]) -> str:
    """Words with commas and an "and".

    >>> _listed(["loss", "rmse", "r2"])
    'loss, rmse and r2'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def heard_note(rows: Rows) -> str:
    """How many clients are heard per round, of how many; "" where nothing is known of it.

    >>> sends = {"method": "fedavg", "bytes": {"up": 1}}
    >>> heard_note([sends | {"heard": {"clients": 10, "of": 100}}])
    '10 of 100 clients heard per round'
    """
    sending = [r for r in rows if r.get("heard") and r["bytes"]["up"]]
    if not sending:
        counts = [r["heard"] for r in rows if r.get("heard")]
        return f"none of {counts[0]['of']:,} clients heard: nothing is sent" if counts else ""
    names: dict[tuple[int, int], list[str]] = {}
    for r in sending:
        key = (r["heard"]["clients"], r["heard"]["of"])
        names.setdefault(key, []).append(str(r.get("label") or r["method"]))
    if len(names) == 1:
        ((clients, of),) = names
        return f"{clients:,} of {of:,} clients heard per round"
    parts = [f"{clients:,} of {of:,} by {', '.join(by)}" for (clients, of), by in names.items()]
    return f"clients heard per round: {'; '.join(parts)}"


def _heard_notes(trained: Rows) -> list[str]:
    note = heard_note(trained)
    return [note] if note else []


def _timing_notes(trained: Rows) -> list[str]:
    """What a round and its time are, where they are not the usual ones."""
    texts = {r["timing"]["text"] for r in trained if "timing" in r}
    times = [r for r in trained if "time" in r]
    many = len(times) > 1
    notes = [
        f"time {r['time']:.4g}, mean staleness {r['staleness']:.3g}"
        + (f" ({r.get('label') or r['method']})" if many else "")
        for r in times
    ]
    return [*sorted(texts), *notes]


def _metric_notes(trained: Rows) -> list[str]:
    """Which metrics are a mean over clients, and for how many clients one is not defined."""
    notes = []
    for name in metrics_of(trained):
        summaries = [r["metrics"][name] for r in trained if name in r.get("metrics", {})]
        if any(m.get("pooled_over") == "clients" for m in summaries):
            notes.append(f"{name}: mean over clients, weighted by samples")
        most = max(m.get("clients_undefined", 0) for m in summaries)
        if most:
            reason = next(m.get("undefined", "") for m in summaries)
            notes.append(f"{name}: no value for {most:g} clients ({reason})")
    return notes


def _goal_notes(trained: Rows, goals: Goals) -> list[str]:
    """What the signs in the columns of the goals mean; those that are there."""
    missed_budget = (
        "at the budget: its first evaluated round had sent more, "
        "or its models had collapsed by then"
    )
    missed_target = "to the target: not reached in the rounds run"
    notes = []
    for goal, name, text in (
        (goals.budget, "at_budget", missed_budget),
        (goals.targeted, "to_target", missed_target),
    ):
        got = [r[goals.key(name)] for r in trained if goal and r.get(goals.key(name))]
        missed = [g for g in got if g["mean"] is None]
        if missed:
            some = any(v is not None for g in missed for v in g["by_seed"])
            notes.append(f"★ {text}" + ("; ★ 1 of 3: one of three seeds can" if some else ""))
        if any(g["mean"] is not None and g.get("unspent") for g in got):
            notes.append("† its rounds ended before the budget was spent")
    if goals.count == "values" and (goals.budget or goals.targeted):
        notes.append("values: 32-bit words, both directions, as the lp-proj paper counts")
    return notes


def _malicious_notes(rows: Rows, trained: Rows) -> list[str]:
    if not any("malicious" in r for r in trained):
        return []
    everyone = "; the majority class is over all clients" if len(rows) > len(trained) else ""
    return [
        "malicious: the number of malicious clients; accuracy, variance and loss are those of "
        f"the benign clients alone{everyone}"
    ]


def collapsed(row: dict[str, Any]) -> bool:
    """The models of some seed have collapsed: the figures of the row would mean nothing."""
    return any(row.get("collapsed") or [])


def _collapse_notes(trained: Rows) -> list[str]:
    notes = []
    for r in filter(collapsed, trained):
        seeds = zip(r["seeds"], r["collapsed"], strict=True)
        several = len(r["seeds"]) > 1
        when = [f"round {at}" + (f" (seed {seed})" if several else "") for seed, at in seeds if at]
        notes.append(f"★ {r.get('label') or r['method']}: collapsed in {', '.join(when)}")
    return notes


def _best_notes(trained: Rows) -> list[str]:
    """Beside the last round: the best one by validation data, where a run was told to look."""
    notes = []
    for r in trained:
        if best := r.get("best_by_validation"):
            rounds = ", ".join(map(str, best["rounds"]))
            accuracy = "" if best["accuracy"] is None else f"accuracy {best['accuracy']:.4f}, "
            notes.append(
                f"{r.get('label') or r['method']}: the best round by validation data ({rounds}) "
                f"had {accuracy}loss {best['loss']:.4f} on test data"
            )
    return notes


def _degenerate_notes(trained: Rows) -> list[str]:
    """Which methods are others with these settings on this model."""
    return list(dict.fromkeys(r["equal_to"]["warning"] for r in trained if "equal_to" in r))


def _projection_notes(trained: Rows) -> list[str]:
    """What the projections of these results are like, each once."""
    lines = (projection_line(r["projection"]) for r in trained if "projection" in r)
    return list(dict.fromkeys(lines))


def _statistics_notes(trained: Rows) -> list[str]:
    """What was done with running statistics (BatchNorm), where a model has any."""
    how = {r["statistics"]["how"]: r["statistics"]["numbers"] for r in trained if "statistics" in r}
    names = {
        kind: ", ".join(
            r.get("label") or r["method"]
            for r in trained
            if r.get("statistics", {}).get("how") == kind
        )
        for kind in how
    }
    several = len(how) > 1
    return [
        f"running statistics: {kind} ({numbers} numbers of each model)"
        + (f": {names[kind]}" if several else "")
        for kind, numbers in how.items()
    ]


def _step_notes(trained: Rows) -> list[str]:
    """The optimisers of the clients, where they are not plain SGD."""
    words = {}
    for r in trained:
        run = r.get("settings", {}).get("run", {})
        words[r.get("label") or r["method"]] = in_words(run)
    different = set(words.values())
    if different == {""}:
        return []
    if len(different) == 1:
        return [f"clients step by {different.pop()}"]
    return [f"{label}: clients step by {text or 'plain sgd'}" for label, text in words.items()]


def _start_notes(trained: Rows) -> list[str]:
    """Weights that models start at, and parameters that are constants; each said once."""
    notes: dict[str, None] = {}
    for r in trained:
        settings = r.get("settings", {})
        file = settings.get("pretrained")
        if isinstance(file, dict):
            digest = str(file.get("sha256"))[:12]
            notes[f"models start at {str(file.get('file'))[:80]} (SHA-256 {digest}...)"] = None
        frozen = settings.get("frozen")
        if isinstance(frozen, list):
            more = f" and {len(frozen) - 4} more" if len(frozen) > 4 else ""
            notes[f"frozen, neither trained nor sent: {', '.join(map(str, frozen[:4]))}{more}"] = (
                None
            )
    return list(notes)


def projection_line(p: dict[str, Any]) -> str:
    """A projection in one line: kind, size, singular values, memory, time, bytes."""
    parts = [
        f"P: {p['projection']}, {p['dim']} x {p['d']:,}",
        f"singular values {p['s_min']:.3f} to {p['s_max']:.3f}",
        size(p["memory"]),
    ]
    if "pass_ms" in p:
        parts.append(f"{p['pass_ms']:.2g} ms for P x and back")
    parts.append(f"{size(p['bytes_per_round'])} per round")
    if p["warning"]:
        parts.append(p["warning"])
    return "; ".join(parts)


def _inner_notes(trained: Rows) -> list[str]:
    """How many inner problems were solved to their accuracy, where a method has such.

    >>> counted = {"inner_problems": 2000, "inner_solved": 500}
    >>> _inner_notes([{"label": "pfedme", "counted": counted}])
    ['pfedme: 25 % of its 2,000 inner problems were solved to ν within `steps`']
    """
    return [
        f"{r['label']}: {_percent(r['counted'])} of its {r['counted']['inner_problems']:,.0f} "
        "inner problems were solved to ν within `steps`"
        for r in trained
        if r.get("counted", {}).get("inner_problems")
    ]


def _percent(counted: dict[str, float]) -> str:
    share = 100 * counted["inner_solved"] / counted["inner_problems"]
    return f"{share:.0f} %" if share in (0, 100) or 1 <= share <= 99 else f"{share:.2g} %"
