"""The socket: for one user, one request per connection, and nobody is held up by another."""

import asyncio
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from idiolect.core.knobs import SettingError
from idiolect.deploy.site.sockets import (
    LENGTH,
    MOST_PEERS,
    SocketServer,
    TooLarge,
    exchange,
    framed,
    read_frame,
)


class Echo:
    """Responder with what it got; the largest frame has a thousand bytes."""

    def __init__(self):
        self.handled: list[bytes] = []
        self.slow = 0.0

    def handle(self, frame: bytes) -> bytes:
        self.handled.append(frame)
        time.sleep(self.slow)
        return b"re: " + frame * (100_000 if frame == b"much" else 1)

    def refuse(self, reason: str) -> bytes:
        return f"refused: {reason}".encode()

    def most_bytes(self) -> int:
        return 1000


@contextmanager
def listening(path, seconds: float = 5.0):
    echo = Echo()
    listener = SocketServer(path, echo, seconds)
    loop = asyncio.new_event_loop()
    serving = loop.create_task(listener.serve())
    thread = threading.Thread(target=loop.run_until_complete, args=(serving,))
    thread.start()
    try:
        yield echo
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(10)
        assert not thread.is_alive()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()


def head(length: int) -> bytes:
    return length.to_bytes(LENGTH, "little")


def write_frame(peer, frame: bytes) -> None:
    peer.sendall(framed(frame))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "host.sock"


def connected(path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    peer.connect(str(path))
    return peer


def test_a_request_has_its_reply(path):
    with listening(path) as echo:
        for frame in (b"", b"hello", bytes(1000)):
            assert exchange(str(path), frame, 10_000, 10) == b"re: " + frame
        assert len(exchange(str(path), b"much", 1 << 20, 10)) == 400_004
    assert echo.handled == [b"", b"hello", bytes(1000), b"much"]


def test_the_socket_is_its_users_alone_and_goes_with_the_process(path):
    with listening(path):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
    assert not path.exists()


def test_a_frame_that_is_too_large_is_refused_unread(path):
    with listening(path) as echo:
        with connected(path) as peer:
            peer.sendall(head(1001))  # and nothing of it
            assert (
                read_frame(peer, 1000) == b"refused: a frame must have at most 1000 bytes, got 1001"
            )
        with connected(path) as peer:
            peer.sendall(b"\xff" * LENGTH)
            assert read_frame(peer, 1000).endswith(b", got 18446744073709551615")
        assert exchange(str(path), bytes(5_000_000), 1000, 10).startswith(b"refused")
        assert exchange(str(path), b"fine", 1000, 10) == b"re: fine"
    assert echo.handled == [b"fine"]


def test_one_request_per_connection(path):
    with listening(path) as echo, connected(path) as peer:
        write_frame(peer, b"first")
        assert read_frame(peer, 1000) == b"re: first"
        with pytest.raises((EOFError, ConnectionError)):
            write_frame(peer, b"second")
            read_frame(peer, 1000)
    assert echo.handled == [b"first"]


def test_silent_and_slow_peers_are_dropped_and_hold_up_nobody(path):
    with listening(path, seconds=1.5) as echo:
        silent, slow = connected(path), connected(path)
        slow.sendall(head(100))
        assert exchange(str(path), b"quick", 1000, 10) == b"re: quick"
        assert not select.select([silent], [], [], 0)[0]  # answered before the others were dropped
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(100):  # a byte now and then does not make it stay
                slow.sendall(b"x")
                time.sleep(0.05)
        assert silent.recv(1) == b""
        silent.close()
        slow.close()
    assert echo.handled == [b"quick"]


def test_a_peer_that_does_not_take_its_reply_is_dropped(path):
    with listening(path, seconds=0.5):
        peer = connected(path)
        write_frame(peer, b"much")
        assert exchange(str(path), b"quick", 1000, 10) == b"re: quick"
        time.sleep(1.5)
        with pytest.raises(EOFError):
            read_frame(peer, 1 << 20)
        peer.close()


def test_peers_that_end_early_change_nothing(path):
    with listening(path) as echo:
        for start in (b"", b"\x05", head(50), head(50) + b"half"):
            peer = connected(path)
            peer.sendall(start)
            peer.close()
        assert exchange(str(path), b"fine", 1000, 10) == b"re: fine"
    assert echo.handled == [b"fine"]


def test_too_many_peers_are_turned_away(path):
    with listening(path, seconds=1.0):
        peers = [connected(path) for _ in range(MOST_PEERS)]
        time.sleep(0.2)
        with pytest.raises((EOFError, ConnectionError)):
            exchange(str(path), b"one more", 1000, 10)
        for peer in peers:
            peer.close()
        time.sleep(0.2)
        assert exchange(str(path), b"now", 1000, 10) == b"re: now"


def test_who_waits_while_another_is_answered_is_not_dropped(path):
    with listening(path, seconds=0.5) as echo:
        echo.slow = 1.0
        replies = []
        threads = [
            threading.Thread(target=lambda: replies.append(exchange(str(path), b"x", 1000, 20)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert replies == [b"re: x"] * 3


def test_the_call_under_way_is_answered_before_the_end(path):
    with listening(path) as echo:
        echo.slow = 0.5
        replies = []
        thread = threading.Thread(
            target=lambda: replies.append(exchange(str(path), b"last", 1000, 20))
        )
        thread.start()
        while not echo.handled:
            time.sleep(0.01)
    thread.join()
    assert replies == [b"re: last"]


def test_a_socket_that_a_killed_process_has_left_is_replaced(path):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with listening(path):
        assert exchange(str(path), b"x", 1000, 10) == b"re: x"


def test_a_file_in_the_place_of_the_socket_is_not_removed(path):
    path.write_text("mine")
    with pytest.raises(SettingError, match="must be a socket"):
        SocketServer(path, Echo())
    assert path.read_text() == "mine"


def test_replies_that_are_too_large_are_refused_unread(path):
    with listening(path), pytest.raises(TooLarge):
        exchange(str(path), b"much", 1000, 10)
    assert os.listdir(path.parent) == []


STUCK = """
import sys, time
from pathlib import Path
from idiolect.deploy.site.sockets import SocketServer

class Stuck:
    def handle(self, frame):
        print("at work", flush=True)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            sum(range(1000))
        return b""

    def refuse(self, reason):
        return b""

    def most_bytes(self):
        return 1000

SocketServer(Path(sys.argv[1]), Stuck()).run()
"""


def test_a_call_that_never_ends_is_ended_by_the_second_sigterm(path):
    import idiolect

    source = os.path.dirname(os.path.dirname(idiolect.__file__))
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source},
    )
    try:
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.02)
        peer = connected(path)
        write_frame(peer, b"anything")
        assert process.stdout.readline() == b"at work\n"
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)  # the call under way is finished first
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 128 + signal.SIGTERM
        assert not path.exists()
        peer.close()
    finally:
        process.kill()
        process.stdout.close()
