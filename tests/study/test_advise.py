"""Advice: equal compute, held-out samples, never a test sample, and what it says."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from helpers import classification, regression
from idiolect.run.plan import Plan
from idiolect.study.advise.estimate import HeldOutSamples, Units
from idiolect.study.advise.training import FOLDS, Candidate, Holdout, Trainer

SMALL = {"quick": True, "gradients": 20, "progress": False, "threads": 1}
FOLDS_OF_ALL = {"quick": True, "seeds": 5, "validation": "folds", "gradients": 60} | {
    "progress": False,
    "threads": 1,
}


def linear(features=6, outputs=3):
    return il.Task(
        lambda: torch.nn.Linear(features, outputs), "mse" if outputs == 1 else "cross_entropy"
    )


def alike(clients=12, samples=20, seed=0, **options):
    """Clients with one common rule in 20 features: alone they have too few samples to see it."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((clients * samples, 20))
    y = (x @ np.r_[np.ones(10), -np.ones(10)] > 0).astype(int)
    ids = np.repeat([f"site {k}" for k in range(clients)], samples)
    return il.Federation.from_arrays(x.astype(np.float32), y, ids, classes=2, **options)


def opposed(clients=12, samples=60, seed=0, **options):
    """Every second client has the opposite rule: one model for all is of no use."""
    f = alike(clients, samples, seed, **options)
    flip = torch.zeros(f.samples, dtype=torch.bool)
    for split in ("train", "valid", "test"):
        for k in range(0, clients, 2):
            flip[int(f.offsets[split][k]) : int(f.offsets[split][k + 1])] = True
    return replace(f, targets=torch.where(flip, 1 - f.targets, f.targets))


# -- held-out samples ------------------------------------------------------------------------------
def test_over_five_seeds_every_sample_is_held_out_once():
    holdout = Holdout.of(classification((11, 23, 10), valid=0.0), "auto", seed=0)
    assert holdout.kind == "folds"
    assert (holdout.mask(FOLDS).sum(0) == 1).all()


def test_a_fold_leaves_the_other_samples_for_training():
    federation = classification((11, 23, 5), valid=0.25)
    holdout = Holdout.of(federation, "folds", seed=0)
    whole = {tuple(row) for row in holdout.data.inputs.tolist()}
    for seed in range(3):
        split, held = holdout.under(seed)
        train = split.inputs[: int(split.offsets["train"][-1])]
        valid = split.inputs[int(split.offsets["valid"][0]) : int(split.offsets["valid"][-1])]
        assert {tuple(r) for r in torch.cat([train, valid]).tolist()} == whole
        assert len(valid) == len(held) and int(split.sizes("test").sum()) == 0
        owners = np.repeat(np.arange(3), split.sizes("valid").numpy())
        assert owners.tolist() == holdout.owner[held].tolist()


def test_tiny_clients_have_as_many_folds_as_samples_and_a_single_sample_trains():
    holdout = Holdout.of(classification((2, 1, 3), valid=0.0, test=0.0), "auto", seed=0)
    held = holdout.mask(4)
    assert (held[:, holdout.owner == 0].sum(1) == 1).all()
    assert not held[:, holdout.owner == 1].any()
    for seed in range(4):
        assert (holdout.under(seed)[0].sizes("train") >= 1).all()


def test_a_clients_folds_do_not_depend_on_the_others():
    federation = classification((11, 23, 5), valid=0.0)
    alone = Holdout.of(federation.of([1]), "folds", seed=3)
    among = Holdout.of(federation, "folds", seed=3)
    assert alone.mask(2)[1].tolist() == among.mask(2)[1][among.owner == 1].tolist()


def test_the_halves_of_a_client_share_its_samples_evenly():
    holdout = Holdout.of(classification((40, 41), valid=0.5), "given", seed=0)
    for k in (0, 1):
        of_b = holdout.half[holdout.owner == k]
        assert abs(int(of_b.sum()) - int((~of_b).sum())) <= 1
    halves = holdout.halves(0)
    assert halves.clients == 4 and int(halves.sizes("train").sum()) == int(
        holdout.data.sizes("train").sum()
    )


