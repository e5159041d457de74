"""Every rule is its paper's definition."""

import numpy as np
import pytest
import torch

from idiolect.server.rules import TooFew, parse_rule
from server.rules import definitions
from server.rules.common import draw

SHAPES = [(1, 3), (2, 1), (3, 4), (4, 2), (5, 1), (7, 3), (8, 5), (11, 2)]
DEFINITIONS = {  # text with f to fill in -> (slope, offset) of the clients needed, its definition
    "median": ((0, 1), lambda x, w, f: definitions.median(x)),
    "mean": ((0, 1), lambda x, w, f: definitions.mean(x, w)),
    "mean(weighted=False)": ((0, 1), lambda x, w, f: x.mean(0)),
    "trimmed-mean(f={f})": ((2, 1), lambda x, w, f: definitions.trimmed_mean(x, f)),
    "meamed(f={f})": ((2, 1), lambda x, w, f: definitions.meamed(x, f)),
    "krum(f={f})": ((2, 3), lambda x, w, f: definitions.krum(x, f)),
    "krum(f={f}, variant=perfed)": ((2, 3), lambda x, w, f: definitions.krum_perfed(x, f)),
    "multi-krum(f={f})": ((2, 3), lambda x, w, f: definitions.multi_krum(x, f, len(x) - f)),
    "multi-krum(f={f}, m=2)": ((2, 3), lambda x, w, f: definitions.multi_krum(x, f, 2)),
    "bulyan(f={f})": ((4, 3), lambda x, w, f: definitions.bulyan(x, f)),
    "mda(f={f})": ((2, 1), lambda x, w, f: definitions.mda(x, f)),
    "geometric-median": ((0, 1), lambda x, w, f: definitions.geometric_median(x, w, 8, 1e-6)),
    "geometric-median(steps=3, nu=0.5, weighted=False)": (
        (0, 1),
        lambda x, w, f: definitions.geometric_median(x, np.ones(len(x)), 3, 0.5),
    ),
    "centred-clipping": ((0, 1), lambda x, w, f: definitions.centred_clipping(x, 1.0, 3)),
    "centred-clipping(tau=0.3, steps=5)": (
        (0, 1),
        lambda x, w, f: definitions.centred_clipping(x, 0.3, 5),
    ),
    "nnm(f={f}) + median": ((2, 1), lambda x, w, f: definitions.median(definitions.nnm(x, f))),
    "nnm(f={f}) + mean": ((2, 1), lambda x, w, f: definitions.mean(definitions.nnm(x, f), w)),
    "norm-bound(bound=0.7) + mean": (
        (0, 1),
        lambda x, w, f: definitions.mean(definitions.norm_bound(x, 0.7), w),
    ),
}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("text", DEFINITIONS)
def test_a_rule_is_its_definition(text, ties):
    (slope, offset), definition = DEFINITIONS[text]
    for seed, (n, m) in enumerate(SHAPES):
        for f in range((n - offset) // slope + 1) if slope else (0,):
            rows, weights = draw(n, m, seed, ties)
            found = parse_rule(text.format(f=f))(rows, weights)
            wanted = definition(rows.numpy(), weights.numpy(), f)
            np.testing.assert_allclose(
                found.numpy(), wanted, rtol=0, atol=1e-10, err_msg=f"{n} clients, f = {f}"
            )


def test_the_mean_is_bit_for_bit_the_weighted_mean():
    rows, weights = draw(9, 1000, dtype=torch.float32)
    wanted = (weights / weights.sum()).to(rows.dtype) @ rows
    assert torch.equal(parse_rule("mean")(rows, weights), wanted)


@pytest.mark.parametrize("n", [3, 4, 7, 12])
@pytest.mark.parametrize(
    ("name", "slope", "offset"),
    [
        ("krum", 2, 3),
        ("multi-krum", 2, 3),
        ("trimmed-mean", 2, 1),
        ("meamed", 2, 1),
        ("mda", 2, 1),
        ("bulyan", 4, 3),
    ],
)
def test_f_minus_1_is_the_most_the_rule_can_withstand(name, slope, offset, n):
    rows, weights = draw(n, 4)
    most = (n - offset) // slope
    told = parse_rule(f"{name}(f={most})")
    assert torch.equal(parse_rule(name)(rows, weights), told(rows, weights))
    with pytest.raises(TooFew):
        parse_rule(f"{name}(f={most + 1})").check(n)
