"""Federations from the user's own arrays, frames, files and data sets; and what is refused."""

import contextlib
import copy

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.data import Federation

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.arange(12) % 3
WHO = np.array(["b", "a", "c"] * 4)


def test_a_clients_part_holds_its_samples_and_no_others():
    f = Federation.from_arrays(X, Y, WHO, valid=0.25, test=0.25)
    assert f.ids == f.names == ("a", "b", "c") and f.classes == 3
    for k, name in enumerate(f.ids):
        rows = torch.cat([f.part(k, s)[0] for s in ("train", "valid", "test")])
        assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, X[name == WHO].tolist()))
        assert [int(f.sizes(s)[k]) for s in ("train", "valid", "test")] == [2, 1, 1]


def test_a_given_split_is_kept():
    split = np.array(["train", "test", "valid"] * 4)
    f = Federation.from_arrays(X, Y, np.repeat([0, 1], 6), split=split)
    assert f.part(1, "valid")[0].tolist() == X[[8, 11]].tolist()


def test_a_client_with_one_sample_trains_on_it():
    f = Federation.from_arrays(X, Y, np.arange(12), valid=0.9, test=0.9)
    assert f.sizes("train").tolist() == [1] * 12


def test_class_counts_add_up():
    f = Federation.from_arrays(X, Y, WHO, valid=0, test=0)
    assert f.class_counts().sum() == 12 and f.class_counts().sum(1).tolist() == [4, 4, 4]


def test_torch_float64_is_kept_and_numpy_float64_becomes_float32():
    assert (
        Federation.from_arrays(
            torch.ones(4, 1, dtype=torch.float64), [0, 1, 0, 1], [0, 0, 1, 1]
        ).inputs.dtype
        == torch.float64
    )
    assert (
        Federation.from_arrays(np.ones((4, 1)), [0, 1, 0, 1], [0, 0, 1, 1]).inputs.dtype
        == torch.float32
    )


def test_data_sets_become_clients():
    sets = {
        k: torch.utils.data.TensorDataset(torch.ones(5, 2) * i, torch.arange(5) % 2)
        for i, k in enumerate("xy")
    }
    f = Federation.from_datasets(sets)
    assert f.ids == ("x", "y") and float(f.part(1, "train")[0].mean()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": []}, "clients must name at least one"),
        ({"clients": WHO[:-1]}, "differ in length: 12, 12, 11"),
        ({"clients": [None, *WHO[1:]]}, "sample 0 has no client id"),
        ({"clients": np.array([0.0] * 11 + [np.nan])}, "sample 11 has no client id"),
        ({"clients": WHO.reshape(4, 3)}, "one client id per sample"),
        ({"targets": Y - 1}, "class -1 is negative"),
        ({"targets": Y - 1, "classes": 3}, "class -1 is negative"),
        ({"classes": 2}, "class 2 lies outside the 2 classes; accepted: 0 to 1"),
        ({"inputs": np.where(X == 6, np.nan, X)}, "sample 3 holds NaN"),
        ({"inputs": np.where(X == 6, np.inf, X)}, "sample 3 holds NaN or infinity"),
        (
            {"targets": np.where(Y == 1, np.nan, 0.5)},
            "targets must be finite, got NaN or infinity in row 1",
        ),
        ({"inputs": [["cat"]] * 12}, "must be numbers, got text"),
        ({"split": ["train"] * 11 + ["dev"]}, "split: 'dev' is unknown"),
        ({"split": ["train"]}, "split: 1 entries for 12 samples"),
        ({"test": 1.0}, "test must be a share in .*, got 1.0"),
    ],
)
def test_bad_arrays_are_refused_with_the_reason(change, message):
    given = {"inputs": X, "targets": Y, "clients": WHO, **change}
    with pytest.raises(SettingError, match=message):
        Federation.from_arrays(**given)


def test_no_client_at_all_is_refused():
    with pytest.raises(SettingError, match="datasets must have at least one client, got none"):
        Federation.from_datasets([])


FRAME = pd.DataFrame(
    {
        "site": list("aabb") * 5,
        "age": range(40, 60),
        "ill": ["no", "yes"] * 10,
        "dose": np.linspace(0, 1, 20),
    }
)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_file_is_loaded_by_its_columns(tmp_path, suffix):
    path = tmp_path / f"visits.{suffix}"
    FRAME.to_csv(path, index=False) if suffix == "csv" else FRAME.to_parquet(path)
    f = data.load("table", path=str(path), client="site", target="ill")
    assert (
        f.name == "visits" and f.ids == ("a", "b") and f.classes == 2 and f.inputs.shape == (20, 2)
    )
    assert (
        data.load("table", path=str(path), client="site", target="ill", seed=0).fingerprint()
        == f.fingerprint()
    )


