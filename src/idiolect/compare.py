"""Several methods on the same data, fair by construction: Local at equal compute stands beside them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .data.federation import Federation
from .fields import SettingError
from .plan import Plan
from .run import Progress, check, run
from .task import Task


def compare(
    plans: list[Plan],
    federation: Federation,
    task: Task,
    directory: Path,
    *,
    baselines: bool = True,
    resume: bool = False,
    report: Callable[[str, int, int], Progress] | None = None,
) -> list[dict[str, Any]]:
    """Run every plan (they share data, model and settings) in its own folder; the summaries, in order."""
    for plan in plans:  # refuse all that is bad before any work
        check(plan.make_method(), task, federation, plan.make_settings())
    if not resume:
        if (directory / "compare.json").exists() or (directory / "settings.json").exists():
            raise SettingError(f"directory: {directory} already holds a run; choose another, or: idiolect resume {directory}")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "compare.json").write_text(json.dumps({"plans": [p.as_dict() for p in plans], "baselines": baselines}, indent=1))
    rows = [_one(i, plan, federation, task, directory, resume, report) for i, plan in enumerate(plans)]
    if baselines and (local := equal_local(plans, rows)):
        rows.append(_one(len(plans), local, federation, task, directory, resume, report))
        rows[-1]["label"] += " (as many gradients as the most costly)"
    return rows


def _one(number: int, plan: Plan, federation: Federation, task: Task, directory: Path, resume: bool, report: Any) -> dict[str, Any]:
    settings, folder = plan.make_settings(), directory / f"{number}-{plan.method}"
    progress = report(plan.method, settings.seed, settings.rounds) if report else None
    begun = resume and (folder / "settings.json").exists()
    result = run(
        plan.make_method(), task, federation, directory=folder, origin=plan.as_dict(), progress=progress, resume=begun, **plan.settings
    )
    return result.summary()


def equal_local(plans: list[Plan], rows: list[dict[str, Any]]) -> Plan | None:
    """Local with as many gradients a client as the most costly method; None where such a row stands there already."""
    most = max(r["gradients_per_client"] for r in rows)
    if any(r["method"] == "local" and r["gradients_per_client"] >= 0.99 * most for r in rows) or not most:
        return None
    rounds = max(plans[0].make_settings().rounds, 1)
    return dataclasses.replace(plans[0], method="local", method_fields={"steps": math.ceil(most / rounds)})
