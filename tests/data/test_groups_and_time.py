"""Repeated patients and times: what belongs together is on one side of every split and fold."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.data.splits import draw_split, fold_counts, group_ranks
from idiolect.study.advise.training import FOLDS, IN_FOLDS, Holdout

rng = np.random.default_rng(0)
PATIENTS = 150
ROWS = 4  # of each patient


def visits() -> pd.DataFrame:
    """Features that name the patient, and an outcome that is a coin flip of each patient."""
    patient = np.repeat(np.arange(PATIENTS), ROWS)
    traits = rng.normal(size=(PATIENTS, 6))[patient]
    frame = pd.DataFrame(traits + 0.01 * rng.normal(size=traits.shape)).add_prefix("x")
    frame["patient"] = patient + 10_000
    frame["hospital"] = np.array(["north", "south", "west"])[patient % 3]
    frame["ill"] = rng.integers(0, 2, PATIENTS)[patient]
    frame["day"] = rng.permutation(len(frame))
    return frame.sample(frac=1.0, random_state=0).reset_index(drop=True)


VISITS = visits()


def read(frame=VISITS, **options):
    return il.Federation.from_frame(frame, client="hospital", target="ill", **options)


def sides(federation) -> list[set[int]]:
    return [set(federation.groups_of(split).tolist()) for split in ("train", "valid", "test")]


def test_rows_of_a_patient_are_on_one_side_of_the_split_and_the_column_is_no_input(capsys):
    federation = read(group="patient", drop="day")
    train, valid, test = sides(federation)
    assert not train & test and not train & valid and not valid & test
    assert len(train | valid | test) == PATIENTS
    assert "patient" not in federation.preparation.feature_names
    assert "600 rows of 150 groups ('patient')" in capsys.readouterr().err
    without = read(drop="day")
    assert without.groups is None and len(without.groups_of("test")) == without.sizes("test").sum()


def test_a_patient_that_is_there_again_is_said_where_no_group_is_named(capsys):
    read(drop="day")
    assert "--group patient keeps them on one side of the split" in capsys.readouterr().err
    read(drop="day", group="patient")
    assert "--group" not in capsys.readouterr().err


def test_shares_are_met_as_nearly_as_whole_groups_allow():
    federation = read(group="patient", drop="day")
    assert federation.sizes("test").tolist() == [40, 40, 40]  # 10 of 50 patients of 4 rows
    assert federation.sizes("valid").tolist() == [32, 32, 32]
    assert federation.group_counts("test").tolist() == [10, 10, 10]


def test_a_coin_flip_per_patient_is_learnt_by_heart_only_without_groups():
    nearest = {}
    for name, options in {"rows": {}, "patients": {"group": "patient"}}.items():
        federation = read(drop="day" if options else "day,patient", scale="none", **options)
        hits = []
        for k in range(federation.clients):
            x, y = federation.part(k, "train")
            new, truth = federation.part(k, "test")
            hits += (y[torch.cdist(new, x).argmin(1)] == truth).tolist()
        nearest[name] = np.mean(hits)
    assert nearest["rows"] > 0.9  # the patient was seen in training
    assert abs(nearest["patients"] - 0.5) < 0.2


def test_a_group_of_several_clients_is_on_the_same_side_in_all_of_them():
    client = np.repeat([0, 1], 100)
    group = np.tile(np.arange(50), 4)  # both clients have all of them
    part = draw_split(client, 0.2, 0.2, 0, group)
    for g in range(50):
        assert len(set(part[group == g])) == 1
    assert {0, 1, 2} == set(part[client == 0]) == set(part[client == 1])


@pytest.mark.parametrize("seed", range(20))
def test_every_client_trains_whatever_groups_it_shares(seed):
    rng = np.random.default_rng(seed)
    client, group = rng.integers(0, 8, 60), rng.integers(0, 6, 60)
    part = draw_split(client, 0.4, 0.5, seed, group)
    assert (np.bincount(client[part == 0], minlength=8) > 0)[np.unique(client)].all()
    assert all(len(set(part[group == g])) == 1 for g in np.unique(group))


def test_folds_hold_out_whole_groups():
    federation = read(group="patient", drop="day", valid=0)
    holdout = Holdout.of(federation, IN_FOLDS, seed=0)
    ever = []
    for seed in range(FOLDS):
        data, _ = holdout.under(seed)
        train, valid, _ = sides(data)
        assert valid and not train & valid
        ever += sorted(valid)
    assert len(ever) == len(set(ever)) == 120  # every training patient once
    group = holdout.data.groups.numpy()[holdout._order]
    for g in np.unique(group):  # nor does a patient judge what it has chosen
        assert len(set(holdout.half[group == g])) == 1


def test_folds_of_groups_of_several_clients_are_the_same_everywhere():
    client = np.repeat([0, 1, 2], [40, 40, 2])
    group = np.concatenate([np.tile(np.arange(20), 4), [0, 1]])
    folds = fold_counts(client, group, 3, folds=5)
    assert folds.tolist() == [5, 5, 5]
    fold = group_ranks(client, group, np.random.default_rng(0).random(82)) % folds[client]
    assert all(len(set(fold[group == g])) == 1 for g in range(20))


def test_halves_share_no_patient():
    federation = read(group="patient", drop="day", valid=0)
    halves = Holdout.of(federation, IN_FOLDS, seed=0).halves(0)
    group = halves.groups_of("train")
    owner = torch.arange(halves.clients).repeat_interleave(halves.sizes("train"))
    assert not set(group[owner == 0].tolist()) & set(group[owner == 1].tolist())


def test_groups_follow_their_rows_into_a_part_of_the_federation():
    federation = read(group="patient", drop="day")
    some = federation.of([2, 0]).capped({"train": 20})
    assert len(some.groups) == some.samples
    whole = dict(zip(map(tuple, federation.inputs.tolist()), federation.groups, strict=True))
    assert all(whole[tuple(x)] == g for x, g in zip(some.inputs.tolist(), some.groups, strict=True))


def test_arrays_and_data_sets_take_groups_and_times():
    x, y = np.arange(40.0)[:, None], np.arange(40) % 2
    site, device = np.repeat(["a", "b"], 20), [f"device {i // 4}" for i in range(40)]
    for federation in (
        il.Federation.from_arrays(x, y, site, group=device),
        il.Federation.from_datasets({"a": (x[:20], y[:20]), "b": (x[20:], y[20:])}, group=device),
    ):
        train, valid, test = sides(federation)
        assert test and not train & test and not train & valid and not valid & test
    late = il.Federation.from_arrays(x, y, site, time=-x[:, 0], valid=0, test=0.25)
    assert late.part(0, "test")[0].flatten().tolist() == [0, 1, 2, 3, 4]
    pair = TensorDataset(torch.randn(20, 2), torch.arange(20) % 2)
    divided = {"a": {"train": pair, "test": pair}}
    with pytest.raises(SettingError, match="20 groups with samples in several splits"):
        il.Federation.from_datasets(divided, group=[*range(20), *range(20)])


def test_time_trains_before_and_tests_after_at_each_client():
    federation = read(time="day", drop="patient")
    assert "day" not in federation.preparation.feature_names
    order = VISITS.sort_values("day")
    for k, hospital in enumerate(federation.ids):
        last = order[order.hospital == hospital].tail(40)
        expected = federation.preparation.apply(last)
        got = federation.part(k, "test")[0].numpy()
        assert sorted(map(tuple, got)) == sorted(map(tuple, expected))


def test_dates_are_times_and_one_moment_is_not_torn():
    days = pd.Timestamp("2026-01-01") + pd.to_timedelta(VISITS.day // 10, unit="D")
    frame = VISITS.assign(day=days.dt.strftime("%d.%m.%Y"))
    federation = read(frame, time="day", drop="patient", valid=0)
    same = read(VISITS.assign(day=VISITS.day // 10), time="day", drop="patient", valid=0)
    assert (federation.inputs == same.inputs).all()
    assert federation.sizes("test").tolist() == same.sizes("test").tolist()


def test_with_group_and_time_patients_who_came_last_test():
    federation = read(group="patient", time="day", valid=0)
    first = VISITS.groupby("patient").day.min()
    names = np.sort(VISITS.patient.unique())  # groups are numbered in this order
    for hospital in range(3):
        of = first.index % 3 == (hospital + 10_000 % 3) % 3
        latest = set(first[of].nlargest(10).index)
        tested = {int(names[g]) for g in federation.groups_of("test").tolist()}
        assert latest <= tested


def test_groups_that_cannot_be_meant_are_refused():
    gap = VISITS.assign(patient=VISITS.patient.mask(VISITS.index == 3))
    with pytest.raises(SettingError, match=r"group: sample 3 has none \(1 in all\)"):
        read(gap, group="patient")
    torn = VISITS.assign(part=np.where(VISITS.index % 2, "train", "test"))
    with pytest.raises(SettingError, match="split must have every group on one side"):
        read(torn, group="patient", split="part")
    with pytest.raises(SettingError, match="time must be left out with split"):
        read(torn, time="day", split="part")
    with pytest.raises(SettingError, match="'hospital' is the column of the client too"):
        read(group="hospital")
    with pytest.raises(SettingError, match="group must be one entry per sample"):
        il.Federation.from_arrays(np.eye(4), [0, 1, 0, 1], list("aabb"), group=[1, 2])
    with pytest.raises(SettingError, match="must hold numbers or dates"):
        read(time="hospital_name", frame=VISITS.assign(hospital_name=VISITS.hospital))


# -- folds forward in time -------------------------------------------------------------------------
def in_time(federation, seeds=3) -> Holdout:
    return Holdout.of(federation, IN_FOLDS, seed=0, seeds=seeds)


def places(federation, split) -> list[np.ndarray]:
    """The places in time of each client's samples of a split."""
    low, high = (int(federation.offsets[split][end]) for end in (0, -1))
    return np.split(federation.times[low:high].numpy(), federation.sizes(split).cumsum(0)[:-1])


