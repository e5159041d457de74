"""Metrics of one class, of ranked scores and averaged over classes; which class is positive."""

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics as skm
import torch
from torch import nn

import idiolect as il
from idiolect.cli.main import main
from idiolect.core.knobs import SettingError
from idiolect.host.baselines import trivial
from idiolect.host.lazy_federation import positive_of
from idiolect.host.metrics import (
    EvaluatedSamples,
    Tally,
    TargetForm,
    in_use,
    metrics_text,
    parse_metrics,
    positive_class,
)
from idiolect.host.metrics.ranking import average_precisions
from idiolect.report.tables import results_table
from idiolect.run.plan import Plan
from idiolect.run.settings import Settings
from idiolect.run.worker_hosts import _survey

KINDS = ("f1", "precision", "recall", "sensitivity", "specificity", "pr_auc", "auc")
OF_ONE_CLASS = KINDS[:-1]


def tallied(name, logits, y, owner, classes, positive=None):
    """(value of each client, pooled value)."""
    (metric,) = in_use(parse_metrics(name), "", classes, "", positive or positive_class(range(2)))
    clients = int(owner.max()) + 1
    tally = Tally([metric], TargetForm(classes), clients, torch.arange(clients))
    tally.add(torch.from_numpy(owner), torch.from_numpy(logits), torch.from_numpy(y))
    measured = tally.measured(torch.arange(clients))[name]
    sizes = torch.bincount(torch.from_numpy(owner))
    return measured.each().tolist(), metric.pooled(measured.rows, measured.counts, sizes)


def by_scikit_learn(name, y, p, classes, positive=1):
    """The same of some samples; NaN where the metric has no value."""
    kind, _, average = (
        name.rpartition("_") if name.endswith(("macro", "weighted")) else (name, 0, 0)
    )
    label = p.argmax(1)
    if not average and classes == 2:
        return _of_one_class(kind, y == positive, label == positive, p[:, positive])
    average = average or "macro"
    if kind in ("f1", "precision", "recall", "sensitivity"):
        function = getattr(skm, f"{kind.replace('sensitivity', 'recall')}_score")
        return function(y, label, average=average, zero_division=0.0)
    if kind == "specificity":
        labels = np.unique(np.concatenate([y, label]))
        cells = skm.multilabel_confusion_matrix(y, label, labels=labels)
        values = [(m[0, 0] / m[0].sum(), m[1].sum()) for m in cells if m[0].sum()]
    else:
        area = {"auc": skm.roc_auc_score, "pr_auc": skm.average_precision_score}[kind]
        least = 1 if kind == "pr_auc" else 0
        there = [c for c in range(classes) if 0 < (y == c).sum() < len(y) + least]
        values = [(area(y == c, p[:, c]), (y == c).sum()) for c in there]
    if not values:
        return math.nan
    each, support = zip(*values, strict=True)
    if average == "weighted" and not sum(support):
        return math.nan
    return np.average(each, weights=support if average == "weighted" else None)


def _of_one_class(kind, true, predicted, score):
    if kind in ("f1", "precision", "recall", "sensitivity"):
        function = getattr(skm, f"{kind.replace('sensitivity', 'recall')}_score")
        return function(true, predicted, zero_division=math.nan)
    if kind == "specificity":
        return skm.recall_score(~true, ~predicted, zero_division=math.nan)
    if not true.any() or (kind == "auc" and true.all()):
        return math.nan
    area = {"auc": skm.roc_auc_score, "pr_auc": skm.average_precision_score}[kind]
    return area(true, score)


