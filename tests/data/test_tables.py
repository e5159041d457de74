"""Tables as people have them: what the outcome is, which columns are features, on which scale."""

import datetime
import decimal
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError
from idiolect.data.prepare import Preparation

N = 300
rng = np.random.default_rng(0)
AGE = rng.normal(60, 15, N)
VISITS = pd.DataFrame(
    {
        "site": np.repeat(["north", "south", "west"], N // 3),
        "age": AGE,
        "platelets": 250_000 + 60_000 * rng.standard_normal(N),
        "ill": np.where(AGE + 5 * rng.standard_normal(N) > 60, "yes", "no"),
    }
)


def read(frame=VISITS, **options):
    return il.Federation.from_frame(frame, **{"client": "site", "target": "ill", **options})


def refused(frame=VISITS, **options) -> str:
    with pytest.raises(SettingError) as caught:
        read(frame, **options)
    return str(caught.value)


def outcome(values, **options):
    return read(VISITS.assign(ill=values), **options)


# -- the outcome -----------------------------------------------------------------------------------
YES = (VISITS.ill == "yes").to_numpy()


@pytest.mark.parametrize(
    ("no", "yes"),
    [(0.0, 1.0), (1, 2), (41401, 42731), ("no", "yes"), (False, True), (-1, 1), (0.5, 1.5)],
)
def test_two_distinct_values_are_two_classes_with_the_users_labels(no, yes, capsys):
    f = outcome(np.where(YES, yes, no))
    assert f.classes == 2 and f.class_names == (no, yes)
    assert [type(name) for name in f.class_names] == [type(no), type(yes)]
    assert f.targets.dtype == torch.int64 and int(f.targets.sum()) == YES.sum()
    assert "target 'ill' has 2" in capsys.readouterr().err


def test_the_reason_is_printed_with_what_overrules_it(capsys):
    outcome(YES.astype(float))
    says = "target 'ill' has 2 distinct values (0.0, 1.0): classes; kind='values' makes it a"
    assert says in capsys.readouterr().err
    outcome(AGE)
    assert "distinct values" in (says := capsys.readouterr().err) and "a regression" in says
    assert "in their own units; kind='classes' makes them classes" in says


def test_few_whole_numbers_are_classes_and_many_are_values():
    assert outcome(np.arange(N) % 20).classes == 20
    assert outcome(np.arange(N) % 21).classes == 0
    assert outcome(np.arange(N) % 20 + 0.5).classes == 0
    small = VISITS.iloc[::10].assign(ill=np.arange(30) % 16)  # hardly any is there twice
    assert read(small).classes == 0


def test_kind_wins():
    assert outcome(YES.astype(float), kind="values").targets.dtype == torch.float32
    f = outcome(100 + np.arange(N) % 50, kind="classes")
    assert f.classes == 50 and f.class_names == tuple(range(100, 150))


def test_a_pandas_categorical_keeps_its_order_and_has_no_phantom_class():
    grades = pd.Categorical.from_codes(
        np.arange(N) % 3, ["mild", "severe", "fatal", "unused"], ordered=True
    )
    assert outcome(grades).class_names == ("mild", "severe", "fatal")


def test_outcomes_that_cannot_be_meant_are_refused_by_name():
    assert "column 'ill' is empty in every row" in refused(VISITS.assign(ill=None))
    assert "holds one class only ('yes')" in refused(VISITS.assign(ill="yes"))
    assert "one class only (1)" in refused(VISITS.assign(ill=1))
    names = [f"patient {i}" for i in range(N)]
    assert "no outcome to predict" in refused(VISITS.assign(ill=names))
    assert "holds dates" in refused(VISITS.assign(ill=pd.Timestamp(0)))
    comma = [f"{i},5" for i in range(N)]
    assert "numbers with a comma, such as '0,5'" in refused(VISITS.assign(ill=comma))
    assert "infinity" in refused(VISITS.assign(ill=AGE * np.inf))
    assert "32 bits" in refused(VISITS.assign(ill=AGE * 1e60))


# -- which columns ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("patient_id", rng.permutation(N) + 100_000),
        ("patient_id", np.repeat(np.arange(N // 2), 2) + 70_000),  # two visits each
        ("PatientID", [f"p{i:05d}" for i in range(N)]),
        ("patientid", rng.permutation(N) + 100_000),
        ("uuid", [f"{i:x}-77" for i in range(N)]),
        ("Unnamed: 0", np.arange(N)),
        ("Unnamed: 0", np.tile(np.arange(N // 3), 3)),  # tables of three sites put together
        ("index", rng.permutation(N)),
        ("number", np.arange(1, N + 1)),
    ],
)
def test_identifiers_and_row_numbers_are_dropped_with_a_word_unless_named(name, values, capsys):
    frame = VISITS.assign(**{name: values})
    f = read(frame)
    assert f.preparation.feature_names == ("age", "platelets")
    assert f"columns dropped: {name!r} (a" in capsys.readouterr().err
    kept = read(frame, features=["age", name], max_categories=N)
    assert name not in kept.preparation.dropped and kept.inputs.shape[1] > 1


@pytest.mark.parametrize(
    ("name", "values"),
    [("thyroid", np.arange(N) % 2), ("uric_acid", AGE), ("steroid", np.arange(N) % 7)],
)
def test_words_that_merely_end_in_id_are_features(name, values):
    assert name in read(VISITS.assign(**{name: values})).preparation.feature_names


def test_an_id_of_few_values_is_kept_with_a_word(capsys):
    f = read(VISITS.assign(country_id=np.arange(N) % 4))
    assert "country_id" in f.preparation.feature_names
    assert "'country_id' is called an identifier but has 4 distinct" in capsys.readouterr().err


def test_constant_and_empty_columns_are_dropped_with_a_word(capsys):
    f = read(VISITS.assign(unit="mg", year=2026, note=None, lab=np.nan))
    assert f.preparation.dropped == {
        "unit": "constant",
        "year": "constant",
        "note": "empty",
        "lab": "empty",
    }
    assert "'unit' (constant); 'year' (constant)" in capsys.readouterr().err


def test_features_and_drop_take_lists_and_text():
    for features in (["age", "platelets"], "age, platelets", ("age", "platelets")):
        assert read(features=features).preparation.feature_names == ("age", "platelets")
    assert read(drop="age").preparation.feature_names == ("platelets",)
    assert "did you mean 'platelets'?" in refused(features="platelet")
    assert "drop: column 'aeg' is not in the table; did you mean 'age'?" in refused(drop=["aeg"])
    assert "features: 'ill' is the column of the target" in refused(features="age, ill")
    assert "drop: 'age' is named in features too" in refused(features="age", drop="age")
    assert "no feature columns beside 'site', 'ill'" in refused(drop="age, platelets")


def test_columns_may_be_numbered_and_roles_too():
    frame = pd.DataFrame(VISITS.to_numpy()).infer_objects()  # columns 0, 1, 2, 3
    f = il.Federation.from_frame(frame, client=0, target=3)
    assert f.class_names == ("no", "yes") and f.preparation.feature_names == ("1", "2")
    assert torch.equal(f.inputs, read().inputs)


def test_odd_frames_get_a_clear_error():
    twice = pd.concat([VISITS, VISITS[["age"]]], axis=1)
    assert "column 'age' is in the table twice" in refused(twice)
    assert "the table is empty" in refused(VISITS[:0])
    assert "did you mean 'site'?" in refused(client="sites")
    assert "target: 'site' is the column of the client too" in refused(target="site")
    assert "'site' is the index of the frame" in refused(VISITS.set_index("site"))
    assert "'age' holds infinity in row 2" in refused(VISITS.assign(age=[1, 2, np.inf] * 100))
    assert "sample 0 has no client id" in refused(VISITS.assign(site=[None, "a", "b"] * 100))
    assert "must be a pandas or polars DataFrame, or a pyarrow Table, got a list" in refused([1, 2])
    assert "give frame.collect()" in refused(pl.from_pandas(VISITS).lazy())
    assert "several kinds (int, str)" in refused(VISITS.assign(age=[1, "x"] * 150))
    assert "column 'age' holds" in refused(VISITS.assign(age=[[1]] * N))
    assert "missing must be one of 'refuse', 'drop'" in refused(missing="mode")
    assert "scale must be one of" in refused(scale="minmax")
    question = VISITS.age.astype(str).mask(np.arange(N) < 3, "?")
    assert "holds numbers and, in 3 rows, text such as '?'" in refused(VISITS.assign(age=question))


def test_columns_that_are_no_features_may_hold_anything():
    pairs = [[i, i] for i in range(N)]
    frame = VISITS.assign(pair=pairs)
    for given in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame)):
        assert "column 'pair' holds" in refused(given)
        assert read(given, drop="pair").fingerprint() == read().fingerprint()
    ranges = VISITS.assign(group=pd.cut(VISITS.age, [0, 50, 70, 200]))
    assert read(ranges).preparation.feature_names[2:] == (
        "group=(0, 50]",
        "group=(50, 70]",
        "group=(70, 200]",
    )
    assert "column 'group' holds" in refused(pl.from_pandas(ranges))


def test_decimal_numbers_are_numbers():
    dose = [decimal.Decimal(i % 2) / 2 for i in range(N)]
    assert outcome(dose).class_names == (0.0, 0.5)
    assert outcome([decimal.Decimal(i) / 7 for i in range(N)]).classes == 0
    assert "dose" in read(VISITS.assign(dose=dose)).preparation.feature_names


def test_dates_are_refused_by_name_or_taken_as_days_if_asked():
    day = pd.date_range("2026-01-01", periods=N)
    for dates in (day, day.strftime("%Y-%m-%d"), day.date, day.tz_localize("Europe/Zurich")):
        frame = VISITS.assign(seen=dates)
        assert "column 'seen' holds dates" in refused(frame)
        assert read(frame, dates="drop").preparation.dropped == {"seen": "dates"}
        days = read(frame, dates="days", scale="none").preparation.apply(frame)[:, -1]
        assert days[0] == (datetime.date(2026, 1, 1) - datetime.date(1970, 1, 1)).days
        assert (np.diff(days) == 1).all()
    early = VISITS.assign(seen=day[:12].strftime("%m/%d/%Y").tolist() * (N // 12))
    assert "column 'seen' holds dates" in refused(early)
    assert "--date-order dmy or mdy" in refused(early, dates="days")


def test_one_client_and_clients_of_one_sample_are_said(capsys):
    read(VISITS.assign(site="north"))
    assert "one client only ('north')" in capsys.readouterr().err
    read(VISITS.assign(site=["lone", *VISITS.site[1:]]))
    assert "1 client with one sample only ('lone')" in capsys.readouterr().err
    read(VISITS.assign(site=range(N)))
    assert "every row is a client of its own" in capsys.readouterr().err


# -- pandas, polars, pyarrow -----------------------------------------------------------------------
def test_the_three_libraries_give_the_same_federation():
    frame = VISITS.assign(
        ward=pd.Categorical(np.array(["icu", "er", "lab"])[np.arange(N) % 3]),
        smokes=np.arange(N) % 4 == 0,
        children=np.arange(N) % 5,
    )
    one = read(frame)
    for other in (read(pl.from_pandas(frame)), read(pa.Table.from_pandas(frame))):
        assert other.fingerprint() == one.fingerprint()
        assert other.class_names == one.class_names and other.preparation == one.preparation


def test_missing_values_of_every_library_are_missing():
    cells = {"site": list("abab"), "ill": [0, 1, 1, 0], "bp": [1, None, 3, 4]}
    text = {"ward": ["x", None, "y", "x"], "smokes": [True, None, False, True]}
    frames = [pd.DataFrame(cells | text), pl.DataFrame(cells | text), pa.table(cells | text)]
    frames.append(frames[0].convert_dtypes())
    made = [read(f, missing="mean+flag", valid=0, test=0) for f in frames]
    assert len({f.fingerprint() for f in made}) == 1
    assert made[0].preparation.feature_names == (
        "bp",
        "bp missing",
        "ward=x",
        "ward=y",
        "ward missing",
        "smokes=False",
        "smokes=True",
        "smokes missing",
    )


# -- categories ------------------------------------------------------------------------------------
WARDS = VISITS.assign(
    ward=np.array(["icu", "er", "lab"])[np.arange(N) % 3],
    part=["train", "train", "train", "valid", "test"] * (N // 5),
)


def test_categories_become_one_feature_each_and_are_not_scaled():
    f = read(WARDS, drop="part")
    assert f.preparation.feature_names[2:] == ("ward=er", "ward=icu", "ward=lab")
    assert set(f.inputs[:, 2:].unique().tolist()) == {0.0, 1.0}
    assert bool((f.inputs[:, 2:].sum(1) == 1).all())


def test_a_category_that_training_did_not_have_is_zeros_and_counted(capsys):
    new = WARDS.assign(ward=WARDS.ward.mask(np.arange(N) % 5 == 4, "new"))
    f = read(new, split="part")
    assert f.preparation.feature_names[2:] == ("ward=er", "ward=icu", "ward=lab")
    test = f.inputs[int(f.offsets["test"][0]) :, 2:]
    assert not test.any()
    assert "'ward': 60 rows hold a category that training did not have ('new')" in (
        capsys.readouterr().err
    )


def test_too_many_categories_are_refused_by_name():
    names = VISITS.assign(surname=[f"name {i % 90}" for i in range(N)], part="train")
    says = refused(names, split="part")
    assert "column 'surname' has 90 distinct values" in says and "raise max_categories" in says
    assert read(names, split="part", max_categories=100).inputs.shape[1] == 92


def test_the_names_of_categories_are_counted_as_sent():
    own = VISITS.assign(ward=VISITS.site + " ward", part="train")
    f = read(own, split="part", scale="none")
    one = len(json.dumps({"ward": ["north ward"]}))
    assert f.preparation.bytes_up == (one, one, one - 1)
    everyone = {"ward": ["north ward", "south ward", "west ward"]}
    assert f.preparation.bytes_down == len(json.dumps(everyone))


# -- missing values --------------------------------------------------------------------------------
GAPS = WARDS.assign(bp=np.where(np.arange(N) % 10 == 0, np.nan, 120 + AGE))


def test_missing_values_are_refused_by_name_with_the_ways_out():
    says = refused(GAPS, split="part")
    assert says.startswith("column 'bp' has 30 missing values in 3 clients; ")
    assert "missing='mean' (or median, zero, drop" in says and "drop='bp'" in says


@pytest.mark.parametrize("scale", ["federated", "client", "none"])
@pytest.mark.parametrize("missing", ["mean", "median", "zero"])
def test_missing_values_are_filled_in_from_training_rows_in_the_scope_of_the_scale(missing, scale):
    f = read(GAPS, split="part", missing=missing, scale=scale, drop="ward")
    train = GAPS[GAPS.part == "train"]
    by = train.groupby("site").bp if scale == "client" else train.bp
    wanted = {"mean": by.mean, "median": by.median, "zero": lambda: by.mean() * 0}[missing]()
    column = f.preparation.columns[2]
    np.testing.assert_allclose(column.fill, np.atleast_1d(wanted), rtol=1e-12)


def test_drop_drops_the_samples_with_a_word(capsys):
    f = read(GAPS, split="part", missing="drop")
    assert sum(int(f.sizes(s).sum()) for s in ("train", "valid", "test")) == N - 30
    assert "30 samples with missing values are dropped ('bp' 30)" in capsys.readouterr().err
    gone = GAPS.assign(bp=GAPS.bp.mask(GAPS.site == "west"))
    assert read(gone, missing="drop", drop="part").ids == ("north", "south")
    assert "all samples of 1 client" in capsys.readouterr().err


def test_a_flag_is_a_feature():
    f = read(GAPS, split="part", missing="mean+flag", drop="ward")
    assert f.preparation.feature_names == ("age", "platelets", "bp", "bp missing")
    x = f.preparation.apply(GAPS)
    np.testing.assert_array_equal(x[:, 3], GAPS.bp.isna())
    assert x[GAPS.bp.isna(), 2] == pytest.approx(0, abs=1e-6)  # the mean, after scaling


# -- scale -----------------------------------------------------------------------------------------
def test_federated_scaling_is_that_of_the_pooled_training_rows():
    from sklearn.preprocessing import StandardScaler

    f = read(WARDS, split="part", drop="ward")
    scaler = StandardScaler().fit(WARDS.loc[WARDS.part == "train", ["age", "platelets"]])
    expected = scaler.transform(WARDS[["age", "platelets"]])
    np.testing.assert_allclose(f.preparation.apply(WARDS), expected, rtol=1e-5, atol=1e-6)
    assert f.preparation.bytes_up == (2 * 3 * 8,) * 3 and f.preparation.bytes_down == 2 * 2 * 8


def test_client_scaling_is_that_of_each_clients_training_rows_and_sends_nothing():
    f = read(WARDS, split="part", drop="ward", scale="client")
    assert sum(f.preparation.bytes_up) == f.preparation.bytes_down == 0
    x = f.preparation.apply(WARDS, WARDS.site)
    for site in f.ids:
        own = x[((WARDS.site == site) & (WARDS.part == "train")).to_numpy()]
        np.testing.assert_allclose(own.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(own.std(0), 1, atol=1e-5)
        np.testing.assert_array_equal(
            f.preparation.apply(WARDS[WARDS.site == site], site), x[WARDS.site == site]
        )


def test_a_mean_that_dwarfs_the_deviation_does_not_spoil_it():
    far = VISITS.assign(age=1e9 + np.arange(N) % 2, part="train")
    f = read(far, split="part", features="age, platelets")
    assert f.preparation.columns[0].spread == pytest.approx((0.5,), rel=1e-9)


def test_a_constant_that_is_kept_is_divided_by_one():
    f = read(VISITS.assign(age=0.1), features="age, platelets")
    assert f.preparation.columns[0].spread == (1.0,)
    assert f.inputs[:, 0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("scale", ["federated", "client", "none"])
def test_only_training_rows_enter_a_statistic(scale):
    def made(frame):
        return read(frame, split="part", scale=scale, missing="median+flag").preparation

    later = (WARDS.part != "train").to_numpy()
    other = GAPS.assign(
        age=GAPS.age.mask(later, 1e6),
        platelets=GAPS.platelets.mask(later, np.nan),
        ward=GAPS.ward.mask(later, "elsewhere"),
        bp=GAPS.bp.mask(later, -5),
    )
    assert made(other) == made(GAPS)
    assert made(GAPS.assign(age=GAPS.age.mask(~later, 1e6 + AGE))) != made(GAPS)


def linear(f):
    return il.Task(lambda: nn.Linear(f.inputs.shape[1], f.classes))


def trained(f, **options):
    return il.run(il.FedAvg(), linear(f), f, rounds=5, sample=3, **options).record.summary()


def test_unscaled_columns_ruin_a_run_and_scaled_ones_do_not():
    scaled, raw = (trained(read(scale=s)) for s in ("federated", "none"))
    assert scaled["accuracy"]["mean"] > 0.8 > raw["accuracy"]["mean"] + 0.1
    assert raw["collapsed"][0] and not scaled["collapsed"][0]


def test_what_the_preparation_sends_is_in_the_ledger_and_in_the_budget():
    f = read(scale="federated")
    plain, counted = (trained(read(scale=s))["bytes"] for s in ("none", "federated"))
    up = sum(f.preparation.bytes_up)
    down = 3 * f.preparation.bytes_down
    assert (up, down) == (3 * 48, 3 * 32)
    assert counted == {"up": plain["up"] + up, "down": plain["down"] + down}
    all_rounds = sum(plain.values())
    assert trained(read(scale="none"), bytes=all_rounds)["rounds"] == 5
    assert trained(f, bytes=all_rounds)["rounds"] == 4
    assert trained(f, bytes=all_rounds + up + down)["rounds"] == 5


def test_a_resumed_run_counts_the_preparation_once(tmp_path):
    f = read()
    whole = il.run(il.FedAvg(), linear(f), f, rounds=4, sample=3)
    options = {"rounds": 4, "sample": 3, "checkpoint_every": 1, "directory": tmp_path / "run"}
    il.run(il.FedAvg(), linear(f), f, **options)
    (tmp_path / "run" / "record.json").unlink()
    again = il.run(il.FedAvg(), linear(f), f, **options, resume=True)
    assert again.record.seeds[0].sent == whole.record.seeds[0].sent
    assert {row["bytes_up"] for row in again.record.seeds[0].clients} == {
        row["bytes_up"] for row in whole.record.seeds[0].clients
    }


def test_the_stages_of_a_pipeline_count_the_preparation_once():
    f = read()
    stages = [(il.FedAvg(), 2), (il.Ditto(), 2)]
    first, second = il.pipeline(stages, linear(f), f, sample=3)
    raw = read(scale="none")
    plain = il.pipeline(stages, linear(raw), raw, sample=3)
    more = [
        one.record.seeds[0].sent["bytes_up"] - other.record.seeds[0].sent["bytes_up"]
        for one, other in zip((first, second), plain, strict=True)
    ]
    assert more == [sum(f.preparation.bytes_up), 0]


# -- the preparation of new rows -------------------------------------------------------------------
def test_raw_rows_are_prepared_by_name_in_any_order():
    f = read(WARDS, split="part")
    shuffled = WARDS[["ward", "site", "platelets", "age"]].assign(colour="red")
    np.testing.assert_array_equal(f.preparation.apply(shuffled), f.preparation.apply(WARDS))
    one = f.preparation.apply(WARDS[:1])
    assert one.dtype == np.float32 and one.shape == (1, len(f.preparation.feature_names))


def test_rows_that_do_not_fit_are_refused_by_name():
    f = read(WARDS, split="part", scale="client")
    apply = f.preparation.apply
    for frame, clients, says in (
        (WARDS.drop(columns="age"), "north", "column 'age' is not in the table"),
        (WARDS, None, "name the client of each row"),
        (WARDS, "nort", "did you mean 'north'?"),
        (WARDS, ["north"], "1 ids for 300 rows"),
        (WARDS.assign(age="old"), "north", "'age' holds category values"),
        (WARDS.assign(ward=3), "north", "in training it held categories such as 'er'"),
        (WARDS.assign(age=[None, *AGE[1:]]), "north", "'age' is empty in row 0"),
        (WARDS.assign(age=1e300), "north", "32 bits"),
    ):
        with pytest.raises(SettingError, match=says.replace("?", r"\?")):
            apply(frame, clients)


def test_new_clients_are_read_as_the_old_ones_were():
    old = read(WARDS, split="part", scale="client")
    known = {"preparation": old.preparation, "class_names": old.class_names}
    fresh = WARDS.assign(
        site=WARDS.site.replace("west", "east"), ill=WARDS.ill.replace("no", "yes")
    )
    new = read(fresh, split="part", **known)
    assert new.classes == 2 and new.class_names == ("no", "yes")
    assert new.preparation.clients == ("north", "south", "west", "east")
    assert new.preparation.feature_names == old.preparation.feature_names
    np.testing.assert_array_equal(
        new.preparation.apply(fresh, fresh.site), old.preparation.apply(WARDS, WARDS.site)
    )
    assert "class_names: give those" in refused(WARDS, preparation=old.preparation, split="part")
    assert "with these class_names, got 'values'" in refused(fresh, kind="values", **known)
    dose = fresh.assign(ill=AGE)
    assert read(dose, split="part", preparation=old.preparation).classes == 0
    assert "missing must be left out with a preparation" in refused(fresh, missing="mean", **known)
    other = fresh.assign(ill="perhaps")
    assert "trained for the classes 'no', 'yes'" in refused(other, split="part", **known)


# -- files and the command line --------------------------------------------------------------------
def load(path, **options):
    return il.data.load("table", path=str(path), client="site", target="ill", **options)


@pytest.mark.parametrize(
    ("name", "mark"), [("v.csv", ","), ("v.csv", ";"), ("v.tsv", "\t"), ("v.csv", "|")]
)
def test_the_separator_is_found_with_a_word(tmp_path, capsys, name, mark):
    VISITS.to_csv(tmp_path / name, sep=mark, index=False)
    assert load(tmp_path / name).fingerprint() == read().fingerprint()
    assert ("--separator" in capsys.readouterr().err) == (mark in ";|")


def test_a_file_of_decimal_commas_is_refused_with_the_reason(tmp_path):
    VISITS.to_csv(tmp_path / "v.csv", sep=";", decimal=",", index=False)
    with pytest.raises(SettingError, match="column 'age' holds numbers with a comma, such as"):
        load(tmp_path / "v.csv")


def test_a_file_with_its_row_numbers_and_a_mark_at_its_beginning_is_read(tmp_path):
    VISITS.to_csv(tmp_path / "v.csv", encoding="utf-8-sig")
    f = load(tmp_path / "v.csv")
    assert f.preparation.dropped == {"Unnamed: 0": "a row number"}
    assert f.fingerprint() == read().fingerprint()


def test_spaces_after_separators_are_no_part_of_names_and_values(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text("site, age, ill\n" + "a, 1.5, yes\nb, 2.5, no\nb,3.5,yes\na,2,no\n" * 5)
    f = load(path, features="age,")
    assert f.class_names == ("no", "yes") and f.preparation.feature_names == ("age",)


def test_files_whose_columns_are_not_clear_are_refused(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text("site,age,age,ill\na,1,2,0\nb,3,4,1\n")
    with pytest.raises(SettingError, match="column 'age' is in the table twice"):
        load(path)
    path.write_text("site,age,ill\na,1,0,\nb,3,1,\n")
    with pytest.raises(SettingError, match="more values than its first line has names"):
        load(path)


def test_client_ids_in_a_file_stay_as_they_are_written(tmp_path):
    path = tmp_path / "v.csv"
    for names, ids in (
        (("007", "010", "100"), ("007", "010", "100")),
        (("7", "10", "100"), (7, 10, 100)),
        (("7.0", "10.0", "100.0"), (7, 10, 100)),
    ):
        VISITS.assign(site=np.repeat(names, N // 3)).to_csv(path, index=False)
        assert load(path).ids == ids


def test_a_plain_install_reads_csv_and_says_what_parquet_needs(tmp_path):
    VISITS.to_csv(tmp_path / "v.csv", index=False)
    VISITS.to_parquet(tmp_path / "v.parquet")
    code = """if True:
        import sys
        sys.modules["pyarrow"] = None  # as if it were not installed
        import idiolect as il
        print(il.data.load("table", path="v.csv", client="site", target="ill").class_names)
        il.data.load("table", path="v.parquet", client="site", target="ill")
        """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "('no', 'yes')\n"
    assert "Parquet needs pyarrow: pip install 'idiolect[frames]'" in done.stderr


def test_every_option_is_a_flag(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    GAPS.assign(patient_id=np.arange(N) + 1000).to_csv("v.csv", index=False)
    line = "run fedavg --data table --path v.csv --client site --target ill --split part"
    line += " --rounds 2 --sample 3 --json --quiet --directory here"
    assert main(line.split()) == 2
    assert "--missing mean" in capsys.readouterr().err
    more = "--missing median+flag --scale client --drop ward --kind classes --max-categories 9"
    assert main([*line.split(), *more.split()]) == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["settings"]["parameters"] == 2 * 4 + 2
    assert "columns dropped: 'patient_id' (an identifier: 180 distinct values)" in out.err
    assert main([*line.replace("here", "there").split(), "--features", "age, platelets"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["parameters"] == 2 * 2 + 2


def test_a_federation_says_what_was_done_on_one_screen():
    f = read(
        GAPS.assign(patient_id=np.arange(N) + 1000, unit="mg"), split="part", missing="mean+flag"
    )
    text = str(f)
    assert len(text.splitlines()) < 15
    assert repr(f) == "Federation('table', 3 clients, 300 samples; print() shows more)"
    assert max(map(len, text.splitlines())) <= 100
    for part in (
        "3 clients, 300 samples (180 train, 60 valid, 60 test)",
        "'north', 'south', 'west'",
        "2 ('no', 'yes')",
        "federated",
        "mean+flag",
        "'patient_id' (an identifier: 180 distinct values); 'unit' (constant)",
    ):
        assert part in text
    many = il.data.load("synthetic", clients=300, samples=10)
    assert "295 more" in str(many) and len(str(many)) < 500
    assert isinstance(f.preparation, Preparation)
