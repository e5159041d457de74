"""Clipping of whole messages, and the clipping norm that follows a quantile."""

import math

import numpy as np
import pytest
import torch

from idiolect.privacy.clipping import AdaptiveClip, clip_factors, clipped_sum, message_norms


def messages(scale: float = 3.0, count: int = 40) -> dict[str, torch.Tensor]:
    """Of two parts, as SCAFFOLD's."""
    g = torch.Generator().manual_seed(0)
    spread = torch.logspace(-2, 1, count).unsqueeze(1)
    return {
        "x": scale * spread * torch.randn(count, 30, generator=g),
        "dc": spread * torch.randn(count, 17, generator=g),
    }


def flat(up: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([up[n].double().numpy() for n in sorted(up)], axis=1)


def test_the_norm_is_that_of_all_parts_together():
    up = messages()
    assert np.allclose(message_norms(up, {}), np.linalg.norm(flat(up), axis=1), rtol=1e-6)


def test_parts_that_are_models_are_measured_as_changes_of_what_was_sent():
    up = messages()
    reference = {"x": torch.randn(30)}
    moved = {"x": up["x"] + reference["x"], "dc": up["dc"]}
    assert torch.allclose(message_norms(moved, reference), message_norms(up, {}), rtol=1e-4)


@pytest.mark.parametrize("clip", [1e-3, 1.0, 50.0])
def test_what_a_client_adds_to_the_sum_of_all_parts_has_at_most_the_clipping_norm(clip):
    up = messages()
    factors = clip_factors(message_norms(up, {}), clip)
    for k in range(len(factors)):
        one = {n: clipped_sum(rows[k : k + 1], None, factors[k : k + 1]) for n, rows in up.items()}
        assert math.sqrt(sum(float(t.square().sum()) for t in one.values())) <= clip


def test_the_sum_is_that_of_plain_numpy():
    up = messages()
    clip = float(message_norms(up, {}).median())
    factors = clip_factors(message_norms(up, {}), clip)
    rows = flat(up)
    expected = rows * np.minimum(1, clip / np.linalg.norm(rows, axis=1))[:, None]
    sums = [clipped_sum(up[n], None, factors) for n in sorted(up)]
    assert np.allclose(np.concatenate(sums), expected.sum(0), rtol=2e-3, atol=5e-3)


def test_both_parts_of_a_message_are_made_smaller_by_the_same_factor():
    factors = clip_factors(message_norms({"x": torch.ones(1, 9), "dc": torch.ones(1, 7)}, {}), 2.0)
    assert float(factors) == pytest.approx(0.5, rel=1e-3)


def test_a_message_without_a_finite_norm_counts_for_nothing():
    norms = torch.tensor([math.nan, math.inf, 1e-3], dtype=torch.float64)
    assert clip_factors(norms, 1.0).tolist() == [0.0, 0.0, 1.0]


def test_numbers_whose_squares_float32_does_not_hold_are_clipped_like_others():
    up = {"x": torch.full((2, 10), 3e38)}
    factors = clip_factors(message_norms(up, {}), 1.0)
    assert float(clipped_sum(up["x"], None, factors).norm()) == pytest.approx(2.0, rel=1e-3)


# -- the norm that follows a quantile ------------------------------------------------------------
@pytest.mark.parametrize("noise", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("sample", [1, 10, 1000])
def test_the_noise_of_update_and_count_together_cost_what_one_mechanism_does(noise, sample):
    clip = AdaptiveClip(0.5, 0.2, noise=noise, sample=sample)
    together = clip.update_noise**-2 + (2 * clip.count_noise) ** -2
    assert together == pytest.approx(noise**-2, rel=1e-12)
    assert noise < clip.update_noise < 1.04 * noise  # the count takes little of it


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_the_clipping_norm_comes_to_the_quantile_of_the_norms(quantile):
    rng = np.random.default_rng(0)
    norms = torch.from_numpy(rng.lognormal(1.0, 0.7, size=500))
    adaptive = AdaptiveClip(quantile, 0.2, noise=1.0, sample=500)
    clip = 0.01
    for _ in range(300):
        clip = adaptive.after(clip, norms, rng.standard_normal())
    assert float((norms <= clip).double().mean()) == pytest.approx(quantile, abs=0.05)


def test_the_clipping_norm_stays_a_number_however_long_a_run_is():
    adaptive = AdaptiveClip(0.5, 50.0, noise=1.0, sample=1)
    down = up = 1.0
    for _ in range(200):
        down = adaptive.after(down, torch.zeros(9, dtype=torch.float64), 0.0)
        up = adaptive.after(up, torch.full((9,), math.inf, dtype=torch.float64), 0.0)
    assert 0 < down < 1e-20 and 1e20 < up < math.inf


def test_nobody_heard_is_half_of_the_clients_within():
    adaptive = AdaptiveClip(0.5, 0.2, noise=1.0, sample=10)
    assert adaptive.after(3.0, torch.zeros(0, dtype=torch.float64), 0.0) == pytest.approx(3.0)
