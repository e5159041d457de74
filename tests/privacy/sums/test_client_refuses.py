"""What a client does not answer: whatever would show one message."""

import contextlib
import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from idiolect.privacy.sums import stages
from idiolect.privacy.sums.client import SumClient
from idiolect.privacy.sums.setting import SecureSums
from idiolect.privacy.sums.stages import (
    BOTH,
    DROPPED,
    KEYS,
    MASKED,
    NOTHING,
    OPENED,
    SHARES,
    SURVIVED,
    Place,
    ProtocolError,
)
from privacy.sums.driver import RUN, VERSION, Party

pytest.importorskip("flwr")


@pytest.fixture
def party():
    party = Party(4)
    party.until_masked()
    return party


def opened(fates: dict[int, int], client: int = 10) -> bytes:
    return stages.opened_request(Place(RUN, VERSION, client), fates)


EVERYONE = {10: SURVIVED, 13: SURVIVED, 16: SURVIVED, 19: SURVIVED}


def test_both_secrets_of_one_client_are_refused(party):
    client = party.clients[10]
    with pytest.raises(ProtocolError, match="both secrets of client 13 asked for"):
        client.handle(OPENED, opened({**EVERYONE, 13: BOTH}))
    assert client.handle(OPENED, opened(EVERYONE))  # it has given nothing, and goes on


def test_no_secret_is_no_question(party):
    with pytest.raises(ProtocolError, match="no secret of client 13"):
        party.clients[10].handle(OPENED, opened({**EVERYONE, 13: NOTHING}))


def test_the_other_secret_is_refused_later(party):
    client = party.clients[10]
    reply = client.handle(OPENED, opened(EVERYONE))
    assert client.handle(OPENED, opened(EVERYONE)) == reply  # the same question again
    with pytest.raises(ProtocolError, match="this stage was answered, to another request"):
        client.handle(OPENED, opened({**EVERYONE, 13: DROPPED}))


def test_a_client_named_twice_is_refused(party):
    request = opened(EVERYONE)
    twice = request[:25] + (5).to_bytes(4, "little") + request[29:] + request[-5:]
    with pytest.raises(ProtocolError, match="at most 4 clients are possible, got 5"):
        party.clients[10].handle(OPENED, twice)
    renamed = request[:-5] + request[-10:-5]
    with pytest.raises(ProtocolError, match="a client is named twice"):
        party.clients[10].handle(OPENED, renamed)


def test_some_of_the_partners_are_refused(party):
    with pytest.raises(ProtocolError, match="this client and all its partners"):
        party.clients[10].handle(OPENED, opened({10: SURVIVED, 13: SURVIVED, 16: SURVIVED}))


def test_too_few_survivors_are_refused(party):
    fates = {**EVERYONE, 13: DROPPED, 16: DROPPED}
    with pytest.raises(ProtocolError, match=r"2 of the clients around this one .*3 are needed"):
        party.clients[10].handle(OPENED, opened(fates))


def test_a_client_that_has_sent_is_not_gone(party):
    with pytest.raises(ProtocolError, match="has sent its message, and is said to be gone"):
        party.clients[10].handle(OPENED, opened({**EVERYONE, 10: DROPPED}))


def test_two_messages_under_one_mask_are_refused(party):
    again = party.clients[10].mask(party.residues[10])
    assert (again == party.vectors[10]).all()  # the same one may be asked for again
    with pytest.raises(ProtocolError, match="another message was masked in this round before"):
        party.clients[10].mask(np.zeros(5, dtype=np.uint64))


@pytest.mark.parametrize("stage", [SHARES, MASKED, OPENED])
def test_stages_come_in_their_order(stage):
    client = SumClient(SecureSums(), SecureSums().grid(5), Place(RUN, VERSION, 10))
    with pytest.raises(ProtocolError, match="another stage is next"):
        client.handle(stage, b"")
    with pytest.raises(ProtocolError, match="the shares of others come first"):
        client.mask(np.zeros(5, dtype=np.uint64))


def test_keys_are_told_once():
    """A second set of keys in a round would be another round."""
    client = Party(4).clients[10]
    place = Place(RUN, VERSION, 10)
    reply = client.handle(KEYS, stages.keys_request(place, 4))
    assert client.handle(KEYS, stages.keys_request(place, 4)) == reply
    with pytest.raises(ProtocolError, match="this stage was answered"):
        client.handle(KEYS, stages.keys_request(place, 5))


