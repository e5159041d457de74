"""The server's folder of a deployed federation: what lies where.

deployment.toml                  what is trained, on what, by how many sites
federation.toml                  the one file that sites get, made from it
README.md, systemd/, Containerfile      how the server's processes are started on this machine
app/                             what Flower calls the app of a run: it names this package
certificates/ca.crt              the authority; server.crt, server.key: the server's own
keys/NAME.pub, ...               who may connect
server/                          the server's own: database, secrets, status
runs/                            run directories
sites/1/state, ...               state directories of the sites of a demo; others are elsewhere
"""

from __future__ import annotations

import re
import secrets
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.files import private_folder, sync, write_atomic
from ..core.knobs import SettingError
from .certificates import (
    check_certificate,
    make_authority,
    make_site_keys,
    public_key,
    public_key_line,
)
from .config import FEDERATION, FILE, Deployment, Proposal, Terms
from .flower import link
from .units import write_server_files, write_site_files, write_template

ROLES = {"superlink": "SuperLink", "server": "Server's process"}  # processes by their pid files


@dataclass(frozen=True)
class RunOrder:
    """A run that the server is to carry out."""

    order_id: str = field(metadata={"key": "id"})
    directory: str
    resume: bool


@dataclass(frozen=True)
class RunOutcome:
    """What became of a run."""

    order_id: str = field(metadata={"key": "id"})
    error: str  # "" if it has ended well


@dataclass(frozen=True)
class DeploymentFolder:
    """Where things are."""

    folder: Path

    @property
    def app(self) -> Path:
        return self.folder / "app"

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def authority(self) -> Path:
        return self.certificates / "ca.crt"

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def request(self) -> Path:
        """Which run is to be carried out: there until it has ended."""
        return self.server / "wanted.json"

    @property
    def outcome(self) -> Path:
        """What became of the last run."""
        return self.server / "outcome.json"

    @property
    def status(self) -> Path:
        """How far the run is, and with whom."""
        return self.server / "status.json"

    @property
    def log(self) -> Path:
        """What the server has to say of its runs."""
        return self.server / "said.txt"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def site(self, number: int) -> Path:
        """A site of a demo: others are on their owners' machines."""
        return self.folder / "sites" / str(number)

    def pid(self, role: str) -> Path:
        """The file that a process of the server holds: one of `ROLES`."""
        return self.server / f"{role}.pid"

    # -- what runs -------------------------------------------------------------------------------
    def make_secrets(self) -> None:
        """What the server's two processes know each other by."""
        place = private_folder(self.server)
        for name in ("key", "secret"):
            if not (place / name).exists():
                write_atomic(place / name, secrets.token_bytes(32))

    def superlink_arguments(self, terms: Terms) -> list[str]:
        """How the SuperLink is started; SettingError where it could not work."""
        if not terms.insecure:
            check_certificate(self.certificates / "server.crt", self.authority, terms.host)
        check_free(terms)
        self.make_secrets()
        certificates = None if terms.insecure else self.certificates
        most = int(terms.most_message * 2**20)
        return link.arguments(bind(terms.host), terms.port, self.server, certificates, most)

    def write_proposal(self, deployment: Deployment) -> bool:
        """federation.toml, for all sites; whether it is another one than before."""
        path = self.folder / FEDERATION
        before = path.read_bytes() if path.exists() else b""
        self.proposal(deployment).write(path)
        return path.read_bytes() != before

    def proposal(self, deployment: Deployment) -> Proposal:
        """What the sites get."""
        authority = "" if deployment.terms.insecure else self.authority.read_text()
        return Proposal.of(deployment, authority)

    # -- who may connect -------------------------------------------------------------------------
    def add_site(self, name: str, public: Path, replace: bool = False) -> None:
        """Register a site's public key under its name; with `replace`, in place of its old one.

        The server takes note before its next round.
        """
        path = self._public_key(name)
        if path.exists() != replace:
            word = "is not registered; idiolect deploy add-site"
            if not replace:
                word = "is registered already; idiolect deploy rotate-key gives it another key"
            raise SettingError(f"name: {name!r} {word}")
        key = public_key(public)
        for other in sorted(self.keys.glob("*.pub")):
            if public_key(other) == key:
                raise SettingError(f"public_key: it is the key of {other.stem!r} already")
        private_folder(self.keys)
        write_atomic(path, public_key_line(public))

    def remove_site(self, name: str) -> None:
        """Take a site's key away: it takes no part from the next round on."""
        path = self._public_key(name)
        if not path.exists():
            names = ", ".join(file.stem for file in sorted(self.keys.glob("*.pub"))) or "none"
            raise SettingError(f"name: {name!r} is not registered; there are: {names}")
        path.unlink()
        sync(self.keys)

    def _public_key(self, name: str) -> Path:
        if not re.fullmatch(r"\w[\w .+@-]{0,63}", name) or name != name.strip():
            raise SettingError(
                f"name must be up to 64 letters, digits and any of . + @ - _ , got {name!r}"
            )
        return self.keys / f"{name}.pub"


def bind(host: str) -> str:
    """Where a server listens that is reached under this name."""
    loopback = host in ("localhost", "::1") or host.startswith("127.")
    return host if loopback else "0.0.0.0"


def check_free(terms: Terms) -> None:
    """Refuse a port that another process listens on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind(terms.host), terms.port))
        except OSError as error:
            raise SettingError(
                f"address: cannot listen at {terms.address} ({error.strerror}); another port in "
                "[deployment] address, or stop what listens there"
            ) from None


# -- a new folder ----------------------------------------------------------------------------------
def create(folder: Path, deployment: Deployment, demo: bool = False) -> DeploymentFolder:
    """Write everything; SettingError where there is a deployment already.

    Sites make their own keys. Those of a `demo`, whose sites are all on this machine, are made
    here.
    """
    if (folder / FILE).exists():
        raise SettingError(f"directory: {folder} holds a deployment already; choose another")
    layout = DeploymentFolder(private_folder(folder).absolute())
    terms = replace(deployment.terms, name=deployment.terms.name or layout.folder.name)
    deployment = replace(deployment, terms=terms)
    deployment.write(layout.folder)
    write_app(layout)
    layout.make_secrets()
    if not terms.insecure:
        make_certificates(layout, deployment)
        private_folder(layout.keys)
    layout.write_proposal(deployment)
    write_server_files(layout.folder, deployment)
    for number in range(1, terms.sites + 1) if demo else ():
        state = private_folder(layout.site(number) / "state")
        write_site_files(state, layout.proposal(deployment))
        if not terms.insecure:
            public = make_site_keys(state)
            write_atomic(layout.keys / f"site-{number}.pub", public)
    return layout


def write_app(layout: DeploymentFolder) -> None:
    """What Flower calls the app of a run, as this version of idiolect has it."""
    package = private_folder(layout.app / "idiolect_app")
    write_template(layout.app / "pyproject.toml", "app.toml")
    write_template(package / "server_app.py", "server_app.txt")
    write_template(package / "client_app.py", "client_app.txt")
    write_atomic(package / "__init__.py", b"")


def make_certificates(layout: DeploymentFolder, deployment: Deployment) -> None:
    """New certificates for the server."""
    names = dict.fromkeys((deployment.terms.host, "localhost", "127.0.0.1"))
    make_authority(layout.certificates, list(names))
