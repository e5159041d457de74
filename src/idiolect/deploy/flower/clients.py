"""HTTP clients of Flower's services, with what opens them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SOON = 0.05  # seconds
GIVEN_UP = 60.0  # seconds
KEY = "x-idiolect-key"  # the header that opens what `link` keeps closed


class WithKey:
    """Every request with the operator's key."""

    def __init__(self, key: bytes):
        self.key = key.hex()

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers[KEY] = self.key
        return call_next(context)


def runtime(address: str, root: bytes | None, *, token: str = "", secret: bytes = b"") -> Any:
    """Of messages and tasks, at a SuperLink or SuperNode: for one task by its token, or for all
    that may be taken, by the secret."""
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    if token:
        interceptors.append(RuntimeTokenHttpInterceptor(token))
    if secret:
        acquire = {"/flwr.proto.Runtime/AcquireTask"}
        interceptors.append(
            SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=acquire)
        )
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=root is None,
        root_certificates=root,
        interceptors=interceptors,
        retry_invoker=make_simple_http_retry_invoker(),
    )


def control(address: str, root: bytes | None, key: bytes) -> Any:
    """Of runs and of who may connect, at a SuperLink."""
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker

    return ControlHttpClient.from_server_address(
        server_address=address,
        insecure=root is None,
        root_certificates=root,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), WithKey(key)],
        retry_invoker=make_simple_http_retry_invoker(),
    )


def look_sooner() -> None:
    """Parts of a message that have not arrived yet are asked for again soon.

    Flower waits a second, and a message is always announced before its parts: every exchange
    would take two seconds more. And they are given up: a server that was killed between the two
    would keep its sites waiting for minutes.
    """
    from flwr.supercore.inflatable import inflatable_utils

    for function in (
        inflatable_utils.pull_objects,
        inflatable_utils.pull_and_inflate_object_from_tree,
    ):
        assert function.__kwdefaults__ is not None
        function.__kwdefaults__ |= {"initial_backoff": SOON, "max_time": GIVEN_UP}


def read(path: str | None) -> bytes | None:
    """The bytes of a file, where one is named."""
    return Path(path).read_bytes() if path else None


UNKNOWN_KEY = "idiolect: no node is registered with this key"
CONNECTED = "idiolect: the node with this key could not be activated"
