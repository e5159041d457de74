"""Certificates and keys: a test authority, the server's certificate, the keys of sites.

For a federation that lasts, take the certificates of your organisation. Each site makes its own key
(`idiolect host key`), of which the server gets the public half only.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ..core.files import private_folder, write_atomic
from ..core.knobs import SettingError
from ..engine.carriers.flower import require

DAYS = 365
SITE_KEY = "node.key"  # the file with a site's private key
SITE_PUBLIC = "node.pub"
MOST_PUBLIC = 4096  # bytes of a public key's file


def make_authority(
    folder: Path, names: list[str], days: float = DAYS, since: datetime | None = None
) -> None:
    """ca.crt, and server.crt with server.key for a server that is reached under these names.

    The server's certificate is valid for `days`, from now or `since`. The authority's own key is
    not kept: no one can issue further certificates in its name.
    """
    require()
    import trustme

    start = since or datetime.now(UTC) - timedelta(minutes=5)  # clocks may differ a little
    authority = trustme.CA(organization_name="idiolect test authority")
    server = authority.issue_cert(
        *names, common_name=names[0], not_before=start, not_after=start + timedelta(days=days)
    )
    private_folder(folder)
    write_atomic(folder / "ca.crt", authority.cert_pem.bytes())
    write_atomic(folder / "server.crt", server.cert_chain_pems[0].bytes())
    write_atomic(folder / "server.key", server.private_key_pem.bytes())


def make_site_key(path: Path) -> bytes:
    """A site's own key at `path`; its public half, which the server registers."""
    require()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = ec.generate_private_key(ec.SECP384R1())
    private_folder(path.parent)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_atomic(path, private)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def make_site_keys(folder: Path) -> bytes:
    """node.key and node.pub in a site's folder; the line of the second."""
    line = make_site_key(folder / SITE_KEY)
    write_atomic(folder / SITE_PUBLIC, line)
    return line


def public_key_line(path: Path) -> bytes:
    """A public key as it is kept: its kind and its numbers, without the comment of its owner."""
    public_key(path)
    return b" ".join(path.read_bytes().split()[:2]) + b"\n"


def public_key(path: Path) -> bytes:
    """A public key as Flower registers it; SettingError where the file is none."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_public_key,
    )

    try:
        with path.open("rb") as file:
            key = load_ssh_public_key(file.read(MOST_PUBLIC))
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("another kind of key")
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    except Exception as error:  # of several libraries
        raise SettingError(
            f"keys: {path} is no public key of a site ({error}); "
            "one that `idiolect host key` makes is accepted"
        ) from None


def key_fingerprint(public: bytes) -> str:
    """A public key's line in short, as `ssh-keygen -lf node.pub` shows it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def certificate_fingerprint(pem: str) -> str:
    """A certificate in short, as `openssl x509 -fingerprint -sha256` shows it; SettingError."""
    require()
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        digest = x509.load_pem_x509_certificate(pem.encode()).fingerprint(SHA256())
    except ValueError as error:
        raise SettingError(f"authority must be a certificate (PEM): {error}") from None
    return digest.hex(":").upper()


def sign(key: Path, text: bytes) -> str:
    """The signature of a site's private key under a text."""
    signature = _private_key(key).sign(text, _algorithm())
    return base64.b64encode(signature).decode()


def is_signed(key: Path, text: bytes, signature: str) -> bool:
    """Whether a text was signed with the private key in a file."""
    from cryptography.exceptions import InvalidSignature

    try:
        raw = base64.b64decode(signature, validate=True)
        _private_key(key).public_key().verify(raw, text, _algorithm())
    except (InvalidSignature, ValueError):
        return False
    return True


def _private_key(path: Path) -> Any:
    require()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("another kind of key")
        return key
    except Exception as error:  # of several libraries
        raise SettingError(
            f"key: {path} is no private key of a site ({error}); idiolect host key makes one"
        ) from None


def _algorithm() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA384

    return ec.ECDSA(SHA384())


def check_certificate(certificate: Path, authority: Path, host: str) -> None:
    """Refuse, by SettingError, a certificate that the sites would refuse."""
    require()
    from cryptography import x509

    try:
        server = x509.load_pem_x509_certificate(certificate.read_bytes())
        root = x509.load_pem_x509_certificate(authority.read_bytes())
    except FileNotFoundError as error:
        raise SettingError(f"certificates: {error.filename} is missing") from None
    except ValueError as error:
        raise SettingError(f"certificates: {certificate} cannot be read: {error}") from None
    now = datetime.now(UTC)
    for path, one in ((certificate, server), (authority, root)):
        if not one.not_valid_before_utc <= now <= one.not_valid_after_utc:
            raise SettingError(
                f"certificates: {path} is valid from {one.not_valid_before_utc:%Y-%m-%d} to "
                f"{one.not_valid_after_utc:%Y-%m-%d}, and today is {now:%Y-%m-%d}; "
                "make new ones: idiolect deploy certificates"
            )
    try:
        server.verify_directly_issued_by(root)
    except Exception:  # another issuer, or another signature
        raise SettingError(
            f"certificates: {certificate} was not made by the authority in {authority}"
        ) from None
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if _name(host) not in list(names):
        names_in_it = ", ".join(str(name.value) for name in names)
        raise SettingError(
            f"certificates: {certificate} is for {names_in_it}, and the sites connect to {host}; "
            "make new ones: idiolect deploy certificates"
        )


def expiry(folder: Path) -> dict[str, float]:
    """When the certificates of a server end, in seconds since 1970, by the names of their files."""
    require()
    from cryptography import x509

    last = {}
    for name in ("server.crt", "ca.crt"):
        try:
            certificate = x509.load_pem_x509_certificate((folder / name).read_bytes())
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise SettingError(f"certificates: {folder / name} cannot be read: {error}") from None
        last[name] = certificate.not_valid_after_utc.timestamp()
    return last


def _name(text: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        return x509.DNSName(text)
