"""The folder of a deployed federation: what lies where, for the server and for each site.

deployment.toml                  what is trained, on what, by how many sites
README.md                        the commands for both roles
app/                             what Flower calls the app of a run: it names this package
certificates/ca.crt              the authority; sites need it. server.crt, server.key: the server
keys/site-1.pub, ...             who may connect
server/                          the server's own: database, secrets, logs
runs/                            run directories
sites/1/node.key, ...            a site's own: give it to its owner, and remove it here
server.sh, site-1.sh, systemd/   how both are started
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from ..core.files import private_folder, write_atomic, write_json
from ..core.knobs import SettingError
from .certificates import check_certificate
from .config import Terms

MOST_SOCKET = 107  # bytes of the path of a Unix socket
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True)
class Layout:
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
        link = [sys.executable, "-m", "idiolect_flower.link", "--key", f"{place / 'key'}"]
        link += ["--host", bind(terms.host), "--port", str(terms.port), "--isolation", "process"]
        link += ["--disable-runtime-dependency-installation"]
        link += ["--database", f"{place / 'superlink.db'}"]
        link += ["--superexec-auth-secret-file", f"{place / 'secret'}"]
        if terms.insecure:
            link += ["--insecure"]
        else:
            link += ["--ssl-ca-certfile", f"{self.authority}", "--enable-supernode-auth"]
            link += ["--ssl-certfile", f"{self.certificates / 'server.crt'}"]
            link += ["--ssl-keyfile", f"{self.certificates / 'server.key'}"]
        serve = [sys.executable, "-m", "idiolect.deploy.flower_server", f"{self.folder}"]
        return _processes(place, {"superlink": link, "server": serve})

    def site_processes(self, number: int, terms: Terms, path: Path | None = None) -> Path:
        """The processes that connect a site, for the supervisor: a file that names them."""
        place = self.site(number)
        if not terms.insecure:
            for file in (self.authority, place / "node.key"):
                if not file.is_file():
                    raise SettingError(f"directory: {file} is missing; it comes with the site")
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
        port = free_port()
        node = [sys.executable, "-m", "idiolect_flower.node", "connect"]
        node += ["--superlink", terms.address, "--isolation", "process"]
        node += ["--host", "127.0.0.1", "--port", str(port)]
        node += ["--superexec-auth-secret-file", f"{place / 'secret'}"]
        node += ["--node-config", f'socket="{line}"']
        if terms.insecure:
            node += ["--insecure"]
        else:
            node += ["--root-certificates", f"{self.authority}"]
            node += ["--auth-supernode-private-key", f"{place / 'node.key'}"]
        answer = [sys.executable, "-m", "idiolect_flower.node", "answer"]
        answer += ["--address", f"127.0.0.1:{port}", "--secret", f"{place / 'secret'}"]
        return _processes(place, {"supernode": node, "relay": answer})


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
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
