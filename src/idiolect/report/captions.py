"""The text under a table of results: what was measured, and what the signs in it mean."""

from __future__ import annotations

from typing import Any

from ..core.text import shown
from .figures import size
from .goals import Goals

Rows = list[dict[str, Any]]  # summaries of results


def caption(rows: Rows, goals: Goals) -> str:
    """All notes that these rows need; "" where nothing was trained."""
    trained = [r for r in rows if r["seeds"]]
    if not trained:
        return ""
    notes = [
        _measured(trained),
        *_goal_notes(trained, goals),
        *_malicious_notes(rows, trained),
        *_collapse_notes(trained),
        *_best_notes(trained),
        *_projection_notes(trained),
        *_statistics_notes(trained),
    ]
    return "\n".join(map(shown, notes))


def _measured(trained: Rows) -> str:
    rounds = ", ".join(map(str, sorted({r["rounds"] for r in trained})))
    seeds = trained[0]["seeds"]
    many = "s" if len(seeds) > 1 else ""
    return (
        f"test data of each client, last round ({rounds}), "
        f"mean over {len(seeds)} seed{many} ({', '.join(map(str, seeds))}); "
        "accuracy and loss pooled over samples, variance over clients; "
        "bytes of all clients and gradients per client, per seed"
    )


def _goal_notes(trained: Rows, goals: Goals) -> list[str]:
    """What the signs in the columns of the goals mean; those that are there."""
    missed_budget = (
        "at the budget: its first evaluated round had sent more, "
        "or its models had collapsed by then"
    )
    missed_target = "to the target: not reached in the rounds run"
    notes = []
    for asked, name, text in (
        (goals.budget, "at_budget", missed_budget),
        (goals.target, "to_target", missed_target),
    ):
        got = [r[goals.key(name)] for r in trained if asked and r.get(goals.key(name))]
        missed = [g for g in got if g["mean"] is None]
        if missed:
            some = any(v is not None for g in missed for v in g["by_seed"])
            notes.append(f"★ {text}" + ("; ★ 1 of 3: one of three seeds can" if some else ""))
        if any(g["mean"] is not None and g.get("unspent") for g in got):
            notes.append("† its rounds ended before the budget was spent")
    if goals.count == "values" and (goals.budget or goals.target):
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
