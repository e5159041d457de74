"""The text under a table of results: what was measured, and what the signs in it mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..core.text import plural, shown
from ..task.client_optimizer import in_words
from .format import count, number, size
from .targets import Goals

Row = dict[str, Any]  # the summary of a result
Rows = Sequence[Row]


def caption(rows: Rows, goals: Goals) -> str:
    """All notes that these rows need; "" where nothing was trained."""
    trained = [r for r in rows if r["seeds"]]
    if not trained:
        return ""
    notes = [note for rule in RULES for note in rule(trained, goals)]
    if len(rows) > len(trained) and any("malicious" in r for r in trained):
        notes.append("the majority class is over all clients, malicious ones included")
    return "\n".join(map(shown, notes))


def label_of(row: Row) -> str:
    """What a row is called."""
    return str(row.get("label") or row["method"])


def known(value: float | None) -> bool:
    """Whether there is a figure."""
    return value is not None and not math.isnan(value)


def figures_of(row: Row, measure: str) -> dict[str, Any]:
    """What a row has of accuracy, the loss or a metric: mean, interval, spread over clients."""
    return (
        row[measure] if measure in ("accuracy", "loss") else row.get("metrics", {}).get(measure, {})
    )


def main_figure(rows: Rows) -> str:
    """What the rows are about: the metric that was chosen, accuracy, or the loss."""
    metrics = {r["metric"] for r in rows if "metric" in r}
    if len(metrics) == 1:
        return str(metrics.pop())
    return "accuracy" if has_accuracy(rows) else "loss"


def has_accuracy(rows: Rows) -> bool:
    """Whether accuracy has a meaning here: some row has one, or none has been measured."""
    has_value = [known(r["accuracy"]["mean"]) for r in rows]
    return any(has_value) or not any(known(r["loss"]["mean"]) or collapsed(r) for r in rows)


def metrics_of(rows: Rows) -> list[str]:
    """The metrics of these rows, each once."""
    return list(dict.fromkeys(name for r in rows for name in r.get("metrics", {})))


def heard_note(rows: Rows) -> str:
    """How many clients are heard per round, of how many; "" where nothing is known of it.

    A client is heard if its message counted.

    >>> sends = {"method": "fedavg", "messages": {"asked": 20, "counted": 15}}
    >>> heard_note([sends | {"heard": {"clients": 7.5, "of": 100}}])
    '7.5 of 100 clients heard per round'
    """
    sending = [r for r in rows if r.get("heard") and _sends(r)]
    if not sending:
        counts = [r["heard"] for r in rows if r.get("heard")]
        return (
            f"none of {plural(counts[0]['of'], 'client')} heard: nothing is sent" if counts else ""
        )
    names: dict[tuple[float, int], list[str]] = {}
    for r in sending:
        key = (r["heard"]["clients"], r["heard"]["of"])
        names.setdefault(key, []).append(label_of(r))
    if len(names) == 1:
        ((clients, of),) = names
        return f"{round(clients, 2):,} of {plural(of, 'client')} heard per round"
    parts = [
        f"{round(clients, 2):,} of {of:,} by {', '.join(by)}" for (clients, of), by in names.items()
    ]
    return f"clients heard per round: {'; '.join(parts)}"


def _sends(row: Row) -> bool:
    """Whether messages were asked for; by the bytes in a row that does not say so."""
    return bool(row["messages"]["asked"] if "messages" in row else row["bytes"]["up"])


def collapsed(row: Row) -> bool:
    """The models of some seed have collapsed: the figures of the row would mean nothing."""
    return any(row.get("collapsed") or [])


DIVERGED = "diverged"  # why a seed stopped: the server had to reject every message
TO_TRY = "try smaller step sizes (lr=...), clip=1, or inputs and targets scaled to about 1"


def diverged(row: Mapping[str, Any]) -> bool:
    """The messages of some seed could not be used; see `idiolect.run.divergence`."""
    return DIVERGED in row.get("stopped", ())


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


# -- the rules: what is said of trained rows, and when ---------------------------------------------
Rule = Callable[[Rows, Goals], Iterable[str]]


def _measured(trained: Rows, _: Goals) -> Iterator[str]:
    rounds = ", ".join(map(str, sorted({r["rounds"] for r in trained})))
    metrics = [n for n in metrics_of(trained) if not _is_mean_over_clients(trained, n)]
    names = [*(["accuracy"] if has_accuracy(trained) else []), "loss", *metrics]
    figures = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    yield (
        f"{trained[0].get('measured_on', 'test')} data of each client, last round ({rounds}), "
        f"mean over {_repeats(trained[0])}; "
        f"{figures} pooled over samples, variance over clients; "
        "bytes of all clients and gradients per client, per seed"
    )


def _repeats(row: Row) -> str:
    """What the repeats are: seeds of training, and of the data where each has its own.

    >>> _repeats({"seeds": [0, 1]})
    '2 seeds (0, 1)'
    >>> _repeats({"seeds": [0, 1], "data_seeds": {"draw": "partition", "seeds": [0, 1]}})
    '2 seeds of training and partition (0, 1)'
    >>> _repeats({"seeds": [3], "data_seeds": {"draw": "split", "seeds": [7]}})
    '1 seed of training and split (training 3; split 7)'
    """
    seeds = row["seeds"]
    count, listed = plural(len(seeds), "seed"), ", ".join(map(str, seeds))
    if "data_seeds" not in row:
        return f"{count} ({listed})"
    drawn, data_seeds = row["data_seeds"]["draw"], row["data_seeds"]["seeds"]
    if data_seeds != seeds:
        listed = f"training {listed}; {drawn} {', '.join(map(str, data_seeds))}"
    return f"{count} of training and {drawn} ({listed})"


def _weights(trained: Rows, _: Goals) -> Iterator[str]:
    """Which column samples are weighed by."""
    yield from sorted({r["weights"]["text"] for r in trained if "weights" in r})


def _groups(trained: Rows, _: Goals) -> Iterator[str]:
    """Which models there are, where clients have unlike ones; what is public."""
    for name in ("groups", "public"):
        yield from sorted({r[name]["text"] for r in trained if name in r})
    idle = [r["method"] for r in trained if "public" in r and not r["public"]["used"]]
    if idle:
        yield f"public inputs are not used by {', '.join(dict.fromkeys(idle))}"


def _terms(trained: Rows, _: Goals) -> Iterator[str]:
    """The words of the table that a newcomer may not know, those that are in it."""
    alone = any(r.get("method") == "local" for r in trained)
    sends = any(r.get("heard") and _sends(r) for r in trained)
    terms = {
        "client": "an owner of data",
        "round": "one exchange of messages",
        **({"heard": "its message counted"} if sends else {}),
        **({"local": "each client alone"} if alone else {}),
        "gradients": "of mini-batches",
        "worst 10 %": "mean over the worst-served tenth of clients",
    }
    yield "; ".join(f"{term}: {meaning}" for term, meaning in terms.items())


def _is_mean_over_clients(trained: Rows, metric: str) -> bool:
    summaries = (r.get("metrics", {}).get(metric, {}) for r in trained)
    return any(summary.get("pooled_over") == "clients" for summary in summaries)


def _heard(trained: Rows, _: Goals) -> Iterator[str]:
    if note := heard_note(trained):
        yield note


def _timing(trained: Rows, _: Goals) -> Iterator[str]:
    """What a round and its time are, where they are not the usual ones."""
    yield from sorted({r["timing"]["text"] for r in trained if "timing" in r})
    times = [r for r in trained if "time" in r]
    for r in times:
        whose = f" ({label_of(r)})" if len(times) > 1 else ""
        yield f"time {r['time']:.4g}, mean staleness {r['staleness']:.3g}{whose}"


def _metrics(trained: Rows, _: Goals) -> Iterator[str]:
    """Which metrics are a mean over clients, and for how many clients one is not defined."""
    for name in metrics_of(trained):
        summaries = [r["metrics"][name] for r in trained if name in r.get("metrics", {})]
        if words := class_note(summaries[0]):
            yield f"{name}: {words}"
        if _is_mean_over_clients(trained, name):
            yield f"{name}: mean over clients, weighted by samples"
        if most := max(m.get("clients_undefined", 0) for m in summaries):
            clients = "1 client" if most == 1 else f"{most:g} clients"  # a mean over seeds
            yield f"{name}: no value for {clients} ({summaries[0].get('undefined', '')})"


def class_note(facts: Mapping[str, Any]) -> str:
    """Which class a metric is of, or how classes are averaged; "" where it is about neither.

    >>> class_note({"positive": {"class": "ja", "reason": "by its name"}})
    "of class 'ja' (by its name)"
    """
    if positive := facts.get("positive"):
        return f"of class {positive['class']!r} ({positive['reason']})"
    words = {
        "macro": "mean over classes, each counting once (macro)",
        "weighted": "mean over classes, each counting by its samples (weighted)",
    }
    return words.get(facts.get("average", ""), "")


UNCOVERED = (
    "not covered by ε: figures of this table, numbers of samples, scaling statistics, what a "
    "client's own model tells, and other trainings on these clients (other rows and seeds, tuning)"
)


def privacy_words(facts: Mapping[str, Any]) -> str:
    """Who is protected from whom, and how much has been spent.

    >>> spent = {"worst": 2.96, "mean": 2.5}
    >>> facts = {"protects": "local", "against": "everyone", "trusted": "nobody", "clip": 1.0}
    >>> facts |= {"epsilon": spent, "delta": 1e-5, "noise": 2.0, "rounds": 30, "budget": 3.0}
    >>> facts |= {"sampling": "known", "source": "secret", "neighbours": "any", "adaptive": False}
    >>> privacy_words(facts)[:87]
    'local privacy, ε = 2.96 at δ = 1e-05 for the client that has spent most (mean 2.5; budg'
    """
    spent = facts["epsilon"]
    mean = "" if f"{spent['mean']:.3g}" == f"{spent['worst']:.3g}" else f"mean {spent['mean']:.3g}"
    budget = f"budget {facts['budget']:g}" if facts["budget"] else ""
    more = "; ".join(filter(None, (mean, budget)))
    clip = f"C {facts['clip']:.3g}" + (" by now" if facts["adaptive"] else "")
    sampling = (
        "amplified by Poisson sampling" if facts["sampling"] == "poisson" else "not amplified"
    )
    words = (
        f"{facts['protects']} privacy, ε = {spent['worst']:.3g} at δ = {facts['delta']:g} for the "
        f"client that has spent most{f' ({more})' if more else ''}: protects each client "
        f"({facts['neighbours']}) from {facts['against']}; trusted: {facts['trusted']}; "
        f"noise {facts['noise']:.3g} x sensitivity, {clip}, {plural(facts['rounds'], 'round')}, "
        f"{sampling}"
    )
    if facts["source"] != "secret":
        words += "; noise comes from the seed: it protects nobody from who knows that"
    return words


def _privacy(trained: Rows, _: Goals) -> Iterator[str]:
    """What is guaranteed, by row where it differs; and what is not."""
    words: dict[str, list[str]] = {}
    for r in trained:
        if "privacy" in r:
            words.setdefault(privacy_words(r["privacy"]), []).append(label_of(r))
    for text, labels in words.items():
        yield f"{', '.join(labels)}: {text}" if len(trained) > 1 else text
    if not words:
        return
    others = [label_of(r) for r in trained if "privacy" not in r and _sends(r)]
    if others:
        yield f"without privacy: {', '.join(others)}"
    yield UNCOVERED
    if len(trained) > 1 or len(trained[0]["seeds"]) > 1:
        yield "ε is that of one run: runs on the same data add up for whoever sees several of them"


def _goals(trained: Rows, goals: Goals) -> Iterator[str]:
    """What the signs in the columns of the goals mean; those that are there."""
    missed_budget = (
        "at the budget: its first evaluated round had sent more, "
        "or its models had collapsed by then"
    )
    missed_target = "to the target: not reached in the rounds run"
    for goal, name, text in (
        (goals.budget, "at_budget", missed_budget),
        (goals.targeted, "to_target", missed_target),
    ):
        outcomes = [r[goals.key(name)] for r in trained if goal and r.get(goals.key(name))]
        if missed := [g for g in outcomes if g["mean"] is None]:
            some = any(v is not None for g in missed for v in g["by_seed"])
            yield f"★ {text}" + ("; ★ 1 of 3: one of three seeds can" if some else "")
        if any(g["mean"] is not None and g.get("unspent") for g in outcomes):
            yield "† its rounds ended before the budget was spent"
    if goals.count == "values" and (goals.budget or goals.targeted):
        yield "values: 32-bit words, both directions, as the lp-proj paper counts"


def _malicious(trained: Rows, _: Goals) -> Iterator[str]:
    if any("malicious" in r for r in trained):
        yield (
            "malicious: the number of malicious clients; accuracy, variance and loss are those of "
            "the benign clients alone"
        )


def _fates(trained: Rows, _: Goals) -> Iterator[str]:
    """What became of messages that did not count, and of a model that none of them reached."""
    for r in trained:
        parts = []
        if "messages" in r and r["messages"]["counted"] < r["messages"]["asked"]:
            counted, expected = r["messages"]["counted"], r["messages"]["asked"]
            parts = [f"{counted:,} of {plural(expected, 'message')} counted"]
        for fate in ("rejected", "missing"):
            if reasons := r.get(f"{fate}_by_reason"):
                listing = ", ".join(f"{n:,} {reason}" for reason, n in reasons.items() if n)
                parts.append(f"{fate}: {listing}")
        if parts and not r.get("messages", {"counted": 1})["counted"]:
            parts.append(_never_updated(r))
        if parts:
            yield f"{label_of(r)}: {'; '.join(parts)}"


def _never_updated(row: Row) -> str:
    shared, figure = (
        part.get("loss", {}).get("mean") for part in (row.get("global_model", {}), row)
    )
    if not collapsed(row) and known(shared) and math.isclose(shared, figure):
        return "the figures are those of the untrained model"
    return "the shared model is still the untrained one"


def _collapses(trained: Rows, _: Goals) -> Iterator[str]:
    """Which models are useless since when, of how many clients, and what helps."""
    several = len(trained[0]["seeds"]) > 1
    rows = list(filter(collapsed, trained))
    for r in rows:
        when: dict[str, list[str]] = {}
        seeds = zip(r["seeds"], r["collapsed"], r.get("stopped") or r["seeds"], strict=True)
        for seed, at, stop in seeds:
            if at:
                what = "diverged" if stop == DIVERGED else "collapsed"
                text = f"round {at}" + (f" (seed {seed})" if several else "")
                when.setdefault(what, []).append(text)
        parts = [f"{what} in {', '.join(rounds)}" for what, rounds in when.items()]
        if DIVERGED in when:
            parts.append("the server had to reject every message of its last rounds")
        losses = r.get("clients_not_finite", {"by_seed": [0]})
        if most := max(losses["by_seed"]):
            parts.append(f"the loss of {most:,} of {plural(losses['of'], 'client')} is not finite")
        yield f"★ {label_of(r)}: {'; '.join(parts)}"
    if any("malicious" not in r for r in rows):
        yield f"★ {TO_TRY}"


def _held_out(trained: Rows, _: Goals) -> Iterator[str]:
    for r in [r for r in trained if "held_out" in r][:1]:
        rounds = r["settings"]["run"]["held_out_rounds"]
        number_of_clients = r["held_out"]["clients"]
        takes = "takes" if number_of_clients == 1 else "take"
        clients = f"{plural(number_of_clients, 'client')} that {takes}"
        yield (
            f"held out: {main_figure(trained)} of the {clients} no part in training, after "
            f"{plural(rounds, 'round')} of personalisation; the other "
            "figures are without them"
        )


def _best_round(trained: Rows, _: Goals) -> Iterator[str]:
    """The best round by validation data next to the last one, where a run looks for it."""
    for r in trained:
        if best := r.get("best_by_validation"):
            rounds = ", ".join(map(str, best["rounds"]))
            accuracy = "" if best["accuracy"] is None else f"accuracy {number(best['accuracy'])}, "
            yield (
                f"{label_of(r)}: the best round by validation data ({rounds}) "
                f"had {accuracy}loss {number(best['loss'])} on test data"
            )


def _reductions(trained: Rows, _: Goals) -> Iterable[str]:
    """Which methods are others here; what cannot be repeated; options without effect."""
    names = ("equal_to", "draws", "idle")
    return dict.fromkeys(r[n]["warning"] for n in names for r in trained if n in r)


def _projections(trained: Rows, _: Goals) -> Iterable[str]:
    """What the projections of these results are like, each once."""
    return dict.fromkeys(projection_line(r["projection"]) for r in trained if "projection" in r)


def _statistics(trained: Rows, _: Goals) -> Iterator[str]:
    """What was done with running statistics (BatchNorm), where a model has any."""
    labels: dict[tuple[str, int], list[str]] = {}
    for r in trained:
        if facts := r.get("statistics"):
            labels.setdefault((facts["how"], facts["numbers"]), []).append(label_of(r))
    for (how, numbers), names in labels.items():
        whose = f": {', '.join(names)}" if len(labels) > 1 else ""
        yield f"running statistics: {how} ({numbers} numbers of each model){whose}"


def _optimizers(trained: Rows, _: Goals) -> Iterator[str]:
    """The optimisers of the clients, where they are not plain SGD."""
    words = {label_of(r): in_words(r.get("settings", {}).get("run", {})) for r in trained}
    different = set(words.values())
    if len(different) > 1:
        for label, text in words.items():
            yield f"{label}: clients step by {text or 'plain sgd'}"
    elif different != {""}:
        yield f"clients step by {different.pop()}"


def _starts(trained: Rows, _: Goals) -> Iterable[str]:
    """Weights that models start at, and parameters that are constants; each said once."""
    notes = []
    for r in trained:
        settings = r.get("settings", {})
        file, frozen = settings.get("pretrained"), settings.get("frozen")
        if isinstance(file, dict):
            digest = str(file.get("sha256"))[:12]
            notes.append(f"models start at {str(file.get('file'))[:80]} (SHA-256 {digest}...)")
        if isinstance(frozen, list):
            more = f" and {len(frozen) - 4} more" if len(frozen) > 4 else ""
            notes.append(
                f"frozen, neither trained nor sent: {', '.join(map(str, frozen[:4]))}{more}"
            )
    return dict.fromkeys(notes)


def _inner_problems(trained: Rows, _: Goals) -> Iterator[str]:
    """How many inner problems were solved to their accuracy, where any was.

    At the defaults of lp-proj and pFedMe the steps end all of them, which is no news.

    >>> counted = {"inner_problems": 2000, "inner_solved": 500}
    >>> list(_inner_problems([{"label": "pfedme", "counted": counted}], Goals()))
    ['pfedme: 25 % of its 2,000 inner problems were solved to ν within `steps`']
    """
    for r in trained:
        counted = r.get("counted", {})
        if counted.get("inner_solved"):
            many = counted["inner_problems"]
            share = 100 * counted["inner_solved"] / many
            percent = f"{share:.0f}" if share == 100 or 1 <= share <= 99 else f"{share:.2g}"
            yield (
                f"{r['label']}: {percent} % of its {count(many)} inner problems were solved to ν "
                "within `steps`"
            )


RULES: tuple[Rule, ...] = (
    _measured,
    _weights,
    _groups,
    _terms,
    _heard,
    _privacy,
    _fates,
    _timing,
    _metrics,
    _goals,
    _malicious,
    _held_out,
    _collapses,
    _best_round,
    _reductions,
    _projections,
    _statistics,
    _optimizers,
    _starts,
    _inner_problems,
)
