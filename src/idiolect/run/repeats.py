"""The repeats of a run: one per seed, on the same data or each on data of its own.

Data of its own are what another seed of the data set draws (see `DataSeeds`): another partition,
another split, or other samples. Method, model and settings are the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..core.documents import encode
from ..core.knobs import SettingError
from ..core.text import warnings_once
from ..data.federation import Federation
from ..method import Method
from ..report.tables import baseline_row, mean_row
from ..task.groups import AnyTask, tasks_of
from .identity import RunIdentity
from .predict import facts_of
from .prepare import RunParts, prepare, reported_loss
from .settings import Settings
from .target_units import SCALE

Repeats = Mapping[int, RunParts]  # of every seed of the run
BY_SEED = "by_seed"  # facts of the data: those of each repeat, by its seed as text


def federations(federation: Federation, settings: Settings) -> dict[int, Federation]:
    """The data of every seed of a run; two that are the same are refused."""
    seeds = range(settings.seed, settings.seed + settings.seeds)
    data_seeds = settings.data_seeds.of(federation).values
    if not data_seeds:
        return dict.fromkeys(seeds, federation)
    drawn = {seed: federation.redrawn(t) for seed, t in zip(seeds, data_seeds, strict=True)}
    first = drawn[settings.seed]
    for data_seed, other in zip(data_seeds[1:], list(drawn.values())[1:], strict=True):
        if other.fingerprint() == first.fingerprint():
            raise SettingError(
                f"data_seeds: seeds {data_seeds[0]} and {data_seed} draw the same data from "
                f"{federation.name!r}, whose clients and split are given; leave data_seeds out"
            )
    return drawn


def prepare_repeats(
    method: Method, task: AnyTask, federation: Federation, settings: Settings
) -> dict[int, RunParts]:
    """The parts of every repeat, checked before the first one starts."""
    if settings.data_seeds:
        settings = replace(settings, data_seeds=settings.data_seeds.of(federation))
    drawn = federations(federation, settings)
    first = prepare(method, task, drawn[settings.seed], settings)
    if not settings.data_seeds:
        return dict.fromkeys(drawn, first)
    repeats = {settings.seed: first}
    with warnings_once():
        for seed, data in list(drawn.items())[1:]:
            repeats[seed] = prepare(first.method, task, data, first.settings)
            _check_steps(first, repeats[seed])
    return repeats


def _check_steps(first: RunParts, other: RunParts) -> None:
    """Refuse a repeat whose data make it another method; see `stable_steps`."""
    if other.method.as_dict() == first.method.as_dict() and other.settings == first.settings:
        return
    raise SettingError(
        f"data_seeds: the default step size of the first repeat is too large for another one "
        f"({'; '.join(other.changes)}); give a step size, which is the same for all"
    )


def with_data_of_repeats(identity: RunIdentity, repeats: Repeats) -> RunIdentity:
    """The identity of a run whose repeats have data of their own."""
    first = next(iter(repeats.values()))
    data_seeds = first.settings.data_seeds.values
    if not data_seeds or first.federation.draw is None:
        return identity
    by_seed = {}
    for data_seed, (seed, parts) in zip(data_seeds, repeats.items(), strict=True):
        scale = {SCALE: encode(parts.target_scale)} if parts.target_scale else {}
        by_seed[str(seed)] = {"data_seed": data_seed, **facts_of(parts.federation), **scale}
    facts = {"drawn": first.federation.draw.draws, BY_SEED: by_seed}
    return replace(identity, data=identity.data | facts)


def trivial_row(task: AnyTask, federation: Federation, settings: Settings) -> dict[str, Any] | None:
    """The trivial baseline as a row of a table, the mean over the data of all repeats.

    Each client gives one constant answer. None where that has no meaning.
    """
    s = settings
    every = federations(federation, s).values() if s.data_seeds else [federation]
    rows = [
        baseline_row(
            data, reported_loss(tasks_of(task)[0], data, s), s.metrics, s.metric, s.positive
        )
        for data in every
    ]
    rows_with_values = [row for row in rows if row is not None]
    return mean_row(rows_with_values) if rows_with_values else None


def facts_of_repeat(data: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """What a record says of the data of one of its seeds."""
    by_seed = data.get(BY_SEED)
    if by_seed is None:
        return dict(data)
    facts = by_seed.get(str(seed)) if isinstance(by_seed, dict) else None
    if not isinstance(facts, dict):
        raise SettingError(f"record: it does not describe the data of seed {seed}")
    return {name: value for name, value in facts.items() if name != "data_seed"}


def data_seed_of(data: Mapping[str, Any], seed: int) -> int | None:
    """The seed of the data of one of a record's seeds; None where all have the same data."""
    facts_of_repeat(data, seed)  # refuses a seed that is not there
    value = data.get(BY_SEED, {}).get(str(seed), {}).get("data_seed")
    return value if isinstance(value, int) else None
