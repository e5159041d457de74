"""Every projection is linear, has its adjoint, unit rows and the same numbers everywhere."""

import json
from itertools import pairwise

import pytest
import torch

import idiolect as il
from idiolect import projections
from idiolect.cli.main import main
from idiolect.projections import PROJECTIONS, Spec
from idiolect.projections.report import singular_values

CPU = torch.device("cpu")
F64 = torch.float64
STARTS = (0, 300, 310, 401, 1003)
SPECS = {
    "gaussian": Spec("gaussian", 21),
    "orthogonal": Spec("orthogonal", 21),
    "block": Spec("block", 21),
    "block, uneven": Spec("block", 21, blocks=4),
    "block, one for all": Spec("block", 20, blocks=5, reuse=True),
    "layers": Spec("layers", 21),
    "layers, dense": Spec("layers", 21, blocks=1),
    "layers, given": Spec("layers", 21, dims="10,1,4,6"),
    "sparse": Spec("sparse", 21),
    "sparse, three per column": Spec("sparse", 21, per_column=3),
    "contiguous": Spec("contiguous", 21),
    "contiguous, even": Spec("contiguous", 17),
    "identity": Spec("identity", 0),
}
every_kind = pytest.mark.parametrize("name", SPECS)


def make(name, dtype=F64, seed=0, starts=STARTS):
    return projections.make_projection(SPECS[name], starts, seed, dtype, CPU)


def matrix(P, d):
    """P itself, column by column."""
    return P.down(torch.eye(d, dtype=F64)).T


def test_every_kind_of_the_table_is_tested():
    assert {s.kind for s in SPECS.values()} == set(PROJECTIONS)


@every_kind
def test_down_and_up_are_adjoint(name):
    P = make(name)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(5, 1003, generator=g, dtype=F64)
    u = torch.randn(5, P.dim, generator=g, dtype=F64)
    torch.testing.assert_close((P.down(x) * u).sum(1), (x * P.up(u)).sum(1), rtol=1e-12, atol=1e-12)


@every_kind
def test_up_is_the_transpose_of_down(name):
    P = make(name)
    torch.testing.assert_close(
        matrix(P, 1003), P.up(torch.eye(P.dim, dtype=F64)), rtol=1e-12, atol=1e-14
    )


@every_kind
def test_adding_what_comes_up_is_adding_it(name):
    P = make(name)
    g = torch.Generator().manual_seed(3)
    x = torch.randn(4, 1003, generator=g, dtype=F64)
    u = torch.randn(4, P.dim, generator=g, dtype=F64)
    torch.testing.assert_close(P.add_up(x.clone(), u), x + P.up(u), rtol=1e-12, atol=1e-12)


@every_kind
def test_rows_have_unit_length(name):
    torch.testing.assert_close(
        matrix(make(name), 1003).norm(dim=1),
        torch.ones(make(name).dim, dtype=F64),
        rtol=1e-10,
        atol=0,
    )


@pytest.mark.parametrize(
    "name",
    ["orthogonal", "block", "layers", "sparse", "contiguous", "contiguous, even", "identity"],
)
def test_rows_are_orthonormal_where_that_is_promised(name):
    M = matrix(make(name), 1003)
    torch.testing.assert_close(M @ M.T, torch.eye(len(M), dtype=F64), rtol=0, atol=1e-12)


@every_kind
def test_singular_values_stay_near_one_as_the_theory_asks(name):
    s = torch.linalg.svdvals(matrix(make(name), 1003))
    assert s.min() > 0.5 and s.max() < 1.6


@every_kind
def test_the_seed_decides_and_nothing_else_does(name):
    M = matrix(make(name), 1003)
    projections.make_projection.cache_clear()
    torch.manual_seed(99)
    assert torch.equal(matrix(make(name), 1003), M)
    if name != "identity":
        assert not torch.equal(matrix(make(name, seed=1), 1003), M)


@every_kind
def test_single_precision_is_the_same_matrix(name):
    single = make(name, torch.float32)
    assert single.down(torch.ones(2, 1003)).dtype == torch.float32
    M = single.down(torch.eye(1003)).T.double()
    torch.testing.assert_close(M, matrix(make(name), 1003), rtol=1e-5, atol=1e-6)


