"""The rows of the table: a line per candidate, and one for each client's constant answer."""

from __future__ import annotations

import math
from typing import Any

from ...host.baselines import trivial
from ...host.scores import summarise
from ...task.losses import Loss
from .decision import UNDECIDED
from .estimate import Gain
from .holdout import GIVEN, Holdout
from .training import STEP, Candidate

Line = dict[str, Any]


def candidate_line(c: Candidate, value: float, gain: Gain | None) -> Line:
    """A candidate: its figure, its gain over Local, what it costs, how it was trained."""
    return {
        "label": c.label,
        "method": c.name,
        "value": value,
        "gain": gain and gain.mean,
        "low": gain and gain.low,
        "high": gain and gain.high,
        "bytes": {"up": c.bytes_up, "down": c.bytes_down},
        "rounds": c.rounds,
        "gradients": c.gradients,
        "step_factor": STEP**c.power,  # times the step sizes of its defaults
        "step_factors": [STEP**power for power in c.tried],  # that were tried
        "fields": c.method(c.power).as_dict(),
        "trainings": len(c.found),
    }


def constant_line(holdout: Holdout, seeds: int, loss: Loss, metric: str) -> Line | None:
    """Each client's one constant answer, on the same held-out samples; None without a meaning."""
    total, samples = 0.0, 0
    for seed in range(1 if holdout.kind == GIVEN else seeds):
        federation, held = holdout.under(seed)
        scores = trivial(federation, loss, split="valid")
        value = math.nan if scores is None else summarise(scores)[metric]
        if math.isnan(value):
            return None
        total += value * len(held)
        samples += len(held)
    blank = dict.fromkeys(("gain", "low", "high", "bytes"))
    return {
        "label": "majority class" if holdout.data.classes else "training mean",
        "method": "constant",
        "value": total / samples,
        **blank,
        "rounds": 0,
        "gradients": 0,
        "step_factor": None,
        "step_factors": [],
        "fields": {},
        "trainings": 0,
    }


def beaten_by_constant(table: list[Line], constant: Line, choice: str, metric: str) -> str:
    """A remark where no candidate, or not the chosen one, does better than a constant answer."""
    sign = 1 if metric == "accuracy" else -1
    better = [r["label"] for r in table if sign * (r["value"] - constant["value"]) > 0]
    answer = f"one constant answer per client ({constant['label']})"
    if not better:
        return f"no candidate does better than {answer}: on these data models tell nothing more"
    if choice not in (UNDECIDED, *better):
        return f"{choice} does no better than {answer}"
    return ""
