"""The owner's consent: which terms of a federation they agree to, under which rules, signed.

consent.json     the terms, the owner's data and rules, who agreed and when, signed with the site's
                 key. Nothing is computed for a server whose terms are not in it
proposed.json    terms that a server has proposed and the owner has not agreed to

Both are read again when they change: `idiolect host agree` takes effect while a site runs.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...core.documents import encode
from ...core.files import read_document, write_document
from ...core.knobs import SettingError
from ..certificates import SITE_KEY, SITE_PUBLIC, is_signed, key_fingerprint, sign
from ..config import FederationTerms
from .agreement import Agreement
from .data import SiteData, SumsRequest
from .rules import Rules
from .state import now

CONSENT = "consent.json"
PROPOSED = "proposed.json"
MOST = 8 << 20  # bytes of either
NOT_AGREED = "this site's owner has not agreed to these terms"


@dataclass(frozen=True)
class Consent:
    """What an owner has agreed to."""

    terms: FederationTerms
    address: str  # of the server; "" where the owner has no federation.toml
    authority: str  # fingerprint of the certificate that its own is signed with; likewise
    site: dict[str, Any]  # the owner's data, and how they are read
    rules: dict[str, Any]  # what may leave
    user: str = ""
    time: str = ""
    key: str = ""  # fingerprint of the key that it is signed with
    signature: str = ""

    @classmethod
    def draft(
        cls, terms: FederationTerms, address: str, authority: str, owned: SiteData, rules: Rules
    ) -> Consent:
        """What is to be agreed to; not signed yet."""
        return cls(terms, address, authority, *as_plain(owned, rules))

    @property
    def code(self) -> str:
        """A short name of exactly these terms, data and rules."""
        unsigned = replace(self, user="", time="", key="", signature="")
        return hashlib.sha256(unsigned.text()).hexdigest()[:16]

    def text(self) -> bytes:
        """What is signed."""
        return json.dumps(encode(replace(self, signature="")), sort_keys=True).encode()

    def signed(self, folder: Path) -> Consent:
        """By this user, now, with the key of the site."""
        public = (folder / SITE_PUBLIC).read_bytes()
        who = replace(self, user=_user(), time=now(), key=key_fingerprint(public))
        return replace(who, signature=sign(folder / SITE_KEY, who.text()))

    def save(self, folder: Path) -> None:
        write_document(folder / CONSENT, encode(self))
        if proposed(folder) == self.terms:
            (folder / PROPOSED).unlink()


def as_plain(owned: SiteData, rules: Rules) -> tuple[dict[str, Any], dict[str, Any]]:
    """The owner's data and rules, as JSON has them."""
    site, own = json.loads(json.dumps([encode(owned), rules.as_dict()]))
    return site, own


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return str(os.getuid())


def read_consent(folder: Path) -> Consent | None:
    """The consent in a state directory; None where there is none, SettingError where it is not
    signed with the key there."""
    path = folder / CONSENT
    if not path.exists():
        return None
    consent = read_document(path, Consent, limit=MOST)
    if not is_signed(folder / SITE_KEY, consent.text(), consent.signature):
        raise SettingError(
            f"consent: {path} is not signed with the key {folder / SITE_KEY}: it was changed, or "
            "the key is another one; idiolect host agree shows the terms again"
        )
    return consent


def proposed(folder: Path) -> FederationTerms | None:
    """The terms that a server has proposed last, and that are not agreed to."""
    path = folder / PROPOSED
    return read_document(path, FederationTerms, limit=MOST) if path.exists() else None


class ConsentGate:
    """Whether the owner has agreed: to these terms, with these data, under these rules."""

    def __init__(self, folder: Path, owned: SiteData, rules: Rules):
        self.folder = folder
        self.site, self.rules = as_plain(owned, rules)
        self._stamp: tuple[int, ...] | None = None
        self._terms: FederationTerms | None = None
        self.reason = ""  # why there is no consent that counts

    def terms(self) -> FederationTerms | None:
        """The terms that are agreed to now; None where there are none."""
        stamp = _stamp(self.folder / CONSENT)
        if stamp is None or stamp != self._stamp:
            self._stamp, self._terms = stamp, self._read()
        return self._terms

    def _read(self) -> FederationTerms | None:
        self.reason = ""
        try:
            consent = read_consent(self.folder)
        except SettingError as error:
            self.reason = str(error)
            return None
        if consent is None:
            self.reason = "the owner has agreed to nothing yet"
        elif consent.site != self.site:
            self.reason = "the owner has agreed for other data, or for data that are read otherwise"
        elif consent.rules != self.rules:
            self.reason = "the owner has agreed under other rules than this site was started with"
        else:
            return consent.terms
        return None

    def allows_terms(self, terms: FederationTerms) -> bool:
        """Whether these are the terms; where not, they are there for the owner to read."""
        if terms == self.terms():
            return True
        earlier = None
        with suppress(SettingError):  # damaged: the owner is to read what is proposed now
            earlier = proposed(self.folder)
        if earlier != terms:
            write_document(self.folder / PROPOSED, encode(terms))
        return False

    def allows_run(self, agreement: Agreement) -> bool:
        """Whether a run is within the terms."""
        terms = self.terms()
        return terms is not None and terms.allow(agreement.plan, agreement.seed, agreement.data)

    def allows_sums(self, request: SumsRequest) -> bool:
        """Whether sums of these columns are within the terms."""
        terms = self.terms()
        columns = encode(request.data)
        return (
            terms is not None
            and terms.asks_sums
            and columns == {name: terms.data[name] for name in columns}
        )


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