@every_kind
def test_the_order_of_entries_in_memory_does_not_matter(name):
    P = make(name)
    x = torch.randn(4, 1003, dtype=F64)
    torch.testing.assert_close(P.down(x.T.contiguous().T), P.down(x), rtol=1e-12, atol=1e-14)


def test_a_block_of_the_diagonal_touches_its_own_columns_only():
    M = matrix(make("block, uneven"), 1003)
    rows = [6, 5, 5, 5]
    columns = [251, 251, 251, 250]
    r = c = 0
    for h, w in zip(rows, columns, strict=True):
        block = torch.zeros_like(M, dtype=torch.bool)
        block[r : r + h, c : c + w] = True
        assert (M[block] != 0).all() and not M[r : r + h][:, ~block[r]].any()
        r += h
        c += w


def test_layers_have_the_rows_that_were_given():
    M = matrix(make("layers, given"), 1003)
    assert [(M[:, a:b] != 0).any(1).sum().item() for a, b in pairwise(STARTS)] == [10, 1, 4, 6]


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_layer_may_get_no_row_at_all(blocks):
    P = projections.make_projection(
        Spec("layers", 21, dims="10,0,5,6", blocks=blocks), STARTS, 0, F64, CPU
    )
    M = matrix(P, 1003)
    assert not M[:, 300:310].any() and (M != 0).any(1).all()
    torch.testing.assert_close(M, P.up(torch.eye(21, dtype=F64)), rtol=1e-12, atol=1e-14)


def test_one_block_per_layer_is_dense_and_many_are_disjoint():
    dense = matrix(make("layers, dense"), 1003)
    sliced = matrix(make("layers"), 1003)
    rows_per_column = (dense[:, :300] != 0).sum(0)
    assert rows_per_column.unique().tolist() == [6]  # all rows of the layer
    assert ((sliced != 0).sum(0) == 1).all()


@pytest.mark.parametrize("per_column", [1, 2])
def test_sparse_places_repeat_in_a_large_model_and_signs_do_not(per_column):
    d = 10_007
    dim = 50
    P = projections.make_projection(Spec("sparse", dim, per_column=per_column), (0, d), 0, F64, CPU)
    assert P.tile == 4100 and d > 2 * P.tile
    M = P.up(torch.eye(dim, dtype=F64))
    first = M[:, :4100]
    second = M[:, 4100:8200]
    assert not torch.equal(first.sign(), second.sign())
    if per_column == 1:  # else two entries of a column may meet in one row and cancel
        assert torch.equal(first != 0, second != 0)
    torch.testing.assert_close(M.norm(dim=1), torch.ones(dim, dtype=F64), rtol=1e-10, atol=0)
    x = torch.randn(3, d, dtype=F64)
    torch.testing.assert_close(P.down(x), x @ M.T, rtol=1e-10, atol=1e-10)
    if per_column == 1:
        torch.testing.assert_close(M @ M.T, torch.eye(dim, dtype=F64), rtol=0, atol=1e-12)


def test_memory_is_what_the_kinds_promise():
    dense = make("gaussian").memory()
    assert dense == 21 * 1003 * 8
    assert make("block").memory() == 1003 * 8  # one row per block: d numbers
    two_widths = make("block, one for all").memory()  # dim d / k² numbers for each width
    assert two_widths == 4 * (201 + 200) * 8
    assert make("contiguous").memory() == 1003 * 8 and make("sparse").memory() == 1003 * 12


def test_a_dense_matrix_beyond_the_limit_is_refused_with_advice():
    with pytest.raises(il.SettingError, match=r"600 x 21300000 takes .* use 'sparse'"):
        projections.make_projection(Spec("gaussian", 600), (0, 21_300_000), 0, torch.float32, CPU)


