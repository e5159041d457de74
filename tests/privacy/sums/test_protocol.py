"""SecAgg+ between state machines: the sum comes out, whoever is lost and whoever lies."""

import sys

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from idiolect.channels.dense import clipped
from idiolect.core.knobs import SettingError
from idiolect.privacy.sums import primitives, stages
from idiolect.privacy.sums.server import SumLost
from idiolect.privacy.sums.setting import SecureSums
from idiolect.privacy.sums.stages import KEYS, MASKED, OPENED, SHARES
from privacy.sums.driver import VECTORS, Party

pytest.importorskip("flwr")
HEAD = 25  # bytes before what a stage says
STAGES = {"keys": KEYS, "shares": SHARES, "received": MASKED, "vectors": VECTORS, "opened": OPENED}


@pytest.mark.parametrize("numbers", [1, 50])
@pytest.mark.parametrize("n", [2, 3, 10])
def test_the_server_learns_the_sum(n, numbers):
    party = Party(n, numbers)
    assert (party.total() == party.plain(party.ids)).all()
    mean = party.grid.mean(party.plain(party.ids), n, torch.float64)
    gap = (mean - clipped(party.rows.double(), party.sums.clip).mean(0)).abs().max()
    assert gap <= party.grid.step and not party.server.faults


# -- drop-out --------------------------------------------------------------------------------------
def check_drop_out(n: int, share: float, stage: str, **options) -> None:
    lost = round(share * n)
    ids = Party(n).ids
    gone = [ids[(3 * k + 1) % n] for k in range(lost)]
    party = Party(n, sums=SecureSums(**options), lost={STAGES[stage]: gone})
    staying = [k for k in ids if k not in gone]
    if len(staying) < party.server.plan.least and stage != "opened":
        with pytest.raises(SumLost, match="are needed for a sum to be opened"):
            party.total()
        return
    # in the last stage a message has arrived, and only shares are missing
    if stage == "opened" and len(staying) < party.server.plan.threshold:
        with pytest.raises(SumLost, match="shares of the secret of client"):
            party.total()
        return
    expected = ids if stage == "opened" else staying
    assert (party.total() == party.plain(expected)).all()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("n", [2, 10])
def test_drop_out_in_every_stage(n, share, stage):
    check_drop_out(n, share, stage)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_drop_out_of_a_hundred_clients(share, stage):
    check_drop_out(100, share, stage)


def test_a_few_lost_of_a_hundred_in_every_stage_at_once():
    ids = Party(100).ids
    lost = {KEYS: ids[:2], SHARES: ids[2:4], MASKED: ids[4:6], VECTORS: ids[6:8], OPENED: ids[8:10]}
    party = Party(100, sums=SecureSums(survivors=0.9), lost=lost)
    assert party.server.plan.shares == 19
    assert (party.total() == party.plain(ids[8:])).all()


@pytest.mark.parametrize("stage", ["keys", "shares", "received", "vectors"])
def test_fewer_than_the_minimum_of_survivors_learn_nothing(stage):
    ids = Party(10).ids
    party = Party(10, lost={STAGES[stage]: ids[:4]})
    with pytest.raises(SumLost, match=r"6 .*7 are needed for a sum to be opened"):
        party.total()


def test_messages_that_come_after_the_sum_was_opened_stay_masked():
    """Of a client that counts as gone the others give the key, and never the seed."""
    party = Party(4, numbers=200, lost={VECTORS: [10]})
    party.total()
    late = party.vectors[10]
    residues = party.residues[10]
    # even with all masks in common taken off, its own mask is there
    near = np.abs((late - residues).astype(np.int64)) < 2**20
    assert near.mean() < 0.05


