"""The chosen settings as a file that `idiolect run --config` takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from ...core.knobs import build, check, kinds_of, written
from ...core.toml import toml_sections
from ...data import DATASETS
from ...method import Method
from ...methods import METHODS
from ...models import MODELS, options_of
from ...run.plan import Plan
from ...run.settings import Settings


def settings_text(
    name: str,
    method: Method,
    run: Mapping[str, Any],
    plan: Plan | None,
    why: str,
    told: Collection[str] = (),
) -> str:
    """[method] and [run]; [data], [model] and [task] too where they have names.

    `told`: fields of the method that stand there even where they have their default.
    """
    sections = {
        "method": {"name": name, **_changed(name, method, told)},
        "run": _typed_run(run),
    }
    if plan is not None:
        sections["run"] |= {"loss": plan.loss} if plan.loss else {}
        sections["task"] = dict(plan.task_options)
        sections["data"] = {
            "name": plan.data,
            **_typed(DATASETS.find(plan.data), plan.data_options),
        }
        if plan.model:
            options = _typed(options_of(MODELS.find(plan.model)), plan.model_options)
            sections["model"] = {"name": plan.model, **options}
    comment = "".join(f"# {line}\n" for line in why.splitlines())
    return comment + toml_sections(sections)


def _changed(name: str, method: Method, told: Collection[str]) -> dict[str, Any]:
    """The fields that are told, and those that differ from what the name alone gives."""
    fixed = METHODS.find(name)[1] if name in METHODS.known() else {}
    values = method.as_dict()
    return {
        f.name: values[f.name]
        for f in dataclasses.fields(method)
        if f.name in told
        or (f.metadata and getattr(method, f.name) != fixed.get(f.name, f.default))
    }


def _typed_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as given, in their types; but for targets, which would stop the run."""
    values = build(Settings, dict(run), "run").as_dict()
    told = [name for name in run if name not in ("target_accuracy", "target_value")]
    return {name: values[name] for name in told if values[name] is not None}


def _typed(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options in the types of their fields: the command line has them as text."""
    known = {f.name: f for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    kinds = kinds_of(cls) if known else {}
    return {
        name: written(known[name], check(name, value, known[name], kinds[name]))
        if name in known and known[name].metadata
        else value
        for name, value in given.items()
    }
