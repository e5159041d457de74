"""The folder of a deployed federation: what lies where, for the server and for each site.

deployment.toml                  what is trained, on what, by how many sites
README.md                        the commands for both roles
app/                             what Flower calls the app of a run: it names this package
certificates/ca.crt              the authority; sites need it. server.crt, server.key: the server
keys/NAME.pub, ...               who may connect
server/                          the server's own: database, secrets, logs
runs/                            run directories
sites/1/node.key, ...            private keys of the sites of a demo; others make their own
server.sh, site-1.sh, systemd/   how both are started
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import socket
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template

from ..core.files import private_folder, sync, write_atomic, write_json
from ..core.knobs import SettingError
from ..core.text import plural
from .certificates import (
    SITE_KEY,
    check_certificate,
    make_authority,
    make_site_key,
    public_key,
    public_key_line,
)
from .config import FILE, Deployment, Terms
from .flower import link, node
from .site.agreement import TABLE

MOST_SOCKET = 107  # bytes of the path of a Unix socket
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}


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
        return self.folder / "sites" / str(number)

    # -- what runs -------------------------------------------------------------------------------
    def server_processes(self, terms: Terms) -> Path:
        """The server's processes, for the supervisor: a file that names them."""
        if not terms.insecure:
            check_certificate(self.certificates / "server.crt", self.authority, terms.host)
        check_free(terms)
        place = private_folder(self.server)
        for name in ("key", "secret"):
            _secret(place / name)
        serve = [sys.executable, "-m", "idiolect.deploy.flower.server", f"{self.folder}"]
        certificates = None if terms.insecure else self.certificates
        most = int(terms.most_message * 2**20)
        superlink = link.command(bind(terms.host), terms.port, place, certificates, most)
        return _processes(place, {"superlink": superlink, "server": serve})

    def site_processes(self, number: int, terms: Terms, path: Path | None = None) -> Path:
        """The processes that connect a site, for the supervisor: a file that names them."""
        place = self.site(number)
        key = self.site_key(number)
        if not terms.insecure:
            for file in (self.authority, key):
                if not file.is_file():
                    how = f"idiolect host key --state {place / 'state'}"
                    word = how if file == key else "it comes with the site"
                    raise SettingError(f"directory: {file} is missing; {word}")
                if not os.access(file, os.R_OK):
                    raise SettingError(f"directory: {file} cannot be read by this user")
        line = path or place / "state" / "host.sock"
        if len(os.fsencode(line)) > MOST_SOCKET:
            raise SettingError(
                f"socket: the path {line} is too long for a socket; at most {MOST_SOCKET} "
                "characters: put the folder elsewhere"
            )
        private_folder(place)
        _secret(place / "secret")
        authority = None if terms.insecure else self.authority
        commands = node.commands(terms.address, free_port(), place, line, authority, key)
        return _processes(place, commands)

    def site_key(self, number: int) -> Path:
        """The private key of a site: where `idiolect host key` puts it, or a demo's."""
        demo = self.site(number) / SITE_KEY
        return demo if demo.exists() else self.site(number) / "state" / SITE_KEY

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


def _processes(place: Path, commands: dict[str, list[str]]) -> Path:
    log = private_folder(place / "log")
    environment = {**QUIET, "FLWR_HOME": str(private_folder(place / "flower"))}
    processes = [
        {
            "name": name,
            "command": command,
            "log": str(log / f"{name}.txt"),
            "environment": environment,
        }
        for name, command in commands.items()
    ]
    file = place / "processes.json"
    write_json(file, {"pid": str(place / "pid"), "processes": processes})
    return file


def _secret(path: Path) -> None:
    if not path.exists():
        write_atomic(path, secrets.token_bytes(32))


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


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    if not terms.insecure:
        certify(layout, deployment)
        private_folder(layout.keys)
        for number in range(1, terms.sites + 1) if demo else ():
            public = make_site_key(layout.site(number) / SITE_KEY)
            write_atomic(layout.keys / f"site-{number}.pub", public)
    roles = {f"site-{n}": f"site . {n}" for n in range(1, terms.sites + 1)}
    for name, role in {"server": "server .", **roles}.items():
        _write_scripts(layout, name, role)
    _write_readme(layout, deployment)
    return layout


def write_app(layout: DeploymentFolder) -> None:
    """What Flower calls the app of a run, as this version of idiolect has it."""
    package = private_folder(layout.app / "idiolect_app")
    _write(layout.app / "pyproject.toml", "app.toml")
    _write(package / "server_app.py", "server_app.txt")
    _write(package / "client_app.py", "client_app.txt")
    write_atomic(package / "__init__.py", b"")


def certify(layout: DeploymentFolder, deployment: Deployment) -> None:
    """New certificates for the server."""
    names = dict.fromkeys((deployment.terms.host, "localhost", "127.0.0.1"))
    make_authority(layout.certificates, list(names))


def _write_scripts(layout: DeploymentFolder, name: str, role: str) -> None:
    """How a role is started: by hand, and by systemd."""
    command = f"{shlex.quote(sys.executable)} -m idiolect_command deploy {role}"
    script = layout.folder / f"{name}.sh"
    _write(script, "start.sh", command=command)
    script.chmod(0o700)
    unit = private_folder(layout.folder / "systemd") / f"idiolect-{name}.service"
    _write(unit, "unit.service", name=name, folder=layout.folder, command=command)


def _write_readme(layout: DeploymentFolder, deployment: Deployment) -> None:
    terms, data = deployment.terms, deployment.data
    if data["kind"] == TABLE:
        features = plural(len(data["features"]), "feature")
        form = f"a table with the target `{data['target']}` and {features}"
        example = f"--data visits.csv --target {data['target']}"
    else:
        form = f"arrays of {data['inputs']}, {data['classes']} classes"
        example = "--data NAME"
    secure = "TLS, and every site proves its key"
    if terms.insecure:
        secure = "**without TLS and without keys: for trials on one machine only**"
    facts = {"sites": terms.sites, "method": deployment.plan.method, "folder": layout.folder.name}
    path = layout.folder / "README.md"
    _write(path, "README.md", **facts, form=form, example=example, secure=secure)


def _write(path: Path, template: str, **values: object) -> None:
    text = (Path(__file__).parent / "templates" / template).read_text(encoding="utf-8")
    write_atomic(path, Template(text).substitute(values).encode())
