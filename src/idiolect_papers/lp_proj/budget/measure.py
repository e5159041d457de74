"""The runs: settings are chosen on validation data of the first seed, then run with every seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from idiolect.report.targets import Curve, Goals, curve
from idiolect.study.results import merged
from idiolect.study.sweep import Setting, Stock

from ...runs import Runs, Summary
from .cases import TUNED, Candidate, Case

Key = tuple[str, str]  # title of a federation, label of a row


def choose(
    runs: Runs,
    stock: Stock,
    cases: Mapping[str, Case],
    candidates: Mapping[Key, Sequence[Candidate]],
    rounds: int | None = None,
) -> dict[Key, Candidate]:
    """For each row the candidate that does best on validation data; a single one without a run.

    Candidates of a tuned row, which are many, have few rounds.
    """
    settings: dict[str, list[Setting]] = {}
    for key, several in candidates.items():
        case = cases[key[0]]
        short = case.search_rounds if TUNED in key[1] else case.rounds_of(key[1])
        run = {"rounds": min(short, rounds or short), "eval_every": 0}
        settings[_row(key)] = [setting(key, case, candidate, run) for candidate in several]
    found, _ = runs.chosen(settings, stock, seed=0)
    places = {key: settings[_row(key)].index(found[_row(key)]) for key in candidates}
    return {key: several[places[key]] for key, several in candidates.items()}


def _row(key: Key) -> str:
    return ": ".join(key)


def final(
    runs: Runs,
    stock: Stock,
    cases: Mapping[str, Case],
    chosen: Mapping[Key, Candidate],
    seeds: int,
    rounds: int | None = None,
) -> dict[Key, list[Summary]]:
    """The runs of every row as it was chosen."""
    todo = {}
    for key, candidate in chosen.items():
        case = cases[key[0]]
        settings = {"rounds": rounds or case.rounds_of(key[1]), "eval_every": case.eval_every}
        todo[key] = setting(key, case, candidate, settings)
    return runs(todo, stock, range(seeds), ("by_round",))


def setting(key: Key, case: Case, candidate: Candidate, settings: dict[str, Any]) -> Setting:
    """A candidate of a row, and how it is run."""
    title, label = key
    method, own = candidate
    varied = {"lr": method.as_dict()["lr"], "channel": own.get("channel", "none"), "data": title}
    if label.startswith(("LBGM", "LG-FedAvg")):
        varied["steps"] = method.as_dict()["steps"]
    run = {"sample": case.heard, **settings, **own}
    return Setting(method, run, title, title, label, varied)


def reached(
    label: str, candidate: Candidate, summaries: Sequence[Summary], goals: Goals
) -> tuple[Curve, dict[str, Any]]:
    """The curve of one row, and what it made of the goals."""
    method, own = candidate
    drawn = curve(label, [_numbers(row) for summary in summaries for row in summary["by_round"]])
    fields = method.as_dict()
    figures: dict[str, Any] = {"lr": fields["lr"]}
    if TUNED in label:
        figures |= {"steps": fields["steps"], "channel": own["channel"]}
    last = merged(label, summaries)["accuracy"]["mean"]
    return drawn, {**figures, **goals.reached(drawn), "last": last}


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A round as it was before it was stored: what is not finite is null in JSON."""
    return {name: math.nan if value is None else value for name, value in row.items()}
