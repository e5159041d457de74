"""The server's side of a secure sum: who takes part, who is left, and what is to be taken off.

It learns the sum of the masks of those whose messages have arrived, and with it the sum of their
messages. Whoever breaks the protocol is left out as one who has gone, and named in `faults`.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import TypeVar

import numpy as np

from . import primitives as crypto
from . import stages
from .client import mask_of
from .graph import neighbours
from .grid import Grid
from .setting import SecureSums
from .stages import DROPPED, SURVIVED, Place, ProtocolError, PublicKeys

TRIES = 256  # sets of shares that are tried where one of them is wrong
T = TypeVar("T")


class SumLost(RuntimeError):
    """The sum of a round cannot be opened: too few are left, or secrets cannot be put together."""


class SumServer:
    """The server in one round. Each stage takes the replies of the one before it, and asks anew.

    Clients without a reply are gone. `SumLost` ends the round; nothing of it is learnt.
    """

    def __init__(
        self,
        sums: SecureSums,
        grid: Grid,
        run: int,
        version: int,
        clients: Collection[int],  # wire ids
        draw: random.Random | None = None,  # of the circle and of shares that are tried
        session: int | None = None,
    ):
        self.grid = grid
        self.run = run
        self.version = version
        self.session = secrets.randbits(64) if session is None else session
        self.plan = sums.plan(len(clients))
        self.faults: dict[int, str] = {}  # client -> how it broke the protocol
        self.bytes_up: dict[int, int] = dict.fromkeys(clients, 0)
        self.bytes_down: dict[int, int] = dict.fromkeys(clients, 0)
        self._draw = draw or random.SystemRandom()
        self._around = neighbours(sorted(clients), self.plan, self._draw)
        self._active = set(clients)
        self._keys: dict[int, PublicKeys] = {}
        self._readers: dict[int, list[int]] = {}  # whose shares are numbered 1, 2, ...
        self._commitments: dict[int, bytes] = {}
        self._tokens: dict[int, dict[int, bytes]] = {}  # source -> reader -> shares
        self._partners: dict[int, list[int]] = {}  # those with masks in common with a client
        self._fates: dict[int, dict[int, int]] = {}  # what was asked of whom in the last stage

    def place(self, client: int) -> Place:
        return Place(self.run, self.version, client, self.session)

    # -- the stages --------------------------------------------------------------------------------
    def keys(self) -> dict[int, bytes]:
        """To every client: how many there are."""
        return self._asked(
            {k: stages.keys_request(self.place(k), len(self._active)) for k in sorted(self._active)}
        )

    def shares(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """To those with keys: the keys of those that they share with."""
        owners: dict[bytes, int] = {}
        for k, frame in self._arrived(replies):
            try:
                keys = stages.read_keys_reply(self.place(k), frame)
                for key in (keys.masks, keys.texts):
                    _check_point(key)
                    if owners.setdefault(key, k) != k or keys.masks == keys.texts:
                        raise ProtocolError("keys: a public key of another client, or one twice")
            except ProtocolError as error:
                self.faults[k] = str(error)
                continue
            self._keys[k] = keys
        self._stay(self._keys, "keys")
        self._readers = {k: self._near(k) for k in sorted(self._active)}
        return self._asked(
            {
                k: stages.shares_request(
                    self.place(k), self._keys[k], {j: self._keys[j] for j in readers}
                )
                for k, readers in self._readers.items()
            }
        )

    def masked(self, replies: Mapping[int, bytes]) -> dict[int, bytes]:
        """To those that have shared: what others have shared with them."""
        for k, frame in self._arrived(replies):
            readers = self._readers[k]
            try:
                commitment, tokens = stages.read_shares_reply(self.place(k), frame, len(readers))
            except ProtocolError as error:
                self.faults[k] = str(error)
                continue
            self._commitments[k] = commitment
            self._tokens[k] = dict(zip(readers, tokens, strict=True))
        self._stay(self._tokens, "shares")
        self._partners = {k: self._near(k) for k in sorted(self._active)}
        return self._asked(
            {
                k: stages.masked_request(self.place(k), {j: self._tokens[j][k] for j in partners})
                for k, partners in self._partners.items()
            }
        )

    def opened(self, survivors: Collection[int]) -> dict[int, bytes]:
        """To those whose masked vectors have arrived: who they are, and who is gone."""
        here = self._active & set(survivors)
        if len(here) < self.plan.least:
            raise SumLost(
                f"{len(here)} of {self.plan.clients} messages have arrived, and "
                f"{self.plan.least} are needed for a sum to be opened"
            )
        self._active = here
        self._fates = {
            k: {j: SURVIVED if j in here else DROPPED for j in (*self._partners[k], k)}
            for k in sorted(here)
        }
        return self._asked(
            {k: stages.opened_request(self.place(k), fates) for k, fates in self._fates.items()}
        )

    def masks(self, replies: Mapping[int, bytes]) -> np.ndarray:  # -> uint64[m]
        """The sum of the masks of the messages that have arrived, to be taken off theirs."""
        shares: dict[int, dict[int, bytes]] = {k: {} for k in self._partners}
        for reader, frame in self._arrived(replies):
            fates = self._fates[reader]
            try:
                answers = stages.read_opened_reply(self.place(reader), frame, fates)
            except ProtocolError as error:
                self.faults[reader] = str(error)
                continue
            for k, share in answers.items():
                shares[k][reader] = share
        gone = [k for k in self._partners if k not in self._active and self._touches(k)]
        total = np.zeros(self.grid.numbers, dtype=np.uint64)
        for k in sorted(self._active):
            seed = self._secret(k, shares[k], partial(self._seed, k))
            total += mask_of(self.grid, crypto.seed_key(seed))
        for k in sorted(gone):
            pair = self._secret(k, shares[k], partial(self._pair, k))
            for j in self._partners[k]:
                if j not in self._active:
                    continue
                mask = mask_of(self.grid, crypto.pair_key(pair.agree(self._keys[j].masks)))
                total = total + mask if j > k else total - mask
        return total & np.uint64(self.grid.modulus - 1)

    # -- who is left -------------------------------------------------------------------------------
    def _asked(self, requests: dict[int, bytes]) -> dict[int, bytes]:
        for k, frame in requests.items():
            self.bytes_down[k] += len(frame)
        return requests

    def _arrived(self, replies: Mapping[int, bytes]) -> list[tuple[int, bytes]]:
        """Replies of clients that were asked; those of others are not looked at."""
        arrived = [(k, replies[k]) for k in sorted(self._active) if k in replies]
        for k, frame in arrived:
            self.bytes_up[k] += len(frame)
        return arrived

    def _near(self, client: int) -> list[int]:
        """The clients around one that are still there."""
        return [j for j in self._around[client] if j in self._active]

    def _stay(self, here: Collection[int], stage: str) -> None:
        """Only these are left, and of them those that enough others are around."""
        self._active &= set(here)
        self._check_enough(stage)
        while alone := {k for k in self._active if len(self._near(k)) + 1 < self.plan.threshold}:
            self._active -= alone
        self._check_enough(stage)

    def _check_enough(self, stage: str) -> None:
        if len(self._active) < self.plan.least:
            raise SumLost(
                f"{stage}: {len(self._active)} of {self.plan.clients} clients are left, and "
                f"{self.plan.least} are needed for a sum to be opened"
            )

    def _touches(self, client: int) -> bool:
        """Whether some message that has arrived has a mask in common with a client."""
        return any(j in self._active for j in self._partners[client])

    # -- secrets -----------------------------------------------------------------------------------
    def _seed(self, client: int, secret: bytes) -> bytes | None:
        """A seed that is the one committed to."""
        return secret if crypto.commitment(secret) == self._commitments[client] else None

    def _pair(self, client: int, secret: bytes) -> crypto.KeyPair | None:
        """A private key that belongs to the public one."""
        try:
            pair = crypto.KeyPair.of(secret)
        except ValueError:
            return None
        return pair if pair.public == self._keys[client].masks else None

    def _secret(
        self, client: int, shares: Mapping[int, bytes], check: Callable[[bytes], T | None]
    ) -> T:
        """A client's secret from the shares of others, some of which may be wrong."""
        numbers = {j: at for at, j in enumerate((*self._readers[client], client), 1)}
        usable = {}
        for reader, share in shares.items():
            if int.from_bytes(share[:4], "little") == numbers[reader]:
                usable[reader] = share
            else:
                self.faults[reader] = f"opened: a wrong share of the secret of client {client}"
        readers = sorted(usable, key=lambda j: (j in self.faults, j))  # those without a fault first
        need = self.plan.threshold
        if len(readers) < need:
            raise SumLost(
                f"opened: {len(readers)} shares of the secret of client {client} have come, and "
                f"{need} are needed"
            )
        for tries, chosen in enumerate(self._choices(readers, need)):
            secret = self._put_together([usable[j] for j in chosen], check)
            if secret is not None:
                if tries:
                    self._blame(client, usable, chosen, check)
                return secret
        raise SumLost(
            f"opened: the shares of the secret of client {client} do not fit together: it has "
            "shared another one, or some of those around it have sent wrong shares"
        )

    def _choices(self, readers: list[int], need: int) -> Iterator[Sequence[int]]:
        """Sets of readers whose shares may give a secret: all of them where there are few."""
        if math.comb(len(readers), need) <= TRIES:
            yield from combinations(readers, need)
            return
        yield readers[:need]
        for _ in range(TRIES):
            yield self._draw.sample(readers, need)

    def _blame(
        self,
        client: int,
        shares: Mapping[int, bytes],
        right: Sequence[int],
        check: Callable[[bytes], T | None],
    ) -> None:
        """Name those whose shares are wrong: put in place of a right one they fit no secret.

        A hint for the operator and no proof: liars who agree on their errors can shift the blame.
        """
        rest = [shares[j] for j in right[1:]]
        for j in shares.keys() - set(right):
            if self._put_together([shares[j], *rest], check) is None:
                self.faults[j] = f"opened: a wrong share of the secret of client {client}"

    @staticmethod
    def _put_together(shares: list[bytes], check: Callable[[bytes], T | None]) -> T | None:
        try:
            return check(crypto.secret_of(shares))
        except ValueError:
            return None


def _check_point(key: bytes) -> None:
    try:
        crypto.point_of(key)
    except ValueError:
        raise ProtocolError("keys: the bytes are no public key") from None
