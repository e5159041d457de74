"""Scores of a host of another owner: of its clients, their samples and the metrics asked for."""

from dataclasses import replace

import pytest
import torch

from idiolect.data.federation import Census
from idiolect.host.host import HostSettings
from idiolect.host.metrics import MetricCounts, TargetForm, parse_metrics
from idiolect.host.remote_host import SiteProxy
from idiolect.host.scores import Scores

IDS = torch.tensor([3, 7])
METRICS = parse_metrics("auc,f1")
FORM = TargetForm(3)


@pytest.fixture
def host():
    sizes = {"train": [9, 9], "valid": [0, 0], "test": [4, 5]}
    census = Census.of_sizes(["a", "b"], sizes, classes=3, shape=(2,))
    return SiteProxy(census, IDS, HostSettings(metrics=METRICS), FORM)


def scores() -> Scores:
    measured = {
        m.name: MetricCounts(
            m,
            torch.zeros(2, m.width(FORM), dtype=torch.float64),
            torch.zeros(*m.shape(FORM), dtype=torch.int64),
        )
        for m in METRICS
    }
    ones = torch.ones(2, dtype=torch.float64)
    return Scores(
        IDS, ones, ones, torch.tensor([4, 5]), torch.zeros(2, dtype=torch.int64), measured
    )


def with_metric(name: str, **changes) -> Scores:
    found = scores()
    measured = replace(found.metrics[name], **changes)
    return replace(found, metrics={**found.metrics, name: measured})


def test_sound_scores_are_taken(host):
    host.check_scores({"test": scores()}, IDS, ("test",))
    few = replace(scores(), samples=torch.tensor([0, 5]), hits=torch.tensor([0.0, 5.0]))
    host.check_scores({"test": few}, IDS, ("test",))  # the owner does not tell the first one's


ODD = {
    "counts of another number of classes": with_metric(
        "f1", counts=torch.zeros(2, 2, dtype=torch.int64)
    ),
    "no counts": with_metric("auc", counts=torch.zeros(0, dtype=torch.int64)),
    "counts that would take all memory when they are added": with_metric(
        "f1", counts=torch.zeros(1, dtype=torch.int64).expand(1 << 20, 1)
    ),
    "counts per client": with_metric("auc", counts=torch.zeros(2, 3, 2, 9, dtype=torch.int64)),
    "wider rows": with_metric("auc", rows=torch.zeros(2, 99, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", ODD)
def test_a_metric_of_another_form_is_refused(host, name):
    with pytest.raises(ValueError, match="has another shape"):
        host.check_scores({"test": ODD[name]}, IDS, ("test",))


OTHER = {
    "another split": ({"train": scores()}, "the splits that were asked for"),
    "another client": ({"test": replace(scores(), wire_ids=IDS + 1)}, "every client that was"),
    "more samples": ({"test": replace(scores(), samples=IDS)}, "as many samples as were enrolled"),
    "more hits": (
        {"test": replace(scores(), hits=torch.tensor([9.0, 1.0]))},
        "hits must be from none",
    ),
    "gradients below none": ({"test": replace(scores(), gradients=-IDS)}, "gradients >= 0"),
}


@pytest.mark.parametrize("name", OTHER)
def test_scores_that_enrolled_clients_cannot_have_are_refused(host, name):
    found, message = OTHER[name]
    with pytest.raises(ValueError, match=message):
        host.check_scores(found, IDS, ("test",))