@pytest.mark.parametrize("clients", [0, 1, 1001, 2**32 - 1])
def test_sums_of_one_or_of_more_than_there_is_room_for_are_refused(clients):
    client = Party(4).clients[10]
    with pytest.raises(ProtocolError, match="clients must be from 2 to 1000"):
        client.handle(KEYS, stages.keys_request(Place(RUN, VERSION, 10), clients))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (Place(RUN + 1, VERSION, 10), "of this stage, run, round, client and session"),
        (Place(RUN, VERSION + 1, 10), "of this stage, run, round, client and session"),
        (Place(RUN, VERSION, 13), "of this stage, run, round, client and session"),
        (Place(RUN, VERSION, 10, 1), "of this stage, run, round, client and session"),
    ],
)
def test_requests_of_another_round_or_for_another_client_are_refused(place, words):
    with pytest.raises(ProtocolError, match=words):
        Party(4).clients[10].handle(KEYS, stages.keys_request(place, 4))


def shares_of_three(change) -> None:
    party = Party(4)
    replies = party.answers(KEYS, party.server.keys())
    party.server.shares(replies)
    others = {k: party.clients[k].public for k in (13, 16, 19)}
    own = party.clients[10].public
    request = stages.shares_request(Place(RUN, VERSION, 10), own, change(others, party))
    party.clients[10].handle(SHARES, request)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda o, p: {13: o[13]}, "2 clients would keep shares, and 3 are needed"),
        (lambda o, p: {**o, 22: o[13]}, "at most 4 clients are possible, got 5"),
        (lambda o, p: {**o, 16: o[13]}, "some public keys are the same"),
        (lambda o, p: {**o, 16: p.clients[10].public}, "some public keys are the same"),
        (lambda o, p: {10: o[13], 16: o[16], 19: o[19]}, "not those that it has sent"),
        (
            lambda o, p: {**o, 16: stages.PublicKeys(bytes(49), o[16].texts)},
            "the keys of client 16 are no keys",
        ),
    ],
)
def test_keys_that_are_none_are_refused(change, words):
    with pytest.raises(ProtocolError, match=words):
        shares_of_three(change)


def test_shares_of_strangers_are_refused():
    party = Party(4)
    replies = party.answers(SHARES, party.server.shares(party.answers(KEYS, party.server.keys())))
    party.server.masked(replies)
    tokens = {k: bytes(185) for k in (13, 16, 22)}
    request = stages.masked_request(Place(RUN, VERSION, 10), tokens)
    with pytest.raises(ProtocolError, match="client 22 shares nothing with this one"):
        party.clients[10].handle(MASKED, request)
    few = stages.masked_request(Place(RUN, VERSION, 10), {13: bytes(185)})
    with pytest.raises(ProtocolError, match="2 clients have shared their secrets, and 3"):
        party.clients[10].handle(MASKED, few)


# -- any bytes -------------------------------------------------------------------------------------
@settings(max_examples=300, deadline=None)
@given(st.sampled_from([KEYS, SHARES, MASKED, OPENED]), st.binary(max_size=600), st.booleans())
def test_any_bytes_are_refused_in_words(stage, raw, headed):
    client = SumClient(SecureSums(), SecureSums().grid(5), Place(RUN, VERSION, 10))
    client.handle(KEYS, stages.keys_request(client.place, 4))
    client._answers.clear()
    client.done = stage - 1
    assume(not (stage == KEYS and len(raw) == 4))  # a number of clients
    frame = client.place.head(stage) + raw if headed else raw
    with pytest.raises(ProtocolError):
        client.handle(stage, frame)
    assert client.done == stage - 1


def test_changed_bytes_of_a_request_are_refused_or_cost_a_share():
    """Never another exception, and never a secret that was not asked for."""
    draw = random.Random(0)
    for _ in range(30):
        party = Party(4)
        frames = party.server.keys()
        for stage, ask in (
            (KEYS, party.server.shares),
            (SHARES, party.server.masked),
            (MASKED, None),
        ):
            for frame in frames.values():
                raw = bytearray(frame)
                raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
                other = SumClient(party.sums, party.grid, Place(RUN, VERSION, 10))
                other.__dict__.update(vars(party.clients[10]))
                other._answers = dict(other._answers)
                with contextlib.suppress(ProtocolError):
                    other.handle(stage, bytes(raw))
            replies = party.answers(stage, frames)
            frames = ask(replies) if ask else {}
        assert set(replies) == set(party.ids)
