"""Data sets that users bring, one per client: torch, lists, pictures, Hugging Face, Flower."""

import copy
import itertools
import random

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)

from idiolect import Federation
from idiolect.core.knobs import SettingError
from idiolect.data.read.samples import is_same

WHOLE = {"valid": 0, "test": 0}
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = np.arange(6) % 2


class Items(Dataset):
    """A data set of the user's own; counts how often it is asked."""

    def __init__(self, items):
        self.items = items
        self.asked = 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        self.asked += 1
        return self.items[i]


def tensors(n=6, value=1.0):
    return TensorDataset(torch.full((n, 2), value), torch.arange(n) % 2)


def dicts(n=6, **more):
    return [{"x": torch.ones(3), "label": k % 2, **more} for k in range(n)]


# -- tensors and pairs --


def test_pairs_one_by_one_and_tensors_at_once_make_the_same_federation(monkeypatch):
    one_by_one = Federation.from_datasets({k: list(tensors(value=k)) for k in (1, 2)})
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda *_: pytest.fail("asked one by one"))
    at_once = Federation.from_datasets({k: tensors(value=k) for k in (1, 2)})
    assert at_once.fingerprint() == one_by_one.fingerprint() and at_once.ids == (1, 2)


def test_subsets_and_joined_data_sets_of_tensors_are_read_at_once(monkeypatch):
    base = TensorDataset(torch.arange(9.0)[:, None], torch.arange(9) % 3)
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda *_: pytest.fail("asked one by one"))
    nested = Subset(Subset(base, [8, 3, 4]), [0, 2])
    f = Federation.from_datasets({"a": nested, "b": ConcatDataset([base, nested])}, **WHOLE)
    assert f.part(0, "train")[0].flatten().tolist() == [8, 4]
    assert f.part(1, "train")[0].flatten().tolist() == [*range(9), 8, 4]
    assert Federation.from_datasets(random_split(base, [4, 5])).sizes("train").sum() > 0


def test_every_sample_of_other_data_sets_is_asked_for_once_and_a_few_again():
    own = [Items([(np.ones(2, dtype=np.float32), k % 2) for k in range(50)]) for _ in range(6)]
    Federation.from_datasets(own)
    assert [items.asked for items in own] == [50 + 8] * 4 + [50] * 2


class Augmented(Items):
    """A data set with a random transform, which draws from one of the global generators."""

    def __init__(self, items, draw):
        super().__init__(items)
        self.draw = draw

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + float(self.draw()), y


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(()), np.random.rand, random.random, lambda: random.random() < 0.5],
    ids=["torch", "NumPy", "Python", "every other time"],
)
def test_a_random_transform_is_said_to_be_frozen(draw, capsys):
    items = [(np.ones(2, dtype=np.float32), k % 2) for k in range(20)]
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    Federation.from_datasets({"a": {"train": Augmented(items, draw), "test": Items(items)}})
    warning = capsys.readouterr().err
    assert "warning: client 'a' (train), sample" in warning and "self.training" in warning
    after = (torch.rand(()), np.random.rand(), random.random())
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    for _ in items:  # as many draws as there are samples
        draw()
    assert (torch.rand(()), np.random.rand(), random.random()) == after


def test_a_transform_that_is_random_by_its_name_is_said_to_be_frozen(capsys):
    class RandomErasing:
        """Of so few samples that reading some twice may not show it."""

    data_set = Items([(X[i], Y[i]) for i in range(6)])
    data_set.transform = RandomErasing()
    Federation.from_datasets([data_set])
    warning = capsys.readouterr().err
    assert "whose transform RandomErasing is random" in warning and "augment=" in warning


def test_samples_that_stay_the_same_are_not_said_to_change(capsys):
    picture = Image.new("L", (4, 4))
    samples = [(np.array([1.0, np.nan]), 0), (torch.tensor([1.0, torch.nan]), "a"), (picture, 1)]
    samples.append(({"a": [1, 2], "b": (torch.ones(2), True)}, 1))
    for sample in samples:
        assert is_same(sample, copy.deepcopy(sample))
    for one, other in itertools.permutations([[1, 2], [1, 3], [1], picture, torch.ones(2), "a"], 2):
        assert not is_same((one,), (other,))
    Federation.from_datasets([Items([(X[i], Y[i]) for i in range(6)])])
    assert "warning" not in capsys.readouterr().err


def test_a_client_may_be_a_pair_of_arrays():
    f = Federation.from_datasets({"a": (X, Y), "b": (pd.DataFrame(X), pd.Series(Y))}, **WHOLE)
    assert torch.equal(f.part(0, "train")[0], f.part(1, "train")[0])
    f = Federation.from_datasets({"a": (X, ["u"] * 6), "b": (X, ["v"] * 6)})
    assert f.class_names == ("u", "v")


