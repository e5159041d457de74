"""The convergence theorems of lp-proj, and FedDeper's Figure 1 and Theorem 2, at a small size."""

import json

import pytest

from idiolect_papers.feddeper import figure1, theorem2
from idiolect_papers.lp_proj import smooth, theorem9, theorem14

SIZES = {
    theorem9.write: theorem9.Theorem9Size(
        rounds=(8, 16, 32), own=(8, 16), nus=(1e-1, 1e-3), betas=(1.0, 4.0), repetitions=2, few=2
    ),
    smooth.write_theorem13: smooth.Theorem13Size(rounds=(16, 64), repetitions=2),
    theorem14.write: theorem14.Theorem14Size(
        rounds=60,
        own=20,
        without=60,
        rounds_of_dims=30,
        repetitions=2,
        own_repetitions=2,
        dims=(2, 5),
        betas=(1.0, 4.0),
        points=15,
    ),
    smooth.write_theorem15: smooth.Theorem15Size(rounds=80, own=20, repetitions=2, points=15),
    figure1.write: figure1.LocalStepsSize(
        total=64, taus=(1, 4, 64), sorted=(0.0, 1.0), spreads=(0.0, 1.0), repetitions=3
    ),
    theorem2.write: theorem2.Theorem2Size(
        rounds=50,
        own=30,
        lams=(0.5, 1.0),
        spreads=(0.5, 1.0),
        commons=(0.0, 4.0),
        vanishing=(20, 40),
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """write function -> the stored figures of its page, made once."""
    folder = tmp_path_factory.mktemp("docs") / "theory"
    folder.mkdir()
    pages = {}

    def make(write):
        if write not in pages:
            paths = write(folder, SIZES[write], workers=1)
            assert [p.suffix for p in paths] == [".md", ".json", ".png", ".md"]
            pages[write] = json.loads(paths[1].read_text())
        return pages[write]

    return make


def rows_of(stored, number=0):
    return list(stored["tables"].values())[number]


def verdict(stored, start):
    return next(c["verdict"] for c in stored["claims"] if c["paper"].startswith(start))


def test_theorem_9_average_is_below_its_bound_and_falls(made):
    stored = made(theorem9.write)
    for row in rows_of(stored):
        assert 0 < row["F(w̄_T) − F(w*)"] <= row["bound"]
    assert verdict(stored, "and 1/β²") == "agrees"
    exact = [row["mean ‖P x_k − w*‖²"] for row in rows_of(stored) if row["run"] == "S = N, exact"]
    assert all(0.8 < ball / stored["figures"]["radius"] < 1.5 for ball in exact)
    floors = [row["F(w̄_T) − F(w*)"] for row in rows_of(stored, 1)]
    assert floors[0] > 10 * floors[1]  # ν = 0.1 and 0.001


def test_theorem_13_gradients_are_below_their_bound_and_fall(made):
    stored = made(smooth.write_theorem13)
    rows = rows_of(stored)
    assert all(0 < row["E ‖∇F(w_t*)‖²"] <= row["bound"] for row in rows)
    everyone = [row["E ‖∇F(w_t*)‖²"] for row in rows if row["run"] == "S = N"]
    assert everyone[1] < everyone[0] * (64 / 16) ** -0.5


def test_theorem_14_falls_with_t_and_as_the_square_of_beta(made):
    stored = made(theorem14.write)
    assert verdict(stored, "and O(1/β²)") == "agrees"
    for row in rows_of(stored, 2):
        assert row["‖w_T − w*‖²"] <= row["bound of the proof"]
    first, _, everyone, _ = rows_of(stored)
    assert everyone["‖w_T − w*‖²"] < 0.01 * first["‖w_T − w*‖²"]  # 1/T² against 1/T


def test_lemma_4_bounds_the_error_of_the_inner_problem(made):
    for row in rows_of(made(theorem14.write), 1):
        assert 0 < row["(∇F_k − g_k)² / λ²"] <= row["its bound δ_1²"]


def test_theorem_15_falls_at_least_as_fast_as_it_says(made):
    stored = made(smooth.write_theorem15)
    assert verdict(stored, "without it") == "agrees"
    for row in rows_of(stored):
        assert 0 < row["E ‖∇F(w_t*)‖²"] <= row["bound"]
        assert row["by 200 draws of t*"] == pytest.approx(row["E ‖∇F(w_t*)‖²"], rel=0.3)


def test_heterogeneity_has_no_effect_on_fedavg_at_one_local_step(made):
    stored = made(figure1.write)
    assert verdict(stored, "Remark 1") == "agrees"
    assert verdict(stored, "Figure 1") == "agrees"
    one, *_, most = rows_of(stored)
    assert one["SVM, sorted"] == pytest.approx(one["SVM, i.i.d."], abs=1e-12)
    assert most["SVM, sorted"] > 1.5 * most["SVM, i.i.d."]


def test_feddepers_personal_models_stay_around_the_minimiser(made):
    stored = made(theorem2.write)
    assert verdict(stored, "(i)") == "agrees"
    assert verdict(stored, "personal models converge around") == "agrees"
    for row in rows_of(stored):
        assert row["mean ‖v − x*‖²"] <= row["bound"]
