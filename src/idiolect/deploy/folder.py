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
import shlex
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from ..core.files import private_folder, write_atomic, write_json
from ..core.knobs import SettingError
from .certificates import check_certificate, make_authority, make_site_key
from .config import FILE, Deployment, Terms

MOST_SOCKET = 107  # bytes of the path of a Unix socket
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}


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
        link = [sys.executable, "-m", "idiolect.deploy.flower.link", "--key", f"{place / 'key'}"]
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
        serve = [sys.executable, "-m", "idiolect.deploy.flower.server", f"{self.folder}"]
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
        node = [sys.executable, "-m", "idiolect.deploy.flower.node", "connect"]
        node += ["--superlink", terms.address, "--isolation", "process"]
        node += ["--host", "127.0.0.1", "--port", str(port)]
        node += ["--superexec-auth-secret-file", f"{place / 'secret'}"]
        node += ["--node-config", f'socket="{line}"']
        if terms.insecure:
            node += ["--insecure"]
        else:
            node += ["--root-certificates", f"{self.authority}"]
            node += ["--auth-supernode-private-key", f"{place / 'node.key'}"]
        answer = [sys.executable, "-m", "idiolect.deploy.flower.node", "answer"]
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
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


APP = """\
# What Flower calls the app of a run. It names the package that server and sites have installed:
# nothing of what is trained, and no code, travels with it.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "idiolect-app"
version = "0.1.0"
description = "A federation of idiolect"
license = "Apache-2.0"
dependencies = ["idiolect[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "idiolect"

[tool.flwr.app.components]
serverapp = "idiolect_app.server_app:app"
clientapp = "idiolect_app.client_app:app"

[tool.flwr.app.config]
"""
SERVER_APP = '''\
"""The server of a run is `idiolect deploy server`, which takes its tasks itself."""

from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    raise RuntimeError("start the server with: idiolect deploy server")
'''
CLIENT_APP = '''\
"""The relay between a SuperNode and the process of the data owner."""

from idiolect.deploy.flower.relay import app

__all__ = ["app"]
'''


def create(folder: Path, deployment: Deployment) -> DeploymentFolder:
    """Write everything; SettingError where there is a deployment already."""
    if (folder / FILE).exists():
        raise SettingError(f"directory: {folder} holds a deployment already; choose another")
    layout = DeploymentFolder(private_folder(folder).absolute())
    deployment.write(layout.folder)
    package = private_folder(layout.app / "idiolect_app")
    write_atomic(layout.app / "pyproject.toml", APP.encode())
    write_atomic(package / "__init__.py", b"")
    write_atomic(package / "server_app.py", SERVER_APP.encode())
    write_atomic(package / "client_app.py", CLIENT_APP.encode())
    terms = deployment.terms
    if not terms.insecure:
        certify(layout, deployment)
        private_folder(layout.keys)
        for number in range(1, terms.sites + 1):
            public = make_site_key(layout.site(number) / "node.key")
            write_atomic(layout.keys / f"site-{number}.pub", public)
    _scripts(layout, terms.sites)
    write_atomic(layout.folder / "README.md", _readme(layout, deployment).encode())
    return layout


def certify(layout: DeploymentFolder, deployment: Deployment) -> None:
    """New certificates for the server."""
    host = deployment.terms.host
    names = [host, *(n for n in ("localhost", "127.0.0.1") if n != host)]
    make_authority(layout.certificates, names)


def _scripts(layout: DeploymentFolder, sites: int) -> None:
    roles = {"server": "server ."} | {f"site-{n}": f"site . {n}" for n in range(1, sites + 1)}
    units = private_folder(layout.folder / "systemd")
    python = shlex.quote(sys.executable)
    for name, role in roles.items():
        command = f"{python} -m idiolect_command deploy {role}"
        script = layout.folder / f"{name}.sh"
        lines = ["#!/bin/sh", 'cd "$(dirname "$0")" || exit 1', f"exec {command}", ""]
        write_atomic(script, "\n".join(lines).encode())
        script.chmod(0o700)
        unit = f"""\
[Unit]
Description=idiolect {name}
Wants=network-online.target
After=network-online.target

[Service]
WorkingDirectory={layout.folder}
ExecStart={command}
Restart=always
RestartSec=5
TimeoutStopSec=60

[Install]
WantedBy=default.target
"""
        write_atomic(units / f"idiolect-{name}.service", unit.encode())


def _readme(layout: DeploymentFolder, deployment: Deployment) -> str:
    terms, data = deployment.terms, deployment.data
    if data["kind"] == "table":
        form = f"a table with the target `{data['target']}` and {len(data['features'])} features"
        example = f"--data visits.csv --target {data['target']}"
    else:
        form = f"arrays of {data['inputs']}, {data['classes']} classes"
        example = "--data NAME"
    secure = (
        "TLS, and every site proves its key"
        if not terms.insecure
        else "**without TLS and without keys: for trials on one machine only**"
    )
    return f"""\
# A federation of {terms.sites} sites

{deployment.plan.method}, on {form}; {secure}. `deployment.toml` says everything; docs/deploy.md of
idiolect explains it.

## The server

```sh
pip install 'idiolect[flower]'
cd {layout.folder.name}
idiolect deploy server .        # stays in the foreground; or: systemd/idiolect-server.service
idiolect deploy run .           # in another terminal: trains, shows the table
idiolect deploy stop .
```

Resume a stopped run with `idiolect deploy run . --resume`.

## A site

It needs `deployment.toml`, `certificates/ca.crt` and its own folder `sites/N` (remove the folder
from the server's machine then: the key in it is the site's alone). The data stay where they are.

```sh
pip install 'idiolect[flower]'
idiolect host start {example} --state sites/1/state --site NAME
idiolect deploy site . 1        # in another terminal; or: systemd/idiolect-site-1.service
```

What has left the site so far: `idiolect host status --state sites/1/state`. Its own model:
`idiolect host export --state sites/1/state`.

A site that makes its own key (`ssh-keygen -t ecdsa -b 384 -N "" -f sites/1/node.key`) gives the
server `node.key.pub`, which goes into `keys/`.
"""
