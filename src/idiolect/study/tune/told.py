"""Trials of a study: what came of them, for Optuna and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.knobs import SettingError
from ..sweep import Setting, Stock, Sweep
from ..sweep.trial import Trial
from .cost import cost_of
from .criterion import Criterion
from .pruned import Curve, need_optuna
from .search import Search

ENOUGH = 10  # finished trials from which on importance is estimated


@dataclass
class Told:
    """One trial of the study and what came of it."""

    trial: Any  # Optuna's
    point: Setting
    setting: Setting  # as it is searched
    runs: list[tuple[Trial, dict[str, Any]]] = field(default_factory=list)
    why: str = ""  # it failed

    @property
    def pruned(self) -> bool:
        return bool(self.runs) and self.runs[0][1]["pruned"]

    @property
    def curve(self) -> Curve:
        return {int(step): value for step, value in self.runs[0][1]["curve"]}


def tell(study: Any, one: Told, figure_of: Any) -> str:
    """The outcome, for Optuna; in words, for people."""
    optuna = need_optuna()
    if one.runs:
        for step, value in one.curve.items():
            one.trial.report(value, step)
    figures = [figure_of(outcome) for _, outcome in one.runs]
    if one.why or None in figures:
        study.tell(one.trial, state=optuna.trial.TrialState.FAIL)
        return f"failed: {one.why or 'no finite figure'}"
    if one.pruned:
        study.tell(one.trial, state=optuna.trial.TrialState.PRUNED)
        return "stopped early"
    mean = sum(figures) / len(figures)
    study.tell(one.trial, mean)
    return f"{mean:.4f}"


def importance_of(study: Any) -> dict[str, float]:
    """fANOVA's; empty where too few trials were finished to tell."""
    optuna = need_optuna()
    done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    if len(done) < ENOUGH or len({trial.value for trial in done}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}


def found(
    told: Sequence[Told],
    criterion: Criterion,
    stock: Stock,
    shares: dict[str, float],
    seconds: float,
) -> Search:
    """The search that the trials are; those that were stopped or failed are lines of its table."""
    whole = [one for one in told if one.runs and not one.why]
    done: dict[Trial, dict[str, Any]] = {}
    for one in whole:
        if not one.pruned:
            for trial, outcome in one.runs:  # all seeds of a trial are one setting
                done[Trial(one.setting, trial.seed, trial.digest)] = outcome
    if not done:
        why = next((one.why for one in told if one.why), "all were stopped early")
        raise SettingError(f"tune: no trial was finished: {why}")
    spent = Sweep({trial: outcome for one in whole for trial, outcome in one.runs})
    clients = {name: stock.federation(name).clients for name in stock.data}
    samples = {name: stock.federation(name).sizes("valid").numpy() for name in stock.data}
    points = {one.setting: one.point for one in whole}
    lines = tuple(_line(one, criterion) for one in told if one.pruned or one.why)
    return Search(
        Sweep(done), criterion, points, samples, cost_of(spent, clients, seconds), lines, shares
    )


def _line(one: Told, criterion: Criterion) -> dict[str, Any]:
    line: dict[str, Any] = {"method": one.point.name, **one.point.varied}
    if one.why:
        return {**line, "tied": False, "stopped": one.why}
    summary: Mapping[str, Any] = one.runs[0][1]
    return {
        **line,
        "valid": criterion.figure(summary),
        "tied": False,
        "gradients_per_client": summary["gradients_per_client"],
        "rounds": summary["rounds"],
        "stopped": "early",
    }
