"""Every combination of a grid with every seed, as one resumable job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from ..core.knobs import SettingError, build
from ..core.text import plural
from ..data.federation import Federation
from ..method import Method
from ..run.plan import AnyMethod, AnyModel, Plan, read_tasks
from ..run.settings import Settings
from ..run.typed_settings import RunSettings
from ..task.groups import sizes_text
from .many import Stock, Sweep, Watch, run_many
from .space import Grid, check_names, combinations, read_grid, refuse_data_and_model


def sweep(
    methods: AnyMethod | Plan | Sequence[AnyMethod | Plan],
    task: AnyModel,
    federation: Federation,
    *,
    grid: Mapping[str, Any] | Iterable[str] = (),
    jobs: int = 0,
    directory: str | Path | None = None,
    watch: Watch | None = None,
    show_test: bool = False,
    **settings: Unpack[RunSettings],
) -> Sweep:
    """Every combination of a grid with every seed, as one resumable job.

    `grid` has names with values: fields of the methods (`lr`) or run settings (`sample`); a method
    that has no such field is run once for it. Methods are as in `compare`. Runs are spread over
    `jobs` processes (0: as many as there are cores), each with one thread unless `threads` says
    more; results do not depend on it. With a directory, each run is stored there as it ends, and a
    sweep that was stopped does only what is missing.

    The table of a sweep has figures on validation data, by which a setting may be chosen; with
    `show_test` those on test data. `rows()` and the stored table have both.

    >>> import torch
    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> sweep = il.sweep("fedavg", torch.nn.Linear(60, 10), federation, grid={"lr": [0.01, 0.1]},
    ...                  seeds=2, jobs=1, rounds=2)
    >>> [(row["lr"], row["seed"]) for row in sweep.rows()]
    [(0.01, 0), (0.01, 1), (0.1, 0), (0.1, 1)]
    """
    whole, _ = read_tasks(task, federation)
    specs = [methods] if isinstance(methods, str | Method | Plan | type) else list(methods)
    own_objects = {"settings": dict(settings), "data": "", "model": ""}
    plans = [Plan.of(spec, **own_objects) for spec in specs]
    axes = read_grid(grid)
    refuse_data_and_model("grid", axes, "of objects; sweep over plans, where data have names")
    plans = [plan.with_data_seeds(federation) for plan in plans]
    points = _combinations(plans, [plan.method for plan in plans], axes)
    swept = run_many(
        points,
        Stock({"": federation}, {"": whole}),
        _seeds(build(Settings, dict(settings), "run")),
        jobs=jobs,
        directory=None if directory is None else Path(directory),
        watch=watch,
        title=f"{federation.name}: {plural(federation.clients, 'client')}, d = {sizes_text(whole)}",
        manifest={"grid": axes},
    )
    swept.show_test = show_test
    return swept


def sweep_plans(
    plans: Sequence[Plan],
    grid: Mapping[str, Any] | Iterable[str] = (),
    *,
    jobs: int = 0,
    directory: Path | None = None,
    watch: Watch | None = None,
) -> Sweep:
    """The same for plans, whose data and model have names: the grid may vary those too."""
    axes = read_grid(grid)
    names = [plan.method + _values(plan.method_fields) + plan.note for plan in plans]
    stock = Stock()
    points = [stock.add(point) for point in _combinations(plans, names, axes)]
    points = [point.with_data_seeds(stock.federation(point.data)) for point in points]
    one = stock.federation(points[0].data)
    several = len(stock.data) > 1
    return run_many(
        points,
        stock,
        _seeds(plans[0].make_settings()),
        jobs=jobs,
        directory=directory,
        watch=watch,
        title=f"{len(stock.data)} data sets"
        if several
        else f"{one.name}: {plural(one.clients, 'client')}",
        manifest={"plans": [plan.as_dict() for plan in plans], "grid": axes},
    )


def _combinations(plans: Sequence[Plan], names: Sequence[str], grid: Grid) -> list[Plan]:
    """Every plan with every choice of values, called by its name in the table."""
    if not plans:
        raise SettingError("methods must be at least one, got none")
    check_names("grid", grid, [plan.method_class for plan in plans])
    named = [Plan.of(plan, name=name) for plan, name in zip(plans, names, strict=True)]
    return [point for plan in named for point in combinations(plan, grid)]


def _values(values: Mapping[str, Any]) -> str:
    return "".join(f" {name}={value}" for name, value in values.items())


def _seeds(settings: Settings) -> range:
    return range(settings.seed, settings.seed + settings.seeds)
