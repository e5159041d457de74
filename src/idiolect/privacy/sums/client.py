"""A client's side of a secure sum: bytes in, bytes out, one stage after the other.

The server is not trusted with more than the order of things: what it sends is checked, and what
would show one message is refused. Secrets live in memory only, for one round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from . import primitives as crypto
from . import stages
from .graph import SharePlan
from .grid import Grid
from .setting import SecureSums
from .stages import DROPPED, NOTHING, SURVIVED, Place, ProtocolError, PublicKeys


class SumClient:
    """One client in one round.

    A request that comes twice is answered twice alike; another one of a stage that is over is
    refused, and so is one of a later stage. What is refused changes nothing.
    """

    def __init__(self, sums: SecureSums, grid: Grid, place: Place, fewest: int = 2):
        self.sums = sums
        self.fewest = fewest  # messages that must open the sum: so many share its noise
        self.grid = grid
        self.place = place
        self.done = 0  # the last stage that was answered
        self.plan: SharePlan | None = None
        self._answers: dict[int, tuple[bytes, bytes]] = {}  # stage -> request, reply
        self._masking: crypto.KeyPair | None = None
        self._reading: crypto.KeyPair | None = None
        self._seed = b""
        self._others: dict[int, PublicKeys] = {}
        self._text_keys: dict[int, bytes] = {}
        self._seed_shares: dict[int, bytes] = {}  # of others and its own, kept here
        self._key_shares: dict[int, bytes] = {}
        self._partners: list[int] = []  # with whom it has masks in common
        self._masked: tuple[bytes, np.ndarray] | None = None  # digest of a message, as it left

    # -- the stages --------------------------------------------------------------------------------
    def handle(self, stage: int, frame: bytes) -> bytes:
        """The reply to a request of a stage; ProtocolError for what is not answered."""
        if stage in self._answers:
            request, reply = self._answers[stage]
            if frame == request:
                return reply
            raise ProtocolError(
                f"{stages.NAMES[stage]}: this stage was answered, to another request"
            )
        if stage != self.done + 1:
            raise ProtocolError(f"{stages.NAMES.get(stage, stage)}: another stage is next")
        answers = {
            stages.KEYS: self._keys,
            stages.SHARES: self._share,
            stages.MASKED: self._receive,
            stages.OPENED: self._open,
        }
        reply = answers[stage](frame)
        self._answers[stage] = (frame, reply)
        self.done = stage
        return reply

    def _keys(self, frame: bytes) -> bytes:
        """Two fresh pairs of keys: for masks, and for texts to this client."""
        clients = stages.read_keys_request(self.place, frame)
        if not 2 <= clients <= self.sums.clients:
            raise ProtocolError(
                f"keys: clients must be from 2 to {self.sums.clients}, got {clients}"
            )
        if self.sums.least(clients) < self.fewest:
            raise ProtocolError(
                f"keys: a sum of {clients} clients may be opened with {self.sums.least(clients)}, "
                f"and {self.fewest} are needed to share its noise"
            )
        self.plan = self.sums.plan(clients)
        self._masking, self._reading = crypto.KeyPair.new(), crypto.KeyPair.new()
        return stages.keys_reply(self.place, self.public)

    @property
    def public(self) -> PublicKeys:
        """Its public keys."""
        assert self._masking is not None and self._reading is not None
        return PublicKeys(self._masking.public, self._reading.public)

    def _share(self, frame: bytes) -> bytes:
        """Shares of its seed and of its private key, for each other client by itself."""
        assert self.plan is not None and self._masking is not None and self._reading is not None
        own_keys, others = stages.read_shares_request(self.place, frame, self.plan.shares - 1)
        if own_keys != self.public:
            raise ProtocolError("shares: the keys of this client are not those that it has sent")
        self._check_keys(others)
        agreed = {}
        for k, keys in others.items():
            try:
                crypto.point_of(keys.masks)
                agreed[k] = self._reading.agree(keys.texts)
            except ValueError:
                raise ProtocolError(f"shares: the keys of client {k} are no keys") from None
        seed = crypto.new_seed()
        threshold, count = self.plan.threshold, len(others) + 1
        seed_shares = crypto.shares_of(seed, threshold, count)
        key_shares = crypto.shares_of(self._masking.secret, threshold, count)
        own = self.place.client
        tokens = []
        for (k, key), seed_share, key_share in zip(
            agreed.items(), seed_shares, key_shares, strict=False
        ):
            text = crypto.pack_shares(own, k, seed_share, key_share)
            tokens.append(crypto.encrypted(key, text))
        self._others, self._text_keys, self._seed = others, agreed, seed
        self._seed_shares, self._key_shares = {own: seed_shares[-1]}, {own: key_shares[-1]}
        return stages.shares_reply(self.place, crypto.commitment(seed), tokens)

    def _check_keys(self, others: Mapping[int, PublicKeys]) -> None:
        """Enough others, none of them this client, and all keys different."""
        assert self.plan is not None
        if len(others) + 1 < self.plan.threshold:
            raise ProtocolError(
                f"shares: {len(others) + 1} clients would keep shares, and {self.plan.threshold} "
                "are needed"
            )
        everyone = [self.public, *others.values()]
        keys = {key for one in everyone for key in (one.masks, one.texts)}
        if len(keys) < 2 * len(everyone):
            raise ProtocolError("shares: some public keys are the same")

    def _receive(self, frame: bytes) -> bytes:
        """The shares that others have for this client; those that cannot be read are missing."""
        assert self.plan is not None
        tokens = stages.read_masked_request(self.place, frame, len(self._others))
        if len(tokens) + 1 < self.plan.threshold:
            raise ProtocolError(
                f"masked: {len(tokens) + 1} clients have shared their secrets, and "
                f"{self.plan.threshold} are needed"
            )
        if unknown := sorted(tokens.keys() - self._others.keys()):
            raise ProtocolError(f"masked: client {unknown[0]} shares nothing with this one")
        for k, token in tokens.items():
            try:
                text = crypto.decrypted(self._text_keys[k], token)
                seed, key = crypto.unpack_shares(text, k, self.place.client)
            except ValueError:
                continue
            self._seed_shares[k], self._key_shares[k] = seed, key
        self._partners = sorted(tokens)
        return b""

    def mask(self, residues: np.ndarray) -> np.ndarray:  # uint64[m] -> uint64[m]
        """Its message as it travels: with its own mask, and one in common with each partner.

        One message only: two under one mask would show their difference.
        """
        if self.done != stages.MASKED:
            raise ProtocolError("masked: the shares of others come first, and sums are opened last")
        digest = hashlib.sha256(np.ascontiguousarray(residues).tobytes()).digest()
        if self._masked is not None:
            if self._masked[0] == digest:
                return self._masked[1]
            raise ProtocolError("masked: another message was masked in this round before")
        assert self._masking is not None
        total = residues + mask_of(self.grid, crypto.seed_key(self._seed))
        for k in self._partners:
            key = crypto.pair_key(self._masking.agree(self._others[k].masks))
            if self.place.client > k:
                total += mask_of(self.grid, key)
            else:
                total -= mask_of(self.grid, key)
        self._masked = digest, total & np.uint64(self.grid.modulus - 1)
        return self._masked[1]

    def _open(self, frame: bytes) -> bytes:
        """Shares of the seeds of those that have sent their vectors, of the keys of the others."""
        assert self.plan is not None
        fates = stages.read_opened_request(self.place, frame, len(self._partners) + 1)
        own = self.place.client
        if fates.keys() != {own, *self._partners}:
            raise ProtocolError("opened: it must be about this client and all its partners")
        survivors = sum(fate == SURVIVED for fate in fates.values())
        if survivors < self.plan.threshold:
            raise ProtocolError(
                f"opened: {survivors} of the clients around this one have sent their messages, "
                f"and {self.plan.threshold} are needed"
            )
        if self._masked is not None and fates[own] == DROPPED:
            raise ProtocolError("opened: this client has sent its message, and is said to be gone")
        sources = {SURVIVED: self._seed_shares, DROPPED: self._key_shares}
        shares = []
        for k, fate in fates.items():
            share = sources[fate].get(k, b"")
            shares.append((fate if share else NOTHING, share))
        self._forget()
        return stages.opened_reply(self.place, shares)

    def _forget(self) -> None:
        """The secrets of a round that is over."""
        self._seed = b""
        self._masking = self._reading = None
        self._masked = None
        self._text_keys, self._seed_shares, self._key_shares = {}, {}, {}


def mask_of(grid: Grid, key: bytes) -> np.ndarray:  # -> uint64[m], below 2^b
    """The mask of a key: every number modulo 2^b as likely as any other."""
    stream = np.frombuffer(crypto.key_stream(key, grid.row_bytes), dtype=np.uint8)
    return grid.unpack(stream[None])[0]
