"""Flower's SuperLink, closed to all but sites and the server.

    python -m idiolect.deploy.flower.link PLACE BYTES ...   (idiolect deploy superlink FOLDER)

PLACE is the folder with its key, BYTES the size of a message; arguments of flower-superlink follow.

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
from .process import Explanations, role

NAME = "superlink"  # of the pid file
MEANINGS = {
    "No SuperNode found with the given public key": "a site was refused, for its key is not "
    "registered: idiolect deploy add-site",
}
MOST_BODY = 256 << 20  # bytes of a request, unless another number is given
AROUND = 1 << 20  # bytes that Flower may put around a message
OPEN = ("/v1/fleet/", "/v1/runtime/", "/health")

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Guard:
    """Refuses what needs the key and comes without it, and bodies that are too large."""

    def __init__(self, app: Any, key: bytes, most: int = MOST_BODY):
        self.app = app
        self.key = key.hex().encode()
        self.most = most

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not scope["path"].startswith(OPEN):
            request_key = headers.get(KEY.encode(), b"")
            if not hmac.compare_digest(request_key, self.key):
                await _refuse(send, 403, b"this needs the operator's key")
                return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 18 or int(length) > self.most:
            await _refuse(send, 413, b"a request is larger than a message may be")
            return
        await self.app(scope, self._bounded(receive), send)

    def _bounded(self, receive: Any) -> Any:
        """What comes in, until it is more than a request may have, whatever it says of itself."""
        total = 0

        async def receive_some() -> dict[str, Any]:
            nonlocal total
            event: dict[str, Any] = await receive()
            total += len(event.get("body", b""))
            return event if total <= self.most else {"type": "http.disconnect"}

        return receive_some


async def _refuse(send: Send, status: int, text: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": text})


def arguments(
    host: str, port: int, place: Path, certificates: Path | None, most: int = MOST_BODY
) -> list[str]:
    """How it is started, with key, secret and database in a folder; None: without TLS.

    A message has `most` bytes.
    """
    words = [f"{place}", str(most), "--host", host, "--port", str(port), "--isolation", "process"]
    words += ["--disable-runtime-dependency-installation"]
    words += ["--database", f"{place / 'superlink.db'}"]
    words += ["--superexec-auth-secret-file", f"{place / 'secret'}"]
    if certificates is None:
        return [*words, "--insecure"]
    words += ["--ssl-ca-certfile", f"{certificates / 'ca.crt'}", "--enable-supernode-auth"]
    words += ["--ssl-certfile", f"{certificates / 'server.crt'}"]
    return [*words, "--ssl-keyfile", f"{certificates / 'server.key'}"]


def main(place: Path, most: int, words: list[str]) -> None:
    with role(place, NAME):
        Explanations(MEANINGS).listen()
        key = (place / "key").read_bytes()
        superlink(words, guard=partial(Guard, key=key, most=most + AROUND))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    except SettingError as error:
        sys.exit(f"error: {error}")
