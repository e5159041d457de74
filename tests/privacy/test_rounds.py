"""Rounds under privacy, at the server and at the clients, against plain arithmetic."""

import math

import numpy as np
import pytest
import torch

from engine.setting import CLIENTS, FEDERATION, Network, of_server, session, with_header
from idiolect.core.types import State
from idiolect.engine.carriers.local import LocalHosts
from idiolect.privacy.clipping import BELOW
from idiolect.privacy.noise import Noise
from idiolect.wire.messages import HEADER, unpack

NAN = np.float32("nan").tobytes()
HEAD = HEADER.itemsize


def private(method="fedavg", privacy="central(noise=1, quantile=0)", **settings):
    return session(method, **{"privacy": privacy, "noise_source": "seed", "sample": 5} | settings)


def watched(at, tamper=lambda version, messages: messages) -> list[Network]:
    """The hosts of a session behind a network that remembers what arrived."""
    networks = [Network(host, tamper) for host in at.local_hosts]
    at.engine.group = LocalHosts(networks)
    return networks


def opened(at, messages: list[bytes]) -> State:
    """Rows of the messages of a round, as their parts."""
    bodies = np.array([np.frombuffer(m[HEAD:], dtype=np.uint8) for m in messages])
    return unpack(at.contract.up, bodies)


def clipped(rows: State, clip: float) -> dict[str, np.ndarray]:
    """Messages of at most this norm, in plain numpy."""
    names = sorted(rows)
    flat = np.concatenate([rows[n].double().numpy() for n in names], axis=1)
    factors = np.minimum(1, clip * BELOW / np.linalg.norm(flat, axis=1))
    return {n: rows[n].double().numpy() * factors[:, None] for n in names}


# -- noise at the server ---------------------------------------------------------------------------
@pytest.mark.parametrize("clip", [0.01, 0.3, 100.0])
def test_a_round_of_fedavg_is_the_clipped_mean_change_with_noise(clip):
    at = private(privacy=f"central(noise=0.7, quantile=0, clip={clip})")
    (network,) = watched(at)
    w0 = at.server.state["w"].clone()
    at.advance()
    up = opened(at, network.arrived)
    changes = clipped({"w": up["w"] - w0}, clip)["w"]
    noise = Noise("seed", 0).normal(1, len(w0), "mean w", 0)[0].numpy()
    expected = w0.double().numpy() + (changes.sum(0) + 0.7 * clip * noise) / 5
    assert np.allclose(at.server.state["w"].double(), expected, rtol=1e-5, atol=1e-6 * (1 + clip))


def test_both_parts_of_scaffold_are_clipped_by_their_joint_norm_and_get_the_same_noise():
    at = private("scaffold", "central(noise=0.5, quantile=0, clip=0.05)")
    (network,) = watched(at)
    before = {n: t.clone() for n, t in at.server.state.items()}
    at.advance()
    up = opened(at, network.arrived)
    changes = clipped(up, 0.05)  # both parts are changes
    norms = np.sqrt(sum((rows**2).sum(1) for rows in changes.values()))
    assert np.all(norms <= 0.05)
    for part, rows in changes.items():
        noise = Noise("seed", 0).normal(1, rows.shape[1], f"mean {part}", 0)[0].numpy()
        mean = (rows.sum(0) + 0.5 * 0.05 * noise) / 5
        share = 5 / CLIENTS if part == "c" else 1.0  # c <- c + |S| / N mean
        assert np.allclose(at.server.state[part] - before[part], share * mean, atol=1e-6)


def noise_of(method: str, heard: int, rounds: int = 40) -> dict[str, float]:
    """The standard deviation of what a round adds beside the messages, by part of the state."""
    seen: dict[str, list[torch.Tensor]] = {}
    at = private(method, "central(noise=2, quantile=0, clip=1e-6)", noise_source="secret")
    nobody: list[bytes] = []
    if not heard:
        watched(at, lambda version, messages: nobody)
    for _ in range(rounds):
        before = {n: t.clone() for n, t in at.server.state.items()}
        at.advance()
        for n, t in at.server.state.items():
            seen.setdefault(n, []).append(t - before[n])
    return {n: float(torch.cat([t.flatten() for t in rows]).std()) for n, rows in seen.items()}


