"""A census tells the same of clients as their data do, and takes no memory for samples."""

import pytest
import torch

from idiolect.core.types import leaves
from idiolect.data import Federation, load
from idiolect.data.federation import Census
from idiolect.data.splits import SPLITS


@pytest.fixture(params=["one tensor", "two tensors"])
def data(request):
    if request.param == "one tensor":
        return load("synthetic", clients=5, sizes="power", minimum=5)
    inputs = {"words": torch.randint(0, 9, (20, 3)), "age": torch.rand(20)}
    return Federation.from_arrays(inputs, torch.randint(0, 2, (20,)), [k // 4 for k in range(20)])


@pytest.mark.parametrize("who", [[3, 1], [0, 1, 2, 3, 4]])
def test_a_census_has_the_sizes_and_forms_of_the_data(data, who):
    census = Census.of_data(data).of(who)
    expected = data.of(who)
    assert census.ids == expected.ids and census.samples == expected.samples
    assert (census.classes, census.name) == (expected.classes, expected.name)
    for split in SPLITS:
        assert torch.equal(census.offsets[split], expected.offsets[split])
    for ours, theirs in zip(leaves(census.inputs), leaves(expected.inputs), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


def test_its_samples_are_zeros_that_take_no_memory(data):
    census = Census.of_data(data).of([1, 2]).to("cpu", torch.float64)
    for t in (*leaves(census.inputs), *leaves(census.targets)):
        assert t.untyped_storage().nbytes() <= 8 and not bool(t.any())
        assert t.dtype in (torch.float64, torch.int64)


def test_its_fingerprint_knows_forms_and_sizes_only(data):
    census = Census.of_data(data)
    assert census.fingerprint() == Census.of_data(census).fingerprint()
    assert census.fingerprint() != census.of([1, 0, 2, 3, 4]).fingerprint()
