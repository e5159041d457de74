"""Every rule is its paper's definition, keeps the symmetries it should have, and withstands what it says it withstands."""

import numpy as np
import pytest
import torch

from aggregation import slow
from idiolect.server.rules import RULES, Rule, TooFew, parse_rule

ROBUST = [
    "median",
    "trimmed-mean(f=2)",
    "meamed(f=2)",
    "krum(f=2)",
    "krum(f=2, variant='perfed')",
    "multi-krum(f=2)",
    "bulyan(f=2)",
    "mda(f=2)",
    "geometric-median",
    "centred-clipping(tau=0)",
    "centred-clipping(tau=2)",
]
FIXED_BOUND = "norm-bound(bound=2) + trimmed-mean(f=2)"
WRAPPED = [
    "nnm(f=2) + median",
    "nnm(f=2) + mean",
    "norm-bound + mean",
    FIXED_BOUND,
    "nnm + norm-bound + krum",
]
KEYED = [
    "bucketing + median",
    "bucketing(size=3) + trimmed-mean(f=1)",
    "bucketing(size=2) + nnm(f=1) + mean",
]
ALL = ["mean", "mean(weighted=False)", *ROBUST, *WRAPPED, *KEYED]
FIXED_SIZE = ["centred-clipping(tau=2)", FIXED_BOUND]  # a length in their options


def draw(n, m, seed=0, ties=False, dtype=torch.float64):
    g = np.random.default_rng(seed)
    x = g.integers(-2, 3, (n, m)) if ties else g.normal(size=(n, m))
    return torch.tensor(x, dtype=dtype), torch.tensor(g.uniform(0.5, 2, n), dtype=torch.float64)


