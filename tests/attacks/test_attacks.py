"""Attacks do what their papers say, leave honest messages alone and draw by client and round."""

import inspect
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks import plain
from idiolect.attacks import ATTACKS, Attack, parse_attack
from idiolect.attacks.collusion import quantile
from idiolect.core import streams
from idiolect.core.knobs import SettingError, describe

LINES = [
    *ATTACKS,
    "same-value(std=3)",
    "sign-flip(std=0.5)",
    "gaussian(std=2)",
    "data-poison(std=1, labels=uniform)",
    "scaling(factor=-3)",
    "alie(z=1.5)",
    "ipm(eps=4)",
    "min-max(direction=unit)",
    "min-max(direction=sign)",
    "min-sum(direction=unit)",
    "min-sum(direction=sign)",
    "mimic(which=keyed)",
]
COLLUDING = [line for line in LINES if parse_attack(line).colludes]
DRAWING = ("same-value", "sign-flip", "gaussian", "data-poison", "mimic(which=keyed)")


def keys_of(n, round=0, seed=0):
    return streams.keys(seed, "attack", round, streams.name_keys([f"client {i}" for i in range(n)]))


def cohort(n, m, f, seed=0, dtype=torch.float64):
    """rows, malicious, reference, keys: clients that differ, around a model that is not zero."""
    rng = np.random.default_rng(seed)
    reference = rng.normal(size=m)
    rows = reference + rng.normal(1.0, 0.5, m) + rng.normal(size=(n, m)) * rng.uniform(0.5, 2, m)
    malicious = np.zeros(n, dtype=bool)
    malicious[rng.permutation(n)[:f]] = True
    return (
        torch.tensor(rows, dtype=dtype),
        torch.tensor(malicious),
        torch.tensor(reference, dtype=dtype),
        keys_of(n, seed=seed),
    )


def reference_of(line):
    attack = parse_attack(line)
    name = line.partition("(")[0]
    f = getattr(plain, name.replace("-", "_"))
    return lambda *a: f(
        *a, **{k: v for k, v in attack.as_dict().items() if k in inspect.signature(f).parameters}
    )


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


# -- against the papers ----------------------------------------------------------------------------


@pytest.mark.parametrize("model", [True, False], ids=["models", "changes"])
@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(
    "n,m,f", [(10, 7, 3), (7, 1, 2), (5, 4, 3), (4, 3, 4), (3, 30, 2), (2, 2, 1)]
)
def test_an_attack_is_its_paper_in_plain_numpy(line, n, m, f, model):
    rows, malicious, reference, keys = cohort(n, m, f)
    reference = reference if model else None
    got = parse_attack(line)(rows, malicious, reference, keys).numpy()
    want = reference_of(line)(
        rows.numpy(), malicious.numpy(), None if reference is None else reference.numpy(), keys
    )
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.data(), st.integers(0, 10**6))
def test_min_max_is_the_largest_step_within_the_honest_spread(honest, m, data, seed):
    direction = data.draw(st.sampled_from(["unit", "std", "sign"]))
    rows, malicious, reference, keys = cohort(honest + 2, m, 2, seed)
    sent = parse_attack(f"min-max(direction={direction})")(rows, malicious, reference, keys)[
        malicious
    ][0]
    seen = rows[~malicious]
    widest, farthest = torch.cdist(seen, seen).max(), (sent - seen).norm(dim=1).max()
    assert farthest <= widest * (1 + 1e-9) + 1e-12  # kept
    step = sent - seen.mean(0)
    if honest > 1:
        assert step.norm() > 0
        assert (seen.mean(0) + 1.0001 * step - seen).norm(dim=1).max() > widest  # and tight


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.integers(1, 6), st.data(), st.integers(0, 10**6))
def test_min_sum_is_the_largest_step_within_the_honest_sum(honest, m, data, seed):
    direction = data.draw(st.sampled_from(["unit", "std", "sign"]))
    rows, malicious, reference, keys = cohort(honest + 2, m, 2, seed)
    sent = parse_attack(f"min-sum(direction={direction})")(rows, malicious, reference, keys)[
        malicious
    ][0]
    seen, mean = rows[~malicious], rows[~malicious].mean(0)
    most = torch.cdist(seen, seen).square().sum(1).max()
    assert (sent - seen).square().sum() <= most * (1 + 1e-9)
    assert (mean + 1.0001 * (sent - mean) - seen).square().sum() > most


