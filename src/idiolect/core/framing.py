"""Frames over a local socket: eight bytes of length, then the frame; one request, one reply.

>>> import socket
>>> here, there = socket.socketpair()
>>> write_frame(here, b"hello")
>>> read_frame(there, most=100)
b'hello'
>>> here.close(), there.close()
(None, None)
"""

from __future__ import annotations

import socket
from contextlib import suppress

LENGTH = 8  # bytes that tell the length of a frame, little-endian
SECONDS_TO_CONNECT = 10.0
AT_ONCE = 1 << 20  # bytes that are read at once


class TooLarge(ValueError):
    """A frame of more bytes than are accepted; none of them was read."""


def head(length: int) -> bytes:
    """What stands before a frame of so many bytes."""
    return length.to_bytes(LENGTH, "little")


def check_length(start: bytes, most: int) -> int:
    """The length that a frame's first bytes tell; TooLarge where it is more than is accepted."""
    length = int.from_bytes(start, "little")
    if length > most:
        raise TooLarge(f"a frame of {length} bytes is not accepted; at most {most}")
    return length


def write_frame(peer: socket.socket, frame: bytes) -> None:
    """Send a frame."""
    peer.sendall(head(len(frame)))
    peer.sendall(frame)


def read_frame(peer: socket.socket, most: int) -> bytes:
    """Receive a frame of at most so many bytes; EOFError where the peer ends before it does."""
    length = check_length(_exactly(peer, LENGTH), most)
    return _exactly(peer, length)


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
            write_frame(peer, frame)
        return read_frame(peer, most)


def _exactly(peer: socket.socket, length: int) -> bytes:
    """So many bytes; memory grows with what has come, not with what was promised."""
    buffer = bytearray()
    while len(buffer) < length:
        piece = peer.recv(min(AT_ONCE, length - len(buffer)))
        if not piece:
            raise EOFError(f"the peer ended after {len(buffer)} of {length} bytes")
        buffer += piece
    return bytes(buffer)
