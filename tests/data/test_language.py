"""Text by user becomes next-token samples, whoever's tokenizer and in whatever form it comes."""

import json

import pytest
import torch

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.data.sets.shakespeare import Shakespeare

ROWS = [
    {"user": "Ann", "text": "to be"},
    {"user": "Bob", "text": "or not"},
    {"user": "Ann", "text": "again"},
]


def letters(text):
    """A tokenizer: one token per letter, and nothing special."""
    return list(text.encode())


def samples(federation, user):
    """(inputs, mask, targets) of a user, all splits one after the other, as lists."""
    k = federation.position(user)
    parts = [federation.part(k, split) for split in ("train", "valid", "test")]
    return [
        (x["input_ids"][i].tolist(), x["attention_mask"][i].tolist(), y[i].tolist())
        for x, y in parts
        for i in range(len(y))
    ]


def same(one, other):
    return all(samples(one, user) == samples(other, user) for user in one.ids) and (
        one.ids == other.ids and one.classes == other.classes
    )


def test_a_user_s_texts_are_one_stream_in_windows_that_meet():
    data = il.Federation.from_texts(ROWS, letters, length=4, end=0, valid=0, test=0)
    stream = [*letters("to be"), 0, *letters("again"), 0]
    windows = samples(data, "Ann")
    assert [i for i, m, _ in windows for i in torch.tensor(i)[torch.tensor(m) == 1].tolist()] == (
        stream[:-1]
    )
    assert [t for _, _, y in windows for t in y if t != -100] == stream[1:]
    assert all(t == -100 for _, m, y in windows for on, t in zip(m, y, strict=True) if not on)


def test_the_last_windows_of_each_user_test_unless_told_otherwise():
    data = il.Federation.from_texts({"Ann": "abcdefghijklm"}, letters, length=2, test=0.5, valid=0)
    assert samples(data, "Ann")[-1][0] == letters("kl")
    whole = il.Federation.from_texts({"Ann": "abcdefg"}, letters, length=2, split=["train"] * 3)
    assert whole.sizes("train").tolist() == [3]


def test_prompts_are_read_and_not_predicted():
    rows = {1: [("2+2=", "4"), ("", "ab")]}
    data = il.Federation.from_texts(rows, letters, end=0, length=8, valid=0, test=0)
    (asked, mask, targets), (bare, _, second) = samples(data, 1)
    assert asked == letters("2+2=4") and mask == [1] * 5
    assert targets == [-100] * 3 + [*letters("4"), 0]
    assert bare == [*letters("ab"), 0, 0, 0] and second == [*letters("b"), 0, -100, -100, -100]


def test_a_prompt_that_fills_the_window_is_left_out_and_counted(capsys):
    rows = {"Ann": [("a very long question", "yes"), ("short?", "no")]}
    data = il.Federation.from_texts(rows, letters, length=8, valid=0, test=0)
    assert data.samples == 1
    assert "1 prompt of 8 tokens or more left out" in capsys.readouterr().err


def test_every_source_gives_the_same_samples(tmp_path):
    datasets = pytest.importorskip("datasets")
    settings = {"length": 4, "end": 0}
    rows = il.Federation.from_texts(ROWS, letters, **settings)
    by_user = {"Ann": ["to be", "again"], "Bob": "or not"}
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    folder = tmp_path / "folder"
    (folder / "Ann").mkdir(parents=True)
    (folder / "Ann" / "1.txt").write_text("to be")
    (folder / "Ann" / "2.txt").write_text("again")
    (folder / "Bob.txt").write_text("or not")
    sources = [by_user, tmp_path / "chats.jsonl", str(folder), datasets.Dataset.from_list(ROWS)]
    for source in sources:
        assert same(il.Federation.from_texts(source, letters, **settings), rows)


def test_a_tokenizer_of_transformers_brings_its_size_and_special_tokens():
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<s>", "</s>", "to", "be", "or", "not"]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="</s>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>"
    )
    data = il.Federation.from_texts(
        [{"user": "Ann", "prompt": "to be", "response": "or not"}], tokenizer, valid=0, test=0
    )
    assert data.classes == 6
    assert samples(data, "Ann") == [([0, 2, 3, 4, 5], [1] * 5, [-100, -100, 4, 5, 1])]


def test_shakespeare_by_role_is_tokenised_by_the_user_s_tokenizer(tmp_path):
    speeches = [("HAM", "To be, or not to be"), ("KING", "And now, our cousin")]
    lines = [{"play": "A", "role": role, "text": text} for role, text in speeches]
    path = tmp_path / "shakespeare.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    texts = Shakespeare(path=str(tmp_path)).texts()
    data = il.Federation.from_texts(texts, letters, length=8)
    assert data.ids == ("A HAM", "A KING")
    assert samples(data, "A HAM")[0][0][:5] == letters("To be")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ([{"user": "Ann"}], "row 0 must have 'user' and 'text'"),
        ([{"user": "Ann", "response": "yes"}], "row 0 must have"),
        ([{"user": "Ann", "text": 3}], "as text"),
        ({"Ann": [3]}, "texts of 'Ann' must be text or pairs"),
        (7, "texts must be rows"),
        ({"Ann": "a"}, "at least two tokens"),
    ],
)
def test_rows_of_another_form_are_refused_by_name(source, words):
    with pytest.raises(SettingError, match=words):
        il.Federation.from_texts(source, letters)


def test_files_of_another_form_are_refused_by_name(tmp_path):
    for name, text, words in [
        ("a.csv", "x", "must be a file of JSON lines"),
        ("a.jsonl", "{", "cannot read"),
        ("b.jsonl", '{"user": 1}', "line 1 must have"),
    ]:
        (tmp_path / name).write_text(text)
        with pytest.raises(SettingError, match=words):
            il.Federation.from_texts(tmp_path / name, letters)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingError, match="must be a folder of USER"):
        il.Federation.from_texts(tmp_path / "empty", letters)


def test_options_of_another_form_are_refused_by_name():
    for options, words in [
        ({"length": 0}, "length must be a whole number >= 1, got 0"),
        ({"vocabulary": 5}, "vocabulary must be above every token number, got 5"),
    ]:
        with pytest.raises(SettingError, match=words):
            il.Federation.from_texts(ROWS, letters, **options)
    with pytest.raises(SettingError, match="tokenizer must be a function"):
        il.Federation.from_texts(ROWS, "gpt2")
    with pytest.raises(SettingError, match="tokenizer must return token numbers"):
        il.Federation.from_texts(ROWS, lambda text: [text])


def test_targets_behind_the_attention_mask_do_not_count(capsys):
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).repeat(4, 1)
    inputs = {"input_ids": torch.ones(8, 3, dtype=torch.int64), "attention_mask": mask}
    words = torch.randint(0, 5, (8, 3))
    data = il.Federation.from_arrays(inputs, words, ["a", "b"] * 4, classes=5, valid=0, test=0)
    assert (data.targets == -100).sum() == 4 and (data.part(1, "train")[1] >= 0).all()
    assert "attention_mask is 0 do not count" in capsys.readouterr().err