@pytest.mark.parametrize("name", [f"{k}{a}" for k in KINDS for a in ("", "_macro", "_weighted")])
@pytest.mark.parametrize(("classes", "positive"), [(2, 1), (2, 0), (4, 1)])
def test_every_metric_of_classes_is_that_of_scikit_learn(name, classes, positive):
    rng = np.random.default_rng(7)
    owner = np.sort(rng.integers(30, size=240))
    y = rng.integers(classes, size=240)
    y[owner < 4] = 0  # clients of one class
    logits = np.round(rng.standard_normal((240, classes)), 1) + 1.5 * np.eye(classes)[y]
    p = torch.from_numpy(logits).softmax(1).numpy()
    chosen = positive_class(range(2), str(positive))
    each, pooled = tallied(name, logits, y, owner, classes, chosen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = [
            by_scikit_learn(name, y[owner == k], p[owner == k], classes, positive)
            for k in range(30)
        ]
        whole = by_scikit_learn(name, y, p, classes, positive)
    assert each == pytest.approx(want, abs=1e-9, nan_ok=True)
    assert pooled == pytest.approx(whole, abs=0.003 if "auc" in name else 1e-9)


def test_average_precisions_of_many_clients_are_exact_with_ties():
    rng = np.random.default_rng(1)
    owner = np.sort(rng.integers(50, size=700))
    score = rng.integers(6, size=700) / 5.0
    positive = rng.integers(2, size=700)
    values = average_precisions(owner, score, positive, 51)
    for k in range(50):
        mine = owner == k
        if positive[mine].any():
            assert values[k] == pytest.approx(
                skm.average_precision_score(positive[mine], score[mine])
            )
        else:
            assert math.isnan(values[k])
    assert math.isnan(values[50])


def test_a_score_that_is_not_a_number_leaves_no_average_precision():
    logits = np.array([[0.0, 1.0], [0.0, math.nan], [1.0, 0.0], [0.0, 2.0]])
    y, owner = np.array([1, 0, 0, 1]), np.array([0, 0, 1, 1])
    each, pooled = tallied("pr_auc", logits, y, owner, 2)
    assert math.isnan(each[0]) and each[1] == 1.0 and math.isnan(pooled)


# -- which class -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("names", "positive"),
    [
        (("ja", "nein"), "ja"),
        (("no", "yes"), "yes"),
        (("NO", "Yes"), "Yes"),
        (("non", "oui"), "oui"),
        (("no", "si"), "si"),
        ((False, True), "True"),
        ((0, 1), "1"),
        ((0.0, 1.0), "1"),
        (("ill", "well"), "ill"),
        (("healthy", "sick"), "sick"),
        (("alive", "dead"), "dead"),
        (("died", "survived"), "died"),
        (("case", "control"), "case"),
        (("negative", "positive"), "positive"),
        (("event", "none"), "event"),
    ],
)
def test_the_positive_class_is_known_by_its_name(names, positive):
    chosen = positive_class(names, counts=lambda: pytest.fail("samples need not be counted"))
    assert (chosen.name, chosen.reason) == (positive, "by its name")


def test_other_labels_leave_the_rarer_class_and_say_so_or_nothing_where_none_is_counted():
    assert positive_class(("a", "b"), counts=lambda: (3, 9)).name == "a"
    assert "rarer" in positive_class(("a", "b"), counts=lambda: (9, 3)).reason
    assert "as frequent" in positive_class(("a", "b"), counts=lambda: (3, 3)).reason
    assert positive_class(("a", "b")) is None and positive_class(("yes", "no", "x")) is None


@pytest.mark.parametrize(
    ("names", "wanted", "words"),
    [
        (("ja", "nein"), "yes", "one of the classes 'ja', 'nein', got 'yes'"),
        (("a", "b", "c"), "a", "these have 3 classes"),
        ((), "a", "these have real targets"),
    ],
)
def test_a_positive_class_that_there_is_not_is_refused(names, wanted, words):
    with pytest.raises(SettingError, match=words):
        positive_class(names, wanted)


@pytest.mark.parametrize(("value", "text"), [(1, "1"), (True, "True"), (0, "0"), (None, "")])
def test_the_setting_takes_a_label_as_the_data_have_it(value, text):
    assert Settings(positive=value).positive == text
    with pytest.raises(SettingError, match="positive must be the label of a class"):
        Settings(positive=["ja"])