@pytest.mark.parametrize("name", ["min-max", "min-sum"])
def test_distance_bounds_hold_in_single_precision_at_every_scale(name):
    for scale in (1e-25, 1.0, 1e25):  # squares of these overflow or vanish in float32
        rows, malicious, _, keys = cohort(9, 50, 3)
        sent = (
            parse_attack(name)((rows * scale).float(), malicious, None, keys)[malicious][0].double()
            / scale
        )
        exact = parse_attack(name)(rows, malicious, None, keys)[malicious][0]
        assert (sent - exact).norm() < 1e-5 * exact.norm()


@pytest.mark.parametrize(
    "n,f,share",
    [(50, 24, 24 / 26), (50, 12, 24 / 38), (10, 2, 4 / 8), (25, 5, 12 / 20), (11, 5, 5 / 6)],
)
def test_alie_takes_its_z_from_the_table_of_the_normal_distribution(n, f, share):
    assert quantile(n, f) == pytest.approx(
        max(0.0, statistics.NormalDist().inv_cdf(share)), abs=1e-12
    )


def test_alie_is_finite_for_any_number_of_malicious_clients_and_grows_with_it():
    for n in range(1, 40):
        z = [quantile(n, f) for f in range(1, n)]
        assert all(np.isfinite([*z, quantile(n, n)])) and min([*z, 0]) >= 0
        minority = z[: (n - 1) // 2]
        assert minority == sorted(minority)


def test_mimic_sends_an_honest_message_bit_for_bit():
    for line in ("mimic", "mimic(which=keyed)"):
        rows, malicious, reference, keys = cohort(8, 5, 3)
        sent = parse_attack(line)(rows, malicious, reference, keys)[malicious]
        assert all(any(same_bits(s, r) for r in rows[~malicious]) for s in sent)
        assert same_bits(sent, sent[:1].expand_as(sent))


def test_a_free_rider_returns_the_reference_bit_for_bit():
    rows, malicious, reference, keys = cohort(5, 4, 2)
    assert same_bits(
        parse_attack("zero")(rows, malicious, reference, keys)[malicious], reference.expand(2, -1)
    )


def test_scaling_by_the_cohort_replaces_the_shared_model():
    """One malicious client, the others converged: the mean is its model (Bagdasaryan et al.)."""
    reference = torch.tensor([1.0, -2.0], dtype=torch.float64)
    rows = reference.repeat(5, 1)
    malicious = torch.arange(5) == 3
    rows[3] = torch.tensor([7.0, 7.0])
    sent = parse_attack("scaling(factor=5)")(rows, malicious, reference, keys_of(5))
    torch.testing.assert_close(sent.mean(0), rows[3])


def test_label_flip_sends_what_training_gave():
    rows, malicious, reference, keys = cohort(5, 4, 2)
    assert same_bits(parse_attack("label-flip")(rows, malicious, reference, keys), rows)


# -- every attack ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("line", LINES)
def test_every_shape_works_and_honest_rows_are_untouched(line, dtype):
    attack = parse_attack(line)
    for n, m, f in [
        (1, 1, 1),
        (1, 1, 0),
        (1, 4, 1),
        (2, 1, 1),
        (6, 1, 2),
        (6, 5, 0),
        (6, 5, 6),
        (6, 5, 5),
        (3, 1000, 1),
    ]:
        rows, malicious, reference, keys = cohort(n, m, f, dtype=dtype)
        for ref in (reference, None):
            before = rows.clone()
            out = attack(rows, malicious, ref, keys)
            assert out.shape == rows.shape and out.dtype == dtype and bool(out.isfinite().all())
            assert same_bits(out[~malicious], before[~malicious])
            assert same_bits(rows, before), "the input was changed"
            assert same_bits(out, attack(rows, malicious, ref, keys)), "not the same twice"


@pytest.mark.parametrize("line", LINES)
def test_rows_need_not_be_contiguous(line):
    rows, malicious, reference, keys = cohort(6, 5, 2)
    strided = torch.empty(5, 12, dtype=rows.dtype).T[::2]
    strided.copy_(rows)
    assert not strided.is_contiguous()
    torch.testing.assert_close(
        parse_attack(line)(strided, malicious, reference, keys),
        parse_attack(line)(rows, malicious, reference, keys),
        rtol=1e-12,
        atol=1e-12,
    )
    one = rows[:1].expand(6, -1)  # all the same storage
    out = parse_attack(line)(one, malicious, reference, keys)
    assert same_bits(out[~malicious], one[~malicious]) and bool(out.isfinite().all())


@pytest.mark.parametrize("line", LINES)
def test_an_empty_cohort_or_part_is_returned(line):
    attack = parse_attack(line)
    assert attack(torch.empty(0, 3), torch.zeros(0, dtype=torch.bool), None, keys_of(0)).shape == (
        0,
        3,
    )
    assert attack(
        torch.empty(2, 0), torch.tensor([True, False]), torch.empty(0), keys_of(2)
    ).shape == (2, 0)


@pytest.mark.parametrize("line", LINES)
def test_honest_rows_keep_even_nan_and_negative_zero(line):
    rows, malicious, reference, keys = cohort(6, 5, 2)
    first = int((~malicious).nonzero()[0])
    rows[first, :3] = torch.tensor([float("nan"), -0.0, float("inf")])
    out = parse_attack(line)(rows, malicious, reference, keys)
    assert same_bits(out[~malicious], rows[~malicious])
    assert bool(
        out[malicious].isfinite().all()
    )  # colluders learn nothing from a message no server admits


@pytest.mark.parametrize("line", COLLUDING)
def test_colluders_send_one_message_whatever_their_own_rows(line):
    rows, malicious, reference, keys = cohort(9, 4, 3)
    other = rows.clone()
    other[malicious] = 1e6
    out = parse_attack(line)(rows, malicious, reference, keys)[malicious]
    assert same_bits(out, parse_attack(line)(other, malicious, reference, keys)[malicious])
    assert same_bits(out, out[:1].expand_as(out))


@pytest.mark.parametrize("line", COLLUDING)
def test_colluders_alone_estimate_from_their_own_rows(line):
    """All malicious: they send what they would if their rows were honest (alie: with a given z)."""
    rows, _, reference, _ = cohort(6, 4, 0)
    line = "alie(z=1.5)" if line == "alie" else line
    alone = parse_attack(line)(rows, torch.ones(6, dtype=torch.bool), reference, keys_of(6))
    joined = parse_attack(line)(
        torch.cat([rows, rows[:1]]), torch.arange(7) == 6, reference, keys_of(7)
    )
    torch.testing.assert_close(alone[0], joined[6])


@pytest.mark.parametrize("line", COLLUDING)
def test_colluders_who_see_nothing_finite_send_their_own(line):
    rows = torch.full((3, 2), float("nan"))
    assert parse_attack(line)(rows, torch.ones(3, dtype=torch.bool), None, keys_of(3)).isnan().all()


@pytest.mark.parametrize("line", COLLUDING)
def test_colluders_alone_estimate_from_their_finite_rows(line):
    rows, _, reference, keys = cohort(6, 4, 0)
    rows[2] = float("nan")
    assert bool(
        parse_attack(line)(rows, torch.ones(6, dtype=torch.bool), reference, keys).isfinite().all()
    )


@pytest.mark.parametrize("line", COLLUDING)
def test_honest_clients_who_agree_leave_nothing_to_divide_by(line):
    rows, malicious, reference, keys = cohort(6, 4, 2)
    rows[:] = reference
    for ref in (reference, None):
        assert bool(parse_attack(line)(rows, malicious, ref, keys).isfinite().all())
    zeros = torch.zeros(6, 4)
    assert bool(parse_attack(line)(zeros, malicious, None, keys).isfinite().all())


def test_no_global_generator_is_used():
    rows, malicious, reference, keys = cohort(6, 5, 2)
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    for line in LINES:
        parse_attack(line)(rows, malicious, reference, keys)
    assert (
        torch.equal(before[0], torch.get_rng_state())
        and (before[1] == np.random.get_state()[1]).all()
    )


# -- draws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [line for line in LINES if not parse_attack(line).colludes])
def test_a_malicious_client_sends_the_same_whoever_else_is_there_and_in_any_order(line):
    rows, malicious, reference, keys = cohort(9, 4, 4)
    full = parse_attack(line)(rows, malicious, reference, keys)
    order = torch.tensor([5, 2, 8, 0, 3])
    part = parse_attack(line)(rows[order], malicious[order], reference, keys[order.numpy()])
    assert same_bits(part, full[order])


def test_a_keyed_mimic_is_chosen_by_key_not_by_position():
    rows, malicious, reference, keys = cohort(9, 4, 4)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    full = parse_attack("mimic(which=keyed)")(rows, malicious, reference, keys)
    assert same_bits(
        parse_attack("mimic(which=keyed)")(
            rows[order], malicious[order], reference, keys[order.numpy()]
        ),
        full[order],
    )


@pytest.mark.parametrize("line", DRAWING)
def test_draws_change_with_round_and_seed(line):
    rows, malicious, reference, _ = cohort(40, 4, 20)
    seen = [
        parse_attack(line)(rows, malicious, reference, keys_of(40, r, s))[malicious]
        for r, s in [(0, 0), (1, 0), (0, 1)]
    ]
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])


