"""FetchSGD and Sketched-SGD against the papers' recursions.

And that nothing is lost in what they keep, and where they converge.
"""

import numpy as np
import pytest
import torch

from channels.common import form, keys
from idiolect.channels import Form, parse_channel
from idiolect.channels.sketch import Sketch
from idiolect.channels.stage import Stage
from idiolect.core.knobs import SettingError
from idiolect.wire.ragged import Ragged, Reader

F64 = torch.float64


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def matrix(stage: Sketch, at: Form) -> np.ndarray:  # [rows * columns, n]
    """The sketch as a matrix, from its action on unit vectors."""
    return stage.operator(torch.zeros(1), at).sketch(torch.eye(at.n, dtype=F64)).T.numpy()


def unsketch(S: np.ndarray, rows: int, table: np.ndarray) -> np.ndarray:
    return np.median((S * table[:, None]).reshape(rows, -1, S.shape[1]).sum(1), axis=0)


def top(x: np.ndarray, k: int) -> np.ndarray:
    out = np.zeros_like(x)
    at = np.argsort(-np.abs(x), kind="stable")[:k]
    out[at] = x[at]
    return out


def zeros(sizes: dict[str, int], *lead: int) -> dict[str, torch.Tensor]:
    return {n: torch.zeros(*lead, size, dtype=F64) for n, size in sizes.items()}


def a_round(stage: Sketch, x: torch.Tensor, client, server, at: Form):
    """A round as the engine runs it, with the plain mean.

    -> (change, clients' rows, server's vectors)
    """
    coded = stage.encode(x, client, keys(len(x)), at)
    table, client = coded.rest.mean(0), coded.state
    if not stage.second_exchange:
        change, server = stage.finish(table, server, at)
        return change, client, server
    query = stage.query(table, server, at)
    change, chosen, server = stage.conclude(
        query, stage.answer(client, query, at).mean(0), server, at
    )
    return change, stage.forget(client, chosen, at), server


