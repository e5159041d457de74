"""One client, one sample, one round: counts agree with their nouns."""

import re

import numpy as np
import torch

import idiolect as il
from idiolect.cli.main import main
from idiolect.data.describe import describe

# "1 clients", but not "0.1 clients", "21 clients" or "1 to 2 clients"
WRONG = re.compile(
    r"(?<![\d.,])1 (clients|samples|files|rows|rounds|seeds|runs|settings|steps|columns|features"
    r"|classes|messages|values|labels|replies|numbers)\b"
)


def said(capsys, *words):
    assert main(list(words)) == 0, capsys.readouterr().err
    text = capsys.readouterr()
    return text.out + text.err


def test_one_of_a_thing_is_singular_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = ["--data", "synthetic", "--clients", "1", "--samples", "10", "--rounds", "1"]
    texts = [
        said(capsys, "run", "fedavg", *one, "--directory", "run"),
        said(capsys, "compare", "fedavg", *one, "--directory", "compare"),
        said(capsys, "sweep", "fedavg", *one, "--jobs", "1", "--directory", "sweep"),
        said(capsys, "sweep", "fedavg", *one, "--jobs", "1", "--directory", "sweep"),
        said(capsys, "tune", "fedavg", *one, "--grid", "lr=0.1", "--jobs", "1"),
        said(capsys, "show", "run"),
        said(capsys, "export", "run"),
        said(capsys, "data", "show", "synthetic", *one[2:-2]),
    ]
    assert "1 client, d = 610" in texts[0] and "1 of 1 client heard per round" in texts[0]
    assert "1 setting tried" in texts[4]
    assert "1 file and" in texts[6]
    assert not [wrong.group() for text in texts for wrong in WRONG.finditer(text)]


def test_one_of_a_thing_is_singular_in_python():
    alone = il.Federation.from_arrays(np.ones((1, 2)), [0], ["a"], valid=0, test=0, classes=2)
    result = il.run("fedavg", lambda: torch.nn.Linear(2, 2), alone, rounds=1)
    prediction = result.predict(np.ones((1, 2), dtype=np.float32), client="a")
    texts = [describe(alone), *map(repr, (alone, result, result.record, prediction))]
    texts += [repr(result.seeds[0]), str(result)]
    assert "1 client, 1 sample" in texts[0]
    assert repr(prediction) == "Prediction(1 label of 2 classes)"
    assert not [wrong.group() for text in texts for wrong in WRONG.finditer(text)]


def test_several_are_plural():
    many = il.Federation.from_arrays(np.ones((4, 2)), [0, 1, 0, 1], [0, 0, 1, 1])
    assert "2 clients, 4 samples" in repr(many)