@pytest.mark.parametrize("triple", [[(torch.ones(2), 0, torch.ones(1))] * 4, None])
def test_triples_are_refused_with_a_hint_that_works(triple):
    data = triple or TensorDataset(torch.ones(4, 2), torch.zeros(4).long(), torch.ones(4, 1))
    with pytest.raises(
        SettingError,
        match=r"client 'a', sample 0 must be a pair \(input, target\) or a dict, got a",
    ):
        Federation.from_datasets({"a": data})
    f = Federation.from_datasets({"a": data}, sample=lambda s: ((s[0], s[2]), s[1]))
    assert [tuple(t.shape) for t in f.inputs] == [(4, 2), (4, 1)]


# -- dicts --


def test_keys_of_dicts_are_guessed_with_a_word(capsys):
    f = Federation.from_datasets([dicts(path="a.png", idx=3)] * 2)
    assert f.inputs.shape == (12, 3) and f.classes == 2
    said = capsys.readouterr().err
    assert "inputs are 'x', the target is 'label'; inputs= and target= name others" in said
    assert "left out are 'path', 'idx'" in said


def test_keys_of_dicts_may_be_named(capsys):
    samples = dicts(n=6, other=torch.zeros(2), kind="b")
    named = Federation.from_datasets([samples], inputs=["x", "other"], target="label")
    assert {k: tuple(v.shape) for k, v in named.inputs.items()} == {"x": (6, 3), "other": (6, 2)}
    assert not capsys.readouterr().err
    assert Federation.from_datasets([samples], inputs="x", target="kind").class_names == ("b",)


def test_numbers_of_a_dict_are_features():
    samples = [{"age": 40 + k, "bp": 1.5, "y": k % 2} for k in range(6)]
    f = Federation.from_datasets([samples], **WHOLE)
    assert f.inputs[0].tolist() == [40, 1.5] and f.inputs.dtype == torch.float32


# -- labels, pictures, sequences --


def test_text_targets_are_classes_across_clients():
    data = {"a": [(torch.ones(2), "dog")], "b": [(torch.ones(2), "cat")] * 2}
    f = Federation.from_datasets(data, **WHOLE)
    assert f.class_names == ("cat", "dog") and f.targets.tolist() == [1, 0, 0]


def picture(mode="RGB", size=(5, 4), colour=255):
    return Image.new(mode, size, colour)


def test_pictures_are_read_with_channels_first_and_scaled():
    red = [(Image.new("RGB", (5, 4), "red"), k % 2) for k in range(3)]
    f = Federation.from_datasets({"a": red}, **WHOLE)
    assert f.inputs.shape == (3, 3, 4, 5) and f.inputs[0, :, 0, 0].tolist() == [1, 0, 0]
    grey = Federation.from_datasets({"a": [(picture("L"), 0), (picture("L"), 1)]}, **WHOLE)
    assert grey.inputs.shape == (2, 1, 4, 5) and float(grey.inputs.min()) == 1


def test_grey_pictures_among_coloured_ones_are_coloured_with_a_word(capsys):
    mixed = [(picture("L"), 0), (picture("RGBA", colour="red"), 1), (picture("1"), 1)]
    assert Federation.from_datasets([mixed]).inputs.shape == (3, 3, 4, 5)
    assert "grey pictures among coloured ones" in capsys.readouterr().err


def test_pictures_of_different_sizes_are_refused_by_name():
    data = {"a": [(picture(), 0)], "b": [(picture(), 0), (picture(size=(6, 4)), 1)]}
    with pytest.raises(SettingError, match="client 'b', sample 1: a picture of 6 x 4 pixels"):
        Federation.from_datasets(data)


def test_pictures_as_targets_are_masks_of_class_numbers():
    classes = Image.fromarray(np.array([[0, 1, 2], [2, 1, 0]], dtype=np.uint8))
    classes.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0])  # mode P: its colours do not count
    f = Federation.from_datasets([[(torch.ones(3, 2, 3), classes)] * 3], **WHOLE)
    assert f.targets[0].tolist() == [[0, 1, 2], [2, 1, 0]] and f.classes == 3
    with pytest.raises(
        SettingError,
        match="client '00000', sample 0: a target must be a mask with one class number",
    ):
        Federation.from_datasets([[(torch.ones(3, 2, 3), picture())]])


def test_sequences_of_different_lengths_are_padded_over_all_clients():
    data = {
        "a": [(torch.ones(2, 3), k % 2) for k in range(5)],
        "b": [(torch.ones(4, 3), 1)],
    }
    padded, mask = Federation.from_datasets(data, **WHOLE).inputs
    assert padded.shape == (6, 4, 3) and mask.sum(1).tolist() == [2] * 5 + [4]


# -- own division --