def test_test_samples_are_cut_off_before_anything_else():
    federation = classification((20,) * 4)
    holdout = Holdout.of(federation, "auto", seed=0)
    assert holdout.data.samples == federation.samples - int(federation.sizes("test").sum())
    assert int(holdout.data.sizes("test").sum()) == 0


def test_poisoned_test_labels_do_not_change_the_advice():
    federation = classification((24,) * 12)
    targets = federation.targets.clone()
    start = int(federation.offsets["test"][0])
    targets[start:] = (targets[start:] + 1) % 3
    inputs = federation.inputs.clone()
    inputs[start:] = float("nan")
    poisoned = replace(federation, targets=targets, inputs=inputs)
    first, second = (
        il.advise(f, linear(), ["ditto"], **SMALL).as_dict() for f in (federation, poisoned)
    )
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_validation_given_where_there_is_none_is_refused():
    with pytest.raises(il.SettingError, match="validation must be 'folds'"):
        il.advise(classification(valid=0.0), linear(), validation="given", **SMALL)


# -- equal compute and step sizes ------------------------------------------------------------------
def test_all_candidates_have_as_many_gradients_to_the_nearest_round():
    advice = il.advise(
        classification((24,) * 12), linear(), ["ditto", "lp-proj"], **SMALL | {"gradients": 100}
    )
    for row in advice.table[:-1]:
        assert abs(row["gradients"] - 100) <= 20, row["label"]  # half a round of ditto
    assert advice.table[-1]["label"] == "majority class"


def test_a_bad_default_step_size_is_not_held_against_a_method():
    advice = il.advise(alike(), linear(20, 2), ["fedavg:lr=0.002"], **SMALL | {"gradients": 60})
    rows = {row["label"]: row for row in advice.table}
    assert rows["fedavg lr=0.002"]["step_factor"] >= 16
    assert abs(rows["fedavg lr=0.002"]["value"] - rows["fedavg"]["value"]) < 0.15


def test_a_sample_is_judged_by_the_step_size_that_the_other_half_chose():
    federation = classification((40,) * 3, valid=0.5)
    holdout = Holdout.of(federation, "given", 0)
    trainer = Trainer(linear(), holdout, {}, 0, 20, "loss", lambda name: None)
    candidate = Candidate(Plan.of("local"), finalists=[0, 1])
    better = {0: holdout.half, 1: ~holdout.half}  # power 0 is better on half B
    for power in (0, 1):
        loss = np.where(better[power], 0.1, 0.9)
        candidate.outcomes[power, 0] = np.stack([loss * 0, loss])
    trainer.choose_steps(candidate, seeds=1)
    assert candidate.powers == (0, 1)
    assert candidate.scores(1, holdout.half)[1, 0].tolist() == [0.9] * holdout.samples


def test_scores_of_samples_sum_to_those_of_their_clients():
    federation = classification((24, 7, 13))
    for method in ("fedavg", "local", "finetune"):
        result = il.run(method, linear(), federation, rounds=2, eval_every=0)
        session = result.session()
        message = session.server.message(session.server.version)
        hits, loss = session.hosts[0].each_sample(session.server.version, message, "valid")
        owner = np.repeat(np.arange(3), federation.sizes("valid").numpy())
        for k, row in enumerate(result.clients_table()):
            assert float(hits[owner == k].mean()) == pytest.approx(row["valid_accuracy"])
            assert float(loss[owner == k].mean()) == pytest.approx(row["valid_loss"])


# -- the choice ------------------------------------------------------------------------------------
def test_clients_that_are_alike_and_have_little_data_are_told_to_federate():
    advice = il.advise(alike(24, 25), linear(20, 2), ["finetune"], **FOLDS_OF_ALL)
    assert advice.choice in ("fedavg", "finetune") and advice.alternative == "fedavg"
    assert advice.p < 0.05 and advice.decided
    assert advice.heterogeneity.side == "below"
    assert advice.words[0].startswith(f"Deploy {advice.choice}")


def test_clients_that_contradict_each_other_are_told_to_learn_alone():
    advice = il.advise(opposed(), linear(20, 2), ["ditto"], **FOLDS_OF_ALL)
    assert advice.choice == "local" and advice.alternative == "local"
    assert advice.heterogeneity.side == "above"
    assert advice.gains["gain"] == []


