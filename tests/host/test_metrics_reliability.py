"""Reliability curves of clients, which belong to the metric calibration_error."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

import idiolect as il
from helpers import classification
from idiolect.host.scores import wilson

DATA = classification((90, 40, 60), features=4, classes=3, test=0.5, valid=0.0)


def trained(**settings):
    task = il.Task(lambda: nn.Linear(4, 3))
    return il.run(il.Ditto(), task, DATA, rounds=2, batch=8, **settings)


def test_every_client_has_the_curve_of_its_own_model():
    table = trained(metrics="calibration_error").to_pandas("reliability")
    result = trained(metrics="calibration_error")
    for id in DATA.ids:
        x, y = DATA.part(DATA.position(id), "test")
        with torch.no_grad():
            p, label = result.personal(id)(x).double().softmax(1).max(1)
        bins = np.floor(p.numpy() * 15).astype(int)
        rows = table[table["client"] == id]
        assert rows["low"].tolist() == pytest.approx([b / 15 for b in np.unique(bins)])
        for (_, row), b in zip(rows.iterrows(), np.unique(bins), strict=True):
            inside = bins == b
            assert row["samples"] == inside.sum()
            assert row["confidence"] == pytest.approx(p.numpy()[inside].mean(), rel=1e-5)
            assert row["accuracy"] == pytest.approx((label == y).numpy()[inside].mean())


def test_the_curve_adds_up_to_the_calibration_error_of_the_client():
    result = trained(metrics="calibration_error")
    table = result.to_pandas("reliability")
    gap = (table["confidence"] - table["accuracy"]).abs() * table["samples"]
    each = gap.groupby(table["client"]).sum() / table.groupby("client")["samples"].sum()
    for row in result.clients_table():
        assert each[row["client"]] == pytest.approx(row["test_calibration_error"])


def test_the_table_is_written_and_read_back_and_is_not_there_unasked(tmp_path):
    result = trained(metrics="calibration_error", directory=tmp_path / "run")
    file = pd.read_csv(tmp_path / "run" / "reliability.csv")
    table = result.to_pandas("reliability")
    assert len(file) == len(table) and file["samples"].tolist() == table["samples"].tolist()
    again = il.load(tmp_path / "run").to_pandas("reliability")
    pd.testing.assert_frame_equal(again, table)
    plain = trained(directory=tmp_path / "plain")
    assert not (tmp_path / "plain" / "reliability.csv").exists()
    assert plain.record.reliability_table() == []


@pytest.mark.parametrize(("hits", "samples"), [(0, 5), (5, 5), (8, 10), (500, 1000)])
def test_intervals_are_those_of_wilson(hits, samples):
    want = binomtest(hits, samples).proportion_ci(method="wilson")
    assert wilson(hits, samples) == pytest.approx((want.low, want.high), abs=1e-12)
    assert math.isnan(wilson(math.nan, samples)[0])
