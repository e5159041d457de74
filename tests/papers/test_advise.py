"""How often advice is right: a small size of the same experiment, and how cases are judged."""

import json

import numpy as np
import pytest

from idiolect_papers.own.advise import AdviceCase, AdviceSize, JudgedCase, write

SMALL = AdviceSize(
    alphas=(1.0,),
    ratios=(0.0,),
    per_client=(10,),
    synthetic=(20,),
    logistic=(20,),
    classes=(5,),
    clients=10,
    digits_clients=10,
    test=40,
    repeats=1,
    gradients=20,
    seeds=2,
)


def judged(choice, truth, alternative="local"):
    outcome = {"choice": choice, "alternative": alternative, "truth": truth, "side": "above"}
    outcome |= {"errors": dict.fromkeys(truth, 0.005), "tie": 0.01}
    return JudgedCase(AdviceCase("synthetic", 1.0, 40, 10, 100, 0), outcome)


def test_a_choice_is_right_if_nothing_is_better_by_more_than_a_tie():
    truth = {"local": 0.5, "fedavg": 0.9, "fedalt": 0.495}
    assert judged("local", truth).right and judged("fedalt part=biases", truth).right
    assert not judged("fedavg", truth).right and not judged("undecided", truth).right
    assert judged("local", truth).place("fedalt") == "near"
    assert judged("local", truth).place("fedavg") == "away" and judged("local", truth).named
    assert judged("fedalt part=biases", truth).together and not judged("local", truth).together


def test_what_the_samples_cannot_show_is_not_away_from_the_threshold():
    case = judged("undecided", {"local": 0.5, "fedavg": 0.54})
    assert case.place("fedavg") == "away" and case.gain("fedavg") == pytest.approx(-4)
    case.outcome["errors"]["fedavg"] = 0.02
    assert case.place("fedavg") == "away, but more than the samples can show"


def test_cases_give_the_advice_no_validation_samples_and_a_large_test_set():
    for case in SMALL.cases():
        federation, _ = case.load()
        assert int(federation.sizes("valid").sum()) == 0
        assert (federation.sizes("train") == case.samples).all()
        assert (federation.sizes("test") >= 40).all()


def test_digits_of_the_test_set_are_not_trained_on():
    federation, _ = AdviceCase("digits", 20, 2, 20, 0, 1).load()
    cut = int(federation.offsets["train"][-1])
    rows = federation.inputs.numpy().round(4)
    train = {row.tobytes() for row in rows[:cut]}
    assert len(train) >= cut - 1  # without replacement
    assert not train & {row.tobytes() for row in rows[cut:]}
    counts = (federation.class_counts("train") > 0).sum(1)
    assert np.asarray(counts).tolist() == [2] * 20


def test_a_small_size_writes_page_figures_and_picture(tmp_path, capsys):
    folder = tmp_path / "theory"
    folder.mkdir()
    paths = write(folder, SMALL, workers=1)
    assert {p.name for p in paths} == {
        "advise-accuracy.md",
        "advise-accuracy.json",
        "advise-accuracy.png",
        "theory.md",
    }
    stored = json.loads((folder / "advise-accuracy.json").read_text())
    assert len(stored["figures"]["cases"]) == 3
    assert "How often" in stored["tables"] and len(stored["claims"]) == 6
    assert "3 of 3 runs (100 %): digits, 5 classes per client" in capsys.readouterr().err
