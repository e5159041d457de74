"""Client ids: their type, their order, how a client is found by its id, and what is refused."""

import datetime

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect.core.knobs import SettingError
from idiolect.core.streams import name_keys
from idiolect.data import Federation
from idiolect.data.read.ids import read_ids

DAY = datetime.date(2024, 5, 1)


def of_ids(clients):
    n = len(clients)
    return Federation.from_arrays(np.arange(n, dtype=np.float32)[:, None], [0] * n, clients)


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ([10, 2, 10], (2, 10)),
        (np.array([10, 2, 10], dtype=np.uint8), (2, 10)),
        (torch.tensor([10, 2]), (2, 10)),
        (range(12), tuple(range(12))),
        ([2**70, 3], (2**70, 3)),  # an array of objects: by text
        ([10.0, 2.0], (2, 10)),
        ([10, 2.0], (2, 10)),
        (np.array([10.0, 2.0], dtype=np.float32), (2, 10)),
        (["10", "2"], ("10", "2")),
        (np.array(["b", "a"], dtype=object), ("a", "b")),
        (pd.Series(["b", "a"]), ("a", "b")),
        (np.array([10, 2], dtype=object), (10, 2)),  # by text, as all arrays of objects
        ([3, "a", 10], (10, 3, "a")),
        ([np.int64(3), "a"], (3, "a")),
        ([DAY], ("2024-05-01",)),
        (np.array(["2024-05-01"], dtype="datetime64[D]"), ("2024-05-01",)),
        ([b"a"], ("b'a'",)),
        ([("site", 2), ("site", 1)], ("('site', 1)", "('site', 2)")),
    ],
)
def test_whole_numbers_stay_numbers_and_everything_else_is_text(given, ids):
    found, positions = read_ids(given)
    assert found == ids and [type(i) for i in found] == [type(i) for i in ids]
    assert len(positions) == len(given) and set(positions.tolist()) == set(range(len(ids)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([0.5, 1.0], r"clients: an id must be a whole number or text, got 0\.5"),
        ([1.0, np.inf], "clients: an id must be a whole number or text, got inf"),
        ([True, False], "clients: an id must be a whole number or text, got False"),
        ([True, 2], "clients: an id must be a whole number or text, got True"),
        ([True, "a"], "clients: an id must be a whole number or text, got True"),
        ([1, "1"], "clients: ids must differ as text, got 1 and '1'"),
        (
            np.array(["a", 1.5], dtype=object),
            r"clients: an id must be a whole number or text, got 1\.5",
        ),
        ([("a",), "('a',)"], "clients: ids must differ as text, got"),
        (["a", None], "sample 1 has no client id"),
        (["a", float("nan")], "sample 1 has no client id"),
        (pd.Series(["a", pd.NA], dtype=object), "sample 1 has no client id"),
        (np.array(["2024", "NaT"], dtype="datetime64[D]"), "sample 1 has no client id"),
        ([[1], [2]], r"clients must be one client id per sample, got an array of shape \(2, 1\)"),
        (7, "one client id per sample"),
    ],
)
def test_other_ids_are_refused_with_the_reason(given, message):
    with pytest.raises(SettingError, match=message):
        read_ids(given)


def test_an_id_of_equal_value_and_text_is_the_same_client():
    ids, positions = read_ids([1, np.int64(1), 1.0, "a"])
    assert ids == (1, "a") and positions.tolist() == [0, 0, 0, 1]


def test_whole_numbers_and_their_texts_draw_the_same_random_numbers():
    numbers = of_ids([3, 1, 2])
    texts = of_ids(["3", "1", "2"])
    assert numbers.ids == (1, 2, 3) and texts.ids == numbers.names == ("1", "2", "3")
    assert (name_keys(numbers.names) == name_keys(texts.names)).all()
    assert numbers.fingerprint() == texts.fingerprint()