def test_who_loses_by_federating_is_named_by_its_own_id():
    federation = opposed(10, 100)  # of ten, every second one against the others
    advice = il.advise(federation, linear(20, 2), ["fedprox"], **FOLDS_OF_ALL)
    assert set(advice.gains["lose"]) <= set(federation.ids) and len(advice.gains["lose"]) >= 5
    assert {c.client for c in advice.clients} == set(federation.ids)


def test_a_regression_is_judged_by_its_loss():
    advice = il.advise(
        regression((12,) * 12), linear(6, 1), ["finetune"], **FOLDS_OF_ALL
    )  # fmt: skip
    assert advice.metric == "loss" and advice.choice != "local"
    assert advice.table[-1]["label"] == "training mean"
    assert advice.tie == pytest.approx(0.01 * advice.table[0]["value"])


# -- tables as hospitals have them -----------------------------------------------------------------
def rare(seed=5, clients=10):
    """One rule, few deaths: one model for all has a lower log loss and as many hits."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(100, 500, clients)
    x = rng.standard_normal((int(sizes.sum()), 8))
    rule = np.r_[1.2, -1.0, 0.8, np.zeros(5)]
    dies = rng.random(len(x)) < 1 / (1 + np.exp(-(x @ rule - 4.5)))
    ids = np.repeat([f"site {k}" for k in range(clients)], sizes)
    return il.Federation.from_arrays(x.astype(np.float32), dies.astype(int), ids, classes=2)


def test_a_rare_outcome_is_judged_by_log_loss_and_not_by_accuracy():
    advice = il.advise(rare(), linear(8, 2), ["finetune"], **FOLDS_OF_ALL)
    rows = {row["label"]: row for row in advice.table}
    assert advice.metric == "loss" and advice.choice in ("fedavg", "finetune")
    accuracies = [row["figures"]["accuracy"] for row in rows.values()]
    assert max(accuracies) - min(accuracies) < 0.02  # it measures nothing here
    assert {"accuracy", "auc", "balanced_accuracy"} <= set(rows["local"]["figures"])
    assert rows["fedavg"]["figures"]["auc"] > rows["local"]["figures"]["auc"]


def test_a_tie_of_the_log_loss_is_a_share_of_the_constant_answers():
    federation = alike(6, 40)
    advice = il.advise(federation, linear(20, 2), ["finetune"], **SMALL)
    share = float(federation.class_counts("train").sum(0)[1]) / int(federation.sizes("train").sum())
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert advice.tie == pytest.approx(0.01 * entropy)


@pytest.mark.parametrize("metric", ["auc", "f1", "balanced_accuracy"])
def test_a_figure_that_no_sample_has_decides_with_a_paired_interval(metric):
    advice = il.advise(alike(6, 60), linear(20, 2), ["finetune"], metric=metric, **SMALL)
    rows = {row["label"]: row for row in advice.table}
    gain = rows["fedavg"]["value"] - rows["local"]["value"]
    assert advice.metric == metric and rows["fedavg"]["gain"] == pytest.approx(gain, abs=1e-6)
    assert rows["fedavg"]["low"] < gain < rows["fedavg"]["high"]
    assert any("judged by their loss" in note for note in advice.notes)


def test_the_paired_bootstrap_of_the_auc_has_the_width_of_independent_tables():
    from idiolect.host.metrics import TargetForm, parse_metrics
    from idiolect.study.advise.figures import MetricFigures

    rng = np.random.default_rng(0)
    (auc,) = parse_metrics("auc")
    gains, errors = [], []
    for _ in range(15):
        y = torch.from_numpy((rng.random(300) < 0.3).astype(int))
        x = rng.normal(0, 1, 300) + 0.8 * y.numpy()
        answers = {"local": x + rng.normal(0, 1, 300), "fedavg": x}
        logits = {k: np.stack([0 * v, v], 1)[None].astype(np.float32) for k, v in answers.items()}
        owner = np.repeat(np.arange(3), 100)
        figures = MetricFigures(auc, TargetForm(2), Units(owner), owner, y, 3, repeated=True)
        mask = np.ones((1, 300), dtype=bool)
        local, fedavg = (figures.resampled(logits[k], mask) for k in ("local", "fedavg"))
        gain = figures.gain(fedavg, local, mask)
        gains.append(gain.mean)
        errors.append(gain.error)
    assert np.mean(errors) == pytest.approx(np.std(gains), rel=0.5)


def test_few_validation_samples_are_judged_by_folds_and_many_by_themselves():
    few = Holdout.of(classification((30,) * 3, valid=0.3), "auto", 0, seeds=3)
    assert few.kind == "folds" and few.folds == 3
    assert (few.mask(3).sum(0) == 1).all()  # every sample judges once
    many = Holdout.of(classification((6000,) * 2, valid=0.5), "auto", 0)
    assert many.kind == "given"


def test_quick_tells_opposite_rules_apart_from_one():
    quick = {"quick": True, "gradients": 60, "progress": False, "threads": 1}
    federation = opposed(10, 100)
    advice = il.advise(federation, linear(20, 2), **quick)
    assert advice.choice == "local"
    assert il.advise(alike(20, 40), linear(20, 2), **quick).choice in ("fedavg", "finetune")


def test_an_advice_says_one_thing(tmp_path):
    advice = il.advise(classification((24,) * 5), linear(), ["ditto"], **SMALL)
    assert "clearly" not in " ".join(advice.words)
    assert "R²" not in " ".join(advice.words) and "R²" in " ".join(advice.details)
    assert "R²" in str(replace(advice, verbose=True))


# -- what it cannot tell ---------------------------------------------------------------------------
def test_one_client_has_nobody_to_learn_with():
    advice = il.advise(classification((30,)), linear(), **SMALL)
    assert advice.choice == "local" and "one client" in str(advice) and advice.table == []


def test_without_a_sample_to_hold_out_nothing_is_told():
    advice = il.advise(classification((1,) * 5), linear(), **SMALL)
    assert advice.choice == "undecided" and "no sample can be held out" in str(advice)


def test_two_samples_per_client_decide_nothing():
    advice = il.advise(classification((2,) * 6, valid=0.0, test=0.0), linear(), ["ditto"], **SMALL)
    assert advice.choice == "undecided" and advice.heterogeneity is None
    assert "fewer than 20" in str(advice).replace("\n", " ")
    assert len(advice.gains["untold"]) == 6
    json.dumps(advice.as_dict(), allow_nan=False)


def test_clients_of_a_single_class_are_said_to_need_no_model():
    f = classification((20,) * 6, valid=0.3)
    owner = torch.cat([torch.repeat_interleave(torch.arange(6), f.sizes(s)) for s in f.offsets])
    advice = il.advise(replace(f, targets=owner % 3), linear(), ["ditto"], **SMALL)
    assert "6 of 6 clients have training samples of a single class" in " ".join(advice.notes)
    assert any("constant answer per client" in note for note in advice.notes)


def test_models_that_diverge_are_left_out():
    f = regression((20,) * 4)
    advice = il.advise(replace(f, targets=1e30 * f.targets), linear(6, 1), **SMALL)
    assert advice.choice == "undecided" and "diverge" in str(advice)


def test_a_method_that_does_not_fit_is_left_out_with_a_word():
    advice = il.advise(classification((20,) * 4), linear(), ["fedalt:part=nothing.*"], **SMALL)
    assert any(note.startswith("fedalt") and "left out" in note for note in advice.notes)


def test_dropout_and_running_statistics_have_the_plain_norm():
    def model():
        layers = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
        return torch.nn.Sequential(*layers)

    advice = il.advise(classification((24,) * 4), model, ["ditto"], **SMALL)
    assert advice.heterogeneity.norm == "plain"


# -- what is refused, what is printed ------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"rounds": 5}, "rounds must not be given to advise"),
        ({"target_value": 0.5}, "target_value must not be given to advise"),
        ({"metric": "acu"}, "'acu' is unknown; did you mean 'auc'"),
        ({"metric": "rmse"}, "it is about real targets, and these data have classes"),
        ({"gradients": -1}, "gradients must be a whole number >= 0, got -1"),
        ({"methods": "ditto"}, "methods must be a list of methods, got 'ditto'"),
        ({"methods": ["dichotomy"]}, "must not include dichotomy"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_has_no_meaning_is_refused(settings, text):
    with pytest.raises(il.SettingError, match=text):
        il.advise(classification((20,) * 4), linear(), **SMALL | settings)


def test_swapped_arguments_are_named():
    with pytest.raises(il.SettingError, match="the order is"):
        il.advise(linear(), classification((20,) * 4))


def test_progress_counts_trainings_and_ends_at_their_number():
    told = []
    il.advise(
        classification((24,) * 4), linear(), ["ditto"],
        **SMALL | {"progress": lambda done, total, what: told.append((done, total, what))},
    )  # fmt: skip
    assert [done for done, _, _ in told] == list(range(1, len(told) + 1))
    assert told[-1][0] == told[-1][1]


def test_it_prints_in_eighty_columns_and_is_saved(tmp_path):
    advice = il.advise(
        classification((24,) * 12), linear(), ["ditto"], directory=tmp_path / "a", **SMALL
    )
    assert all(len(line) <= 80 for line in str(advice).split("\n"))
    assert {p.name for p in (tmp_path / "a").iterdir()} == {
        "advice.json",
        "advice.txt",
        "advice.png",
    }
    assert json.loads((tmp_path / "a" / "advice.json").read_text())["choice"] == advice.choice
    assert advice.picture(tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(il.SettingError, match="directory"):
        il.advise(
            classification((24,) * 12), linear(), ["ditto"], directory=tmp_path / "a", **SMALL
        )


def test_the_same_question_has_the_same_answer():
    federation = classification((24,) * 4)
    first, second = (il.advise(federation, linear(), ["ditto"], **SMALL) for _ in range(2))
    assert {**first.as_dict(), "seconds": 0} == {**second.as_dict(), "seconds": 0}


def test_copies_of_a_sample_in_one_group_say_as_much_as_the_sample():
    rng = np.random.default_rng(0)
    d = rng.normal(0.1, 1, (2, 60))
    owner = np.repeat(np.arange(3), 20)
    alone = HeldOutSamples(owner, 3, repeated=True).gain(d)
    copies, group = np.repeat(d, 5, axis=1), np.repeat(np.arange(60), 5)
    units = Units.of(np.repeat(owner, 5), group)
    grouped = HeldOutSamples(units.owner, 3, repeated=True).gain(units.values(copies))
    assert (grouped.mean, grouped.error) == pytest.approx((alone.mean, alone.error))
    apart = HeldOutSamples(np.repeat(owner, 5), 3, repeated=True).gain(copies)
    assert apart.error < 0.6 * alone.error  # sure of what it cannot know


def test_repeated_patients_are_counted_once():
    """A coin per patient, ten rows each: counting rows would be sure of what is not there."""
    rng = np.random.default_rng(3)
    patient = np.repeat(np.arange(60), 10)
    x = rng.normal(size=(60, 6))[patient] + 0.1 * rng.normal(size=(600, 6))
    y = rng.integers(0, 2, 60)[patient]
    data = il.Federation.from_arrays(
        x.astype("f4"), y, np.repeat(list("abcd"), 150), group=[str(p) for p in patient]
    )
    advice = il.advise(data, lambda: nn.Linear(6, 2), quick=True, gradients=60)
    assert any("intervals count 48 groups" in note for note in advice.notes), advice.notes
    assert advice.choice in ("local", "undecided")
    assert advice.table[0]["figures"]["accuracy"] < 0.65  # a coin


def test_heterogeneity_does_not_depend_on_the_unit_of_the_targets():
    federation = regression()
    task = il.Task(lambda: nn.Linear(federation.shape[0], 1), "huber")
    ratios = []
    for factor in (1.0, 1000.0):
        scaled = replace(federation, targets=factor * federation.targets + 3 * factor)
        ratios.append(il.advise(scaled, task, ["finetune"], **SMALL).heterogeneity.ratio)
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-3)
