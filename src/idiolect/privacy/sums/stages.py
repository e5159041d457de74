"""What server and clients say in the four stages of SecAgg+, as bytes of sizes that both know.

    magic "ids1" | stage u8 | run u32 | round u32 | client u32 | session u64 | records ...

A session is one attempt of a round: a server that was started again makes another one.

1. keys: how many clients there are; their public keys come back.
2. shares: its own public keys and those that it shares with; its commitment and, for each of
   them, its shares encrypted come back.
3. masked: the shares that others have for this client; its masked vector comes back, as a message
   of the round, and not in this format.
4. opened: who has sent a masked vector and who has not; for each of them a share comes back, of the
   seed of the one or of the private key of the other, and never of both.

Nothing is allocated because a sender says so: a count is checked against the bytes that are there,
and against the number that the receiver expects. Nothing is executed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .primitives import COMMITMENT, KEY_SHARE, PUBLIC, SEED_SHARE, TOKEN

MAGIC = b"ids1"
KEYS, SHARES, MASKED, OPENED = 1, 2, 3, 4
NAMES = {KEYS: "keys", SHARES: "shares", MASKED: "masked", OPENED: "opened"}
_HEAD = struct.Struct("<4sBIIIQ")
_COUNT = struct.Struct("<I")
_PUBLIC_RECORD = struct.Struct(f"<I{PUBLIC}s{PUBLIC}s")
_TOKEN_RECORD = struct.Struct(f"<I{TOKEN}s")
_FATE_RECORD = struct.Struct("<IB")

# in the fourth stage, of a client: nothing is asked or had, it sent its vector, it did not
NOTHING, SURVIVED, DROPPED, BOTH = 0, 1, 2, 3
SHARE_BYTES = {NOTHING: 0, SURVIVED: SEED_SHARE, DROPPED: KEY_SHARE}


class ProtocolError(ValueError):
    """What another party has sent breaks the protocol; nothing of it is used."""


@dataclass(frozen=True)
class Place:
    """Of which run, round, client and session a message is."""

    run: int
    version: int
    client: int  # wire id
    session: int = 0

    def head(self, stage: int) -> bytes:
        """What a message of a stage begins with."""
        return _HEAD.pack(MAGIC, stage, self.run, self.version, self.client, self.session)

    def body(self, stage: int, frame: bytes) -> bytes:
        """The rest of a message; ProtocolError for one of another stage, run, round or client."""
        if frame[: _HEAD.size] != self.head(stage):
            raise ProtocolError(
                f"{NAMES[stage]}: the message must be of this stage, run, round, client and session"
            )
        return frame[_HEAD.size :]


@dataclass(frozen=True)
class PublicKeys:
    """Of one client: for its shares of masks, and for texts to it."""

    masks: bytes
    texts: bytes


# -- 1: keys ---------------------------------------------------------------------------------------
def keys_request(place: Place, clients: int) -> bytes:
    """How many clients take part."""
    return place.head(KEYS) + _COUNT.pack(clients)


def session_of(frame: bytes) -> int:
    """The session that a message says it is of; 0 for one that is too short."""
    return int(_HEAD.unpack(frame[: _HEAD.size])[-1]) if len(frame) >= _HEAD.size else 0


def read_keys_request(place: Place, frame: bytes) -> int:
    """The inverse."""
    body = place.body(KEYS, frame)
    _expect(body, _COUNT.size, KEYS)
    return int(_COUNT.unpack(body)[0])


def keys_reply(place: Place, keys: PublicKeys) -> bytes:
    """A client's public keys."""
    return place.head(KEYS) + keys.masks + keys.texts


def read_keys_reply(place: Place, frame: bytes) -> PublicKeys:
    """The inverse; whether they are keys is not looked into."""
    body = place.body(KEYS, frame)
    _expect(body, 2 * PUBLIC, KEYS)
    return PublicKeys(body[:PUBLIC], body[PUBLIC:])


# -- 2: shares -------------------------------------------------------------------------------------
def shares_request(place: Place, own: PublicKeys, others: Mapping[int, PublicKeys]) -> bytes:
    """A client's keys as they arrived, and those of the clients that it shares with.

    Its shares are numbered in the order of these.
    """
    everyone = {place.client: own, **others}
    records = [_PUBLIC_RECORD.pack(k, keys.masks, keys.texts) for k, keys in everyone.items()]
    return place.head(SHARES) + _COUNT.pack(len(records)) + b"".join(records)


def read_shares_request(
    place: Place, frame: bytes, most: int
) -> tuple[PublicKeys, dict[int, PublicKeys]]:
    """The inverse, of `most` others at most."""
    records = _records(_PUBLIC_RECORD, place.body(SHARES, frame), most + 1, SHARES)
    pairs = [(k, PublicKeys(masks, texts)) for k, masks, texts in records]
    table: dict[int, PublicKeys] = _by_client(pairs, SHARES)
    if not pairs or pairs[0][0] != place.client:
        raise ProtocolError("shares: the keys of the client itself come first")
    return table.pop(place.client), table


def shares_reply(place: Place, commitment: bytes, tokens: Sequence[bytes]) -> bytes:
    """A client's commitment to its seed, and its shares in the order of the request."""
    return place.head(SHARES) + commitment + b"".join(tokens)