def test_a_frame_keeps_the_type_of_its_column():
    frame = pd.DataFrame({"who": [10, 2, 10, 2], "x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1]})
    assert Federation.from_frame(frame, client="who", target="y").ids == (2, 10)
    frame = frame.assign(who=["s10", "s2", "s10", "s2"])
    assert Federation.from_frame(frame, client="who", target="y").ids == ("s10", "s2")


def test_the_keys_of_a_dict_are_ids_and_the_clients_of_a_list_are_numbered_texts():
    dataset = [(torch.zeros(2), 0)]
    assert Federation.from_datasets({10: dataset, 2: dataset}).ids == (2, 10)
    assert Federation.from_datasets({(0, 1): dataset}).ids == ("(0, 1)",)
    assert Federation.from_datasets([dataset] * 2).ids == ("00000", "00001")
    with pytest.raises(SettingError, match="clients: ids must differ as text, got 1 and '1'"):
        Federation.from_datasets({1: dataset, "1": dataset})


# -- position --


def test_a_client_is_found_by_its_id():
    f = of_ids([13, 7, 100])
    assert [f.position(i) for i in f.ids] == [0, 1, 2]
    assert f.position(np.int64(13)) == f.position("13") == f.position(13.0) == 1
    assert of_ids(["b", "a"]).position("b") == 1
    assert of_ids([3, "a"]).position("3") == of_ids([3, "a"]).position(3) == 0
    assert of_ids([DAY]).position(DAY) == 0


@pytest.mark.parametrize(
    ("ids", "wanted", "message"),
    [
        (["site 0", "site 1"], 0, "0 is unknown; clients are named by text, such as 'site 0'"),
        (["0", "1"], 0, "0 is unknown; clients are named by text, such as '0'"),
        (["Aachen", "Bonn"], "Achen", "'Achen' is unknown; did you mean 'Aachen'?"),
        (["Aachen", "Bonn"], "Zug", "'Zug' is unknown; clients are named by text, such as"),
        (range(5), 5, "5 is unknown; clients are numbered 0 to 4$"),
        (range(5), -1, "-1 is unknown; clients are numbered 0 to 4$"),
        ([3, 8, 20], 9, "9 is unknown; clients are numbered 3 to 20, the nearest is 8"),
        (range(5), "site", "'site' is unknown; clients are numbered 0 to 4"),
        (range(5), "04", "'04' is unknown; did you mean '4'?"),
        ([3, "a"], "zzz", "'zzz' is unknown; clients are named by text, such as 'a'"),
        ([3, "a"], 4, "4 is unknown; clients are numbered 3 to 3"),
        (range(5), True, "clients: an id must be a whole number or text, got True"),
        (range(5), 1.5, r"clients: an id must be a whole number or text, got 1\.5"),
    ],
)
def test_an_unknown_client_is_refused_with_help(ids, wanted, message):
    with pytest.raises(SettingError, match=message):
        of_ids(ids).position(wanted)


# -- part and of --

X = np.arange(40, dtype=np.float32).reshape(20, 2)
WHO = np.repeat([7, 13, 2, 40], [3, 4, 5, 8])
F = Federation.from_arrays(X, np.arange(20) % 3, WHO, valid=0.25, test=0.25)


@pytest.mark.parametrize("position", [-1, 4])
def test_a_part_is_asked_for_by_position(position):
    with pytest.raises(SettingError, match=f"position must be from 0 to 3, got {position}"):
        F.part(position, "train")


@pytest.mark.parametrize("positions", [[2], [3, 0], [0, 1, 2], [3, 2, 1, 0], torch.tensor([1, 3])])
def test_some_clients_keep_their_data_ids_and_order(positions):
    g = F.of(positions)
    assert g.ids == tuple(F.ids[k] for k in positions)
    assert g.classes == F.classes and g.name == F.name
    assert len(g.inputs) == sum(int(F.sizes(s)[k]) for s in F.offsets for k in positions)
    for split in F.offsets:
        assert g.offsets[split].dtype == torch.int64
        for new, old in enumerate(positions):
            for mine, theirs in zip(g.part(new, split), F.part(int(old), split), strict=True):
                assert torch.equal(mine, theirs)


def test_some_clients_are_what_from_arrays_makes_of_their_samples():
    kept = np.isin(WHO, [13, 2])
    given = {"valid": 0, "test": 0, "classes": 3}
    whole = Federation.from_arrays(X, np.arange(20) % 3, WHO, **given)
    alone = Federation.from_arrays(X[kept], (np.arange(20) % 3)[kept], WHO[kept], **given)
    some = whole.of([whole.position(2), whole.position(13)])
    assert some.fingerprint() == alone.fingerprint()


def test_all_clients_in_order_are_the_same_object():
    assert F.of(range(4)) is F and F.of(np.arange(4)) is F
    assert F.of([1, 0, 2, 3]) is not F


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([], "one or more whole numbers"),
        ([0.0], "one or more whole numbers"),
        ([True, False, True, False], "one or more whole numbers"),
        ([[0]], "one or more whole numbers"),
        ([0, 4], "positions must be from 0 to 3, got 4"),
        ([-1], "positions must be from 0 to 3, got -1"),
        ([1, 1], "must name each client once"),
    ],
)
def test_positions_that_name_no_clients_are_refused(positions, message):
    with pytest.raises(SettingError, match=message):
        F.of(positions)


@pytest.mark.parametrize("kind", [list, np.array, lambda ids: np.array(ids, dtype=object)])
@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ("a\ud800", "must be whole characters"),
        ("a\0b", r"clients: an id must be text without NUL, got 'a\\x00"),
    ],
)
def test_text_that_no_file_could_give_back_is_refused(kind, odd, message):
    with pytest.raises(SettingError, match=message):
        read_ids(kind(["a", odd]))


def test_a_nul_at_the_end_does_not_make_two_clients_one():
    for given in (["a", "a\0"], np.array(["a", "a\0"], dtype=object)):
        with pytest.raises(
            SettingError, match=r"clients: an id must be text without NUL, got 'a\\x00"
        ):
            read_ids(given)
