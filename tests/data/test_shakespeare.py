"""Shakespeare by role: speeches are found, characters are predicted."""

import json

import pytest

from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.data.sets.shakespeare import Shakespeare, plays_to_lines, speeches

PLAY = """Notes of the editor.

PERSONS REPRESENTED.
HAMLET, a prince.

ACT I. SCENE I. Elsinore.

[Enter HAMLET
and a CLOWN.]

Ham.
To be, [Aside] or not
to be.

First Clown.
Ay.

HAM.
Alas,

II.
poor fellow.
[Exit.]

FIRST CLOWN.
Sir, Hamlet
is gone.

King.
Once only.

SCENE II.

No speech.

THE END
"""


@pytest.fixture
def folder(tmp_path):
    said = {"a HAM": "ab" * 100, "a KING": "abc" * 20, "b HAM": "xyz" * 50}
    with open(tmp_path / "shakespeare.jsonl", "w") as out:
        for client, text in said.items():
            play, role = client.split()
            for half in (text[: len(text) // 2], text[len(text) // 2 :]):
                out.write(json.dumps({"play": play, "role": role, "text": half}) + "\n")
    return tmp_path


def test_speeches_are_found_by_role_without_stage_directions():
    assert list(speeches(PLAY)) == [
        ("HAM", "To be,  or not\nto be."),
        ("FIRST CLOWN", "Ay."),
        ("HAM", "Alas,\nII.\npoor fellow."),
        ("FIRST CLOWN", "Sir, Hamlet\nis gone."),
    ]


def test_headings_may_be_in_capitals_without_a_point():
    play = "ACT I\n\nTHESEUS\nGood.\n\nEGEUS\nFull.\n\nTHESEUS\nWhat say you?\n\nEGEUS\nMy lord.\n"
    assert [role for role, _ in speeches(play)] == ["THESEUS", "EGEUS"] * 2


def test_plays_become_lines_in_order_of_their_names(tmp_path):
    for name in ("b_gut.txt", "a_gut.txt"):
        (tmp_path / name).write_text(PLAY.replace("\n", "\r\n"), newline="")
    plays_to_lines(tmp_path)
    written = (tmp_path / "shakespeare.jsonl").read_text()
    lines = [json.loads(line) for line in written.splitlines()]
    assert [line["play"] for line in lines] == ["a"] * 4 + ["b"] * 4
    assert lines[0] == {"play": "a", "role": "HAM", "text": "To be,  or not\nto be."}


def test_a_client_is_a_role_of_a_play_and_targets_are_the_next_characters(folder):
    federation, characters = Shakespeare(path=str(folder), length=5, minimum=100).draw()
    assert federation.ids == ("a HAM", "b HAM")  # the king has too few characters
    assert federation.shape == (5,) and federation.classes == len(characters) == 1 + 6
    inputs, targets = federation.part(0, "train")
    assert "".join(characters[k] for k in inputs[0]) == "ababa"
    assert "".join(characters[k] for k in targets[0]) == "babab"
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    # 201 characters with the break between speeches: 40 test, 32 validate, 129 train
    assert [federation.sizes(s)[0].item() for s in ("train", "valid", "test")] == [25, 6, 7]


def test_letters_keep_their_case_and_rare_characters_are_unknown(folder):
    with open(folder / "shakespeare.jsonl", "w") as out:
        out.write(json.dumps({"play": "a", "role": "HAM", "text": "AaAaAab" * 40}) + "\n")
    federation, characters = Shakespeare(path=str(folder), vocabulary=2, minimum=0).draw()
    assert characters == ("<unk>", "A", "a") and federation.special == (0,)


@pytest.mark.parametrize("line", ["junk", "[]", '{"play": "a"}', '{"play": 1, "role": 2}', "3"])
def test_other_files_are_refused_by_name(folder, line):
    (folder / "shakespeare.jsonl").write_text(line + "\n")
    with pytest.raises(SettingError, match=r"shakespeare\.jsonl is not the shakespeare data"):
        data.load("shakespeare", path=str(folder))
    (folder / "shakespeare.jsonl").unlink()
    with pytest.raises(SettingError, match=r"holds no file shakespeare\.jsonl"):
        data.load("shakespeare", path=str(folder))
