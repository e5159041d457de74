"""Data that hosts load themselves, as a run's own process knows them: no sample is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from ..core.knobs import SettingError
from ..data.federation import Census, Federation
from ..task.target_scale import TargetScale
from ..task.trial import Behaviour
from .metrics import Metric, PositiveClass, positive_class
from .scores import Scores


def _nowhere() -> Federation:
    raise SettingError("data: this federation has no loader")


@dataclass(frozen=True)
class LazyFederation(Census):
    """A census, with what identity and tables of a run tell of the samples themselves."""

    sha256: str = ""  # the fingerprint of the data
    baseline: Scores | None = None  # of each client's own constant answer, on test data
    behaviour: Behaviour | None = None  # of the run's model and loss, as tried on the samples
    target_scale: TargetScale | None = None  # of real targets that are standardised in training
    training_classes: tuple[int, ...] = ()  # training samples of each class, of all clients
    test_groups: tuple[int, ...] | None = None  # of each client, see Federation.group_counts
    steepness: tuple[float, ...] = ()  # of a regression's loss, see run/step_sizes.py
    # behaviour and steepness of each model, where groups of clients have unlike ones
    by_group: tuple[tuple[Behaviour, tuple[float, ...]], ...] = ()
    load: Callable[[], Federation] = _nowhere  # the data themselves; it can be sent to a host

    def fingerprint(self) -> str:
        return self.sha256

    def of_group(self, number: int) -> LazyFederation:
        """The same with what is known of the model of a group of clients."""
        behaviour, steepness = self.by_group[number]
        return replace(self, behaviour=behaviour, steepness=steepness)

    @cached_property
    def loaded(self) -> Federation:
        """The data themselves, loaded into this process."""
        return self.load()

    def baseline_with(self, metrics: Sequence[Metric]) -> Scores | None:
        """The baseline with these metrics alone."""
        if self.baseline is None:
            return None
        names = [m.name for m in metrics]
        by_name = {name: m for name, m in self.baseline.metrics.items() if name in names}
        return replace(self.baseline, metrics=by_name)


def whole(federation: Federation) -> Federation:
    """The data with their samples, in this process."""
    return federation.loaded if isinstance(federation, LazyFederation) else federation


def training_classes(federation: Federation) -> tuple[int, ...]:
    """The training samples of each class, of all clients; () for real targets."""
    if isinstance(federation, LazyFederation):
        return federation.training_classes
    return tuple(federation.class_counts("train").sum(0).tolist()) if federation.classes else ()


def test_groups(federation: Federation) -> list[int] | None:
    """How many groups (patients) each client's test samples are of; None without groups."""
    if isinstance(federation, LazyFederation):
        return None if federation.test_groups is None else list(federation.test_groups)
    return None if federation.groups is None else federation.group_counts("test").tolist()


def positive_of(federation: Federation, wanted: str = "") -> PositiveClass | None:
    """The positive class of two; None for other data, or where nothing tells which it is.

    A census of sites has no samples to count: there the labels must tell, or the setting.
    """
    has_samples = isinstance(federation, LazyFederation) or not isinstance(federation, Census)
    names = federation.class_names or range(federation.classes)
    counts = partial(training_classes, federation) if has_samples else None
    return positive_class(names, wanted, counts)