def test_a_large_model_needs_only_a_few_vectors():
    P = projections.make_projection(Spec("contiguous", 600), (0, 2_000_000), 0, torch.float32, CPU)
    assert P.down(torch.ones(1, 2_000_000)).shape == (1, 600) and P.memory() == 8_000_000


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"projection": "gaussian", "blocks": 3},
            "blocks must be left out with .*, got 3: it belongs to 'block' and 'layers'",
        ),
        ({"projection": "block", "blocks": 9}, "blocks must be at most dim, 6, got 9"),
        (
            {"projection": "sparse", "per_column": 7},
            "per_column must be at most dim, 6, got 7",
        ),
        (
            {"projection": "layers", "dims": "3,4"},
            "dims must be 2 numbers that sum to dim 6, .*, got '3,4'",
        ),
        ({"projection": "layers", "dims": "a,b"}, "dims must be 2 numbers .*, got 'a,b'"),
        (
            {"projection": "sparse", "reuse": True},
            "reuse must be left out with projection 'sparse', got True",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(fields, says):
    with pytest.raises(il.SettingError, match=says):
        il.run(
            il.LpProj(dim=6, **fields),
            il.Task(torch.nn.Linear(64, 10)),
            il.data.load("synthetic", clients=2, features=64),
            rounds=1,
        )


@pytest.mark.parametrize("kind", [k for k in PROJECTIONS if k != "identity"])
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_lp_proj_learns_with_every_kind(kind, p):
    federation = il.data.load("digits", clients=6)
    task = il.Task(lambda: il.models.make("linear", (1, 8, 8), 10))
    method = il.LpProj(p=p, dim=12, lam=0.5, projection=kind)
    result = il.run(method, task, federation, rounds=8, sample=1)
    assert result.summary()["accuracy"]["mean"] > 0.9
    assert result.summary()["values"]["up"] == 8 * 12


def test_the_command_tells_what_each_kind_costs(capsys):
    assert (
        main(
            [
                "list",
                "projections",
                "--measure",
                "--dim",
                "20",
                "--clients",
                "10",
                "--sample",
                "2",
                "--json",
            ]
        )
        == 0
    )
    rows = {r["projection"]: r for r in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(PROJECTIONS) - {"identity"}
    assert all(
        r["bytes_per_round"] == (24 + 80) * 12 and 0 < r["s_min"] <= r["s_max"] and not r["warning"]
        for r in rows.values()
    )
    assert rows["gaussian"]["memory"] == 20 * 610 * 4 and rows["contiguous"]["memory"] == 610 * 4


def test_a_dimension_too_large_for_the_theory_is_warned_of(capsys):
    assert main(["list", "projections", "--measure", "--dim", "600", "--clients", "2"]) == 0
    assert "warning: singular values are far from 1" in " ".join(capsys.readouterr().out.split())


def test_singular_values_are_those_of_the_matrix():
    for name in SPECS:
        P = make(name)
        s = torch.linalg.svdvals(matrix(P, 1003))
        assert singular_values(P, F64, CPU) == pytest.approx((float(s[-1]), float(s[0])), abs=1e-9)


def test_a_result_says_what_its_projection_is_like(capsys, tmp_path):
    result = il.run(
        il.LpProj(dim=6),
        il.Task(torch.nn.Linear(60, 10)),
        il.data.load("synthetic", clients=4, samples=60),
        rounds=1,
        sample=2,
    )
    said = result.summary()["projection"]
    assert (said["dim"], said["d"], said["bytes_per_round"]) == (
        6,
        610,
        (24 + 4 * 6) * (4 + 2),
    ) and said["s_min"] < 1 < said["s_max"]
    assert "P: gaussian, 6 x 610; singular values" in str(result)
    assert (
        main(
            [
                "run",
                "lp-proj-1",
                "--rounds",
                "1",
                "--clients",
                "4",
                "--quiet",
                "--directory",
                str(tmp_path / "run"),
            ]
        )
        == 0
    )
    assert "ms for P x and back" in " ".join(capsys.readouterr().err.split())


def test_a_run_warns_of_a_projection_outside_the_theory(capsys):
    il.run(
        il.LpProj(dim=600),
        il.Task(torch.nn.Linear(60, 10)),
        il.data.load("synthetic", clients=3, samples=60),
        rounds=0,
        sample=1,
    )
    assert "warning: singular values are far from 1" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "name",
    [
        "block",
        "block, uneven",
        "block, one for all",
        "layers",
        "layers, dense",
        "sparse",
        "sparse, three per column",
    ],
)
def test_singular_values_need_no_pass_where_the_form_says_them(name):
    P = make(name)
    s = torch.linalg.svdvals(matrix(P, 1003))
    assert singular_values(P, F64, CPU) == pytest.approx((float(s[-1]), float(s[0])), abs=1e-9)