def test_every_client_may_bring_its_own_division():
    data = {
        "a": {"train": tensors(6), "validation": tensors(1), "test": tensors(2)},
        "b": {"train": tensors(4), "test": tensors(3)},
    }
    f = Federation.from_datasets(data)
    assert [f.sizes(s).tolist() for s in f.offsets] == [[6, 4], [1, 0], [2, 3]]
    f = Federation.from_datasets({"a": (tensors(6), tensors(1), tensors(2))})
    assert [f.sizes(s).tolist() for s in f.offsets] == [[6], [1], [2]]


@pytest.mark.parametrize("pair", [(tensors(10), tensors(3)), ((X, Y), (X[:3], Y[:3]))])
def test_validation_samples_are_drawn_from_training_samples_where_there_are_none(pair, capsys):
    f = Federation.from_datasets({"a": pair}, valid=0.5)
    train = len(pair[0]) if isinstance(pair[0], Dataset) else 6
    assert [f.sizes(s).tolist() for s in f.offsets] == [[train // 2], [train // 2], [3]]
    assert (
        "there is no valid part; of the training samples 50% for valid" in capsys.readouterr().err
    )


# -- what is refused --


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.ones(2), 0


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ([Stream()], "got one that can only be iterated; give list"),
        ([DataLoader(tensors())], "got a DataLoader; give its .dataset"),
        ([Items], "client '00000' must be a data set, got the class Items"),
        (Items, "datasets must be a dict or a list with one data set per client, got the"),
        (tensors(), "datasets must be a dict or a list with one data set per client, got one"),
        ("data", "datasets must be a dict or a list with one data set per client, got a str"),
        ({"a": X}, r"client 'a' must be a data set of samples \(input, target\), or a pair of"),
        ({"a": (scipy.sparse.csr_matrix(X), Y)}, "client 'a': inputs must be dense, got a sparse"),
        (
            {"a": [torch.ones(2)]},
            r"client 'a', sample 0 must be a pair \(input, target\) or a dict, got one",
        ),
        ({"a": [("hello", 1)]}, "inputs must be numbers, got text"),
        (
            {"a": [(torch.ones(2), None)]},
            "client 'a': targets, sample 0: every sample needs a value, got None",
        ),
        (
            {"a": [(object(), 1)]},
            "client 'a': inputs, sample 0 must be a tensor, an array, a number or a",
        ),
        ({"a": [({"u": 1.0}, 0), ({"v": 1.0}, 0)]}, "sample 1 has other keys than sample 0"),
        ({"a": [{"x": torch.ones(2), "kind": 1}]}, "target: none of the keys .* names one of: x,"),
        (
            {"a": [{"text": "hi", "label": 1}]},
            "inputs: no key but 'label' holds numbers or pictures; 'text' would have",
        ),
        ({"a": [*dicts(1), {"label": 1}]}, "sample 1 has no key 'x'; it has label"),
        (
            {"a": [(torch.ones(2, 3), 0)], "b": [(torch.ones(2, 4), 0)]},
            r"client 'b', sample 0 has shape \(2, 4\), client 'a', sample 0 \(2, 3\)",
        ),
        (
            {"a": [(torch.ones(2), 0)], "b": [((torch.ones(2), torch.ones(2)), 0)]},
            "clients: samples of different forms or keys; all clients must agree",
        ),
        ({"a": [((1, 2), 0), (3, 0)]}, "client 'a': inputs: sample 1 has another form"),
        ({"a": (tensors(), tensors()), "b": tensors()}, "divide all or none"),
        (
            {"train": tensors(), "test": tensors()},
            "datasets must have client ids as keys, got 'train', '",
        ),
        ({"a": {"train": tensors(), "dev": tensors()}}, "the key 'dev' is unknown"),
        ({"a": []}, "none of the data sets has a sample"),
        ({None: tensors()}, "datasets must have client ids as keys, got None"),
        ({1: tensors(), "1": tensors()}, "clients: ids must differ as text, got"),
    ],
)
def test_other_data_sets_are_refused_by_the_name_of_the_client(datasets, message):
    with pytest.raises(SettingError, match=message):
        Federation.from_datasets(datasets)


def test_a_misspelt_key_suggests_the_nearest():
    with pytest.raises(SettingError, match="inputs: 'pixel_value' is unknown; did you mean 'pixel"):
        Federation.from_datasets([[{"pixel_values": 1, "y": 0}]], inputs="pixel_value")


def test_a_function_for_samples_must_give_pairs():
    with pytest.raises(
        SettingError,
        match=r"sample must return \(input, target\), got one Tensor of shape \(2,\) for",
    ):
        Federation.from_datasets([tensors()], sample=lambda s: s[0])


def test_clients_without_samples_are_left_out_with_a_word(capsys):
    assert Federation.from_datasets({"a": tensors(), "b": []}).ids == ("a",)
    assert "clients: left out, as they have no sample: 'b'" in capsys.readouterr().err