def frame(labels=("ja", "nein"), share=0.3, rows=240):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 3))
    first = x[:, 0] + 0.5 * rng.standard_normal(rows) < np.quantile(x[:, 0], share)
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    table["site"] = rng.integers(4, size=rows)
    table["label"] = np.where(first, *labels)
    return table


def federation(**options):
    return il.Federation.from_frame(frame(**options), client="site", target="label")


def linear():
    return nn.Linear(3, 2)


def trained(data, **settings):
    return il.run(il.FedAvg(), linear, data, rounds=5, **settings)


def own_f1(result, data, index):
    """F1 of a class, from the predictions of the models."""
    true, predicted = [], []
    for id in data.ids:
        x, y = data.part(data.position(id), "test")
        with torch.no_grad():
            predicted.append(result.personal(id)(x).argmax(1))
        true.append(y)
    return skm.f1_score(torch.cat(true), torch.cat(predicted), pos_label=index)


@pytest.mark.parametrize(
    ("labels", "positive", "index", "words"),
    [
        (("ja", "nein"), "", 0, "f1: of class 'ja' (by its name)"),
        (("ja", "nein"), "nein", 1, "f1: of class 'nein' (as set)"),
        (("p", "q"), "", 0, "f1: of class 'p' (the rarer class in training data)"),
        (("q", "p"), "", 1, "f1: of class 'q' (the rarer class in training data)"),
    ],
)
def test_f1_is_of_the_positive_class_and_the_caption_says_which(labels, positive, index, words):
    data = federation(labels=labels)
    result = trained(data, metrics="f1", positive=positive)
    assert result.seeds[0].final["test"]["f1"] == pytest.approx(own_f1(result, data, index))
    caption = results_table([result.summary()], width=200).caption
    assert words in caption


def test_the_caption_names_no_class_for_auc_and_the_average_for_several_classes():
    summary = trained(federation(), metrics="auc,brier").summary()
    assert "of class" not in results_table([summary], width=200).caption
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((90, 3)), rng.integers(3, size=90)
    data = il.Federation.from_arrays(x.astype(np.float32), y, np.repeat(range(3), 30))
    result = il.run(
        il.FedAvg(), lambda: nn.Linear(3, 3), data, rounds=1, metrics="f1,precision_weighted"
    )
    caption = results_table([result.summary()], width=200).caption
    assert "f1: mean over classes, each counting once (macro)" in caption
    assert "precision_weighted: mean over classes, each counting by its samples" in caption


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_every_engine_counts_the_same_positive_class(engine):
    # one host has mostly the other class: what is rarer must not be its own affair
    data = federation(labels=("p", "q"))
    names = ",".join(OF_ONE_CLASS)
    want = trained(data, metrics=names).summary()["metrics"]
    got = trained(data, metrics=names, engine=engine, hosts=2).summary()["metrics"]
    for name in OF_ONE_CLASS:
        assert got[name]["mean"] == pytest.approx(want[name]["mean"], abs=1e-9)
        assert got[name]["positive"] == want[name]["positive"]
        assert got[name]["positive"]["class"] == "p"


def test_comparisons_have_the_positive_class_in_every_row_and_in_the_baseline():
    data = federation()
    rows = il.compare(
        ["fedavg"], lambda: nn.Linear(3, 2), data, rounds=2, metrics="recall", positive="ja"
    ).summary()
    # the majority class is "nein" at every client: no "ja" is ever predicted
    assert rows[0]["metrics"]["recall"]["mean"] == 0.0
    trained_rows = [r for r in rows if r["seeds"]]
    assert all(r["metrics"]["recall"]["positive"]["class"] == "ja" for r in trained_rows)
    trees = [r for r in rows[1:] if not r["seeds"]]
    assert trees and all(r["metrics"]["recall"]["mean"] > 0 for r in trees)


