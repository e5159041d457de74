"""How the processes of a machine are started there: its README, units of systemd, a container.

Every path in them is one of this machine. A site's files have nothing of the server's folder, and
what the server's operator has written (the federation's name) is in no unit.
"""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from pathlib import Path
from string import Template
from typing import Any

from ..core.files import private_folder, write_atomic
from ..core.text import plural, shown
from .config import FEDERATION, Deployment, Proposal
from .site.agreement import TABLE

TEMPORARY = ("/tmp", "/var/tmp")  # folders that a unit with PrivateTmp has for itself


def write_server_files(folder: Path, deployment: Deployment) -> None:
    """README.md, systemd/ and Containerfile in the server's folder."""
    writable = {"superlink": folder / "server", "server": None}  # runs may lie anywhere
    for name, place in writable.items():
        _write_unit(folder, name, ["deploy", name, str(folder)], place)
    terms = deployment.terms
    secure = "TLS, and every site proves its key"
    if terms.insecure:
        secure = "**without TLS and without keys: for trials on one machine only**"
    facts = {"sites": terms.sites, "method": deployment.plan.method, "secure": secure}
    _write_readme(folder, "server.md", facts, deployment.data)


def write_site_files(state: Path, proposal: Proposal, data: Path | None = None) -> None:
    """What a site has in its state directory: federation.toml, README.md, systemd/, Containerfile.

    `data` is where its data are, a file or a folder.
    """
    state = private_folder(state).absolute()
    proposal.write(state / FEDERATION)
    host = ["host", "start", "--state", str(state)]
    # the process with the data is reached by the socket in the state directory alone
    _write_unit(state, "host", host, state, "PrivateNetwork=true")
    _write_unit(state, "supernode", ["host", "connect", "--state", str(state)], state)
    place = Path("/path/to/data") if data is None else data.absolute()
    facts = {
        "name": shown(proposal.name),
        "address": shown(proposal.address),
        "method": shown(proposal.plan.method),
        "data": shlex.quote(f"{place}:{place}:ro"),
    }
    _write_readme(state, "site.md", facts, proposal.data)


def program() -> list[str]:
    """The command `idiolect` of this machine."""
    script = Path(sysconfig.get_path("scripts")) / "idiolect"
    return [str(script)] if script.exists() else [sys.executable, "-m", "idiolect_command"]


def _write_unit(
    folder: Path, name: str, arguments: list[str], writable: Path | None, *more: str
) -> None:
    """systemd/idiolect-NAME.service; the process may write to one folder, or to all of its user."""
    lines = list(more)
    if writable is None:
        lines += ["ProtectSystem=full"]
    else:
        lines += ["ProtectSystem=strict", f"ReadWritePaths={_quoted(str(writable))}"]
    if not any(folder.is_relative_to(place) for place in TEMPORARY):
        lines += ["PrivateTmp=true"]
    write_template(
        private_folder(folder / "systemd") / f"idiolect-{name}.service",
        "unit.service",
        name=name,
        user=os.getuid(),
        command=" ".join(_quoted(word).replace("$", "$$") for word in [*program(), *arguments]),
        protection="\n".join(lines),
    )


def _quoted(word: str) -> str:
    """A word as systemd reads it.

    >>> _quoted("/srv/heart"), _quoted("/srv/50% heart")
    ('/srv/heart', '"/srv/50%% heart"')
    """
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return word if word.isascii() and not set(word) & set(" \"'\\;%\t\n") else f'"{word}"'


def _write_readme(folder: Path, template: str, facts: dict[str, Any], data: dict[str, Any]) -> None:
    if data["kind"] == TABLE:
        features = plural(len(data["features"]), "feature")
        form = f"a table with the target `{shown(data['target'])}` and {features}"
        example = f"--data visits.csv --target {shlex.quote(shown(data['target']))}"
    else:
        form = f"arrays of {data['inputs']}, {data['classes']} classes"
        example = "--data NAME"
    path = shlex.quote(str(folder))
    run = f"docker run -d --init --restart always --user {os.getuid()}:{os.getgid()} -e HOME=/tmp"
    facts = facts | {"form": form, "example": example, "folder": path, "idiolect": _command()}
    container = {"run": f"{run} -v {shlex.quote(f'{folder}:{folder}')}"}
    write_template(folder / "README.md", template, **facts, **container)
    write_template(folder / "Containerfile", "Containerfile")


def _command() -> str:
    return shlex.join(program())


def write_template(path: Path, template: str, **values: object) -> None:
    """A file of templates/, with these values."""
    text = (Path(__file__).parent / "templates" / template).read_text(encoding="utf-8")
    write_atomic(path, Template(text).substitute(values).encode())