@pytest.mark.parametrize(
    "line,std", [("same-value", 100), ("same-value(std=3)", 3), ("data-poison", 20)]
)
def test_scalars_are_normal_with_the_said_spread(line, std):
    n = 40_000
    out = parse_attack(line)(
        torch.ones(n, 2, dtype=torch.float64), torch.ones(n, dtype=torch.bool), None, keys_of(n)
    )
    assert torch.equal(out[:, 0], out[:, 1])
    assert abs(out[:, 0].mean()) < 4 * std / n**0.5 and abs(out[:, 0].std() / std - 1) < 0.02


def test_sign_flips_are_half_normal_and_never_positive():
    n = 40_000
    out = parse_attack("sign-flip")(
        torch.ones(n, 2, dtype=torch.float64), torch.ones(n, dtype=torch.bool), None, keys_of(n)
    )[:, 0]
    assert bool((out <= 0).all())
    assert (
        abs(out.square().mean().sqrt() / 10 - 1) < 0.02
        and abs(out.mean() / (-10 * (2 / np.pi) ** 0.5) - 1) < 0.02
    )


def test_gaussian_entries_are_independent_across_clients_and_coordinates():
    out = parse_attack("gaussian")(
        torch.zeros(200, 301, dtype=torch.float64),
        torch.ones(200, dtype=torch.bool),
        None,
        keys_of(200),
    )
    assert abs(out.std() / 100 - 1) < 0.02
    z = out / 100
    assert (z @ z.T / 301 - torch.eye(200)).abs().max() < 0.5 and (
        z.T @ z / 200 - torch.eye(301)
    ).abs().max() < 0.5


