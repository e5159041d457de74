"""A Unix socket that answers one request per connection, one request at a time.

A request is eight bytes of length, little-endian, and a frame; so is its reply. Frames are read and
replies are written as peers are ready, so that one that is slow or silent delays no other; it is
dropped after a while. What is too large is refused by its length, unread, and memory grows with
what has come, not with what was promised.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from ...core.knobs import SettingError

LENGTH = 8  # bytes that tell the length of a frame
AT_ONCE = 1 << 20  # bytes that are read at once
SECONDS = 30.0  # that a peer has for its request, and again for its reply
BYTES_PER_SECOND = 1 << 20  # and for a large one as long as it takes at this rate
SECONDS_TO_CONNECT = 10.0
SECONDS_AT_END = 5.0  # for replies under way when the server stops
MOST_PEERS = 16  # at the same time


class TooLarge(ValueError):
    """A frame of more bytes than are accepted; none of them was read."""


# -- a request -------------------------------------------------------------------------------------
def exchange(path: str, frame: bytes, most: int, seconds: float | None = None) -> bytes:
    """One request to a Unix socket and its reply; OSError or EOFError where nobody answers.

    `seconds` without a byte from the other side are a TimeoutError; None = no limit, but for the
    connection.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(SECONDS_TO_CONNECT if seconds is None else seconds)
        peer.connect(path)
        peer.settimeout(seconds)
        # a peer that refuses the frame by its length answers and reads no further
        with suppress(BrokenPipeError, ConnectionResetError):
            peer.sendall(framed(frame))
        return read_frame(peer, most)


def framed(frame: bytes) -> bytes:
    """A frame with its length before it."""
    return len(frame).to_bytes(LENGTH, "little") + frame


def read_frame(peer: socket.socket, most: int) -> bytes:
    """Receive a frame of at most `most` bytes; EOFError where the peer ends before it does."""
    length = int.from_bytes(_exactly(peer, LENGTH), "little")
    if length > most:
        raise TooLarge(f"a frame must have at most {most} bytes, got {length}")
    return _exactly(peer, length)


def _exactly(peer: socket.socket, length: int) -> bytes:
    buffer = bytearray()
    while len(buffer) < length:
        piece = peer.recv(min(AT_ONCE, length - len(buffer)))
        if not piece:
            raise EOFError(f"the peer ended after {len(buffer)} of {length} bytes")
        buffer += piece
    return bytes(buffer)


# -- the server ------------------------------------------------------------------------------------
class Responder(Protocol):
    """Answers frames."""

    def handle(self, frame: bytes) -> bytes: ...

    def refuse(self, reason: str) -> bytes: ...

    def most_bytes(self) -> int: ...


class SocketServer:
    """The socket, and its peers. `run` answers until SIGTERM or Ctrl-C."""

    def __init__(self, path: Path, answers: Responder, seconds: float = SECONDS):
        self.path = path
        self.answers = answers
        self.seconds = seconds
        self._socket = _bound(path)
        self._limits: set[asyncio.Timeout] = set()  # of reads and writes under way
        self._peers: set[asyncio.Task[None]] = set()
        self._replying: set[asyncio.Task[None]] = set()

    def run(self) -> None:
        """Answer until a signal; the call under way is finished first. A second one ends it."""
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """Answer until cancelled, and then send the replies under way."""
        main = asyncio.current_task()
        assert main is not None
        restore = self._hear_sigterm(asyncio.get_running_loop(), main)
        try:
            with suppress(asyncio.CancelledError):
                server = await asyncio.start_unix_server(self._meet, sock=self._socket)
                await server.serve_forever()
            if self._replying:
                await asyncio.wait(self._replying, timeout=min(self.seconds, SECONDS_AT_END))
        finally:
            restore()
            self._socket.close()
            self.path.unlink(missing_ok=True)

    def _hear_sigterm(
        self, loop: asyncio.AbstractEventLoop, main: asyncio.Task[None]
    ) -> Callable[[], None]:
        """Stop after the call under way at the first SIGTERM, and at once at the second.

        A handler of the loop would wait for the call, however long it takes. Ending at once is as
        safe as kill -9: what must survive is on disk. What it returns puts the old handler back.
        """
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        signals = 0

        def stop(number: int, frame: object) -> None:
            nonlocal signals
            signals += 1
            if signals > 1:
                self.path.unlink(missing_ok=True)
                os._exit(128 + number)
            loop.call_soon_threadsafe(main.cancel)

        before = signal.signal(signal.SIGTERM, stop)

        def restore() -> None:
            signal.signal(signal.SIGTERM, before)

        return restore

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._peers) < MOST_PEERS:
                self._peers.add(task)
                reply = await self._answer(reader)
                self._replying.add(task)
                async with self._within(self.seconds + len(reply) / BYTES_PER_SECOND):
                    writer.write(framed(reply))
                    writer.close()
                    await writer.wait_closed()
        except (OSError, EOFError):  # it ended, or took too long
            pass
        finally:
            self._peers.discard(task)
            self._replying.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        """The reply to a request, which is read first."""
        async with self._within(self.seconds) as limit:
            length = int.from_bytes(await reader.readexactly(LENGTH), "little")
            most = self.answers.most_bytes()
            if length > most:
                return self.answers.refuse(f"a frame must have at most {most} bytes, got {length}")
            limit.reschedule((limit.when() or 0.0) + length / BYTES_PER_SECOND)
            frame = await reader.readexactly(length)
        reply = self.answers.handle(frame)
        soon = asyncio.get_running_loop().time() + min(self.seconds, SECONDS_AT_END)
        for other in self._limits:  # no peer is late because this call took long
            if not other.expired():
                other.reschedule(max(other.when() or 0.0, soon))
        return reply

    @asynccontextmanager
    async def _within(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        async with asyncio.timeout(seconds) as limit:
            self._limits.add(limit)
            try:
                yield limit
            finally:
                self._limits.discard(limit)


def _bound(path: Path) -> socket.socket:
    """A socket for this user alone, in place of one that a killed process has left."""
    if os.path.lexists(path):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SettingError(f"state: {path} must be a socket; remove what is there")
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(before)
    os.chmod(path, 0o600)
    listening.listen(MOST_PEERS)
    return listening
