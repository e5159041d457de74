"""Which scale suits tables: `python -m benchmarks.table_scaling`, a few minutes on one core.

Tables of scikit-learn are split into five hospitals by the fifths of one feature. A linear model is
trained with Local, FedAvg and Ditto on numbers that are not scaled, scaled by each hospital's own
training rows, or by those of all. With "own units" every column is stretched and shifted at random
in each hospital. docs/decisions.md holds the figures.
"""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pandas as pd
import torch
from sklearn import datasets
from torch import nn

import idiolect as il

SCALES = ("none", "client", "federated")
METHODS = (il.Local, il.FedAvg, il.Ditto)
SPLITS = 3  # into training and test data
TABLES = {
    "breast_cancer": ("mean texture", datasets.load_breast_cancer, {}),
    "wine": ("magnesium", datasets.load_wine, {}),
    "iris": ("sepal width (cm)", datasets.load_iris, {}),
    "diabetes": ("age", datasets.load_diabetes, {"scaled": False}),
}


def table(name: str) -> pd.DataFrame:
    """The table with a column of hospitals."""
    feature, load, options = TABLES[name]
    frame = load(as_frame=True, **options).frame
    if name == "diabetes":
        frame["target"] = (frame["target"] - 150) / 75
    fifths = pd.qcut(frame[feature].rank(method="first"), 5, labels=list("abcde"))
    return frame.assign(site=fifths.astype(str))


def in_own_units(frame: pd.DataFrame) -> pd.DataFrame:
    """Every feature multiplied and shifted by numbers of the hospital's own."""
    rng = np.random.default_rng(1)
    features = frame.drop(columns=["site", "target"]).astype(float)
    changed = features.copy()
    for site in sorted(frame["site"].unique()):
        rows = frame["site"] == site
        for column in features:
            values = features.loc[rows, column]
            shift = rng.lognormal(0, 0.5), rng.normal() * values.std()
            changed.loc[rows, column] = values * shift[0] + shift[1]
    return changed.assign(site=frame["site"], target=frame["target"])


def measure(frame: pd.DataFrame, scale: str, split: int) -> list[float]:
    """Accuracy in per cent, or the loss of a regression, by method."""
    with contextlib.redirect_stderr(io.StringIO()):
        data = il.Federation.from_frame(
            frame, client="site", target="target", scale=scale, seed=split
        )
        found = []
        for method in METHODS:
            shape = data.inputs.shape[1], data.classes or 1
            loss = "cross_entropy" if data.classes else "half_squared"
            task = il.Task(lambda shape=shape: nn.Linear(*shape), loss)
            result = il.run(method(), task, data, rounds=30, sample=5, eval_every=0)
            figures = result.record.summary()
            value = figures["accuracy" if data.classes else "loss"]["mean"]
            found.append(np.nan if value is None else value * (100 if data.classes else 1))
    return found


def main() -> None:
    torch.set_num_threads(1)
    print("| table | method | none | client | federated |\n|---|---|---|---|---|")
    for name in TABLES:
        plain = table(name)
        for title, frame in ((name, plain), (f"{name}, own units", in_own_units(plain))):
            runs = [[measure(frame, scale, k) for k in range(SPLITS)] for scale in SCALES]
            for number, method in enumerate(METHODS):
                cells = [np.array(of_scale)[:, number] for of_scale in runs]
                words = " | ".join(f"{c.mean():.3g} ± {c.std():.2g}" for c in cells)
                print(f"| {title} | {method.__name__} | {words} |", flush=True)


if __name__ == "__main__":
    main()
