"""A folder for a new federation: settings, certificates and keys, start scripts, a README."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from ..core.files import private_folder, write_atomic
from ..core.knobs import SettingError
from .certificates import make_authority, make_site_key
from .config import FILE, Deployment
from .folder import Layout

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

from idiolect_flower.relay import app

__all__ = ["app"]
'''


def create(folder: Path, deployment: Deployment) -> Layout:
    """Write everything; SettingError where there is a deployment already."""
    if (folder / FILE).exists():
        raise SettingError(f"directory: {folder} holds a deployment already; choose another")
    layout = Layout(private_folder(folder).absolute())
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


def certify(layout: Layout, deployment: Deployment) -> None:
    """New certificates for the server."""
    host = deployment.terms.host
    names = [host, *(n for n in ("localhost", "127.0.0.1") if n != host)]
    make_authority(layout.certificates, names)


def _scripts(layout: Layout, sites: int) -> None:
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


def _readme(layout: Layout, deployment: Deployment) -> str:
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

A run that was stopped goes on with `idiolect deploy run . --resume`.

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
