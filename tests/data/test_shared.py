"""Data in a file that several processes map."""

import pickle
from dataclasses import replace
from pathlib import Path

import torch

from idiolect.data.shared import shared
from idiolect.testing import federation

DATA = federation()


def test_the_same_data_in_another_process():
    with shared({"a": DATA}) as files:
        sent = pickle.dumps(files["a"])
        assert len(sent) < DATA.inputs.numel() * 4  # places, and not the samples
        opened = pickle.loads(sent).open()
        assert opened.fingerprint() == DATA.fingerprint()
        assert opened.ids == DATA.ids and opened.classes == DATA.classes
        folder = Path(files["a"].inputs.path).parent
    assert not folder.exists()


def test_what_one_writes_the_others_do_not_see():
    with shared({"a": DATA}) as files:
        one, other = files["a"].open(), files["a"].open()
        one.inputs.zero_()
        assert torch.equal(other.inputs, DATA.inputs)


def test_several_inputs_and_samples_of_no_size():
    both = replace(
        DATA,
        inputs={"x": DATA.inputs, "none": torch.empty(len(DATA.inputs), 0)},
        targets=DATA.targets,
    )
    with shared({"a": both}) as files:
        opened = files["a"].open()
        assert torch.equal(opened.inputs["x"], DATA.inputs)
        assert opened.inputs["none"].shape == (len(DATA.inputs), 0)
