"""Downloads from servers that do not keep to the rules: bounded in bytes and in time."""

import contextlib
import http.server
import threading
import time

import pytest

from idiolect.data import download
from idiolect.data.download import FetchError


class Server(http.server.BaseHTTPRequestHandler):
    """Answers each path with one kind of misbehaviour."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        getattr(self, self.path.strip("/"))()

    def head(self, **headers):
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def sound(self):
        self.head(Content_Length=4)
        self.wfile.write(b"data")

    def endless(self):
        self.head()
        while True:
            self.wfile.write(bytes(1 << 16))

    def promises_much(self):
        self.head(Content_Length=10**9)

    def stops_half_way(self):
        self.head(Content_Length=100)
        self.wfile.write(bytes(50))

    def a_byte_now_and_then(self):
        self.head(Content_Length=50)
        self.drip(b"\0" * 50)

    def a_letter_of_the_header_now_and_then(self):
        self.drip(b"HTTP/1.0 200 OK\r\n" + b"x" * 40)

    def drip(self, body):
        for i in range(len(body)):
            self.wfile.write(body[i : i + 1])
            time.sleep(0.05)

    def elsewhere(self):
        self.send_response(302)
        self.send_header("Location", "ftp://127.0.0.1:9/data")
        self.end_headers()

    def moved(self):
        self.send_response(302)
        self.send_header("Location", "/sound")
        self.end_headers()
        self.wfile.write(bytes(100))

    def moved_with_an_endless_word(self):
        self.send_response(302)
        self.send_header("Location", "/sound")
        self.end_headers()
        self.wfile.write(bytes(100))
        time.sleep(0.05)
        self.endless()

    def circle(self):
        self.send_response(302)
        self.send_header("Location", "/circle")
        self.end_headers()

    def handle(self):
        with contextlib.suppress(OSError):  # the client has had enough
            super().handle()


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """Gives a function that downloads a path of the server, and the bytes it left."""
    monkeypatch.setattr(download, "SCHEMES", ("http",))
    monkeypatch.setattr(download, "GRACE", 0.5)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def run(path, limit=1000):
        address = f"http://127.0.0.1:{server.server_address[1]}/{path}"
        return download.download(address, tmp_path / "file", limit).read_bytes()

    yield run
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("path", ["sound", "moved", "moved_with_an_endless_word"])
def test_a_sound_download_and_one_that_has_moved_arrive(fetched, path):
    assert fetched(path) == b"data"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("endless", "more than the 1000 bytes expected were sent"),
        ("promises_much", "1000000000 bytes are offered; at most 1000 are expected"),
        ("stops_half_way", "the connection ended after 50 of 100 bytes"),
        ("a_byte_now_and_then", r"not finished after 1 seconds"),
        ("a_letter_of_the_header_now_and_then", r"not finished after 1 seconds"),
    ],
)
def test_a_server_can_hold_us_neither_for_ever_nor_with_endless_bytes(
    fetched, tmp_path, path, message
):
    began = time.monotonic()
    with pytest.raises(FetchError, match=message):
        fetched(path)
    assert time.monotonic() - began < 3
    left = tmp_path / "file"
    assert not left.exists() or left.stat().st_size <= 1000


def test_redirects_stay_within_the_accepted_schemes(fetched):
    with pytest.raises(FetchError, match=r"must begin with http://, got 'ftp://127.0.0.1:9/data'"):
        fetched("elsewhere")


def test_redirects_in_a_circle_end(fetched):
    with pytest.raises(OSError, match="infinite loop"):
        fetched("circle")


@pytest.mark.parametrize("address", ["http://example.org/x", "file:///etc/passwd", "ftp://x/y"])
def test_only_https_is_accepted(tmp_path, address):
    with pytest.raises(FetchError, match="must begin with https://, got"):
        download.download(address, tmp_path / "file", 10)
    assert not (tmp_path / "file").exists()
