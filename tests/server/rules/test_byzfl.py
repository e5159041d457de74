"""The rules beside those of ByzFL, an independent library, where it is installed."""

import numpy as np
import pytest
import torch

from idiolect.server.rules import RULES, parse_rule

byzfl = pytest.importorskip("byzfl")

N, F = 13, 3
ROWS = np.random.default_rng(0).normal(size=(N, 6))
MIDDLE = np.median(ROWS, axis=0)


def ours(text):
    return parse_rule(text)(torch.tensor(ROWS), torch.ones(N, dtype=torch.float64)).numpy()


@pytest.mark.parametrize(
    ("text", "theirs"),
    [
        ("mean", lambda: byzfl.Average()),
        ("median", lambda: byzfl.Median()),
        (f"trimmed-mean(f={F})", lambda: byzfl.TrMean(f=F)),
        (f"meamed(f={F})", lambda: byzfl.Meamed(f=F)),
        (f"mda(f={F})", lambda: byzfl.MDA(f=F)),
        # theirs sums n - f - 1 neighbours where the paper has n - f - 2: the paper's rule for f - 1
        (f"krum(f={F - 1})", lambda: byzfl.Krum(f=F)),
        (f"multi-krum(f={F - 1}, m={N - F})", lambda: byzfl.MultiKrum(f=F)),
        # theirs starts from zero: the same where both have converged
        ("geometric-median(steps=400, nu=1e-9)", lambda: byzfl.GeometricMedian(nu=1e-9, T=400)),
        # theirs starts from zero: rows around our start, the coordinate median
        (
            "centred-clipping(tau=0.7, steps=4)",
            lambda: lambda x: byzfl.CenteredClipping(L=4, tau=0.7)(x - MIDDLE) + MIDDLE,
        ),
    ],
)
def test_a_rule_agrees_with_byzfl(text, theirs):
    np.testing.assert_allclose(ours(text), theirs()(ROWS.copy()), rtol=0, atol=1e-9)


def test_mixing_agrees_with_byzfl():
    found = RULES["nnm"](f=F)(torch.tensor(ROWS), torch.ones(N))[0]
    np.testing.assert_allclose(found.numpy(), byzfl.NNM(f=F)(ROWS.copy()), rtol=0, atol=1e-12)
