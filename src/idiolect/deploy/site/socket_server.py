"""A Unix socket that answers one request per connection, one request at a time.

Frames are read and replies are written as peers are ready, so that one that is slow or silent
delays no other; it is dropped after a while. What is too large is refused by its length, unread.
"""

from __future__ import annotations

import os
import selectors
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ...core.framing import AT_ONCE, LENGTH, TooLarge, check_length, head
from ...core.knobs import SettingError

SECONDS = 30.0  # that a peer has for its request, and again for its reply
BYTES_PER_SECOND = 1 << 20  # and for a large one as long as it takes at this rate
MOST_PEERS = 16  # at the same time


class Responder(Protocol):
    """Who answers."""

    def handle(self, frame: bytes) -> bytes: ...

    def refuse(self, reason: str) -> bytes: ...

    def most_bytes(self) -> int: ...


@dataclass
class _Peer:
    """A connection: its request as far as it has come, then what is left of its reply."""

    socket: socket.socket
    until: float  # when it is dropped
    head: bytearray = field(default_factory=bytearray)
    length: int = -1  # of its request, once known
    body: bytearray = field(default_factory=bytearray)
    reply: memoryview | None = None


class SocketServer:
    """The socket, and those that are connected to it."""

    def __init__(self, path: Path, answers: Responder, seconds: float = SECONDS):
        self.path = path
        self.answers = answers
        self.seconds = seconds
        self._selector = selectors.DefaultSelector()
        self._socket = _bound(path)
        self._selector.register(self._socket, selectors.EVENT_READ)
        # written to by a signal, so that waiting ends
        self.wake_reader, self.wake_writer = socket.socketpair()
        for end in (self.wake_reader, self.wake_writer):
            end.setblocking(False)
        self._selector.register(self.wake_reader, selectors.EVENT_READ)
        self._peers: dict[int, _Peer] = {}

    def serve(self, stopped: Callable[[], bool]) -> None:
        """Answer until `stopped`, and then those that are owed a reply."""
        while not stopped():
            self._step(accept=True)
        end = time.monotonic() + min(self.seconds, 5.0)
        while time.monotonic() < end and any(p.reply is not None for p in self._peers.values()):
            self._step(accept=False)

    def close(self) -> None:
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._selector.close()
        for end in (self._socket, self.wake_reader, self.wake_writer):
            end.close()
        with suppress(FileNotFoundError):
            self.path.unlink()

    # -- inside ----------------------------------------------------------------------------------
    def _step(self, accept: bool) -> None:
        now = time.monotonic()
        soonest = min((p.until for p in self._peers.values()), default=now + 60.0)
        for key, _ in self._selector.select(max(0.0, min(soonest - now, 60.0))):
            if key.fileobj is self._socket:
                if accept:
                    self._accept()
            elif key.fileobj is self.wake_reader:
                with suppress(BlockingIOError):
                    self.wake_reader.recv(4096)
            elif (peer := self._peers.get(key.fd)) is not None:
                self._serve(peer)
        now = time.monotonic()
        for peer in [p for p in self._peers.values() if p.until <= now]:
            self._drop(peer)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        if len(self._peers) >= MOST_PEERS:
            connection.close()
            return
        connection.setblocking(False)
        peer = _Peer(connection, time.monotonic() + self.seconds)
        self._peers[connection.fileno()] = peer
        self._selector.register(connection, selectors.EVENT_READ)

    def _serve(self, peer: _Peer) -> None:
        try:
            if peer.reply is None:
                self._read(peer)
            else:
                self._write(peer)
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)

    def _read(self, peer: _Peer) -> None:
        missing = LENGTH - len(peer.head) if peer.length < 0 else peer.length - len(peer.body)
        piece = peer.socket.recv(min(AT_ONCE, missing)) if missing else b""
        if missing and not piece:
            self._drop(peer)
            return
        if peer.length >= 0:
            peer.body += piece
        else:
            peer.head += piece
            if len(peer.head) < LENGTH:
                return
            try:
                peer.length = check_length(bytes(peer.head), self.answers.most_bytes())
            except TooLarge as error:
                self._reply(peer, self.answers.refuse(str(error)))
                return
            peer.until += peer.length / BYTES_PER_SECOND
        if len(peer.body) == peer.length:
            frame = bytes(peer.body)
            peer.body = bytearray()
            self._reply(peer, self.answers.handle(frame))

    def _reply(self, peer: _Peer, frame: bytes) -> None:
        peer.reply = memoryview(head(len(frame)) + frame)
        now = time.monotonic()
        peer.until = now + self.seconds + len(frame) / BYTES_PER_SECOND
        for other in self._peers.values():  # no peer is late because this call took long
            if other is not peer:
                other.until = max(other.until, now + min(self.seconds, 5.0))
        self._selector.modify(peer.socket, selectors.EVENT_WRITE)

    def _write(self, peer: _Peer) -> None:
        assert peer.reply is not None
        peer.reply = peer.reply[peer.socket.send(peer.reply[:AT_ONCE]) :]
        if not len(peer.reply):
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        self._peers.pop(peer.socket.fileno(), None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(peer.socket)
        peer.socket.close()


def _bound(path: Path) -> socket.socket:
    """A socket for this user alone, in place of one that a killed process has left."""
    if os.path.lexists(path):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SettingError(f"state: {path} is no socket; remove it")
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(before)
    os.chmod(path, 0o600)
    listening.listen(MOST_PEERS)
    listening.setblocking(False)
    return listening
