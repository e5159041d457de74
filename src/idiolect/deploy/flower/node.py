"""What connects a site: Flower's SuperNode and the relay that answers its messages, one process.

    python -m idiolect.deploy.flower.node DIR       (idiolect host connect --state DIR)

DIR is the site's state directory: federation.toml says where the server is, node.key proves the
site. In place of Flower's SuperExec the relay takes the messages: the code that comes with a run
is never installed or imported, whatever it is.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import time
import tomllib
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ...core.files import write_atomic
from ...core.knobs import SettingError
from . import internals
from .process import NO_ANSWER, Explanations, become, role, tell
from .relay import relay

NAME = "connect"  # of the pid file
PAUSES = (0.0, 1.0, 2.0, 5.0, 10.0)  # seconds before a try, longer each time
STEADY = 60.0  # seconds after which a connection that ends is taken to have worked
MEANINGS = {
    "certificate has expired": "the server's certificate has expired: its operator makes new ones "
    "(idiolect deploy certificates), and every site needs the new federation.toml; trying again",
    "certificate is not valid for": "the server's certificate is for another name than the address "
    "in federation.toml; trying again",
    "unable to get local issuer certificate": "the server's certificate was not made by the "
    "authority in federation.toml: this is another server, or the file is an old one; trying again",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is refused: it has expired, is for "
    "another address, or was not made by the authority in federation.toml; trying again",
    internals.UNKNOWN_KEY: "the server refuses this site: its key is not registered there. Give "
    "the public half (node.pub) to the server's operator (idiolect deploy add-site); trying again",
    internals.CONNECTED: "the server refuses this site for now: a connection with its key is there "
    "already, of another process, or from before a crash (given up after 45 seconds); trying again",
    "[code: 1001]": "the server has another version of flwr; install the same; trying again",
    NO_ANSWER: "the server does not answer at its address; trying again",
    "could not establish a connection": "the server is there, and no connection comes about; the "
    "lines above say why; trying again",
}


def arguments(state: Path, port: int) -> list[str]:
    """Those of `flower-supernode` for a site, with its Runtime API at a port of this machine.

    Writes the files that they name.
    """
    path = state / "federation.toml"
    try:
        federation = tomllib.loads(path.read_text(encoding="utf-8"))["federation"]
        address, insecure = federation["address"], federation["insecure"]
        authority = federation["authority"].encode()
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise SettingError(f"state: cannot use {path}: {error}") from None
    write_atomic(state / "secret", secrets.token_bytes(32))
    words = ["--superlink", address, "--isolation", "process"]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    words += ["--superexec-auth-secret-file", f"{state / 'secret'}"]
    words += ["--node-config", f'socket="{state / "host.sock"}"']
    if insecure:
        return [*words, "--insecure"]
    write_atomic(state / "ca.crt", authority)
    words += ["--root-certificates", f"{state / 'ca.crt'}"]
    return [*words, "--auth-supernode-private-key", f"{state / 'node.key'}"]


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def connect(state: Path) -> None:
    """Until Flower gives up; SystemExit(0) on a signal to stop."""
    internals.check("runtime", "relay", "node")
    explanations = Explanations(MEANINGS)
    # not the relay's lines: it loses the SuperNode of this process when that ends
    explanations.addFilter(lambda record: record.thread == threading.main_thread().ident)
    explanations.listen()
    port = free_port()
    words = arguments(state, port)
    threading.Thread(target=_answer, args=(state, port), name=internals.RELAY, daemon=True).start()
    internals.supernode(words)


def _answer(state: Path, port: int) -> None:
    """Answer the messages of this process's SuperNode for as long as it lives."""
    secret = (state / "secret").read_bytes()
    while True:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            break
        time.sleep(internals.LOOKS)
    while True:
        try:
            internals.answer(f"127.0.0.1:{port}", secret, relay)
        except Exception as error:  # of Flower
            tell(f"messages cannot be answered: {error!r}; trying again")
            time.sleep(1.0)


def main(state: Path, tries: int = 0) -> NoReturn:
    """Connect, and when Flower gives up connect again.

    Flower ends its process when it is refused: by a server that does not know the key yet, or for
    45 seconds after a crash, while the old connection counts. Started by hand, nobody else would
    start it again. The process does so itself, as a new program of the same number: what Flower
    leaves behind (threads, handlers, a timer that ends the process) is gone.
    """
    code = 0
    try:
        with role(state, NAME):
            time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            began = time.monotonic()
            try:
                connect(state)
            except SystemExit as end:
                if not end.code:
                    raise
            except SettingError:
                raise
            except Exception:
                traceback.print_exc()
            steady = time.monotonic() - began > STEADY
            become(__spec__.name, state, 1 if steady else tries + 1)
    except SystemExit:  # on a signal
        pass
    except SettingError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    _exit(code)


def _exit(code: int) -> NoReturn:
    """Without waiting for threads: some of Flower's never end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), *map(int, sys.argv[2:3]))
