"""Flower's SuperLink, closed to all but sites and the server.

    python -m idiolect.deploy.flower.link --key FILE ...    and the arguments of flower-superlink

By itself a SuperLink lets everyone who reaches its port start runs and register nodes. Here that
needs the operator's key. Sites use the Fleet API, where each proves its own key; the server uses
the Runtime API, where tasks have tokens and are given out for a secret.
"""

from __future__ import annotations

import hmac
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...core.knobs import SettingError
from .internals import KEY, superlink

OPEN = ("/v1/fleet/", "/v1/runtime/", "/health")

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Guard:
    """Refuses what needs the key and comes without it."""

    def __init__(self, app: Any, key: bytes):
        self.app = app
        self.key = key.hex().encode()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(OPEN):
            request_key = dict(scope["headers"]).get(KEY.encode(), b"")
            if not hmac.compare_digest(request_key, self.key):
                await send({"type": "http.response.start", "status": 403, "headers": []})
                await send({"type": "http.response.body", "body": b"this needs the operator's key"})
                return
        await self.app(scope, receive, send)


def command(host: str, port: int, place: Path, certificates: Path | None) -> list[str]:
    """How it is started, with key, secret and database in a folder; None: without TLS."""
    words = [sys.executable, "-m", __name__, "--key", f"{place / 'key'}"]
    words += ["--host", host, "--port", str(port), "--isolation", "process"]
    words += ["--disable-runtime-dependency-installation"]
    words += ["--database", f"{place / 'superlink.db'}"]
    words += ["--superexec-auth-secret-file", f"{place / 'secret'}"]
    if certificates is None:
        return [*words, "--insecure"]
    words += ["--ssl-ca-certfile", f"{certificates / 'ca.crt'}", "--enable-supernode-auth"]
    words += ["--ssl-certfile", f"{certificates / 'server.crt'}"]
    return [*words, "--ssl-keyfile", f"{certificates / 'server.key'}"]


def main(arguments: list[str]) -> None:
    if arguments[:1] != ["--key"] or len(arguments) < 2:
        raise SystemExit("python -m idiolect.deploy.flower.link --key FILE ...")
    key = Path(arguments[1]).read_bytes()
    superlink(arguments[2:], guard=partial(Guard, key=key))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SettingError as error:
        sys.exit(f"error: {error}")
