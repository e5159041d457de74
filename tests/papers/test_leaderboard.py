"""The leaderboard: tuned alike, at equal compute, and its words follow from its figures."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest

from idiolect import METHODS, SettingError, make_method
from idiolect_papers.own import leaderboard
from idiolect_papers.own.leaderboard import (
    ALTERNATIVES,
    CASES,
    SIZES,
    SPACING,
    STEPS,
    TRIALS,
    BoardCase,
    BoardSize,
    FourLayerCnn,
    bucket,
    candidates,
    left_out,
    rival_choices,
)
from idiolect_papers.own.leaderboard_page import (
    BETTER,
    REFERENCE,
    UNCLEAR,
    WORSE,
    comparisons,
    missing,
    page_of,
    published_rows,
    written,
)
from idiolect_papers.runs import Runs

DOCS = Path(__file__).parents[2] / "docs"
QUICK = SIZES["quick"]
DIGITS = BoardCase(
    "digits",
    "mlp",
    {"clients": 8, "partition": "dirichlet", "alpha": 0.5},
    {"hidden": "8"},
    who="shares",
    most={"train": 40},
    new=2,
)
TINY = BoardSize(rounds=3, steps=2, epochs=0, seeds=2)
NAMES = ["local", "fedavg", "knn-per"]


# -- candidates and compute ------------------------------------------------------------------------
@pytest.mark.parametrize("scale", SIZES)
def test_every_method_has_as_many_candidates_the_defaults_among_them(scale):
    for name in METHODS:
        tried = candidates(name, SIZES[scale])
        assert len({str(method.as_dict()) for method, _ in tried}) == TRIALS, name
        default = make_method(name).as_dict()
        varied = [{n: default[n] for n in choice} for _, choice in tried]
        assert any(choice == own for (_, choice), own in zip(tried, varied, strict=True)), name


def test_the_words_of_the_rules_are_about_methods_and_fields_that_there_are():
    for name, fields in [*ALTERNATIVES.items(), *STEPS.items()]:
        assert set(fields) <= set(make_method(name).as_dict()), name


def test_methods_have_the_same_local_work():
    for name in ("fedavg", "scaffold", "fedproto"):
        assert all(method.steps == QUICK.steps for method, _ in candidates(name, QUICK))
    assert all(method.epochs == 1 for method, _ in candidates("fedavg", SIZES["full"]))
    assert all(method.p == 1 / QUICK.steps for method, _ in candidates("scaffnew", QUICK))


@pytest.mark.parametrize("gradients", [60, 100, 399, 400, 401, 423.5, 5000])
@pytest.mark.parametrize("rival", ["local", "finetune"])
def test_rivals_have_at_least_as_many_gradients_and_not_many_more(rival, gradients):
    number = bucket(gradients, QUICK)
    assert gradients <= number + 0.5 <= SPACING * gradients + 1
    choices = rival_choices(rival, number, QUICK)
    assert len(choices) == TRIALS
    for method, varied in choices:
        spent = QUICK.rounds * method.steps + varied.get("personal_steps", 0)
        assert number <= spent < number + QUICK.rounds


def test_a_method_that_is_another_one_on_this_model_is_left_out_with_the_reason():
    task = DIGITS.load()[1]
    names = list(METHODS)
    assert left_out("lp-proj-1", task, names) == "the same code and settings as lp-proj"
    assert left_out("ffa-lora", task, names).endswith("this is FedAvg")
    linear = BoardCase("digits", "linear", {"clients": 4}, most={"train": 9}).load()[1]
    assert "this is Local" in left_out("fedper", linear, names)
    assert not left_out("fedprox", task, names) and not left_out("lp-proj-2", task, names)


def test_the_four_layer_network_is_that_of_pfllib():
    numbers = [sum(p.numel() for p in FourLayerCnn(s, 10).parameters()) for s in SHAPES]
    assert numbers == [582_026, 878_538]  # 1,024 and 1,600 features after the convolutions


SHAPES = [(1, 28, 28), (3, 32, 32)]


def test_full_scale_is_that_of_pfllib():
    full, size = CASES["full"], SIZES["full"]
    assert (size.rounds, size.epochs, size.batch) == (2000, 1, 10) and size.seeds >= 3
    same = [case for case in full.values() if case.published]
    assert {case.published for case in same} == {"dirichlet", "pathological"}
    for case in same:
        assert case.model is FourLayerCnn and case.new == 0 and not case.most
        assert (case.options["clients"], case.options["test"]) == (20, 0.25)


# -- a small board ---------------------------------------------------------------------------------
def board(folder, names=NAMES, size=TINY):
    return written(folder, "quick", {"digits": DIGITS}, size, names, Runs(folder / "runs", 1))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("board")
    board(folder)
    return folder


def test_a_small_board_has_a_row_for_every_method_and_its_rivals(small):
    stored = json.loads((small / "leaderboard.json").read_text())
    assert (small / "leaderboard.md").read_text() == page_of(stored)
    case = stored["cases"]["digits"]
    assert list(case["methods"]) == NAMES and (case["trained"], case["new"]) == (6, 2)
    for row in case["methods"].values():
        for column in ("accuracy", "worst10", "new", "others"):
            assert len(row[column]) == TINY.seeds and None not in row[column]
        for rival in ("local", REFERENCE):
            assert f"{rival} {bucket(row['gradients'], TINY)}" in case["rivals"]
    assert case["methods"]["local"]["bytes"] == {"up": 0, "down": 0}
    assert case["methods"]["fedavg"]["bytes"]["up"] > 0


def test_the_same_command_runs_only_what_is_missing(small, tmp_path, trained):
    (tmp_path / "leaderboard.json").write_text((small / "leaderboard.json").read_text())
    board(tmp_path)  # without the stored runs
    assert trained == []
    board(tmp_path, [*NAMES, "fedprox"])
    assert trained and all(label.startswith("fedprox ") for label in trained)
    stored = json.loads((tmp_path / "leaderboard.json").read_text())
    assert list(stored["cases"]["digits"]["methods"]) == [*NAMES, "fedprox"]
    board(tmp_path, NAMES)  # a method that is no longer in the table
    assert list(json.loads((tmp_path / "leaderboard.json").read_text())["methods"]) == NAMES


def test_one_case_may_be_run_alone_and_the_others_are_kept(small, tmp_path, trained):
    stored = json.loads((small / "leaderboard.json").read_text())
    stored["cases"]["other"] = stored["cases"]["digits"]
    (tmp_path / "leaderboard.json").write_text(json.dumps(stored))
    cases = {"other": DIGITS, "digits": DIGITS}
    runs = Runs(tmp_path / "runs", 1)
    _, kept = written(tmp_path, "quick", cases, TINY, NAMES[:1], runs, ["digits"])
    rows = json.loads(kept.read_text())["cases"]
    assert list(rows) == ["other", "digits"] and trained == []
    assert list(rows["digits"]["methods"]) == NAMES[:1] and list(rows["other"]["methods"]) == NAMES
    with pytest.raises(SettingError, match="only: 'digit' is unknown; did you mean 'digits'"):
        written(tmp_path, "quick", cases, TINY, NAMES, runs, ["digit"])


def test_settings_may_be_chosen_on_several_partitions_and_final_ones_are_others(tmp_path, trained):
    written(
        tmp_path,
        "quick",
        {"digits": DIGITS},
        replace(TINY, searches=2),
        ["fedavg"],
        Runs(tmp_path / "runs", 1),
    )
    own = [label for label in trained if label.startswith("fedavg")]
    seeds = [label.rpartition("seed=")[2] for label in own]
    assert seeds == ["0", "1"] * TRIALS + ["2", "3"]


def test_a_changed_default_is_run_again(small, tmp_path, trained, monkeypatch):
    (tmp_path / "leaderboard.json").write_text((small / "leaderboard.json").read_text())
    before = leaderboard.candidates

    def changed(name, size, **own):
        return before(name, size, **{**own, "neighbours": 3} if name == "knn-per" else own)

    monkeypatch.setattr(leaderboard, "candidates", changed)
    board(tmp_path)
    assert trained and all(label.startswith("knn-per ") for label in trained)


def test_a_method_that_cannot_be_run_on_a_case_is_left_out_with_its_own_words(
    small, tmp_path, monkeypatch
):
    (tmp_path / "leaderboard.json").write_text((small / "leaderboard.json").read_text())
    before = leaderboard.candidates

    def refused(name, size, **own):
        if name == "fedprox":
            raise SettingError("public data must be given")
        return before(name, size, **own)

    monkeypatch.setattr(leaderboard, "candidates", refused)
    page, _ = board(tmp_path, [*NAMES, "fedprox"])
    assert "| `fedprox` | public data must be given |" in page.read_text()


# -- words from figures ----------------------------------------------------------------------------
def figures(**accuracies):
    """A stored board of one case; rivals have the accuracies of `finetune` and `local`."""
    size = BoardSize(40, 10, 0, 5)
    seeds = (-0.01, -0.005, 0.0, 0.005, 0.01)
    rows = {
        name.replace("_", "-"): {
            "accuracy": [mean + seed * (1 + k / 10) for seed in seeds],
            "worst10": [mean] * 5,
            "new": [mean] * 5,
            "others": [1 - mean] * 5,
            "bytes": {"up": 1e6, "down": 1e6},
            "gradients": 400,
            "chosen": {"lr": 0.1},
            "cpu": 60,
        }
        for k, (name, mean) in enumerate(accuracies.items())
    }
    rivals = {f"{name} 400": rows[name] for name in ("local", "finetune")}
    case = {"who": "made", "published": "dirichlet", "trained": 6, "new": 2, "parameters": 610}
    case |= {"majority": 0.3, "train": 9, "methods": rows, "rivals": rivals, "left_out": {}}
    names = {"methods": list(rows), "planned": ["digits", "heart"]}
    return {"scale": "quick", "size": size.as_dict(), **names, "cases": {"digits": case}}


BOARD = figures(local=0.6, finetune=0.8, ditto=0.9, fedavg=0.5, fedprox=0.8)


def test_verdicts_are_of_paired_differences_to_fine_tuned_fedavg():
    verdicts = {c.method: c.verdict for c in comparisons(BOARD)}
    assert verdicts == {"local": WORSE, "ditto": BETTER, "fedavg": WORSE, "fedprox": UNCLEAR}
    assert {c.method: round(c.over_local, 3) for c in comparisons(BOARD)}["ditto"] == 0.3


def test_many_comparisons_need_clearer_differences():
    noisy = copy.deepcopy(BOARD)
    rows = noisy["cases"]["digits"]["methods"]
    tuned = rows["finetune"]["accuracy"]
    rows["ditto"]["accuracy"] = [
        a + gain for a, gain in zip(tuned, (0.03, 0.005, 0.02, 0.001, 0.02), strict=True)
    ]
    rows |= {f"like {k}": copy.deepcopy(rows["fedprox"]) for k in range(20)}
    (ditto,) = [c for c in comparisons(noisy) if c.method == "ditto"]
    assert ditto.p < 0.05 and ditto.verdict == UNCLEAR


def test_a_false_figure_changes_the_words():
    text = page_of(BOARD)
    assert "Of 4 comparisons 1 come out better, 2 worse, and 1 cannot be told apart." in text
    assert "The largest gain is `ditto` (+10.0 ± 0.1) points, on digits." in text
    assert "Worse: 2 (`local`, `fedavg`)." in text
    assert "New clients do best with `ditto` (0.900; fine-tuned FedAvg 0.800)" in text
    false = copy.deepcopy(BOARD)
    row = false["cases"]["digits"]["methods"]["ditto"]
    row["accuracy"] = [a - 0.4 for a in row["accuracy"]]
    row["new"] = [0.1] * 5
    text = page_of(false)
    assert "Of 4 comparisons 0 come out better, 3 worse, and 1 cannot be told apart." in text
    assert "No method is better than fine-tuned FedAvg in any case." in text
    assert "Worse: 3 (" in text and "`ditto`, `fedavg`" in text
    assert "New clients do best with `finetune`" in text


def test_what_holds_in_all_cases_is_said_apart_from_what_holds_in_some():
    two = copy.deepcopy(BOARD)
    two["cases"]["heart"] = figures(local=0.9, finetune=0.8, ditto=0.9, fedavg=0.5, fedprox=0.7)[
        "cases"
    ]["digits"]
    text = page_of(two)
    assert "Better in every case: `ditto`." in text
    assert "Better in one case and worse in another: `local`." in text


def test_what_was_not_run_is_named():
    absent = copy.deepcopy(BOARD)
    absent["methods"] = [*absent["methods"], "moon"]
    assert missing(absent) == "Not run yet: heart. Not run yet on digits: `moon`."
    assert missing(absent) in page_of(absent)


def test_how_far_apart_choices_of_one_method_come_out_is_said():
    assert "Fine-tuned FedAvg was chosen" not in page_of(
        figures(local=0.6, ditto=0.9, finetune=0.8) | {"cases": {}}
    )
    lucky = copy.deepcopy(BOARD)
    other = copy.deepcopy(lucky["cases"]["digits"]["rivals"]["finetune 400"])
    other["accuracy"] = [a + 0.03 for a in other["accuracy"]]
    lucky["cases"]["digits"]["rivals"]["finetune 500"] = other
    text = page_of(lucky)
    assert "between 0.800 and 0.830: smaller differences than these 3.0 points" in text
    assert "Gains smaller than" not in text  # ditto gains 10
    other["accuracy"] = [a + 0.1 for a in other["accuracy"]]
    assert "Gains smaller than the 13.0 points" in page_of(lucky)
    assert "chosen again (see below): 1 of 1;" in page_of(lucky)


def test_a_row_without_its_rivals_is_not_compared():
    halfway = copy.deepcopy(BOARD)
    halfway["cases"]["digits"]["methods"]["ditto"]["gradients"] = 5000
    assert "ditto" not in {c.method for c in comparisons(halfway)}
    assert "Of 3 comparisons" in page_of(halfway)


def test_pfllibs_figures_stand_beside_ours_of_the_same_partition():
    rows, said = published_rows(BOARD)
    by_method = {row["method"]: row for row in rows}
    assert len(rows) == 20
    assert by_method["Ditto"]["Dirichlet 0.1: PFLlib"] == "97.47 ± 0.04"
    assert by_method["Ditto"]["Dirichlet 0.1: here"] == "90.00"
    assert by_method["Ditto"]["two classes: here"] == "–"
    assert said.startswith("Dirichlet 0.1: over the 3 methods in both, the rank correlation")
    assert "of a smaller setting" in page_of(BOARD)
    assert "of a smaller setting" not in page_of({**BOARD, "scale": "full"})


def test_the_stored_page_is_that_of_its_figures():
    stored = json.loads((DOCS / "leaderboard.json").read_text())
    assert (DOCS / "leaderboard.md").read_text() == page_of(stored)
    assert stored["size"] == SIZES[stored["scale"]].as_dict()
    assert set(stored["cases"]) <= set(CASES[stored["scale"]])