SHAPES = [(1, 3), (2, 1), (3, 4), (4, 2), (5, 1), (7, 3), (8, 5), (11, 2)]
DEFINITIONS = {  # text with f to fill in -> n clients per f, its definition
    "median": ((0, 1), lambda x, w, f: slow.median(x)),
    "mean": ((0, 1), lambda x, w, f: slow.mean(x, w)),
    "mean(weighted=False)": ((0, 1), lambda x, w, f: x.mean(0)),
    "trimmed-mean(f={f})": ((2, 1), lambda x, w, f: slow.trimmed_mean(x, f)),
    "meamed(f={f})": ((2, 1), lambda x, w, f: slow.meamed(x, f)),
    "krum(f={f})": ((2, 3), lambda x, w, f: slow.krum(x, f)),
    "krum(f={f}, variant=perfed)": ((2, 3), lambda x, w, f: slow.krum_perfed(x, f)),
    "multi-krum(f={f})": ((2, 3), lambda x, w, f: slow.multi_krum(x, f, len(x) - f)),
    "multi-krum(f={f}, m=2)": ((2, 3), lambda x, w, f: slow.multi_krum(x, f, 2)),
    "bulyan(f={f})": ((4, 3), lambda x, w, f: slow.bulyan(x, f)),
    "mda(f={f})": ((2, 1), lambda x, w, f: slow.mda(x, f)),
    "geometric-median": ((0, 1), lambda x, w, f: slow.geometric_median(x, w, 8, 1e-6)),
    "geometric-median(steps=3, nu=0.5, weighted=False)": (
        (0, 1),
        lambda x, w, f: slow.geometric_median(x, np.ones(len(x)), 3, 0.5),
    ),
    "centred-clipping": ((0, 1), lambda x, w, f: slow.centred_clipping(x, 1.0, 3)),
    "centred-clipping(tau=0.3, steps=5)": (
        (0, 1),
        lambda x, w, f: slow.centred_clipping(x, 0.3, 5),
    ),
    "nnm(f={f}) + median": ((2, 1), lambda x, w, f: slow.median(slow.nnm(x, f))),
    "nnm(f={f}) + mean": ((2, 1), lambda x, w, f: slow.mean(slow.nnm(x, f), w)),
    "norm-bound(bound=0.7) + mean": ((0, 1), lambda x, w, f: slow.mean(slow.norm_bound(x, 0.7), w)),
}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("text", DEFINITIONS)
def test_a_rule_is_its_definition(text, ties):
    (slope, offset), definition = DEFINITIONS[text]
    for seed, (n, m) in enumerate(SHAPES):
        for f in range((n - offset) // slope + 1) if slope else (0,):
            rows, weights = draw(n, m, seed, ties)
            if n < offset or (n, text) == (1, "multi-krum(f={f}, m=2)"):
                continue
            found = parse_rule(text.format(f=f))(rows, weights)
            np.testing.assert_allclose(
                found.numpy(),
                definition(rows.numpy(), weights.numpy(), f),
                rtol=0,
                atol=1e-10,
                err_msg=f"{n} {f}",
            )


def test_the_mean_is_bit_for_bit_the_weighted_mean_it_was():
    rows, weights = draw(9, 1000, dtype=torch.float32)
    assert torch.equal(
        parse_rule("mean")(rows, weights), (weights / weights.sum()).to(rows.dtype) @ rows
    )


@pytest.mark.parametrize("n", [3, 4, 7, 12])
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("krum", lambda n: (n - 3) // 2),
        ("multi-krum", lambda n: (n - 3) // 2),
        ("trimmed-mean", lambda n: (n - 1) // 2),
        ("meamed", lambda n: (n - 1) // 2),
        ("mda", lambda n: (n - 1) // 2),
        ("bulyan", lambda n: (n - 3) // 4),
    ],
)
def test_f_minus_1_is_the_most_the_rule_can_bear(name, most, n):
    rows, weights = draw(n, 4)
    assert torch.equal(
        parse_rule(name)(rows, weights), parse_rule(f"{name}(f={most(n)})")(rows, weights)
    )
    with pytest.raises(TooFew):
        parse_rule(f"{name}(f={most(n) + 1})").check(n)


# -- symmetries --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ALL)
def test_moving_all_rows_moves_the_answer(text):
    rows, weights = draw(12, 5)
    shift = torch.tensor([3.0, -7.0, 0.5, 100.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(
        parse_rule(text)(rows + shift, weights, key=3),
        parse_rule(text)(rows, weights, key=3) + shift,
        rtol=0,
        atol=1e-10,
    )


@pytest.mark.parametrize("text", [t for t in ALL if t not in FIXED_SIZE])
def test_scaling_all_rows_scales_the_answer(text):
    rows, weights = draw(12, 5)
    torch.testing.assert_close(
        parse_rule(text)(8 * rows, weights, key=3),
        8 * parse_rule(text)(rows, weights, key=3),
        rtol=0,
        atol=1e-6,
    )


def test_a_length_in_the_options_scales_with_the_rows():
    rows, weights = draw(12, 5)
    for text in ("centred-clipping(tau={})", "norm-bound(bound={}) + mean"):
        torch.testing.assert_close(
            parse_rule(text.format(8))(8 * rows, weights),
            8 * parse_rule(text.format(1))(rows, weights),
            rtol=0,
            atol=1e-10,
        )


@pytest.mark.parametrize("text", [t for t in ALL if t not in KEYED])
def test_the_order_of_the_clients_does_not_matter(text):
    rows, weights = draw(12, 5)
    order = torch.from_numpy(np.random.default_rng(1).permutation(12))
    torch.testing.assert_close(
        parse_rule(text)(rows[order], weights[order]),
        parse_rule(text)(rows, weights),
        rtol=0,
        atol=1e-10,
    )


@pytest.mark.parametrize("text", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rows_give_that_row_in_their_own_dtype(text, dtype):
    row = draw(1, 6, dtype=dtype)[0][0]
    found = parse_rule(text)(row.expand(12, -1), draw(12, 1)[1])
    assert found.dtype == dtype
    torch.testing.assert_close(found, row)


@pytest.mark.parametrize("text", ALL)
def test_a_message_of_no_numbers_stays_one(text):
    assert parse_rule(text)(torch.zeros(12, 0), torch.ones(12)).shape == (0,)


@pytest.mark.parametrize("text", ALL)
def test_rows_are_not_written_to(text):
    rows, weights = draw(12, 5)
    before = rows.clone()
    parse_rule(text)(rows, weights)[:] = 7
    assert torch.equal(rows, before)


@pytest.mark.parametrize(
    "text", [t for t in ALL if not t.startswith(("mean", "geometric")) and not t.endswith(" mean")]
)
def test_weights_change_nothing_where_the_paper_has_none(text):
    rows, weights = draw(12, 5)
    assert torch.equal(parse_rule(text)(rows, weights), parse_rule(text)(rows, 1000 * weights**4))


# -- what they withstand -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", [1e6, -1e6, 1e30])
@pytest.mark.parametrize(
    "text",
    [t for t in ROBUST if not t.startswith(("geometric", "centred"))] + ["nnm(f=2) + median"],
)
def test_two_liars_of_twelve_stay_without_effect_beyond_the_honest_rows(text, where):
    honest, _ = draw(10, 5)
    found = parse_rule(text)(
        torch.cat([honest, torch.full((2, 5), where, dtype=torch.float64)]), torch.ones(12)
    )
    assert (found >= honest.amin(0) - 1e-12).all() and (found <= honest.amax(0) + 1e-12).all()


def test_the_geometric_median_moves_no_further_than_its_theorem_says():
    honest, _ = draw(10, 5)
    mid = honest.mean(0)
    found = parse_rule("geometric-median")(
        torch.cat([honest, torch.full((2, 5), 1e6, dtype=torch.float64)]), torch.ones(12)
    )
    assert (found - mid).norm() <= 2 * (10 / 12) / (1 - 2 * 2 / 12) * (honest - mid).norm(
        dim=1
    ).max()


def test_liars_move_centred_clipping_by_their_share_of_tau_a_step():
    honest, _ = draw(10, 5)
    quiet = torch.cat([honest, honest.median(0).values.expand(2, -1)])
    loud = torch.cat([honest, torch.full((2, 5), 1e6, dtype=torch.float64)])
    start = parse_rule("median")(loud, torch.ones(12)) - parse_rule("median")(quiet, torch.ones(12))
    found = parse_rule("centred-clipping(tau=2, steps=1)")
    assert (
        found(loud, torch.ones(12)) - found(quiet, torch.ones(12))
    ).norm() <= 2 * start.norm() + 2 * 2 / 12 + 1e-9


def test_one_liar_takes_the_mean_anywhere():
    honest, _ = draw(10, 5)
    assert (
        parse_rule("mean")(
            torch.cat([honest, torch.full((1, 5), 1e6, dtype=torch.float64)]), torch.ones(11)
        ).min()
        > 9e4
    )


# -- numbers -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", [*ROBUST, *WRAPPED, *KEYED])
def test_rows_of_1e38_leave_no_nan(text):
    rows = draw(12, 5, dtype=torch.float32)[0]
    rows[:2], rows[3, 1] = 3e38, -3e38
    assert torch.isfinite(parse_rule(text)(rows, torch.ones(12))).all()


@pytest.mark.parametrize(
    "text", ["krum(f=2)", "multi-krum(f=2)", "bulyan(f=2)", "mda(f=2)", "nnm(f=2) + median"]
)
def test_squares_that_overflow_float64_keep_the_liars_out(text):
    rows = draw(12, 5)[0]
    rows[0], rows[5] = 1e200, -1e200
    assert parse_rule(text)(rows, torch.ones(12)).abs().max() < 3


def test_distances_survive_cancellation():
    """Two rows a thousandth apart and a million away from the others: the matrix product alone says 0 or noise."""
    from idiolect.server.rules.geometry import squared_distances

    g = np.random.default_rng(0)
    x = g.normal(size=(9, 40))
    x[7:] = 1e6 + g.normal(size=40)
    x[8] += 1e-3 * g.normal(size=40)
    exact = ((x[:, None] - x[None]) ** 2).sum(-1)
    found = squared_distances(torch.tensor(x))
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-11)
    assert torch.equal(found, found.T) and (found.diag() == 0).all()


def test_distances_of_models_far_from_zero_are_exact():
    from idiolect.server.rules.geometry import squared_distances

    x = 1e5 + 1e-4 * np.random.default_rng(0).normal(size=(6, 70_000)).astype(np.float64)
    np.testing.assert_allclose(
        squared_distances(torch.tensor(x)).numpy(),
        ((x[:, None] - x[None]) ** 2).sum(-1),
        rtol=1e-10,
    )


# -- refusals ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "n", "message"),
    [
        (
            "krum(f=4)",
            10,
            r"^f: 4 is not accepted for krum with 10 clients; at most 3 \(n >= 2 f \+ 3\)$",
        ),
        ("trimmed-mean(f=5)", 10, r"^f: 5 .* at most 4 \(n >= 2 f \+ 1\)"),
        ("bulyan(f=2)", 10, r"^f: 2 .* at most 1 \(n >= 4 f \+ 3\)"),
        ("nnm(f=5) + median", 10, r"^f: 5 is not accepted for nnm"),
        ("krum", 2, r"^rule: krum needs at least 3 clients .* not 2"),
        ("krum(f=2)", 2, r"^rule: krum needs at least 7 clients .* not 2"),
        (
            "multi-krum(f=1, m=9)",
            8,
            r"^m: 9 is not accepted for multi-krum with 8 clients; at most 8",
        ),
        ("median", 0, r"^rule: median needs at least 1 client, not 0"),
        (
            "bucketing(size=2) + krum(f=2)",
            10,
            r"^f: 2 is not accepted for krum with 5 clients; at most 1 .* buckets of 10 clients",
        ),
    ],
)
def test_too_few_clients_are_refused_when_asked_and_when_called(text, n, message):
    with pytest.raises(TooFew, match=message):
        parse_rule(text).check(n)
    with pytest.raises(TooFew, match=message):
        parse_rule(text)(torch.zeros(n, 2), torch.ones(n))


def test_mda_refuses_more_subsets_than_it_can_try_and_says_what_else_to_do():
    parse_rule("mda(f=3)").check(60)
    with pytest.raises(
        ValueError,
        match=r"^f: 29 is not accepted for mda with 60 clients: \d+ subsets .* at most 3 .*nnm",
    ):
        parse_rule("mda").check(60)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("average", "rule: 'average' is unknown"),
        ("crum", "did you mean 'krum'"),
        ("krum(g=2)", "rule krum setting: 'g' is unknown"),
        ("krum(f=-2)", "f: -2 is not accepted"),
        ("krum(f=1.5)", "f: 1.5 is not accepted"),
        ("krum(variant=public)", "variant: 'public' is not accepted"),
        ("centred-clipping(tau=-1)", "tau: -1.0 is not accepted"),
        ("bucketing(size=0) + mean", "size: 0 is not accepted"),
        ("bucketing", "rule: 'bucketing' is not accepted; bucketing must be followed by a rule"),
        (
            "krum + median",
            "krum ends a rule, only bucketing, nnm, norm-bound may stand before another",
        ),
        ("median + bucketing", "median ends a rule"),
        ("krum(f=2", "write NAME or NAME"),
        ("", "rule: '' is unknown"),
    ],
)
def test_what_is_no_rule_is_refused_with_what_would_be(text, message):
    from idiolect.core.knobs import SettingError
    from idiolect.run.settings import Settings

    for form in (make, lambda t: Settings(rule=t)):
        with pytest.raises(SettingError) as error:
            form(text)
        assert message in str(error.value)


def test_every_rule_and_wrapper_is_tested_here():
    used = " ".join(ALL)
    assert all(name in used for name in RULES)
    assert all(issubclass(r, Rule) and r.title == name for name, r in RULES.items())


# -- bucketing ---------------------------------------------------------------------------------------------------------------
def test_buckets_hold_every_client_once():
    for n, size in [(10, 2), (11, 2), (11, 3), (3, 5), (4, 1)]:
        rows, weights = RULES["bucketing"](size=size)(
            torch.eye(n, dtype=torch.float64), torch.ones(n), key=5
        )
        assert len(rows) == -(-n // size) and weights.tolist() == [size] * (n // size) + [
            n % size
        ] * (n % size > 0)
        torch.testing.assert_close(rows * weights[:, None], (rows > 0).double())
        assert ((rows > 0).sum(0) == 1).all()


def test_the_key_alone_decides_the_buckets():
    rows, weights = draw(12, 3)
    rule = parse_rule("bucketing + median")
    found = [rule(rows, weights, key=k) for k in (0, 1, 2, 0)]
    assert torch.equal(found[0], found[3]) and torch.equal(found[0], rule(rows, weights))
    assert len({tuple(x.tolist()) for x in found}) == 3


def test_with_equal_weights_buckets_do_not_change_the_mean():
    rows, _ = draw(11, 4)
    torch.testing.assert_close(
        parse_rule("bucketing(size=3) + mean")(rows, torch.ones(11, dtype=torch.float64), key=9),
        rows.mean(0),
        rtol=0,
        atol=1e-12,
    )


def test_buckets_of_one_leave_the_rule_as_it_is():
    rows, weights = draw(11, 4)
    torch.testing.assert_close(
        parse_rule("bucketing(size=1) + krum(f=2)")(rows, weights, key=4),
        parse_rule("krum(f=2)")(rows, weights),
    )


def test_every_client_meets_every_other_about_equally_often():
    counts = torch.zeros(6, 6, dtype=torch.float64)
    for key in range(600):
        buckets = (
            RULES["bucketing"](size=2)(torch.eye(6, dtype=torch.float64), torch.ones(6), key=key)[0]
            > 0
        )
        counts += (buckets.double().T @ buckets.double()) / 600
    off = counts[~torch.eye(6, dtype=torch.bool)]
    assert (off - 0.2).abs().max() < 0.08


# -- in a run ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text", ["median", "krum(f=0)", "nnm + trimmed-mean", "bucketing(size=2) + median"]
)
def test_a_run_takes_a_rule_by_its_line(text):
    import idiolect as il

    federation = il.data.load("synthetic", clients=6, samples=60)
    result = il.run(
        il.FedAvg(),
        il.Task(torch.nn.Linear(60, 10)),
        federation,
        rounds=2,
        sample=4,
        eval_every=0,
        rule=text,
    )
    assert np.isfinite(result.summary()["accuracy"]["mean"])
