"""HAPT: windows of one activity, and splits without samples in common."""

import numpy as np
import pytest

from data.pickles import dump, old_array, old_frame
from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.data.sets.hapt import CHANNELS, Hapt, cut, recordings_to_arrays

NAMES = [*CHANNELS, "sequence", "label"]


def frame(labels, start=0.0):
    n = len(labels)
    signals = start + np.arange(n) + 1000.0 * np.arange(6)[:, None]
    numbers = np.stack([np.arange(n), np.array(labels)])
    return old_frame(NAMES, [(old_array(signals), 0, 6), (old_array(numbers), 6, 8)], n)


@pytest.fixture
def folder(tmp_path):
    """Two people: 60 samples of walking and 60 of sitting with some of no activity between."""
    labels = [1] * 60 + [-1] * 5 + [4] * 60 + [7] * 40
    users = {2: [frame(labels, 500.0)], 1: [frame(labels), frame([4] * 30)]}
    (tmp_path / "hapt.pkl").write_bytes(dump(users))
    recordings_to_arrays(tmp_path)
    return tmp_path


def test_recordings_become_arrays_in_order_of_users(folder):
    signals = np.load(folder / "hapt-signals.npy")
    rows = np.load(folder / "hapt-rows.npy")
    assert signals.shape == (165 + 30 + 165, 6) and signals.dtype == np.float32
    assert rows[[0, 164, 165, 195]].tolist() == [[1, 0, 1], [1, 0, 7], [1, 1, 4], [2, 2, 1]]
    assert signals[195].tolist() == [500, 1500, 2500, 3500, 4500, 5500]


def test_a_window_is_one_activity_of_one_recording(folder):
    federation = Hapt(path=str(folder), window=8, step=4, valid=0, test=0).load()
    many = (60 - 8) // 4 + 1
    assert federation.ids == (1, 2)
    assert federation.sizes("train").tolist() == [2 * many + (30 - 8) // 4 + 1, 2 * many]
    assert federation.shape == (6, 8) and federation.classes == 6
    assert federation.class_names[3] == "sitting"
    inputs, targets = federation.part(1, "train")
    assert inputs[0, 0].tolist() == list(range(500, 508)) and targets[0] == 0  # channels first
    sitting = inputs[targets == 3]
    assert len(sitting) == many and sitting[:, 0].min() == 565 and sitting[:, 0].max() <= 624


@pytest.mark.parametrize("step", [1, 3, 4, 8, 11])
def test_no_sample_is_in_two_splits(folder, step):
    federation = Hapt(path=str(folder), window=8, step=step, seed=3).load()
    for client in range(2):
        seen = {}
        for split in ("train", "valid", "test"):
            inputs, _ = federation.part(client, split)
            seen[split] = set(inputs[:, 0].flatten().tolist()) if client else None
            assert len(inputs)
        if client:  # the one recording of user 2: a sample is known by its value
            assert not seen["train"] & seen["valid"] and not seen["train"] & seen["test"]
            assert not seen["valid"] & seen["test"]


def test_every_activity_is_in_every_split_and_the_seed_decides_which_windows(folder):
    one, again, other = (
        Hapt(path=str(folder), window=8, step=8, seed=seed).load() for seed in (0, 0, 1)
    )
    for split in ("train", "valid", "test"):
        assert (one.class_counts(split)[:, [0, 3]] > 0).all()
    assert one.samples == 28 + 3  # windows that do not overlap are all kept
    assert one.fingerprint() == again.fingerprint() != other.fingerprint()


def test_no_window_fits(folder):
    with pytest.raises(SettingError, match="window must be shorter than the activities, got 61"):
        Hapt(path=str(folder), window=61).load()


def test_cut_leaves_out_what_has_no_activity():
    rows = np.array([[1, 0, label] for label in [-1, -1, 6, 6, 6, 12, 12]])
    first, _ = cut(rows, window=2, step=1)
    assert first.tolist() == [2, 3]


@pytest.mark.parametrize(
    "name, damage, message",
    [
        ("hapt-signals.npy", None, "holds no file hapt-signals.npy"),
        ("hapt-rows.npy", b"", "hapt-rows.npy is not the hapt data"),
        ("hapt-rows.npy", b"junk", "hapt-rows.npy is not the hapt data"),
        ("hapt-rows.npy", np.zeros((4, 3)), r"float64\[4, 3\]; int16\[n, 3\] is expected"),
        ("hapt-rows.npy", np.zeros((4, 3), "<i2"), "360 signals for 4 rows"),
        ("hapt-rows.npy", np.array([{}]), "not the hapt data"),  # a pickle inside
    ],
)
def test_other_files_are_refused_by_name(folder, name, damage, message):
    (folder / name).unlink()
    if isinstance(damage, bytes):
        (folder / name).write_bytes(damage)
    elif damage is not None:
        np.save(folder / name, damage)
    with pytest.raises(SettingError, match=message):
        data.load("hapt", path=str(folder))


def test_a_header_that_promises_more_than_the_file_has_takes_no_memory(folder):
    path = folder / "hapt-rows.npy"
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"(360, 3), }   ", b"(36" + b"0" * 8 + b", 3)}"[:5]))
    with pytest.raises(SettingError, match="not the hapt data"):
        data.load("hapt", path=str(folder))


@pytest.mark.parametrize(
    "users, message", [([], "a dict of users"), ({1: [5]}, "DataFrame is expected")]
)
def test_another_pickle_is_refused(tmp_path, users, message):
    (tmp_path / "hapt.pkl").write_bytes(dump(users))
    with pytest.raises(SettingError, match=message):
        recordings_to_arrays(tmp_path)
