"""Data sets of Hugging Face's `datasets`, and partitions of flwr-datasets; nothing is fetched."""

import pytest
import torch
from PIL import Image

from idiolect import Federation
from idiolect.core.knobs import SettingError

hub = pytest.importorskip("datasets")
flower = pytest.importorskip("flwr_datasets.partitioner")

WHOLE = {"valid": 0, "test": 0}


def rows(names=("no", "yes"), labels=(0, 1, 0, 1, 0, 1)):
    features = {
        "x": hub.List(hub.Value("float32")),
        "label": hub.ClassLabel(names=list(names)),
        "text": hub.Value("string"),
    }
    columns = {"x": [[float(k), 2.0] for k in labels], "label": labels, "text": ["t"] * len(labels)}
    return hub.Dataset.from_dict(columns, features=hub.Features(features))


def test_class_names_come_from_the_features(capsys):
    f = Federation.from_datasets({"a": rows(), "b": rows(labels=[0, 0])}, **WHOLE)
    assert f.ids == ("a", "b") and f.class_names == ("no", "yes") and f.classes == 2
    assert f.part(0, "train")[0].tolist() == [[k, 2] for k in (0, 1, 0, 1, 0, 1)]
    said = capsys.readouterr().err
    assert "inputs are 'x', the target is 'label'" in said and "left out are 'text'" in said


def test_clients_with_other_orders_of_the_same_names_agree():
    f = Federation.from_datasets([rows(), rows(names=("yes", "no"))], **WHOLE)
    assert f.class_names == ("no", "yes")
    assert f.part(0, "train")[1].tolist() == [0, 1] * 3
    assert f.part(1, "train")[1].tolist() == [1, 0] * 3


@pytest.mark.parametrize("form", ["torch", "numpy", "transform"])
def test_the_format_of_a_data_set_does_not_matter(form):
    data = rows()
    if form == "transform":
        data = data.with_transform(
            lambda b: {"x": [torch.tensor(v) for v in b["x"]], "label": b["label"]}
        )
    else:
        data = data.with_format(form)
    f = Federation.from_datasets([data])
    assert f.fingerprint() == Federation.from_datasets([rows()]).fingerprint()
    assert f.class_names == ("no", "yes")


def test_a_dict_of_splits_per_client():
    parts = hub.DatasetDict({"train": rows(), "validation": rows(), "test": rows()})
    f = Federation.from_datasets({"a": parts, "b": parts})
    assert [f.sizes(s).tolist() for s in f.offsets] == [[6, 6]] * 3
    with pytest.raises(SettingError, match="datasets must have client ids as keys, got 'train', '"):
        Federation.from_datasets(parts)


def test_pictures_and_text_labels():
    images = hub.Dataset.from_dict(
        {"image": [Image.new("L", (5, 4), 255)] * 4, "label": ["u", "v"] * 2},
        features=hub.Features({"image": hub.Image(), "label": hub.Value("string")}),
    )
    f = Federation.from_datasets([images] * 2, **WHOLE)
    assert f.inputs.shape == (8, 1, 4, 5) and float(f.inputs.min()) == 1
    assert f.class_names == ("u", "v")


def test_tokens_of_different_lengths_keep_their_own_mask():
    tokens = hub.Dataset.from_dict(
        {
            "input_ids": [[1, 2], [3], [4, 5, 6]],
            "attention_mask": [[1, 1], [1], [1, 1, 1]],
            "labels": [0, 1, 0],
        }
    )
    f = Federation.from_datasets([tokens], **WHOLE)
    assert f.inputs["input_ids"].tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6]]
    assert f.inputs["attention_mask"].sum(1).tolist() == [2, 1, 3]


def test_a_label_per_word_is_padded_with_what_is_ignored():
    names = hub.ClassLabel(names=["other", "name"])
    words = hub.Dataset.from_dict(
        {"tokens": [[5, 6], [7]], "labels": [[0, 1], [1]]},
        features=hub.Features({"tokens": hub.List(hub.Value("int64")), "labels": hub.List(names)}),
    )
    f = Federation.from_datasets([words], **WHOLE)
    assert f.targets.tolist() == [[0, 1], [1, -100]] and f.class_names == ("other", "name")


def test_labels_that_are_missing_are_refused_where_names_differ_too():
    with pytest.raises(SettingError, match="class -1 is negative"):
        Federation.from_datasets([rows(), rows(names=("yes", "no"), labels=[-1, 0])])


def test_columns_of_numbers_are_features():
    table = hub.Dataset.from_dict({"age": [40, 50], "bp": [1.5, 2.5], "y": [0, 1], "idx": [0, 1]})
    assert Federation.from_datasets([table], **WHOLE).inputs.tolist() == [[40, 1.5], [50, 2.5]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [rows().to_iterable_dataset()], "can only be iterated"),
        (rows, "datasets must be a dict or a list with one data set per client, got one"),
        (lambda: [rows(labels=[-1, 0])], "class -1 is negative; .* without a label"),
        (
            lambda: [hub.Dataset.from_dict({"x": [[1.0], None], "y": [1, 0]})],
            "client '00000': 'x', sample 1: every sample needs a value, got None",
        ),
        (lambda: [rows(), rows().remove_columns("x")], "'00001' has no column 'x'; it has label"),
    ],
)
def test_other_data_sets_are_refused(make, message):
    with pytest.raises(SettingError, match=message):
        Federation.from_datasets(make())


def test_partitions_of_flower_are_clients():
    partitioner = flower.IidPartitioner(num_partitions=3)
    partitioner.dataset = rows()
    f = Federation.from_datasets(partitioner, **WHOLE)
    assert f.ids == (0, 1, 2) and f.sizes("train").tolist() == [2, 2, 2]
    assert f.class_names == ("no", "yes")
    parts = [partitioner.load_partition(k) for k in range(3)]
    assert torch.equal(Federation.from_datasets(parts, **WHOLE).inputs, f.inputs)


def test_natural_partitions_keep_their_ids():
    partitioner = flower.NaturalIdPartitioner(partition_by="site")
    partitioner.dataset = rows().add_column("site", ["Bonn", "Aachen"] * 3)
    f = Federation.from_datasets(partitioner, inputs="x", target="label", **WHOLE)
    assert f.ids == ("Aachen", "Bonn") and f.part(1, "train")[1].tolist() == [0, 0, 0]


def test_a_federated_data_set_of_flower_keeps_its_splits(tmp_path):
    from flwr_datasets import FederatedDataset

    for split in ("train", "test"):
        lines = [f"{k},{k + 1},{k % 2}" for k in range(6)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["a,b,label", *lines]))
    whole = FederatedDataset(
        dataset=str(tmp_path),
        partitioners={"train": 2, "test": 2},
        cache_dir=str(tmp_path / "cache"),
    )
    f = Federation.from_datasets(whole, valid=0)
    assert f.ids == (0, 1) and f.inputs.shape == (12, 2)
    assert [f.sizes(s).tolist() for s in f.offsets] == [[3, 3], [0, 0], [3, 3]]
