"""Cryptography of secure sums: Flower's primitives and the library that they are made of.

Key agreement, authenticated encryption and Shamir's shares are Flower's
(`flwr.common.secure_aggregation.crypto`, `flwr.supercore.primitives.asymmetric`: the modules that
its own SecAgg+ is made of; they are not in its documented API, and are the same in 1.41 and 1.42).
Masks are not: `pseudo_rand_gen` folds its key to 32 bits and feeds a Mersenne Twister with it, so
that whoever has a masked vector can search all keys. Here a mask is the key stream of ChaCha20 (RFC
8439) under the whole key, from the package `cryptography`, which Flower's primitives are made of.

Keys travel as compressed points (49 bytes in place of 215 as text), private keys are shared as
their 48 bytes in place of 306.
"""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any

from ...core.knobs import SettingError

PUBLIC = 49  # bytes of a public key: a point of P-384, compressed
PRIVATE = 48
SEED = 31  # with the padding of Shamir's shares two blocks of 16
COMMITMENT = 32
BLOCK = 16  # bytes of a block of Shamir's shares
TOKEN_EXTRA = 57  # bytes of an encrypted text beside the text and its padding


@lru_cache(maxsize=1)
def flower() -> Any:
    """Flower's primitives; SettingError where the package is not installed."""
    try:
        from cryptography.fernet import InvalidToken
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        from flwr.common.secure_aggregation import secaggplus_utils
        from flwr.common.secure_aggregation.crypto import shamir, symmetric_encryption
        from flwr.supercore.primitives import asymmetric
    except ImportError as error:
        raise SettingError(
            "secure_sums needs the package flwr between sites, and its cryptography cannot be "
            f"imported ({error}); pip install 'idiolect[flower]'"
        ) from None
    return SimpleNamespace(
        InvalidToken=InvalidToken,
        hashes=hashes,
        serialization=serialization,
        ec=ec,
        Cipher=Cipher,
        ChaCha20=ChaCha20,
        HKDF=HKDF,
        create_shares=shamir.create_shares,
        combine_shares=shamir.combine_shares,
        encrypt=symmetric_encryption.encrypt,
        decrypt=symmetric_encryption.decrypt,
        generate_shared_key=symmetric_encryption.generate_shared_key,
        generate_key_pairs=asymmetric.generate_key_pairs,
        join=secaggplus_utils.share_keys_plaintext_concat,
        separate=secaggplus_utils.share_keys_plaintext_separate,
    )


# -- keys ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class KeyPair:
    """A private key on the curve P-384, and the public one."""

    private: Any

    @classmethod
    def new(cls) -> KeyPair:
        return cls(flower().generate_key_pairs()[0])

    @classmethod
    def of(cls, secret: bytes) -> KeyPair:
        """From the bytes of the private key; ValueError for bytes that are none."""
        if len(secret) != PRIVATE:
            raise ValueError(f"a private key must have {PRIVATE} bytes, got {len(secret)}")
        ec = flower().ec
        return cls(ec.derive_private_key(int.from_bytes(secret, "big"), ec.SECP384R1()))

    @property
    def secret(self) -> bytes:
        """The bytes of the private key."""
        return int(self.private.private_numbers().private_value).to_bytes(PRIVATE, "big")

    @cached_property
    def public(self) -> bytes:
        """The bytes of the public key."""
        forms = flower().serialization
        point = self.private.public_key().public_bytes(
            forms.Encoding.X962, forms.PublicFormat.CompressedPoint
        )
        return bytes(point)

    def agree(self, public: bytes) -> bytes:
        """The key that this pair and the owner of another one have in common, as Flower writes it.

        ValueError for bytes that are no public key.
        """
        return bytes(flower().generate_shared_key(self.private, point_of(public)))


def point_of(public: bytes) -> Any:
    """A public key from its bytes; ValueError for bytes that are none."""
    ec = flower().ec
    if len(public) != PUBLIC:
        raise ValueError(f"a public key must have {PUBLIC} bytes, got {len(public)}")
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), public)


# -- texts for one reader --------------------------------------------------------------------------
def encrypted(key: bytes, text: bytes) -> bytes:
    """A text that only holders of the key can read, and nobody else can have written."""
    return base64.urlsafe_b64decode(flower().encrypt(key, text))


def decrypted(key: bytes, token: bytes) -> bytes:
    """The inverse; ValueError for what was not written with this key."""
    try:
        return bytes(flower().decrypt(key, base64.urlsafe_b64encode(token)))
    except flower().InvalidToken:
        raise ValueError("the text was not written with this key, or was changed") from None


def token_bytes(text: int) -> int:
    """Bytes of an encrypted text of so many bytes."""
    return TOKEN_EXTRA + (text // BLOCK + 1) * BLOCK


# -- shares ----------------------------------------------------------------------------------------
def shares_of(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares number 1, 2, ... of a secret, of which `threshold` give it back."""
    return list(flower().create_shares(secret, threshold, count))


def secret_of(shares: list[bytes]) -> bytes:
    """The inverse, of exactly as many shares as it takes; ValueError where they fit no secret."""
    return bytes(flower().combine_shares(shares))


def share_bytes(secret: int) -> int:
    """Bytes of a share of a secret of so many bytes: its number, and padded blocks."""
    return 4 + (secret // BLOCK + 1) * BLOCK


SEED_SHARE = share_bytes(SEED)
KEY_SHARE = share_bytes(PRIVATE)


def pack_shares(source: int, reader: int, seed: bytes, key: bytes) -> bytes:
    """A client's shares for one reader: of its seed and of its private key."""
    return bytes(flower().join(source, reader, seed, key))


def unpack_shares(text: bytes, source: int, reader: int) -> tuple[bytes, bytes]:
    """The inverse; ValueError for a text of another source, for another reader, or of no shares."""
    if len(text) != len(pack_shares(0, 0, bytes(SEED_SHARE), bytes(KEY_SHARE))):
        raise ValueError("the text must be two shares")
    its_source, its_reader, seed, key = flower().separate(text)
    if (its_source, its_reader) != (source, reader):
        raise ValueError("the shares are of another client, or for another one")
    if len(seed) != SEED_SHARE or len(key) != KEY_SHARE or seed[:4] != key[:4]:
        raise ValueError("the text must be two shares of one number")
    return seed, key


TOKEN = token_bytes(8 + 8 + 4 + SEED_SHARE + KEY_SHARE)


# -- masks -----------------------------------------------------------------------------------------
def new_seed() -> bytes:
    """Of a client's own mask."""
    return os.urandom(SEED)


def commitment(seed: bytes) -> bytes:
    """What shows later whether a seed is the one that was chosen, and tells nothing of it now."""
    return hashlib.sha256(b"idiolect secure sums, seed of a mask" + seed).digest()


def seed_key(seed: bytes) -> bytes:
    """The key of a mask from its seed."""
    parts = flower()
    derive = parts.HKDF(parts.hashes.SHA256(), 32, None, b"idiolect secure sums, own mask")
    return bytes(derive.derive(seed))


def pair_key(agreed: bytes) -> bytes:
    """The key of a mask from what two clients have agreed on."""
    return base64.urlsafe_b64decode(agreed)


def key_stream(key: bytes, length: int) -> bytes:
    """So many bytes of ChaCha20's key stream. Every key is used for one mask only."""
    parts = flower()
    cipher = parts.Cipher(parts.ChaCha20(key, bytes(16)), mode=None)
    return bytes(cipher.encryptor().update(bytes(length)))