# -- what is seen of one client --------------------------------------------------------------------
@pytest.mark.parametrize("bits", [24, 32, 48])
@pytest.mark.parametrize("place", [0, 1])
def test_a_masked_message_looks_uniform(bits, place):
    """By a χ² test of each of its bytes, although the message is zero."""
    party = Party(2, numbers=20_000, sums=SecureSums(bits=bits, clip=1.0, clients=2))
    client = party.ids[place]
    party.residues[client][:] = 0
    party.until_masked()
    raw = party.grid.pack(party.vectors[client][None])[0].reshape(-1, bits // 8)
    for column in raw.T:
        assert chisquare(np.bincount(column, minlength=256)).pvalue > 1e-6
    words = party.vectors[client].astype(np.float64)
    assert abs(np.corrcoef(words[:-1], words[1:])[0, 1]) < 0.05


def test_the_same_message_looks_otherwise_in_every_round():
    one, other = Party(2, numbers=100), Party(2, numbers=100)
    one.until_masked()
    other.until_masked()
    assert (one.residues[10] == other.residues[10]).all()
    assert not (one.vectors[10] == other.vectors[10]).any()


def test_masks_depend_on_the_whole_key_where_flowers_depend_on_32_bits_of_it():
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    key = bytes(range(32))
    other = key[4:8] + key[:4] + key[8:]  # two words swapped: their exclusive or is the same
    theirs = [pseudo_rand_gen(k, 2**32, [(4,)])[0].tolist() for k in (key, other)]
    assert theirs[0] == theirs[1]
    assert primitives.key_stream(key, 32) != primitives.key_stream(other, 32)


# -- clients that lie ------------------------------------------------------------------------------
def swapped(frame: bytes, at: int = -1) -> bytes:
    raw = bytearray(frame)
    raw[at] ^= 1
    return bytes(raw)


def spoiled(frame: bytes, bits: int = 1) -> bytes:
    """The shares of seeds in a reply of the last stage, each with some bits changed."""
    raw = bytearray(frame)
    for at in range(HEAD + primitives.SEED_SHARE, len(raw), 1 + primitives.SEED_SHARE):
        raw[at] ^= bits
    return bytes(raw)


def by(client: int, change):
    """A change of one client's replies."""
    return lambda k, frame: change(frame) if k == client else frame


@pytest.mark.parametrize(
    ("stage", "change", "words"),
    [
        (KEYS, lambda f: f[:-1], "the message must have 123 bytes, got 122"),
        (KEYS, lambda f: f + b"0", "the message must have 123 bytes, got 124"),
        (KEYS, lambda f: f[:HEAD] + bytes(98), "the bytes are no public key"),
        (KEYS, lambda f: f[:HEAD] + 2 * f[HEAD : HEAD + 49], "a public key of another client, or"),
        (KEYS, lambda f: b"xxxx" + f[4:], "must be of this stage, run, round, client"),
        (KEYS, lambda f: f[:13] + bytes(4) + f[17:], "must be of this stage, run, round,"),
        (SHARES, lambda f: f[:-185], "shares: the message must have"),
        (SHARES, lambda f: f + f, "shares: the message must have"),
    ],
)
def test_a_client_that_breaks_the_format_is_as_one_that_has_gone(stage, change, words):
    party = Party(10, changed={stage: by(16, change)})
    assert (party.total() == party.plain([k for k in party.ids if k != 16])).all()
    assert list(party.server.faults) == [16] and words in party.server.faults[16]


def test_a_client_with_the_keys_of_another_is_left_out():
    first: dict[int, bytes] = {}

    def copied(k, frame):
        first.setdefault(k, frame)
        return frame[:HEAD] + first[10][HEAD:] if k == 13 else frame

    party = Party(10, changed={KEYS: copied})
    assert (party.total() == party.plain([k for k in party.ids if k != 13])).all()
    assert "a public key of another client" in party.server.faults[13]


def test_wrong_shares_are_found_by_those_that_fit():
    """Three of ten send wrong shares: the sum is right all the same, and they are named."""
    liars = [10, 19, 28]
    party = Party(
        10,
        changed={OPENED: lambda k, f: spoiled(f, k) if k in liars else f},
        sums=SecureSums(survivors=0.6),
    )
    assert (party.total() == party.plain(party.ids)).all()
    assert sorted(party.server.faults) == liars


def test_shares_with_the_numbers_of_others_are_not_used():
    party = Party(10, changed={OPENED: by(10, lambda f: swapped(f, HEAD + 1))})
    assert (party.total() == party.plain(party.ids)).all()
    assert "a wrong share of the secret" in party.server.faults[10]


def test_too_many_wrong_shares_open_nothing():
    liars = Party(10).ids[:5]
    party = Party(10, changed={OPENED: lambda k, f: spoiled(f, k) if k in liars else f})
    with pytest.raises(SumLost, match="do not fit together"):
        party.total()


def test_a_client_that_has_shared_another_secret_spoils_the_round_and_no_more():
    """Its shares fit together, to a seed that it has not committed to."""
    party = Party(10, changed={SHARES: by(13, lambda f: f[:HEAD] + bytes(32) + f[HEAD + 32 :])})
    with pytest.raises(SumLost, match="client 13 do not fit together: it has shared another one"):
        party.total()


def test_a_client_whose_shares_nobody_can_read_spoils_the_round_and_no_more():
    change = by(13, lambda f: f[: HEAD + 32] + bytes(len(f) - HEAD - 32))
    party = Party(10, changed={SHARES: change})
    with pytest.raises(SumLost, match="1 shares of the secret of client 13 have come"):
        party.total()


def test_replies_of_strangers_and_of_those_that_have_gone_are_not_looked_at():
    party = Party(4, lost={KEYS: [10]}, sums=SecureSums(survivors=0.6))
    keys = party.answers(KEYS, party.server.keys())
    requests = party.server.shares({**keys, 999: keys[13]})
    assert set(requests) == {13, 16, 19}
    replies = party.answers(SHARES, requests)
    assert set(party.server.masked({**replies, 10: replies[13]})) == {13, 16, 19}
    assert not party.server.faults


# -- what a server can ask -------------------------------------------------------------------------
def test_a_missing_package_is_named(monkeypatch):
    primitives.flower.cache_clear()
    monkeypatch.setitem(sys.modules, "flwr.supercore.primitives", None)
    with pytest.raises(SettingError, match=r"secure_sums needs the package flwr .*pip install"):
        Party(2).total()
    primitives.flower.cache_clear()


def test_costs_are_those_that_the_sizes_say():
    party = Party(10)
    party.total()
    sizes = [stages.stage_bytes(stage, 9) for stage in (KEYS, SHARES, MASKED, OPENED)]
    assert set(party.server.bytes_down.values()) == {sum(down for down, _ in sizes)}
    assert set(party.server.bytes_up.values()) == {sum(up for _, up in sizes)}
