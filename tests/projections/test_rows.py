"""A client's row does not depend on the rest of the cohort.

With a dense P, the default, and a sparse one it has the same bits in a cohort of any size (on one
thread); the other kinds agree to rounding, since one product over all rows is what makes them
cheap.
"""

import pytest
import torch

from idiolect.core.tensors import TILE
from idiolect.projections import PROJECTIONS, Spec, make_projection

STARTS = {
    39: (0, 36, 39),
    610: (0, 600, 610),
    7960: (0, 7850, 7950, 7960),
}
SPECS = {
    "gaussian": {"kind": "gaussian"},
    "gaussian, one row": {"kind": "gaussian", "dim": 1},
    "gaussian, two rows": {"kind": "gaussian", "dim": 2},
    "orthogonal": {"kind": "orthogonal"},
    "block": {"kind": "block"},
    "block, alike": {"kind": "block", "dim": 12, "blocks": 3},
    "block, uneven": {"kind": "block", "dim": 11, "blocks": 4},
    "block, one for all": {"kind": "block", "dim": 12, "blocks": 3, "reuse": True},
    "layers": {"kind": "layers"},
    "layers, dense": {"kind": "layers", "blocks": 1},
    "layers, two blocks each": {"kind": "layers", "blocks": 2},
    "sparse": {"kind": "sparse"},
    "sparse, three per column": {"kind": "sparse", "per_column": 3},
    "contiguous": {"kind": "contiguous"},
    "identity": {"kind": "identity", "dim": 0},
}
DIM = {39: 7, 610: 21, 7960: 50}
COHORTS = (1, 2, 3, 5, 8, 33)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def cohorts(count=40):
    """Rows [a, b) of `count`, at several places: rows begin at any address."""
    return [(a, a + n) for n in COHORTS for a in (0, 1, 3, count - n)]


def test_every_kind_of_the_table_is_tested():
    assert {fields["kind"] for fields in SPECS.values()} == set(PROJECTIONS)


@every_dtype
@pytest.mark.parametrize("d", STARTS)
@pytest.mark.parametrize("name", SPECS)
def test_a_row_does_not_depend_on_the_rest_of_the_cohort(name, d, dtype):
    spec = Spec(**({"dim": DIM[d]} | SPECS[name]))
    exact = spec.kind in ("gaussian", "orthogonal", "sparse", "identity")
    tolerance = 0.0 if exact else 1e-4 if dtype is torch.float32 else 1e-12
    P = make_projection(spec, STARTS[d], 0, dtype, torch.device("cpu"))
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(40, d, generator=generator, dtype=dtype)
    u = torch.randn(40, P.dim, generator=generator, dtype=dtype)
    down = P.down(x)
    up = P.up(u)
    added = P.add_up(x.clone(), u)
    for a, b in cohorts():
        for got, want in (
            (P.down(x[a:b]), down[a:b]),
            (P.down(x[a:b].clone()), down[a:b]),
            (P.up(u[a:b]), up[a:b]),
            (P.add_up(x[a:b].clone(), u[a:b]), added[a:b]),
        ):
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("count", [1, 3, 6])
def test_adding_up_is_in_place(name, count):
    spec = Spec(**({"dim": 21} | SPECS[name]))
    P = make_projection(spec, STARTS[610], 0, torch.float64, torch.device("cpu"))
    g = torch.zeros(count, 610, dtype=torch.float64)
    u = torch.ones(count, P.dim, dtype=torch.float64)
    assert P.add_up(g, u) is g
    torch.testing.assert_close(g, P.up(u), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SPECS)
def test_a_cohort_of_nobody_is_projected(name):
    spec = Spec(**({"dim": 21} | SPECS[name]))
    P = make_projection(spec, STARTS[610], 0, torch.float32, torch.device("cpu"))
    assert P.down(torch.empty(0, 610)).shape == (0, P.dim)
    assert P.up(torch.empty(0, P.dim)).shape == (0, 610)


@every_dtype
@pytest.mark.parametrize("kind", ["gaussian", "orthogonal"])
@pytest.mark.parametrize("d", STARTS)
def test_whole_tiles_of_rows_are_the_plain_products_with_a_dense_matrix(kind, d, dtype):
    """Nothing is copied or added in another order than BLAS does for the whole cohort."""
    P = make_projection(Spec(kind, DIM[d]), STARTS[d], 0, dtype, torch.device("cpu"))
    for count in (TILE, 2 * TILE, 5 * TILE):
        x = torch.randn(count, d, dtype=dtype)
        u = torch.randn(count, P.dim, dtype=dtype)
        assert torch.equal(P.down(x), (P.rows @ x.T).T)
        assert torch.equal(P.up(u), u @ P.rows)
        assert torch.equal(P.add_up(x.clone(), u), x.addmm(u, P.rows))