@pytest.mark.parametrize("heard", [0, 5])
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_noise_has_the_stated_standard_deviation_in_every_part(method, heard):
    for name, sigma in noise_of(method, heard).items():
        share = 5 / CLIENTS if name == "c" else 1.0
        # clipped to 1e-6 the messages themselves add a fifth of the noise at most
        assert sigma == pytest.approx(share * 2 * 1e-6 / 5, rel=0.1 if not heard else 0.25), name


def test_with_nobody_heard_the_server_steps_all_the_same():
    at = private()
    watched(at, lambda version, messages: [])
    w0 = at.server.state["w"].clone()
    at.advance()
    assert at.rounds == 1 and not torch.equal(at.server.state["w"], w0)
    assert at.server.ledger.admitted == 0
    assert int(at.server.privacy.exposures.sum()) == 5  # they were asked: their share is spent


def test_the_divisor_is_the_number_asked_not_the_number_heard():
    def after(dropped: int) -> torch.Tensor:
        at = private(privacy="central(noise=1e-6, quantile=0, clip=1)")
        watched(at, lambda version, messages: messages[dropped:])
        w0 = at.server.state["w"].clone()
        at.advance()
        return at.server.state["w"] - w0

    assert float(after(4).norm()) <= 1 / 5 + 1e-3


def test_with_poisson_sampling_the_divisor_is_the_expected_number():
    at = private(selection="poisson", sample=3)
    mean = at.server.private_mean
    assert mean.divisor(0) == mean.divisor(6) == 3