@pytest.mark.parametrize("options", [{"drop": "patient"}, {"group": "patient"}])
def test_every_judged_sample_is_later_than_what_its_client_trains_on(options):
    holdout = in_time(read(time="day", **options))
    for seed in range(3):
        fold, held_out = holdout.under(seed)
        for before, judged in zip(places(fold, "train"), places(fold, "valid"), strict=True):
            assert len(before) and len(judged) and before.max() < judged.min()
        assert len(held_out) == int(fold.sizes("valid").sum())
        assert (held_out == holdout.held(seed)).all()


def test_four_blocks_judge_three_times_and_the_first_one_never():
    holdout = in_time(read(time="day", drop="patient"))
    judged = holdout.mask(3).sum(0)
    assert judged.max() == 1 and holdout.folds == 3
    for k in range(3):
        own = holdout.owner == k
        first = holdout.time[own & (judged == 0)]
        assert first.max() < holdout.time[own & (judged == 1)].min()
        assert len(first) == pytest.approx(own.sum() / 4, abs=1)
    sizes = [int(holdout.under(seed)[0].sizes("train").sum()) for seed in range(3)]
    assert sizes == sorted(sizes, reverse=True)  # step sizes are chosen with most samples


def test_samples_of_one_moment_and_of_one_patient_are_not_torn_by_folds():
    holdout = in_time(read(VISITS.assign(day=VISITS.day // 40), time="day", drop="patient"))
    for seed in range(3):
        fold, _ = holdout.under(seed)
        for before, judged in zip(places(fold, "train"), places(fold, "valid"), strict=True):
            assert before.max() < judged.min()
    fold, _ = in_time(read(time="day", group="patient")).under(0)
    train, valid, _ = sides(fold)
    assert not train & valid


def test_patients_of_two_hospitals_are_judged_at_both_under_one_seed():
    rows = rng.permutation(80)
    site, person = np.repeat([0, 1], 40), np.tile(np.repeat(np.arange(10), 4), 2)
    x, y = rng.normal(size=(80, 2)).astype("float32"), rows % 2
    data = il.Federation.from_arrays(x, y, site, group=person, time=rows, valid=0, test=0)
    holdout = in_time(data)
    for seed in range(3):
        train, valid, _ = sides(holdout.under(seed)[0])
        assert not train & valid


def test_clients_with_few_samples_have_fewer_folds_and_one_moment_only_trains():
    x, y = np.zeros((8, 1), dtype="float32"), np.arange(8) % 2
    time = [1, 2, 3, 7, 7, 1, 2, 3]
    data = il.Federation.from_arrays(x, y, list("aaabbccc"), time=time, valid=0, test=0)
    holdout = in_time(data)
    for seed in range(3):
        fold, _ = holdout.under(seed)
        assert fold.sizes("train").tolist()[1] == 2 and fold.sizes("valid").tolist()[1] == 0
        assert fold.sizes("valid").tolist()[0] == 1


def test_an_advice_on_times_says_that_folds_go_forward():
    advice = il.advise(
        read(time="day", drop="patient"),
        il.Task(lambda: torch.nn.Linear(6, 2)),
        ["finetune"],
        quick=True,
        gradients=5,
        trees=False,
        progress=False,
        threads=1,
    )
    (note,) = [n for n in advice.notes if "judged by folds" in n]
    assert "forward in time" in note and "first block of each client judges nothing" in note
    assert sum(c.samples for c in advice.clients) < 480


def test_subsets_carry_the_times_of_their_samples():
    data = read(time="day", drop="patient")
    assert len(data.of([1, 0]).times) == len(data.of([1, 0]).targets)
    assert len(data.without("test").times) == data.without("test").samples
    for before, after in zip(places(data, "train"), places(data, "test"), strict=True):
        assert before.max() < after.min()