def read_shares_reply(place: Place, frame: bytes, count: int) -> tuple[bytes, list[bytes]]:
    """The inverse, of so many shares."""
    body = place.body(SHARES, frame)
    _expect(body, COMMITMENT + count * TOKEN, SHARES)
    starts = range(COMMITMENT, len(body), TOKEN)
    return body[:COMMITMENT], [body[a : a + TOKEN] for a in starts]


# -- 3: masked -------------------------------------------------------------------------------------
def masked_request(place: Place, tokens: Mapping[int, bytes]) -> bytes:
    """The shares that others have for a client."""
    records = [_TOKEN_RECORD.pack(k, token) for k, token in tokens.items()]
    return place.head(MASKED) + _COUNT.pack(len(records)) + b"".join(records)


def read_masked_request(place: Place, frame: bytes, most: int) -> dict[int, bytes]:
    """The inverse."""
    records = _records(_TOKEN_RECORD, place.body(MASKED, frame), most, MASKED)
    return _by_client([(k, token) for k, token in records], MASKED)


# -- 4: opened -------------------------------------------------------------------------------------
def opened_request(place: Place, fates: Mapping[int, int]) -> bytes:
    """Who has sent a masked vector, and who has not."""
    records = [_FATE_RECORD.pack(k, fate) for k, fate in fates.items()]
    return place.head(OPENED) + _COUNT.pack(len(records)) + b"".join(records)


def read_opened_request(place: Place, frame: bytes, most: int) -> dict[int, int]:
    """The inverse; ProtocolError where both secrets of one client are asked for."""
    records = _records(_FATE_RECORD, place.body(OPENED, frame), most, OPENED)
    fates = _by_client([(k, fate) for k, fate in records], OPENED)
    for k, fate in fates.items():
        if fate not in (SURVIVED, DROPPED):
            what = "both secrets" if fate == BOTH else "no secret"
            raise ProtocolError(f"opened: {what} of client {k} asked for; it must be one")
    return fates


def opened_reply(place: Place, shares: Sequence[tuple[int, bytes]]) -> bytes:
    """(which secret, share) for each client of the request, in its order."""
    parts = [bytes([fate]) + share for fate, share in shares]
    return place.head(OPENED) + b"".join(parts)


def read_opened_reply(
    place: Place, frame: bytes, fates: Mapping[int, int]
) -> dict[int, bytes]:  # client -> share
    """The inverse; those of whom there was none are left out."""
    body = place.body(OPENED, frame)
    shares: dict[int, bytes] = {}
    at = 0
    for k, fate in fates.items():
        has = body[at] if at < len(body) else -1
        if has not in (NOTHING, fate):
            raise ProtocolError(f"opened: no share of the secret of client {k} that was asked for")
        end = at + 1 + SHARE_BYTES[has]
        if end > len(body):
            raise ProtocolError("opened: the message is too short")
        if has != NOTHING:
            shares[k] = body[at + 1 : end]
        at = end
    _expect(body, at, OPENED)
    return shares


# -- sizes -----------------------------------------------------------------------------------------
def stage_bytes(stage: int, others: int) -> tuple[int, int]:
    """(bytes down, bytes up) of a stage for a client that shares with so many others.

    The fourth is that of a round in which all have sent their vectors; a share of a client that has
    not takes 32 more. The masked vector itself is a message of the round, and not counted here.

    >>> [stage_bytes(stage, others=9) for stage in (KEYS, SHARES, MASKED, OPENED)]
    [(29, 123), (1049, 1722), (1730, 0), (79, 395)]
    """
    head, count = _HEAD.size, _COUNT.size
    return {
        KEYS: (head + count, head + 2 * PUBLIC),
        SHARES: (
            head + count + (others + 1) * _PUBLIC_RECORD.size,
            head + COMMITMENT + others * TOKEN,
        ),
        MASKED: (head + count + others * _TOKEN_RECORD.size, 0),
        OPENED: (
            head + count + (others + 1) * _FATE_RECORD.size,
            head + (others + 1) * (1 + SEED_SHARE),
        ),
    }[stage]


def _expect(body: bytes, length: int, stage: int) -> None:
    if len(body) != length:
        raise ProtocolError(
            f"{NAMES[stage]}: the message must have {_HEAD.size + length} bytes, got "
            f"{_HEAD.size + len(body)}"
        )


def _records(form: struct.Struct, body: bytes, most: int, stage: int) -> list[tuple]:
    """The records that a count announces, once their length is known to be right."""
    if len(body) < _COUNT.size:
        raise ProtocolError(f"{NAMES[stage]}: the message is too short")
    count = _COUNT.unpack(body[: _COUNT.size])[0]
    if count > most:
        raise ProtocolError(f"{NAMES[stage]}: at most {most} clients are possible, got {count}")
    _expect(body, _COUNT.size + count * form.size, stage)
    return list(form.iter_unpack(body[_COUNT.size :]))


def _by_client(pairs: Sequence[tuple], stage: int) -> dict:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ProtocolError(f"{NAMES[stage]}: a client is named twice")
    return table
