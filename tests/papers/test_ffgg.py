"""Figures of the FFGG paper at small sizes: the same code, and what must hold at any size."""

import json

import numpy as np
import pytest
import torch

from idiolect.methods import L2gd
from idiolect_papers.closed_forms.quadratic import Quadratic
from idiolect_papers.ffgg import figure1, figure2, figure4
from idiolect_papers.ffgg.runs import FFGG, JOINT, SCAFFOLD, norms_of_honest

SMALL = Quadratic(clients=6, samples=60, shared=6, private=4)


def stored(paths):
    return json.loads(next(p for p in paths if p.suffix == ".json").read_text())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "theory").mkdir()
    return tmp_path / "theory"


def verdicts(page):
    return [claim["verdict"] for claim in page["claims"]]


def test_figure_1a_floors_fall_with_the_steps_of_conjugate_gradients(folder):
    size = figure1.Figure1aSize(
        drawn=SMALL, taus=(1, 2, 10), rounds=150, other_taus=(1, 10), other_rounds=40,
        few=30, few_taus=(1, 10), few_rounds=40,
    )  # fmt: skip
    page = stored(figure1.write_a(folder, size, workers=1))
    assert verdicts(page)[1:] == ["agrees", "agrees"]
    rows = page["tables"]["‖F(θ)‖ after so many rounds: common θ*"]
    first, second, third, exact = (row["101"] for row in rows)
    assert first > 2 * second and third == pytest.approx(exact, rel=0.01)


def test_figure_1b_has_every_method_and_l2gd_by_iterations(folder):
    size = figure1.Figure1bSize(drawn=SMALL, taus=(10, 20), other_taus=(10,), rounds=30)
    page = stored(figure1.write_b(folder, size, workers=1))
    rows = page["tables"]["‖F(θ)‖ after so many communication rounds"]
    assert len(rows) == 6 + 5 + 6 and verdicts(page)[0] == "agrees"
    at_start = {row["0"] for row in rows if row["method"] != JOINT}
    assert len(at_start) == 2  # one for each problem
    table = next(t for name, t in page["tables"].items() if name.startswith("L2GD"))
    assert all(row["iterations"] >= row["communications"] for row in table)


def test_l2gds_iterations_are_its_gradient_and_mean_steps():
    problem = SMALL.draw()
    tau = 7
    from helpers import run

    result = run(L2gd(p=1 / tau), problem.federation(), problem.task(), batching="full", sample=6,
                 rounds=5)  # fmt: skip
    counts = figure1.iterations(5, tau)
    gradients = int(result.summary()["gradients_per_client"])
    mean_steps = counts[-1] - gradients
    assert 4 <= mean_steps <= 12  # at least one in each round but the first


def test_figure_2_has_floors_by_closed_form(folder):
    size = figure2.Figure2Size(drawn=SMALL, zetas=(2.0, 4.0), tau=8, rounds=45)
    page = stored(figure2.write(folder, size, workers=1))
    rows = page["tables"]["‖F(θ)‖ after so many rounds; matrices of spectral norm 1"]
    end = {(row["ζ"], row["method"]): row["45"] for row in rows}
    for zeta in ("2", "4"):
        assert end[zeta, figure2.EXACT] < end[zeta, figure2.STATEFUL] < end[zeta, FFGG]
        floor = end[zeta, JOINT]
        assert end[zeta, SCAFFOLD] == pytest.approx(floor, rel=0.2)


def test_figure_4_converges_linearly_where_theta_is_optimal_for_everyone(folder):
    drawn = Quadratic(clients=9, samples=60, shared=6, private=4, truth="common", noise=0, zeta=3.0)
    size = figure4.Figure4Size(drawn=drawn, malicious=2, rounds=40)
    page = stored(figure4.write(folder, size, workers=1))
    assert verdicts(page) == ["agrees"] * 3


def test_the_norm_of_a_run_with_malicious_clients_is_that_of_the_honest_ones():
    problem = SMALL.draw()
    theta = torch.ones(2, 6, dtype=torch.float64)
    norms = norms_of_honest(problem, theta, torch.tensor([1, 4]))
    honest = problem.operators(theta[0])[[0, 2, 3, 5]].mean(0).norm()
    np.testing.assert_allclose(norms, [float(honest)] * 2)