def test_the_kind_of_target_can_be_chosen(tmp_path):
    frame = FRAME.drop(columns="ill")
    assert Federation.from_frame(frame, client="site", target="dose").classes == 0
    assert Federation.from_frame(frame, client="site", target="age", kind="values").classes == 0
    assert (
        Federation.from_frame(
            frame.assign(age=frame.age + 100), client="site", target="age", kind="classes"
        ).classes
        == 20
    )


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (
            FRAME,
            {"client": "hospital"},
            "client: column 'hospital' is not in the table; its columns: site, age",
        ),
        (FRAME, {"target": "sick"}, "target: column 'sick' is not in the table"),
        (FRAME, {"kind": "values"}, "a regression needs numbers"),
        (FRAME, {"kind": "value"}, "kind must be one of 'auto', 'classes', 'values', got 'value'"),
        (FRAME.assign(site=["a", None] * 10), {}, "sample 1 has no client id"),
        (FRAME.assign(ill=None), {}, "column 'ill' is empty in every row"),
        (FRAME[["site", "ill"]], {}, "no feature columns"),
    ],
)
def test_bad_tables_are_refused_with_the_reason(frame, options, message):
    with pytest.raises(SettingError, match=message):
        Federation.from_frame(frame, **{"client": "site", "target": "ill", **options})


@pytest.mark.parametrize(
    ("path", "message"),
    [("visits.doc", "must be a file that ends in .csv, .tsv"), ("nowhere.csv", "there is no file")],
)
def test_bad_paths_are_refused(path, message):
    with pytest.raises(SettingError, match=message):
        data.load("table", path=path)


def test_unreadable_tables_are_refused(tmp_path):
    for name, body in (("empty.csv", b""), ("broken.parquet", b"PAR1 no")):
        (tmp_path / name).write_bytes(body)
        with pytest.raises(SettingError, match="cannot be read"):
            data.load("table", path=str(tmp_path / name))


def test_a_parquet_file_is_measured_before_it_is_unpacked(tmp_path, monkeypatch):
    FRAME.to_parquet(tmp_path / "visits.parquet")
    monkeypatch.setattr("idiolect.data.read.tables.CELLS", FRAME.size - 1)
    monkeypatch.setattr("pandas.read_parquet", lambda *_: pytest.fail("unpacked"))
    with pytest.raises(SettingError, match=f"at most {FRAME.size - 1} cells are accepted"):
        data.load("table", path=str(tmp_path / "visits.parquet"), client="site", target="ill")


def test_damaged_parquet_files_are_refused_whatever_the_library_makes_of_them(tmp_path):
    FRAME.to_parquet(tmp_path / "visits.parquet")
    sound = (tmp_path / "visits.parquet").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(50):
        body = bytearray(sound)
        for at in rng.integers(len(body), size=3):
            body[at] = rng.integers(256)
        (tmp_path / "visits.parquet").write_bytes(body)
        with contextlib.suppress(SettingError):
            data.load("table", path=str(tmp_path / "visits.parquet"), client="site", target="ill")


def test_the_fingerprint_is_kept_until_the_data_change(monkeypatch):
    federation = data.load("synthetic", clients=3, samples=40)
    hashed = []
    monkeypatch.setattr(
        Federation,
        "_hash",
        lambda self, tensors, real=Federation._hash: hashed.append(1) or real(self, tensors),
    )
    first = federation.fingerprint()
    assert federation.fingerprint() == first and len(hashed) == 1
    federation.targets[0] = 9 - federation.targets[0]
    changed = federation.fingerprint()
    assert changed != first and len(hashed) == 2
    federation.targets[0] = 9 - federation.targets[0]
    assert federation.fingerprint() == first
    federation.targets[0] = 9 - federation.targets[0]  # not hashed before it is copied
    for copied in (copy.copy(federation), copy.deepcopy(federation)):
        assert copied.fingerprint() == changed
    with torch.inference_mode():
        untracked = federation.to("cpu", torch.float64)
        assert untracked.fingerprint() == untracked.fingerprint()
