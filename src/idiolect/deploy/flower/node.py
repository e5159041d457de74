"""What connects a site: Flower's SuperNode, and the relay that answers its messages.

python -m idiolect.deploy.flower.node connect ...   `flower-supernode ...`, which asks for messages
                                             more often while a run is in progress
python -m idiolect.deploy.flower.node answer ...    takes messages from it, in place of Flower's
                                             SuperExec: the code that comes with a run is never
                                             installed or imported, whatever it is
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ...core.knobs import SettingError
from . import internals
from .relay import relay


def commands(
    superlink: str, port: int, place: Path, line: Path, authority: Path | None, key: Path
) -> dict[str, list[str]]:
    """How both are started, with a secret in a folder; without an authority: without TLS."""
    connecting = [sys.executable, "-m", __name__, "connect"]
    connecting += ["--superlink", superlink, "--isolation", "process"]
    connecting += ["--host", "127.0.0.1", "--port", str(port)]
    connecting += ["--superexec-auth-secret-file", f"{place / 'secret'}"]
    connecting += ["--node-config", f'socket="{line}"']
    if authority is None:
        connecting += ["--insecure"]
    else:
        connecting += ["--root-certificates", f"{authority}"]
        connecting += ["--auth-supernode-private-key", f"{key}"]
    answering = [sys.executable, "-m", __name__, "answer"]
    answering += ["--address", f"127.0.0.1:{port}", "--secret", f"{place / 'secret'}"]
    return {"supernode": connecting, "relay": answering}


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["connect"]:
        internals.supernode(arguments[1:])
        return
    parser = argparse.ArgumentParser(prog="python -m idiolect.deploy.flower.node")
    parser.add_argument("role", choices=["connect", "answer"])
    parser.add_argument("--address", required=True, help="of the SuperNode on this machine")
    parser.add_argument("--secret", required=True, help="file: what opens it")
    options = parser.parse_args(arguments)
    internals.answer(options.address, Path(options.secret).read_bytes(), relay)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SettingError as error:
        sys.exit(f"error: {error}")
