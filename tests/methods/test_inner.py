"""Inner problems of lp-proj and pFedMe: how far the shared point moves, and what is solved."""

from dataclasses import replace

import pytest

import idiolect as il
from idiolect.core.knobs import SettingError
from idiolect.solvers import INNER
from methods.common import (
    Case,
    N,
    a_pfedme,
    an_lpproj,
    assert_equals,
    every_model,
    lpproj_reference,
    pfedme_reference,
)
from reference.setting import ROUNDS, assert_same, outcome, run

ACCURACIES = [(0.0, 0.3), (0.02, 0.3), (0.02, 0.0)]  # ν and its relative form


@pytest.mark.parametrize("R", [1, 4])
def test_pfedme_without_a_step_size_moves_by_its_share_of_the_gap_per_round(federation, R):
    # η λ R = share
    expected = pfedme_reference(Case(federation), lam=0.8, lr=0.6 / (0.8 * R), R=R)
    result = run(a_pfedme(lr=0.0, share=0.6, alternations=R), federation)
    assert_equals(result, expected, federation)


@pytest.mark.parametrize("R", [1, 4])
def test_lpproj_2_without_a_step_size_moves_by_its_share_of_the_gap_per_round(federation, R):
    rates = [0.6 / (0.5 * R)] * ROUNDS
    expected = lpproj_reference(federation, p=2, R=R, rates=rates)
    result = run(an_lpproj(p=2, lr=0.0, share=0.6, alternations=R), federation)
    assert_equals(result, expected, federation)


@pytest.mark.parametrize("p", [1, 1.5])
def test_lpproj_with_another_p_has_the_step_size_of_the_personal_model(federation, p):
    expected = lpproj_reference(federation, p=p, rates=[0.2] * ROUNDS)
    assert_equals(run(an_lpproj(p=p, lr=0.0), federation), expected, federation)


@pytest.mark.parametrize("method", [a_pfedme(lam=0.0), an_lpproj(lam=0.0, p=2)])
def test_a_tie_of_strength_0_leaves_the_shared_point_where_it_was(federation, method):
    derived = outcome(run(replace(method, lr=0.0), federation))
    assert_same(derived, outcome(run(method, federation)), 0.0)


@every_model
@pytest.mark.parametrize(("nu", "relative"), ACCURACIES)
def test_lpproj_solves_to_the_larger_of_both_accuracies_and_says_how_often(
    federation, model, nu, relative
):
    solved = []
    fields = {"nu": nu, "steps": 8, "lam": 0.1}
    expected = lpproj_reference(
        federation, model=model, p=2, R=3, relative=relative, solved=solved, **fields
    )
    result = run(an_lpproj(p=2, alternations=3, nu_relative=relative, **fields), federation, model)
    assert_equals(result, expected, federation, model)
    counted = result.summary()["counted"]
    assert counted == dict(zip(INNER, (len(solved), sum(solved)), strict=True))
    assert 0 < sum(solved) < len(solved) == ROUNDS * N * 3


@pytest.mark.parametrize(("nu", "relative"), ACCURACIES)
def test_pfedme_solves_to_the_larger_of_both_accuracies_and_says_how_often(
    federation, nu, relative
):
    solved = []
    fields = {"nu": nu, "steps": 5}
    expected = pfedme_reference(Case(federation), R=2, relative=relative, solved=solved, **fields)
    result = run(a_pfedme(alternations=2, nu_relative=relative, **fields), federation)
    assert_equals(result, expected, federation)
    assert result.summary()["counted"]["inner_solved"] == sum(solved) > 0


def test_fresh_mini_batches_solve_nothing(federation):
    counted = run(a_pfedme(fresh=True, nu=10.0), federation).summary()["counted"]
    assert counted == {"inner_problems": ROUNDS * N, "inner_solved": 0}


def test_counts_do_not_depend_on_chunks_or_hosts(federation):
    method = a_pfedme(nu_relative=0.3, steps=5)
    whole = run(method, federation)
    for settings in ({"chunk": 2}, {"hosts": 3}):
        other = run(method, federation, **settings)
        assert other.summary()["counted"] == whole.summary()["counted"]
        rows = [[r[n] for n in INNER] for r in other.clients_table()]
        assert rows == [[r[n] for n in INNER] for r in whole.clients_table()]


def test_a_resumed_run_has_counted_as_much(federation, tmp_path):
    method = a_pfedme(nu_relative=0.3, steps=5)
    whole = run(method, federation)
    run(method, federation, rounds=ROUNDS - 2, directory=tmp_path / "run")
    resumed = run(method, federation, directory=tmp_path / "run", resume=True)
    assert resumed.summary()["counted"] == whole.summary()["counted"]
    assert il.load(tmp_path / "run").summary()["counted"] == whole.summary()["counted"]


def test_a_method_that_counts_nothing_has_no_such_figures(federation):
    assert "counted" not in run(il.FedAvg(lr=0.1, steps=1), federation).summary()


def test_the_table_says_which_share_was_solved_where_any_was(federation):
    assert "inner problems" not in str(run(a_pfedme(nu=0.0), federation))
    text = str(run(a_pfedme(nu=1e6), federation))
    assert f"100 % of its {ROUNDS * N} inner problems were solved to ν" in text


def test_a_schedule_for_a_step_size_that_is_derived_is_refused(federation):
    with pytest.raises(SettingError, match="schedule must be about fields other than 0, got 'lr'"):
        run(a_pfedme(lr=0.0), federation, schedule="lr=inverse:0.1")
    run(a_pfedme(lr=0.0), federation, schedule="share=inverse:0.1")
