"""What tests of experiments share."""

import pytest

from idiolect.study.many import Trial


@pytest.fixture
def trained(monkeypatch):
    """The runs that were really made."""
    ran = []
    train = Trial.train

    def counting(trial):
        ran.append(trial.describe())
        return train(trial)

    monkeypatch.setattr(Trial, "train", counting)
    return ran
