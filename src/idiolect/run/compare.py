"""Several methods on the same data, fair by construction: Local at equal compute stands beside them."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError
from ..data.federation import Federation
from ..report import curves
from ..report.goals import Curve, Goals
from ..task.task import Task
from .plan import Plan
from .run import Progress, check, run
from .settings import Settings


def goals_of(settings: Sequence[Settings], count: str = "bytes") -> Goals:
    """The goals in the settings of a comparison.

    Refuses goals that differ between its rows, and goals that no evaluated round could show.
    """
    first = settings[0]
    for s in settings:
        for name in ("bytes", "target_accuracy"):
            if getattr(s, name) != getattr(first, name):
                raise SettingError(
                    f"{name}: {getattr(s, name)!r} is not accepted; "
                    "a comparison has one for all its methods"
                )
            if getattr(s, name) and not s.eval_every:
                raise SettingError(
                    f"eval_every: 0 is not accepted with {name} in a comparison; "
                    "a whole number >= 1, to see it pass"
                )
    return Goals(first.bytes, first.target_accuracy, count)


def compare(
    plans: list[Plan],
    federation: Federation,
    task: Task,
    directory: Path,
    *,
    baselines: bool = True,
    count: str = "bytes",
    resume: bool = False,
    report: Callable[[str, int, int], Progress] | None = None,
) -> list[dict[str, Any]]:
    """Run every plan (they share data and model, and all settings but their own) in its own folder; the summaries, in order.

    The settings `bytes` and `target_accuracy` stop no run here: every summary says in `at_budget` and `to_target` what the method made
    of them (and `at_budget_values`, `to_target_values`: the same numbers read as 32-bit words, the lp-proj paper's unit; `count` says
    which of the two curves.png shows). The directory gets curves.csv and, with matplotlib, curves.png.
    """
    goals = goals_of([plan.make_settings() for plan in plans], count)
    for plan in plans:  # refuse all that is bad before any work
        check(plan.make_method(), task, federation, plan.make_settings())
    if (goals.budget or goals.target) and not federation.classes:
        raise SettingError(
            "data: a budget and a target are about accuracy, and these data have real targets; leave bytes and target out"
        )
    if not resume:
        if (directory / "compare.json").exists() or (directory / "settings.json").exists():
            raise SettingError(
                f"directory: {directory} already holds a run; choose another, or: idiolect resume {directory}"
            )
        directory.mkdir(parents=True, exist_ok=True)
        saved = {"plans": [p.as_dict() for p in plans], "baselines": baselines, "count": count}
        (directory / "compare.json").write_text(json.dumps(saved, indent=1))
    drawn: list[Curve] = []
    one = _Runner(federation, task, directory, goals, drawn, resume, report)
    rows = [one(i, plan, _own(plan)) for i, plan in enumerate(plans)]
    if baselines and (local := equal_local(plans, rows)):
        rows.append(one(len(plans), local, " (as many gradients as the most costly)"))
    try:
        curves.write(drawn, goals, directory)
    except OSError as error:  # the runs are worth more than their picture
        print(f"warning: the curves could not be written ({error.strerror})", file=sys.stderr)
    return rows


@dataclasses.dataclass(frozen=True)
class _Runner:
    """Runs one row of a comparison and keeps its curve."""

    federation: Federation
    task: Task
    directory: Path
    goals: Goals
    drawn: list[Curve]
    resume: bool
    report: Callable[[str, int, int], Progress] | None

    def __call__(self, number: int, plan: Plan, note: str) -> dict[str, Any]:
        plan = dataclasses.replace(
            plan,
            settings={
                k: v for k, v in plan.settings.items() if k not in ("bytes", "target_accuracy")
            },
        )
        settings, folder = plan.make_settings(), self.directory / f"{number}-{plan.method}"
        progress = self.report(plan.method, settings.seed, settings.rounds) if self.report else None
        begun = self.resume and (folder / "settings.json").exists()
        result = run(
            plan.make_method(),
            self.task,
            self.federation,
            directory=folder,
            origin=plan.as_dict(),
            progress=progress,
            resume=begun,
            **plan.run_settings,
        )
        label = result.label + note
        self.drawn.append(curves.curve(label, result.rounds_table()))
        return result.summary() | {"label": label} | self.goals.reached(self.drawn[-1])


def _own(plan: Plan) -> str:
    """The settings of a row alone, for its label."""
    return "".join(f" {name}={value}" for name, value in plan.own.items())


def equal_local(plans: list[Plan], rows: list[dict[str, Any]]) -> Plan | None:
    """Local with as many gradients a client as the most costly method; None where such a row stands there already.

    It has the settings that all rows share. Where all have as many liars it has the same ones, so that the same clients are counted.
    """
    most = max(r["gradients_per_client"] for r in rows)
    if (
        any(r["method"] == "local" and r["gradients_per_client"] >= 0.99 * most for r in rows)
        or not most
    ):
        return None
    settings = [p.make_settings() for p in plans]
    alike = len({s.malicious for s in settings}) == 1
    liars = (
        {"attack": settings[0].attack, "malicious": settings[0].malicious}
        if alike
        else {"attack": "none", "malicious": 0.0}
    )
    local = dataclasses.replace(
        plans[0],
        method="local",
        own={k: v for k, v in liars.items() if plans[0].settings.get(k) != v},
    )
    rounds = max(local.make_settings().rounds, 1)
    return dataclasses.replace(local, method_fields={"steps": math.ceil(most / rounds)})