@pytest.mark.parametrize("lr", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("clear", [True, False])
def test_fetchsgd_is_the_papers_recursion(clear, lr):
    stage, at = Sketch(columns=12, k=4, momentum=0.7, lr=lr, clear=clear), form(90, dtype=F64)
    S, eta = matrix(stage, at), lr or 0.3
    client, server = zeros(stage.client(at), 3), zeros(stage.server(at))
    u = v = np.zeros(60)
    for t in range(8):
        x = normal(3, 90, seed=t)
        u = 0.7 * u + S @ x.mean(0).numpy()
        v = v + eta * u
        expected = top(unsketch(S, 5, v), 4)
        taken = S @ expected
        if clear:
            u = np.where(taken != 0, 0, u)
            v = np.where(taken != 0, 0, v)
        else:
            v = v - taken
        change, client, server = a_round(stage, x, client, server, at)
        assert np.allclose(change, expected, atol=1e-10)
        assert np.allclose(server["u"], u, atol=1e-10) and np.allclose(server["v"], v, atol=1e-10)
    assert client == {}


@pytest.mark.parametrize("lr", [0.0, 1.0])
def test_sketched_sgd_is_the_papers_recursion(lr):
    stage, at = Sketch(columns=12, k=4, exact=True, momentum=0.7, lr=lr), form(90, dtype=F64)
    S, eta = matrix(stage, at), lr or 0.3
    client, server = zeros(stage.client(at), 3), zeros(stage.server(at))
    u = v = np.zeros((3, 90))
    for t in range(8):
        x = normal(3, 90, seed=t)
        u = 0.7 * u + x.numpy()
        v = v + eta * u
        asked = top(unsketch(S, 5, (v @ S.T).mean(0)), 16) != 0
        expected = top(np.where(asked, v.mean(0), 0), 4)
        u, v = np.where(expected != 0, 0, u), np.where(expected != 0, 0, v)
        change, client, server = a_round(stage, x, client, server, at)
        assert np.allclose(change, expected, atol=1e-10)
        assert np.allclose(client["u"], u, atol=1e-10) and np.allclose(client["v"], v, atol=1e-10)
    assert server == {}


def test_what_fetchsgd_subtracts_it_accounts_for():
    """S(all changes so far) + v = lr (all u so far): nothing is lost in the tables."""
    stage, at = Sketch(columns=12, k=4, clear=False), form(90, dtype=F64)
    s, server = stage.operator(torch.zeros(1), at), zeros(stage.server(at))
    changes, momenta = torch.zeros(90, dtype=F64), torch.zeros(60, dtype=F64)
    for t in range(6):
        change, _, server = a_round(stage, normal(2, 90, seed=t), {}, server, at)
        changes = changes + change
        momenta = momenta + server["u"]  # without clearing, u is as it was used
        assert torch.allclose(
            s.sketch(changes[None])[0] + server["v"], stage.rate * momenta, atol=1e-10
        )


def test_sketched_sgd_sends_the_exact_mean_and_loses_nothing():
    stage, at = Sketch(columns=12, k=4, exact=True, momentum=0.0), form(90, dtype=F64)
    client = zeros(stage.client(at), 3)
    sent = torch.zeros(90, dtype=F64)
    total = torch.zeros(90, dtype=F64)
    for t in range(6):
        x = normal(3, 90, seed=t)
        before = (client["v"] + x).mean(0)
        change, client, _ = a_round(stage, x, client, {}, at)
        assert int((change != 0).sum()) == 4 and torch.equal(
            change[change != 0], before[change != 0]
        )
        sent, total = sent + change, total + x.mean(0)
        assert torch.allclose(sent + client["v"].mean(0), total, atol=1e-12)


def test_clients_not_heard_keep_what_they_have():
    stage, at = Sketch(columns=12, k=4, exact=True), form(90, dtype=F64)
    client = zeros(stage.client(at), 3)
    _, client, _ = a_round(stage, normal(3, 90), client, {}, at)
    some = {n: t[[0, 2]] for n, t in client.items()}
    change, some, _ = a_round(stage, normal(2, 90, seed=1), some, {}, at)
    assert (some["v"][:, change != 0] == 0).all() and (some["u"][:, change != 0] == 0).all()
    assert (client["v"][1] != 0).any()


def test_momentum_does_not_enlarge_a_constant_message():
    at, x = form(90, dtype=F64), normal(1, 90)
    for stage, share in (
        (Sketch(columns=900, k=90, clear=False), 1.0),  # lr (1 + 0.9 + 0.81 + ...)
        (Sketch(columns=900, k=90, exact=True), 0.1),  # lr: momentum is cleared every round
    ):
        client, server = zeros(stage.client(at), 1), zeros(stage.server(at))
        for _ in range(200):
            change, client, server = a_round(stage, x, client, server, at)
        assert torch.allclose(change, share * x[0], atol=1e-7)


def descend(
    stage: Sketch, target: torch.Tensor, lr: float, rounds: int, curvature: torch.Tensor
) -> tuple[float, torch.Tensor]:
    """Gradient descent of four clients, each with an optimum of its own.

    -> (the part of the loss that is left, the gradient)
    """
    n = len(target)
    at, w = Form(n, (0, n), dtype=F64), torch.zeros(n, dtype=F64)
    shift = normal(4, n, seed=9)
    shift -= shift.mean(0)
    client, server = zeros(stage.client(at), 4), zeros(stage.server(at))
    for _ in range(rounds):
        change, client, server = a_round(
            stage, -lr * curvature * (w - target - shift), client, server, at
        )
        w = w + change
    off = w - target
    loss = (curvature * off.square()).sum() / (curvature * target.square()).sum()
    return float(loss), curvature * off


CURVATURE = torch.logspace(0, -1, 610, dtype=F64)[
    torch.randperm(610, generator=torch.Generator().manual_seed(4))
]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sketched_sgd_reaches_the_optimum_with_its_defaults(momentum):
    loss, _ = descend(Sketch(exact=True, momentum=momentum), normal(610), 0.1, 1200, CURVATURE)
    assert loss < (1e-9 if momentum == 0 else 1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fetchsgd_reaches_an_optimum_with_few_large_coordinates(momentum):
    target = torch.zeros(610, dtype=F64)
    target[[5, 300, 480]] = torch.tensor([2.0, -1.0, 1.5], dtype=F64)
    loss, _ = descend(Sketch(columns=50, k=3, momentum=momentum), target, 0.1, 1200, CURVATURE)
    assert loss < (1e-9 if momentum == 0 else 1e-4)


def test_fetchsgd_improves_and_stays_bounded_with_its_defaults():
    target = normal(610) * torch.arange(1, 611).pow(-1.0)
    for rounds in (100, 1000):
        loss, _ = descend(Sketch(), target, 0.3, rounds, CURVATURE)
        assert loss < 0.5


def test_fetchsgd_stops_where_its_table_sees_nothing():
    """The limit: the gradient is not zero, its sketch is."""
    stage = Sketch(clear=True, momentum=0.0)
    loss, gradient = descend(stage, normal(610), 0.03, 1500, CURVATURE)
    seen = stage.operator(torch.zeros(1), Form(610)).sketch(gradient[None])[0]
    fresh = Sketch(seed=1).operator(torch.zeros(1), Form(610)).sketch(gradient[None])[0]
    assert loss > 0.05 and seen.norm() < 0.35 * fresh.norm()


@pytest.mark.parametrize(
    "text",
    [
        "sketch",
        "sketch + half",
        "sketch(exact=True)",
        "clip(norm=1.0) + sketch(columns=10, rows=3) + qsgd",
    ],
)
def test_bytes_are_those_of_the_table(text):
    chain, at = parse_channel(text), form(1000)
    chain.check(at)
    client = {n: torch.zeros(3, size) for n, size in chain.kept("client", at).items()}
    body, _, _ = chain.encode(normal(3, 1000).float(), client, keys(3), at)
    stage = chain.stages[chain.aggregate_at]
    reader = Reader(body)
    rows, _ = chain.decode(reader, {}, at)
    assert reader.finished().all() and (body.lengths <= chain.limit(at)).all()
    assert rows.shape == (3, stage.numbers(at))
    if text in ("sketch", "sketch(exact=True)"):
        assert body.lengths.tolist() == [4 * stage.numbers(at)] * 3
    if text == "sketch":
        assert torch.equal(rows, stage.operator(rows, at).sketch(normal(3, 1000).float()))
    for spoilt in (b"", body.row(0)[:-1], body.row(0) + b"\0", b"\xff" * int(body.lengths[0])):
        reader = Reader(Ragged.of([spoilt, body.row(1)]))
        out, _ = chain.decode(reader, {}, at)
        assert torch.equal(out[1], rows[1]) and reader.finished()[1]
        assert len(spoilt) == body.lengths[0] or not reader.finished()[0]


def test_tables_that_are_not_finite_do_not_raise():
    at = form(90, dtype=F64)
    for stage in (Sketch(columns=12, k=4), Sketch(columns=12, k=4, exact=True)):
        for odd in (float("nan"), float("inf")):
            client, server = zeros(stage.client(at), 2), zeros(stage.server(at))
            change, _, _ = a_round(stage, torch.full((2, 90), odd, dtype=F64), client, server, at)
            assert change.shape == (90,) and not change.isfinite().all()


@pytest.mark.parametrize("n, columns, exactly, k", [(610, 25, 13, 16), (79_510, 3181, 1591, 1988)])
def test_defaults_send_a_fifth_up_and_count_as_the_paper_does(n, columns, exactly, k):
    at, x = form(n), torch.zeros(2, n)
    fetch, exact = Sketch(), Sketch(exact=True)
    assert fetch.size(at) == (columns, k) and exact.size(at) == (exactly, k)
    chain = parse_channel("sketch")
    assert chain.encode(x, {}, keys(2), at)[2].tolist() == [5 * columns] * 2
    assert chain.down_values(at) == 2 * k
    state = {m: torch.zeros(2, n) for m in "uv"}
    assert exact.encode(x, state, keys(2), at).values.tolist() == [5 * exactly + 4 * k] * 2
    assert exact.down_values(at) == 6 * k
    assert all(0.195 * n < words < 0.22 * n for words in (5 * columns, 5 * exactly + 4 * k))
    assert fetch.check(at) == exact.check(at) == ""


def test_a_table_larger_than_the_message_is_a_warning():
    assert parse_channel("sketch(columns=200)").check(form(1000)) == [
        "a sketch of 5 x 200 = 1,000 numbers is not smaller than the message of 1,000: "
        "it does not compress"
    ]
    assert parse_channel("sketch(columns=199)").check(form(1000)) == []


@pytest.mark.parametrize(
    "text",
    ["columns=-1", "rows=0", "k=-1", "momentum=1.0", "momentum=-0.1", "lr=-1", "columns=1.5"],
)
def test_options_out_of_range_are_refused(text):
    with pytest.raises(SettingError):
        parse_channel(f"sketch({text})")


def test_what_does_not_fit_is_refused():
    with pytest.raises(SettingError, match="at most 1000"):
        parse_channel("sketch(k=1001)").check(form(1000))
    with pytest.raises(SettingError, match="only 'clip'"):
        parse_channel("topk + sketch").check(form(1000))
    assert parse_channel("sketch(k=1000, exact=True)").check(form(1000)) == []
    whole = Sketch(k=1000, exact=True)
    assert len(whole.query(torch.zeros(whole.numbers(form(1000))), {}, form(1000))) == 1000
    assert not Stage().second_exchange and not Sketch().second_exchange
    assert Sketch(exact=True).second_exchange
