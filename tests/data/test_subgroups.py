"""Columns of subgroups: how they are read, and that they follow their samples."""

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.data.federation import Census
from idiolect.data.shared import shared
from idiolect.study.advise.training import IN_FOLDS, Holdout

rng = np.random.default_rng(0)
N = 240


def table() -> pd.DataFrame:
    frame = pd.DataFrame({"age": rng.normal(50, 10, N), "row_value": np.arange(N) + 0.5})
    frame["site"] = np.array(["north", "south", "west"])[np.arange(N) % 3]
    frame["sex"] = np.array(["f", "m"])[(np.arange(N) // 7) % 2]
    frame["arm"] = rng.integers(1, 4, N)
    frame["ill"] = rng.integers(0, 2, N)
    return frame


TABLE = table()


def read(frame=TABLE, **options):
    return il.Federation.from_frame(frame, client="site", target="ill", scale="none", **options)


def labels_of(federation, at=0) -> list[str]:
    column = federation.subgroups[at]
    return [column.labels[code] for code in column.codes.tolist()]


def follows(federation) -> bool:
    """Whether every sample has the sex of its row."""
    row = (federation.inputs[:, 1] - 0.5).round().long().numpy()
    return labels_of(federation) == TABLE["sex"].to_numpy()[row].tolist()


def test_labels_are_sorted_and_missing_values_are_the_last_subgroup():
    frame = TABLE.assign(sex=TABLE["sex"].mask(TABLE.index < 9), arm=TABLE["arm"].astype(float))
    federation = read(frame, subgroup="sex,arm", missing="mean")
    assert [c.name for c in federation.subgroups] == ["sex", "arm"]
    assert federation.subgroups[0].labels == ("f", "m", "missing")
    assert federation.subgroups[1].labels == ("1", "2", "3")
    assert labels_of(federation).count("missing") == 9


def test_a_column_stays_an_input_unless_it_is_dropped_and_a_line_says_which(capsys):
    assert any("sex" in name for name in read(subgroup="sex").preparation.feature_names)
    said = capsys.readouterr().err
    assert "figures by 'sex' (2 values), which is an input too; drop='sex' leaves it out" in said
    dropped = read(subgroup=["sex"], drop="sex")
    assert not any("sex" in name for name in dropped.preparation.feature_names)
    assert "figures by 'sex' (2 values), which is no input" in capsys.readouterr().err
    assert follows(dropped)


def test_subgroups_follow_their_samples_into_parts_folds_and_files():
    federation = read(subgroup="sex")
    assert follows(federation) and follows(federation.without("test"))
    assert follows(federation.of([2, 0]).capped({"train": 9}))
    data, _ = Holdout.of(federation, IN_FOLDS, seed=0).under(1)
    assert follows(data)
    with shared({"a": federation}) as files:
        assert follows(files["a"].open())


def test_a_census_knows_the_labels_and_no_sample():
    census = Census.of_data(read(subgroup="sex"))
    assert census.subgroups[0].labels == ("f", "m")
    part = census.of([1])
    assert len(part.subgroups[0].codes) == part.samples
    assert not part.subgroups[0].codes.any()


def test_arrays_take_one_column_or_several_by_name():
    x, y, site = np.eye(6), [0, 1] * 3, list("aabbcc")
    one = il.Federation.from_arrays(x, y, site, subgroup=["u", "v"] * 3)
    assert one.subgroups[0].name == "subgroup"
    series = pd.Series([True, False] * 3, name="smoker")
    assert il.Federation.from_arrays(x, y, site, subgroup=series).subgroups[0].name == "smoker"
    columns = {"sex": list("fmfmfm"), "arm": torch.arange(6) % 3}
    several = il.Federation.from_arrays(x, y, site, subgroup=columns, valid=0, test=0)
    assert [c.labels for c in several.subgroups] == [("f", "m"), ("0", "1", "2")]
    assert labels_of(several) == columns["sex"]
    pairs = {"a": (x[:3], y[:3]), "b": (x[3:], y[3:])}
    own = il.Federation.from_datasets(pairs, subgroup=list("fmfmfm"))
    assert own.subgroups[0].labels == ("f", "m")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subgroup": "age"}, "at most 20 values, got 'age' with 240; make bands of it"),
        ({"subgroup": "sxe"}, "did you mean 'sex'"),
        ({"subgroup": "site"}, "'site' is the column of the client"),
    ],
)
def test_what_is_no_column_of_subgroups_is_refused(options, words):
    with pytest.raises(SettingError, match=f"^subgroup.*{words}"):
        read(**options)


def test_entries_that_are_not_one_per_sample_are_refused():
    with pytest.raises(SettingError, match="subgroup must be one entry per sample"):
        il.Federation.from_arrays(np.eye(4), [0, 1, 0, 1], list("aabb"), subgroup=["f"])
    with pytest.raises(SettingError, match="merge the rarer ones"):
        il.Federation.from_arrays(
            np.eye(30), [0, 1] * 15, ["a"] * 30, subgroup=[f"v{i}" for i in range(30)]
        )