def test_a_positive_class_without_a_metric_of_it_is_said_to_have_no_effect():
    result = trained(federation(), positive="ja", metrics="auc")
    assert "positive: 'ja' has no effect" in result.record.notes["idle"]["warning"]
    result = trained(federation(), positive="ja", metrics="pr_auc")
    assert "idle" not in result.record.notes


def test_the_command_takes_the_positive_class_and_a_resumed_run_keeps_it(tmp_path, capsys):
    path = tmp_path / "table.csv"
    frame().to_csv(path, index=False)
    base = [
        "run",
        "fedavg",
        "--data",
        "table",
        "--path",
        str(path),
        "--client",
        "site",
        "--target",
        "label",
    ]
    base += ["--metrics", "sensitivity,specificity", "--json"]
    assert (
        main([*base, "--rounds", "2", "--positive", "nein", "--directory", str(tmp_path / "run")])
        == 0
    )
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["sensitivity"]["positive"] == {"class": "nein", "reason": "as set"}
    assert main(["resume", str(tmp_path / "run"), "--rounds", "3", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["metrics"]
    assert again["sensitivity"]["positive"]["class"] == "nein"
    assert (
        main([*base, "--rounds", "2", "--positive", "yes", "--directory", str(tmp_path / "b")]) == 2
    )
    assert "positive must be one of the classes 'ja', 'nein', got 'yes'" in capsys.readouterr().err


def test_averages_are_read_from_names_and_written_back():
    text = "f1_macro,auc_weighted,precision"
    assert metrics_text(parse_metrics(text)) == text
    with pytest.raises(SettingError, match="balanced_accuracy_macro"):
        parse_metrics("balanced_accuracy_macro")


def test_targets_that_are_all_ignored_leave_metrics_without_a_value():
    owner, ignored = torch.zeros(3, dtype=torch.int64), torch.full((3,), -100)
    samples = EvaluatedSamples(owner, torch.zeros(3, 2), ignored, TargetForm(2))
    for metric in parse_metrics(",".join(KINDS)):
        rows = torch.zeros(1, metric.width(samples.form), dtype=torch.float64)
        counts = torch.zeros(*metric.shape(samples.form), dtype=torch.int64)
        metric.add(rows, counts, samples)
        assert math.isnan(metric.each(rows)[0])
        assert math.isnan(metric.pooled(rows, counts, torch.zeros(1)))


def test_data_that_hosts_load_themselves_have_the_same_positive_class(tmp_path):
    path = tmp_path / "table.csv"
    frame(labels=("p", "q")).to_csv(path, index=False)
    options = {"path": str(path), "client": "site", "target": "label"}
    settings = {"rounds": 1, "metrics": "f1,pr_auc"}
    plan = Plan("fedavg", data="table", data_options=options, settings=settings)
    survey = _survey([plan.as_dict()])  # what a run on Ray knows of its data
    data = plan.make_data()
    rarer = positive_class(("p", "q"), counts=lambda: (1, 2))
    assert positive_of(survey) == positive_of(data) == rarer
    f1 = in_use(parse_metrics("f1"), "", 2, "", positive_of(data))
    loss = il.Task(linear).criterion
    rows = [trivial(d, loss, f1).metrics["f1"].each().tolist() for d in (survey, data)]
    assert rows[0] == pytest.approx(rows[1], nan_ok=True)


def test_advice_by_a_figure_of_one_class_says_which():
    of_ja, of_nein = (
        il.advise(federation(), linear, ["finetune"], metric="f1", positive=name, gradients=20)
        for name in ("ja", "nein")
    )
    assert "f1 is of class 'ja'" in of_ja.notes and "f1 is of class 'nein'" in of_nein.notes
    assert of_ja.table[0]["value"] != of_nein.table[0]["value"]
    by_loss = il.advise(federation(), linear, positive="ja", gradients=20)
    assert "positive has no effect: no figure here is of one class" in by_loss.notes