@pytest.mark.parametrize("rule", ["nan", "lost", "huge", "twice", "of a stranger"])
def test_a_message_that_does_not_count_costs_its_sender_all_the_same(rule):
    def tamper(version, messages):
        first, rest = messages[0], messages[1:]
        body = len(first) - HEAD
        changed = {
            "nan": [first[:HEAD] + NAN + first[HEAD + 4 :]],
            "lost": [],
            "huge": [first[:HEAD] + np.float32(3e38).tobytes() * (body // 4)],
            "twice": [first, first],
            "of a stranger": [with_header(first, client=4000)],
        }[rule]
        return changed + rest

    at = private()
    watched(at, tamper)
    for round in range(1, 4):
        at.advance()
        account = at.server.privacy
        assert int(account.exposures.sum()) == 5 * round and account.begun == round
        assert bool(at.server.state["w"].isfinite().all())


def test_one_message_moves_the_released_sum_by_the_clipping_norm_at_most():
    def after(drop: int) -> torch.Tensor:
        at = private(privacy="central(noise=1, quantile=0, clip=0.2)")
        watched(at, lambda version, messages: messages[drop:])
        at.advance()
        return at.server.state["w"].double()

    assert 0 < float((after(0) - after(1)).norm()) * 5 <= 0.2 * (1 + 1e-4)


@pytest.mark.parametrize("channel", ["feedback + topk(share=0.3)", "qsgd(levels=4)", "lbgm"])
def test_behind_a_channel_it_is_the_decoded_message_that_is_clipped(channel):
    at = private(privacy="central(noise=1e-5, quantile=0, clip=0.05)", channel=channel)
    for _ in range(3):
        before = at.server.state["w"].clone()
        at.advance()
        assert float((at.server.state["w"] - before).norm()) <= 0.05 + 1e-4


def test_malicious_clients_move_the_server_by_their_share_of_the_clipping_norm():
    at = private(
        privacy="central(noise=1e-5, quantile=0, clip=0.05)",
        attack="same-value(std=100)",
        malicious=2,
    )
    before = at.server.state["w"].clone()
    at.advance()
    assert float((at.server.state["w"] - before).norm()) <= 0.05 + 1e-4


def test_the_clipping_norm_follows_the_messages_and_its_count_has_noise_too():
    def clips(**settings) -> list[float]:
        at = private(privacy="central(noise=1, quantile=0.5, clip=50)", **settings)
        out = []
        for _ in range(5):
            at.advance()
            out.append(at.server.privacy.clip)
        return out

    falling = clips()
    assert falling != clips(noise_source="secret")
    assert falling[-1] < 50


# -- noise at the clients --------------------------------------------------------------------------
def test_a_local_message_is_the_clipped_change_with_the_noise_of_its_client():
    plain, noisy = session("fedavg", sample=5), private(privacy="local(noise=0.5, clip=0.1)")
    (exact,), (seen,) = watched(plain), watched(noisy)
    w0 = plain.server.state["w"].clone()
    plain.advance()
    noisy.advance()
    ids = [np.frombuffer(m[:HEAD], dtype=HEADER)["client"][0] for m in seen.arrived]
    changes = clipped({"w": opened(plain, exact.arrived)["w"] - w0}, 0.1)["w"]
    keys = noisy.local_hosts[0].keys[np.array(ids)]
    noise = Noise("seed", 0).normal(5, len(w0), "message w", 0, keys).numpy()
    expected = w0.double().numpy() + changes + 0.5 * 2 * 0.1 * noise
    assert np.allclose(opened(noisy, seen.arrived)["w"].double(), expected, atol=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_local_noise_has_the_stated_standard_deviation_in_every_part(method):
    at = private(method, "local(noise=3, clip=1e-4)", noise_source="secret")
    (network,) = watched(at)
    rows: dict[str, list] = {}
    for _ in range(30):
        w = at.server.state["w"].clone()
        network.arrived.clear()
        at.advance()
        for n, t in opened(at, network.arrived).items():
            rows.setdefault(n, []).append(t - w if method == "fedavg" else t)
    for n, parts in rows.items():
        assert float(torch.cat(parts).std()) == pytest.approx(3 * 2 * 1e-4, rel=0.1), n


def test_local_messages_do_not_tell_how_many_samples_a_client_has():
    at = private(privacy="local(noise=1)", channel="none")
    (network,) = watched(at)
    at.advance()
    heads = np.concatenate([np.frombuffer(m[:HEAD], dtype=HEADER) for m in network.arrived])
    assert set(heads["weight"].tolist()) == {1.0}
    assert len(set(FEDERATION.sizes("train").tolist())) > 1


def test_answers_of_a_second_exchange_do_not_tell_it_either():
    exact = "sketch(columns=5, rows=3, k=2, exact=True)"
    at = private(privacy="local(noise=0.1)", channel=exact)
    (network,) = watched(at)
    at.advance()
    heads = np.concatenate([np.frombuffer(m[:HEAD], dtype=HEADER) for m in network.arrived])
    assert len(heads) == 10 and set(heads["weight"].tolist()) == {1.0}
    assert at.server.ledger.admitted == 5


def test_a_local_message_that_is_not_finite_leaves_as_noise_alone():
    at = private(privacy="local(noise=1, clip=1)")
    mechanism = at.local_hosts[0].settings.message_noise
    assert mechanism is not None
    up = {"w": torch.tensor([[math.nan, 1.0], [3e38, -3e38], [0.1, 0.2]])}
    out = mechanism(up, {"w": torch.zeros(2)}, at.local_hosts[0].keys[:3], 0)["w"]
    noise = 2 * Noise("seed", 0).normal(3, 2, "message w", 0, at.local_hosts[0].keys[:3])
    assert torch.allclose(out[0].double(), noise[0], atol=1e-5)
    assert float((out[1] - noise[1]).norm()) <= 1 + 1e-5
    assert torch.allclose(out[2] - torch.tensor([0.1, 0.2]), noise[2].float(), atol=1e-5)


def test_an_attack_is_not_clipped_by_the_clients_who_make_it():
    at = private(privacy="local(noise=1)", attack="same-value(std=1000)", malicious=2, sample=6)
    at.advance()
    assert float(at.server.state["w"].abs().max()) > 50


# -- without privacy -------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto"])
def test_without_privacy_nothing_of_it_is_called(method, monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError("called")

    for name in ("normal", "word"):
        monkeypatch.setattr(Noise, name, refused)
    at = session(method)
    at.advance()
    assert at.server.privacy is at.server.private_mean is None
    assert at.local_hosts[0].settings.message_noise is None


def test_poisson_sampling_by_itself_is_drawn_from_the_seed():
    one, two = (session("fedavg", selection="poisson", sample=3) for _ in range(2))
    one.advance()
    two.advance()
    assert all(torch.equal(t, of_server(two.server)[n]) for n, t in of_server(one.server).items())