def test_gaussian_blocks_do_not_change_the_draws(monkeypatch):
    rows, malicious, reference, keys = cohort(9, 5, 6)
    whole = parse_attack("gaussian")(rows, malicious, reference, keys)
    monkeypatch.setattr("idiolect.attacks.single_client._BLOCK", 7)
    assert same_bits(parse_attack("gaussian")(rows, malicious, reference, keys), whole)


# -- by name ---------------------------------------------------------------------------------------


def test_no_attack_is_none():
    assert parse_attack("none") is None and parse_attack("") is None and parse_attack("  ") is None


def test_defaults_are_the_papers():
    stds = {
        name: parse_attack(name).std
        for name in ("same-value", "sign-flip", "gaussian", "data-poison")
    }
    assert stds == {"same-value": 100, "sign-flip": 10, "gaussian": 100, "data-poison": 20}
    assert {n: c.poisons for n, c in ATTACKS.items() if c.poisons} == {
        "data-poison": "random",
        "label-flip": "flip",
    }
    assert {n for n, c in ATTACKS.items() if c.colludes} == {
        "alie",
        "ipm",
        "min-max",
        "min-sum",
        "mimic",
    }


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_documented_and_every_field_described(name):
    assert issubclass(ATTACKS[name], Attack) and ">>>" in (ATTACKS[name].__doc__ or "")
    assert all(field["help"] for field in describe(ATTACKS[name]))


