"""One address into one file: https only, no more bytes than expected, done by a deadline.

Nothing here trusts the other end: not the length that it promises, not its redirects, not that it
ever stops sending or keeps on sending.
"""

from __future__ import annotations

import queue
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .ways import FetchError

SCHEMES = ("https",)
STALL = 30.0  # seconds without a byte
GRACE = 60.0  # seconds that every download has
SLOWEST = 100_000  # bytes per second that a download needs beyond those
CHUNK = 1 << 16

Report = Callable[[int], Any]  # is told how many bytes came


def deadline(limit: int) -> float:
    """Seconds that a download of at most `limit` bytes may take in all.

    >>> deadline(26_000_000)
    320.0
    """
    return GRACE + limit / SLOWEST


def download(address: str, target: Path, limit: int, report: Report | None = None) -> Path:
    """The file at an address, of at most `limit` bytes, before the deadline.

    A thread does the work, since no timeout of a socket bounds the whole: a server that sends a
    byte now and then would hold us for ever. Where the deadline passes the thread is left alone;
    it ends with its connection.
    """
    check_scheme(address)
    seconds = deadline(limit)
    stop = threading.Event()
    outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            _transfer(address, target, limit, report, stop)
        except BaseException as error:  # raised by the caller, below
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=work, daemon=True).start()
    try:
        error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise FetchError(
            f"the download was not finished after {seconds:.0f} seconds; "
            f"{limit} bytes at most were expected, at {SLOWEST} per second or more"
        ) from None
    finally:
        stop.set()
    if error is not None:
        raise error
    return target


def check_scheme(address: str) -> None:
    """Refuse an address that is not of an accepted scheme.

    >>> check_scheme("http://example.org/x")
    Traceback (most recent call last):
        ...
    idiolect.data.ways.FetchError: 'http://example.org/x' is not accepted; only https:// is
    """
    if urllib.parse.urlsplit(address).scheme not in SCHEMES:
        accepted = " or ".join(f"{scheme}://" for scheme in SCHEMES)
        raise FetchError(f"{address!r} is not accepted; only {accepted} is")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects stay within the accepted schemes, and their bodies are not read."""

    def redirect_request(self, req: Any, fp: Any, *args: Any) -> Any:
        fp.close()
        check_scheme(args[-1])
        return super().redirect_request(req, fp, *args)


def _transfer(
    address: str, target: Path, limit: int, report: Report | None, stop: threading.Event
) -> None:
    opener = urllib.request.build_opener(_Redirects())
    with opener.open(address, timeout=STALL) as stream, open(target, "wb") as out:
        length = stream.headers.get("Content-Length")
        promised = int(length) if length and length.isdigit() else None
        if promised is not None and promised > limit:
            raise FetchError(f"{promised} bytes are offered; at most {limit} are expected")
        done = 0
        while not stop.is_set() and (chunk := stream.read1(CHUNK)):
            done += len(chunk)
            if done > limit:
                raise FetchError(f"more than the {limit} bytes expected were sent")
            out.write(chunk)
            if report:
                report(len(chunk))
        if promised is not None and done != promised:
            raise FetchError(f"the connection ended after {done} of {promised} bytes")
