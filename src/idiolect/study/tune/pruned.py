"""A run of a study that is stopped when it is hopeless, by its validation data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ...core.knobs import SettingError, build
from ...host.metrics import direction
from ...run.callbacks import Moment
from ...run.settings import Settings
from ..sweep import Setting
from ..sweep.trial import Trial
from .search import AT_THE_END

STARTUP = 5  # trials that are never stopped
LOOKS = 10  # evaluated rounds per run
NEVER = 2**31  # evaluations without a better one: it makes a run look at validation data

Curve = dict[int, float]  # rounds done -> the figure on validation data


@dataclass(frozen=True, eq=False)
class PrunedTrial(Trial):
    """A trial that Optuna's median pruner watches.

    It is stopped at an evaluated round where the best it has reached is worse than the median of
    what earlier trials had at that round. `earlier` are the finished ones, so that a worker process
    decides as this one would.
    """

    study: str = ""  # a digest of the space: the same setting is another trial in another study
    earlier: tuple[Curve, ...] = ()

    def key(self) -> str:
        return f"{super().key()}-{self.study}"

    def train(self) -> dict[str, Any]:
        settings = build(Settings, self.setting.settings(self.seed), "run")
        study = begun_study(settings, self.earlier)
        trial = study.ask()
        curve: Curve = {}

        def look(moment: Moment) -> None:
            value = moment.figures[f"valid_{settings.watched}"]
            if math.isnan(value):
                return
            curve[moment.round] = value
            trial.report(value, moment.round)
            if trial.should_prune():
                moment.stop()

        with quiet():
            found = self.trained(look)
        pruned = found["stopped"] == ["callback"]
        return {
            **found,
            "curve": [[step, value] for step, value in curve.items()],
            "pruned": pruned,
        }


def begun_study(settings: Settings, earlier: tuple[Curve, ...]) -> Any:
    """A study that knows what earlier trials had at each round."""
    optuna = need_optuna()
    higher = direction(settings.watched, settings.metrics)
    pruner = optuna.pruners.MedianPruner(STARTUP, settings.rounds // 5)
    with quiet():
        study = optuna.create_study(
            direction="maximize" if higher else "minimize",
            sampler=optuna.samplers.RandomSampler(seed=0),
            pruner=pruner,
        )
        for curve in earlier:
            if curve:
                last = curve[max(curve)]
                study.add_trial(optuna.trial.create_trial(value=last, intermediate_values=curve))
    return study


def watched(point: Setting, measure: str) -> Setting:
    """The same training, with a look at validation data every tenth of its rounds."""
    run = {name: value for name, value in point.run.items() if name not in AT_THE_END}
    settings = build(Settings, point.settings(0), "run")
    if not settings.patience:
        every = max(1, settings.rounds // LOOKS)
        run |= {"eval_every": every, "patience": NEVER, "patience_metric": measure}
    return replace(point, run=run)


def need_optuna() -> Any:
    """Optuna, which is an optional part."""
    try:
        import optuna
    except ImportError:
        raise SettingError(
            "trials: Optuna is not installed, and it does this search; "
            "pip install 'idiolect[tune]', or give a grid"
        ) from None
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna says nothing of its own in here."""
    logging = need_optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