@pytest.mark.parametrize(
    "text,words",
    [
        ("same-valu", "attack: 'same-valu' is unknown; did you mean 'same-value'?"),
        ("signflip", "did you mean 'sign-flip'?"),
        (
            "same-value(std=0)",
            "std must be a number > 0, got 0.0 (standard deviation of the number sent)",
        ),
        ("gaussian(std=-1)", "std must be a number > 0, got -1.0"),
        ("sign-flip(std=nope)", "std must be a number > 0, got 'nope'"),
        ("same-value(sd=1)", "attack same-value setting: 'sd' is unknown; did you mean 'std'?"),
        ("min-max(direction=up)", "one of 'unit', 'std', 'sign'"),
        ("mimic(which=me)", "one of 'variance', 'keyed'"),
        ("data-poison(labels=some)", "one of 'wrong', 'uniform'"),
        ("alie(z=-1)", "z must be a number >= 0, got -1.0"),
        ("ipm(eps=0)", "eps must be a number > 0, got 0.0"),
        (
            "sign-flip(10)",
            "attack must be NAME or NAME(option=value, ...), several joined by +, got 'sign",
        ),
        ("none + zero", "attack: 'none' is unknown"),
        ("label-flip + data-poison", "attack: 2 of its parts change the labels; at most one may"),
    ],
)
def test_a_wrong_line_says_what_would_be_right(text, words):
    with pytest.raises(SettingError) as error:
        parse_attack(text)
    assert words in str(error.value)


def test_joined_attacks_act_in_order_each_with_its_own_draws():
    rows, malicious, _, keys = cohort(7, 4, 3)
    both = parse_attack("same-value + scaling(factor=2)")(rows, malicious, None, keys)
    torch.testing.assert_close(
        both[malicious], 2 * parse_attack("same-value")(rows, malicious, None, keys)[malicious]
    )
    assert same_bits(both[~malicious], rows[~malicious])
    other = parse_attack("scaling(factor=2) + same-value(std=100)")(rows, malicious, None, keys)[
        malicious
    ]
    assert bool((other == other[:, :1]).all())  # the last word
    twice = parse_attack("sign-flip + sign-flip")(rows, malicious, None, keys)
    once = parse_attack("sign-flip")(rows, malicious, None, keys)
    factors = (once / rows)[malicious][:, 0], (twice / once)[malicious][:, 0]
    assert not torch.allclose(*factors)


def test_a_joined_attack_says_what_its_parts_do():
    chain = parse_attack("label-flip + alie")
    assert chain.poisons == "flip" and chain.colludes
    assert (
        parse_attack("zero + gaussian").poisons == ""
        and not parse_attack("zero + gaussian").colludes
    )
    assert parse_attack("label-flip + alie") == chain
